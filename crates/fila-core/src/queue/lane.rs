//! The messages of one fairness key.
//!
//! A lane delivers its messages in the order of their ids. It keeps them in three parts:
//!
//! ```text
//! returned     delivered before, or delayed: in memory, payloads perhaps in the store only
//! ready        never delivered, in memory
//! backlog      in the store only; begins after all of the above, and is read back from there
//! ```
//!
//! While there is a backlog, new messages join it: the order needs it, and so does the bound on memory. Messages that
//! name throttle keys stand in lines of their own, see [`throttle_sets`](super::throttle_sets), unless the queue is
//! strictly ordered. The next message is the first of all lines that do not wait for a token.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use drr::{Cost, Weight};
use fila_store::{MessageId, Meta, Timestamp};
use slab::Slab;

use super::blocked::{BlockReason, Blocked};
use super::counts::{Counts, Stage};
use super::dispatch::MESSAGE;
use super::groups::{NodeSettings, Usage, weight_of};
use super::line::{Join, Line};
use super::message::{Handle, Message, State, carried, ready_since};
use super::pace::{Arrivals, Share};
use super::throttle_sets::ThrottleSets;
use crate::{ConsumerId, Delivering, Ordering, Source};

/// How many stale entries a lane's list of delayed messages may hold, beside as many as there are live ones.
const DELAYS_SLACK: usize = 16;

type Delays = BinaryHeap<Reverse<(Timestamp, Handle)>>;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) ordering: Ordering,
    /// The weight that the last message named.
    pub(super) weight: Weight,
    pub(super) settings: NodeSettings,
    pub(super) line: Line,
    /// Messages that name throttle keys; `None` if there are none.
    pub(super) sets: Option<Box<ThrottleSets>>,
    pub(super) backlog: Option<Backlog>,
    /// Messages that wait for their time, the first one on top. An entry may be stale.
    delays: Option<Box<Delays>>,
    pub(super) counts: Counts,
    /// How many of the messages that are not durable yet will wait for their time.
    pub(super) delayed_uncommitted: u32,
    pub(super) deletions: Deletions,
    pub(super) loading: Loading,
    /// Deliveries that are charged, and wait for their messages to be read. While there are any, a read is under way.
    pub(super) owed: VecDeque<OwedDelivery>,
    /// A message of it failed when as many messages were delayed as may be. It delivers nothing until there is room.
    pub(super) is_suspended: bool,
    /// How long consumers have held its last messages, in microseconds: a mean. Where deliveries are charged by time, that
    /// is what the next one costs.
    pub(super) expected: Cost,
    /// Its deliveries of the last minute.
    pub(super) share: Share,
    pub(super) totals: LaneTotals,
    /// The client that has brought the key, if that is known.
    pub(super) source: Option<Source>,
    pub(super) home: Home,
    /// The values that the table derived from it at the last refresh.
    pub(super) known: KnownLane,
}

/// Where a lane is in the tree of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In no group.
    Top,
    /// In the group that its path says.
    Member,
    /// In the group of its own name, among whose members its weight is 1.
    Own,
}

/// Deletions that are not durable yet, and that the lane waits for.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    /// Strictly ordered lanes only. If the next message went out before, a crash could bring back the one before it.
    pub(super) strict: u32,
    /// Messages of the backlog: a read might still find them.
    pub(super) backlog: u32,
}

/// Counts since the lane came into memory.
#[derive(Debug, Default)]
pub(super) struct LaneTotals {
    pub(super) delivered: u64,
    pub(super) first_delivered: u64,
    /// How long the messages of the first deliveries have waited, together, in milliseconds.
    pub(super) waited_ms: u64,
    pub(super) acked: u64,
    pub(super) nacked: u64,
    pub(super) arrivals: Arrivals,
}

/// The values that the [table](super::lane_table) derives from a lane, and refreshes after each change of the lane.
#[derive(Debug)]
pub(super) struct KnownLane {
    /// The lane is in the list of lanes to be refreshed.
    pub(super) is_changed: bool,
    /// The engine has it in its ring.
    pub(super) is_runnable: bool,
    pub(super) activity: Activity,
    /// The client that it counts for, if it is not idle.
    pub(super) source: Option<Source>,
    /// What its groups count for it, if it is in any.
    pub(super) used: Usage,
}

