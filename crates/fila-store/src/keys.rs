//! The keys of the rows: byte strings whose order is the order that ranges need.
//!
//! Numbers are big-endian. A fairness key may hold any bytes and must sort before its own extensions. So the encoding puts
//! `ff` after every zero byte, and ends the key with two zero bytes. `docs/internal/storage-format.md` has the table.

use bytes::Bytes;

use crate::record::DecodeError;
use crate::{
    ConfigKey, FairnessKey, Generation, MessageId, QueueId, QueueName, RememberedName, Timestamp,
};

pub(crate) const SCHEMA: &[u8] = b"s";
pub(crate) const EPOCH: &[u8] = b"e";
pub(crate) const NEXT_QUEUE: &[u8] = b"i";
pub(crate) const REVISION: &[u8] = b"r";
pub(crate) const FLUSHED_SEGMENT: &[u8] = b"j";
pub(crate) const FLUSHED_SEQUENCE: &[u8] = b"k";

const QUEUE: u8 = b'q';
const NAME: u8 = b'n';
const GENERATION: u8 = b'g';
const LEFTOVER: u8 = b'x';
const CONFIG: u8 = b'c';
const BLOB: u8 = b'b';

const REMEMBERED: u8 = b'd';
const EXPIRY: u8 = b'x';

/// Bytes of queue and generation, the beginning of every message's key.
const REALM: usize = 12;
const ID: usize = 8;

/// The longest key: that of a message whose fairness key has only zero bytes.
const KEY_MAX: usize = REALM + 2 * FairnessKey::MAX + 2 + ID;

/// From the first key, up to and without the second.
pub(crate) type Range = (Vec<u8>, Vec<u8>);

fn realm(queue: QueueId, generation: Generation) -> [u8; REALM] {
    let mut bytes = [0; REALM];
    bytes[..8].copy_from_slice(&queue.get().to_be_bytes());
    bytes[8..].copy_from_slice(&generation.get().to_be_bytes());
    bytes
}

/// Tells whether a row of the catalogue describes the log, which only the default engine has.
pub(crate) fn is_of_log(key: &[u8]) -> bool {
    key == FLUSHED_SEGMENT || key == FLUSHED_SEQUENCE || parse_blob(key).is_some()
}

/// Tells whether a row of the catalogue is a queue.
pub(crate) fn is_queue(key: &[u8]) -> bool {
    key.first() == Some(&QUEUE)
}

/// Tells whether a row of the catalogue is an entry of the runtime configuration.
pub(crate) fn is_config(key: &[u8]) -> bool {
    key.first() == Some(&CONFIG)
}

/// Tells whether a row is a deduplication id, and not the note of its expiry.
pub(crate) fn is_remembered(key: &[u8]) -> bool {
    key.first() == Some(&REMEMBERED)
}

/// Returns the key of the row that lists a blob segment.
pub(crate) fn blob(number: u64) -> Vec<u8> {
    [&[BLOB][..], &number.to_be_bytes()].concat()
}

/// Returns the range of the rows that list blob segments.
pub(crate) fn blobs() -> Range {
    (vec![BLOB], successor(&[BLOB]))
}

