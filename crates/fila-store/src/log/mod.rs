//! A write-ahead log in front of a database: a commit is appended to a file, synced, and applied to a memtable. The
//! database gets it later, many commits at once and in the order of their keys.
//!
//! A tree of sorted tables is made for reading. Writing a commit into one takes several times the CPU time of appending it
//! to a file, and most messages of a busy queue are acknowledged before the tree would be of any use: they live and die in
//! the log. A thread [flushes](flush) the rest a segment at a time, past the database's own journal. Large payloads are not
//! flushed: if enough of a segment is still needed, it becomes a segment of the [value log](value_log).
//!
//! ```text
//! write ── frame ─→ segment N      synced, then applied ─→ memtable N ┐
//!                   segment N - 1  full                    memtable …  ├─ a view reads these, newest first
//!                   flushed by the thread ───────────────→ database   ┘
//! ```
//!
//! A commit has two halves. `stage` appends it and puts it in a list. `settle` syncs and applies everything that was staged
//! before. Other threads can stage while one settles; their commits share the next sync.
//!
//! # What always holds
//! - A commit is appended, then synced if its durability asks for it, then visible. A reader never sees a row that is less
//!   durable than asked.
//! - Commits become visible in the order in which they were staged. All commits of a segment are visible before the segment
//!   is flushed.
//! - Locks are taken in this order: `settling`, `writer`, `applying`, then the short ones.
//! - Every commit that is not in the database is in a segment with a number greater than the database's [flush
//!   mark](flush). Such a segment exists at any time, and the numbers have no gap. So recovery notices a missing log and a
//!   missing segment.
//! - After a failure the log takes no more writes. A full disk is not a failure: see [room].

mod flush;
mod frame;
mod lot;
mod memtable;
mod recovery;
mod repair;
mod room;
mod segment_dir;
#[cfg(test)]
mod tests;
mod value_log;
mod view;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::thread::JoinHandle;

use flush::{FlushMark, FlushQueue, FlushState, Flusher, FrozenMemtable};
use frame::FrameHead;
use memtable::Memtable;
use recovery::{LastSegment, fault};
use room::{LOOK_INTERVAL, RESERVE_LOG, Room};
use segment_dir::{ActiveSegment, AppendedFile, SegmentDir};
use value_log::{BlobSegments, GarbageCollector};

use crate::rows::{Figures, Rows, Table, WriteError, WriteSet};
use crate::{Durability, Fault, OpenError, TornLog, directory, sync};

pub use flush::FlushTarget;
pub(crate) use repair::{accept_blob, end_at};
pub use view::LoggedView;

/// A database with a log in front of it.
pub struct Logged<D: FlushTarget> {
    database: Arc<D>,
    dir: Arc<SegmentDir>,
    visible: Arc<RwLock<Visible>>,
    flush: Arc<FlushQueue>,
    room: Arc<Room>,
    /// Held by the thread that settles.
    settling: Mutex<()>,
    writer: Mutex<LogWriter>,
    /// Held by the thread that applies.
    applying: Mutex<()>,
    /// Commits that are appended and not visible yet, in order.
    staged: Mutex<VecDeque<StagedCommit>>,
    /// Write sets without rows, for later commits.
    write_sets: Mutex<Vec<WriteSet>>,
    /// Sequence of the last frame that is known to be on the disk.
    synced: AtomicU64,
    /// Views that exist.
    views: AtomicUsize,
    /// The commits that recovery has dropped.
    torn: Option<TornLog>,
    /// Whether a commit may ask for a sync, which covers all commits before it.
    syncs: bool,
    flusher: Option<JoinHandle<()>>,
}

/// The state that a view reads.
#[derive(Debug)]
struct Visible {
    /// The newest first; commits are applied to that one.
    memtables: Vec<Arc<Memtable>>,
    /// Segments that payloads are read from.
    blobs: BlobSegments,
    /// Sequence of the last visible commit.
    sequence: u64,
}

/// A commit that is appended and not visible yet.
#[derive(Debug)]
struct StagedCommit {
    sequence: u64,
    writes: WriteSet,
    /// Where its frame begins in the segment.
    start: u64,
    /// The memtable of the segment that it was appended to.
    memtable: Arc<Memtable>,
}

