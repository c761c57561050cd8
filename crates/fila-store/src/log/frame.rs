//! A commit in the log is one frame, which is read whole or not at all.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | salt of the segment |
//! | 8 | sequence: one more than that of the frame before, in this segment or in an earlier one |
//! | 8 | synced: every frame up to this sequence was on the disk when this one was written |
//! | 4 | length of the body |
//! | 4 | CRC-32C of all of the above and of the body |
//! | … | body: rows, one after the other |
//! | … | zeros up to a multiple of eight |
//!
//! The [write set](crate::write_set) of the commit is its body.
//!
//! The salt is drawn anew whenever a file is used again. It tells a frame from older contents of the file, and from a
//! payload that looks like a frame.
//!
//! A frame without rows and with the greatest sequence is the [seal](seal) of a segment.

use crate::rows::{Table, Write, WriteSet};
use crate::write_set::{HEAD, SAME_KEY, SET};

/// Frames begin at multiples of this.
pub(super) const ALIGNMENT: usize = 8;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) salt: u64,
    pub(super) sequence: u64,
    pub(super) synced: u64,
}

/// A decoded frame.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) head: FrameHead,
    pub(super) writes: Vec<Write<'a>>,
    /// Where the next frame begins.
    pub(super) end: usize,
}

/// The sequence of the frame that ends a segment. No commit gets that far.
const SEAL: u64 = u64::MAX;

impl FrameHead {
    /// Returns whether the frame says that another segment follows.
    pub(super) fn is_seal(&self) -> bool {
        self.sequence == SEAL
    }
}

/// Returns the frame at the end of a segment with this salt that another one follows. It has no rows.
pub(super) fn seal(salt: u64) -> Vec<u8> {
    let head = FrameHead {
        salt,
        sequence: SEAL,
        synced: 0,
    };
    let mut writes = WriteSet::new();
    let encoded = encode(head, &mut writes);
    debug_assert!(encoded.is_some(), "an empty body is short enough");
    writes.bytes().to_vec()
}

/// Tells whether the frame of a commit with this salt or this sequence begins at `at`, whole or not. Older contents of the
/// file have another salt, and smaller sequences.
pub(super) fn begins(bytes: &[u8], at: usize, salt: u64, sequence: u64) -> bool {
    let field = |at: usize| {
        let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
        field.copied().map(u64::from_be_bytes)
    };
    let found = field(at + 8);
    found == Some(sequence) || field(at) == Some(salt) && found != Some(SEAL)
}

/// Returns how many bytes the frame of these writes has.
pub(super) fn size(writes: &WriteSet) -> usize {
    writes.bytes().len().next_multiple_of(ALIGNMENT)
}

/// Makes the bytes of these writes a frame. Returns none if there are too many of them.
pub(super) fn encode(head: FrameHead, writes: &mut WriteSet) -> Option<()> {
    let bytes = writes.bytes_mut();
    let length = u32::try_from(bytes.len() - HEAD).ok()?;
    for (at, number) in [(0, head.salt), (8, head.sequence), (16, head.synced)] {
        bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
    }
    bytes[24..28].copy_from_slice(&length.to_be_bytes());
    let sum = sum(&bytes[..28], &bytes[HEAD..]);
    bytes[28..HEAD].copy_from_slice(&sum.to_be_bytes());
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    Some(())
}

fn sum(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

/// Decodes the frame with this salt that begins at `at`; none if there is no whole one.
pub(super) fn decode(bytes: &[u8], at: usize, salt: u64) -> Option<Frame<'_>> {
    let framed = bytes.get(at..)?;
    let (head, rest) = framed.split_first_chunk::<HEAD>()?;
    let number = |at: usize| {
        let number = head[at..].first_chunk().copied();
        number.map(u64::from_be_bytes)
    };
    let head_of = FrameHead {
        salt: number(0)?,
        sequence: number(8)?,
        synced: number(16)?,
    };
    if head_of.salt != salt {
        return None;
    }
    let (length, found) = head[24..].split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let body = rest.get(..length)?;
    if sum(&head[..28], body).to_be_bytes() != *found {
        return None;
    }
    Some(Frame {
        head: head_of,
        writes: rows(body)?,
        end: (at + HEAD + length).next_multiple_of(ALIGNMENT),
    })
}

