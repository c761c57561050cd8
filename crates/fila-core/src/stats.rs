//! What is counted as things happen, so that nobody needs to go through messages to know.

use std::time::Duration;

use fila_store::FairnessKey;

/// How a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Messages that may be delivered now, or when their key may run.
    pub ready: u64,
    /// Of these, how many wait for a token; those in the store only are not known to.
    pub throttled: u64,
    /// Messages that wait for their time, or to be judged after a failure.
    pub delayed: u64,
    /// Messages that are with a consumer.
    pub leased: u64,
    /// Of those that are ready, how many are in the store only.
    pub stored_only: u64,
    /// Bytes of headers and payloads of all messages in the queue.
    pub bytes: u64,
    /// Fairness keys that have messages.
    pub active_keys: u64,
    /// Consumers.
    pub consumers: u64,
    /// What happened since the queue was opened.
    pub totals: Totals,
}

impl QueueStats {
    /// Returns how many messages are in the queue.
    pub fn depth(&self) -> u64 {
        self.ready + self.delayed + self.leased
    }
}

/// What happened since the queue was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages stored.
    pub enqueued: u64,
    /// Messages not stored again, since their deduplication ids or their batches were remembered.
    pub deduplicated: u64,
    /// Messages refused.
    pub refused: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Of these, how many were a message's first that is known: not after an attempt, nor after a delivery that was
    /// given back untouched.
    pub first_delivered: u64,
    /// How long the messages of these first deliveries have waited for them, together: from when each was accepted, or
    /// from when its delay was over.
    pub waited: Duration,
    /// Deliveries that ended well.
    pub acked: u64,
    /// Deliveries that ended badly.
    pub nacked: u64,
    /// Deliveries without a result in time.
    pub lease_expired: u64,
    /// Deliveries given back, by their consumers or because these were gone.
    pub released: u64,
    /// Results that came too late.
    pub late: u64,
    /// Messages whose time to live passed.
    pub expired: u64,
    /// Messages purged.
    pub purged: u64,
    /// Messages that could not be read back.
    pub damaged: u64,
    /// Deliveries that ended badly, after which the message was to be delivered again.
    pub retried: u64,
    /// Messages that became dead letters, and have left for another queue.
    pub dead_lettered: u64,
    /// Times that a message was to become a dead letter and there was no room for it: it was kept, and tried again.
    pub dead_letters_refused: u64,
    /// Messages that have left for the queue that they had come from.
    pub redriven: u64,
}

/// How a fairness key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStats {
    /// Which one.
    pub fairness_key: FairnessKey,
    /// The weight in force.
    pub weight: u32,
    /// Whether an operator has paused it.
    pub is_paused: bool,
    /// Messages that may be delivered now, or when the key may run.
    pub ready: u64,
    /// Of these, how many wait for a token; those in the store only are not known to.
    pub throttled: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that are with a consumer.
    pub leased: u64,
    /// Deliveries since the key came into memory: a key without messages is forgotten at some time, and its totals
    /// begin at zero when it comes back.
    pub delivered: u64,
    /// As [`Totals::first_delivered`], of this key.
    pub first_delivered: u64,
    /// As [`Totals::waited`], of this key.
    pub waited: Duration,
    /// Deliveries that ended well.
    pub acked: u64,
    /// Deliveries that ended badly.
    pub nacked: u64,
    /// For how long the first message that is ready has been so; for one that came back, since it did. None if no
    /// message is ready, or if those that are wait behind one that waits for its time, in a strictly ordered queue.
    ///
    /// Of messages that are in the store only it is known when the first of them was accepted, or else the one before
    /// it: this may then be more than the truth.
    pub head_waiting: Option<Duration>,
}

/// A place among the keys of a queue. Keys that come and go while one walks may be missed; none is seen twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCursor(pub(crate) u32);

impl KeyCursor {
    /// Returns the place before all keys.
    pub const fn start() -> Self {
        Self(0)
    }

    /// Takes a number that was a place once. Any number is a place.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}
