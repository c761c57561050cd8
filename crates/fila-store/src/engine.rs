//! What the broker needs from durable storage, and nothing else.
//!
//! The boundary speaks of queues and messages, not of bytes under keys, so that an embedded database, a SQL
//! database and an object store all fit behind it.

use std::any::Any;

use bytes::Bytes;

use crate::record::DecodeError;
use crate::{
    Batch, CommitError, ConfigKey, DeduplicationId, Durability, EngineError, Epoch, FairnessKey,
    Generation, Locator, MessageId, Payload, QueueId, QueueName, ReadError, Remembered,
    StoredMessage, Timestamp, Version, keys,
};

/// A place where queues live: definitions, runtime configuration, and who owns which queue.
///
/// All calls block, and none needs an async runtime: the server makes them from threads of its own. Any thread may
/// call; commits of several threads are applied one after the other. A queue's messages are in order because its
/// one owner commits them in order.
///
/// # Group commit
/// [`commit`](Self::commit) takes the batches of any number of queues and stores them with a single sync. A scheduler
/// thread fills one batch per queue, hands all of them to its commit thread, and goes on filling the next ones while
/// the first are being synced; replies go out when `commit` returns. A [`Batch`] is owned data and may cross threads.
///
/// # Retrying
/// A commit names its messages by ids and its purges by generations, so it may be repeated: putting a message again,
/// deleting it again, purging to the present generation change nothing; nor does adopting it again, even though what it
/// was copied from has gone. This holds for the *last* commit of a queue.
/// Repeating an older one would bring back what has been deleted since.
pub trait Engine: Send + Sync + 'static {
    /// The durable side of one owned queue.
    type Shard: Shard;

    /// Creates a queue. What the definition says is the caller's business.
    ///
    /// Whether a creation of [unknown](CommitError::Unknown) outcome has happened is seen by [its name](Self::queue)
    /// after reopening; the same goes for the other changes of the catalogue.
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

    /// Deletes a queue and its messages for ever, in constant time. Its shard is fenced; [`sweep`](Self::sweep)
    /// gives the room back.
    ///
    /// # Errors
    /// [`EngineError::UnknownQueue`]; if it could not be written.
    fn delete_queue(&self, queue: QueueId) -> Result<(), EngineError> {
        self.delete_queues(&[queue])
    }

    /// Deletes some queues, all of them or none: a queue and whatever makes no sense without it.
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

    /// Becomes the owner of a queue, in an epoch in which nobody has owned it. Whoever owned it is fenced.
    ///
    /// # Errors
    /// [`EngineError::UnknownQueue`]; if the epoch could not be written.
    fn claim(&self, queue: QueueId) -> Result<Self::Shard, EngineError>;

    /// Applies one batch to each of several queues: all or nothing, and durable, at the engine's level, on `Ok`.
    ///
    /// # Errors
    /// See [`CommitError`]. If one queue is fenced nothing happens to the others either.
    fn commit(&self, batches: &[(&Self::Shard, &Batch)]) -> Result<(), CommitError> {
        self.stage(batches)?;
        self.settle()
    }

    /// The first half of a [commit](Self::commit): takes the batches in, to be made durable and visible by the next
    /// [`settle`](Self::settle), in the order in which commits are staged. After a crash that comes first, a commit is
    /// there only if all are that were staged before it.
    ///
    /// # Errors
    /// As of [`commit`](Self::commit).
    fn stage(&self, batches: &[(&Self::Shard, &Batch)]) -> Result<(), CommitError>;

    /// The second half: returns when all that was staged before the call is durable, at the engine's level, and visible.
    /// Others can stage more meanwhile, which the next call settles, in one go.
    ///
    /// # Errors
    /// [`CommitError::Unknown`]: each of them may have happened or not.
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

    /// Removes an entry, if it is in the expected state. To remove what does not exist is fine with
    /// [`Expected::Any`].
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

    /// Removes `budget` rows that purges, deletions and expired deduplication ids have left behind, or one more where
    /// two belong together, and looks after the database beneath.
    ///
    /// To be called from time to time, and again at once while there is [more](Swept::more).
    ///
    /// # Errors
    /// If something could not be read or written. A sweep can be repeated.
    fn sweep(&self, now: Timestamp, budget: usize) -> Result<Swept, EngineError>;

    /// Returns how the engine is.
    ///
    /// # Errors
    /// If the database cannot say.
    fn health(&self) -> Result<Health, ReadError>;
}

