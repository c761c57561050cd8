//! What a broker wants done.
//!
//! The broker does nothing itself. Whoever drives it takes these, and tells it what came of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fila_store::{
    Batch, Damaged, ErrorText, FairnessKey, History, Limit, Loaded, Locator, MessageId, Page,
    Payload, QueueId, ReadError, StoredMessage, Timestamp,
};

use crate::{ConsumerId, LeaseId};

/// The work that a broker asks its driver to do, in any order. The driver takes it and leaves this empty. `A` is the type
/// of the answers: [`Answer`](crate::Answer) with the driver's tickets.
#[derive(Debug)]
pub struct Effects<A> {
    /// Answers to give.
    pub answers: Vec<A>,
    /// Messages to send. Those of one consumer are in order.
    pub deliveries: Vec<(ConsumerId, Delivery)>,
    /// Reads to make, each to be answered by [`Broker::loaded`](crate::Broker::loaded).
    pub loads: Vec<Load>,
    /// Consumers that will not be sent anything any more, and why.
    pub dismissed: Vec<(ConsumerId, Dismissal)>,
    /// Messages that could not be read back. They stay in the store, and are not served.
    pub damaged: Vec<(QueueId, Damaged)>,
    /// Deliveries that have failed, to be judged by [`Broker::judge`](crate::Broker::judge). What is not judged in time
    /// is judged by the queue itself.
    pub failures: Vec<Failure>,
    /// What is no longer needed, and takes time to drop: better on another thread.
    pub garbage: Vec<Garbage>,
}

impl<A> Default for Effects<A> {
    fn default() -> Self {
        Self {
            answers: Vec::new(),
            deliveries: Vec::new(),
            loads: Vec::new(),
            dismissed: Vec::new(),
            damaged: Vec::new(),
            failures: Vec::new(),
            garbage: Vec::new(),
        }
    }
}

impl<A> Effects<A> {
    /// Tells whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
            && self.deliveries.is_empty()
            && self.loads.is_empty()
            && self.dismissed.is_empty()
            && self.damaged.is_empty()
            && self.failures.is_empty()
            && self.garbage.is_empty()
    }
}

/// A message on its way to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Which message.
    pub message: MessageId,
    /// Under which its result is taken.
    pub lease: LeaseId,
    /// Whose share it uses.
    pub fairness_key: FairnessKey,
    /// What it carries.
    pub payload: Payload,
    /// 1 for the first delivery.
    pub attempt: u32,
    /// The weight of its fairness key.
    pub weight: u32,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// For how long it is leased.
    pub lease_time: Duration,
    /// What has gone wrong with it, if something has; for a dead letter, where it came from.
    pub history: Option<Arc<History>>,
}

/// A delivery that has failed, and waits to be judged. It is stored by then, or about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Of which queue.
    pub queue: QueueId,
    /// Which message.
    pub locator: Locator,
    /// How many of its deliveries have ended badly, with this one.
    pub attempts: u32,
    /// What went wrong.
    pub error: ErrorText,
    /// To be given back with the judgement.
    pub token: FailureToken,
}

/// Names a failure, so that its judgement finds it, and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureToken {
    pub(crate) generation: u64,
    pub(crate) slot: u32,
    pub(crate) message: MessageId,
    pub(crate) attempts: u32,
}

/// Why a consumer is sent nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// Its queue was deleted.
    QueueGone,
    /// It was drained, and all it had is settled.
    Drained,
}

/// Something to read from the store.
#[derive(Debug)]
pub struct Load {
    /// From which queue.
    pub queue: QueueId,
    /// What to read.
    pub request: LoadRequest,
    /// To be given back with what was read.
    pub token: LoadToken,
}

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadRequest {
    /// The next messages of a key, by [`Shard::backlog`](fila_store::Shard::backlog).
    Backlog {
        /// Of which key.
        key: FairnessKey,
        /// From where on.
        after: Option<MessageId>,
        /// How much.
        limit: Limit,
    },
    /// The payloads of these messages, by [`Shard::load`](fila_store::Shard::load).
    Payloads(Vec<Locator>),
}

/// Names a read, so that its answer finds whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadToken {
    pub(crate) generation: u64,
    pub(crate) lane: u32,
}

/// What a read has found.
#[derive(Debug)]
pub enum LoadedMessages {
    /// The answer to [`LoadRequest::Backlog`].
    Backlog(Page<StoredMessage, MessageId>),
    /// The answer to [`LoadRequest::Payloads`].
    Payloads(Vec<Loaded>),
    /// The store could not be read.
    Failed(ReadError),
}

/// Changes to be stored in one go. While they are, the broker collects the next ones.
#[derive(Debug)]
pub struct Round {
    /// One batch for each queue that changes.
    pub batches: Vec<(QueueId, Batch)>,
}

/// What became of a [`Round`], which is given back for its memory and its messages.
#[derive(Debug)]
pub enum Committed {
    /// It is durable, but for the queues named here, which were deleted.
    Stored {
        /// What was stored.
        round: Round,
        /// Whose batches were not stored, since they have no owner any more.
        fenced: Vec<QueueId>,
    },
    /// It may be stored or not. The store takes no more writes.
    Unknown,
    /// It is not stored, nor will anything be.
    Failed,
}

/// What is no longer needed.
pub struct Garbage(pub(crate) Box<dyn Send>);

impl fmt::Debug for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = &self.0;
        f.write_str("Garbage")
    }
}
