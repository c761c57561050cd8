//! The value log: large payloads stay in the segment that they were written to.
//!
//! Payloads are most of the bytes that a broker writes, and each is read once. Flushing them writes them a second time, and
//! every compaction once more. So when at least half of a segment is payloads that are still needed at the flush, the
//! segment stays as a *blob segment*, and the database gets a [pointer](ValuePointer) for each payload. In a queue that is
//! served quickly, few payloads are left at the flush; those are flushed themselves.
//!
//! # Garbage collection
//! Removing a payload updates no counter on disk. Instead a *scan* walks over the pointers in the database and sums up the
//! live bytes of each segment. A scan starts when half as many payloads have been removed as there were at the last one,
//! small ones included, so each removal pays for visiting a few rows. It visits a bounded number of rows at a time, between
//! flushes. Rows may be removed during a scan, and a flushed segment never gets new ones: the sums are upper bounds.
//!
//! A segment without live bytes is removed. From a segment with few live bytes in two scans in a row, the payloads are
//! *relocated* into the database, and then it is removed. A single sparse scan is not enough: it may show a queue on its way
//! to the end of the segment. The file is removed when no view reads it any more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::flush::FlushTarget;
use super::memtable::Memtable;
use super::recovery;
use super::segment_dir::{DirContents, SegmentDir};
use crate::damage::DamagedPart;
use crate::record::{self, DecodeError, ValuePointer};
use crate::rows::{Table, View};
use crate::{Fault, OpenError, keys};

/// Rows that one step of a scan visits. Few in tests, so that much happens during a scan.
const SCAN_ROWS: usize = if cfg!(test) { 20 } else { 100_000 };

/// A segment is sparse if less than one in this many of its bytes is live.
const SPARSE_PARTS: u64 = 4;

/// Pointers that one scan collects for relocation, about.
const RELOCATED_MAX: u64 = 100_000;

/// Payloads that a blob segment of an opened store is assumed to have, until the first scan.
const ROWS_ASSUMED: u64 = 1_000;

/// The blob segments at one moment. A file stays as long as one of these sets contains it.
pub(super) type BlobSegments = Arc<BTreeMap<u64, Arc<BlobSegment>>>;

#[derive(Debug)]
pub(super) struct BlobSegment {
    pub(super) number: u64,
    bytes: u64,
    /// Its memtable, which views of the time before the flush read.
    memtable: Weak<Memtable>,
}

impl BlobSegment {
    /// Describes a segment without a memtable.
    fn flushed(number: u64, bytes: u64) -> Arc<Self> {
        Self::new(number, bytes, Weak::new())
    }

    pub(super) fn new(number: u64, bytes: u64, memtable: Weak<Memtable>) -> Arc<Self> {
        Arc::new(Self {
            number,
            bytes,
            memtable,
        })
    }

    /// Returns whether a view may read the file.
    fn is_read(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || self.memtable.strong_count() > 0
    }
}

/// Separates the segments to recover from the blob segments. A segment that is named a blob but was not flushed is
/// recovered: a crash came between the two.
pub(super) fn classify(
    dir: &SegmentDir,
    contents: DirContents,
    flushed: u64,
) -> io::Result<(Vec<u64>, BlobSegments)> {
    let mut segments = contents.segments;
    let mut blobs = BTreeMap::new();
    for number in contents.blobs {
        if number > flushed {
            dir.unmake_blob(number)?;
            segments.push(number);
        } else {
            let bytes = dir.blob_bytes(number)?;
            blobs.insert(number, BlobSegment::flushed(number, bytes));
        }
    }
    segments.sort_unstable();
    Ok((segments, Arc::new(blobs)))
}

/// Refuses a log that lacks a blob segment, or a part of one. The `void` ones are no longer needed.
pub(super) fn check(
    dir: &SegmentDir,
    blobs: &BlobSegments,
    void: &BTreeSet<u64>,
    view: &impl View,
) -> Result<(), OpenError> {
    let (from, to) = keys::blobs();
    for row in view.range(Table::Catalog, &from, &to) {
        let (key, record) = row.map_err(OpenError::Fault)?;
        let what = "the list of blob segments";
        let damaged = |source| OpenError::Damaged { what, source };
        let bytes = record::decode_number(&key, &record).map_err(damaged)?;
        let number = keys::parse_blob(&key).ok_or(DecodeError::OutOfRange("blob segment"));
        let number = number.map_err(damaged)?;
        let how = match blobs.get(&number) {
            None if void.contains(&number) => continue,
            None => "is missing",
            Some(blob) if blob.bytes < bytes => "is shorter than it was: an incomplete copy",
            Some(_) => continue,
        };
        let (path, part) = (dir.blob_path(number), DamagedPart::Blob(number));
        return Err(recovery::damaged(dir, path, part, how));
    }
    Ok(())
}

/// Returns the row that says that a blob segment must exist, with at least this many bytes.
pub(super) fn listed(number: u64, bytes: u64) -> (Bytes, Option<Bytes>) {
    let key = keys::blob(number);
    let record = record::encoded(|encoded| record::encode_number(encoded, &key, bytes));
    (key.into(), Some(record))
}