/// The durable side of one owned queue, in one epoch.
pub trait Shard: Any + Send + Sync {
    /// Returns the queue.
    fn queue(&self) -> QueueId;

    /// Returns the epoch, of which this owner makes the ids of its messages.
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
    /// If the queue has another owner, or the database fails. A damaged record is an answer, not an error.
    fn load(&self, messages: &[Locator]) -> Result<Vec<Loaded>, ReadError>;

    /// Returns up to `limit` messages, and one at least, without their payloads, in the order of (fairness key, id).
    ///
    /// Every page is of one moment. Over all pages, a message that is there all the time is returned once.
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

    /// Returns the message that this deduplication id stands for at `now`.
    ///
    /// # Errors
    /// If the queue has another owner, the entry is damaged, or the database fails.
    fn deduplicated(
        &self,
        id: &DeduplicationId,
        now: Timestamp,
    ) -> Result<Option<MessageId>, ReadError>;

    /// Returns up to `limit` of the deduplication ids that come after `after`, expired ones too if they have not
    /// been swept.
    ///
    /// # Errors
    /// If the queue has another owner, or the database fails.
    fn remembered(
        &self,
        after: Option<&DeduplicationId>,
        limit: usize,
    ) -> Result<Page<Remembered, DeduplicationId>, ReadError>;
}

/// The largest definition of a queue, in bytes.
pub const DEFINITION_MAX: usize = 1 << 20;

/// The largest value of an entry of the runtime configuration, in bytes.
pub const CONFIG_MAX: usize = 1 << 20;

/// A queue as the catalogue has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The queue, for ever.
    pub id: QueueId,
    /// What people call it.
    pub name: QueueName,
    /// The state of its definition.
    pub version: Version,
    /// What its creator said of it.
    pub definition: Bytes,
}

/// An entry of the runtime configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// What it is set under.
    pub key: ConfigKey,
    /// Its state.
    pub version: Version,
    /// What it is set to.
    pub value: Bytes,
}

/// In which state something must be for a change to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// In any, also absent.
    Any,
    /// Absent.
    Absent,
    /// In this one.
    Version(Version),
}

impl Expected {
    /// Tells whether this is what was expected.
    pub fn matches(self, found: Option<Version>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => found.is_none(),
            Self::Version(version) => found == Some(version),
        }
    }
}

/// A place between messages, in the order of (fairness key, id). Stays meaningful while messages come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub(crate) Option<Bytes>);

impl Cursor {
    /// Returns the place before all messages.
    pub fn start() -> Self {
        Self(None)
    }

    /// Returns the place right after this message, whether or not there is one.
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

/// Some of what there is, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, C> {
    /// What was read, in order.
    pub items: Vec<T>,
    /// What was there and could not be read. It counts against the limit, and is not served.
    pub damaged: Vec<Damaged>,
    /// What to ask for next; none at the end.
    pub next: Option<C>,
}

/// A record that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Which kind of record.
    pub record: &'static str,
    /// The message it belongs to, if that is known.
    pub message: Option<Locator>,
    /// What is wrong with it.
    pub error: DecodeError,
}

/// What there is of a payload that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// What the message carries.
    Found(Payload),
    /// No such message, or no longer.
    Missing,
    /// It is there, but not what was written.
    Damaged(DecodeError),
}

/// What a sweep has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Rows removed.
    pub rows: usize,
    /// Whether there is more to remove.
    pub more: bool,
}

/// How an engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How far a confirmed commit gets.
    pub durability: Durability,
    /// Whether commits are taken.
    pub writes: Writes,
    /// Bytes on disk, or in memory for an engine without one.
    pub bytes: u64,
    /// Journals and segments that are not flushed yet; none for an engine without them. More than a handful means that
    /// flushing is behind, and that the disk fills.
    pub journals: usize,
    /// Purged generations and deleted queues that have not been swept yet.
    pub leftovers: usize,
}

/// Whether commits are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// They are.
    Taken,
    /// A write has failed, so none are taken until the store is opened again.
    Poisoned,
}
