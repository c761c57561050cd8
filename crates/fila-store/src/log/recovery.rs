//! What the log says when a store is opened, and whether all of it is there.
//!
//! # What may be missing
//! What was being written when the machine stopped: frames at the end of which no later frame says that they were
//! synced. What lies behind a gap is dropped with it. Anything else is refused: a frame that was on the disk once and
//! cannot be read any more is damage, and to go on without it would lose what has been confirmed.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::filing::{Filed, Frozen};
use super::frame;
use super::memtable::Memtable;
use super::shelf::{self, Shelf};
use crate::{Fault, OpenError};

/// What is in a log.
#[derive(Debug)]
pub(super) struct Recovered {
    /// One for each segment, the oldest first.
    pub(super) frozen: Vec<Frozen>,
    /// Number and salt of the last segment, if there is no frame in it. It is not among the others.
    pub(super) empty: Option<(u64, u64)>,
    /// Of the last frame.
    pub(super) sequence: u64,
    /// The greatest of a segment.
    pub(super) number: u64,
}

/// A segment as far as its frames are in order.
struct Segment {
    number: u64,
    salt: u64,
    bytes: Bytes,
    end: usize,
    /// Of its last frame, or of the last one before it.
    sequence: u64,
    memtable: Memtable,
}

/// Reads the segments after the one that is filed.
pub(super) fn recover(
    shelf: &Shelf,
    segments: &[u64],
    filed: Filed,
) -> Result<Recovered, OpenError> {
    let mut read = Vec::new();
    let mut sequence = filed.sequence;
    let live = segments.iter().filter(|&&number| number > filed.number);
    for (expected, &number) in (filed.number + 1..).zip(live) {
        if number != expected {
            return Err(missing(shelf, expected));
        }
        read.push(Segment::read(shelf, number, &mut sequence)?);
    }
    check(shelf, &read, sequence + 1)?;
    for segment in read.iter().filter(|segment| segment.has_frames()) {
        // What is read here is built upon, so it has to be there the next time.
        shelf.settle(segment.number).map_err(fault)?;
    }
    let number = read.last().map_or(filed.number, |segment| segment.number);
    let last = read.pop_if(|last| !last.has_frames() && last.behind().next().is_none());
    Ok(Recovered {
        frozen: read.into_iter().map(Segment::frozen).collect(),
        empty: last.map(|last| (last.number, last.salt)),
        sequence,
        number,
    })
}

/// Refuses a log in which something is missing that was synced.
fn check(shelf: &Shelf, segments: &[Segment], missing: u64) -> Result<(), OpenError> {
    let behind = segments.iter().flat_map(Segment::behind);
    let synced = behind.filter(|head| head.sequence >= missing);
    if synced.map(|head| head.synced).max() < Some(missing) {
        return Ok(());
    }
    let at = segments.iter().rfind(|segment| segment.has_frames());
    let at = at
        .or_else(|| segments.first())
        .map_or(1, |segment| segment.number);
    Err(damaged(
        shelf.path(at),
        "or the segment after it has a frame that cannot be read, with others behind it",
    ))
}

impl Segment {
    /// Reads frames as long as each has the sequence after the one before.
    fn read(shelf: &Shelf, number: u64, sequence: &mut u64) -> Result<Self, OpenError> {
        let read = shelf.read(number).map_err(fault)?;
        let (salt, bytes) =
            read.ok_or_else(|| damaged(shelf.path(number), "does not begin like a segment"))?;
        let memtable = Memtable::new(number);
        let mut end = shelf::HEAD;
        while let Some(frame) = frame::decode(&bytes, end, salt) {
            if frame.head.sequence != *sequence + 1 {
                break;
            }
            *sequence += 1;
            memtable.apply(*sequence, frame.writes, &frame.places, false);
            end = frame.end;
        }
        Ok(Self {
            number,
            salt,
            bytes,
            end,
            sequence: *sequence,
            memtable,
        })
    }

    fn frozen(self) -> Frozen {
        Frozen {
            memtable: Arc::new(self.memtable),
            sequence: self.sequence,
            bytes: self.end as u64,
        }
    }

    fn has_frames(&self) -> bool {
        self.end > shelf::HEAD
    }

    /// Returns the frames after the end of the order, wherever they begin.
    fn behind(&self) -> impl Iterator<Item = frame::Head> {
        let salt = self.salt.to_be_bytes();
        let places = (self.end..self.bytes.len()).step_by(frame::ALIGNMENT);
        let salted = places.filter(move |&at| self.bytes[at..].starts_with(&salt));
        salted
            .filter_map(|at| frame::decode(&self.bytes, at, self.salt))
            .map(|frame| frame.head)
    }
}

/// Says that a segment is not there which has to be.
pub(super) fn missing(shelf: &Shelf, number: u64) -> OpenError {
    damaged(shelf.path(number), "is missing")
}

fn damaged(path: PathBuf, why: &'static str) -> OpenError {
    OpenError::DamagedLog { path, why }
}

pub(super) fn fault(error: std::io::Error) -> OpenError {
    OpenError::Fault(Fault::new(error))
}
