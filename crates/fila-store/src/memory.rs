//! Rows in memory: the engine for tests and caches, and the one to compare others with.
//!
//! A [`MemoryDisk`] outlives the engines that are opened on it, so that tests can restart a broker, let a new owner
//! fence off an old one, and make a write fail.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;

use crate::rows::{Figures, Rows, Table, View, Write, WriteError};
use crate::{Durability, Embedded, Fault, OpenError};

/// A store in memory. Speaks the same format as those on disk.
pub type MemoryEngine = Embedded<MemoryRows>;

impl MemoryEngine {
    /// Opens a store on this disk. Whoever had it open is fenced.
    ///
    /// # Errors
    /// If what is on it cannot be read.
    pub fn open(disk: &MemoryDisk) -> Result<Self, OpenError> {
        let opening = disk.0.openings.fetch_add(1, Ordering::SeqCst) + 1;
        let rows = MemoryRows {
            disk: disk.clone(),
            opening,
            poisoned: AtomicBool::new(false),
        };
        Self::start(rows, Durability::Memory)
    }
}

/// What stays when an engine in memory is closed. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Disk>);

#[derive(Debug, Default)]
struct Disk {
    tables: RwLock<Tables>,
    /// The last engine to be opened is the one that may write.
    openings: AtomicU64,
    accident: Mutex<Option<Accident>>,
}

/// What becomes of a write that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    /// It is on the disk, though nobody was told.
    Kept,
    /// It never got there.
    Lost,
}

impl MemoryDisk {
    /// Lets the next write fail, like a sync that reports an error.
    pub fn fail_next_write(&self, accident: Accident) {
        *self.accident() = Some(accident);
    }

    fn accident(&self) -> MutexGuard<'_, Option<Accident>> {
        let accident = self.0.accident.lock();
        accident.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rows of a [`MemoryDisk`], as one engine has them.
#[derive(Debug)]
pub struct MemoryRows {
    disk: MemoryDisk,
    opening: u64,
    poisoned: AtomicBool,
}

impl Rows for MemoryRows {
    type View<'a> = MemoryView<'a>;

    fn view(&self) -> MemoryView<'_> {
        // A writer that panicked has at worst left rows of an unconfirmed commit.
        let tables = self.disk.0.tables.read();
        MemoryView(tables.unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, writes: Vec<Write>, _: Durability) -> Result<(), WriteError> {
        let tables = self.disk.0.tables.write();
        let mut tables = tables.unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that no write of an older engine comes after the first of a newer one.
        if self.disk.0.openings.load(Ordering::SeqCst) != self.opening {
            return Err(WriteError::Superseded);
        }
        if self.poisoned.load(Ordering::SeqCst) {
            return Err(WriteError::Poisoned);
        }
        let accident = self.disk.accident().take();
        if accident != Some(Accident::Lost) {
            tables.apply(writes);
        }
        match accident {
            None => Ok(()),
            Some(accident) => {
                self.poisoned.store(true, Ordering::SeqCst);
                let fault = Fault::new(format!("a write was made to fail, and is {accident:?}"));
                Err(WriteError::Unknown(fault))
            }
        }
    }

    fn tend(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn figures(&self) -> Result<Figures, Fault> {
        Ok(Figures {
            bytes: self.view().0.bytes,
            journals: 0,
        })
    }
}

#[derive(Debug, Default)]
struct Tables {
    tables: [BTreeMap<Bytes, Bytes>; Table::ALL.len()],
    /// Of all keys and values.
    bytes: u64,
}

impl Tables {
    fn apply(&mut self, writes: Vec<Write>) {
        for Write {
            table, key, value, ..
        } in writes
        {
            let length = key.len();
            let table = &mut self.tables[table as usize];
            let replaced = match value {
                Some(value) => {
                    self.bytes += (length + value.len()) as u64;
                    table.insert(key, value)
                }
                None => table.remove(&key),
            };
            if let Some(replaced) = replaced {
                self.bytes -= (length + replaced.len()) as u64;
            }
        }
    }
}

/// The rows at one moment: writers wait while it exists.
#[derive(Debug)]
pub struct MemoryView<'a>(RwLockReadGuard<'a, Tables>);

impl View for MemoryView<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(self.0.tables[table as usize].get(key).cloned())
    }

    fn range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), Fault>> {
        let bounds = (Bound::Included(from), Bound::Excluded(to));
        // A range that ends before it begins is empty here; the map would call it a mistake.
        let rows = (from < to).then(|| self.0.tables[table as usize].range::<[u8], _>(bounds));
        rows.into_iter()
            .flatten()
            .map(|(key, value)| Ok((key.clone(), value.clone())))
    }
}
