//! Explains why a fairness key or a group of keys waits: its state, its share, and the bound on its wait.

use std::time::Duration;

use fila_store::{FairnessKey, ThrottleKey, Timestamp};

use crate::Delivering;

/// The state of a fairness key or a group, and why its next message has not been delivered yet.
///
/// Everything about a group is about all its members together, on every level, the messages of exactly its path too.
///
/// Costs are in thousandths of a message. A message costs 1000, unless the queue charges for bytes or for time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The moment that it describes.
    pub now: Timestamp,
    /// Whether the path is that of a key or of a group.
    pub subject: Subject,
    /// Why its next message waits: of several reasons, the first in the order of [`Waiting`].
    pub waiting: Waiting,
    /// The weight in force, among the keys and groups beside it.
    pub weight: u32,
    /// Messages that may be delivered now, or when the key may run.
    pub ready: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that consumers hold.
    pub leased: u64,
    /// The cost delivered to the key in the last minute, and its fair share.
    pub recent: Recent,
    /// The cost by which it is ahead of its share, among the keys and groups beside it. It waits until they have caught
    /// up.
    pub debt: u64,
    /// The most that other keys get before its next message, once nothing holds it up: in messages, rounded down, or in
    /// their cost. It counts the keys that may run now; a key that joins them adds its own share. It is the sum of the
    /// bounds of all levels. `None` if the key is unknown.
    pub bound: Option<u64>,
    /// When its next message is expected to be delivered, if that can be told.
    pub estimate: Option<Estimate>,
    /// The groups that it is in, from the top down, and at the end the key or group itself.
    pub levels: Vec<LevelExplanation>,
}

/// The thing that is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// One fairness key.
    Key,
    /// A group, with all its members.
    Group,
}

/// One level of an explanation: a group, or the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelExplanation {
    /// The path of the group, or the key.
    pub path: FairnessKey,
    /// The weight in force, among the keys and groups beside it.
    pub weight: u32,
    /// Whether an operator has paused this level.
    pub delivery: Delivering,
    /// The most messages of this level that consumers may hold at once; `None` if there is no limit.
    pub cap: Option<u32>,
    /// Messages of this level that consumers hold.
    pub leased: u64,
    /// The cost delivered to this level in the last minute, of that delivered to the level above, and its fair share of it.
    pub recent: Recent,
    /// The cost by which this level is ahead of the keys and groups beside it.
    pub debt: u64,
    /// The part of the [bound](Explanation::bound) that the keys and groups beside this level add to it. `None` if the key
    /// is unknown.
    pub bound: Option<u64>,
    /// Whether it is this level that makes the message wait: its pause, its cap, or a reason of the key itself.
    pub holds_up: bool,
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
    /// An operator has paused the key, or a group that it is in.
    KeyPaused {
        /// The paused key or group. Of several, the one on top.
        path: FairnessKey,
    },
    /// As many of its messages, or of those of a group that it is in, are with consumers as may be at once.
    AtCap {
        /// The key or group whose cap it is. Of several, the one on top.
        path: FairnessKey,
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
    /// Groups only: every member that has messages waits for something of its own.
    MembersWait,
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

impl Waiting {
    /// Returns which level is the cause: that of this path, if a pause or a cap is, or else the last one, if it is a
    /// reason of the key itself.
    pub(crate) fn holds_up(&self, path: &FairnessKey, is_last: bool) -> bool {
        match self {
            Self::KeyPaused { path: cause } | Self::AtCap { path: cause, .. } => path == cause,
            Self::Storing
            | Self::TooManyDelayed
            | Self::BackingOff { .. }
            | Self::Judging
            | Self::Throttled { .. }
            | Self::ReadFailed { .. } => is_last,
            Self::Empty
            | Self::QueuePaused
            | Self::MembersWait
            | Self::Reading
            | Self::NoConsumers
            | Self::NoCredit
            | Self::Runnable { .. } => false,
        }
    }
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
    /// The cost delivered to all keys; on a level of an explanation, to all keys of the group above.
    pub total: u64,
    /// The cost delivered to this key or group.
    pub served: u64,
    /// Its fair share: of every delivery that was made while it could run, its weight divided by the weights of all keys
    /// and groups beside it that could run at that moment. On one level the sum of these is `total`. For a key in groups, it
    /// is the fair share of a fair share, level by level; zero if one of its groups got nothing.
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
