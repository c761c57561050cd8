//! What a broker can be told.

use std::sync::Arc;
use std::time::Duration;

use fila_store::{
    DeathReason, DeduplicationId, ErrorText, FairnessKey, Locator, MessageId, Meta, Payload,
    QueueId, Schedule, StoredMessage, ThrottleKey,
};

use crate::{BatchId, ConsumerId, Definition, FailureToken, KeyCursor, LeaseId, RedriveStamp};

/// Something to do, for one queue. `T` is the caller's ticket: it comes back with the answer.
#[derive(Debug)]
pub enum Command<T> {
    /// Takes messages in. Answered by [`Answer::Enqueued`](crate::Answer::Enqueued) when they are durable.
    Enqueue {
        /// Into which queue.
        queue: QueueId,
        /// In this order.
        messages: Vec<NewMessage>,
        /// What the producer calls all of them together. What is stored of a batch is not stored again.
        batch_id: Option<BatchId>,
        /// Comes back with the answer.
        ticket: T,
    },
    /// Takes the results of deliveries. Answered by [`Answer::Settled`](crate::Answer::Settled) when they are
    /// durable.
    Settle {
        /// The queue that has delivered.
        queue: QueueId,
        /// In this order.
        results: Vec<Settlement>,
        /// Comes back with the answer.
        ticket: T,
    },
    /// Adds a consumer. Answered by [`Answer::Subscribed`](crate::Answer::Subscribed).
    Subscribe {
        /// To which queue.
        queue: QueueId,
        /// What to call it: a number that was never used.
        consumer: ConsumerId,
        /// How much it may be sent.
        demand: Demand,
        /// Comes back with the answer.
        ticket: T,
    },
    /// Lets a consumer be sent more.
    Credit {
        /// Which one. Of one that is gone nobody hears.
        consumer: ConsumerId,
        /// How many deliveries on top.
        more: u32,
    },
    /// Sends a consumer no more. It keeps what it has, and its results are taken.
    Drain {
        /// Which one.
        consumer: ConsumerId,
    },
    /// Removes a consumer. What it has is given back at once, and counts as attempted.
    Unsubscribe {
        /// Which one.
        consumer: ConsumerId,
    },
    /// Follows a changed definition, which is in the catalogue already.
    Update {
        /// Which queue.
        queue: QueueId,
        /// What is set for it now.
        definition: Box<Definition>,
    },
    /// Deletes all messages. Answered by [`Answer::Purged`](crate::Answer::Purged) when that is durable.
    Purge {
        /// Of which queue.
        queue: QueueId,
        /// Comes back with the answer.
        ticket: T,
    },
    /// Drops a queue, which is out of the catalogue already.
    Close {
        /// Which one.
        queue: QueueId,
    },
    /// Follows throttles that have changed in the broker's [buckets](crate::Buckets): what waits for these keys is looked
    /// at, right away.
    Rethrottle {
        /// Which ones.
        keys: Vec<ThrottleKey>,
    },
    /// Asks how a queue is. Answered by [`Answer::Inspected`](crate::Answer::Inspected).
    Inspect {
        /// Which one.
        queue: QueueId,
        /// Comes back with the answer.
        ticket: T,
    },
    /// Asks for some of a queue's keys. Answered by [`Answer::Keys`](crate::Answer::Keys).
    Keys {
        /// Which queue.
        queue: QueueId,
        /// Where to go on.
        after: KeyCursor,
        /// How many places to look at.
        limit: usize,
        /// Comes back with the answer.
        ticket: T,
    },
    /// Asks why a fairness key waits. Answered by [`Answer::Explained`](crate::Answer::Explained); changes nothing.
    Explain {
        /// Of which queue.
        queue: QueueId,
        /// Which one. One without messages is explained, too.
        fairness_key: FairnessKey,
        /// Comes back with the answer.
        ticket: T,
    },
    /// Asks how messages are that were found in the store. Answered by [`Answer::Peeked`](crate::Answer::Peeked); changes
    /// nothing, and takes a turn of nobody.
    Peek {
        /// Of which queue.
        queue: QueueId,
        /// Which ones, as [`Shard::scan`](fila_store::Shard::scan) has returned them.
        messages: Vec<StoredMessage>,
        /// Comes back with the answer.
        ticket: T,
    },
    /// Says what is to become of a delivery that has failed. Nobody hears of one that is judged already, or gone.
    Judge {
        /// The queue that has delivered.
        queue: QueueId,
        /// Which failure.
        token: FailureToken,
        /// What is to become of it.
        judgement: Judgement,
    },
    /// Moves dead letters into a queue, as if they were enqueued there. Answered by
    /// [`Answer::Redriven`](crate::Answer::Redriven) when what was moved is durable, and all that was moved before.
    ///
    /// Whoever does this looks into the store for messages, and what is there may have changed when the command comes:
    /// the stamp tells. With no messages this asks for the stamp to begin with.
    Redrive {
        /// Out of which queue.
        queue: QueueId,
        /// Into which queue. Both are of the same broker.
        to: QueueId,
        /// What was answered last, before the messages were read.
        stamp: RedriveStamp,
        /// Which ones, in the order of [`Shard::scan`](fila_store::Shard::scan).
        messages: Vec<MovedMessage>,
        /// Comes back with the answer.
        ticket: T,
    },
}

