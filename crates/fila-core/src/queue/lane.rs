//! The messages of one fairness key.
//!
//! A lane is a line of messages in the order of their ids, in three stretches:
//!
//! ```text
//! returned     delivered before, or delayed: known one by one, payloads perhaps in the store only
//! ready        never delivered, in memory
//! stored       in the store only; begins after all of the above, and is read back from there
//! ```
//!
//! While there is a stored stretch, new messages join it: order needs it, and so does the bound on memory. Messages that
//! take tokens from buckets stand in lines of their own beside this one, see [`aisle`](super::aisle), unless the queue is
//! strictly ordered; the first of all lines that are open is the next. When the lane is empty, all handles are dropped.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use drr::{Cost, Weight};
use fila_store::{FairnessKey, MessageId, Meta, Timestamp};

use super::aisle::Aisles;
use super::dispatch::MESSAGE;
use super::line::Line;
use super::message::{Handle, carried, ready_since};
use super::pace::Share;
use crate::{ConsumerId, Definition, Delivering, KeySettings, Ordering};

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) key: FairnessKey,
    pub(super) engine: drr::Key,
    /// What producers said last.
    pub(super) weight: Weight,
    pub(super) settings: KeySettings,
    pub(super) line: Line,
    /// Messages that take tokens; none if there are none.
    pub(super) aisles: Option<Box<Aisles>>,
    pub(super) stored: Option<Stored>,
    /// Live messages in lines that are ready.
    pub(super) ready_count: u64,
    /// Of these, how many stand in aisles that are shut; in a strictly ordered lane the head, if it waits for a token.
    pub(super) throttled: u64,
    /// In a strictly ordered lane: the aisle whose head waits for a token, and everybody behind it.
    pub(super) held: Option<u32>,
    /// The next message in the store would have to wait for a token, and there is no room for more of those.
    pub(super) is_full: bool,
    /// A delivery is owed whose message may lack a token, too: no more are promised until it is read.
    pub(super) is_slow: bool,
    pub(super) delayed: u64,
    pub(super) leased: u32,
    /// Accepted, and not yet durable.
    pub(super) uncommitted: u32,
    /// In a strictly ordered lane: acknowledged, and not yet durably so. What comes next waits for that.
    pub(super) settling: u32,
    /// Messages of the stored stretch that are deleted, and not yet durably so. Until then nothing is read.
    pub(super) removing: u32,
    pub(super) loading: Loading,
    /// Bytes set apart for what is being read.
    pub(super) reserved: usize,
    /// Deliveries that are paid for, and wait for their messages to be read. While there are any, there is a read
    /// under way.
    pub(super) promises: VecDeque<Promise>,
    /// In a strictly ordered lane: the head waits for its time.
    pub(super) is_blocked: bool,
    /// A message of it has failed when as many were waiting as may.
    pub(super) is_held: bool,
    /// What a delivery takes, where time is what counts: a mean of the last ones.
    pub(super) expected: Cost,
    /// What it got in the last minute.
    pub(super) share: Share,
    pub(super) delivered: u64,
    pub(super) first_delivered: u64,
    /// How long those that were delivered for the first time have waited for it, together.
    pub(super) waited: Duration,
    pub(super) acked: u64,
    pub(super) nacked: u64,
    /// What the engine was told last.
    pub(super) is_awake: bool,
    pub(super) is_parked: bool,
    /// Whether it is counted among the keys that have messages.
    pub(super) is_active: bool,
    /// Whether it is counted among the lanes that cannot be forgotten.
    pub(super) is_busy: bool,
    /// Whether it is in the list of lanes that may be forgotten.
    pub(super) is_listed: bool,
    /// Whether the books have a list of its messages that wait for their time.
    pub(super) has_delays: bool,
}

/// Messages that are in the store only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    /// They come after this one.
    pub(super) after: MessageId,
    /// And end with this one. What is in the store behind it is not confirmed yet.
    pub(super) last: MessageId,
    pub(super) count: u64,
    /// What they carry.
    pub(super) bytes: u64,
    /// From when on the first of them can be delivered, or the one before it could.
    pub(super) since: Timestamp,
}

