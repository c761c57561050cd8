//! What becomes of a segment that is full: its rows are filed in the database beneath, by a thread of its own.
//!
//! Segments are filed in order, and with the rows of each goes a note that it is filed, after all else; so a segment
//! that is filed in part is filed again after a crash, and one that is filed whole is never read again. The thread also
//! makes the next segment before it is needed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::memtable::{Memtable, Row};
use super::shelf::{Segment, Shelf};
use super::{State, lock};
use crate::record;
use crate::rows::{Rows, Table, View, Write};
use crate::{Durability, Fault, OpenError, keys};

/// Memtables that wait to be filed, at most. Writers wait when there are so many.
pub(super) const FROZEN_MAX: usize = 4;

/// How often it is looked whether the database has caught up.
const PATIENCE: Duration = Duration::from_millis(5);

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
    /// Whether an ordinary write takes less time than to make tables of it.
    pub(super) is_small: bool,
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

/// Files a memtable, and then says so.
pub(super) fn file<R: Filing>(beneath: &R, frozen: &Frozen) -> Result<(), Fault> {
    let memtable = &frozen.memtable;
    let filed = Filed {
        number: memtable.number,
        sequence: frozen.sequence,
    };
    if frozen.is_small {
        return file_small(beneath, memtable, filed);
    }
    for table in [Table::Deduplication, Table::Payloads, Table::Messages] {
        memtable.newest(table, |rows| beneath.file(table, rows))?;
    }
    let mut catalog: BTreeMap<Bytes, Option<Bytes>> =
        memtable.newest(Table::Catalog, |rows| rows.collect());
    catalog.extend(filed.rows());
    beneath.file(Table::Catalog, &mut catalog.into_iter())
}

fn file_small<R: Rows>(beneath: &R, memtable: &Memtable, filed: Filed) -> Result<(), Fault> {
    let mut writes = Vec::new();
    for table in Table::ALL {
        memtable.newest(table, |rows| {
            writes.extend(rows.map(|(key, value)| Write::new(table, key, value)));
        });
    }
    writes.extend(filed.writes());
    let written = beneath.write(writes, Durability::Fsync);
    written.map_err(Fault::new)
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
}

enum Job {
    Prepare(u64),
    File(Frozen),
    End,
}

impl<R: Filing> Filer<R> {
    /// Works until the log is closed and everything on the tray is filed, or something fails.
    pub(super) fn run(&self) {
        // Whoever waits for a thread that has panicked would wait for ever.
        let _obituary = Obituary(&self.desk);
        loop {
            let done = match self.next() {
                Job::Prepare(number) => self.prepare(number),
                Job::File(frozen) => self.file(&frozen),
                Job::End => return,
            };
            if let Err(fault) = done {
                self.desk.change(|tray| tray.fault = Some(Arc::new(fault)));
                return;
            }
        }
    }

    fn next(&self) -> Job {
        let idle =
            |tray: &mut Tray| tray.frozen.is_empty() && tray.wanted.is_none() && !tray.is_closing;
        let mut tray = self.desk.wait_while(idle);
        if let Some(number) = tray.wanted.take() {
            return Job::Prepare(number);
        }
        tray.frozen.front().cloned().map_or(Job::End, Job::File)
    }

    fn prepare(&self, number: u64) -> Result<(), Fault> {
        let segment = self.shelf.prepare(number, true).map_err(Fault::new)?;
        self.desk.change(|tray| tray.ready = Some(segment));
        Ok(())
    }

    fn file(&self, frozen: &Frozen) -> Result<(), Fault> {
        while self.beneath.is_behind() {
            self.desk.wait_a_little();
        }
        file(&*self.beneath, frozen)?;
        lock(&self.state)
            .memtables
            .retain(|memtable| !Arc::ptr_eq(memtable, &frozen.memtable));
        self.shelf
            .retire(frozen.memtable.number)
            .map_err(Fault::new)?;
        self.desk.change(|tray| tray.frozen.pop_front());
        Ok(())
    }
}

/// Tells the writers that the thread has ended.
struct Obituary<'a>(&'a Desk);

impl Drop for Obituary<'_> {
    fn drop(&mut self) {
        self.0.change(|tray| {
            let fault = &mut tray.fault;
            fault.get_or_insert_with(|| Arc::new(Fault::new("the log is not filed any more")));
        });
    }
}