/// The end of the log.
#[derive(Debug)]
struct LogWriter {
    segment: ActiveSegment,
    memtable: Arc<Memtable>,
    /// Sequence of the last frame.
    sequence: u64,
    /// Sequence of the last frame that must be on the disk before it is visible.
    to_sync: u64,
    /// Rows in the segment.
    rows: usize,
    /// Those of them that remove a row.
    removed: usize,
    /// Whether the next segment has been requested.
    has_requested: bool,
    has_failed: bool,
}

impl<D: FlushTarget> fmt::Debug for Logged<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logged")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl<D: FlushTarget> Logged<D> {
    /// Opens the log in the directory of a store, or creates one.
    ///
    /// No write may ask for more than `durability`.
    pub(crate) fn open(
        database: D,
        store: &Path,
        segment_bytes: u64,
        durability: Durability,
    ) -> Result<Self, OpenError> {
        let (dir, contents) = SegmentDir::open(store, segment_bytes).map_err(fault)?;
        let mark = FlushMark::read(&database.view())?;
        let flushed = mark.unwrap_or_default();
        let void = contents.void.clone();
        let (segments, blobs) =
            value_log::classify(&dir, contents, flushed.segment).map_err(fault)?;
        value_log::check(&dir, &blobs, &void, &database.view())?;
        let mut recovered = recovery::recover(&dir, &segments, flushed)?;
        for &number in segments
            .iter()
            .take_while(|&&number| mark.is_some() && number <= flushed.segment)
        {
            dir.retire(number).map_err(fault)?;
        }
        let last = match recovered.continued.take() {
            Some(continued) => continued,
            None if mark.is_some() && recovered.frozen.is_empty() => {
                return Err(recovery::missing(&dir, recovered.number + 1));
            }
            None => {
                let segment = dir.prepare(recovered.number + 1, || false);
                let segment = segment.map_err(|error| recovery::unallocated(&dir, error))?;
                LastSegment {
                    memtable: dir.memtable(&segment),
                    segment,
                    rows: 0,
                }
            }
        };
        if mark.is_none() {
            // From now on the database is not opened without its log.
            let mut rows = FlushMark::default().rows().into_iter();
            let written = database.ingest(Table::Catalog, &mut rows);
            written.map_err(OpenError::Fault)?;
        }
        let mut logged = Self::new(database, dir, last, recovered, blobs);
        logged.syncs = durability == Durability::Fsync;
        logged.flusher = Some(logged.start_flusher(void).map_err(fault)?);
        Ok(logged)
    }

    fn new(
        database: D,
        dir: SegmentDir,
        last: LastSegment,
        recovered: recovery::Recovered,
        blobs: BlobSegments,
    ) -> Self {
        let memtable = Arc::new(last.memtable);
        let frozen = recovered.frozen;
        let older = frozen.iter().rev().map(|frozen| &frozen.memtable);
        let memtables = std::iter::once(&memtable).chain(older).cloned().collect();
        let visible = RwLock::new(Visible {
            memtables,
            blobs,
            sequence: recovered.sequence,
        });
        let flush = FlushQueue::default();
        flush.change(|state| state.frozen.extend(frozen));
        let writer = LogWriter {
            segment: last.segment,
            memtable,
            sequence: recovered.sequence,
            to_sync: recovered.sequence,
            rows: last.rows,
            // Any of them may have.
            removed: last.rows,
            has_requested: false,
            has_failed: false,
        };
        Self {
            database: Arc::new(database),
            dir: Arc::new(dir),
            visible: Arc::new(visible),
            flush: Arc::new(flush),
            room: Arc::default(),
            settling: Mutex::default(),
            writer: Mutex::new(writer),
            applying: Mutex::default(),
            staged: Mutex::default(),
            write_sets: Mutex::default(),
            synced: AtomicU64::new(recovered.sequence),
            views: AtomicUsize::new(0),
            torn: recovered.torn,
            syncs: false,
            flusher: None,
        }
    }

    fn start_flusher(&self, void: BTreeSet<u64>) -> io::Result<JoinHandle<()>> {
        let mut flusher = Flusher {
            database: Arc::clone(&self.database),
            dir: Arc::clone(&self.dir),
            visible: Arc::clone(&self.visible),
            flush: Arc::clone(&self.flush),
            room: Arc::clone(&self.room),
            collector: GarbageCollector::new(&sync::read(&self.visible).blobs, void),
            retired: Vec::new(),
            prepared: None,
            prefers_flush: false,
        };
        // Before the first commit, which may be on a disk that is full already.
        flusher.look_for_room();
        let thread = std::thread::Builder::new().name("fila-flush".to_owned());
        thread.spawn(move || flusher.run())
    }
}

