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
    SettleResults, Source,
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
        /// The consumer that reports them on its stream, if one does. It takes over the leases that it extends, so that a
        /// client which has connected again keeps what it holds.
        by: Option<ConsumerId>,
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
    /// Notes that the socket of a consumer has taken deliveries, or that the driver has dropped them. Until then they
    /// count as memory in use, and the broker bounds their number.
    Taken {
        /// The consumer. It may have left.
        consumer: ConsumerId,
        /// The sum of their [bytes](crate::Delivery::bytes).
        bytes: usize,
    },
    /// Stops deliveries to a consumer. The consumer keeps its leases and can still settle them. A
    /// [call](ConsumerKind::Call) gets what is there, and waits no longer.
    Drain {
        /// The consumer. Ignored if it has left.
        consumer: ConsumerId,
    },
    /// Removes a consumer.
    Unsubscribe {
        /// The consumer. Ignored if it has left.
        consumer: ConsumerId,
        /// How it leaves, which decides on its leases.
        departure: Departure,
        /// Leases that the driver has not sent to the consumer. They end at once, and count no attempt.
        unsent: Vec<LeaseId>,
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
    /// Reexamines at once the messages that wait for tokens of these throttles. The throttles have changed, or
    /// [tokens](crate::Tokens) have come that the broker could not foresee.
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

/// The decision on a failed delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Deliver the message again.
    Retry {
        /// The time until then, at least.
        delay: Duration,
    },
    /// Make the message a dead letter.
    DeadLetter {
        /// The reason.
        reason: DeathReason,
    },
    /// Follow the queue's retry policy.
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

/// A message from a producer.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Its fairness key, weight and throttle keys.
    pub schedule: Schedule,
    /// The headers and the payload.
    pub payload: Payload,
    /// The time until its first delivery, at least.
    pub delay: Duration,
    /// How long it may be delivered.
    pub ttl: Ttl,
    /// The producer's id for it: any bytes, except that `ff` at the start is reserved for [batches](BatchId).
    pub deduplication_id: Option<DeduplicationId>,
    /// The client that sends it, if that is known.
    pub source: Option<Source>,
    /// The hook's error, if the hook failed and the queue accepts no message without its answer. The message stays in the
    /// command because it has a place in its batch: if the batch was stored before, the message is a duplicate, not refused.
    pub refusal: Option<Arc<str>>,
}

impl NewMessage {
    /// About how many bytes of memory a message takes besides its headers and its body.
    pub const OVERHEAD_BYTES: usize = 256;

    /// Returns a message without a delay, time to live or deduplication id.
    pub fn new(schedule: impl Into<Schedule>, payload: Payload) -> Self {
        Self {
            schedule: schedule.into(),
            payload,
            delay: Duration::ZERO,
            ttl: Ttl::Queue,
            deduplication_id: None,
            source: None,
            refusal: None,
        }
    }

    /// Returns the bytes that it counts for [until it is stored](crate::Limits::buffered_bytes): its headers and payload, and
    /// a constant, so that the limit bounds messages without payloads as well.
    pub fn buffered_bytes(&self) -> usize {
        let sizes = self.payload.sizes();
        Self::OVERHEAD_BYTES + sizes.headers as usize + sizes.body as usize
    }
}

/// How long a message may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// As long as its queue's settings say.
    Queue,
    /// Without end.
    Forever,
    /// For this time.
    For(Duration),
}

/// The result of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The lease of the delivery.
    pub lease: LeaseId,
    /// The message, if the caller names it. The broker then refuses a lease of another message.
    pub message: Option<MessageId>,
    /// The consumer's verdict.
    pub verdict: Verdict,
}

/// The consumer's verdict on a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The consumer has processed the message; the queue deletes it.
    Ack,
    /// Processing failed: the queue delivers the message again, unless this was its last attempt.
    Nack {
        /// The time until the next delivery, at least; the queue's retry policy if `None`.
        delay: Option<Duration>,
        /// The consumer's error.
        error: Option<ErrorText>,
    },
    /// A handler has begun to process the message. From now on the delivery counts as an attempt if the consumer is lost.
    Begin,
    /// Processing goes on: the consumer needs the lease for longer.
    Extend {
        /// The lease ends this much later than now; the queue's visibility timeout if `None`.
        by: Option<Duration>,
    },
    /// The consumer has not processed the message: the queue delivers it again, and counts no attempt.
    Release,
}

/// How long a client may be away before the leases of a broken stream end.
///
/// It is long enough for a client to connect again, and short enough that the messages of a consumer that has vanished
/// reach others soon.
pub const RECONNECT_GRACE: Duration = Duration::from_secs(5);

/// How a consumer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It has ended its stream. Messages that no handler has begun are ready at once, and count no attempt. Leases of
    /// begun messages last for [`RECONNECT_GRACE`], as after a loss.
    Closed,
    /// Its stream broke. Its leases last for [`RECONNECT_GRACE`], or for less if they end before. Within this time a
    /// client can settle them by any call or stream, and an extension gives them a normal end again. After it a message
    /// that a handler had begun has failed; any other is ready again, and counts no attempt.
    Lost,
    /// The driver stops, and has ended the stream. Its leases last as long as they would have, so that
    /// [`Broker::keep_leases`](crate::Broker::keep_leases) can store them.
    Stopped,
    /// It was a [call](ConsumerKind::Call), and its answer was sent. Its leases go on until their time is over.
    Answered,
}

/// How the broker knows which messages of a consumer a handler has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginnings {
    /// The consumer [reports](Verdict::Begin) them.
    Reported,
    /// The consumer reports none. The broker assumes that it has begun the oldest one without a result, and no other. So
    /// a lost consumer costs one message an attempt. A message that kills its consumers becomes the oldest one.
    Assumed,
}

/// How a consumer is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerKind {
    /// By a stream, on which deliveries come for as long as it lives.
    Stream(Beginnings),
    /// By a call, which takes messages once. The broker says when its answer is complete:
    /// [`Dismissal::Served`](crate::Dismissal::Served). It is complete when the call has a message and no other is being
    /// read for it. [`Command::Drain`] ends the wait for the first message.
    Call {
        /// How long its leases last; the queue's visibility timeout if `None`.
        lease_time: Option<Duration>,
    },
}

/// The demand of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Deliveries that it accepts, until it gives more [credit](Command::Credit).
    pub credit: u32,
    /// The most unsettled deliveries at once; the broker's limit, if that is less.
    pub in_flight_max: u32,
    /// How it is connected.
    pub kind: ConsumerKind,
}
