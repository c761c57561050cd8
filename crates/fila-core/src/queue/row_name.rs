//! The name of a stored deduplication row: the fairness key that sent it, its scope, and the id.
//!
//! ```text
//! fe ‖ key length: u16 ‖ fairness key ‖ id    counts for its fairness key
//! fd ‖ key length: u16 ‖ fairness key ‖ id    counts for the whole queue
//! ```
//! The id is a producer's, or stands for a [batch](super::batch_row), which counts for the whole queue. All rows have their
//! key, so that a broker that reads them back knows how many each key has.

use fila_store::{DeduplicationId, FairnessKey, RememberedName};

use crate::DeduplicationScope;

const OF_KEY: u8 = 0xfe;
const OF_QUEUE: u8 = 0xfd;

/// A name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowName {
    pub(super) scope: DeduplicationScope,
    pub(super) key: FairnessKey,
    pub(super) id: DeduplicationId,
}

impl RowName {
    pub(super) fn encode(
        scope: DeduplicationScope,
        key: &FairnessKey,
        id: &DeduplicationId,
    ) -> RememberedName {
        let (key, id) = (key.as_bytes(), id.as_bytes());
        let mut bytes = Vec::with_capacity(3 + key.len() + id.len());
        bytes.push(match scope {
            DeduplicationScope::Key => OF_KEY,
            DeduplicationScope::Queue => OF_QUEUE,
        });
        bytes.extend((key.len() as u16).to_be_bytes());
        bytes.extend(key);
        bytes.extend(id);
        RememberedName::new(bytes).expect("it has room for the longest key and id")
    }

    /// Takes a name apart, unless it is none of these.
    pub(super) fn decode(name: &RememberedName) -> Option<Self> {
        let (mark, rest) = name.as_bytes().split_first()?;
        let scope = match *mark {
            OF_KEY => DeduplicationScope::Key,
            OF_QUEUE => DeduplicationScope::Queue,
            _ => return None,
        };
        let (length, rest) = rest.split_first_chunk()?;
        let (key, id) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        Some(Self {
            scope,
            key: FairnessKey::new(key.to_vec()).ok()?,
            id: DeduplicationId::new(id.to_vec()).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_book() {
        let key = FairnessKey::new("acme").unwrap();
        let id = DeduplicationId::new("invoice-17").unwrap();
        let name = |scope| RowName::encode(scope, &key, &id).as_bytes().to_vec();
        assert_eq!(name(DeduplicationScope::Key), b"\xfe\x00\x04acmeinvoice-17");
        assert_eq!(
            name(DeduplicationScope::Queue),
            b"\xfd\x00\x04acmeinvoice-17"
        );
    }

    #[test]
    fn a_name_is_read_as_it_was_written_and_no_two_are_alike() {
        let mut names = Vec::new();
        for scope in [DeduplicationScope::Key, DeduplicationScope::Queue] {
            for (key, id) in [
                (0, 1),
                (1, 1),
                (2, 1),
                (1, 2),
                (FairnessKey::MAX, DeduplicationId::MAX),
            ] {
                let row = RowName {
                    scope,
                    key: FairnessKey::new(vec![b'a'; key]).unwrap(),
                    id: DeduplicationId::new(vec![b'a'; id]).unwrap(),
                };
                let name = RowName::encode(row.scope, &row.key, &row.id);
                assert_eq!(RowName::decode(&name), Some(row));
                assert!(!names.contains(&name), "{name:?}");
                names.push(name);
            }
        }
    }

    #[test]
    fn other_bytes_are_no_name() {
        for bytes in [
            &b"invoice-17"[..],
            b"\xfe",
            b"\xfe\x00",
            b"\xfe\x00\x04acm",
            b"\xfe\x00\x04acme",
            b"\xff\x00\x04acmex",
        ] {
            let name = RememberedName::new(bytes.to_vec()).unwrap();
            assert_eq!(RowName::decode(&name), None, "{bytes:?}");
        }
    }
}
