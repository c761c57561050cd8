//! Why something was not done, by what the caller can do about it.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use crate::record::DecodeError;
use crate::{Batch, Generation, OutOfRange, QueueId, QueueName, Version};

/// What the database or the disk beneath the store said.
pub struct Fault(Box<dyn Error + Send + Sync>);

impl Fault {
    /// Passes on what went wrong beneath.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another engine of this one, has it open.
    #[error("`{}` is in use; stop the other server, or give this one a directory of its own", .0.display())]
    Locked(PathBuf),
    /// It was written by a later version of this crate.
    #[error(
        "stored format {found} is newer than {supported}, the newest known here; start the version that wrote it, or restore a copy"
    )]
    Newer {
        /// What the store says of itself.
        found: u64,
        /// What this version reads.
        supported: u64,
    },
    /// There is something in it, and it is not ours.
    #[error("there is data without a format version; give the store a directory of its own")]
    Unrecognised,
    /// A row that says what the store is cannot be read.
    #[error("{what} cannot be read; restore a copy")]
    Damaged {
        /// Which row.
        what: &'static str,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// What was confirmed cannot be read from the log, and the store would be without it.
    #[error("the log is damaged: `{}` {why}; restore a copy", path.display())]
    DamagedLog {
        /// Which segment.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file that lists the tables of the store is missing or is not what was written.
    #[error("`{}` is damaged; restore a copy", .0.display())]
    DamagedFile(PathBuf),
    /// It has been opened sixteen million times, and message ids have no room for more epochs.
    #[error("all epochs are used up; move the messages to a new store")]
    Exhausted,
    /// The database beneath did not open, or broke while it did.
    #[error("the database was not opened")]
    Fault(#[source] Fault),
}

/// Why a commit was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Nothing happened, nor will it: the queue has another owner, or none because it was deleted.
    #[error("queue {queue} is no longer ours; stop serving it")]
    Fenced {
        /// Which queue; the others of the same commit can be committed without it.
        queue: QueueId,
    },
    /// It may have happened or not. The store takes no more writes; after it has been opened again the same
    /// commit can be repeated, before any other, and happens once.
    #[error(
        "it is unknown whether the commit is stored; open the store again, then repeat the commit"
    )]
    Unknown(#[source] Fault),
    /// Nothing happened: a message that was to move could not be read.
    #[error("a message that was to move could not be read; check the disk")]
    Unreadable(#[source] Fault),
    /// Nothing happened.
    #[error("the commit was refused")]
    Rejected(#[from] Rejected),
}

/// Why a commit was refused before anything was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// An earlier write has failed, and what it has left on the disk is not known.
    #[error("a write has failed, so no more are taken; check the disk, then open the store again")]
    Poisoned,
    /// Another engine has opened the store since.
    #[error("the store has been opened by somebody else; stop serving")]
    Superseded,
    /// The batches of one commit are too much for it.
    #[error(
        "{operations} operations with {bytes} bytes in one commit; at most {} and {} are taken",
        Batch::OPERATIONS_MAX,
        Batch::BYTES_MAX
    )]
    TooLarge {
        /// Operations in all batches.
        operations: usize,
        /// Bytes of payload in all batches.
        bytes: usize,
    },
    /// A purge names a generation that is not the next one.
    #[error("queue {queue} is in generation {present} and cannot be purged to {to}")]
    Generation {
        /// Which queue.
        queue: QueueId,
        /// Its generation.
        present: Generation,
        /// The one that was asked for.
        to: Generation,
    },
    /// Two batches of one commit are for the same queue.
    #[error("queue {0} has two batches in one commit; put them into one")]
    Twice(QueueId),
    /// A shard was claimed from another engine.
    #[error("queue {0} was claimed from another engine; commit to that one")]
    Foreign(QueueId),
}

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The queue has another owner, or none because it was deleted.
    #[error("queue {queue} is no longer ours; stop serving it")]
    Fenced {
        /// Which queue.
        queue: QueueId,
    },
    /// A record without which the answer would be wrong.
    #[error("{what} cannot be read; restore a copy")]
    Damaged {
        /// Which record.
        what: String,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The database beneath failed.
    #[error("reading from the database failed")]
    Fault(#[from] Fault),
}

/// Why the catalogue of queues, the runtime configuration or the leftovers were not changed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is a queue of this name.
    #[error("queue `{0}` exists; choose another name, or update it")]
    AlreadyExists(QueueName),
    /// There is no such queue, or no longer.
    #[error("there is no queue {0}; it may have been deleted")]
    UnknownQueue(QueueId),
    /// It is not in the state that the caller expected.
    #[error("it has changed in the meantime; read it again and decide anew")]
    Conflict {
        /// The version it has; none if it does not exist.
        found: Option<Version>,
    },
    /// A definition or a value is too large.
    #[error("the value was refused")]
    OutOfRange(#[from] OutOfRange),
    /// There are no more numbers to give.
    #[error("all {0} are used up; move to a new store")]
    Exhausted(&'static str),
    /// What was there could not be read.
    #[error("nothing was changed")]
    Read(#[from] ReadError),
    /// The change was not written, or may not have been.
    #[error("the change is not confirmed")]
    Commit(#[from] CommitError),
}
