//! The interface between the broker and durable storage.
//!
//! The interface is in terms of queues and messages, not of keys and bytes, so that an embedded database, a SQL
//! database and an object store can all implement it.

use std::any::Any;

use bytes::Bytes;

use crate::record::DecodeError;
use crate::{
    Batch, CommitError, ConfigKey, Durability, EngineError, Epoch, FairnessKey, Generation,
    Locator, MessageId, Payload, QueueId, QueueName, ReadError, Remembered, RememberedName,
    StoredMessage, Timestamp, TornLog, Version, keys,
};

/// A store of queues: their definitions, the runtime configuration, and the owner of each queue.
///
/// All calls block, and none needs an async runtime: the server calls from threads of its own. Any thread may call. The
/// engine applies the commits of several threads one after the other. A queue's messages are in order because its only
/// owner commits them in order.
///
/// # Group commit
/// [`commit`](Self::commit) takes the batches of any number of queues and stores them with a single sync. A scheduler
/// thread fills one batch per queue, hands all of them to its commit thread, and goes on filling the next ones while
/// the first are being synced; replies go out when `commit` returns. A [`Batch`] is owned data and may cross threads.
///
/// # Retrying
/// A commit names its messages by ids and its purges by generations, so the caller may repeat it. A message that is put,
/// deleted or adopted a second time does not change, even if the origin of an adopted message is gone. A second purge to
/// the present generation changes nothing. This holds for the *last* commit of a queue. A repeated older commit would
/// bring back messages that a later commit has deleted.
pub trait Engine: Send + Sync + 'static {
    /// The durable side of one owned queue.
    type Shard: Shard;

    /// Creates a queue. The engine does not interpret the definition.
    ///
    /// If the outcome is [unknown](CommitError::Unknown), open the store again and look the queue up [by its
    /// name](Self::queue). The same applies to the other changes of the catalogue.
    ///
    /// # Errors
    /// [`EngineError::AlreadyExists`] if the name is taken; if the definition is larger than
    /// [`DEFINITION_MAX`]; if it could not be written.
    fn create_queue(&self, name: &QueueName, definition: Bytes) -> Result<Queue, EngineError>;

    /// Replaces a queue's definition, if it is still the expected one, and returns its new version.
    ///
    /// # Errors
    /// [`EngineError::Conflict`] if it is not; [`EngineError::UnknownQueue`]; if it could not be written.
    fn update_queue(
        &self,
        queue: QueueId,
        expected: Expected,
        definition: Bytes,
    ) -> Result<Version, EngineError>;

    /// Deletes a queue and its messages, in constant time, and fences its shard. [`sweep`](Self::sweep) frees the space.
    ///
    /// # Errors
    /// [`EngineError::UnknownQueue`]; if it could not be written.
    fn delete_queue(&self, queue: QueueId) -> Result<(), EngineError> {
        self.delete_queues(&[queue])
    }

    /// Deletes several queues, all of them or none: for example a queue together with its dead letter queue.
    ///
    /// # Errors
    /// [`EngineError::UnknownQueue`] if one of them does not exist; if it could not be written.
    fn delete_queues(&self, queues: &[QueueId]) -> Result<(), EngineError>;

    /// Returns the queue of this name.
    ///
    /// # Errors
    /// If it cannot be read.
    fn queue(&self, name: &QueueName) -> Result<Option<Queue>, ReadError>;

    /// Returns all queues, in the order of their creation.
    ///
    /// # Errors
    /// If one cannot be read: a broker that starts without one of its queues would refuse its messages.
    fn queues(&self) -> Result<Vec<Queue>, ReadError>;

    /// Becomes the owner of a queue, in a new epoch, and fences the previous owner.
    ///
    /// # Errors
    /// [`EngineError::UnknownQueue`]; if the epoch could not be written.
    fn claim(&self, queue: QueueId) -> Result<Self::Shard, EngineError>;

    /// Applies one batch to each of several queues: all or nothing, and durable, at the engine's level, on `Ok`.
    ///
    /// # Errors
    /// See [`CommitError`]. If one queue is fenced, the commit does not change the others either.
    fn commit(&self, batches: &[(&Self::Shard, &Batch)]) -> Result<(), CommitError> {
        self.stage(batches)?;
        self.settle()
    }

    /// The first half of a [commit](Self::commit): takes the batches. The next [`settle`](Self::settle) makes them durable
    /// and visible, in the order in which commits were staged. If the process crashes before that, a commit survives only
    /// if all commits staged before it survive.
    ///
    /// # Errors
    /// As of [`commit`](Self::commit).
    fn stage(&self, batches: &[(&Self::Shard, &Batch)]) -> Result<(), CommitError>;

    /// The second half: returns when all commits staged before the call are durable, at the engine's level, and visible.
    /// Other threads can stage more commits meanwhile; the next call settles all of those together.
    ///
    /// # Errors
    /// [`CommitError::Unknown`]: each staged commit may have happened or not.
    fn settle(&self) -> Result<(), CommitError>;

    /// Sets an entry of the runtime configuration, if it is in the expected state, and returns its new version.
    ///
    /// # Errors
    /// [`EngineError::Conflict`] if it is not; if the value is larger than [`CONFIG_MAX`]; if it could not be
    /// written.
    fn set_config(
        &self,
        key: &ConfigKey,
        expected: Expected,
        value: Bytes,
    ) -> Result<Version, EngineError>;

    /// Removes an entry, if it is in the expected state. With [`Expected::Any`], the entry need not exist.
    ///
    /// # Errors
    /// [`EngineError::Conflict`] if it is not; if the removal could not be written.
    fn remove_config(&self, key: &ConfigKey, expected: Expected) -> Result<(), EngineError>;

    /// Returns the entry of this key.
    ///
    /// # Errors
    /// If it cannot be read.
    fn config(&self, key: &ConfigKey) -> Result<Option<ConfigEntry>, ReadError>;

    /// Returns all entries whose keys begin with `prefix`, in the order of their keys.
    ///
    /// # Errors
    /// If one cannot be read.
    fn configs(&self, prefix: &str) -> Result<Vec<ConfigEntry>, ReadError>;

    /// Removes up to `budget` rows that purges, deletions and expired deduplication ids have left behind, or one more where
    /// two belong together, and lets the database do its maintenance.
    ///
    /// Call it from time to time, and again at once while there is [more](Swept::more).
    ///
    /// # Errors
    /// If something could not be read or written. A sweep can be repeated.
    fn sweep(&self, now: Timestamp, budget: usize) -> Result<Swept, EngineError>;

    /// Returns whether the engine takes commits. Takes a moment only, so that a caller can ask before each commit.
    fn writes(&self) -> Writes {
        Writes::Taken
    }

    /// Returns whether a commit may have to wait because the engine is behind with its own work. Takes a moment only.
    fn may_wait(&self) -> bool {
        false
    }

    /// Returns the state of the engine.
    ///
    /// # Errors
    /// If the database cannot say.
    fn health(&self) -> Result<Health, ReadError>;
}

