//! The answers of a broker, and its reasons to refuse.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fila_store::{FairnessKey, MessageId};

use crate::{KeyPathError, Sequence, Tickets};

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

/// The results of one [`Command::Redrive`](crate::Command::Redrive).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveResults {
    /// For each message, in their order, its id in the queue that took it. Moved messages are durable.
    pub results: Vec<Result<MessageId, RedriveError>>,
    /// The stamp for the next of these commands.
    pub stamp: RedriveStamp,
}

/// Identifies the state of a queue after dead letters were taken out of it. A command that takes out messages which are
/// in the store only has to carry the latest stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedriveStamp {
    pub(crate) generation: u64,
    pub(crate) taken: u64,
}

/// Why a dead letter was not moved. It stays in its queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedriveError {
    /// The queue does not have it.
    #[error("the message is no longer in the queue")]
    Gone,
    /// A consumer has it, or it has just failed.
    #[error("the message is with a consumer; it can be redriven when it is not")]
    Leased,
    /// The queue is reading messages of its key.
    #[error("messages of this fairness key are being read; try again in a moment")]
    Busy,
    /// Another command has taken messages out of the queue since the driver read this one.
    #[error("the queue has changed since the message was found; look again")]
    Stale,
    /// The other queue rejects it.
    #[error(transparent)]
    Refused(EnqueueError),
}

/// The result of an accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The queue stored it under this id.
    Stored(MessageId),
    /// It is a duplicate, by its deduplication id or its batch: the queue stored it before under this id.
    Duplicate(MessageId),
}

/// Why the broker refused a whole command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The broker does not have this queue.
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
    /// The queue has too many fairness keys and groups to be copied for a prediction.
    #[error("the queue has {found} fairness keys and groups; a prediction takes at most {max}")]
    TooManyKeysToCopy {
        /// How many it has.
        found: usize,
        /// How many a prediction takes.
        max: usize,
    },
    /// The producer sent the batch before, with more or fewer messages.
    #[error(
        "the batch was sent before with {before} messages and now has {now}; send it as it was, or as another batch"
    )]
    BatchChanged {
        /// The number of messages that it had.
        before: usize,
        /// The number that it has now.
        now: usize,
    },
    /// The producer sent the batch before, and has confirmed its answer.
    #[error(
        "batch {sequence} is among those below {answered_below}, which the producer has said to be answered; count on"
    )]
    BatchAnswered {
        /// The batch.
        sequence: Sequence,
        /// The producer has the answers of all batches below this one.
        answered_below: Sequence,
    },
    /// The broker has as many consumers as its limit.
    #[error("there are {max} consumers already; close some, or raise limits.consumers")]
    TooManyConsumers {
        /// The limit.
        max: usize,
    },
}

/// A pool of a queue that its fairness keys or its clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedPool {
    /// The messages of the queue.
    Depth,
    /// The messages that wait for their time.
    Delayed,
    /// The deduplication ids and batches that the queue remembers.
    DeduplicationIds,
    /// The fairness keys that have messages.
    Keys,
}

impl SharedPool {
    fn remedy(self) -> &'static str {
        match self {
            Self::Depth => "let consumers take some, or set its depth_max",
            Self::Delayed => "send without delay",
            Self::DeduplicationIds => "shorten the queue's deduplication window",
            Self::Keys => "use fewer keys",
        }
    }
}

impl fmt::Display for SharedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Depth => "of the queue's messages",
            Self::Delayed => "of the queue's delayed messages",
            Self::DeduplicationIds => "of the queue's deduplication ids and batches",
            Self::Keys => "of the queue's fairness keys",
        })
    }
}

