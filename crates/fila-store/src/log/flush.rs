//! Flushing: a thread writes the rows of a full segment to the database.
//!
//! Segments are flushed in order. The rows of a segment end with the [flush mark](FlushMark), written after all others, so
//! recovery flushes a segment again that was flushed in part, and never reads one again that was flushed whole, except for
//! the payloads in the [value log](super::value_log). The thread also prepares the next segment before the writer needs it,
//! and looks after the [room](super::room) on the disk: a job that finds too little is done again later.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Visible;
use super::memtable::{Memtable, RowValue};
use super::room::{LOOK_INTERVAL, RESERVE, RESERVE_LOG, Room, RoomFigures};
use super::segment_dir::{ActiveSegment, SegmentDir};
use super::value_log::{self, BlobSegment, GarbageCollector, PayloadCounts};
use crate::record::{self, ValuePointer};
use crate::rows::{Table, View};
use crate::{Fault, OpenError, directory, keys, sync};

/// Memtables that wait to be flushed, at most. Writers wait at this bound.
pub(super) const FROZEN_MAX: usize = 4;

/// How often the thread checks whether the database has caught up, and how long it leaves the disk alone between two parts
/// of a segment that it fills beforehand.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Segments that follow each other faster than this are not filled beforehand: the writer would wait for it.
const PREFILL_INTERVAL: Duration = Duration::from_secs(2);

/// The database beneath the log.
pub trait FlushTarget: Send + Sync + 'static {
    /// All rows at one moment.
    type View<'a>: View
    where
        Self: 'a;

    /// Returns all rows as they are now.
    fn view(&self) -> Self::View<'_>;

    /// Writes rows of one table, which come in the order of their keys. They are on the disk, and visible, on `Ok`.
    ///
    /// # Errors
    /// If the database fails. Any of them may have been written.
    fn ingest(
        &self,
        table: Table,
        rows: &mut dyn Iterator<Item = (Bytes, Option<Bytes>)>,
    ) -> Result<(), Fault>;

    /// Returns whether compaction is so far behind that flushing should wait.
    fn is_behind(&self) -> bool;

    /// Returns how many bytes it takes on disk.
    fn bytes(&self) -> u64;

    /// Returns how many bytes its largest merge may need beside the present tables.
    fn merge_bytes(&self) -> u64 {
        0
    }

    /// Returns whether a merge has failed because the disk is full. It is tried again.
    fn is_out_of_room(&self) -> bool {
        false
    }

    /// Merges what can be merged, so that removed rows no longer take room, and removes files that are not needed. It may
    /// return before that is done.
    fn make_room(&self) {}
}

/// A memtable that gets no more commits.
#[derive(Clone, Debug)]
pub(super) struct FrozenMemtable {
    pub(super) memtable: Arc<Memtable>,
    /// Sequence of its last commit, or of the last one before it.
    pub(super) sequence: u64,
    /// Bytes of frames in its segment. The file may be longer.
    pub(super) bytes: u64,
}

/// How far the log has been flushed: two rows of the catalogue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlushMark {
    /// The last flushed segment.
    pub(super) segment: u64,
    /// The last commit in it.
    pub(super) sequence: u64,
}

impl FlushMark {
    /// Reads the mark; none if the database has never had a log.
    pub(super) fn read(view: &impl View) -> Result<Option<Self>, OpenError> {
        let number = |key, what| {
            let row = view.get(Table::Catalog, key).map_err(OpenError::Fault)?;
            row.map(|record| record::decode_number(key, &record))
                .transpose()
                .map_err(|source| OpenError::Damaged { what, source })
        };
        let segment = number(keys::FLUSHED_SEGMENT, "the last flushed segment")?;
        let sequence = number(keys::FLUSHED_SEQUENCE, "the last flushed commit")?;
        Ok(segment.map(|segment| Self {
            segment,
            sequence: sequence.unwrap_or_default(),
        }))
    }

    /// Returns the rows of the mark, in the order of their keys.
    pub(super) fn rows(self) -> [(Bytes, Option<Bytes>); 2] {
        let row = |key: &'static [u8], number| {
            let record = record::encoded(|bytes| record::encode_number(bytes, key, number));
            (Bytes::from_static(key), Some(record))
        };
        [
            row(keys::FLUSHED_SEGMENT, self.segment),
            row(keys::FLUSHED_SEQUENCE, self.sequence),
        ]
    }
}

impl FrozenMemtable {
    fn mark(&self) -> FlushMark {
        FlushMark {
            segment: self.memtable.number,
            sequence: self.sequence,
        }
    }