/// Decodes the rows of a body.
fn rows(body: &[u8]) -> Option<Vec<Write<'_>>> {
    let mut writes: Vec<Write<'_>> = Vec::new();
    let mut rest = body;
    while let Some((&tag, row)) = rest.split_first() {
        rest = row;
        let index = usize::from(tag & !(SET | SAME_KEY));
        let key = if tag & SAME_KEY == 0 {
            take(&mut rest)?
        } else {
            writes.last()?.key
        };
        let value = if tag & SET == 0 {
            None
        } else {
            Some(take(&mut rest)?)
        };
        writes.push(Write {
            table: *Table::ALL.get(index)?,
            key,
            value,
            is_new: false,
            at: value.map_or(0, |value| HEAD + body.len() - rest.len() - value.len()),
        });
    }
    Some(writes)
}

fn take<'a>(body: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = body.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (taken, rest) = rest.split_at_checked(length)?;
    *body = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_writes() -> WriteSet {
        let mut writes = WriteSet::new();
        writes.set(Table::Messages, b"one", b"a message");
        writes.set(Table::Payloads, b"one", b"what it carries");
        writes.unset(Table::Messages, b"two");
        writes.unset(Table::Payloads, b"two");
        writes.set(Table::Catalog, b"", b"");
        writes
    }

    fn encoded(salt: u64) -> (FrameHead, Vec<u8>) {
        let head = FrameHead {
            salt,
            sequence: 9,
            synced: 8,
        };
        let mut writes = some_writes();
        let size = size(&writes);
        encode(head, &mut writes).unwrap();
        assert_eq!(writes.bytes().len(), size);
        check_places(writes.iter(), writes.bytes());
        (head, writes.bytes().to_vec())
    }

    /// Checks that every value is where it is said to be.
    fn check_places<'a>(writes: impl Iterator<Item = Write<'a>>, bytes: &[u8]) {
        for write in writes {
            match write.value {
                Some(value) => assert!(bytes[write.at..].starts_with(value)),
                None => assert_eq!(write.at, 0),
            }
        }
    }

    type Listed<'a> = (Table, &'a [u8], Option<&'a [u8]>);

    fn listed<'a>(writes: impl Iterator<Item = Write<'a>>) -> Vec<Listed<'a>> {
        writes
            .map(|write| (write.table, write.key, write.value))
            .collect()
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let (head, bytes) = encoded(7);
        let frame = decode(&bytes, 0, 7).unwrap();
        assert_eq!(frame.head, head);
        let expected = some_writes();
        let found = frame.writes.iter().copied();
        assert_eq!(listed(found.clone()), listed(expected.iter()));
        check_places(found, &bytes);
        assert_eq!(frame.end, bytes.len());
        assert_eq!(bytes.len() % ALIGNMENT, 0);
    }

    #[test]
    fn a_frame_of_another_segment_is_none() {
        let (_, bytes) = encoded(7);
        assert!(decode(&bytes, 0, 8).is_none());
    }

    #[test]
    fn a_frame_with_any_bit_flipped_is_none_but_for_its_padding() {
        let (_, bytes) = encoded(7);
        let length = u32::from_be_bytes(bytes[24..28].try_into().unwrap());
        for byte in 0..HEAD + length as usize {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[byte] ^= 1 << bit;
                assert!(decode(&flipped, 0, 7).is_none(), "{byte} {bit}");
            }
        }
    }

    #[test]
    fn a_frame_that_ends_early_is_none() {
        let (_, bytes) = encoded(7);
        let length = u32::from_be_bytes(bytes[24..28].try_into().unwrap());
        for end in 0..HEAD + length as usize {
            assert!(decode(&bytes[..end], 0, 7).is_none(), "{end}");
        }
        assert!(decode(&bytes, bytes.len() + 8, 7).is_none());
    }

    #[test]
    fn a_body_that_is_sealed_and_makes_no_sense_is_none() {
        let bodies: [&[u8]; 5] = [
            &[SET | 3],
            &[SAME_KEY],
            &[63, 0, 0, 0, 0],
            &[0, 0, 0, 0, 9, 1],
            &[SET, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        ];
        for body in bodies {
            assert!(rows(body).is_none(), "{body:?}");
        }
    }
}
