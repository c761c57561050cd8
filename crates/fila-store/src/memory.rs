//! Rows in memory: the engine for tests and caches, and the reference for the others.
//!
//! A [`MemoryDisk`] outlives the engines that are opened on it, so tests can restart a broker, fence an old owner, and make a
//! write fail.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};

use bytes::Bytes;

use crate::rows::{Figures, Rows, Table, View, Write, WriteError, WriteSet};
use crate::sync;
use crate::{Durability, Embedded, Fault, OpenError};

/// A store in memory, in the same format as those on disk.
pub type MemoryEngine = Embedded<MemoryRows>;

impl MemoryEngine {
    /// Opens a store on this disk, and fences the engine that had it open.
    ///
    /// # Errors
    /// If its rows cannot be read.
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

/// The rows that stay when an engine in memory is closed. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Disk>);

#[derive(Debug, Default)]
struct Disk {
    tables: RwLock<MemoryTables>,
    /// Only the engine that was opened last may write.
    openings: AtomicU64,
    accident: Mutex<Option<Accident>>,
    is_full: AtomicBool,
}

/// The real outcome of a write that reports an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    /// It is on the disk.
    Stored,
    /// It is not on the disk.
    Lost,
}

impl MemoryDisk {
    /// Lets the next write fail, like a sync that reports an error.
    pub fn fail_next_write(&self, accident: Accident) {
        *sync::lock(&self.0.accident) = Some(accident);
    }

    /// Lets the disk count as full, or no longer.
    pub fn set_full(&self, is_full: bool) {
        self.0.is_full.store(is_full, Ordering::SeqCst);
    }
}

/// The rows of a [`MemoryDisk`], opened by one engine.
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
        MemoryView(sync::read(&self.disk.0.tables))
    }

    fn write(&self, writes: WriteSet, _: Durability) -> Result<(), WriteError> {
        let mut tables = sync::write(&self.disk.0.tables);
        // Checked under the lock, so that no write of an older engine follows one of a newer engine.
        if self.disk.0.openings.load(Ordering::SeqCst) != self.opening {
            return Err(WriteError::Superseded);
        }
        if self.poisoned.load(Ordering::SeqCst) {
            return Err(WriteError::Poisoned);
        }
        let accident = sync::lock(&self.disk.0.accident).take();
        if accident != Some(Accident::Lost) {
            tables.apply(&writes);
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

    fn has_room(&self) -> bool {
        !self.disk.0.is_full.load(Ordering::SeqCst)
    }

    fn figures(&self) -> Result<Figures, Fault> {
        Ok(Figures {
            bytes: self.view().0.bytes,
            journals: 0,
        })
    }
}

#[derive(Debug, Default)]
struct MemoryTables {
    tables: [BTreeMap<Bytes, Bytes>; Table::ALL.len()],
    /// Bytes of all keys and values.
    bytes: u64,
}

impl MemoryTables {
    fn apply(&mut self, writes: &WriteSet) {
        for Write {
            table, key, value, ..
        } in writes.iter()
        {
            let length = key.len();
            let table = &mut self.tables[table as usize];
            let replaced = match value {
                Some(value) => {
                    self.bytes += (length + value.len()) as u64;
                    table.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))
                }
                None => table.remove(key),
            };
            if let Some(replaced) = replaced {
                self.bytes -= (length + replaced.len()) as u64;
            }
        }
    }
}

/// The rows at one moment: writers wait while it exists.
#[derive(Debug)]
pub struct MemoryView<'a>(RwLockReadGuard<'a, MemoryTables>);

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
        // A range that ends before it begins is empty here; the map would panic.
        let rows = (from < to).then(|| self.0.tables[table as usize].range::<[u8], _>(bounds));
        rows.into_iter()
            .flatten()
            .map(|(key, value)| Ok((key.clone(), value.clone())))
    }
}