/// Bytes that a memtable needs for a row, at least, beside its key and value. A segment is also full when its rows need as
/// much memory as it may have bytes: a removed row has next to none in the file.
const ROW: u64 = 128;

/// Returns whether a segment with frames up to `end` will soon need a successor.
fn is_half_full(end: u64, rows: usize, segment_bytes: u64) -> bool {
    end.max(rows as u64 * ROW) > segment_bytes / 2
}

/// Write sets that are kept for later commits, at most.
const WRITE_SETS_MAX: usize = 4;

impl<D: FlushTarget> Logged<D> {
    /// The log stops at the first failure, so a panic leaves nothing half done that a later write could build on.
    fn writer(&self) -> MutexGuard<'_, LogWriter> {
        sync::lock(&self.writer)
    }

    /// Appends a commit, and returns where its frame begins in the segment.
    fn append(
        &self,
        writer: &mut LogWriter,
        writes: &mut WriteSet,
        durability: Durability,
    ) -> Result<u64, Fault> {
        if let Some(fault) = &self.flush.state().fault {
            return Err(Fault::new(Arc::clone(fault)));
        }
        let segment_bytes = self.dir.segment_bytes;
        let size = frame::size(writes);
        let is_full = writer.segment.end_after(size) > segment_bytes
            || (writer.rows + writes.len()) as u64 * ROW > segment_bytes;
        if is_full && !writer.segment.is_empty() {
            self.rotate(writer)?;
            // The next segment may be full before this one is flushed.
            self.request_next(writer);
        }
        self.reserve(writer, size)?;
        let head = FrameHead {
            salt: writer.segment.salt,
            sequence: writer.sequence + 1,
            synced: self.synced.load(Ordering::Acquire),
        };
        frame::encode(head, writes)
            .ok_or_else(|| Fault::new("a commit is larger than a frame of the log can be"))?;
        let start = writer.segment.end_after(0);
        writer.segment.append(writes.bytes()).map_err(Fault::new)?;
        writer.sequence += 1;
        writer.rows += writes.len();
        writer.removed += writes.removed();
        if durability == Durability::Fsync {
            writer.to_sync = writer.sequence;
        }
        if is_half_full(writer.segment.end_after(0), writer.rows, segment_bytes) {
            self.request_next(writer);
        }
        Ok(start)
    }

    /// Asks the flush thread for the next segment, once.
    fn request_next(&self, writer: &mut LogWriter) {
        if !std::mem::replace(&mut writer.has_requested, true) {
            let next = writer.segment.number + 1;
            self.flush.change(|state| state.wanted = Some(next));
        }
    }

    /// Waits until the segment has room for a frame. It always has, unless the frame is larger than a segment.
    fn reserve(&self, writer: &mut LogWriter, bytes: usize) -> Result<(), Fault> {
        loop {
            match writer.segment.reserve(bytes) {
                Err(error) if directory::is_full(&error) => {
                    self.room.set_low(true);
                    std::thread::sleep(LOOK_INTERVAL);
                }
                reserved => return reserved.map_err(Fault::new),
            }
        }
    }

    /// Begins the next segment, and hands the present one to the flush thread.
    fn rotate(&self, writer: &mut LogWriter) -> Result<(), Fault> {
        if self.syncs {
            self.sync(&writer.segment.file(), writer.sequence)?;
        }
        self.apply(writer.sequence);
        let next = self.next_segment(writer)?;
        let memtable = Arc::new(self.dir.memtable(&next));
        sync::write(&self.visible)
            .memtables
            .insert(0, Arc::clone(&memtable));
        let frozen = FrozenMemtable {
            bytes: writer.segment.end_after(0),
            sequence: writer.sequence,
            memtable: std::mem::replace(&mut writer.memtable, memtable),
        };
        writer.segment.seal().map_err(Fault::new)?;
        writer.segment = next;
        writer.rows = 0;
        writer.removed = 0;
        writer.has_requested = false;
        self.flush.change(|state| state.frozen.push_back(frozen));
        Ok(())
    }

    /// Waits until one more memtable may be frozen, then takes the segment that the flush thread has prepared, or prepares
    /// one. If the disk has no room for a segment, waits until it has.
    fn next_segment(&self, writer: &mut LogWriter) -> Result<ActiveSegment, Fault> {
        loop {
            let has_requested = writer.has_requested;
            self.flush.change(|state| state.writer_waits = true);
            let has_room_for_one =
                |state: &FlushState| state.has_room_for(1, self.dir.segment_bytes);
            let mut state = self.flush.wait_while(|state| {
                let has_room = has_room_for_one(state) || state.gives_up && state.is_stuck;
                let is_unmade = state.lacks_segment && !state.gives_up;
                // Waits for a segment that the thread is preparing: a number cannot be used twice.
                let is_made = !has_requested || state.wanted.is_some() && !is_unmade;
                let is_made = is_made || state.ready.is_some();
                state.fault.is_none() && !(has_room && is_made)
            });
            state.writer_waits = false;
            if let Some(fault) = &state.fault {
                return Err(Fault::new(Arc::clone(fault)));
            }
            if !has_room_for_one(&state) {
                return Err(Fault::new("the disk is full"));
            }
            if let Some(ready) = state.ready.take() {
                return Ok(ready);
            }
            // The thread has not got to the request.
            state.wanted = None;
            drop(state);
            let number = writer.segment.number + 1;
            match self.dir.prepare(number, || false) {
                Err(error) if directory::is_full(&error) => self.flush.change(|state| {
                    if state.gives_up {
                        return Err(Fault::new(error));
                    }
                    self.room.set_low(true);
                    state.lacks_segment = true;
                    state.wanted = Some(number);
                    writer.has_requested = true;
                    Ok(())
                })?,
                prepared => return prepared.map_err(Fault::new),
            }
        }
    }

    /// Flushes everything, so that the next opening has no segment to read.
    fn close(&self) {
        self.flush.change(|state| state.gives_up = true);
        let mut writer = self.writer();
        // The next opening needs a segment, and cannot allocate one on a full disk.
        let has_spare =
            self.has_room() || self.dir.spare_bytes() > RESERVE_LOG as u64 * self.dir.segment_bytes;
        let can_rotate = has_spare || self.flush.state().ready.is_some();
        if can_rotate && !writer.has_failed && !writer.segment.is_empty() {
            // If it fails, the next opening reads the segment.
            let _ = self.rotate(&mut writer);
        }
        self.flush.change(|state| {
            state.wanted = None;
            state.is_closing = true;
        });
    }

    /// Returns when every frame up to this one is on the disk. The frames after the last sync are in `file`.
    fn sync(&self, file: &AppendedFile, sequence: u64) -> Result<(), Fault> {
        if self.synced.load(Ordering::Acquire) < sequence {
            file.sync_data().map_err(Fault::new)?;
            self.synced.fetch_max(sequence, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Makes staged commits visible, up to this one.
    fn apply(&self, sequence: u64) {
        let _applying = sync::lock(&self.applying);
        while let Some(staged) = self.next_staged(sequence) {
            let mut visible = sync::write(&self.visible);
            let keeps_older = self.views.load(Ordering::Acquire) > 0;
            let (sequence, start) = (staged.sequence, staged.start);
            staged
                .memtable
                .apply(sequence, start, staged.writes.iter(), keeps_older);
            visible.sequence = sequence;
            drop(visible);
            self.keep_set(staged.writes);
        }
    }

    /// Keeps the memory of a write set for a later commit.
    fn keep_set(&self, mut writes: WriteSet) {
        writes.clear();
        let mut write_sets = sync::lock(&self.write_sets);
        if write_sets.len() < WRITE_SETS_MAX {
            write_sets.push(writes);
        }
    }

    fn next_staged(&self, upto: u64) -> Option<StagedCommit> {
        let mut staged = sync::lock(&self.staged);
        let is_next = staged.front().is_some_and(|next| next.sequence <= upto);
        is_next.then(|| staged.pop_front()).flatten()
    }
}

impl<D: FlushTarget> Drop for Logged<D> {
    fn drop(&mut self) {
        self.close();
        if let Some(flusher) = self.flusher.take() {
            // A thread that panicked has reported it to the writers.
            let _ = flusher.join();
        }
    }
}

impl<D: FlushTarget> Rows for Logged<D> {
    type View<'a> = LoggedView<'a, D::View<'a>>;

    fn view(&self) -> LoggedView<'_, D::View<'_>> {
        let visible = sync::read(&self.visible);
        // Counted while no commit is being applied, so that none overwrites a row that this view reads.
        self.views.fetch_add(1, Ordering::Acquire);
        LoggedView {
            memtables: visible.memtables.clone(),
            _blobs: Arc::clone(&visible.blobs),
            dir: &self.dir,
            sequence: visible.sequence,
            // After the memtables were read: a memtable that has left the list is in the database by now.
            database: self.database.view(),
            views: &self.views,
        }
    }

    fn write_set(&self) -> WriteSet {
        sync::lock(&self.write_sets).pop().unwrap_or_default()
    }

    fn write(&self, writes: WriteSet, durability: Durability) -> Result<(), WriteError> {
        self.stage(writes, durability)?;
        self.settle()
    }

    fn stage(&self, mut writes: WriteSet, durability: Durability) -> Result<(), WriteError> {
        let mut writer = self.writer();
        if writer.has_failed {
            return Err(WriteError::Poisoned);
        }
        let start = match self.append(&mut writer, &mut writes, durability) {
            Ok(start) => start,
            Err(fault) => {
                writer.has_failed = true;
                return Err(WriteError::Unknown(fault));
            }
        };
        sync::lock(&self.staged).push_back(StagedCommit {
            sequence: writer.sequence,
            writes,
            start,
            memtable: Arc::clone(&writer.memtable),
        });
        Ok(())
    }

    fn settle(&self) -> Result<(), WriteError> {
        let _settling = sync::lock(&self.settling);
        let writer = self.writer();
        if writer.has_failed {
            let fault = Fault::new("a later write or the sync has failed");
            return Err(WriteError::Unknown(fault));
        }
        let file = writer.segment.file();
        let (sequence, to_sync) = (writer.sequence, writer.to_sync);
        drop(writer);
        // Frames that other threads append from here on wait for the next sync.
        if self.synced.load(Ordering::Acquire) < to_sync
            && let Err(fault) = self.sync(&file, sequence)
        {
            self.writer().has_failed = true;
            return Err(WriteError::Unknown(fault));
        }
        self.apply(sequence);
        Ok(())
    }

    fn has_room(&self) -> bool {
        !self.room.is_low()
    }

    /// One segment before the writers' bound, because other threads write as well.
    fn may_wait(&self) -> bool {
        !self.flush.state().has_room_for(2, self.dir.segment_bytes)
    }

    /// While the disk is full, flushes removed rows before their segment is full: only then do they make room.
    fn maintain(&self) -> Result<(), Fault> {
        let can_rotate = |state: &FlushState| {
            state.frozen.is_empty() && (state.ready.is_some() || self.dir.spare_bytes() > 0)
        };
        if self.has_room() || !can_rotate(&self.flush.state()) {
            return Ok(());
        }
        let mut writer = self.writer();
        if writer.has_failed || writer.removed == 0 {
            return Ok(());
        }
        self.rotate(&mut writer).inspect_err(|_| {
            // Nothing is lost, but the log may have moved on in part.
            writer.has_failed = true;
        })
    }

    fn torn(&self) -> Option<TornLog> {
        self.torn.clone()
    }

    fn figures(&self) -> Result<Figures, Fault> {
        Ok(Figures {
            bytes: self.database.bytes() + self.dir.bytes().map_err(Fault::new)?,
            // The frozen segments, and the active one.
            journals: self.flush.state().frozen.len() + 1,
        })
    }
}