/// Whether something is being read for a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Loading {
    Nothing,
    /// What comes after what is in memory.
    Backlog(Stretch),
    /// The payloads of these, the first of the line among them.
    Payloads(Vec<Handle>),
    /// It failed, and is to be tried again; deliveries wait for that.
    Failed,
}

/// A delivery that a lane owes to a consumer: its turn has come, and its message is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    pub(super) consumer: u32,
    /// Tells whether it is still the same consumer.
    pub(super) name: ConsumerId,
    pub(super) charged: Cost,
}

/// What was confirmed of the stored messages when a read was asked for: all of it is there to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) last: MessageId,
    pub(super) count: u64,
}

impl Lane {
    pub(super) fn new(
        key: FairnessKey,
        engine: drr::Key,
        weight: Weight,
        settings: KeySettings,
    ) -> Self {
        Self {
            key,
            engine,
            weight,
            settings,
            line: Line::default(),
            aisles: None,
            stored: None,
            ready_count: 0,
            throttled: 0,
            held: None,
            is_full: false,
            is_slow: false,
            delayed: 0,
            leased: 0,
            uncommitted: 0,
            settling: 0,
            removing: 0,
            loading: Loading::Nothing,
            reserved: 0,
            promises: VecDeque::new(),
            is_blocked: false,
            is_held: false,
            expected: Cost::new(MESSAGE),
            share: Share::default(),
            delivered: 0,
            first_delivered: 0,
            waited: Duration::ZERO,
            acked: 0,
            nacked: 0,
            is_awake: false,
            is_parked: false,
            is_active: false,
            is_busy: false,
            is_listed: false,
            has_delays: false,
        }
    }

    /// Returns the weight in force.
    pub(super) fn weight_in_force(&self) -> Weight {
        let fixed = self.settings.weight.and_then(|fixed| {
            let value = u64::from(fixed.get());
            Weight::new(value)
        });
        fixed.unwrap_or(self.weight)
    }

    pub(super) fn is_paused(&self) -> bool {
        match self.settings.delivery {
            Delivering::Running => false,
            Delivering::Paused => true,
        }
    }

    /// Returns how many of its messages may be leased at once.
    pub(super) fn cap(&self, definition: &Definition) -> u32 {
        match definition.ordering {
            Ordering::None => {
                let cap = self.settings.concurrency.or(definition.key_concurrency);
                cap.map_or(u32::MAX, NonZeroU32::get)
            }
            Ordering::Key => 1,
        }
    }

    /// Tells whether one more may be leased, with this cap.
    pub(super) fn may_deliver(&self, cap: u32) -> bool {
        !self.is_paused()
            && !self.is_blocked
            && self.held.is_none()
            && !self.is_held
            && self.removing == 0
            && self.leased + self.settling < cap
    }

    pub(super) fn stored_count(&self) -> u64 {
        self.stored.map_or(0, |stored| stored.count)
    }

    /// Returns how many of its messages wait for nothing but its turn.
    pub(super) fn deliverable(&self) -> u64 {
        let readable = if self.is_full { 0 } else { self.stored_count() };
        (self.ready_count + readable).saturating_sub(self.promises.len() as u64 + self.throttled)
    }

    /// Returns how many messages it has, but for those that are not durable yet.
    pub(super) fn depth(&self) -> u64 {
        self.ready_count + self.stored_count() + self.delayed + u64::from(self.leased)
    }

    /// Tells whether nothing would be lost with it but what the engine knows.
    pub(super) fn is_idle(&self) -> bool {
        self.depth() == 0
            && self.uncommitted == 0
            && self.settling == 0
            && self.removing == 0
            && !self.is_held
            && self.loading == Loading::Nothing
            && self.promises.is_empty()
    }

    /// Adds a message that is in the store behind all others.
    pub(super) fn push_stored(&mut self, id: MessageId, meta: &Meta) {
        let bytes = carried(meta);
        match &mut self.stored {
            Some(stored) => {
                stored.last = id;
                stored.count += 1;
                stored.bytes += bytes;
            }
            none => {
                *none = Some(Stored {
                    after: MessageId::from_number(id.get() - 1),
                    last: id,
                    count: 1,
                    bytes,
                    since: ready_since(meta),
                });
            }
        }
    }
}
