//! One engine for all embedded databases: the meaning of rows, ownership of queues, and sweeping.
//!
//! # Locks
//! Every write of readable rows locks the *catalogue state*, from the check of the fence until the write is done. So a claim
//! waits for commits in progress, and none of them can come after it. Records are encoded before the lock is taken. Reads
//! take no lock: they check the fence, read a view of one moment, and use the generation that was current when they began.
//! Only the sweep locks the *sweeper*.
//!
//! # What always holds
//! - A row of a message exists only in a generation up to the queue's present one, and is read only in that one.
//! - A leftover row names each older generation and each deleted queue until its rows are swept.
//! - The numbers of the catalogue state equal those of the catalogue, or writes are no longer taken.

mod catalog;
mod commit;
mod shard;
mod sweep;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::record::{self, DecodeError};
use crate::rows::{Rows, Table, View, WriteError, WriteSet};
use crate::sync;
use crate::{
    CommitError, Durability, EngineError, Epoch, Fault, Generation, OpenError, QueueId, ReadError,
    Rejected, Version, keys,
};

pub use shard::EmbeddedShard;

/// The schema that this version reads and writes. Those before it were never published.
const SCHEMA: u64 = 3;

/// A store on an embedded database. A clone is the same store.
pub struct Embedded<R: Rows>(Arc<Core<R>>);

struct Core<R> {
    rows: R,
    durability: Durability,
    poisoned: AtomicBool,
    catalog: Mutex<CatalogState>,
    sweeper: Mutex<sweep::Sweeper>,
}

/// The owners of queues, and the next numbers.
struct CatalogState {
    /// The greatest epoch in use.
    epoch: Epoch,
    next_queue: u64,
    revision: u64,
    /// The queues that have been claimed since the store was opened.
    owners: HashMap<QueueId, Arc<Ownership>>,
}

/// The present owner of a queue. Written under the lock of the catalogue state, read without it.
struct Ownership {
    /// Zero, which is no epoch, once the queue is deleted.
    epoch: AtomicU32,
    generation: AtomicU32,
    /// No id from this one on has ever been put.
    next_id: AtomicU64,
}

impl Ownership {
    fn is_of(&self, epoch: Epoch) -> bool {
        self.epoch.load(Ordering::Acquire) == epoch.get()
    }

    fn generation(&self) -> Generation {
        Generation::new(self.generation.load(Ordering::Acquire))
    }
}

impl<R: Rows> Clone for Embedded<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Rows> fmt::Debug for Embedded<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded")
            .field("durability", &self.0.durability)
            .field("poisoned", &self.0.poisoned)
            .finish_non_exhaustive()
    }
}

impl<R: Rows> Embedded<R> {
    /// Opens the store in these rows, or creates it if there are none, and begins an epoch.
    pub(crate) fn start(rows: R, durability: Durability) -> Result<Self, OpenError> {
        let header = StoreHeader::read(&rows.view())?;
        let catalog = CatalogState {
            epoch: header.epoch,
            next_queue: header.next_queue,
            revision: header.revision,
            owners: HashMap::new(),
        };
        let numbers = [
            (keys::SCHEMA, SCHEMA),
            (keys::EPOCH, u64::from(catalog.epoch.get())),
            (keys::NEXT_QUEUE, catalog.next_queue),
            (keys::REVISION, catalog.revision),
        ];
        let mut writes = rows.write_set();
        for (key, number) in numbers {
            set_number(&mut writes, key, number);
        }
        let written = rows.write(writes, durability);
        written.map_err(|error| OpenError::Fault(Fault::new(error)))?;
        Ok(Self(Arc::new(Core {
            rows,
            durability,
            poisoned: AtomicBool::new(false),
            catalog: Mutex::new(catalog),
            sweeper: Mutex::default(),
        })))
    }
}

/// Epochs, and ids of queues and versions, that a repair leaves out.
const EPOCHS_SKIPPED: u32 = 1_000;
const NUMBERS_SKIPPED: u64 = 1_000_000;

impl<R: Rows> Embedded<R> {
    /// Returns the rows themselves.
    pub(crate) fn rows(&self) -> &R {
        &self.0.rows
    }

    /// Leaves numbers out that lost commits may have given: rows of theirs may be in the tables nevertheless, and clients may
    /// know ids of lost messages. Takes effect at the next opening.
    pub(crate) fn skip_numbers(&self) -> Result<(), OpenError> {
        let (epoch, next_queue, revision) = {
            let catalog = self.0.catalog();
            (catalog.epoch, catalog.next_queue, catalog.revision)
        };
        let epoch = epoch.get().checked_add(EPOCHS_SKIPPED).and_then(Epoch::new);
        let epoch = u64::from(epoch.ok_or(OpenError::Exhausted)?.get());
        let numbers = [
            (keys::EPOCH, epoch),
            (keys::NEXT_QUEUE, next_queue.saturating_add(NUMBERS_SKIPPED)),
            (keys::REVISION, revision.saturating_add(NUMBERS_SKIPPED)),
        ];
        let mut writes = self.0.rows.write_set();
        for (key, number) in numbers {
            set_number(&mut writes, key, number);
        }
        let written = self.0.write(writes);
        written.map_err(|error| OpenError::Fault(Fault::new(error)))
    }
}

