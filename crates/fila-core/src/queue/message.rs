//! A message in memory.

use std::cmp::Ordering;
use std::time::Duration;

use drr::Cost;
use fila_store::{DeathReason, Locator, MessageId, Meta, Payload, Timestamp};

use crate::LeaseId;
use crate::memory::Memory;
use crate::wheel::Timer;

/// A message that the scheduler knows one by one. Its payload may be in the store only.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: MessageId,
    pub(super) lane: u32,
    /// Its aisle in that lane, if it takes tokens.
    pub(super) aisle: Option<u32>,
    pub(super) meta: Meta,
    pub(super) payload: Option<Payload>,
    pub(super) state: State,
    /// Whether it was delivered before, as far as that is known.
    pub(super) was_delivered: bool,
    /// What it waits for: its time, the end of its lease, or the end of its life, whichever its state is about.
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
    /// Has come back from a consumer that failed, and waits to be judged.
    Failing {
        /// How long the consumer wants it to wait, if it has said so.
        wish: Option<Duration>,
        /// Why it is to become a dead letter, if that is decided.
        sentence: Option<DeathReason>,
    },
    /// With a consumer.
    Leased {
        lease: LeaseId,
        consumer: u32,
        /// Its place in the consumer's list.
        position: u32,
        since: Timestamp,
        charged: Cost,
    },
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

    pub(super) fn carried(&self) -> u64 {
        carried(&self.meta)
    }

    /// Returns what it takes in memory.
    pub(super) fn footprint(&self) -> usize {
        let history = self.meta.history.as_ref();
        let history = history.map_or(0, |history| history.bytes());
        history
            + match self.payload {
                Some(_) => Memory::whole(self.meta.sizes),
                None => Memory::bare(),
            }
    }
}

/// Returns from when on a message that was never delivered can be: from its acceptance, or from when its delay is over.
pub(crate) fn ready_since(meta: &Meta) -> Timestamp {
    meta.deliver_after
        .map_or(meta.enqueued_at, |due| due.max(meta.enqueued_at))
}

/// Returns the bytes that a message carries.
pub(super) fn carried(meta: &Meta) -> u64 {
    meta.sizes.total()
}

/// Where a message of this id was put. It may have gone since, and the slot may be another's: ids tell.
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