/// Returns the row that says that a blob segment is no longer needed.
pub(super) fn unlisted(number: u64) -> (Bytes, Option<Bytes>) {
    (keys::blob(number).into(), None)
}

/// Returns the record that a pointer points to, or the record itself if it is no pointer.
///
/// A pointer that leads nowhere is returned as it is: the decoder reports it as a record of the wrong kind.
pub(super) fn resolve(dir: &SegmentDir, key: &[u8], record: Bytes) -> Result<Bytes, Fault> {
    let Some(pointer) = record::as_value_pointer(key, &record) else {
        return Ok(record);
    };
    let found = dir.read_value(pointer.segment, pointer.at, pointer.length);
    Ok(found.map_err(Fault::new)?.unwrap_or(record))
}

/// Payload rows in a flush.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PayloadCounts {
    /// Payloads, or pointers to them.
    pub(super) set: u64,
    /// Tombstones.
    pub(super) removed: u64,
}

impl PayloadCounts {
    pub(super) fn note(&mut self, is_set: bool) {
        self.set += u64::from(is_set);
        self.removed += u64::from(!is_set);
    }
}

/// Decides which blob segments are still needed.
#[derive(Debug)]
pub(super) struct GarbageCollector {
    /// Rows that a scan would visit, at most: payloads and pointers.
    rows: u64,
    /// Payloads removed since the last scan started.
    removed: u64,
    /// Whether any removed payload is enough to start a scan.
    is_hurried: bool,
    scan: Option<GcScan>,
    /// Segments that the last scan found sparse.
    sparse: HashSet<u64>,
    /// Segments that are no longer needed, but that a view may still read.
    retired: Vec<Arc<BlobSegment>>,
    /// Segments that are no longer needed, but that the database still lists.
    listed: BTreeSet<u64>,
}

/// A walk over the pointers.
#[derive(Debug)]
struct GcScan {
    /// The key to continue at.
    from: Vec<u8>,
    /// The segments that it judges.
    segments: BlobSegments,
    live: HashMap<u64, LiveData>,
    /// Segments whose pointers are collected for relocation.
    sparse: HashSet<u64>,
    /// In the order of their keys.
    to_relocate: Vec<(Bytes, ValuePointer)>,
    rows: u64,
}

/// Payloads of a segment that are still needed.
#[derive(Clone, Copy, Debug, Default)]
struct LiveData {
    bytes: u64,
    rows: u64,
}

