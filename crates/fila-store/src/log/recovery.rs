//! Recovery: reads the segments of the log when a store is opened, and checks that none of them lacks a synced frame.
//!
//! # What may be missing
//! Only frames that were being written when the machine stopped: frames at the end, if no later frame says that they were
//! synced. Recovery drops what lies behind such a gap, and [reports](TornLog) it: the very last frame of a log looks the same
//! when the disk has damaged it. Recovery refuses any other log: a frame that was on the disk and cannot be read is damage,
//! and continuing without it would lose confirmed commits.
//!
//! A segment that is shorter than it was when it got its name is an incomplete copy, and recovery refuses it. It also misses
//! the segment after a sealed one.

use std::path::PathBuf;
use std::sync::Arc;

use super::flush::{FlushMark, FrozenMemtable};
use super::frame;
use super::memtable::Memtable;
use super::segment_dir::{self, ActiveSegment, SegmentDir, SegmentFile};
use crate::damage::{DamagedPart, StoreDamage, TornLog};
use crate::{Fault, OpenError};

/// The contents of a log.
#[derive(Debug)]
pub(super) struct Recovered {
    /// One for each segment, the oldest first.
    pub(super) frozen: Vec<FrozenMemtable>,
    /// The last segment if it is at most half full. It is not in `frozen`. Going on with it takes no room, so that a store
    /// on a full disk can be opened any number of times.
    pub(super) continued: Option<LastSegment>,
    /// Sequence of the last frame.
    pub(super) sequence: u64,
    /// The greatest number of a segment.
    pub(super) number: u64,
    /// The commits that were dropped.
    pub(super) torn: Option<TornLog>,
}

/// The segment that commits are appended to after recovery.
#[derive(Debug)]
pub(super) struct LastSegment {
    pub(super) segment: ActiveSegment,
    pub(super) memtable: Memtable,
    /// Rows in the segment.
    pub(super) rows: usize,
}

/// A segment as far as the sequence of its frames has no gap.
struct RecoveredSegment {
    number: u64,
    salt: u64,
    bytes: Vec<u8>,
    end: usize,
    /// Sequence of its last frame, or of the last one before it.
    sequence: u64,
    memtable: Memtable,
    rows: usize,
    /// Whether it is shorter than it was when it got its name.
    is_cut: bool,
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
        let segment = RecoveredSegment::read(dir, number, &mut sequence)?;
        if segment.is_cut {
            return Err(segment.damage(dir, "is shorter than it was: an incomplete copy"));
        }
        read.push(segment);
    }
    check(dir, &read, sequence + 1)?;
    if let Some(last) = read.last().filter(|last| last.is_sealed()) {
        return Err(missing(dir, last.number + 1));
    }
    let torn = torn(dir, &read, sequence);
    for segment in read.iter().filter(|segment| segment.has_frames()) {
        // New commits build on these frames, so the next recovery must find them, too.
        dir.sync(segment.number).map_err(fault)?;
    }
    let number = read.last().map_or(mark.segment, |segment| segment.number);
    let last = read.pop_if(|last| torn.is_none() && last.is_half_empty(dir));
    let continued = last.map(|last| last.continued(dir)).transpose();
    Ok(Recovered {
        frozen: read.into_iter().map(RecoveredSegment::frozen).collect(),
        continued: continued.map_err(|error| unallocated(dir, error))?,
        sequence,
        number,
        torn,
    })
}

/// Returns the commits that recovery drops: those from the first frame on that cannot be read.
fn torn(dir: &SegmentDir, segments: &[RecoveredSegment], sequence: u64) -> Option<TornLog> {
    let after = segments.iter().rposition(RecoveredSegment::has_frames);
    let rest = &segments[after.unwrap_or_default()..];
    let behind = rest.iter().flat_map(RecoveredSegment::behind).count() as u64;
    // The first frame that is missing may begin the segment after the last one with frames.
    let at = rest.iter().find(|segment| segment.begins(sequence + 1));
    let at = at.or_else(|| {
        rest.iter()
            .find(|segment| segment.behind().next().is_some())
    })?;
    let is_counted = frame::decode(&at.bytes, at.end, at.salt).is_some();
    Some(TornLog {
        path: dir.path(at.number),
        commits: behind + u64::from(!is_counted),
    })
}