/// The durable side of one owned queue, in one epoch.
pub trait Shard: Any + Send + Sync {
    /// Returns the queue.
    fn queue(&self) -> QueueId;

    /// Returns the epoch. The owner makes the ids of its messages from it.
    fn epoch(&self) -> Epoch;

    /// Returns how often the queue has been purged.
    fn generation(&self) -> Generation;

    /// Applies a batch: all or nothing, and durable, at the engine's level, on `Ok`.
    ///
    /// # Errors
    /// See [`CommitError`].
    fn commit(&self, batch: &Batch) -> Result<(), CommitError>;

    /// Returns the payloads of these messages, in this order.
    ///
    /// # Errors
    /// If the queue has another owner, or the database fails. A damaged record is not an error: see [`Loaded::Damaged`].
    fn load(&self, messages: &[Locator]) -> Result<Vec<Loaded>, ReadError>;

    /// Returns up to `limit` messages, and one at least, without their payloads, in the order of (fairness key, id).
    ///
    /// A page shows the queue at one moment. Over all pages, a message that is there all the time is returned once.
    ///
    /// # Errors
    /// If the queue has another owner, or the database fails.
    fn scan(&self, after: &Cursor, limit: usize) -> Result<Page<StoredMessage, Cursor>, ReadError>;

    /// Returns the messages of one fairness key that come after `after`, whole and in order.
    ///
    /// # Errors
    /// If the queue has another owner, or the database fails.
    fn backlog(
        &self,
        key: &FairnessKey,
        after: Option<MessageId>,
        limit: Limit,
    ) -> Result<Page<StoredMessage, MessageId>, ReadError>;