impl GarbageCollector {
    /// Starts with the blob segments of an opened store.
    ///
    /// The database may still list the `void` ones.
    pub(super) fn new(blobs: &BlobSegments, void: BTreeSet<u64>) -> Self {
        Self {
            listed: void,
            rows: blobs.len() as u64 * ROWS_ASSUMED,
            removed: 0,
            is_hurried: false,
            scan: None,
            sparse: HashSet::new(),
            retired: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, counts: PayloadCounts) {
        self.rows += counts.set;
        self.removed += counts.removed;
    }

    pub(super) fn has_work(&self, blobs: &BlobSegments) -> bool {
        self.scan.is_some() || self.is_due(blobs)
    }

    fn is_due(&self, blobs: &BlobSegments) -> bool {
        let is_enough = self.is_hurried || self.removed.saturating_mul(2) >= self.rows;
        !blobs.is_empty() && self.removed > 0 && is_enough
    }

    /// Lets the next scan start as soon as anything was removed, since the disk is full. Returns whether there is work.
    pub(super) fn hurry(&mut self, blobs: &BlobSegments) -> bool {
        self.is_hurried = true;
        if !self.sparse.is_empty() {
            // They are relocated by a second scan, for which nothing else may be removed.
            self.removed = self.removed.max(1);
        }
        self.has_work(blobs)
    }

    /// Continues the scan, or starts one if it is due. A scan that ends relocates the payloads of sparse segments. Returns
    /// the segments that are no longer needed.
    pub(super) fn step<D: FlushTarget>(
        &mut self,
        blobs: &BlobSegments,
        dir: &SegmentDir,
        database: &D,
    ) -> Result<HashSet<u64>, Fault> {
        if self.scan.is_none() && self.is_due(blobs) {
            self.removed = 0;
            self.is_hurried = false;
            self.scan = Some(GcScan {
                from: Vec::new(),
                segments: Arc::clone(blobs),
                live: HashMap::new(),
                sparse: std::mem::take(&mut self.sparse),
                to_relocate: Vec::new(),
                rows: 0,
            });
        }
        let Some(mut scan) = self.scan.take() else {
            return Ok(HashSet::new());
        };
        match scan.walk(&database.view()) {
            Ok(true) => return self.finish(scan, dir, database),
            Ok(false) => self.scan = Some(scan),
            // An unfinished scan removes nothing. Another one follows.
            Err(_) => {}
        }
        Ok(HashSet::new())
    }

    fn finish<D: FlushTarget>(
        &mut self,
        scan: GcScan,
        dir: &SegmentDir,
        database: &D,
    ) -> Result<HashSet<u64>, Fault> {
        self.rows = scan.rows;
        let mut unused = HashSet::new();
        let mut to_relocate = 0;
        for segment in scan.segments.values() {
            let number = segment.number;
            let live = scan.live.get(&number).copied().unwrap_or_default();
            if live.rows == 0 {
                unused.insert(number);
            } else if live.bytes < segment.bytes / SPARSE_PARTS
                && !scan.sparse.contains(&number)
                && to_relocate < RELOCATED_MAX
            {
                to_relocate += live.rows;
                self.sparse.insert(number);
            }
        }
        let relocated = scan.sparse.clone();
        match scan.relocate(dir, database) {
            Ok(emptied) => unused.extend(emptied),
            // What was relocated exists twice, which does no harm. A later scan tries again.
            Err(fault) if fault.is_full() => self.sparse.extend(relocated),
            Err(fault) => return Err(fault),
        }
        Ok(unused)
    }

    /// Removes the files of segments that are no longer needed, as soon as no view reads them.
    pub(super) fn remove<D: FlushTarget>(
        &mut self,
        dir: &SegmentDir,
        database: &D,
        segments: &[Arc<BlobSegment>],
    ) -> Result<(), Fault> {
        self.listed.extend(segments.iter().map(|it| it.number));
        self.retired.extend(segments.iter().cloned());
        match self.unlist(dir, database) {
            // Their files can go nevertheless, to make room.
            Err(fault) if fault.is_full() => {}
            unlisted => unlisted?,
        }
        for segment in std::mem::take(&mut self.retired) {
            if segment.is_read() {
                self.retired.push(segment);
            } else if self.listed.contains(&segment.number) {
                dir.void_blob(segment.number).map_err(Fault::new)?;
            } else {
                dir.remove_blob(segment.number).map_err(Fault::new)?;
            }
        }
        Ok(())
    }

    /// Removes the rows that list segments which are no longer needed. An opening misses a listed one.
    fn unlist<D: FlushTarget>(&mut self, dir: &SegmentDir, database: &D) -> Result<(), Fault> {
        let mut rows = self.listed.iter().map(|&number| unlisted(number));
        database.ingest(Table::Catalog, &mut rows)?;
        for number in std::mem::take(&mut self.listed) {
            dir.remove_void(number).map_err(Fault::new)?;
        }
        Ok(())
    }
}

impl GcScan {
    /// Visits some rows, and returns whether it has come to the end.
    fn walk(&mut self, view: &impl View) -> Result<bool, Fault> {
        let end = keys::successor(&[]);
        let mut rows = view.range(Table::Payloads, &self.from, &end);
        let mut last = None;
        for row in rows.by_ref().take(SCAN_ROWS) {
            let (key, record) = row?;
            last = Some(key.clone());
            self.rows += 1;
            let Some(pointer) = record::as_value_pointer(&key, &record) else {
                continue;
            };
            let live = self.live.entry(pointer.segment).or_default();
            live.bytes += u64::from(pointer.length);
            live.rows += 1;
            if self.sparse.contains(&pointer.segment) {
                // A copy, so that it does not keep its whole block in memory.
                let key = Bytes::copy_from_slice(&key);
                self.to_relocate.push((key, pointer));
            }
        }
        let is_over = rows.next().is_none();
        drop(rows);
        if let Some(last) = last {
            self.from = keys::following(&last);
        }
        Ok(is_over)
    }

    /// Writes the collected payloads that still exist to the database, and returns the segments that they were in.
    fn relocate<D: FlushTarget>(
        self,
        dir: &SegmentDir,
        database: &D,
    ) -> Result<HashSet<u64>, Fault> {
        let mut emptied = self.sparse;
        let mut has_failed = false;
        let view = database.view();
        let mut read = |key: &Bytes, pointer: ValuePointer| {
            let present = view.get(Table::Payloads, key)?;
            // A payload that was removed since must not come back.
            if present.and_then(|record| record::as_value_pointer(key, &record)) != Some(pointer) {
                return Ok(None);
            }
            let value = dir
                .read_value(pointer.segment, pointer.at, pointer.length)
                .map_err(Fault::new)?;
            if value.is_none() {
                // The segment is damaged and stays as it is.
                emptied.remove(&pointer.segment);
            }
            Ok(value)
        };
        let mut payloads =
            self.to_relocate
                .into_iter()
                .map_while(|(key, pointer)| match read(&key, pointer) {
                    Ok(value) => Some(value.map(|value| (key, Some(value)))),
                    // The payloads before this one now exist twice, which does no harm.
                    Err::<_, Fault>(_) => {
                        has_failed = true;
                        None
                    }
                });
        database.ingest(Table::Payloads, &mut payloads.by_ref().flatten())?;
        drop(payloads);
        if has_failed {
            emptied.clear();
        }
        Ok(emptied)
    }
}
