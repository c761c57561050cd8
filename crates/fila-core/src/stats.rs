//! Statistics. The broker counts events when they happen, so that a query visits no messages.

use std::time::Duration;

use fila_store::FairnessKey;

/// The statistics of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Messages that may be delivered now, or when their key may run. Messages that move here from another queue count
    /// from the beginning of their move on, and in the other queue no longer.
    pub ready: u64,
    /// The ready messages that wait for a token. Messages in the store only are not counted.
    pub throttled: u64,
    /// Messages that wait for their time, or for a decision after a failure.
    pub delayed: u64,
    /// Messages that consumers hold.
    pub leased: u64,
    /// The ready messages that are in the store only.
    pub stored_only: u64,
    /// Bytes of headers and payloads of all messages in the queue.
    pub bytes: u64,
    /// Fairness keys that have messages.
    pub active_keys: u64,
    /// Groups of fairness keys that have messages, on every level.
    pub active_groups: u64,
    /// Consumers.
    pub consumers: u64,
    /// Counts since the queue was opened.
    pub totals: Totals,
}

impl QueueStats {
    /// Returns the number of messages in the queue.
    pub fn depth(&self) -> u64 {
        self.ready + self.delayed + self.leased
    }
}

/// Counts since the queue was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages stored.
    pub enqueued: u64,
    /// Duplicates: messages not stored again, by their deduplication ids or their batches.
    pub deduplicated: u64,
    /// Messages refused.
    pub refused: u64,
    /// Those of them whose key or client held its part of a pool.
    pub over_part: u64,
    /// Deliveries.
    pub delivered: u64,
    /// First deliveries: those after no attempt and no release, as far as the broker knows.
    pub first_delivered: u64,
    /// The sum of the waits before first deliveries. A wait begins when the message is accepted or when its delay ends.
    pub waited: Duration,
    /// Deliveries that consumers acknowledged.
    pub acked: u64,
    /// Deliveries that consumers rejected.
    pub nacked: u64,
    /// Deliveries without a result in time.
    pub lease_expired: u64,
    /// Deliveries that consumers gave back, or that ended because the consumer left.
    pub released: u64,
    /// Results that arrived after the end of their lease.
    pub late: u64,
    /// Messages whose time to live has passed.
    pub expired: u64,
    /// Messages purged.
    pub purged: u64,
    /// Messages that the store could not read back.
    pub damaged: u64,
    /// Failed deliveries after which the queue retries the message.
    pub retried: u64,
    /// Messages that became dead letters and moved to the dead-letter queue.
    pub dead_lettered: u64,
    /// Times that the dead-letter queue had no room for a message: the queue kept and retried it.
    pub dead_letters_refused: u64,
    /// Dead letters that moved back to another queue.
    pub redriven: u64,
}

/// The statistics of a fairness key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStats {
    /// The key.
    pub fairness_key: FairnessKey,
    /// The weight in force.
    pub weight: u32,
    /// Whether an operator has paused it.
    pub is_paused: bool,
    /// Messages that may be delivered now, or when the key may run.
    pub ready: u64,
    /// The ready messages that wait for a token. Messages in the store only are not counted.
    pub throttled: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that consumers hold.
    pub leased: u64,
    /// Deliveries since the key came into memory. The queue forgets keys without messages after a while; the counts of such
    /// a key begin again at zero.
    pub delivered: u64,
    /// As [`Totals::first_delivered`], of this key.
    pub first_delivered: u64,
    /// As [`Totals::waited`], of this key.
    pub waited: Duration,
    /// Deliveries that consumers acknowledged.
    pub acked: u64,
    /// Deliveries that consumers rejected.
    pub nacked: u64,
    /// How long the first ready message has been ready, since its last return if it was delivered before. `None` if no
    /// message is ready, or if, in a strictly ordered queue, the ready messages wait behind a delayed one.
    ///
    /// For messages that are in the store only, the queue knows when the first of them or its predecessor was accepted. The
    /// value may then be too large.
    pub head_waiting: Option<Duration>,
    /// The deliveries of the last minute, among those of its group if it is in one.
    pub recent: RecentShare,
}

/// The statistics of a group of fairness keys: of all its members together, on every level below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// Its path. Messages of its own, if it has any, are those of the key of this name.
    pub path: FairnessKey,
    /// The weight in force, among its siblings.
    pub weight: u32,
    /// Whether an operator has paused it. Then no key in it delivers messages.
    pub is_paused: bool,
    /// The most leases of its members at once, if an operator has set it.
    pub concurrency: Option<u32>,
    /// The most messages of its members, if an operator has set it.
    pub depth_max: Option<u64>,
    /// Keys and groups directly in it. Messages of a key with the path of the group are one of them.
    pub members: u32,
    /// Keys in it that have messages, on every level.
    pub active_keys: u64,
    /// Messages that may be delivered now, or when the key may run.
    pub ready: u64,
    /// The ready messages that wait for a token. Messages in the store only are not counted.
    pub throttled: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that consumers hold.
    pub leased: u64,
    /// Deliveries since the group came into memory. The queue forgets a group some time after its last member.
    pub delivered: u64,
    /// The deliveries of the last minute, among those of the group around it if there is one.
    pub recent: RecentShare,
}

/// The deliveries of the last minute to a key or a group, by their cost, in thousandths of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentShare {
    /// The cost delivered.
    pub served: u64,
    /// The fair share of it. See [`Recent::ideal`](crate::Recent::ideal).
    pub ideal: u64,
}

/// A place among the keys or the groups of a queue. Listing all of them by pages may miss some that come and go; it shows
/// none twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCursor(pub(crate) u32);

impl KeyCursor {
    /// Returns the place before all of them.
    pub const fn start() -> Self {
        Self(0)
    }

    /// Converts the number of a place back. Any number is a place.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}
