#![doc = include_str!("../README.md")]
//!
//! # How it is built
//!
//! ```text
//! Engine, Shard      the broker's interface: queues, messages, commits
//!   └─ Embedded      meaning of rows, ownership of queues, sweeping     record, keys
//!        └─ Rows     ordered rows in four tables, written together
//!             ├─ memory
//!             ├─ Logged    a log and memtables of our own before a database
//!             │    └─ lsm  trees of lsm-tree
//!             └─ rocksdb   with the feature of that name
//! ```
//!
//! A database of ordered rows implements [`rows::Rows`]. Any other one (a SQL database, an object store) would implement
//! [`Engine`] and [`Shard`] itself. All engines pass the same conformance suite.

mod batch;
mod copy;
mod damage;
mod directory;
mod durability;
mod embedded;
mod engine;
mod error;
mod group_weights;
mod history;
mod ids;
mod keys;
mod log;
mod lsm;
mod memory;
mod message;
mod names;
mod options;
mod repair;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sync;
mod timestamp;
mod write_set;

#[doc(hidden)]
pub mod fuzzing;
pub mod record;
pub mod rows;

#[cfg(feature = "rocksdb")]
pub use crate::rocksdb::{RocksEngine, RocksRows, RocksView};
pub use batch::{Batch, Origin, Remembered};
pub use copy::{CopiedRows, CopyError, DiskEngine};
pub use damage::{DamagedPart, StoreDamage, TornLog};
pub use durability::{Durability, UnknownDurability};
pub use embedded::{Embedded, EmbeddedShard};
pub use engine::{
    CONFIG_MAX, ConfigEntry, Cursor, DEFINITION_MAX, Damaged, Engine, Expected, Health, Limit,
    Loaded, Page, Queue, Shard, Swept, Writes,
};
pub use error::{CommitError, EngineError, Fault, OpenError, ReadError, Rejected};
pub use group_weights::GroupWeights;
pub use history::{Death, DeathReason, ErrorText, History};
pub use ids::{Epoch, Generation, MessageId, QueueId, Version};
pub use log::{FlushTarget, Logged, LoggedView};
pub use lsm::{LsmEngine, LsmTables, LsmView};
pub use memory::{Accident, MemoryDisk, MemoryEngine, MemoryRows, MemoryView};
pub use message::{Locator, Meta, Payload, PayloadError, Schedule, Sizes, StoredMessage};
pub use names::{
    ConfigKey, DeduplicationId, FairnessKey, OutOfRange, QueueName, RememberedName, ThrottleKey,
};
pub use options::DiskOptions;
pub use repair::Repaired;
pub use timestamp::Timestamp;
