//! The messages of a queue that are in memory, the lanes that they are in, and how many of them are where: all that a
//! purge replaces.
//!
//! # One place each
//! - [`QueueIndex::set_state`] alone moves a message between states. With it the message joins or leaves its line.
//! - [`LaneTable::count`] alone changes the counts of a lane, of its groups and, with [`QueueIndex`], of the queue.
//! - [`LaneTable`] alone tells the engine which lanes may run, see there.

use std::collections::{HashMap, VecDeque};

use drr::{Cost, Pool};
use fila_store::{MessageId, ThrottleKey, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::blocked::Blocked;
use super::counts::{Counts, Stage};
use super::groups::Paths;
use super::lane::{Lane, Loading};
use super::lane_table::LaneTable;
use super::line::Join;
use super::message::{Handle, Message, State};
use super::room::{PartHolder, Room};
use super::throttle_sets::ThrottleSets;
use crate::memory::Memory;
use crate::throttle::Throttles;
use crate::wheel::Wheel;
use crate::{LeaseId, Ordering, QueueSettings, QueueStats, Settings};

#[derive(Debug)]
pub(super) struct QueueIndex {
    /// Tells this index from the ones before a purge.
    pub(super) serial: u64,
    pub(super) lanes: LaneTable,
    pub(super) messages: Slab<Message>,
    /// Messages that are not in the ready part of their lane: leased, delayed, back from that, or in a throttle set.
    away: HashMap<MessageId, u32, RandomState>,
    pub(super) leases: HashMap<LeaseId, u32, RandomState>,
    pub(super) wheel: Wheel,
    counts: Counts,
    /// Bytes that the durable messages carry.
    bytes: u64,
    /// How many of the messages that are not durable yet will wait for their time.
    pub(super) delayed_uncommitted: u64,
    /// Bytes of the broker's memory that the messages take.
    used: usize,
    /// Bytes of the broker's memory that reads under way may bring.
    reserved: usize,
    /// Reads under way.
    pub(super) reads: usize,
    /// Lanes that read again at some moment: a read failed, or memory had no room for messages that lack a token.
    read_retries: VecDeque<(Timestamp, u32)>,
    /// Keys and groups that deliver nothing until fewer messages are delayed, in the order in which they were suspended. A
    /// group may have been disbanded since.
    suspended: VecDeque<PartHolder>,
}

impl QueueIndex {
    pub(super) fn new(
        serial: u64,
        definition: &QueueSettings,
        settings: &Settings,
        now: Timestamp,
    ) -> Self {
        let (ordering, key_concurrency) = (definition.ordering, definition.key_concurrency);
        #[cfg_attr(
            not(feature = "fifo"),
            expect(unused_mut, reason = "a bench changes it")
        )]
        let mut lanes = LaneTable::new(ordering, key_concurrency, settings.quantum, now);
        #[cfg(feature = "fifo")]
        {
            lanes.fifo = super::fifo::Fifo::new(settings.is_fifo);
        }
        Self {
            serial,
            lanes,
            messages: Slab::new(),
            away: HashMap::default(),
            leases: HashMap::default(),
            wheel: Wheel::new(now),
            counts: Counts::default(),
            bytes: 0,
            delayed_uncommitted: 0,
            used: 0,
            reserved: 0,
            reads: 0,
            read_retries: VecDeque::new(),
            suspended: VecDeque::new(),
        }
    }

    pub(super) fn lane(&self, number: u32) -> &Lane {
        self.lanes.get(number)
    }

    pub(super) fn lane_mut(&mut self, number: u32) -> &mut Lane {
        self.lanes.get_mut(number)
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Lets all lanes go into the groups that other paths say.
    pub(super) fn renest(&mut self, paths: Paths<'_>) {
        self.lanes.refresh(&self.messages);
        self.lanes.renest(paths);
    }

    /// Returns the queue's gauges. The totals are the queue's.
    pub(super) fn stats(&mut self) -> QueueStats {
        let (active, _) = self.lanes.active_and_busy(&self.messages);
        QueueStats {
            ready: self.counts.shown_ready(),
            throttled: self.counts[Stage::Throttled],
            delayed: self.counts[Stage::Delayed],
            leased: self.counts[Stage::Leased],
            stored_only: self.counts[Stage::Stored],
            bytes: self.bytes,
            active_keys: active as u64,
            active_groups: self.lanes.active_groups() as u64,
            ..QueueStats::default()
        }
    }

    /// Returns how many keys cannot be forgotten.
    pub(super) fn busy_keys(&mut self) -> usize {
        let (_, busy) = self.lanes.active_and_busy(&self.messages);
        busy
    }

    /// Returns the lane whose turn it is.
    pub(super) fn next_lane(&mut self) -> Option<u32> {
        self.lanes.next(&self.messages)
    }

    /// Returns why a lane that owes `owed` deliveries delivers nothing more.
    pub(super) fn blocked(&mut self, number: u32, owed: u64) -> Blocked {
        self.lanes.blocked(number, &self.messages, owed)
    }

    /// Moves messages of a lane from one stage to another; `None` is outside of the queue.
    pub(super) fn count(
        &mut self,
        number: u32,
        count: u64,
        from: impl Into<Option<Stage>>,
        to: impl Into<Option<Stage>>,
    ) {
        let (from, to) = (from.into(), to.into());
        self.counts.shift(count, from, to);
        self.lanes.count(number, count, from, to);
        let lane = self.lanes.get_unmarked(number);
        if from == Some(Stage::Stored)
            && lane.counts[Stage::Stored] == 0
            && let Some(backlog) = lane.backlog.take()
        {
            // The rest are the bytes of messages that could not be read.
            self.bytes = self.bytes.saturating_sub(backlog.bytes);
        }
    }

    /// Counts the bytes of messages that have become durable.
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Counts the bytes of messages that are gone.
    pub(super) fn subtract_bytes(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }

    /// Takes a message into memory that was in the store only, or is durable since a moment; returns its slot.
    #[inline]
    pub(super) fn insert(
        &mut self,
        memory: &mut Memory,
        message: Message,
        from: impl Into<Option<Stage>>,
    ) -> u32 {
        let size = message.footprint();
        memory.used += size;
        self.used += size;
        let (id, number) = (message.id, message.lane);
        let slot = self.messages.insert(message);
        let message = &self.messages[slot];
        let lane = self.lanes.get_mut(number);
        let to = lane.stage(message);
        let slot = slot as u32;
        let handle = message.handle(slot);
        let is_ready =
            lane.is_in_line(&message.state) && !lane.join(&self.messages, handle, Join::Behind);
        if !is_ready {
            self.away.insert(id, slot);
        }
        self.count(number, 1, from, to);
        slot
    }

    /// Moves a message to another state.
    #[inline]
    pub(super) fn set_state(&mut self, slot: u32, state: State) {
        let message = &mut self.messages[slot as usize];
        let (number, handle) = (message.lane, message.handle(slot));
        let lane = self.lanes.get_mut(number);
        let from = lane.stage(message);
        let was_in_line = lane.is_in_line(&message.state);
        message.state = state;
        let to = lane.stage(message);
        match (was_in_line, lane.is_in_line(&message.state)) {
            (false, true) => {
                lane.join(&self.messages, handle, Join::Between);
            }
            (true, false) => {
                lane.pop(&self.messages, handle);
                self.away.insert(handle.id, slot);
            }
            (true, true) | (false, false) => {}
        }
        self.counts.shift(1, Some(from), Some(to));
        self.lanes.count(number, 1, Some(from), Some(to));
    }

    /// Drops a message from memory and from the queue.
    pub(super) fn remove(&mut self, memory: &mut Memory, slot: u32) -> Message {
        let message = self.messages.remove(slot as usize);
        let number = message.lane;
        self.away.remove(&message.id);
        debug_assert!(self.away.len() <= self.messages.len());
        if let Some(timer) = message.timer {
            self.wheel.stop(timer);
        }
        let size = message.footprint();
        memory.used -= size;
        self.used -= size;
        self.bytes -= message.carried();
        let from = self.lanes.get(number).stage(&message);
        self.leave_set(&message);
        self.count(number, 1, from, None);
        message
    }

    /// Lets all lanes order their messages otherwise: every message in memory joins the line in which it stands from now
    /// on. Messages in the store come after those in memory in either order.
    pub(super) fn reorder(&mut self, ordering: Ordering) {
        self.lanes.ordering = ordering;
        for number in 0..self.lanes.places() as u32 {
            let Some(lane) = self.lanes.try_get(number) else {
                continue;
            };
            let throttled = lane.counts[Stage::Throttled];
            self.count(number, throttled, Stage::Throttled, Stage::Ready);
            self.lane_mut(number).reorder(ordering);
        }
        let all = self.messages.iter();
        let mut handles: Vec<Handle> = all.map(|(slot, it)| it.handle(slot as u32)).collect();
        handles.sort_unstable();
        for handle in handles {
            let message = &self.messages[handle.slot as usize];
            let lane = self.lanes.get_mut(message.lane);
            if !lane.is_in_line(&message.state) {
                self.away.insert(handle.id, handle.slot);
                continue;
            }
            let join = match self.away.contains_key(&handle.id) {
                true => Join::Between,
                false => Join::Behind,
            };
            if lane.join(&self.messages, handle, join) {
                self.away.insert(handle.id, handle.slot);
            }
        }
    }

    /// Takes a message that is gone out of its throttle set.
    fn leave_set(&mut self, message: &Message) {
        let lane = self.lanes.get_mut(message.lane);
        let (Some(set), Some(sets)) = (message.set, &mut lane.sets) else {
            return;
        };
        sets.give_up(message.id);
        if lane.ordering == Ordering::None && matches!(message.state, State::Ready { .. }) {
            sets.lose(&self.messages, set);
        }
        sets.leave(set);
        if sets.is_empty() {
            lane.sets = None;
        }
        lane.unpark_backlog();
    }

    /// Returns the throttle set of a message that names these keys; `None` if it names none.
    pub(super) fn enter_set(
        &mut self,
        throttles: &mut Throttles,
        number: u32,
        keys: &[ThrottleKey],
    ) -> Option<u32> {
        if keys.is_empty() {
            return None;
        }
        let lane = self.lanes.get_unmarked(number);
        let sets = lane
            .sets
            .get_or_insert_with(|| Box::new(ThrottleSets::new(lane.ordering)));
        Some(sets.enter(throttles, keys))
    }

    /// Suspends a key or group until fewer messages are delayed.
    pub(super) fn suspend(&mut self, holder: PartHolder) {
        if !self.set_suspended(holder, true) {
            self.suspended.push_back(holder);
        }
    }

    /// Suspends or resumes a key or group; tells whether it was suspended.
    fn set_suspended(&mut self, holder: PartHolder, is_suspended: bool) -> bool {
        match holder {
            PartHolder::Group(group) => self.lanes.set_group_suspended(group, is_suspended),
            PartHolder::Key(number) => {
                let lane = self.lanes.get_mut(number);
                std::mem::replace(&mut lane.is_suspended, is_suspended)
            }
        }
    }

    /// Resumes suspended keys and groups, one for each message that may be delayed beside those that are. One that has more
    /// than its part of them is passed over.
    pub(super) fn resume_suspended(&mut self, max: u64) {
        const PASSED_OVER_MAX: usize = 64;
        let mut pool = Pool {
            capacity: max,
            used: self.counts[Stage::Delayed],
        };
        // Without delayed messages a lane must not wait, even if the limit is zero.
        let is_empty = pool.used == 0;
        let mut passed_over = 0;
        for _ in 0..self.suspended.len() {
            if !is_empty && (pool.free() == 0 || passed_over == PASSED_OVER_MAX) {
                return;
            }
            let Some(holder) = self.suspended.pop_front() else {
                return;
            };
            if let PartHolder::Group(group) = holder
                && !self
                    .lanes
                    .try_group(group)
                    .is_some_and(|it| it.is_suspended)
            {
                continue; // disbanded since
            }
            if is_empty || self.over_part_of_delayed(holder, pool, 0).is_none() {
                pool.used += 1;
                self.set_suspended(holder, false);
            } else {
                passed_over += 1;
                self.suspended.push_back(holder);
            }
        }
    }

    /// Tells whether one more message of a lane may be delayed.
    pub(super) fn may_delay(&self, number: u32, max: u64) -> bool {
        let pool = Pool {
            capacity: max,
            used: self.counts[Stage::Delayed],
        };
        let over = self.over_part_of_delayed(PartHolder::Key(number), pool, 0);
        over.is_none()
    }

    /// Returns the key of a lane, or the group above it, that may not have the last message that the lane has delayed.
    pub(super) fn has_too_many_delayed(&self, number: u32, max: u64) -> Option<PartHolder> {
        let pool = Pool {
            capacity: max,
            used: self.counts[Stage::Delayed].saturating_sub(1),
        };
        self.over_part_of_delayed(PartHolder::Key(number), pool, 1)
    }

    /// Returns the highest of a key or group and the groups above it that may not have one more delayed message, if they have
    /// `less` than is counted.
    fn over_part_of_delayed(
        &self,
        holder: PartHolder,
        pool: Pool,
        less: u64,
    ) -> Option<PartHolder> {
        let (groups, lane) = match holder {
            PartHolder::Group(group) => (self.lanes.groups_down_through(Some(group)), None),
            PartHolder::Key(number) => (self.lanes.groups_down_to(number), Some(number)),
        };
        let delayed = |counts: &Counts| counts[Stage::Delayed].saturating_sub(less);
        let mut room = Room::of_queue(pool);
        for group in groups.iter() {
            match room.share(delayed(&self.lanes.group(group).counts)) {
                Ok(within) => room = within,
                Err(_) => return Some(PartHolder::Group(group)),
            }
        }
        let number = lane?;
        let shared = room.share(delayed(&self.lane(number).counts));
        shared.err().map(|_| PartHolder::Key(number))
    }

    /// Lets a lane read again at this moment, and not before.
    pub(super) fn retry_read_at(&mut self, moment: Timestamp, number: u32) {
        self.read_retries.push_back((moment, number));
    }

    /// Lets lanes read again whose moment has come.
    pub(super) fn retry_reads(&mut self, now: Timestamp) {
        while let Some(&(moment, number)) = self.read_retries.front() {
            if moment > now {
                return;
            }
            self.read_retries.pop_front();
            if self.lanes.try_get(number).is_none() {
                continue; // forgotten since
            }
            let lane = self.lanes.get_mut(number);
            if matches!(lane.loading, Loading::Failed) {
                lane.loading = Loading::Idle;
            }
            lane.unpark_backlog();
        }
    }

    /// Returns when a lane whose read has failed tries again. With very many of them, the last of their moments.
    pub(super) fn retry_of(&self, number: u32) -> Option<Timestamp> {
        const LOOKED_AT: usize = 1024;
        let mut retries = self.read_retries.iter().take(LOOKED_AT);
        let found = retries.find(|(_, lane)| *lane == number);
        let (moment, _) = found.or_else(|| self.read_retries.back())?;
        Some(*moment)
    }

    /// Sets memory apart for what a read may bring.
    pub(super) fn reserve(&mut self, memory: &mut Memory, bytes: usize) {
        memory.reserved += bytes;
        self.reserved += bytes;
        self.reads += 1;
    }

    /// Gives it back, now that the read is done.
    pub(super) fn release(&mut self, memory: &mut Memory, bytes: usize) {
        memory.reserved -= bytes;
        self.reserved -= bytes;
        self.reads -= 1;
    }

    /// Gives back all memory, since this index is replaced.
    pub(super) fn leave(&self, memory: &mut Memory) {
        memory.used -= self.used;
        memory.reserved -= self.reserved;
    }

    /// Follows a message whose size in memory has changed.
    pub(super) fn resize(&mut self, memory: &mut Memory, before: usize, after: usize) {
        memory.used = memory.used + after - before;
        self.used = self.used + after - before;
    }

    /// Sets the one timer of a message.
    pub(super) fn arm(&mut self, slot: u32, moment: Option<Timestamp>) {
        let message = &mut self.messages[slot as usize];
        if let Some(timer) = message.timer.take() {
            self.wheel.stop(timer);
        }
        if let Some(moment) = moment {
            message.timer = Some(self.wheel.set(moment, slot));
        }
        if let (State::Delayed, Some(until)) = (&message.state, message.meta.deliver_after) {
            let lane = self.lanes.get_mut(message.lane);
            lane.push_delay(until, message.handle(slot));
        }
    }

    /// Returns the first message of a lane that is in memory and does not stand in a set that waits for a token.
    pub(super) fn head(&mut self, number: u32) -> Option<Handle> {
        self.lanes.get_unmarked(number).head(&self.messages)
    }

    /// Returns the first message of a lane that stands in a set that waits for a token.
    pub(super) fn throttled_head(&mut self, number: u32) -> Option<Handle> {
        let lane = self.lanes.get_unmarked(number);
        lane.sets.as_mut()?.waiting_head(&self.messages)
    }

    /// Returns messages that stand in the same line as this one and may have no payload, in no order.
    pub(super) fn beside(
        &self,
        number: u32,
        head: Handle,
    ) -> Box<dyn Iterator<Item = Handle> + '_> {
        let lane = self.lane(number);
        let set = self.messages[head.slot as usize].set;
        match (set, &lane.sets, lane.ordering) {
            (Some(set), Some(sets), Ordering::None) => Box::new(sets.standing(set)),
            _ => Box::new(lane.line.returned.iter().map(|handle| handle.0)),
        }
    }

    /// Returns the message of this id if it is in memory, in this lane.
    pub(super) fn find(&self, lane: &Lane, id: MessageId) -> Option<&Message> {
        let slot = self.slot_of(lane, id)?;
        Some(&self.messages[slot as usize])
    }

    pub(super) fn slot_of(&self, lane: &Lane, id: MessageId) -> Option<u32> {
        let slot = self.away.get(&id).copied().or_else(|| {
            // In the order of ids, stale handles among them.
            let ready = &lane.line.ready;
            let place = ready.binary_search_by_key(&id, |handle| handle.id);
            place.ok().map(|place| ready[place].slot)
        })?;
        let message = self.messages.get(slot as usize)?;
        (message.id == id).then_some(slot)
    }

    /// Returns when something is due.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        let retry = self.read_retries.front().map(|(moment, _)| *moment);
        [self.wheel.next_wake(), retry].into_iter().flatten().min()
    }

    /// Charges the lane whose turn it is for a delivery.
    pub(super) fn charge(&mut self, now: Timestamp, number: u32, cost: Cost) {
        self.lanes.charge(now, number, cost);
    }
}
