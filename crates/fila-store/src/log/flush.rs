//! Flushing: a thread writes the rows of full segments to the database.
//!
//! Segments are flushed in order, a few in one [lot](FlushLot). The rows of a lot end with the [flush mark](FlushMark),
//! written after all others, so recovery flushes a lot again that was flushed in part, and never reads a segment again that
//! was flushed whole, except for the payloads in the [value log](super::value_log). The thread also prepares the next
//! segment before the writer needs it, and looks after the [room](super::room) on the disk: a job that finds too little is
//! done again later.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Visible;
use super::lot::FlushLot;
use super::memtable::Memtable;
use super::room::{LOOK_INTERVAL, RESERVE, RESERVE_LOG, Room, RoomFigures};
use super::segment_dir::{ActiveSegment, SegmentDir};
use super::value_log::{BlobSegment, GarbageCollector};
use crate::record;
use crate::rows::{Table, View};
use crate::{Fault, OpenError, directory, keys, sync};

/// Memtables that wait to be flushed, at most. Writers wait at this bound.
const FROZEN_MAX: usize = 8;

/// Bytes of memory of those memtables, in segments, at most. Writers wait at this bound, too.
const FROZEN_SEGMENTS: u64 = 4;

/// Memtables in a lot, at most: a restart reads the segments that are not flushed.
const LOT_MAX: usize = 4;

/// A lot is full when its memtables take this part of a segment's bytes in memory.
const LOT_PART: u64 = 2;

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

/// The work of the flush thread, and its results.
#[derive(Debug, Default)]
pub(super) struct FlushState {
    /// The oldest first. Those that are being flushed are still here.
    pub(super) frozen: VecDeque<FrozenMemtable>,
    /// How many of them are in the lot whose flush has begun. A flush that is tried again has the same ones: it may have
    /// written rows that a later memtable removes.
    pub(super) lot: usize,
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

impl FlushState {
    /// Returns whether this many more memtables may wait to be flushed.
    pub(super) fn has_room_for(&self, more: usize, segment_bytes: u64) -> bool {
        let memory: u64 = self.frozen.iter().map(|it| it.memtable.memory()).sum();
        self.frozen.len() + more <= FROZEN_MAX
            && memory < (FROZEN_SEGMENTS + 1 - more as u64) * segment_bytes
    }

    /// Returns how many memtables the next lot has, and whether it cannot become larger.
    fn next_lot(&self, segment_bytes: u64) -> (usize, bool) {
        if self.lot > 0 {
            return (self.lot, true);
        }
        let mut memory = 0;
        for (before, frozen) in self.frozen.iter().enumerate() {
            memory += frozen.memtable.memory();
            let is_large = memory >= segment_bytes / LOT_PART;
            if is_large || before + 1 == LOT_MAX {
                return (before + 1, true);
            }
        }
        (self.frozen.len(), false)
    }
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
    Flush(FlushLot),
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
                Job::Flush(lot) => {
                    let flushed = self.flush(&lot);
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

    /// Waits for work. Memtables that are no full lot are work when they have waited a little, or if the disk is full.
    fn next(&self) -> Job {
        let segment_bytes = self.dir.segment_bytes;
        let mut state = self.flush.wait_a_little_while(|state| {
            let is_urgent = self.room.is_low() && !state.frozen.is_empty();
            let (_, is_full) = state.next_lot(segment_bytes);
            let has_lot = is_urgent || is_full;
            let has_work = has_lot || state.wanted.is_some() || state.gc_pending;
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
        if state.frozen.is_empty() {
            return match &*state {
                state if state.is_closing => Job::Stop,
                state if state.gc_pending => Job::CollectGarbage,
                _ => Job::LookForRoom,
            };
        }
        (state.lot, _) = state.next_lot(segment_bytes);
        let frozen = state.frozen.iter().take(state.lot).cloned().collect();
        Job::Flush(FlushLot { frozen })
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

    fn flush(&mut self, lot: &FlushLot) -> Result<(), Fault> {
        while self.database.is_behind() {
            self.flush.pause(POLL_INTERVAL);
        }
        let blobs = self.make_blobs(lot)?;
        let counts = lot.flush(&*self.database, &blobs)?;
        self.collector.note(counts);
        sync::write(&self.visible)
            .memtables
            .retain(|memtable| !lot.contains(memtable));
        let retired = lot.frozen.iter().map(|frozen| &frozen.memtable);
        let retired = retired.filter(|memtable| !blobs.contains(&memtable.number));
        self.retired
            .extend(retired.map(|memtable| (memtable.number, Arc::downgrade(memtable))));
        self.collect_garbage(|state| {
            state.frozen.drain(..lot.frozen.len());
            state.lot = 0;
        })
    }

    /// Makes blobs of the segments of which much is still needed after the flush, and returns their numbers.
    fn make_blobs(&mut self, lot: &FlushLot) -> Result<BTreeSet<u64>, Fault> {
        let live = lot.live_bytes();
        let mut blobs = BTreeSet::new();
        for frozen in &lot.frozen {
            let number = frozen.memtable.number;
            let is_small = frozen.bytes <= self.dir.small_bytes();
            let is_needed = live.get(&number).copied().unwrap_or_default() >= frozen.bytes / 2;
            // An earlier attempt, which found no room, may have made it one.
            let was_blob = sync::read(&self.visible).blobs.contains_key(&number);
            if !was_blob && (is_small || !is_needed) {
                continue;
            }
            blobs.insert(number);
            if !was_blob {
                self.dir.make_blob(number).map_err(Fault::new)?;
                let mut visible = sync::write(&self.visible);
                let memtable = Arc::downgrade(&frozen.memtable);
                let segment = BlobSegment::new(number, frozen.bytes, memtable);
                Arc::make_mut(&mut visible.blobs).insert(number, segment);
            }
        }
        Ok(blobs)
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
