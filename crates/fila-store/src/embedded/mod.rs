//! One engine for all embedded databases: what rows mean, who may write them, and how they are swept.
//!
//! # Who locks what
//! The *ledger* is locked by everything that writes what may be read, from the check of the fence until the write is
//! done; so a claim waits for the commits under way, and none of them can come after it. Records are encoded before
//! it is taken. Reads take no lock: they check the fence, look at a view of one moment, and use the generation that
//! was current when they began. The *broom* is locked by the sweep alone.
//!
//! # What always holds
//! - A row of a message exists only in a generation up to the queue's present one, and is read only in that one.
//! - A generation before the present one, and a deleted queue, is named by a leftover row until it is empty.
//! - The ledger's numbers are those of the catalogue, or writes are no longer taken.

mod catalog;
mod commit;
mod shard;
mod sweep;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::record::{self, DecodeError};
use crate::rows::{Rows, Table, View, Write, WriteError};
use crate::{
    CommitError, Durability, EngineError, Epoch, Fault, Generation, OpenError, QueueId, ReadError,
    Rejected, Version, keys,
};

pub use shard::EmbeddedShard;

/// The newest schema that is known here, and the one that is written.
const SCHEMA: u64 = 3;

/// The oldest one that can be read. It has no log.
const SCHEMA_MIN: u64 = 1;

/// A store on an embedded database. A clone is the same store.
pub struct Embedded<R: Rows>(Arc<Core<R>>);

struct Core<R> {
    rows: R,
    durability: Durability,
    poisoned: AtomicBool,
    ledger: Mutex<Ledger>,
    broom: Mutex<sweep::Broom>,
}

/// Who owns what, and which numbers come next.
struct Ledger {
    /// The greatest epoch given.
    epoch: Epoch,
    next_queue: u64,
    revision: u64,
    /// The queues that have been claimed since the store was opened.
    reigns: HashMap<QueueId, Arc<Reign>>,
}

/// Who owns a queue now. Written under the ledger's lock, read without it.
struct Reign {
    /// Zero when the queue is deleted, which is nobody's epoch.
    epoch: AtomicU32,
    generation: AtomicU32,
    /// The least id such that it and all greater ones have never been put.
    next_id: AtomicU64,
}

impl Reign {
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
    /// Starts a store on these rows: creates it if there are none, refuses what it does not know, and begins an epoch.
    pub(crate) fn start(rows: R, durability: Durability) -> Result<Self, OpenError> {
        let found = Found::read(&rows.view())?;
        let ledger = Ledger {
            epoch: found.epoch,
            next_queue: found.next_queue,
            revision: found.revision,
            reigns: HashMap::new(),
        };
        let numbers = [
            (keys::SCHEMA, SCHEMA),
            (keys::EPOCH, u64::from(ledger.epoch.get())),
            (keys::NEXT_QUEUE, ledger.next_queue),
            (keys::REVISION, ledger.revision),
        ];
        let writes = numbers.map(|(key, number)| set_number(key.to_vec(), number));
        let written = rows.write(writes.into(), durability);
        written.map_err(|error| OpenError::Fault(Fault::new(error)))?;
        Ok(Self(Arc::new(Core {
            rows,
            durability,
            poisoned: AtomicBool::new(false),
            ledger: Mutex::new(ledger),
            broom: Mutex::default(),
        })))
    }

    /// Refuses rows that are not a store's, before anything is written beside them.
    ///
    /// Of a store with a log they may be any part of what it will say: what it is may be in the log still.
    pub(crate) fn recognise(rows: &R) -> Result<(), OpenError> {
        let view = rows.view();
        let has = |key| {
            let row = view.get(Table::Catalog, key).map_err(OpenError::Fault)?;
            Ok(row.is_some())
        };
        if has(keys::FILED)? && !has(keys::SCHEMA)? {
            return Ok(());
        }
        Found::read(&view).map(drop)
    }

    pub(crate) fn rows(&self) -> &R {
        &self.0.rows
    }
}

/// What a store says of itself when it is opened.
struct Found {
    epoch: Epoch,
    next_queue: u64,
    revision: u64,
}

impl Found {
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
            SCHEMA_MIN..=SCHEMA => {}
            0 => return Err(OpenError::Unrecognised),
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

    /// There is no schema, so there must not be anything else.
    fn nothing(view: &impl View) -> Result<Self, OpenError> {
        for table in Table::ALL {
            for row in view.range(table, &[], &[u8::MAX]) {
                let (key, _) = row.map_err(OpenError::Fault)?;
                // A log is put before a database before it says what it is.
                if ![keys::FILED, keys::FILED_SEQUENCE].contains(&&key[..]) {
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

impl Ledger {
    /// Returns the version that the next change is to have.
    fn next_version(&self) -> Result<Version, EngineError> {
        let next = self.revision.checked_add(1);
        next.map(Version::new)
            .ok_or(EngineError::Exhausted("versions"))
    }
}

impl<R: Rows> Core<R> {
    /// Locks the ledger. A thread that panicked under the lock has left it as it was before its write.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes rows, unless a write has failed before.
    fn write(&self, writes: Vec<Write>, durability: Durability) -> Result<(), WriteError> {
        self.unless_poisoned(|rows| rows.write(writes, durability))
    }

    /// Stages rows, unless a write has failed before.
    fn stage(&self, writes: Vec<Write>) -> Result<(), WriteError> {
        self.unless_poisoned(|rows| rows.stage(writes, self.durability))
    }

    fn unless_poisoned(
        &self,
        write: impl FnOnce(&R) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(WriteError::Poisoned);
        }
        self.noted(write(&self.rows))
    }

    /// Takes note of a write that has failed.
    fn noted(&self, written: Result<(), WriteError>) -> Result<(), WriteError> {
        written.inspect_err(|error| match error {
            WriteError::Superseded => {}
            WriteError::Poisoned | WriteError::Unknown(_) => {
                self.poisoned.store(true, Ordering::Release);
            }
        })
    }
}

/// What a failed write means for whoever asked for it on behalf of no queue.
fn refused(error: WriteError) -> CommitError {
    match error {
        WriteError::Superseded => Rejected::Superseded.into(),
        WriteError::Poisoned => Rejected::Poisoned.into(),
        WriteError::Unknown(fault) => CommitError::Unknown(fault),
    }
}

fn set(table: Table, key: Vec<u8>, value: Bytes) -> Write {
    Write::new(table, key, Some(value))
}

fn set_number(key: Vec<u8>, number: u64) -> Write {
    let record = record::encode_number(&key, number);
    set(Table::Catalog, key, record)
}

fn unset(table: Table, key: impl Into<Bytes>) -> Write {
    Write::new(table, key, None)
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