/// Refuses a log that lacks a synced frame.
fn check(dir: &SegmentDir, segments: &[RecoveredSegment], missing: u64) -> Result<(), OpenError> {
    let behind = segments.iter().flat_map(RecoveredSegment::behind);
    let synced = behind.filter(|head| head.sequence >= missing);
    if synced.map(|head| head.synced).max() < Some(missing) {
        return Ok(());
    }
    let last = segments.iter().rfind(|segment| segment.has_frames());
    match last.or_else(|| segments.first()) {
        Some(segment) => Err(segment.damage(
            dir,
            "or the segment after it has a frame that cannot be read, with others behind it",
        )),
        None => Ok(()),
    }
}

impl RecoveredSegment {
    /// Reads frames as long as each has the next sequence.
    fn read(dir: &SegmentDir, number: u64, sequence: &mut u64) -> Result<Self, OpenError> {
        let read = dir.read(number).map_err(fault)?;
        let Some(SegmentFile {
            salt,
            file,
            bytes,
            is_cut,
        }) = read
        else {
            let part = DamagedPart::Segment { number, end: None };
            return Err(damaged(
                dir,
                dir.path(number),
                part,
                "does not begin like a segment",
            ));
        };
        let memtable = Memtable::new(number, file, dir.pointer_min());
        let mut end = segment_dir::HEAD;
        let mut rows = 0;
        while let Some(frame) = frame::decode(&bytes, end, salt) {
            if frame.head.sequence != *sequence + 1 {
                break;
            }
            *sequence += 1;
            rows += frame.writes.len();
            memtable.apply(*sequence, end as u64, frame.writes.into_iter(), false);
            end = frame.end;
        }
        Ok(Self {
            number,
            salt,
            bytes,
            end,
            sequence: *sequence,
            memtable,
            rows,
            is_cut,
        })
    }

    fn damage(&self, dir: &SegmentDir, how: &'static str) -> OpenError {
        let part = DamagedPart::Segment {
            number: self.number,
            end: Some(self.end as u64),
        };
        damaged(dir, dir.path(self.number), part, how)
    }

    /// Returns whether it says that another segment follows.
    fn is_sealed(&self) -> bool {
        let last = frame::decode(&self.bytes, self.end, self.salt);
        last.is_some_and(|frame| frame.head.is_seal())
    }

    /// Returns whether the frame of a commit, with this sequence or broken, comes after those that were read.
    fn begins(&self, sequence: u64) -> bool {
        frame::begins(&self.bytes, self.end, self.salt, sequence)
    }

    fn frozen(self) -> FrozenMemtable {
        FrozenMemtable {
            memtable: Arc::new(self.memtable),
            sequence: self.sequence,
            bytes: self.end as u64,
        }
    }

    fn continued(self, dir: &SegmentDir) -> std::io::Result<LastSegment> {
        Ok(LastSegment {
            segment: dir.reopen(self.number, self.salt, self.end as u64)?,
            memtable: self.memtable,
            rows: self.rows,
        })
    }

    fn is_half_empty(&self, dir: &SegmentDir) -> bool {
        !super::is_half_full(self.end as u64, self.rows, dir.segment_bytes)
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
            .filter(|head| !head.is_seal())
    }
}

/// Reports a segment that must exist and does not.
pub(super) fn missing(dir: &SegmentDir, number: u64) -> OpenError {
    let part = DamagedPart::Segment { number, end: None };
    damaged(dir, dir.path(number), part, "is missing")
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

pub(super) fn damaged(
    dir: &SegmentDir,
    path: PathBuf,
    part: DamagedPart,
    how: &'static str,
) -> OpenError {
    let log = dir.directory();
    OpenError::Damage(StoreDamage {
        store: log.parent().unwrap_or(log).to_owned(),
        path,
        how,
        part,
    })
}

pub(super) fn fault(error: std::io::Error) -> OpenError {
    OpenError::Fault(Fault::new(error))
}