/// How much would be lost with a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    /// Nothing but what the engine knows: the lane can be forgotten.
    Idle,
    /// It has no durable message, and something is under way.
    Busy,
    /// It has durable messages.
    Active,
}

/// Messages that are in the store only. How many they are is in the lane's counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backlog {
    /// They come after this one.
    pub(super) after: MessageId,
    /// The last one. Later messages in the store are not confirmed yet.
    pub(super) last: MessageId,
    /// The bytes of their headers and payloads.
    pub(super) bytes: u64,
    /// From when on the first of them can be delivered, or the one before it could.
    pub(super) since: Timestamp,
    /// The first one would have to wait for a token, and memory has no room for more that do.
    pub(super) is_parked: bool,
}

/// Whether something is being read for a lane.
#[derive(Debug)]
pub(super) enum Loading {
    Idle,
    UnderWay(PendingRead),
    /// The last read failed, and is to be tried again; deliveries wait for that.
    Failed,
}

#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) wanted: Wanted,
    /// Bytes of memory set apart for it.
    pub(super) reserved: usize,
    /// A delivery is owed whose message may turn out to lack a token: the lane owes no more until it is read.
    pub(super) is_last_owed: bool,
}

#[derive(Debug)]
pub(super) enum Wanted {
    /// The next messages of the backlog.
    Backlog(ConfirmedBacklog),
    /// The payloads of these, the first of the line among them.
    Payloads(Vec<Handle>),
}

/// The part of a backlog that was confirmed when a read was asked for: all of it is there to be found.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfirmedBacklog {
    pub(super) last: MessageId,
    pub(super) count: u64,
}

/// A delivery that a lane owes to a consumer: its turn has come, and its message is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwedDelivery {
    pub(super) consumer: u32,
    /// Tells whether it is still the same consumer.
    pub(super) name: ConsumerId,
    pub(super) charged: Cost,
    /// The bytes that the consumer is expected to get.
    pub(super) expected: usize,
}

impl Backlog {
    /// Tells whether a message of this key that is in the store is one of these. An earlier one is gone or in memory; a
    /// later one is not confirmed.
    pub(super) fn contains(&self, id: MessageId) -> bool {
        id > self.after && id <= self.last
    }
}

impl Lane {
    pub(super) fn new(ordering: Ordering, weight: Weight, settings: NodeSettings) -> Self {
        Self {
            ordering,
            weight,
            settings,
            line: Line::default(),
            sets: None,
            backlog: None,
            delays: None,
            counts: Counts::default(),
            delayed_uncommitted: 0,
            deletions: Deletions::default(),
            loading: Loading::Idle,
            owed: VecDeque::new(),
            is_suspended: false,
            expected: Cost::new(MESSAGE),
            share: Share::default(),
            totals: LaneTotals::default(),
            source: None,
            home: Home::Top,
            known: KnownLane {
                is_changed: false,
                is_runnable: false,
                activity: Activity::Idle,
                source: None,
                used: Usage::default(),
            },
        }
    }

    /// Empties all lines, for another order of the messages. They join again.
    pub(super) fn reorder(&mut self, ordering: Ordering) {
        self.ordering = ordering;
        self.line.clear();
        if let Some(sets) = &mut self.sets {
            sets.reorder(ordering);
        }
        self.unpark_backlog();
    }

    /// Returns the weight in force of its key. For a lane in the group of its own name, the group has the last word; see
    /// [`LaneTable::weight_of`](super::lane_table::LaneTable::weight_of).
    pub(super) fn weight_in_force(&self) -> Weight {
        self.settings.weight.map_or(self.weight, weight_of)
    }

