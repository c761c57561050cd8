//! The answers of a broker, and its reasons to refuse.

use std::sync::Arc;
use std::time::Duration;

use fila_store::MessageId;

use crate::{Sequence, Tickets};

/// An answer to a command, with the ticket of that command. The result is an error if the broker refused the whole
/// command.
#[derive(Debug)]
pub enum Answer<T: Tickets> {
    /// To [`Command::Enqueue`](crate::Command::Enqueue).
    Enqueued(T::Ticket<EnqueueResults>, Result<EnqueueResults, Refused>),
    /// To [`Command::Settle`](crate::Command::Settle).
    Settled(T::Ticket<SettleResults>, Result<SettleResults, Refused>),
    /// To [`Command::Purge`](crate::Command::Purge).
    Purged(T::Ticket<u64>, Result<u64, Refused>),
    /// To [`Command::Redrive`](crate::Command::Redrive).
    Redriven(T::Ticket<RedriveResults>, Result<RedriveResults, Refused>),
}

impl<T: Tickets> Answer<T> {
    /// Replaces the result by a refusal.
    pub(crate) fn refuse(self, refused: Refused) -> Self {
        match self {
            Self::Enqueued(ticket, _) => Self::Enqueued(ticket, Err(refused)),
            Self::Settled(ticket, _) => Self::Settled(ticket, Err(refused)),
            Self::Purged(ticket, _) => Self::Purged(ticket, Err(refused)),
            Self::Redriven(ticket, _) => Self::Redriven(ticket, Err(refused)),
        }
    }
}

/// One result for each message, in their order. An accepted message is durable.
pub type EnqueueResults = Vec<Result<Enqueued, EnqueueError>>;

/// One result for each settlement, in their order. An accepted settlement is durable.
pub type SettleResults = Vec<Result<(), SettleError>>;

/// What became of the dead letters of one [`Command::Redrive`](crate::Command::Redrive).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveResults {
    /// For each message, in their order, its id in the queue that took it. Moved messages are durable.
    pub results: Vec<Result<MessageId, RedriveError>>,
    /// The stamp for the next of these commands.
    pub stamp: RedriveStamp,
}

/// What the store of a queue looked like when dead letters were taken out of it. Those that are in the store only are
/// taken out by whoever knows the last stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedriveStamp {
    pub(crate) generation: u64,
    pub(crate) taken: u64,
}

/// Why a dead letter was not moved. It is where it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedriveError {
    /// It is not in the queue, or no longer.
    #[error("the message is no longer in the queue")]
    Gone,
    /// It is with a consumer, or has just failed.
    #[error("the message is with a consumer; it can be redriven when it is not")]
    Leased,
    /// Its key's messages are being read.
    #[error("messages of this fairness key are being read; try again in a moment")]
    Busy,
    /// Somebody else has taken messages out of the queue since it was found.
    #[error("the queue has changed since the message was found; look again")]
    Stale,
    /// The other queue does not take it.
    #[error(transparent)]
    Refused(EnqueueError),
}

/// What became of a message that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is stored under this id.
    Stored(MessageId),
    /// Its deduplication id or its batch is remembered: it was stored under this id before.
    Duplicate(MessageId),
}

