//! What becomes of a segment that is full: its rows are filed in the database beneath, by a thread of its own.
//!
//! Segments are filed in order, and with the rows of each goes a note that it is filed, after all else; so a segment
//! that is filed in part is filed again after a crash, and one that is filed whole is never read again, but for payloads
//! that it is [kept](super::kept) for. The thread also makes the next segment before it is needed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::kept::{Keeper, KeptSegment, Tally};
use super::memtable::{Memtable, Row};
use super::shelf::{Segment, Shelf};
use super::{State, lock};
use crate::record::{self, Place};
use crate::rows::{Rows, Table, View, Write};
use crate::{Durability, Fault, OpenError, keys};

/// Memtables that wait to be filed, at most. Writers wait when there are so many.
pub(super) const FROZEN_MAX: usize = 4;

/// How often it is looked whether the database has caught up, and how long the disk is left alone between two parts of a
/// segment that is written beforehand.
const PATIENCE: Duration = Duration::from_millis(5);

/// If the last segment was made so little ago, whoever fills them fills them faster than they can be written beforehand.
const HURRY: Duration = Duration::from_secs(2);

/// A database that rows can be filed in without writing them to a journal first.
pub trait Filing: Rows {
    /// Writes rows of one table, if there are any, which come in the order of their keys. They are on the disk, and
    /// visible, on `Ok`.
    ///
    /// # Errors
    /// If the database fails. Any of them may have been written.
    fn file(
        &self,
        table: Table,
        rows: &mut dyn Iterator<Item = (Bytes, Option<Bytes>)>,
    ) -> Result<(), Fault>;

    /// Tells whether it has so much to do already that filing should wait.
    fn is_behind(&self) -> bool;
}

/// A memtable that is not written to any more.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    pub(super) memtable: Arc<Memtable>,
    /// Of its last commit, or of the last one before it.
    pub(super) sequence: u64,
    /// How many its segment has, without what has been there before.
    pub(super) bytes: u64,
}

/// How far the log has been filed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filed {
    /// The last segment.
    pub(super) number: u64,
    /// The last commit in it.
    pub(super) sequence: u64,
}

impl Filed {
    /// Returns what the database says; none if it has never had a log.
    pub(super) fn read(view: &impl View) -> Result<Option<Self>, OpenError> {
        let number = |key, what| {
            let row = view.get(Table::Catalog, key).map_err(OpenError::Fault)?;
            let number = row.map(|record| record::decode_number(key, &record));
            let number = number.transpose();
            number.map_err(|source| OpenError::Damaged { what, source })
        };
        let segment = number(keys::FILED, "the last filed segment")?;
        let sequence = number(keys::FILED_SEQUENCE, "the last filed commit")?;
        Ok(segment.map(|number| Self {
            number,
            sequence: sequence.unwrap_or_default(),
        }))
    }

    pub(super) fn writes(self) -> [Write; 2] {
        self.rows()
            .map(|(key, value)| Write::new(Table::Catalog, key, value))
    }

    fn rows(self) -> [Row; 2] {
        let row = |key: &'static [u8], number| {
            let record = record::encode_number(key, number);
            (Bytes::from_static(key), Some(record))
        };
        [
            row(keys::FILED, self.number),
            row(keys::FILED_SEQUENCE, self.sequence),
        ]
    }
}

impl Frozen {
    fn filed(&self) -> Filed {
        Filed {
            number: self.memtable.number,
            sequence: self.sequence,
        }
    }

    /// Tells whether its segment is worth keeping for the payloads in it that have so many bytes at least.
    fn is_worth_keeping(&self, placed: u64) -> bool {
        let payloads = self.memtable.newest_placed(Table::Payloads, |rows| {
            rows.filter_map(|((_, value), place)| placeable(value.as_ref(), place, placed))
                .map(u64::from)
                .sum::<u64>()
        });
        payloads >= self.bytes / 2
    }

