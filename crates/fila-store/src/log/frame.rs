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
//! A row is a byte for its table, to which [`SET`] is added unless it is removed and [`SAME_KEY`] if it has the key of
//! the row before; then the length of its key (four bytes) and the key, unless that is the same; then, if it is set, the
//! length of its value (four bytes) and the value. Numbers are big-endian.
//!
//! The salt is drawn anew whenever a file is used again. It tells a frame from older contents of the file, and from a
//! payload that looks like a frame.
//!
//! A frame without rows and with the greatest sequence is the [seal](seal) of a segment.

use bytes::Bytes;

use crate::rows::{Table, Write};

/// Bytes of a frame without its body.
pub(super) const HEAD: usize = 32;

/// Frames begin at multiples of this.
pub(super) const ALIGNMENT: usize = 8;

const SET: u8 = 0x80;
const SAME_KEY: u8 = 0x40;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) salt: u64,
    pub(super) sequence: u64,
    pub(super) synced: u64,
}

/// A decoded frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) head: FrameHead,
    pub(super) writes: Vec<Write>,
    /// Offset of each value in the segment; 0 if the write has none.
    pub(super) offsets: Vec<u32>,
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
    let mut buffer = Vec::new();
    let encoded = encode(head, &[], &mut buffer);
    debug_assert!(encoded.is_some(), "an empty body is short enough");
    buffer
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

/// Returns how many bytes the frame of these writes has, at most.
pub(super) fn size(writes: &[Write]) -> usize {
    let rows = writes.iter().map(|write| {
        let value = write.value.as_ref().map_or(0, |value| 4 + value.len());
        1 + 4 + write.key.len() + value
    });
    HEAD + rows.sum::<usize>() + ALIGNMENT
}

/// Encodes a frame into the buffer, which it clears first, and returns the offset of each value in it; 0 if the write has
/// none. Returns none if the body is too long.
pub(super) fn encode(head: FrameHead, writes: &[Write], buffer: &mut Vec<u8>) -> Option<Vec<u32>> {
    let mut offsets = Vec::with_capacity(writes.len());
    buffer.clear();
    buffer.reserve(size(writes));
    for number in [head.salt, head.sequence, head.synced] {
        buffer.extend_from_slice(&number.to_be_bytes());
    }
    buffer.extend_from_slice(&[0; 8]);
    let mut before: Option<&Bytes> = None;
    for write in writes {
        let Write {
            table, key, value, ..
        } = write;
        let is_same = before == Some(key);
        let set = if value.is_some() { SET } else { 0 };
        let same_key = if is_same { SAME_KEY } else { 0 };
        buffer.push(*table as u8 | set | same_key);
        if !is_same {
            put(buffer, key)?;
        }
        offsets.push(match value {
            Some(value) => {
                put(buffer, value)?;
                u32::try_from(buffer.len() - value.len()).ok()?
            }
            None => 0,
        });
        before = Some(key);
    }
    let length = u32::try_from(buffer.len() - HEAD).ok()?;
    buffer[24..28].copy_from_slice(&length.to_be_bytes());
    let sum = sum(&buffer[..28], &buffer[HEAD..]);
    buffer[28..HEAD].copy_from_slice(&sum.to_be_bytes());
    buffer.resize(buffer.len().next_multiple_of(ALIGNMENT), 0);
    Some(offsets)
}

fn put(buffer: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    let length = u32::try_from(bytes.len()).ok()?;
    buffer.extend_from_slice(&length.to_be_bytes());
    buffer.extend_from_slice(bytes);
    Some(())
}

