//! The commands that a driver gives to a broker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fila_store::{
    DeathReason, DeduplicationId, ErrorText, Locator, MessageId, Meta, Payload, QueueId, Schedule,
    StoredMessage, ThrottleKey,
};

use crate::{
    BatchId, ConsumerId, EnqueueResults, LeaseId, QueueSettings, RedriveResults, RedriveStamp,
    SettleResults,
};

/// The tickets of a driver. A command that is answered carries one, and the broker gives it back with the answer.
pub trait Tickets {
    /// A ticket for an answer of type `A`.
    type Ticket<A>: fmt::Debug;
}

/// For a driver that ignores all answers.
impl Tickets for () {
    type Ticket<A> = ();
}

/// A change of one queue. The broker gives each ticket back in an [`Answer`](crate::Answer).
#[derive(Debug)]
pub enum Command<T: Tickets> {
    /// Enqueues messages. The broker answers when they are durable.
    Enqueue {
        /// The queue.
        queue: QueueId,
        /// The messages, in their order.
        messages: Vec<NewMessage>,
        /// The producer's id of the batch. The broker does not store a message of a batch twice.
        batch_id: Option<BatchId>,
        /// The ticket.
        ticket: T::Ticket<EnqueueResults>,
    },
    /// Settles deliveries. The broker answers when the results are durable.
    Settle {
        /// The queue that has delivered.
        queue: QueueId,
        /// The results, in their order.
        results: Vec<Settlement>,
        /// The ticket.
        ticket: T::Ticket<SettleResults>,
    },
    /// Gives a consumer more credit.
    Credit {
        /// The consumer. Ignored if it has left.
        consumer: ConsumerId,
        /// The number of further deliveries that it accepts.
        more: u32,
    },
    /// Stops deliveries to a consumer. The consumer keeps its leases and can still settle them.
    Drain {
        /// The consumer. Ignored if it has left.
        consumer: ConsumerId,
    },
    /// Removes a consumer. Its leases end at once, and each counts as an attempt.
    Unsubscribe {
        /// The consumer. Ignored if it has left.
        consumer: ConsumerId,
    },
    /// Applies a changed definition. The catalogue already has it.
    Update {
        /// The queue.
        queue: QueueId,
        /// The definition from now on.
        definition: Box<QueueSettings>,
    },
    /// Deletes all messages of a queue. The broker answers with their number when the deletion is durable.
    Purge {
        /// The queue.
        queue: QueueId,
        /// The ticket.
        ticket: T::Ticket<u64>,
    },
    /// Closes a queue. The catalogue no longer has it.
    Close {
        /// The queue.
        queue: QueueId,
    },
    /// Reexamines at once the messages that wait for tokens of these throttles, whose [buckets](crate::Buckets) have
    /// changed.
    Rethrottle {
        /// The throttles.
        keys: Vec<ThrottleKey>,
    },
    /// Moves dead letters into a queue, as if a producer enqueued them there. The broker answers when this move and all
    /// moves before it are durable.
    ///
    /// The driver reads the messages from the store before it gives this command, and the store may change in between.
    /// The stamp detects that. A command without messages asks for the first stamp.
    Redrive {
        /// The queue that holds the dead letters.
        queue: QueueId,
        /// The queue that takes them. Both belong to the same broker.
        to: QueueId,
        /// The stamp of the last answer before the driver read the messages.
        stamp: RedriveStamp,
        /// The messages, in the order of [`Shard::scan`](fila_store::Shard::scan).
        messages: Vec<MovedMessage>,
        /// The ticket.
        ticket: T::Ticket<RedriveResults>,
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
    pub credit: u32,
    /// How many unsettled deliveries at once; the broker's limit, if that is less.
    pub in_flight_max: u32,
}