/// What is to become of a delivery that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is delivered again.
    Retry {
        /// Not before.
        delay: Duration,
    },
    /// It is not.
    DeadLetter {
        /// Why.
        reason: DeathReason,
    },
    /// What the queue does by itself.
    Default,
}

/// A message that moves from one queue to another: a dead letter, in either direction.
#[derive(Clone, Debug)]
pub struct MovedMessage {
    /// Its place in the queue that it leaves.
    pub from: Locator,
    /// Its meta data. A redrive takes the schedule, the deduplication id and the sizes of it.
    pub meta: Meta,
}

/// The message keeps its schedule.
impl From<StoredMessage> for MovedMessage {
    fn from(message: StoredMessage) -> Self {
        Self {
            from: message.locator(),
            meta: message.meta,
        }
    }
}

/// A message as its producer gives it.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// How it is scheduled.
    pub schedule: Schedule,
    /// What it carries.
    pub payload: Payload,
    /// Not to be delivered before.
    pub delay: Duration,
    /// How long it is worth delivering.
    pub ttl: Ttl,
    /// What the producer calls it: text, or other bytes that do not begin with `ff`, which is for
    /// [batches](BatchId).
    pub deduplication_id: Option<DeduplicationId>,
    /// Why it is not to be taken, if its queue's hook gave no answer and the queue wants none without. It is told here
    /// and not left out, because it has a place in its batch: what was stored of that before is not refused now.
    pub refusal: Option<Arc<str>>,
}

impl NewMessage {
    /// Returns a message without a delay, a time to live of its own or a deduplication id.
    pub fn new(schedule: impl Into<Schedule>, payload: Payload) -> Self {
        Self {
            schedule: schedule.into(),
            payload,
            delay: Duration::ZERO,
            ttl: Ttl::Queue,
            deduplication_id: None,
            refusal: None,
        }
    }

    /// Returns the bytes that it counts for [until it is stored](crate::Limits::buffered_bytes): what it carries, and
    /// something for itself, so that messages without payloads are bounded as well.
    pub fn buffered_bytes(&self) -> usize {
        const ITSELF: usize = 256;
        let sizes = self.payload.sizes();
        ITSELF + sizes.headers as usize + sizes.body as usize
    }
}

/// How long a message is worth delivering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// As its queue says.
    Queue,
    /// For ever.
    Forever,
    /// For this time.
    For(Duration),
}

/// The result of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Which delivery.
    pub lease: LeaseId,
    /// Which message, if the caller says so: another one is refused.
    pub message: Option<MessageId>,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The message is processed, and to be deleted.
    Ack,
    /// Processing failed: the message is to be delivered again, unless this was its last attempt.
    Nack {
        /// Not to be delivered again before; as its queue says, if none is given.
        delay: Option<Duration>,
        /// What went wrong, if the consumer says so.
        error: Option<ErrorText>,
    },
    /// Processing goes on: the lease is to end so much later than now.
    Extend {
        /// The queue's visibility timeout, if none is given.
        by: Option<Duration>,
    },
    /// The message was not touched: it is to be delivered again, and no attempt is counted.
    Release,
}

/// How much a consumer may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// How many deliveries, until there is more [credit](Command::Credit).
    pub credit: Credit,
    /// How many unsettled deliveries at once; the broker's limit, if that is less.
    pub in_flight_max: u32,
}

/// How many deliveries a consumer may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// Any number.
    Unlimited,
    /// So many.
    Limited(u32),
}
