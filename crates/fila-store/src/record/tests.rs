use proptest::prelude::*;

use super::*;
use crate::{Epoch, Generation, QueueId};

fn row() -> Vec<u8> {
    let id = MessageId::new(Epoch::FIRST, 2).unwrap();
    let key = FairnessKey::new("tenant").unwrap();
    keys::message(QueueId::new(7), Generation::new(0), &key, id)
}

fn encoded_meta(key: &[u8], meta: &Meta) -> Bytes {
    encoded(|bytes| encode_meta(bytes, key, meta))
}

fn encoded_payload(key: &[u8], payload: &Payload) -> Bytes {
    encoded(|bytes| encode_payload(bytes, key, payload))
}

fn full_meta() -> Meta {
    let mut meta = Meta::new(
        FairnessKey::new("tenant").unwrap(),
        Timestamp::from_millis(0x0a0b),
    );
    meta.schedule.weight = NonZeroU32::new(5).unwrap();
    meta.deliver_after = Some(Timestamp::from_millis(0x0c));
    meta.expires_at = Some(Timestamp::from_millis(0x0d));
    meta.attempts = 3;
    meta.deduplication_id = Some(DeduplicationId::new("once").unwrap());
    meta.sizes = Sizes {
        headers: 8,
        body: 4,
    };
    meta
}

fn throttled_meta() -> Meta {
    let keys = ["api", "api:eu"].map(|key| ThrottleKey::parse(key).unwrap());
    let mut meta = full_meta();
    meta.schedule.throttle_keys = Box::new(keys);
    meta
}

/// A message whose hook has named the weights of two of three groups.
fn grouped_meta() -> Meta {
    let mut meta = throttled_meta();
    for (level, weight) in [(0, 3), (2, 65_536)] {
        let weight = NonZeroU32::new(weight).unwrap();
        meta.schedule.group_weights.set(level, weight);
    }
    meta
}

/// A message that has failed, and one that has died of it.
fn failed_metas() -> [Meta; 2] {
    let alive = History {
        last_error: ErrorText::new("no route"),
        first_failed_at: Timestamp::from_millis(0x0e),
        last_failed_at: Timestamp::from_millis(0x0f),
        death: None,
    };
    let dead = History {
        death: Some(Death {
            reason: DeathReason::Hook,
            queue: QueueName::parse("orders").unwrap(),
            message: MessageId::new(Epoch::FIRST, 3).unwrap(),
            attempts: 4,
            died_at: Timestamp::from_millis(0x10),
            enqueued_at: Timestamp::from_millis(0x11),
        }),
        ..alive.clone()
    };
    [alive, dead].map(|history| Meta {
        history: Some(Arc::new(history)),
        ..full_meta()
    })
}

fn payload() -> Payload {
    let headers = vec![("type".to_owned(), "mail".to_owned())];
    Payload::new(headers, "body").unwrap()
}