/// Why the queue did not accept a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// The payload is too large.
    #[error("the payload has {found} bytes, {max} are allowed; send a reference to it instead")]
    PayloadTooLarge {
        /// The size or number found.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// There are too many headers.
    #[error("the message has {found} headers, {max} are allowed")]
    TooManyHeaders {
        /// The size or number found.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The headers are too large.
    #[error("the headers have {found} bytes, {max} are allowed")]
    HeadersTooLarge {
        /// The size found.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The fairness key is too long.
    #[error("the fairness key has {found} bytes, {max} are allowed")]
    FairnessKeyTooLong {
        /// The size or number found.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The fairness key is no path under the queue's separator.
    #[error(transparent)]
    InvalidPath(KeyPathError),
    /// There are too many throttle keys.
    #[error("the message names {found} throttle keys, {max} are allowed")]
    TooManyThrottleKeys {
        /// The size or number found.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The delay or the time to live is too long.
    #[error("{} is too long a delay or time to live; {} is the longest", time(*found), time(*max))]
    DelayTooLong {
        /// The value found.
        found: Duration,
        /// The limit.
        max: Duration,
    },
    /// The message would expire before it could be delivered.
    #[error(
        "the message expires after {ttl:?}, and its delay is {delay:?}: it would never be delivered; give it a longer time to live, or a shorter delay"
    )]
    ExpiresTooEarly {
        /// Its time to live, its own or the queue's.
        ttl: Duration,
        /// Its delay.
        delay: Duration,
    },
    /// The weight is larger than the engine supports.
    #[error("weight {found} is out of range; 1 to {max} are allowed")]
    InvalidWeight {
        /// The value found.
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
    #[error(
        "`{}` holds {max} messages, its limit; consume some, or raise it",
        shown(path)
    )]
    KeyFull {
        /// The fairness key, or the group of keys that it is in.
        path: FairnessKey,
        /// The limit.
        max: u64,
    },
    /// The fairness key, or a group that it is in, holds its part of a pool that the keys of the queue share; the others are
    /// admitted. Of the pool of keys it is the client that holds its part.
    #[error(
        "{} holds {held} {pool}, and its part is {part} now; try again in {retry_after:?}, or {}",
        holder(path.as_ref()),
        pool.remedy()
    )]
    OverPart {
        /// The pool.
        pool: SharedPool,
        /// The key or group that is over its part; none if that is the client.
        path: Option<FairnessKey>,
        /// How much the key, the group or the client holds.
        held: u64,
        /// How much it may hold now: three times what is free on its level.
        part: u64,
        /// When it probably holds less than its part: from 100 ms to 60 s.
        retry_after: Duration,
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
    /// The queue remembers too many deduplication ids.
    #[error(
        "the queue remembers {max} deduplication ids, its limit; shorten its deduplication window"
    )]
    TooManyDeduplicationIds {
        /// The limit.
        max: usize,
    },
    /// Too many bytes wait to be stored.
    #[error("{max} bytes wait to be stored, the limit; try again in a moment")]
    BufferFull {
        /// The limit.
        max: usize,
    },
    /// The disk of the store is full.
    #[error(
        "the server's disk is full; consume messages, which makes room, or free some of the disk"
    )]
    StorageFull,
    /// The queue's hook failed, and the queue accepts no message without its answer.
    #[error(
        "the queue refuses messages that its hook gives no answer for: {error}; mend the script, or change the queue's \
         hook_fallback"
    )]
    HookFailed {
        /// The hook's error.
        error: Arc<str>,
    },
    /// The owner of the queue has used all its message ids.
    #[error("all message ids are used up; restart the server")]
    IdsExhausted,
}

/// Why the queue did not accept the result of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// The lease does not exist: it ended, was settled, or was deleted with its queue. Another consumer may have the
    /// message.
    #[error(
        "the lease has ended; the message is or will be delivered again unless it was settled; extend leases while working, or raise the queue's visibility timeout"
    )]
    LeaseNotFound,
    /// The lease belongs to another message.
    #[error("the lease is of another message; give both ids as they were delivered")]
    AnotherMessage,
    /// The delay or extension is too long.
    #[error("{} is too long; {} is the longest", time(*found), time(*max))]
    TooLong {
        /// The value found.
        found: Duration,
        /// The limit.
        max: Duration,
    },
}

/// Returns a key or group for people to read.
fn shown(path: &FairnessKey) -> Cow<'_, str> {
    String::from_utf8_lossy(path.as_bytes())
}

/// Returns the holder of a part: a key or group, or the client.
fn holder(path: Option<&FairnessKey>) -> Cow<'static, str> {
    match path {
        Some(path) => format!("`{}`", shown(path)).into(),
        None => "the client".into(),
    }
}

/// Returns a time as the command line takes it, in the largest unit that is exact: `400d`, `36h`, `1500ms`.
fn time(time: Duration) -> String {
    const UNITS: [(u128, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1000, "s"),
    ];
    let millis = time.as_millis();
    let exact = UNITS.iter().find(|(unit, _)| millis.is_multiple_of(*unit));
    match exact {
        Some((unit, name)) if millis > 0 => format!("{}{name}", millis / unit),
        _ => format!("{millis}ms"),
    }
}