/// Returns the blob segment that a row lists.
pub(crate) fn parse_blob(key: &[u8]) -> Option<u64> {
    let number = key.strip_prefix(&[BLOB])?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// Returns the end of the range of keys that begin with `prefix`.
pub(crate) fn successor(prefix: &[u8]) -> Vec<u8> {
    let end = prefix.iter().rposition(|&byte| byte != u8::MAX);
    let mut next = prefix[..end.map_or(0, |end| end + 1)].to_vec();
    match next.last_mut() {
        Some(last) => *last += 1,
        // The prefix has only `ff` bytes, so the end must be longer than any key.
        None => next = vec![u8::MAX; KEY_MAX + 1],
    }
    next
}

/// Returns the first key after `key`.
pub(crate) fn following(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

fn escape(key: &FairnessKey, into: &mut Vec<u8>) {
    for (index, part) in key.as_bytes().split(|&byte| byte == 0).enumerate() {
        if index > 0 {
            into.extend_from_slice(&[0, u8::MAX]);
        }
        into.extend_from_slice(part);
    }
    into.extend_from_slice(&[0, 0]);
}

/// Returns a message's position in its queue: the end of its key.
pub(crate) fn position(key: &FairnessKey, id: MessageId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.as_bytes().len() + 2 + ID);
    escape(key, &mut bytes);
    bytes.extend_from_slice(&id.get().to_be_bytes());
    bytes
}

/// Returns the key of a message, in the tables of messages and of payloads.
pub(crate) fn message(
    queue: QueueId,
    generation: Generation,
    key: &FairnessKey,
    id: MessageId,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_message(&mut bytes, queue, generation, key, id);
    bytes
}

/// Appends the same key to `bytes`.
pub(crate) fn append_message(
    bytes: &mut Vec<u8>,
    queue: QueueId,
    generation: Generation,
    key: &FairnessKey,
    id: MessageId,
) {
    bytes.reserve(REALM + key.as_bytes().len() + 2 + ID);
    bytes.extend_from_slice(&realm(queue, generation));
    escape(key, bytes);
    bytes.extend_from_slice(&id.get().to_be_bytes());
}

/// Returns the range of a queue's messages after a position.
pub(crate) fn messages(queue: QueueId, generation: Generation, after: Option<&[u8]>) -> Range {
    let realm = realm(queue, generation);
    let from = after.map_or_else(
        || realm.to_vec(),
        |position| following(&[&realm[..], position].concat()),
    );
    (from, successor(&realm))
}

/// Returns the range of the messages of one fairness key, from an id on.
pub(crate) fn backlog(
    queue: QueueId,
    generation: Generation,
    key: &FairnessKey,
    after: Option<MessageId>,
) -> Range {
    let mut prefix = realm(queue, generation).to_vec();
    escape(key, &mut prefix);
    let to = successor(&prefix);
    if let Some(id) = after {
        prefix.extend_from_slice(&id.get().to_be_bytes());
        prefix.push(0);
    }
    (prefix, to)
}

/// Returns the end of a message's key: its position in the queue.
pub(crate) fn position_of(key: &[u8]) -> &[u8] {
    key.get(REALM..).unwrap_or_default()
}

/// Takes the key of a message apart.
pub(crate) fn parse_message(key: &[u8]) -> Result<(FairnessKey, MessageId), DecodeError> {
    let truncated = DecodeError::Truncated {
        needed: REALM + 2 + ID,
        found: key.len(),
    };
    let position = key.get(REALM..).ok_or_else(|| truncated.clone())?;
    let (escaped, id) = position.split_last_chunk::<ID>().ok_or(truncated)?;
    let fairness_key = unescape(escaped)?;
    Ok((
        fairness_key,
        MessageId::from_number(u64::from_be_bytes(*id)),
    ))
}

/// Takes the keys of messages apart. Messages of one fairness key that follow one another share it.
#[derive(Debug, Default)]
pub(crate) struct MessageKeys {
    /// The last key up to its id, and the fairness key in it.
    before: Option<(Vec<u8>, FairnessKey)>,
}

impl MessageKeys {
    /// Takes the next key apart.
    pub(crate) fn parse(&mut self, key: &[u8]) -> Result<(FairnessKey, MessageId), DecodeError> {
        if let Some((before, fairness_key)) = &self.before
            && let Some((beginning, id)) = key.split_last_chunk::<ID>()
            && beginning == before
        {
            let id = MessageId::from_number(u64::from_be_bytes(*id));
            return Ok((fairness_key.clone(), id));
        }
        let (fairness_key, id) = parse_message(key)?;
        let beginning = key[..key.len() - ID].to_vec();
        self.before = Some((beginning, fairness_key.clone()));
        Ok((fairness_key, id))
    }
}

fn unescape(escaped: &[u8]) -> Result<FairnessKey, DecodeError> {
    let invalid = || DecodeError::OutOfRange("escaping of a fairness key");
    let body = escaped.strip_suffix(&[0, 0]).ok_or_else(invalid)?;
    let mut bytes = Vec::with_capacity(body.len());
    let mut rest = body.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(byte);
        if byte == 0 && rest.next() != Some(&u8::MAX) {
            return Err(invalid());
        }
    }
    FairnessKey::new(bytes).map_err(|_| DecodeError::OutOfRange("length of a fairness key"))
}

/// Returns the range of all rows of a queue in generations up to and including this one.
pub(crate) fn leftovers(queue: QueueId, upto: Generation) -> Range {
    let from = realm(queue, Generation::default());
    (from.to_vec(), successor(&realm(queue, upto)))
}

/// Returns the same range among the deduplication rows.
pub(crate) fn remembered_leftovers(queue: QueueId, upto: Generation) -> Range {
    let (from, to) = leftovers(queue, upto);
    (prefixed(REMEMBERED, &[&from]), prefixed(REMEMBERED, &[&to]))
}