/// Refuses a database that is not a store, before anything is written to it.
///
/// A store with a log may lack any row: the row that names the schema may still be in the log.
pub(crate) fn recognise(view: &impl View) -> Result<(), OpenError> {
    let has = |key| {
        let row = view.get(Table::Catalog, key).map_err(OpenError::Fault)?;
        Ok::<_, OpenError>(row.is_some())
    };
    if has(keys::FLUSHED_SEGMENT)? && !has(keys::SCHEMA)? {
        return Ok(());
    }
    StoreHeader::read(view).map(drop)
}

/// The rows that describe a store.
struct StoreHeader {
    epoch: Epoch,
    next_queue: u64,
    revision: u64,
}

impl StoreHeader {
    fn read(view: &impl View) -> Result<Self, OpenError> {
        let number = |key, what| {
            let row = view.get(Table::Catalog, key).map_err(OpenError::Fault)?;
            let record = row.ok_or(OpenError::Damaged {
                what,
                source: DecodeError::Missing,
            })?;
            record::decode_number(key, &record)
                .map_err(|source| OpenError::Damaged { what, source })
        };
        if view
            .get(Table::Catalog, keys::SCHEMA)
            .map_err(OpenError::Fault)?
            .is_none()
        {
            return Self::nothing(view);
        }
        match number(keys::SCHEMA, "the schema")? {
            SCHEMA => {}
            found if found < SCHEMA => {
                return Err(OpenError::Older {
                    found,
                    supported: SCHEMA,
                });
            }
            found => {
                return Err(OpenError::Newer {
                    found,
                    supported: SCHEMA,
                });
            }
        }
        let epoch = number(keys::EPOCH, "the epoch")?;
        let last = u32::try_from(epoch).ok().and_then(Epoch::new);
        let last = last.ok_or(OpenError::Damaged {
            what: "the epoch",
            source: DecodeError::OutOfRange("epoch"),
        })?;
        Ok(Self {
            epoch: last.next().ok_or(OpenError::Exhausted)?,
            next_queue: number(keys::NEXT_QUEUE, "the next queue's id")?,
            revision: number(keys::REVISION, "the revision")?,
        })
    }

    /// There is no schema row, so there must be no other row.
    fn nothing(view: &impl View) -> Result<Self, OpenError> {
        for table in Table::ALL {
            for row in view.range(table, &[], &[u8::MAX]) {
                let (key, _) = row.map_err(OpenError::Fault)?;
                // The flush mark is written before the schema.
                if ![keys::FLUSHED_SEGMENT, keys::FLUSHED_SEQUENCE].contains(&&key[..]) {
                    return Err(OpenError::Unrecognised);
                }
            }
        }
        Ok(Self {
            epoch: Epoch::FIRST,
            next_queue: 1,
            revision: 0,
        })
    }
}

impl CatalogState {
    /// Returns the version of the next change.
    fn next_version(&self) -> Result<Version, EngineError> {
        let next = self.revision.checked_add(1);
        next.map(Version::new)
            .ok_or(EngineError::Exhausted("versions"))
    }
}

impl<R: Rows> Core<R> {
    /// Locks the catalogue state. A thread that panicked under the lock has not changed it yet.
    fn catalog(&self) -> MutexGuard<'_, CatalogState> {
        sync::lock(&self.catalog)
    }

    /// Writes rows durably, unless an earlier write has failed.
    fn write(&self, writes: WriteSet) -> Result<(), WriteError> {
        self.stage(writes)?;
        self.settle()
    }

    /// Stages rows, unless an earlier write has failed.
    fn stage(&self, writes: WriteSet) -> Result<(), WriteError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(WriteError::Poisoned);
        }
        let staged = self.rows.stage(writes, self.durability);
        staged.inspect_err(|error| self.note(error))
    }

    /// Makes the staged rows durable and visible.
    fn settle(&self) -> Result<(), WriteError> {
        self.rows.settle().inspect_err(|error| self.note(error))
    }

    fn note(&self, error: &WriteError) {
        match error {
            WriteError::Superseded => {}
            WriteError::Poisoned | WriteError::Unknown(_) => {
                self.poisoned.store(true, Ordering::Release);
            }
        }
    }
}

/// Returns what a failed write means to a caller that named no queue.
fn commit_error(error: WriteError) -> CommitError {
    match error {
        WriteError::Superseded => Rejected::Superseded.into(),
        WriteError::Poisoned => Rejected::Poisoned.into(),
        WriteError::Unknown(fault) => CommitError::Unknown(fault),
    }
}

fn set_number(writes: &mut WriteSet, key: &[u8], number: u64) {
    writes.set_with(Table::Catalog, key, |bytes| {
        record::encode_number(bytes, key, number);
    });
}

/// Reads a number of the catalogue; none if there is no such row.
fn number(view: &impl View, key: &[u8], what: &str) -> Result<Option<u64>, ReadError> {
    let Some(record) = view.get(Table::Catalog, key)? else {
        return Ok(None);
    };
    let number = record::decode_number(key, &record);
    number.map(Some).map_err(|source| ReadError::Damaged {
        what: what.to_owned(),
        source,
    })
}

/// Reads a queue's generation; the first if it has never been purged.
fn generation(view: &impl View, queue: QueueId) -> Result<Generation, ReadError> {
    let what = format!("the generation of queue {queue}");
    let number = number(view, &keys::generation(queue), &what)?;
    let generation = u32::try_from(number.unwrap_or_default());
    generation
        .map(Generation::new)
        .map_err(|_| ReadError::Damaged {
            what,
            source: DecodeError::OutOfRange("generation"),
        })
}
