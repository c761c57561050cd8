//! A message in memory.

use std::cmp::Ordering;
use std::time::Duration;

use drr::Cost;
use fila_store::{DeathReason, Locator, MessageId, Meta, Payload, Timestamp};

use crate::LeaseId;
use crate::memory::Memory;
use crate::wheel::Timer;

/// A message in memory. Its payload may be in the store only.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: MessageId,
    pub(super) lane: u32,
    /// Its throttle set in that lane, if it takes tokens.
    pub(super) set: Option<u32>,
    pub(super) meta: Meta,
    pub(super) payload: Option<Payload>,
    pub(super) state: State,
    /// Whether it was delivered before, as far as that is known.
    pub(super) was_delivered: bool,
    /// How many of its consumers were lost since it came into memory.
    pub(super) lost: u8,
    /// When it becomes ready, its lease ends or it expires, depending on its state.
    pub(super) timer: Option<Timer>,
}

/// Where a message is in its life.
#[derive(Debug)]
pub(super) enum State {
    /// May be delivered when its lane is next.
    Ready {
        /// From when on it could be.
        since: Timestamp,
    },
    /// Waits for its time.
    Delayed,
    /// A delivery of it has failed, and it is not decided yet what becomes of it.
    Failing {
        /// How long it should wait, if the consumer has asked for that.
        requested_delay: Option<Duration>,
        /// Why it becomes a dead letter, once that is decided.
        death: Option<DeathReason>,
    },
    /// With a consumer.
    Leased {
        lease: LeaseId,
        holder: Holder,
        /// Whether a handler has begun it, as far as that is known.
        is_begun: bool,
        since: Timestamp,
        charged: Cost,
    },
}

/// The client's side of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The stream of a consumer.
    Stream {
        consumer: u32,
        /// Its place in the consumer's list.
        position: u32,
    },
    /// No stream: a call took the message, or has extended the lease after its consumer was lost.
    Call,
    /// No client: the consumer was lost. The lease waits for the client to come back.
    Lost,
}

impl Message {
    pub(super) fn handle(&self, slot: u32) -> Handle {
        Handle { id: self.id, slot }
    }

    pub(super) fn locator(&self) -> Locator {
        Locator {
            fairness_key: self.meta.schedule.fairness_key.clone(),
            id: self.id,
        }
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.meta.expires_at.is_some_and(|end| end <= now)
    }

    pub(super) fn is_early(&self, now: Timestamp) -> bool {
        self.meta.deliver_after.is_some_and(|due| due > now)
    }

    /// Returns when the state of a message that is not leased changes: when it is due, or when it expires.
    pub(super) fn next_moment(&self, now: Timestamp) -> Option<Timestamp> {
        let due = self.meta.deliver_after.filter(|due| *due > now);
        [due, self.meta.expires_at].into_iter().flatten().min()
    }

    pub(super) fn carried(&self) -> u64 {
        carried(&self.meta)
    }

    /// Returns the bytes that it takes in memory.
    pub(super) fn footprint(&self) -> usize {
        let history = self.meta.history.as_ref();
        let rest = match self.payload {
            Some(_) => Memory::whole(self.meta.sizes),
            None => Memory::bare(),
        };
        history.map_or(0, |history| history.bytes()) + rest
    }
}

/// Returns when a message that was never delivered became ready: when it was accepted, or when its delay was over.
pub(crate) fn ready_since(meta: &Meta) -> Timestamp {
    meta.deliver_after
        .map_or(meta.enqueued_at, |due| due.max(meta.enqueued_at))
}

/// Returns the bytes that a message carries.
pub(super) fn carried(meta: &Meta) -> u64 {
    meta.sizes.total()
}

/// Where a message of this id was put. It may be gone, and the slot may be another message's: compare ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) id: MessageId,
    pub(super) slot: u32,
}

impl Ord for Handle {
    fn cmp(&self, other: &Self) -> Ordering {
        self.id.cmp(&other.id)
    }
}

impl PartialOrd for Handle {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