fn prefixed(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut key = Vec::with_capacity(1 + length);
    key.push(tag);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

/// Returns the key under which a deduplication row is looked up.
pub(crate) fn remembered(queue: QueueId, generation: Generation, name: &RememberedName) -> Vec<u8> {
    prefixed(REMEMBERED, &[&realm(queue, generation), name.as_bytes()])
}

/// Returns the range of a queue's deduplication rows, from a name on.
pub(crate) fn all_remembered(
    queue: QueueId,
    generation: Generation,
    after: Option<&RememberedName>,
) -> Range {
    let prefix = prefixed(REMEMBERED, &[&realm(queue, generation)]);
    let to = successor(&prefix);
    let from = after.map_or(prefix, |name| {
        following(&remembered(queue, generation, name))
    });
    (from, to)
}

/// Takes the key of a deduplication row apart.
pub(crate) fn parse_remembered(key: &Bytes) -> Result<RememberedName, DecodeError> {
    let start = 1 + REALM;
    let name = if key.len() >= start {
        Bytes::copy_from_slice(&key[start..])
    } else {
        Bytes::new()
    };
    RememberedName::new(name).map_err(|_| DecodeError::OutOfRange("length of a deduplication row"))
}

/// Returns the key under which a deduplication row is found when it expires.
pub(crate) fn expiry(
    expires_at: Timestamp,
    queue: QueueId,
    generation: Generation,
    name: &RememberedName,
) -> Vec<u8> {
    let moment = expires_at.as_millis().to_be_bytes();
    prefixed(
        EXPIRY,
        &[&moment, &realm(queue, generation), name.as_bytes()],
    )
}

/// Returns the same, for the key under which it is looked up.
pub(crate) fn expiry_of(remembered: &[u8], expires_at: Timestamp) -> Vec<u8> {
    let moment = expires_at.as_millis().to_be_bytes();
    prefixed(EXPIRY, &[&moment, remembered.get(1..).unwrap_or_default()])
}

/// Returns the range of the entries that expire at `now` or before.
pub(crate) fn expired(now: Timestamp) -> Range {
    let from = vec![EXPIRY];
    let to = successor(&prefixed(EXPIRY, &[&now.as_millis().to_be_bytes()]));
    (from, to)
}

/// Returns when an entry expires, and the key under which it is looked up.
pub(crate) fn parse_expiry(key: &[u8]) -> Option<(Timestamp, Vec<u8>)> {
    let (moment, rest) = key.get(1..)?.split_first_chunk::<8>()?;
    let expires_at = Timestamp::from_millis(u64::from_be_bytes(*moment));
    Some((expires_at, prefixed(REMEMBERED, &[rest])))
}

pub(crate) fn queue(id: QueueId) -> Vec<u8> {
    prefixed(QUEUE, &[&id.get().to_be_bytes()])
}

pub(crate) fn queues() -> Range {
    (vec![QUEUE], vec![QUEUE + 1])
}

/// Takes the key of a queue apart.
pub(crate) fn parse_queue(key: &[u8]) -> Option<QueueId> {
    let number = key.get(1..)?.first_chunk::<8>()?;
    Some(QueueId::new(u64::from_be_bytes(*number)))
}

pub(crate) fn name(name: &QueueName) -> Vec<u8> {
    prefixed(NAME, &[name.as_str().as_bytes()])
}

pub(crate) fn generation(id: QueueId) -> Vec<u8> {
    prefixed(GENERATION, &[&id.get().to_be_bytes()])
}

/// Returns the key of the leftover row that names a queue's generations up to and including this one.
pub(crate) fn leftover(id: QueueId, upto: Generation) -> Vec<u8> {
    prefixed(LEFTOVER, &[&realm(id, upto)])
}

pub(crate) fn all_leftovers() -> Range {
    (vec![LEFTOVER], vec![LEFTOVER + 1])
}

/// Takes the key of a leftover row apart.
pub(crate) fn parse_leftover(key: &[u8]) -> Option<(QueueId, Generation)> {
    let (queue, rest) = key.get(1..)?.split_first_chunk::<8>()?;
    let generation = rest.first_chunk::<4>()?;
    Some((
        QueueId::new(u64::from_be_bytes(*queue)),
        Generation::new(u32::from_be_bytes(*generation)),
    ))
}

pub(crate) fn config(key: &ConfigKey) -> Vec<u8> {
    prefixed(CONFIG, &[key.as_str().as_bytes()])
}

pub(crate) fn configs(prefix: &str) -> Range {
    let from = prefixed(CONFIG, &[prefix.as_bytes()]);
    let to = successor(&from);
    (from, to)
}

/// Takes the key of a config entry apart.
pub(crate) fn parse_config(key: &[u8]) -> Option<ConfigKey> {
    let text = std::str::from_utf8(key.get(1..)?).ok()?;
    ConfigKey::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few different bytes, so that keys often begin alike.
    fn fairness_keys() -> impl Strategy<Value = FairnessKey> {
        let byte = prop_oneof![Just(0_u8), Just(1), Just(b'a'), Just(0xfe), Just(0xff)];
        prop::collection::vec(byte, 0..6).prop_map(|bytes| FairnessKey::new(bytes).unwrap())
    }

    proptest! {
        #[test]
        fn rows_are_in_the_order_of_key_and_id(
            (a, b) in (fairness_keys(), fairness_keys()),
            (i, j) in (any::<u64>(), any::<u64>()),
        ) {
            let (queue, generation) = (QueueId::new(7), Generation::new(3));
            let (i, j) = (MessageId::from_number(i), MessageId::from_number(j));
            let left = message(queue, generation, &a, i);
            let right = message(queue, generation, &b, j);
            prop_assert_eq!(left.cmp(&right), (&a, i).cmp(&(&b, j)));
        }

        #[test]
        fn a_key_is_read_back_as_it_was_written(key in fairness_keys(), id in any::<u64>()) {
            let id = MessageId::from_number(id);
            let row = message(QueueId::new(1), Generation::new(2), &key, id);
            prop_assert_eq!(parse_message(&row), Ok((key, id)));
        }

        #[test]
        fn keys_that_follow_one_another_are_taken_apart_as_alone(
            rows in prop::collection::vec((0..3_u64, fairness_keys(), any::<u64>(), any::<bool>()), 1..9),
        ) {
            let mut keys = MessageKeys::default();
            for (queue, key, id, is_cut) in rows {
                let id = MessageId::from_number(id);
                let mut row = message(QueueId::new(queue), Generation::new(2), &key, id);
                row.truncate(row.len() - usize::from(is_cut));
                prop_assert_eq!(keys.parse(&row), parse_message(&row));
                prop_assert_eq!(keys.parse(&row), parse_message(&row), "again");
            }
        }

        #[test]
        fn a_backlog_is_one_range_without_any_neighbour(
            (a, b) in (fairness_keys(), fairness_keys()),
            (after, id) in (any::<u64>(), any::<u64>()),
        ) {
            let (queue, generation) = (QueueId::new(7), Generation::new(3));
            let row = message(queue, generation, &b, MessageId::from_number(id));
            let (from, to) = backlog(queue, generation, &a, Some(MessageId::from_number(after)));
            prop_assert_eq!((from..to).contains(&row), a == b && id > after);
        }

        #[test]
        fn no_bytes_break_the_parsers(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse_message(&bytes);
            let _ = parse_expiry(&bytes);
            let _ = parse_leftover(&bytes);
            let _ = parse_config(&bytes);
            let _ = parse_remembered(&bytes.into());
        }
    }

    #[test]
    fn the_successor_comes_after_every_extension_and_before_every_sibling() {
        assert_eq!(successor(&[1, 2]), [1, 3]);
        assert_eq!(successor(&[1, 0xff, 0xff]), [2]);
        assert!(successor(&[0xff; 4]) > vec![0xff; KEY_MAX]);
    }

    #[test]
    fn the_last_realm_there_is_holds_its_messages() {
        let (queue, generation) = (QueueId::new(u64::MAX), Generation::new(u32::MAX));
        let key = FairnessKey::new(vec![0xff; FairnessKey::MAX]).unwrap();
        let row = message(queue, generation, &key, MessageId::from_number(u64::MAX));
        let (from, to) = messages(queue, generation, None);
        assert!((from..to).contains(&row));
        let zeroes = FairnessKey::new(vec![0; FairnessKey::MAX]).unwrap();
        let longest = message(queue, generation, &zeroes, MessageId::from_number(0));
        assert_eq!(longest.len(), KEY_MAX);
    }

    #[test]
    fn the_keys_of_a_message_are_these() {
        let key = FairnessKey::new(&b"a\0b"[..]).unwrap();
        let row = message(
            QueueId::new(0x0102),
            Generation::new(3),
            &key,
            MessageId::from_number(0x0400_0000_0005),
        );
        let mut expected = vec![0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3];
        expected.extend_from_slice(b"a\0\xffb\0\0");
        expected.extend_from_slice(&[0, 0, 4, 0, 0, 0, 0, 5]);
        assert_eq!(row, expected);
    }
}