    /// Returns whether at least half of the segment is payloads that a pointer may stand for.
    fn is_worth_a_blob(&self) -> bool {
        self.memtable.bytes_in_segment() >= self.bytes / 2
    }

    /// Flushes the rows, then the mark. If the segment stays as a blob, pointers stand for the payloads in it; otherwise
    /// they are flushed themselves.
    fn flush<D: FlushTarget>(&self, database: &D, is_blob: bool) -> Result<PayloadCounts, Fault> {
        self.ingest(database, Table::Deduplication, |_, value| {
            self.memtable.read(value)
        })?;
        let counts = self.flush_payloads(database, is_blob)?;
        self.ingest(database, Table::Messages, |_, value| {
            self.memtable.read(value)
        })?;
        let catalog = self.memtable.newest(Table::Catalog, |rows| {
            rows.map(|(key, value)| Ok((key, self.memtable.read(value)?)))
                .collect::<Result<BTreeMap<_, _>, Fault>>()
        });
        let mut catalog = catalog?;
        catalog.extend(self.mark().rows());
        if is_blob {
            catalog.extend([value_log::listed(self.memtable.number, self.bytes)]);
        }
        database.ingest(Table::Catalog, &mut catalog.into_iter())?;
        Ok(counts)
    }

    fn flush_payloads<D: FlushTarget>(
        &self,
        database: &D,
        is_blob: bool,
    ) -> Result<PayloadCounts, Fault> {
        let segment = self.memtable.number;
        let mut counts = PayloadCounts::default();
        self.ingest(database, Table::Payloads, |key, value| {
            counts.note(value != RowValue::Removed);
            match value {
                RowValue::InSegment { at, length } if is_blob => {
                    let pointer = ValuePointer {
                        segment,
                        at,
                        length,
                    };
                    let record =
                        record::encoded(|bytes| record::encode_value_pointer(bytes, key, pointer));
                    Ok(Some(record))
                }
                value => self.memtable.read(value),
            }
        })?;
        Ok(counts)
    }

    /// Ingests the newest rows of a table, with the values that `value` returns.
    fn ingest<D: FlushTarget>(
        &self,
        database: &D,
        table: Table,
        mut value: impl FnMut(&Bytes, RowValue) -> Result<Option<Bytes>, Fault>,
    ) -> Result<(), Fault> {
        let mut failure = None;
        self.memtable.newest(table, |rows| {
            let mut rows = rows.map_while(|(key, found)| match value(&key, found) {
                Ok(value) => Some((key, value)),
                Err(fault) => {
                    failure = Some(fault);
                    None
                }
            });
            database.ingest(table, &mut rows)
        })?;
        // The rows before the failure are written, which does no harm: the mark is not.
        failure.map_or(Ok(()), Err)
    }
}

/// The work of the flush thread, and its results.
#[derive(Debug, Default)]
pub(super) struct FlushState {
    /// The oldest first. The one that is being flushed is still here.
    pub(super) frozen: VecDeque<FrozenMemtable>,
    /// The number of the segment that the writer will need soon.
    pub(super) wanted: Option<u64>,
    /// That segment.
    pub(super) ready: Option<ActiveSegment>,
    /// Whether the writer waits for it.
    pub(super) writer_waits: bool,
    /// Whether the disk had no room for it. The thread tries again.
    pub(super) lacks_segment: bool,
    /// Whether the disk had no room for the last flush. The thread tries again.
    pub(super) is_stuck: bool,
    /// Whether the writer rather fails than waits for room, because the log is being closed.
    pub(super) gives_up: bool,
    /// Whether the garbage collector has work.
    pub(super) gc_pending: bool,
    /// Why the thread has stopped.
    pub(super) fault: Option<Arc<Fault>>,
    pub(super) is_closing: bool,
}

/// The state that the writers and the flush thread share.
#[derive(Debug, Default)]
pub(super) struct FlushQueue {
    state: Mutex<FlushState>,
    changed: Condvar,
}