    /// Returns the message that the deduplication row of this name stands for at `now`.
    ///
    /// # Errors
    /// If the queue has another owner, the entry is damaged, or the database fails.
    fn deduplicated(
        &self,
        name: &RememberedName,
        now: Timestamp,
    ) -> Result<Option<MessageId>, ReadError>;

    /// Returns up to `limit` of the deduplication rows that come after `after`, expired ones too if they have not
    /// been swept.
    ///
    /// # Errors
    /// If the queue has another owner, or the database fails.
    fn remembered(
        &self,
        after: Option<&RememberedName>,
        limit: usize,
    ) -> Result<Page<Remembered, RememberedName>, ReadError>;
}

/// The largest definition of a queue, in bytes.
pub const DEFINITION_MAX: usize = 1 << 20;

/// The largest value of an entry of the runtime configuration, in bytes.
pub const CONFIG_MAX: usize = 1 << 20;

/// A queue as the catalogue has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its id, which no other queue ever gets.
    pub id: QueueId,
    /// Its name.
    pub name: QueueName,
    /// The state of its definition.
    pub version: Version,
    /// The definition, which the engine does not interpret.
    pub definition: Bytes,
}

/// An entry of the runtime configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Its key.
    pub key: ConfigKey,
    /// Its state.
    pub version: Version,
    /// Its value.
    pub value: Bytes,
}

/// The state that an entry must be in for a change to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any state, also absent.
    Any,
    /// Absent.
    Absent,
    /// This version.
    Version(Version),
}

impl Expected {
    /// Tells whether `found` is the expected state.
    pub fn matches(self, found: Option<Version>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => found.is_none(),
            Self::Version(version) => found == Some(version),
        }
    }
}

/// A position between messages, in the order of (fairness key, id). It stays valid while messages come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub(crate) Option<Bytes>);

impl Cursor {
    /// Returns the position before all messages.
    pub fn start() -> Self {
        Self(None)
    }

    /// Returns the position right after this message, whether or not the message exists.
    pub fn after(message: &Locator) -> Self {
        Self(Some(
            keys::position(&message.fairness_key, message.id).into(),
        ))
    }
}

/// How much of a backlog to read. The first message is read however large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The most messages.
    pub messages: usize,
    /// The most bytes that they carry.
    pub bytes: usize,
}

/// A part of a listing, and where it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, C> {
    /// The items, in order.
    pub items: Vec<T>,
    /// Records that could not be read. They count against the limit, and are not served.
    pub damaged: Vec<Damaged>,
    /// Where the next page begins; none at the end.
    pub next: Option<C>,
}

/// A record that differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Which kind of record.
    pub record: &'static str,
    /// The message it belongs to, if that is known.
    pub message: Option<Locator>,
    /// How it is damaged.
    pub error: DecodeError,
}

/// The result of loading one payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// The payload.
    Found(Payload),
    /// There is no such message, or no longer.
    Missing,
    /// The record differs from what was written.
    Damaged(DecodeError),
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Rows removed.
    pub rows: usize,
    /// Whether there is more to remove.
    pub more: bool,
}

/// The state of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How far a confirmed commit gets.
    pub durability: Durability,
    /// Whether the engine takes commits.
    pub writes: Writes,
    /// Bytes on disk, or in memory for an engine without one.
    pub bytes: u64,
    /// Journals and segments that are not flushed yet; none for an engine without them. More than a handful means that
    /// flushing is behind, and that the disk fills.
    pub journals: usize,
    /// Purged generations and deleted queues that have not been swept yet.
    pub leftovers: usize,
    /// Commits at the end of the log that could not be read at the opening.
    pub torn: Option<TornLog>,
}

/// Whether an engine takes commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// It does.
    Taken,
    /// The disk is full. The engine still takes commits, and keeps room for those that remove messages; a caller adds no
    /// messages. The engine takes all commits again, by itself, when there is room.
    Full,
    /// A write has failed, so the engine takes none until the store is opened again.
    Poisoned,
}
