//! The row that is stored for a batch beside its messages, in the form of a deduplication id.
//!
//! ```text
//! ff ‖ producer: 16 bytes ‖ sequence: u64 ‖ answered below: u64 ‖ size: u32                all messages of a batch
//! ff ‖ producer: 16 bytes ‖ sequence: u64 ‖ answered below: u64 ‖ size: u32 ‖ place: u32   one message of a batch
//! ```
//! UTF-8 has no byte `ff`, so no id that is text is one of these. Rows sort by producer and sequence. A row has the
//! producer's `answered below`, so that a broker that reads the rows back keeps no more of them than the broker that wrote
//! them.

use fila_store::DeduplicationId;

use crate::{BatchId, ProducerId, Sequence};

const MARK: u8 = 0xff;

/// A row: a batch, and the stored messages of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchRow {
    pub(super) producer: ProducerId,
    pub(super) sequence: Sequence,
    pub(super) answered_below: Sequence,
    /// The number of messages of the batch.
    pub(super) size: u32,
    pub(super) part: Part,
}

/// The messages of a batch that a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// All, under ids that follow one another.
    Whole,
    /// The one at this place.
    Message(u32),
}

impl BatchRow {
    pub(super) fn new(id: &BatchId, size: u32, part: Part) -> Self {
        Self {
            producer: id.producer,
            sequence: id.sequence,
            answered_below: id.answered_below,
            size,
            part,
        }
    }

    pub(super) fn encode(&self) -> DeduplicationId {
        let mut bytes = Vec::with_capacity(41);
        bytes.push(MARK);
        bytes.extend(self.producer.as_bytes());
        bytes.extend(self.sequence.get().to_be_bytes());
        bytes.extend(self.answered_below.get().to_be_bytes());
        bytes.extend(self.size.to_be_bytes());
        if let Part::Message(place) = self.part {
            bytes.extend(place.to_be_bytes());
        }
        DeduplicationId::new(bytes).expect("41 bytes are no more than an id may have")
    }

    /// Returns which row of a batch this is, unless it is a user's id.
    pub(super) fn decode(id: &DeduplicationId) -> Option<Self> {
        let (&MARK, rest) = id.as_bytes().split_first()? else {
            return None;
        };
        let (producer, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (answered_below, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let part = match rest {
            [] => Part::Whole,
            place => Part::Message(u32::from_be_bytes(place.try_into().ok()?)),
        };
        Some(Self {
            producer: ProducerId::new(*producer),
            sequence: Sequence::new(u64::from_be_bytes(*sequence)),
            answered_below: Sequence::new(u64::from_be_bytes(*answered_below)),
            size: u32::from_be_bytes(*size),
            part,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(part: Part) -> BatchRow {
        BatchRow {
            producer: ProducerId::new(*b"sixteen of these"),
            sequence: Sequence::new(0x0102_0304_0506_0708),
            answered_below: Sequence::new(0x0a0b),
            size: 300,
            part,
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_book() {
        let whole = row(Part::Whole).encode();
        let expected =
            b"\xffsixteen of these\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x0a\x0b\0\0\x01\x2c";
        assert_eq!(whole.as_bytes(), expected);
        let one = row(Part::Message(7)).encode();
        assert_eq!(one.as_bytes(), [&expected[..], &[0, 0, 0, 7]].concat());
    }

    #[test]
    fn a_row_is_read_as_it_was_written() {
        for part in [Part::Whole, Part::Message(0), Part::Message(u32::MAX)] {
            assert_eq!(BatchRow::decode(&row(part).encode()), Some(row(part)));
        }
    }

    #[test]
    fn what_users_give_is_no_row_of_a_batch() {
        let marked = row(Part::Message(1)).encode();
        for length in 1..=DeduplicationId::MAX {
            let text = DeduplicationId::new("x".repeat(length)).unwrap();
            assert_eq!(BatchRow::decode(&text), None);
            let mut odd = marked.as_bytes().to_vec();
            odd.resize(length, 0);
            let is_row = BatchRow::decode(&DeduplicationId::new(odd).unwrap()).is_some();
            assert_eq!(is_row, length == 37 || length == 41, "{length}");
        }
    }
}