impl FlushQueue {
    pub(super) fn state(&self) -> MutexGuard<'_, FlushState> {
        sync::lock(&self.state)
    }

    /// Changes the state, and wakes all threads that wait for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut FlushState) -> T) -> T {
        let changed = change(&mut self.state());
        self.changed.notify_all();
        changed
    }

    pub(super) fn wait_while(
        &self,
        condition: impl Fn(&mut FlushState) -> bool,
    ) -> MutexGuard<'_, FlushState> {
        let state = self.changed.wait_while(self.state(), condition);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, but not longer than this.
    fn pause(&self, time: Duration) {
        let state = self.changed.wait_timeout(self.state(), time);
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until the condition is false, but not longer than [`LOOK_INTERVAL`].
    fn wait_a_little_while(
        &self,
        condition: impl Fn(&mut FlushState) -> bool,
    ) -> MutexGuard<'_, FlushState> {
        let state = self
            .changed
            .wait_timeout_while(self.state(), LOOK_INTERVAL, |state| condition(state));
        state.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The flush thread.
#[derive(Debug)]
pub(super) struct Flusher<D> {
    pub(super) database: Arc<D>,
    pub(super) dir: Arc<SegmentDir>,
    pub(super) visible: Arc<RwLock<Visible>>,
    pub(super) flush: Arc<FlushQueue>,
    pub(super) room: Arc<Room>,
    pub(super) collector: GarbageCollector,
    /// Flushed segments that are no longer needed, but that a view may still read.
    pub(super) retired: Vec<(u64, Weak<Memtable>)>,
    /// When it last prepared a segment.
    pub(super) prepared: Option<Instant>,
    /// Whether a flush comes before the next segment: it may make room for one that could not be allocated.
    pub(super) prefers_flush: bool,
}

enum Job {
    Prepare(u64),
    Flush(FrozenMemtable),
    CollectGarbage,
    LookForRoom,
    Stop,
}

impl<D: FlushTarget> Flusher<D> {
    /// Works until the log is closed and every frozen memtable is flushed, or a job fails.
    pub(super) fn run(mut self) {
        let _poison = PoisonOnExit(Arc::clone(&self.flush));
        loop {
            let done = match self.next() {
                Job::Prepare(number) => {
                    let prepared = self.prepare(number);
                    self.prefers_flush = prepared.is_err();
                    prepared
                }
                Job::Flush(frozen) => {
                    let flushed = self.flush(&frozen);
                    self.flush.change(|state| state.is_stuck = flushed.is_err());
                    self.prefers_flush = false;
                    flushed
                }
                Job::CollectGarbage => {
                    self.prefers_flush = false;
                    self.collect_garbage(|_| {})
                }
                // A view may have kept the files of unused segments the last time.
                Job::LookForRoom => self.collect_garbage(|_| {}),
                Job::Stop => return,
            };
            let done = match done.and_then(|()| self.recycle()) {
                Err(fault) if fault.is_full() => self.wait_for_room(),
                done => done.map(|()| self.look_for_room()),
            };
            if let Err(fault) = done {
                self.flush
                    .change(|state| state.fault = Some(Arc::new(fault)));
                return;
            }
        }
    }

    fn next(&self) -> Job {
        let mut state = self.flush.wait_a_little_while(|state| {
            let has_work = !state.frozen.is_empty() || state.wanted.is_some() || state.gc_pending;
            !has_work && !state.is_closing
        });
        if state.is_closing && state.is_stuck {
            // The next opening reads the segments that are not flushed.
            return Job::Stop;
        }
        let may_help = !state.frozen.is_empty() || state.gc_pending;
        let comes_later = self.prefers_flush && may_help;
        if let Some(number) = state.wanted.filter(|_| !comes_later) {
            state.wanted = None;
            return Job::Prepare(number);
        }
        match state.frozen.front() {
            Some(frozen) => Job::Flush(frozen.clone()),
            None if state.is_closing => Job::Stop,
            None if state.gc_pending => Job::CollectGarbage,
            None => Job::LookForRoom,
        }
    }

    fn prepare(&mut self, number: u64) -> Result<(), Fault> {
        let before = self.prepared.replace(Instant::now());
        let has_time = before.is_none_or(|before| before.elapsed() >= PREFILL_INTERVAL);
        let segment = self.dir.prepare(number, || {
            has_time && {
                self.flush.pause(POLL_INTERVAL);
                let state = self.flush.state();
                !state.writer_waits && !state.is_closing
            }
        });
        match segment {
            Ok(segment) => self.flush.change(|state| {
                state.lacks_segment = false;
                state.ready = Some(segment);
            }),
            Err(error) if directory::is_full(&error) => {
                self.flush.change(|state| {
                    state.lacks_segment = true;
                    state.wanted = Some(number).filter(|_| !state.is_closing);
                });
                return Err(Fault::new(error));
            }
            Err(error) => return Err(Fault::new(error)),
        }
        Ok(())
    }

    /// Decides whether the disk counts as full, and makes room if it does.
    pub(super) fn look_for_room(&mut self) {
        let fails = {
            let state = self.flush.state();
            state.is_stuck || state.lacks_segment || self.database.is_out_of_room()
        };
        let mut figures = self.figures();
        while !fails
            && figures.is_some_and(|figures| figures.is_scarce())
            && self.dir.add_spare(RESERVE).unwrap_or(false)
        {
            figures = self.figures();
        }
        let was_low = self.room.is_low();
        let is_low = fails || figures.map_or(was_low, |figures| figures.is_low(was_low));
        self.room.set_low(is_low);
        if !is_low {
            return;
        }
        if self.database.is_out_of_room() {
            let _ = self.dir.give_up_spare(RESERVE_LOG);
        }
        // Again at each look: a reader may have been in the way the last time.
        self.database.make_room();
        let gc_pending = self.collector.hurry(&sync::read(&self.visible).blobs);
        self.flush.change(|state| state.gc_pending |= gc_pending);
    }

    /// Returns the room there is; none if the system cannot say at the moment.
    fn figures(&self) -> Option<RoomFigures> {
        let space = directory::space(self.dir.directory()).ok()?;
        Some(RoomFigures {
            free: space.free,
            total: space.total,
            spare: self.dir.spare_bytes(),
            segment: self.dir.segment_bytes,
            merge: self.database.merge_bytes(),
        })
    }

    /// After a job that needs more room than there is: removes unused segments, and gives up a spare file or waits a little.
    fn wait_for_room(&mut self) -> Result<(), Fault> {
        self.collect_garbage(|_| {})?;
        self.look_for_room();
        if !self.dir.give_up_spare(RESERVE_LOG).unwrap_or(false) {
            self.flush.pause(LOOK_INTERVAL);
        }
        Ok(())
    }

    fn flush(&mut self, frozen: &FrozenMemtable) -> Result<(), Fault> {
        while self.database.is_behind() {
            self.flush.pause(POLL_INTERVAL);
        }
        let number = frozen.memtable.number;
        let is_small = frozen.bytes <= self.dir.small_bytes();
        // An earlier attempt, which found no room, may have made it one.
        let was_blob = sync::read(&self.visible).blobs.contains_key(&number);
        let is_blob = was_blob || !is_small && frozen.is_worth_a_blob();
        if is_blob && !was_blob {
            self.dir.make_blob(number).map_err(Fault::new)?;
            let mut visible = sync::write(&self.visible);
            let memtable = Arc::downgrade(&frozen.memtable);
            let segment = BlobSegment::new(number, frozen.bytes, memtable);
            Arc::make_mut(&mut visible.blobs).insert(number, segment);
        }
        let counts = frozen.flush(&*self.database, is_blob)?;
        self.collector.note(counts);
        sync::write(&self.visible)
            .memtables
            .retain(|memtable| !Arc::ptr_eq(memtable, &frozen.memtable));
        if !is_blob {
            self.retired
                .push((number, Arc::downgrade(&frozen.memtable)));
        }
        self.collect_garbage(|state| drop(state.frozen.pop_front()))
    }

    /// Makes spare files of flushed segments that no view reads any more.
    fn recycle(&mut self) -> Result<(), Fault> {
        let retired = std::mem::take(&mut self.retired);
        let (read, unread) = retired
            .into_iter()
            .partition(|(_, memtable)| memtable.strong_count() > 0);
        self.retired = read;
        let unread: Vec<(u64, Weak<Memtable>)> = unread;
        for (number, _) in unread {
            self.dir.retire(number).map_err(Fault::new)?;
        }
        Ok(())
    }

    /// Does one step of garbage collection, and then changes the state.
    fn collect_garbage(&mut self, change: impl FnOnce(&mut FlushState)) -> Result<(), Fault> {
        let blobs = Arc::clone(&sync::read(&self.visible).blobs);
        let unused = self.collector.step(&blobs, &self.dir, &*self.database)?;
        drop(blobs);
        let mut removed = Vec::new();
        if !unused.is_empty() {
            let mut visible = sync::write(&self.visible);
            let blobs = Arc::make_mut(&mut visible.blobs);
            removed.extend(unused.iter().filter_map(|number| blobs.remove(number)));
        }
        self.collector
            .remove(&self.dir, &*self.database, &removed)?;
        let gc_pending = self.collector.has_work(&sync::read(&self.visible).blobs);
        self.flush.change(|state| {
            state.gc_pending = gc_pending;
            change(state);
        });
        Ok(())
    }
}

/// Tells the writers that the thread has ended, also by a panic: they would wait for it without end.
struct PoisonOnExit(Arc<FlushQueue>);

impl Drop for PoisonOnExit {
    fn drop(&mut self) {
        self.0.change(|state| {
            let fault = &mut state.fault;
            fault.get_or_insert_with(|| Arc::new(Fault::new("the flush thread has stopped")));
        });
    }
}