    /// Files it, and then says so. Payloads of so many bytes at least stay where they are, if any may.
    fn file<R: Filing>(&self, beneath: &R, placed: Option<u64>) -> Result<Tally, Fault> {
        let table = |table| {
            self.memtable
                .newest(table, |rows| beneath.file(table, rows))
        };
        table(Table::Deduplication)?;
        let tally = self.file_payloads(beneath, placed)?;
        table(Table::Messages)?;
        let mut catalog: BTreeMap<Bytes, Option<Bytes>> =
            self.memtable.newest(Table::Catalog, |rows| rows.collect());
        catalog.extend(self.filed().rows());
        beneath.file(Table::Catalog, &mut catalog.into_iter())?;
        Ok(tally)
    }

    fn file_payloads<R: Filing>(&self, beneath: &R, placed: Option<u64>) -> Result<Tally, Fault> {
        let segment = self.memtable.number;
        let mut tally = Tally::default();
        let mut filed = |(key, value): Row, at: u32| {
            let length = placed.and_then(|placed| placeable(value.as_ref(), at, placed));
            tally.note(value.is_some());
            let Some(length) = length else {
                return (key, value);
            };
            let place = Place {
                segment,
                at,
                length,
            };
            let record = record::encode_place(&key, place);
            (key, Some(record))
        };
        self.memtable.newest_placed(Table::Payloads, |rows| {
            let mut rows = rows.map(|(row, at)| filed(row, at));
            beneath.file(Table::Payloads, &mut rows)
        })?;
        Ok(tally)
    }

    /// Does the same by an ordinary write, which takes less time than to make tables, if there is little to write.
    fn file_small<R: Rows>(&self, beneath: &R) -> Result<Tally, Fault> {
        let mut tally = Tally::default();
        let mut writes = Vec::new();
        for table in Table::ALL {
            self.memtable.newest(table, |rows| {
                writes.extend(rows.map(|(key, value)| {
                    if table == Table::Payloads {
                        tally.note(value.is_some());
                    }
                    Write::new(table, key, value)
                }));
            });
        }
        writes.extend(self.filed().writes());
        let written = beneath.write(writes, Durability::Fsync);
        written.map_err(Fault::new)?;
        Ok(tally)
    }
}

/// Returns the bytes of a payload that may stay where it is.
fn placeable(value: Option<&Bytes>, place: u32, placed: u64) -> Option<u32> {
    let length = u32::try_from(value?.len()).ok()?;
    (place > 0 && u64::from(length) >= placed).then_some(length)
}

/// What the thread has to do, and what it has done.
#[derive(Debug, Default)]
pub(super) struct Tray {
    /// The oldest first. One that is being filed is still there.
    pub(super) frozen: VecDeque<Frozen>,
    /// The number of a segment that will be needed soon.
    pub(super) wanted: Option<u64>,
    /// That segment.
    pub(super) ready: Option<Segment>,
    /// Whether somebody waits for it.
    pub(super) is_urgent: bool,
    /// Whether there is more to be seen to when nothing is to be filed.
    pub(super) is_untidy: bool,
    /// Why it has given up.
    pub(super) fault: Option<Arc<Fault>>,
    pub(super) is_closing: bool,
}

/// Where the writers and the thread meet.
#[derive(Debug, Default)]
pub(super) struct Desk {
    tray: Mutex<Tray>,
    changed: Condvar,
}

