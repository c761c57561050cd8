//! Explains why a fairness key waits: its state, its share, and the bound on its wait.

use std::time::Duration;

use fila_store::{ThrottleKey, Timestamp};

/// The state of a fairness key, and why its next message has not been delivered yet.
///
/// Costs are in thousandths of a message. A message costs 1000, unless the queue charges for bytes or for time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The moment that it describes.
    pub now: Timestamp,
    /// Why its next message waits: of several reasons, the first in the order of [`Waiting`].
    pub waiting: Waiting,
    /// The weight in force.
    pub weight: u32,
    /// Messages that may be delivered now, or when the key may run.
    pub ready: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that consumers hold.
    pub leased: u64,
    /// The cost delivered to the key in the last minute, and its fair share.
    pub recent: Recent,
    /// The cost by which the key is ahead of its share. It waits until other keys have caught up.
    pub debt: u64,
    /// The most that other keys get before its next message, once nothing holds it up: in messages, rounded down, or in
    /// their cost. It counts the keys that may run now; a key that joins them adds its own share. `None` if the key is
    /// unknown.
    pub bound: Option<u64>,
    /// When its next message is expected to be delivered, if that can be told.
    pub estimate: Option<Estimate>,
}

/// Why a key's next message waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// No message of the key waits. Some may be with consumers.
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
    /// One of its messages failed when as many of the queue's messages were delayed as may be. The key waits for room.
    TooManyDelayed,
    /// Its messages wait for their time: a delay they were sent with, or one after a failed delivery. In a strictly
    /// ordered queue it is the first one that does.
    BackingOff {
        /// When the first of them is due.
        until: Timestamp,
    },
    /// Deliveries of its messages have failed, and a hook decides what becomes of them.
    Judging,
    /// All its messages wait for tokens of throttle keys; in a strictly ordered queue, its first message does.
    Throttled {
        /// The throttle key of the token that comes first.
        key: ThrottleKey,
        /// When that token comes. If others wait for the same throttle key, it may be one or two tokens earlier or later.
        /// `None` if it never comes, since the rate is zero.
        until: Option<Timestamp>,
    },
    /// Its messages could not be read from the store.
    ReadFailed {
        /// When the broker tries again.
        until: Timestamp,
    },
    /// Its turn has come, and its message is being read from the store.
    Reading,
    /// The queue has no consumers.
    NoConsumers,
    /// The consumers got nothing for a minute and ask for nothing: each has as much as it can take, or is leaving.
    NoCredit,
    /// Nothing holds it up: it is delivered when a consumer asks for more and the deliveries before it are made.
    Runnable {
        /// How many deliveries come before.
        position: Position,
    },
}

/// How many deliveries to other keys come before one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// This many, unless other keys come, go, or change before.
    Exactly(u64),
    /// About this many: too many to be foreseen one by one.
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

/// The deliveries of the last minute, by the cost that the queue charged when each began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// The time that is covered: from 50 to 60 seconds, or less if the queue was opened later.
    pub over: Duration,
    /// The cost delivered to all keys.
    pub total: u64,
    /// The cost delivered to this key.
    pub served: u64,
    /// The fair share of this key: of every delivery that was made while the key could run, its weight divided by the
    /// weights of all keys that could run at that moment. The sum over all keys is `total`.
    pub ideal: u64,
}

/// When a message is expected to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The moment.
    pub at: Timestamp,
    /// The basis of the estimate.
    pub basis: Basis,
}

/// The basis of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// How many deliveries come before, and how fast the queue delivers.
    QueuePace,
    /// How fast this key is delivered.
    KeyPace,
    /// When the delay, the throttle or the retry that it waits for is due.
    Due,
    /// It is being read, which takes as long as the store takes.
    Store,
}