/// Why a command was refused as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such queue here, or no longer.
    #[error("the queue was deleted; create it again, or use another")]
    QueueGone,
    /// An earlier write has failed.
    #[error("the store takes no more writes; look at the server's log and restart it")]
    StoreFailed,
    /// The write may or may not have happened.
    #[error("it is unknown whether the change is stored; try again once the server is back")]
    OutcomeUnknown,
    /// The queue has been purged four thousand million times.
    #[error("the queue has been purged too often; delete it and create it again")]
    PurgesExhausted,
    /// A batch has come again with more or fewer messages.
    #[error(
        "the batch was sent before with {before} messages and now has {now}; send it as it was, or as another batch"
    )]
    BatchChanged {
        /// How many messages it had.
        before: usize,
        /// How many it has now.
        now: usize,
    },
    /// A batch has come again that its producer has said to be answered.
    #[error(
        "batch {sequence} is among those below {answered_below}, which the producer has said to be answered; count on"
    )]
    BatchAnswered {
        /// Which one.
        sequence: Sequence,
        /// All below have been answered.
        answered_below: Sequence,
    },
    /// There are as many consumers as there may be.
    #[error("there are {max} consumers already; close some, or raise limits.consumers")]
    TooManyConsumers {
        /// The limit.
        max: usize,
    },
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// The payload is too large.
    #[error("the payload has {found} bytes, {max} are allowed; send a reference to it instead")]
    PayloadTooLarge {
        /// What it has.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// There are too many headers.
    #[error("the message has {found} headers, {max} are allowed")]
    TooManyHeaders {
        /// What it has.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The headers are too large.
    #[error("the headers have {found} bytes, {max} are allowed")]
    HeadersTooLarge {
        /// What they have.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The fairness key is too long.
    #[error("the fairness key has {found} bytes, {max} are allowed")]
    FairnessKeyTooLong {
        /// What it has.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// There are too many throttle keys.
    #[error("the message names {found} throttle keys, {max} are allowed")]
    TooManyThrottleKeys {
        /// What it has.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The delay or the time to live is too long.
    #[error("{found:?} is too long a delay or time to live; {max:?} is the longest")]
    DelayTooLong {
        /// What was asked for.
        found: Duration,
        /// The limit.
        max: Duration,
    },
    /// The weight is more than the engine knows.
    #[error("weight {found} is out of range; 1 to {max} are allowed")]
    InvalidWeight {
        /// What was asked for.
        found: u32,
        /// The limit.
        max: u32,
    },
    /// The queue is full.
    #[error("the queue holds {max} messages, its limit; consume some, or raise it")]
    QueueFull {
        /// The limit.
        max: u64,
    },
    /// The fairness key is full.
    #[error("fairness key holds {max} messages, its limit; the other keys of the queue do not")]
    KeyFull {
        /// The limit.
        max: u64,
    },
    /// There are too many fairness keys.
    #[error("the queue has {max} fairness keys, its limit; use fewer keys")]
    TooManyKeys {
        /// The limit.
        max: usize,
    },
    /// Too many messages are delayed.
    #[error("{max} messages of the queue are delayed, its limit; send without delay, or later")]
    TooManyDelayed {
        /// The limit.
        max: u64,
    },
    /// Too many deduplication ids are remembered.
    #[error(
        "the queue remembers {max} deduplication ids, its limit; shorten its deduplication window"
    )]
    TooManyDeduplicationIds {
        /// The limit.
        max: usize,
    },
    /// Too much is unconfirmed.
    #[error("{max} bytes wait to be stored, the limit; try again in a moment")]
    BufferFull {
        /// The limit.
        max: usize,
    },
    /// The queue's hook gave no answer, and the queue takes no message without one.
    #[error(
        "the queue refuses messages that its hook gives no answer for: {error}; mend the script, or change the queue's \
         hook_fallback"
    )]
    HookFailed {
        /// What the hook has failed of.
        error: Arc<str>,
    },
    /// All ids of this owner are used up.
    #[error("all message ids are used up; restart the server")]
    IdsExhausted,
}

/// Why a result was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// There is no such lease, or no longer: it ran out, was settled, or went with its queue. The message belongs
    /// to nobody or to somebody else.
    #[error(
        "the lease has ended; the message is or will be delivered again unless it was settled; extend leases while working, or raise the queue's visibility timeout"
    )]
    LeaseNotFound,
    /// The lease is of another message.
    #[error("the lease is of another message; give both ids as they were delivered")]
    AnotherMessage,
    /// The delay or extension is too long.
    #[error("{found:?} is too long; {max:?} is the longest")]
    TooLong {
        /// What was asked for.
        found: Duration,
        /// The limit.
        max: Duration,
    },
}