impl Desk {
    pub(super) fn tray(&self) -> MutexGuard<'_, Tray> {
        self.tray.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the tray, and has everybody look at it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Tray) -> T) -> T {
        let changed = change(&mut self.tray());
        self.changed.notify_all();
        changed
    }

    /// Waits until the tray is as asked for.
    pub(super) fn wait_while(&self, is: impl Fn(&mut Tray) -> bool) -> MutexGuard<'_, Tray> {
        let tray = self.changed.wait_while(self.tray(), is);
        tray.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for some milliseconds, or until the tray has changed.
    fn wait_a_little(&self) {
        let tray = self.changed.wait_timeout(self.tray(), PATIENCE);
        drop(tray.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The thread that files.
#[derive(Debug)]
pub(super) struct Filer<R> {
    pub(super) beneath: Arc<R>,
    pub(super) shelf: Arc<Shelf>,
    pub(super) state: Arc<State>,
    pub(super) desk: Arc<Desk>,
    pub(super) keeper: Keeper,
    /// When it has last made a segment.
    pub(super) prepared: Option<Instant>,
}

enum Job {
    Prepare(u64),
    File(Frozen),
    Tidy,
    End,
}

impl<R: Filing> Filer<R> {
    /// Works until the log is closed and everything on the tray is filed, or something fails.
    pub(super) fn run(mut self) {
        // Whoever waits for a thread that has panicked would wait for ever.
        let _obituary = Obituary(Arc::clone(&self.desk));
        loop {
            let done = match self.next() {
                Job::Prepare(number) => self.prepare(number),
                Job::File(frozen) => self.file(&frozen),
                Job::Tidy => self.tidy(|_| {}),
                Job::End => return,
            };
            if let Err(fault) = done {
                self.desk.change(|tray| tray.fault = Some(Arc::new(fault)));
                return;
            }
        }
    }

    fn next(&self) -> Job {
        let mut tray = self.desk.wait_while(|tray| {
            let has_work = !tray.frozen.is_empty() || tray.wanted.is_some() || tray.is_untidy;
            !has_work && !tray.is_closing
        });
        if let Some(number) = tray.wanted.take() {
            return Job::Prepare(number);
        }
        match tray.frozen.front() {
            Some(frozen) => Job::File(frozen.clone()),
            None if tray.is_closing => Job::End,
            None => Job::Tidy,
        }
    }

    fn prepare(&mut self, number: u64) -> Result<(), Fault> {
        let before = self.prepared.replace(Instant::now());
        let has_time = before.is_none_or(|before| before.elapsed() >= HURRY);
        let segment = self.shelf.prepare(number, || {
            has_time && {
                self.desk.wait_a_little();
                let tray = self.desk.tray();
                !tray.is_urgent && !tray.is_closing
            }
        });
        let segment = segment.map_err(Fault::new)?;
        self.desk.change(|tray| tray.ready = Some(segment));
        Ok(())
    }

    fn file(&mut self, frozen: &Frozen) -> Result<(), Fault> {
        while self.beneath.is_behind() {
            self.desk.wait_a_little();
        }
        let number = frozen.memtable.number;
        let placed = self.shelf.placed();
        let is_small = frozen.bytes <= self.shelf.small();
        let keeps = !is_small && frozen.is_worth_keeping(placed);
        if keeps {
            self.shelf.keep(number).map_err(Fault::new)?;
            let mut visible = lock(&self.state);
            let segment = KeptSegment::new(number, frozen.bytes);
            Arc::make_mut(&mut visible.kept).insert(number, segment);
        }
        let tally = if is_small {
            frozen.file_small(&*self.beneath)
        } else {
            frozen.file(&*self.beneath, keeps.then_some(placed))
        };
        self.keeper.note(tally?);
        lock(&self.state)
            .memtables
            .retain(|memtable| !Arc::ptr_eq(memtable, &frozen.memtable));
        if !keeps {
            self.shelf.retire(number).map_err(Fault::new)?;
        }
        self.tidy(|tray| drop(tray.frozen.pop_front()))
    }

    /// Sees whether a kept segment can go, and then changes the tray.
    fn tidy(&mut self, change: impl FnOnce(&mut Tray)) -> Result<(), Fault> {
        let kept = Arc::clone(&lock(&self.state).kept);
        let idle = self.keeper.look(&kept, &self.shelf, &*self.beneath)?;
        drop(kept);
        let mut leaving = Vec::new();
        if !idle.is_empty() {
            let mut visible = lock(&self.state);
            let kept = Arc::make_mut(&mut visible.kept);
            leaving.extend(idle.iter().filter_map(|number| kept.remove(number)));
        }
        self.keeper.let_go(&self.shelf, leaving)?;
        let is_untidy = self.keeper.has_work(&lock(&self.state).kept);
        self.desk.change(|tray| {
            tray.is_untidy = is_untidy;
            change(tray);
        });
        Ok(())
    }
}

/// Tells the writers that the thread has ended.
struct Obituary(Arc<Desk>);

impl Drop for Obituary {
    fn drop(&mut self) {
        self.0.change(|tray| {
            let fault = &mut tray.fault;
            fault.get_or_insert_with(|| Arc::new(Fault::new("the log is not filed any more")));
        });
    }
}
