//! Recovery: reads the segments of the log when a store is opened, and checks that none of them lacks a synced frame.
//!
//! # What may be missing
//! Only frames that were being written when the machine stopped: frames at the end, if no later frame says that they were
//! synced. Recovery drops what lies behind such a gap. It refuses any other log: a frame that was on the disk and cannot be
//! read is damage, and continuing without it would lose confirmed commits.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::flush::{FlushMark, FrozenMemtable};
use super::frame;
use super::memtable::Memtable;
use super::segment_dir::{self, SegmentDir};
use crate::{Fault, OpenError};

/// The contents of a log.
#[derive(Debug)]
pub(super) struct Recovered {
    /// One for each segment, the oldest first.
    pub(super) frozen: Vec<FrozenMemtable>,
    /// Number and salt of the last segment if it has no frames. It is not in `frozen`.
    pub(super) empty: Option<(u64, u64)>,
    /// Sequence of the last frame.
    pub(super) sequence: u64,
    /// The greatest number of a segment.
    pub(super) number: u64,
}

/// A segment as far as the sequence of its frames has no gap.
struct RecoveredSegment {
    number: u64,
    salt: u64,
    bytes: Bytes,
    end: usize,
    /// Sequence of its last frame, or of the last one before it.
    sequence: u64,
    memtable: Memtable,
}

/// Reads the segments after the flush mark.
pub(super) fn recover(
    dir: &SegmentDir,
    segments: &[u64],
    mark: FlushMark,
) -> Result<Recovered, OpenError> {
    let mut read = Vec::new();
    let mut sequence = mark.sequence;
    let unflushed = segments.iter().filter(|&&number| number > mark.segment);
    for (expected, &number) in (mark.segment + 1..).zip(unflushed) {
        if number != expected {
            return Err(missing(dir, expected));
        }
        read.push(RecoveredSegment::read(dir, number, &mut sequence)?);
    }
    check(dir, &read, sequence + 1)?;
    for segment in read.iter().filter(|segment| segment.has_frames()) {
        // New commits build on these frames, so the next recovery must find them, too.
        dir.sync(segment.number).map_err(fault)?;
    }
    let number = read.last().map_or(mark.segment, |segment| segment.number);
    let last = read.pop_if(|last| !last.has_frames() && last.behind().next().is_none());
    Ok(Recovered {
        frozen: read.into_iter().map(RecoveredSegment::frozen).collect(),
        empty: last.map(|last| (last.number, last.salt)),
        sequence,
        number,
    })
}

/// Refuses a log that lacks a synced frame.
fn check(dir: &SegmentDir, segments: &[RecoveredSegment], missing: u64) -> Result<(), OpenError> {
    let behind = segments.iter().flat_map(RecoveredSegment::behind);
    let synced = behind.filter(|head| head.sequence >= missing);
    if synced.map(|head| head.synced).max() < Some(missing) {
        return Ok(());
    }
    let number = segments
        .iter()
        .rfind(|segment| segment.has_frames())
        .or_else(|| segments.first())
        .map_or(1, |segment| segment.number);
    Err(damaged(
        dir.path(number),
        "or the segment after it has a frame that cannot be read, with others behind it",
    ))
}

impl RecoveredSegment {
    /// Reads frames as long as each has the next sequence.
    fn read(dir: &SegmentDir, number: u64, sequence: &mut u64) -> Result<Self, OpenError> {
        let read = dir.read(number).map_err(fault)?;
        let (salt, bytes) =
            read.ok_or_else(|| damaged(dir.path(number), "does not begin like a segment"))?;
        let memtable = Memtable::new(number);
        let mut end = segment_dir::HEAD;
        while let Some(frame) = frame::decode(&bytes, end, salt) {
            if frame.head.sequence != *sequence + 1 {
                break;
            }
            *sequence += 1;
            memtable.apply(*sequence, frame.writes, &frame.offsets, false);
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

    fn frozen(self) -> FrozenMemtable {
        FrozenMemtable {
            memtable: Arc::new(self.memtable),
            sequence: self.sequence,
            bytes: self.end as u64,
        }
    }

    fn has_frames(&self) -> bool {
        self.end > segment_dir::HEAD
    }

    /// Returns the frames behind the gap, wherever they begin.
    fn behind(&self) -> impl Iterator<Item = frame::FrameHead> {
        let salt = self.salt.to_be_bytes();
        (self.end..self.bytes.len())
            .step_by(frame::ALIGNMENT)
            .filter(move |&at| self.bytes[at..].starts_with(&salt))
            .filter_map(|at| frame::decode(&self.bytes, at, self.salt))
            .map(|frame| frame.head)
    }
}

/// Reports a segment that must exist and does not.
pub(super) fn missing(dir: &SegmentDir, number: u64) -> OpenError {
    damaged(dir.path(number), "is missing")
}

/// Reports that the next segment could not be made.
pub(super) fn unallocated(dir: &SegmentDir, error: std::io::Error) -> OpenError {
    if crate::directory::is_full(&error) {
        return OpenError::Full {
            path: dir.directory().to_owned(),
            bytes: dir.segment_bytes,
        };
    }
    fault(error)
}

fn damaged(path: PathBuf, why: &'static str) -> OpenError {
    OpenError::DamagedLog { path, why }
}

pub(super) fn fault(error: std::io::Error) -> OpenError {
    OpenError::Fault(Fault::new(error))
}
