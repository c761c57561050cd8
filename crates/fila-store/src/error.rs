//! The errors of the store, grouped by how the caller can react.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use crate::record::DecodeError;
use crate::{Batch, Generation, OutOfRange, QueueId, QueueName, StoreDamage, Version};

/// An error of the database or of the disk.
pub struct Fault(Box<dyn Error + Send + Sync>);

impl Fault {
    /// Wraps an error of the database or of the disk.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(source.into())
    }

    /// Returns the damage that it reports, or itself if it reports none.
    pub(crate) fn into_damage(self) -> Result<StoreDamage, Self> {
        let damage = self.0.downcast::<StoreDamage>();
        damage.map(|damage| *damage).map_err(Self)
    }

    /// Returns whether it says that the disk is full.
    pub(crate) fn is_full(&self) -> bool {
        let error = self.0.downcast_ref::<std::io::Error>();
        error.is_some_and(crate::directory::is_full)
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
    /// A later version of this crate wrote it.
    #[error(
        "stored format {found} is newer than {supported}, the newest known here; start the version that wrote it, or restore a copy"
    )]
    Newer {
        /// The format version of the store.
        found: u64,
        /// The newest format version that this crate reads.
        supported: u64,
    },
    /// A development version wrote the store, before the first release.
    #[error(
        "stored format {found} is older than {supported}, the oldest known here; move its messages with the version that \
         wrote it"
    )]
    Older {
        /// The format version on disk.
        found: u64,
        /// The oldest format version that this crate reads.
        supported: u64,
    },
    /// The directory holds data that this crate did not write.
    #[error("there is data without a format version; give the store a directory of its own")]
    Unrecognised,
    /// A row that describes the store cannot be read.
    #[error("{what} cannot be read; restore a copy")]
    Damaged {
        /// Which row.
        what: &'static str,
        /// How it is damaged.
        source: DecodeError,
    },
    /// A file of the store is missing or damaged, and confirmed data with it.
    #[error(transparent)]
    Damage(#[from] StoreDamage),
    /// A folder of the store contains a file that is not part of it.
    #[error("`{}` is not a file of the store; move it elsewhere", .0.display())]
    Foreign(PathBuf),
    /// The disk is full, and the room that the store keeps for acknowledgements is used up.
    #[error(
        "the disk of `{}` is full; free {} MiB of it, then start again: messages that are acknowledged then make room", path.display(), bytes.div_ceil(1 << 20)
    )]
    Full {
        /// The directory of the log.
        path: PathBuf,
        /// How many bytes are needed.
        bytes: u64,
    },
    /// It has been opened sixteen million times, and message ids have no room for more epochs.
    #[error("all epochs are used up; move the messages to a new store")]
    Exhausted,
    /// The database did not open.
    #[error(transparent)]
    Fault(Fault),
}

/// Why a commit was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Nothing happened, and no retry can succeed: the queue has another owner, or it was deleted.
    #[error("queue {queue} is no longer ours; stop serving it")]
    Fenced {
        /// Which queue; the others of the same commit can be committed without it.
        queue: QueueId,
    },
    /// The commit may have happened or not. The store takes no more writes. After the caller has opened it again, it can
    /// repeat the same commit, before any other; the commit then happens once.
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
    /// An earlier write has failed, and the state of the disk is unknown.
    #[error("a write has failed, so no more are taken; check the disk, then open the store again")]
    Poisoned,
    /// Another engine has opened the store since.
    #[error("the store has been opened by somebody else; stop serving")]
    Superseded,
    /// The batches are too large for one commit.
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
    /// The queue has another owner, or it was deleted.
    #[error("queue {queue} is no longer ours; stop serving it")]
    Fenced {
        /// Which queue.
        queue: QueueId,
    },
    /// A record is damaged, and the answer would be wrong without it.
    #[error("{what} cannot be read; restore a copy")]
    Damaged {
        /// Which record.
        what: String,
        /// How it is damaged.
        source: DecodeError,
    },
    /// The database failed.
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
    /// All numbers of one kind are used up.
    #[error("all {0} are used up; move to a new store")]
    Exhausted(&'static str),
    /// The present state could not be read.
    #[error("nothing was changed")]
    Read(#[from] ReadError),
    /// The change was not written, or may not have been.
    #[error("the change is not confirmed")]
    Commit(#[from] CommitError),
}
