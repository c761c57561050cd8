//! The entry points of the fuzzer and of the test that replays its corpus: they take bytes, and panic if the format breaks
//! a promise.
//!
//! Not part of the interface. It is in this crate because the encoders and the parsers of keys are private.

use bytes::Bytes;

use crate::keys;
use crate::record::{self, DecodeError, Kind, Record};
use crate::{Generation, QueueId};

/// Reads `input` as a key and a record without its checksum, and returns what the record is.
///
/// The first two bytes are the length of the key. The record is decoded twice: as it is, and with the checksum that
/// belongs to it, because the checksum would stop almost all inputs.
///
/// # Panics
/// If what was decoded is not encoded to the bytes that it came from, if a decoder takes a record of another kind, or
/// if the parts of a key do not make the key again.
///
/// # Errors
/// See [`DecodeError`].
pub fn record(input: &[u8]) -> Result<Record, DecodeError> {
    let (length, rest) = input.split_first_chunk().unwrap_or((&[0; 2], input));
    let length = usize::from(u16::from_be_bytes(*length));
    let (key, framed) = rest.split_at(length.min(rest.len()));
    check_key(key);
    let _ = check_record(key, &Bytes::copy_from_slice(framed));
    check_record(key, &record::sealed(key, framed))
}

fn check_record(key: &[u8], bytes: &Bytes) -> Result<Record, DecodeError> {
    for kind in Kind::ALL {
        let taken = record::decode_as(kind, key, bytes).is_ok();
        assert!(
            !taken || bytes.first() == Some(&(kind as u8)),
            "{kind:?} takes a record of another kind"
        );
    }
    let decoded = record::decode(key, bytes)?;
    // The fields decide about the version, and there are no two ways to write them.
    let encoded = record::encoded(|bytes| record::encode(bytes, key, &decoded));
    assert_eq!(encoded, bytes, "{decoded:?} is written otherwise");
    assert_eq!(record::decode(key, &encoded).as_ref(), Ok(&decoded));
    Ok(decoded)
}

/// Takes a key apart as every kind of key that there is. The tag at the beginning is not looked at by the parsers: a
/// range has been read that begins with it.
fn check_key(key: &[u8]) {
    let untagged = key.get(1..).unwrap_or_default();
    if let Ok((fairness_key, id)) = keys::parse_message(key) {
        let (queue, generation) = realm(key).expect("a message has a realm");
        assert_eq!(keys::message(queue, generation, &fairness_key, id), key);
        assert_eq!(keys::position(&fairness_key, id), keys::position_of(key));
        let (from, to) = keys::backlog(queue, generation, &fairness_key, None);
        assert!(from[..] <= *key && *key < to[..], "outside of its backlog");
        let (from, to) = keys::messages(queue, generation, None);
        assert!(from[..] <= *key && *key < to[..], "outside of its queue");
    }
    if let Ok(id) = keys::parse_remembered(&Bytes::copy_from_slice(key)) {
        let (queue, generation) = realm(untagged).expect("an id has a realm");
        assert_eq!(keys::remembered(queue, generation, &id)[1..], *untagged);
    }
    if let Some((expires_at, remembered)) = keys::parse_expiry(key) {
        assert_eq!(keys::expiry_of(&remembered, expires_at)[1..], *untagged);
    }
    if let Some(queue) = keys::parse_queue(key) {
        assert!(untagged.starts_with(&keys::queue(queue)[1..]));
    }
    if let Some((queue, generation)) = keys::parse_leftover(key) {
        assert!(untagged.starts_with(&keys::leftover(queue, generation)[1..]));
    }
    if let Some(config) = keys::parse_config(key) {
        assert_eq!(keys::config(&config)[1..], *untagged);
    }
    assert!(keys::following(key)[..] > *key);
    if key.iter().any(|&byte| byte != u8::MAX) {
        let extension = [key, &[u8::MAX; 4]].concat();
        assert!(keys::successor(key) > extension);
    }
}

fn realm(key: &[u8]) -> Option<(QueueId, Generation)> {
    let (queue, rest) = key.split_first_chunk()?;
    let generation = rest.first_chunk()?;
    Some((
        QueueId::new(u64::from_be_bytes(*queue)),
        Generation::new(u32::from_be_bytes(*generation)),
    ))
}