fn sum(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

/// Decodes the frame with this salt that begins at `at`; none if there is no whole one.
pub(super) fn decode(bytes: &Bytes, at: usize, salt: u64) -> Option<Frame> {
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
    let start = at + HEAD;
    let (writes, offsets) = rows(bytes.slice(start..start + length), start)?;
    Some(Frame {
        head: head_of,
        writes,
        offsets,
        end: (start + length).next_multiple_of(ALIGNMENT),
    })
}

/// Decodes a body that begins at `start` in its segment: its rows, which are slices of it, and the offsets of their values.
fn rows(mut body: Bytes, start: usize) -> Option<(Vec<Write>, Vec<u32>)> {
    let end = start + body.len();
    let mut writes: Vec<Write> = Vec::new();
    let mut offsets = Vec::new();
    while let Some(&tag) = body.first() {
        body = body.slice(1..);
        let index = usize::from(tag & !(SET | SAME_KEY));
        let table = *Table::ALL.get(index)?;
        let key = if tag & SAME_KEY == 0 {
            take(&mut body)?
        } else {
            writes.last()?.key.clone()
        };
        let value = if tag & SET == 0 {
            None
        } else {
            Some(take(&mut body)?)
        };
        // A value beyond the range of an offset is flushed itself.
        let offset = value.as_ref().map(|value| end - body.len() - value.len());
        offsets.push(offset.map_or(0, |offset| u32::try_from(offset).unwrap_or_default()));
        writes.push(Write::new(table, key, value));
    }
    Some((writes, offsets))
}

fn take(body: &mut Bytes) -> Option<Bytes> {
    let length = u32::from_be_bytes(*body.first_chunk()?);
    let end = 4_usize.checked_add(usize::try_from(length).ok()?)?;
    if body.len() < end {
        return None;
    }
    Some(body.split_to(end).slice(4..))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(table: Table, key: &'static str, value: Option<&'static str>) -> Write {
        Write::new(table, key, value.map(Bytes::from))
    }

    fn some_writes() -> Vec<Write> {
        vec![
            write(Table::Messages, "one", Some("a message")),
            write(Table::Payloads, "one", Some("what it carries")),
            write(Table::Messages, "two", None),
            write(Table::Payloads, "two", None),
            write(Table::Catalog, "", Some("")),
        ]
    }

    fn encoded(salt: u64) -> (FrameHead, Bytes) {
        let head = FrameHead {
            salt,
            sequence: 9,
            synced: 8,
        };
        let mut buffer = vec![1, 2, 3];
        let offsets = encode(head, &some_writes(), &mut buffer).unwrap();
        check_offsets(&offsets, &buffer);
        (head, buffer.into())
    }

    /// Checks that every value of `some_writes` is where it is said to be.
    fn check_offsets(offsets: &[u32], bytes: &[u8]) {
        let writes = some_writes();
        assert_eq!(offsets.len(), writes.len());
        for (write, &offset) in writes.iter().zip(offsets) {
            match &write.value {
                Some(value) => assert!(bytes[offset as usize..].starts_with(value)),
                None => assert_eq!(offset, 0),
            }
        }
    }

    type Listed<'a> = (Table, &'a [u8], Option<&'a [u8]>);

    fn listed(writes: &[Write]) -> Vec<Listed<'_>> {
        let rows = writes.iter();
        rows.map(|write| (write.table, &write.key[..], write.value.as_deref()))
            .collect()
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let (head, bytes) = encoded(7);
        let frame = decode(&bytes, 0, 7).unwrap();
        assert_eq!(frame.head, head);
        assert_eq!(listed(&frame.writes), listed(&some_writes()));
        check_offsets(&frame.offsets, &bytes);
        assert_eq!(frame.end, bytes.len());
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        assert!(bytes.len() <= size(&some_writes()));
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
                let mut flipped = bytes.to_vec();
                flipped[byte] ^= 1 << bit;
                assert!(decode(&flipped.into(), 0, 7).is_none(), "{byte} {bit}");
            }
        }
    }

    #[test]
    fn a_frame_that_ends_early_is_none() {
        let (_, bytes) = encoded(7);
        let length = u32::from_be_bytes(bytes[24..28].try_into().unwrap());
        for end in 0..HEAD + length as usize {
            assert!(decode(&bytes.slice(..end), 0, 7).is_none(), "{end}");
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
            assert!(rows(Bytes::copy_from_slice(body), 0).is_none(), "{body:?}");
        }
    }
}
