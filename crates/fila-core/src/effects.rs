//! The effects of a broker.
//!
//! The broker performs no I/O. Its driver takes the effects, performs them, and reports their results.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fila_store::{
    Batch, Damaged, ErrorText, FairnessKey, History, Limit, Loaded, Locator, MessageId, Page,
    Payload, QueueId, ReadError, StoredMessage, Timestamp,
};

use crate::memory::Memory;
use crate::{ConsumerId, LeaseId};

/// The work that a broker asks its driver to do, in any order. The driver takes it and leaves this empty. `A` is the type
/// of the answers: [`Answer`](crate::Answer) with the driver's tickets.
#[derive(Debug)]
pub struct Effects<A> {
    /// Answers to give.
    pub answers: Vec<A>,
    /// Messages to send. Those of one consumer are in order. The driver reports what it has sent:
    /// [`Command::Taken`](crate::Command::Taken).
    pub deliveries: Vec<(ConsumerId, Delivery)>,
    /// Reads to make. The driver passes each result to [`Broker::loaded`](crate::Broker::loaded).
    pub loads: Vec<Load>,
    /// Consumers that get no more deliveries, and why.
    pub dismissed: Vec<(ConsumerId, Dismissal)>,
    /// Messages that the store could not read. They stay in the store, and the queue does not deliver them.
    pub damaged: Vec<(QueueId, Damaged)>,
    /// Failed deliveries for a hook to decide on. The driver passes the decision to
    /// [`Broker::judge`](crate::Broker::judge). If it comes too late, the queue decides by itself.
    pub failures: Vec<Failure>,
    /// Values that take time to drop. The driver drops them on another thread.
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
    /// Returns whether there is nothing to do.
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
    /// The [lasting id](fila_store::Meta::lasting_id) of the message.
    pub message: MessageId,
    /// The lease: the consumer's result names it.
    pub lease: LeaseId,
    /// The fairness key whose share it uses.
    pub fairness_key: FairnessKey,
    /// The headers and the payload.
    pub payload: Payload,
    /// 1 for the first delivery. Only deliveries that failed count.
    pub attempt: u32,
    /// How many of its consumers were lost since the broker started. A handler may have killed them.
    pub lost: u32,
    /// The weight of its fairness key.
    pub weight: u32,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// The duration of the lease.
    pub lease_time: Duration,
    /// Its failures, if it has any; for a dead letter, also its origin.
    pub history: Option<Arc<History>>,
}

impl Delivery {
    /// Returns the bytes that it counts as on its way to its consumer.
    pub fn bytes(&self) -> usize {
        let history = self.history.as_ref().map_or(0, |history| history.bytes());
        Memory::whole(self.payload.sizes()) + history
    }
}

/// A failed delivery that waits for the decision of a hook. The failure is in the store, or in a round under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The queue of the message.
    pub queue: QueueId,
    /// The lasting id of the message.
    pub message: MessageId,
    /// Its place in the queue.
    pub locator: Locator,
    /// The number of its failed deliveries, with this one.
    pub attempts: u32,
    /// The error.
    pub error: ErrorText,
    /// The driver gives it back with the decision.
    pub token: FailureToken,
}

/// Identifies a failure, so that the decision applies to this failure only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureToken {
    pub(crate) generation: u64,
    pub(crate) slot: u32,
    pub(crate) message: MessageId,
    pub(crate) attempts: u32,
}

/// Why a consumer gets no more deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// Its queue was deleted.
    QueueGone,
    /// A write has failed, so the broker delivers nothing more.
    StoreFailed,
    /// It was drained, and has settled all its deliveries.
    Drained,
    /// It is a [call](crate::ConsumerKind::Call), and its answer is complete. It keeps its leases until the driver
    /// [unsubscribes](crate::Command::Unsubscribe) it.
    Served,
}

/// A read from the store.
#[derive(Debug)]
pub struct Load {
    /// The queue to read from.
    pub queue: QueueId,
    /// The messages to read.
    pub request: LoadRequest,
    /// The driver gives it back with the result.
    pub token: LoadToken,
}

/// The messages to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadRequest {
    /// The next messages of a key, by [`Shard::backlog`](fila_store::Shard::backlog).
    Backlog {
        /// The key.
        key: FairnessKey,
        /// The message before the first one to read.
        after: Option<MessageId>,
        /// The most to read.
        limit: Limit,
    },
    /// The payloads of these messages, by [`Shard::load`](fila_store::Shard::load).
    Payloads(Vec<Locator>),
}

/// Identifies a read, so that its result reaches the lane that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadToken {
    pub(crate) generation: u64,
    pub(crate) lane: u32,
}

/// The result of a read.
#[derive(Debug)]
pub enum LoadedMessages {
    /// The answer to [`LoadRequest::Backlog`].
    Backlog(Page<StoredMessage, MessageId>),
    /// The answer to [`LoadRequest::Payloads`].
    Payloads(Vec<Loaded>),
    /// The read failed.
    Failed(ReadError),
}

/// Changes for one commit. While the driver stores them, the broker collects the next ones.
#[derive(Debug)]
pub struct Round {
    /// One batch for each queue that changes.
    pub batches: Vec<(QueueId, Batch)>,
}

/// The result of storing a [`Round`]. It returns the round, so that the broker can use its memory and its messages again.
#[derive(Debug)]
pub enum Committed {
    /// The round is durable, except for deleted queues.
    Stored {
        /// The round.
        round: Round,
        /// The deleted queues, whose batches the store rejected.
        fenced: Vec<QueueId>,
    },
    /// The round may or may not be stored. The store takes no more writes.
    Unknown,
    /// The round is not stored. The store takes no more writes.
    Failed,
}

/// A value to drop.
pub struct Garbage(pub(crate) Box<dyn Send>);

impl fmt::Debug for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = &self.0;
        f.write_str("Garbage")
    }
}