    /// Returns the weight of the lane among its siblings in the engine.
    pub(super) fn weight_among_siblings(&self) -> Weight {
        match self.home {
            Home::Top | Home::Member => self.weight_in_force(),
            Home::Own => Weight::ONE,
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.settings.delivery == Delivering::Paused
    }

    /// Returns how many of its messages may be leased at once, if the queue says this.
    pub(super) fn cap(&self, key_concurrency: Option<NonZeroU32>) -> u32 {
        match self.ordering {
            Ordering::None => self
                .settings
                .concurrency
                .or(key_concurrency)
                .map_or(u32::MAX, NonZeroU32::get),
            Ordering::Key => 1,
        }
    }

    /// Returns every reason why this lane, which owes `owed` deliveries, delivers nothing more.
    ///
    /// No other place decides this: the engine's ring, dispatch and [`explain`](super::Queue::explain) follow it.
    pub(super) fn blocked(
        &mut self,
        key_concurrency: Option<NonZeroU32>,
        messages: &Slab<Message>,
        owed: u64,
    ) -> Blocked {
        let counts = self.counts;
        let cap = u64::from(self.cap(key_concurrency));
        let in_use = counts[Stage::Leased] + u64::from(self.deletions.strict);
        let (is_not_due, is_throttled, has_more) = match self.ordering {
            Ordering::None => {
                let is_not_due = counts.ready() == 0 && counts[Stage::Delayed] > 0;
                let is_parked = self.backlog.is_some_and(|backlog| backlog.is_parked);
                let has_more = self.deliverable(owed) > 0;
                let lacks_tokens = counts[Stage::Throttled] > 0 || is_parked;
                (is_not_due, lacks_tokens && !has_more, has_more)
            }
            Ordering::Key => {
                // Messages that wait for their time stand in line, and those behind them wait, too.
                let head = self.line.head(messages);
                let is_not_due = head.is_some_and(|head| {
                    let state = &messages[head.slot as usize].state;
                    matches!(state, State::Delayed | State::Failing { .. })
                });
                let is_throttled = self.sets.as_ref().is_some_and(|sets| sets.holds_up_line());
                (is_not_due, is_throttled, owed == 0)
            }
        };
        let is_last_owed = match &self.loading {
            Loading::UnderWay(read) => read.is_last_owed,
            Loading::Idle | Loading::Failed => false,
        };
        Blocked::default()
            .with(
                BlockReason::Empty,
                counts.ready() + counts[Stage::Delayed] == 0,
            )
            .with(BlockReason::Paused, self.is_paused())
            .with(BlockReason::AtCap, in_use >= cap)
            .with(BlockReason::TooManyDelayed, self.is_suspended)
            .with(BlockReason::NotDue, is_not_due)
            .with(BlockReason::Throttled, is_throttled)
            .with(BlockReason::Removing, self.deletions.backlog > 0)
            .with(
                BlockReason::ReadFailed,
                matches!(self.loading, Loading::Failed),
            )
            .with(
                BlockReason::Owing,
                is_last_owed || owed > 0 && (!has_more || in_use + owed >= cap),
            )
    }

    /// Returns the number of its messages that wait only for its turn, if it owes `owed` deliveries.
    pub(super) fn deliverable(&self, owed: u64) -> u64 {
        let readable = match self.backlog {
            Some(backlog) if !backlog.is_parked => self.counts[Stage::Stored],
            Some(_) | None => 0,
        };
        (self.counts[Stage::Ready] + readable).saturating_sub(owed)
    }

    pub(super) fn owed(&self) -> u64 {
        self.owed.len() as u64
    }

    /// Notes for how long a consumer has held a message of it, where this is not what deliveries cost.
    pub(super) fn observe_hold(&mut self, held: Duration) {
        let micros = u64::try_from(held.as_micros()).unwrap_or(u64::MAX);
        let before = self.expected.value();
        self.expected = Cost::new(match self.totals.acked {
            0 => micros,
            _ => before - before / 16 + micros / 16,
        });
    }

    /// Returns how much would be lost with it.
    pub(super) fn activity(&self) -> Activity {
        let is_busy = self.counts.uncommitted() > 0
            || self.deletions.strict + self.deletions.backlog > 0
            || self.is_suspended
            || !matches!(self.loading, Loading::Idle)
            || !self.owed.is_empty();
        if self.counts.durable() > 0 {
            Activity::Active
        } else if is_busy {
            Activity::Busy
        } else {
            Activity::Idle
        }
    }

    /// Returns what its groups count for it, as of the last refresh.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            owed: u32::try_from(self.owed.len()).unwrap_or(u32::MAX),
            settling: self.deletions.strict,
            busy: u32::from(self.known.activity != Activity::Idle),
            active: u32::from(self.known.activity == Activity::Active),
        }
    }

    /// Returns where a message of it counts.
    pub(super) fn stage(&self, message: &Message) -> Stage {
        match message.state {
            State::Ready { .. } => match (message.set, &self.sets) {
                (Some(set), Some(sets)) if sets.is_throttled(set, message.id) => Stage::Throttled,
                _ => Stage::Ready,
            },
            State::Delayed | State::Failing { .. } => Stage::Delayed,
            State::Leased { .. } => Stage::Leased,
        }
    }

    /// Tells whether a message in this state stands in line.
    pub(super) fn is_in_line(&self, state: &State) -> bool {
        match state {
            State::Ready { .. } => true,
            State::Delayed | State::Failing { .. } => self.ordering == Ordering::Key,
            State::Leased { .. } => false,
        }
    }

    /// Returns the set in whose own line this message stands, if it does not stand in the lane's.
    fn set_of(&mut self, message: &Message) -> Option<(&mut ThrottleSets, u32)> {
        match (self.ordering, message.set, &mut self.sets) {
            (Ordering::None, Some(set), Some(sets)) => Some((sets, set)),
            _ => None,
        }
    }

    /// Puts a message in line; tells whether in that of its throttle set.
    pub(super) fn join(&mut self, messages: &Slab<Message>, handle: Handle, join: Join) -> bool {
        if let Some((sets, set)) = self.set_of(&messages[handle.slot as usize]) {
            sets.join(messages, set, handle, join);
            return true;
        }
        self.line.join(handle, join);
        false
    }

    /// Takes the first message out of its line. It is the one that [`head`](Self::head) has returned.
    pub(super) fn pop(&mut self, messages: &Slab<Message>, head: Handle) {
        let Some((sets, set)) = self.set_of(&messages[head.slot as usize]) else {
            return self.line.pop(head);
        };
        sets.pop(messages, set, head);
        self.unpark_backlog();
    }

    /// Reads on past messages that wait for a token, now that one of those has left.
    pub(super) fn unpark_backlog(&mut self) {
        if let Some(backlog) = &mut self.backlog {
            backlog.is_parked = false;
        }
    }

    /// Returns the first message that is in memory and does not stand in a set that waits for a token.
    pub(super) fn head(&mut self, messages: &Slab<Message>) -> Option<Handle> {
        let head = self.line.head(messages);
        let Some(sets) = &mut self.sets else {
            return head;
        };
        [head, sets.head(messages)].into_iter().flatten().min()
    }

    /// Adds a message that is in the store behind all others. The caller counts it.
    pub(super) fn push_stored(&mut self, id: MessageId, meta: &Meta) {
        let backlog = self.backlog.get_or_insert_with(|| Backlog {
            after: MessageId::from_number(id.get() - 1),
            last: id,
            bytes: 0,
            since: ready_since(meta),
            is_parked: false,
        });
        backlog.last = id;
        backlog.bytes += carried(meta);
    }

    /// Returns the mean size of the messages of the backlog.
    pub(super) fn mean_stored_bytes(&self) -> Option<u64> {
        let backlog = self.backlog?;
        Some(backlog.bytes / self.counts[Stage::Stored].max(1))
    }

    /// Notes when a message that waits for its time is due.
    pub(super) fn push_delay(&mut self, until: Timestamp, handle: Handle) {
        let delays = self.delays.get_or_insert_default();
        delays.push(Reverse((until, handle)));
    }

    /// Returns when the first of the messages is due that wait for their time.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let Reverse((until, _)) = self.delays.as_ref()?.peek()?;
        Some(*until)
    }

    /// Drops handles that find no message any more, as far as that is cheap.
    pub(super) fn drop_stale(&mut self, messages: &Slab<Message>) {
        let delayed = self.counts[Stage::Delayed];
        if delayed + self.counts[Stage::Ready] + self.counts[Stage::Throttled] == 0 {
            self.line.clear();
        }
        let Some(delays) = &mut self.delays else {
            return;
        };
        let is_live = |(until, handle): &(Timestamp, Handle)| {
            messages.get(handle.slot as usize).is_some_and(|message| {
                message.id == handle.id
                    && matches!(message.state, State::Delayed)
                    && message.meta.deliver_after == Some(*until)
            })
        };
        if delayed == 0 {
            self.delays = None;
        } else if delays.len() > 2 * delayed as usize + DELAYS_SLACK {
            delays.retain(|Reverse(entry)| is_live(entry));
        } else {
            while delays.peek().is_some_and(|Reverse(entry)| !is_live(entry)) {
                delays.pop();
            }
        }
    }
}

// Beside its key, in a multiple of 64 bytes.
const _: () = assert!(size_of::<Lane>() <= 472, "there may be a million of them");