/// One record of each kind, with the key it lies under.
fn one_of_each() -> Vec<(Vec<u8>, Bytes, Record)> {
    let number = b"e".to_vec();
    let queue = keys::queue(QueueId::new(7));
    let config = b"cthrottle".to_vec();
    let remembered = b"d-any".to_vec();
    let name = QueueName::parse("orders").unwrap();
    let version = Version::new(9);
    let id = MessageId::new(Epoch::FIRST, 2).unwrap();
    let expires_at = Timestamp::from_millis(77);
    let pointer = ValuePointer {
        segment: 3,
        at: 112,
        length: 1_040,
    };
    vec![
        (
            number.clone(),
            encoded(|bytes| encode_number(bytes, &number, 42)),
            Record::Number(42),
        ),
        (
            queue.clone(),
            encoded(|bytes| encode_queue(bytes, &queue, version, &name, b"{}")),
            Record::Queue {
                version,
                name,
                definition: Bytes::from_static(b"{}"),
            },
        ),
        (
            config.clone(),
            encoded(|bytes| encode_config(bytes, &config, version, b"10")),
            Record::Config {
                version,
                value: Bytes::from_static(b"10"),
            },
        ),
        (
            row(),
            encoded_meta(&row(), &full_meta()),
            Record::Meta(full_meta()),
        ),
        (
            row(),
            encoded_meta(&row(), &throttled_meta()),
            Record::Meta(throttled_meta()),
        ),
        (
            row(),
            encoded_meta(&row(), &failed_metas()[0]),
            Record::Meta(failed_metas()[0].clone()),
        ),
        (
            row(),
            encoded_meta(&row(), &failed_metas()[1]),
            Record::Meta(failed_metas()[1].clone()),
        ),
        (
            row(),
            encoded_meta(&row(), &grouped_meta()),
            Record::Meta(grouped_meta()),
        ),
        (
            row(),
            encoded_payload(&row(), &payload()),
            Record::Payload(payload()),
        ),
        (
            remembered.clone(),
            encoded(|bytes| encode_remembered(bytes, &remembered, id, expires_at)),
            Record::Remembered { id, expires_at },
        ),
        (
            row(),
            encoded(|bytes| encode_value_pointer(bytes, &row(), pointer)),
            Record::ValuePointer(pointer),
        ),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_kind_is_read_back_as_it_was_written() {
    for (key, record, expected) in one_of_each() {
        assert_eq!(decode(&key, &record), Ok(expected));
    }
}

/// If this fails the format has changed: raise the version of the kind, keep reading the old one, and say so in
/// docs/internal/storage-format.md.
#[test]
fn the_bytes_of_every_kind_are_these() {
    let bytes: Vec<String> = one_of_each()
        .iter()
        .map(|(_, record, _)| hex(record))
        .collect();
    assert_eq!(bytes, GOLDEN);
}

const GOLDEN: [&str; 11] = [
    "0101000000000000002ad7078153",
    "02010000000000000009066f72646572737b7d29d134b9",
    "030100000000000000093130fccc6952",
    "040107000000050000000000000a0b000000030000000800000004000000000000000c000000000000000d046f6e636576924491",
    "04010f000000050000000000000a0b000000030000000800000004000000000000000c000000000000000d046f6e636502000361706900066170693a65753b106596",
    "040117000000050000000000000a0b000000030000000800000004000000000000000c000000000000000d046f6e6365000000000000000e000000000000000f00086e6f20726f757465002895bfa0",
    "040117000000050000000000000a0b000000030000000800000004000000000000000c000000000000000d046f6e6365000000000000000e000000000000000f00086e6f20726f7574650200000100000000030000000400000000000000100000000000000011066f726465727300bbf81d",
    "04022f000000050000000000000a0b000000030000000800000004000000000000000c000000000000000d046f6e636502000361706900066170693a65750500000003000100001f88bd6e",
    "050100010000000474797065000000046d61696c626f64794f631899",
    "06010000010000000002000000000000004dd13b95bd",
    "070100000000000000030000007000000410c0477f47",
];

/// A program that does not know groups reads all messages but those.
#[test]
fn only_a_message_with_weights_of_groups_has_the_second_version() {
    for (_, record, expected) in one_of_each() {
        let is_grouped = expected == Record::Meta(grouped_meta());
        let version = if is_grouped {
            VERSION_OF_GROUPS
        } else {
            VERSION
        };
        assert_eq!(record[1], version, "{expected:?}");
    }
}

#[test]
fn any_flipped_bit_is_noticed() {
    for (key, record, _) in one_of_each() {
        for bit in 0..record.len() * 8 {
            let mut damaged = record.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&key, &damaged).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn a_record_under_another_key_is_refused() {
    for (mut key, record, _) in one_of_each() {
        *key.last_mut().unwrap() ^= 1;
        let refused = decode(&key, &record).unwrap_err();
        assert!(matches!(refused, DecodeError::Checksum { .. }));
    }
}

#[test]
fn a_record_that_ends_too_early_is_called_truncated() {
    let row = row();
    let whole = encoded_meta(&row, &full_meta());
    let short = sealed(&row, &whole[..whole.len() - TAIL - 1]);
    assert_eq!(
        decode(&row, &short),
        Err(DecodeError::Truncated {
            needed: 4,
            found: 3
        })
    );
    assert!(matches!(
        decode(&row, &whole.slice(..HEAD + TAIL - 1)),
        Err(DecodeError::Truncated { .. })
    ));
}

#[test]
fn a_record_that_goes_on_is_refused() {
    let row = row();
    let whole = encoded_meta(&row, &full_meta());
    let long = [&whole[..whole.len() - TAIL], &[0]].concat();
    assert_eq!(
        decode(&row, &sealed(&row, &long)),
        Err(DecodeError::TrailingBytes(1))
    );
}

#[test]
fn a_version_from_the_future_is_named() {
    for (key, record, _) in one_of_each() {
        let mut framed = record[..record.len() - TAIL].to_vec();
        let version = if framed[0] == Kind::Meta as u8 { 3 } else { 2 };
        framed[1] = version;
        assert_eq!(
            decode(&key, &sealed(&key, &framed)),
            Err(DecodeError::UnknownVersion {
                kind: framed[0],
                version
            })
        );
    }
}

#[test]
fn a_record_of_another_kind_is_refused() {
    let row = row();
    let record = encoded_payload(&row, &payload());
    assert_eq!(
        decode_number(&row, &record),
        Err(DecodeError::Kind {
            expected: Kind::Number as u8,
            found: Kind::Payload as u8
        })
    );
    assert_eq!(
        decode(&row, &sealed(&row, &[99, 1])),
        Err(DecodeError::OutOfRange("kind of a record"))
    );
}

#[test]
fn values_that_are_never_written_are_refused() {
    let row = row();
    let whole = encoded_meta(&row, &full_meta());
    let mut weightless = whole[..whole.len() - TAIL].to_vec();
    weightless[HEAD + 1..HEAD + 5].fill(0);
    assert_eq!(
        decode(&row, &sealed(&row, &weightless)),
        Err(DecodeError::OutOfRange("weight of a message"))
    );
    let mut flags = whole[..whole.len() - TAIL].to_vec();
    flags[HEAD] |= 1 << 7;
    assert_eq!(
        decode(&row, &sealed(&row, &flags)),
        Err(DecodeError::OutOfRange("flags of a message"))
    );
    let mut no_keys = whole[..whole.len() - TAIL].to_vec();
    no_keys[HEAD] |= THROTTLE_KEYS;
    no_keys.push(0);
    assert_eq!(
        decode(&row, &sealed(&row, &no_keys)),
        Err(DecodeError::OutOfRange("number of throttle keys"))
    );
    let grouped = encoded_meta(&row, &grouped_meta());
    let grouped = &grouped[..grouped.len() - TAIL];
    let levels = grouped.len() - 9;
    for (at, byte, mistake) in [
        (1, VERSION, "flags of a message"),
        (HEAD, grouped[HEAD] & !GROUP_WEIGHTS, "flags of a message"),
        (levels, 0, "levels of groups"),
        (levels, 0b1101, "levels of groups"),
        (levels + 4, 0, "weight of a group"),
    ] {
        let mut odd = grouped.to_vec();
        odd[at] = byte;
        let refused = decode(&row, &sealed(&row, &odd));
        assert_eq!(refused, Err(DecodeError::OutOfRange(mistake)), "byte {at}");
    }
    let [alive, dead] = failed_metas().map(|meta| encoded_meta(&row, &meta));
    let mut endless = alive[..alive.len() - TAIL].to_vec();
    let length = endless.len() - 1 - "no route".len() - 2;
    endless[length..length + 2].copy_from_slice(&1025_u16.to_be_bytes());
    assert_eq!(
        decode(&row, &sealed(&row, &endless)),
        Err(DecodeError::OutOfRange("length of an error's text"))
    );
    let mut reason = alive[..alive.len() - TAIL].to_vec();
    *reason.last_mut().unwrap() = 99;
    assert_eq!(
        decode(&row, &sealed(&row, &reason)),
        Err(DecodeError::OutOfRange("reason of a dead letter"))
    );
    let mut nameless = dead[..dead.len() - TAIL - "orders".len()].to_vec();
    *nameless.last_mut().unwrap() = 0;
    assert_eq!(
        decode(&row, &sealed(&row, &nameless)),
        Err(DecodeError::OutOfRange("bytes of a queue's name"))
    );
    let headers = [
        &[Kind::Payload as u8, VERSION, 0, 1][..],
        &[0, 0, 0, 1, 0xff],
    ]
    .concat();
    assert_eq!(
        decode(&row, &sealed(&row, &headers)),
        Err(DecodeError::OutOfRange("text of a header's name"))
    );
}

proptest! {
    #[test]
    fn no_bytes_break_the_decoder(
        key in prop::collection::vec(any::<u8>(), 0..40),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = decode(&key, &bytes);
    }

    /// Beyond the checksum, where only we should ever get.
    #[test]
    fn no_fields_break_the_decoder(
        kind in 0_u8..8,
        version in VERSION..=VERSION_OF_GROUPS,
        fields in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let row = row();
        let framed = [&[kind, version][..], &fields].concat();
        let _ = decode(&row, &sealed(&row, &framed));
    }

    #[test]
    fn no_change_of_a_record_breaks_the_decoder(
        which in 0..11_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
    ) {
        let (key, record, _) = one_of_each().swap_remove(which);
        let mut framed = record[..record.len() - TAIL].to_vec();
        for (at, byte) in changes {
            let at = at.index(framed.len());
            framed[at] = byte;
        }
        framed.truncate(keep.index(framed.len()) + 1);
        let _ = decode(&key, &sealed(&key, &framed));
    }

    #[test]
    fn any_payload_is_read_back_as_it_was_written(
        headers in prop::collection::vec((".{0,20}", ".{0,20}"), 0..8),
        body in prop::collection::vec(any::<u8>(), 0..500),
    ) {
        let payload = Payload::new(headers, body).unwrap();
        let row = row();
        prop_assert_eq!(decode_payload(&row, &encoded_payload(&row, &payload)), Ok(payload));
    }
}
