//! Why a fairness key waits, what it gets, and what it may count on.

use std::time::Duration;

use fila_store::{ThrottleKey, Timestamp};

/// How a fairness key is, and why its next message has not been delivered yet.
///
/// Costs are in thousandths of a message: a message costs 1000, or what it is worth where a queue charges for bytes or
/// for time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// When this was so.
    pub now: Timestamp,
    /// What its next message waits for. Of several things that hold it up, the first to be named in [`Waiting`].
    pub waiting: Waiting,
    /// The weight in force.
    pub weight: u32,
    /// Messages that may be delivered now, or when the key may run.
    pub ready: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that are with a consumer.
    pub leased: u64,
    /// What it got of late, and what it should have got.
    pub recent: Recent,
    /// By how much cost the key is ahead of its share: what it pays off by waiting.
    pub debt: u64,
    /// How much others get at most before its next message, once nothing holds it up: in messages, rounded down, or in
    /// what messages are worth. It counts the keys that may run now; each that joins them adds to it what it gets. None
    /// if the key is not known.
    pub bound: Option<u64>,
    /// When its next message will be delivered, if there is something to go by.
    pub estimate: Option<Estimate>,
}

/// What a key's next message waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing: no message of the key waits. Some may be with consumers.
    Empty,
    /// Its messages are being stored, or others of it are being removed from the store first.
    Storing,
    /// An operator has paused the queue.
    QueuePaused,
    /// An operator has paused the key.
    KeyPaused,
    /// As many of its messages are with consumers as may be at once.
    AtCap {
        /// How many that is. In a strictly ordered queue it is one, until its acknowledgement is stored.
        cap: u32,
    },
    /// A message of it has failed when as many of the queue's messages waited for their time as may, and has to be given
    /// a place first.
    TooManyDelayed,
    /// Its messages wait for their time: a delay they were sent with, or one after a failed delivery. In a strictly
    /// ordered queue it is the first one that does.
    BackingOff {
        /// When the first of them is due.
        until: Timestamp,
    },
    /// Its messages have failed, and it is being decided what becomes of them.
    Judging,
    /// All that it has wait for tokens of throttle keys; in a strictly ordered queue, its first message does.
    Throttled {
        /// Which one the message lacks that is let through first.
        key: ThrottleKey,
        /// When the token comes that is for it. If others wait for the same key, it may be one or two tokens earlier or
        /// later. None if none comes, since the rate is zero.
        until: Option<Timestamp>,
    },
    /// Its messages could not be read from the store.
    ReadFailed {
        /// When that is tried again.
        until: Timestamp,
    },
    /// Its turn has come, and its message is being read from the store.
    Reading,
    /// Nobody consumes from the queue.
    NoConsumers,
    /// The consumers that are there have been sent nothing for a minute and ask for nothing: all have what they can
    /// take, or are going.
    NoCredit,
    /// Its turn: it is delivered when a consumer asks for more and those before it have had theirs.
    Runnable {
        /// How many come before.
        position: Position,
    },
}

/// How many deliveries to other keys come before one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Exactly so many, unless other keys come, go, or change before.
    Exactly(u64),
    /// About so many: too many to be foreseen one by one.
    About(u64),
}

impl Position {
    /// Returns the number.
    pub const fn deliveries(self) -> u64 {
        match self {
            Self::Exactly(number) | Self::About(number) => number,
        }
    }
}

/// What was delivered of late, by cost; what was charged when a delivery began is what counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recent {
    /// How long that is: from 50 to 60 seconds, or less if the queue has been there for less.
    pub over: Duration,
    /// What all keys got.
    pub total: u64,
    /// What this key got.
    pub served: u64,
    /// What it should have got: of every delivery that was made while the key could run, to whomever it was, its weight
    /// out of the weights of all that could run at that moment. What all keys should have got comes to what they got.
    pub ideal: u64,
}

/// When a message will be delivered, as far as one can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// When.
    pub at: Timestamp,
    /// What tells.
    pub basis: Basis,
}

/// What an estimate goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// How many come before, and how fast the queue has delivered of late.
    QueuePace,
    /// How fast the key itself has been delivered of late.
    KeyPace,
    /// When what it waits for is over.
    Due,
    /// It is being read, which takes as long as the store takes.
    Store,
}
