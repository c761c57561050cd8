//! Who has which messages, and whose turn it is: all that a purge replaces.
//!
//! The books keep four things in step: the lanes, the messages that are in memory, the engine that says which lane is
//! next, and the figures. After every change of a lane [`Books::refresh`] tells the engine what the lane may do.
//! Nothing here walks over keys or messages.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use drr::{Cost, Drr, Weight};
use fila_store::{FairnessKey, MessageId, ThrottleKey, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::lane::{Lane, Loading};
use super::line::Join;
use super::message::{Handle, Message, State};
use super::pace::Pace;
use crate::memory::Memory;
use crate::throttle::Gates;
use crate::wheel::Wheel;
use crate::{Definition, KeySettings, LeaseId, Ordering, QueueStats, Settings};

/// How many lanes that may be forgotten are looked at when a new one comes.
const FORGET_STEPS: usize = 2;

/// How many messages that do not wait for their time any more a lane's list of them may hold, beside as many as do.
const DELAYS_SLACK: u64 = 16;

#[derive(Debug)]
pub(super) struct Books {
    /// Which books these are: a purge begins new ones.
    pub(super) serial: u64,
    ordering: Ordering,
    pub(super) engine: Drr,
    /// At the index of their engine keys.
    pub(super) lanes: Vec<Option<Lane>>,
    pub(super) keys: HashMap<FairnessKey, u32, RandomState>,
    pub(super) messages: Slab<Message>,
    /// Messages in memory that are not in the ready stretch of their lane: leased, delayed, or back from that, or in an
    /// aisle.
    pub(super) away: HashMap<MessageId, u32, RandomState>,
    pub(super) leases: HashMap<LeaseId, u32, RandomState>,
    pub(super) wheel: Wheel,
    /// What waits for its time, by lane. What no longer does is dropped when it comes to the front.
    delays: HashMap<u32, BinaryHeap<Reverse<(Timestamp, Handle)>>, RandomState>,
    /// What was delivered in the last minute.
    pub(super) pace: Pace,
    /// Gauges; totals are the queue's.
    pub(super) stats: QueueStats,
    /// Messages in the queue, with those that are not durable yet.
    pub(super) depth: u64,
    /// Of those that are not durable yet, how many will wait for their time.
    pub(super) delayed_uncommitted: u64,
    /// Bytes of memory that these books take of the broker's, and that their reads may bring.
    used: usize,
    reserved: usize,
    /// Reads under way.
    pub(super) loads: usize,
    /// Lanes whose read has failed, and when to try again.
    pub(super) failed_loads: VecDeque<(Timestamp, u32)>,
    /// Lanes that deliver nothing until fewer messages wait, in the order in which they were stopped.
    held: VecDeque<u32>,
    /// Lanes that cannot be forgotten.
    pub(super) busy: usize,
    /// Lanes that perhaps can. One that got messages again is found out when it is looked at.
    idle: VecDeque<u32>,
}

impl Books {
    pub(super) fn new(
        serial: u64,
        ordering: Ordering,
        settings: &Settings,
        now: Timestamp,
    ) -> Self {
        Self {
            serial,
            ordering,
            engine: Drr::new(settings.quantum),
            lanes: Vec::new(),
            keys: HashMap::default(),
            messages: Slab::new(),
            away: HashMap::default(),
            leases: HashMap::default(),
            wheel: Wheel::new(now),
            delays: HashMap::default(),
            pace: Pace::new(now),
            stats: QueueStats::default(),
            depth: 0,
            delayed_uncommitted: 0,
            used: 0,
            reserved: 0,
            loads: 0,
            failed_loads: VecDeque::new(),
            held: VecDeque::new(),
            busy: 0,
            idle: VecDeque::new(),
        }
    }

    pub(super) fn lane(&self, lane: u32) -> &Lane {
        let lane = &self.lanes[lane as usize];
        lane.as_ref().expect("whoever has its number keeps a lane")
    }

    pub(super) fn lane_mut(&mut self, lane: u32) -> &mut Lane {
        let lane = &mut self.lanes[lane as usize];
        lane.as_mut().expect("whoever has its number keeps a lane")
    }

    /// Returns the lane of this key, made if there is none.
    pub(super) fn find_or_add(
        &mut self,
        key: &FairnessKey,
        weight: Weight,
        settings: KeySettings,
    ) -> u32 {
        if let Some(&lane) = self.keys.get(key) {
            return lane;
        }
        self.forget_some();
        let engine = self.engine.register(weight);
        let index = engine.index();
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        let lane = Lane::new(key.clone(), engine, weight, settings);
        if lane.weight_in_force() != weight {
            let weight = lane.weight_in_force();
            let known = self.engine.set_weight(engine, weight);
            known.expect("it was registered above");
        }
        self.lanes[index] = Some(lane);
        let number = index as u32;
        self.keys.insert(key.clone(), number);
        number
    }

    /// Takes note that a lane has accepted a message.
    pub(super) fn accept(&mut self, number: u32) {
        self.depth += 1;
        let lane = self.lane_mut(number);
        lane.uncommitted += 1;
        if !std::mem::replace(&mut lane.is_busy, true) {
            self.busy += 1;
        }
    }

    /// Follows what a producer or an operator says of a lane's weight.
    pub(super) fn reweigh(
        &mut self,
        number: u32,
        weight: Option<Weight>,
        settings: Option<KeySettings>,
    ) {
        let lane = self.lane_mut(number);
        let before = lane.weight_in_force();
        let is_in_ring = lane.is_awake && !lane.is_parked;
        lane.weight = weight.unwrap_or(lane.weight);
        lane.settings = settings.unwrap_or(lane.settings);
        let after = lane.weight_in_force();
        let engine = lane.engine;
        if before != after {
            if is_in_ring {
                let lane = self.lanes[number as usize].as_mut();
                lane.expect("it was found above")
                    .share
                    .settle(&self.pace, before);
            }
            let known = self.engine.set_weight(engine, after);
            known.expect("a lane's key is registered");
        }
    }

    /// Tells the engine what a lane may do now, and the figures whether it has messages.
    pub(super) fn refresh(&mut self, number: u32, definition: &Definition) {
        let lane = self.lanes[number as usize]
            .as_mut()
            .expect("whoever has its number keeps a lane");
        let promised = lane.promises.len();
        let readable = if lane.is_full { 0 } else { lane.stored_count() };
        let waiting = (lane.ready_count + readable).saturating_sub(promised as u64);
        let cap = lane.cap(definition);
        let has_work = match definition.ordering {
            Ordering::None => waiting > lane.throttled,
            // What waits for its time stands in line, and holds up what is behind it.
            Ordering::Key => waiting + lane.delayed > 0,
        };
        let may_run = lane.may_deliver(cap.saturating_sub(promised as u32))
            && lane.loading != Loading::Failed
            && !lane.is_slow;
        let engine = lane.engine;
        match (lane.is_awake && !lane.is_parked, has_work && may_run) {
            (false, true) => lane.share.join(&self.pace),
            (true, false) => {
                let weight = lane.weight_in_force();
                lane.share.settle(&self.pace, weight);
            }
            (true, true) | (false, false) => {}
        }
        if may_run == lane.is_parked {
            lane.is_parked = !may_run;
            let known = if may_run {
                self.engine.unpark(engine)
            } else {
                self.engine.park(engine)
            };
            known.expect("a lane's key is registered");
        }
        if has_work != lane.is_awake {
            lane.is_awake = has_work;
            let known = if has_work {
                self.engine.wake(engine)
            } else {
                self.engine.sleep(engine)
            };
            known.expect("a lane's key is registered");
        }
        if !has_work && lane.ready_count + lane.delayed == 0 {
            // Nothing but handles that find no message any more.
            lane.line.clear();
        }
        if lane.has_delays {
            lane.has_delays = lane.delayed > 0;
            self.tidy_delays(number);
        }
        let lane = self.lanes[number as usize]
            .as_mut()
            .expect("it was found above");
        let is_active = lane.depth() > 0;
        if is_active != lane.is_active {
            lane.is_active = is_active;
            if is_active {
                self.stats.active_keys += 1;
            } else {
                self.stats.active_keys -= 1;
            }
        }
        let is_busy = !lane.is_idle();
        if is_busy != lane.is_busy {
            lane.is_busy = is_busy;
            if is_busy {
                self.busy += 1;
            } else {
                self.busy -= 1;
            }
        }
        if !is_busy && !lane.is_listed {
            lane.is_listed = true;
            self.idle.push_back(number);
        }
    }

    /// Lets a lane deliver nothing until fewer messages wait. To be refreshed.
    pub(super) fn hold(&mut self, number: u32) {
        if !std::mem::replace(&mut self.lane_mut(number).is_held, true) {
            self.held.push_back(number);
        }
    }

    /// Lets lanes go on that were held, one for each message that may wait more.
    pub(super) fn release_held(&mut self, max: u64, definition: &Definition) {
        let mut room = match self.stats.delayed {
            // Nobody is waited for, however few may wait.
            0 => u64::MAX,
            delayed => max.saturating_sub(delayed),
        };
        while room > 0
            && let Some(number) = self.held.pop_front()
        {
            room -= 1;
            self.lane_mut(number).is_held = false;
            self.refresh(number, definition);
        }
    }

    /// Takes note of what a delivery is charged, for whoever wants to know who gets what.
    pub(super) fn count(&mut self, now: Timestamp, number: u32, charged: Cost) {
        self.pace
            .charge(now, charged, self.engine.runnable_weight());
        let lane = self.lanes[number as usize].as_mut();
        let lane = lane.expect("whoever has its number keeps a lane");
        lane.share.charge(&self.pace, charged);
    }

    /// Returns what a lane got in the last minute, and what it should have got.
    pub(super) fn recent(&mut self, number: u32) -> (u64, u64) {
        let lane = self.lanes[number as usize].as_mut();
        let lane = lane.expect("whoever has its number keeps a lane");
        if lane.is_awake && !lane.is_parked {
            let weight = lane.weight_in_force();
            lane.share.settle(&self.pace, weight);
        } else {
            lane.share.advance(&self.pace);
        }
        (lane.share.served(), lane.share.ideal())
    }

    /// Returns when a lane whose read has failed tries again; of many, the last moment at which one does.
    pub(super) fn retry_of(&self, number: u32) -> Option<Timestamp> {
        const LOOKED_AT: usize = 1024;
        let mut failed = self.failed_loads.iter().take(LOOKED_AT);
        let found = failed.find(|(_, lane)| *lane == number);
        let (moment, _) = found.or_else(|| self.failed_loads.back())?;
        Some(*moment)
    }

    /// Forgets some lanes that have nothing, and nothing to make good for.
    fn forget_some(&mut self) {
        for _ in 0..FORGET_STEPS {
            let Some(number) = self.idle.pop_front() else {
                return;
            };
            let lane = self.lane_mut(number);
            if !lane.is_idle() {
                lane.is_listed = false;
                continue;
            }
            let engine = lane.engine;
            if self.engine.is_settled(engine) == Ok(true) {
                self.forget(number);
            } else {
                self.idle.push_back(number);
            }
        }
    }

    /// Forgets the lane that has been idle for longest, whatever it owes.
    pub(super) fn forget_one(&mut self) {
        while let Some(number) = self.idle.pop_front() {
            let lane = self.lane_mut(number);
            if lane.is_idle() {
                return self.forget(number);
            }
            lane.is_listed = false;
        }
    }

    fn forget(&mut self, number: u32) {
        let lane = self.lanes[number as usize]
            .take()
            .expect("a listed lane exists");
        self.keys.remove(&lane.key);
        // What it owes is less than a round's worth, and it was given its chance to be remembered.
        let _ = self.engine.forget(lane.engine);
    }

    /// Takes a message into memory, and returns its slot. Its lane is to be refreshed.
    pub(super) fn insert(&mut self, memory: &mut Memory, message: Message) -> u32 {
        let size = message.footprint();
        memory.used += size;
        self.used += size;
        let lane = message.lane;
        match message.state {
            State::Ready { .. } => {
                self.lane_mut(lane).ready_count += 1;
                self.stats.ready += 1;
            }
            State::Delayed => {
                self.lane_mut(lane).delayed += 1;
                self.stats.delayed += 1;
            }
            State::Leased { .. } | State::Failing { .. } => {
                unreachable!("a message comes into memory to be delivered")
            }
        }
        self.messages.insert(message) as u32
    }

    /// Drops a message that is ready or delayed from memory. Its lane is to be refreshed.
    pub(super) fn remove(&mut self, memory: &mut Memory, slot: u32) -> Message {
        self.let_go_if_head(slot);
        let message = self.messages.remove(slot as usize);
        self.away.remove(&message.id);
        debug_assert!(self.away.len() <= self.messages.len());
        if let Some(timer) = message.timer {
            self.wheel.stop(timer);
        }
        let size = message.footprint();
        memory.used -= size;
        self.used -= size;
        match message.state {
            State::Ready { .. } => {
                self.lane_mut(message.lane).ready_count -= 1;
                self.stats.ready -= 1;
            }
            State::Delayed | State::Failing { .. } => {
                self.lane_mut(message.lane).delayed -= 1;
                self.stats.delayed -= 1;
            }
            State::Leased { .. } => {
                self.lane_mut(message.lane).leased -= 1;
                self.stats.leased -= 1;
            }
        }
        self.leave_aisle(&message);
        self.depth -= 1;
        self.stats.bytes -= message.carried();
        message
    }

    /// Lets a strict line go on if this message, which is about to leave, is the one that holds it up for a token.
    fn let_go_if_head(&mut self, slot: u32) {
        let message = &self.messages[slot as usize];
        let (number, id) = (message.lane, message.id);
        if self.lane(number).held.is_some() && self.head(number).is_some_and(|it| it.id == id) {
            self.let_go(number);
        }
    }

    /// Lets a strict line go on that was held up for want of a token.
    pub(super) fn let_go(&mut self, number: u32) {
        let lane = self.lane_mut(number);
        if let (Some(aisle), Some(aisles)) = (lane.held.take(), &mut lane.aisles) {
            aisles.open(aisle);
            lane.throttled = 0;
            self.stats.throttled -= 1;
        }
    }

    /// Takes note that a message is gone that was in an aisle.
    fn leave_aisle(&mut self, message: &Message) {
        let Some(aisle) = message.aisle else {
            return;
        };
        let lane = self.lanes[message.lane as usize]
            .as_mut()
            .expect("a message is in a lane");
        let aisles = lane.aisles.as_mut().expect("and its aisle is there");
        if self.ordering == Ordering::None
            && matches!(message.state, State::Ready { .. })
            && aisles.lose(&self.messages, aisle)
        {
            lane.throttled -= 1;
            self.stats.throttled -= 1;
        }
        lane.is_full = false;
        aisles.leave(aisle);
        if aisles.is_empty() {
            lane.aisles = None;
        }
    }

    /// Returns the aisle of a message that takes tokens; none if it takes none.
    pub(super) fn enter_aisle(
        &mut self,
        gates: &mut Gates,
        lane: u32,
        keys: &[ThrottleKey],
    ) -> Option<u32> {
        if keys.is_empty() {
            return None;
        }
        let aisles = &mut self.lane_mut(lane).aisles;
        Some(aisles.get_or_insert_default().enter(gates, keys))
    }

    /// Lets a message stand in line, to be delivered when its turn comes. Its lane is to be refreshed.
    pub(super) fn line_up(&mut self, slot: u32, join: Join) {
        let message = &self.messages[slot as usize];
        let (handle, aisle) = (message.handle(slot), message.aisle);
        let lane = self.lanes[message.lane as usize]
            .as_mut()
            .expect("a message is in a lane");
        let (Some(aisle), Ordering::None) = (aisle, self.ordering) else {
            lane.line.join(handle, join);
            return;
        };
        self.away.insert(handle.id, slot);
        let aisles = lane.aisles.as_mut().expect("and its aisle is there");
        if aisles.join(&self.messages, aisle, handle, join) {
            lane.throttled += 1;
            self.stats.throttled += 1;
        }
    }

    /// Sets memory apart for what a read may bring.
    pub(super) fn reserve(&mut self, memory: &mut Memory, bytes: usize) {
        memory.reserved += bytes;
        self.reserved += bytes;
        self.loads += 1;
    }

    /// Gives it back, now that the read is done.
    pub(super) fn release(&mut self, memory: &mut Memory, bytes: usize) {
        memory.reserved -= bytes;
        self.reserved -= bytes;
        self.loads -= 1;
    }

    /// Gives back all memory, since these books are closed.
    pub(super) fn leave(&self, memory: &mut Memory) {
        memory.used -= self.used;
        memory.reserved -= self.reserved;
    }

    /// Moves a message's payload into memory, or out of it.
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
            let (number, handle) = (message.lane, message.handle(slot));
            let delays = self.delays.entry(number).or_default();
            delays.push(Reverse((until, handle)));
            self.lane_mut(number).has_delays = true;
        }
    }

    /// Drops what does not wait for its time any more from the front of a lane's list, and all of it from a list that is
    /// mostly that.
    fn tidy_delays(&mut self, number: u32) {
        let waiting = self.lane(number).delayed;
        let Some(delays) = self.delays.get_mut(&number) else {
            return;
        };
        let messages = &self.messages;
        let is_live = |(until, handle): &(Timestamp, Handle)| {
            messages.get(handle.slot as usize).is_some_and(|message| {
                message.id == handle.id
                    && matches!(message.state, State::Delayed)
                    && message.meta.deliver_after == Some(*until)
            })
        };
        if waiting == 0 {
            self.delays.remove(&number);
        } else if delays.len() as u64 > 2 * waiting + DELAYS_SLACK {
            delays.retain(|Reverse(entry)| is_live(entry));
        } else {
            while delays.peek().is_some_and(|Reverse(entry)| !is_live(entry)) {
                delays.pop();
            }
        }
    }

    /// Returns when the first message of a lane is due of those that wait for their time.
    pub(super) fn next_due(&self, number: u32) -> Option<Timestamp> {
        let delays = self.delays.get(&number)?;
        delays.peek().map(|Reverse((until, _))| *until)
    }

    /// Returns the first message of a lane that is in memory and not in an aisle that is shut.
    pub(super) fn head(&mut self, number: u32) -> Option<Handle> {
        let lane = self.lanes[number as usize]
            .as_mut()
            .expect("whoever has its number keeps a lane");
        let head = lane.line.head(&self.messages);
        let Some(aisles) = &mut lane.aisles else {
            return head;
        };
        let aside = aisles.head(&self.messages);
        [head, aside].into_iter().flatten().min()
    }

    /// Returns those that stand in the same line as this message and may have no payload, in no order.
    pub(super) fn beside(
        &self,
        number: u32,
        head: Handle,
    ) -> Box<dyn Iterator<Item = Handle> + '_> {
        let lane = self.lane(number);
        let aisle = self.messages[head.slot as usize].aisle;
        match (aisle, &lane.aisles, self.ordering) {
            (Some(aisle), Some(aisles), Ordering::None) => Box::new(aisles.standing(aisle)),
            _ => Box::new(lane.line.returned.iter().map(|handle| handle.0)),
        }
    }

    /// Returns the first message of a lane that waits for a token.
    pub(super) fn shut_head(&mut self, number: u32) -> Option<Handle> {
        let lane = self.lanes[number as usize].as_mut()?;
        let (head, _) = lane.aisles.as_mut()?.shut_head(&self.messages)?;
        Some(head)
    }

    /// Returns where the message of this id is in memory, if it is one of this lane and there.
    pub(super) fn find(&self, lane: &Lane, id: MessageId) -> Option<&Message> {
        let slot = self.slot_of(lane, id)?;
        Some(&self.messages[slot as usize])
    }

    /// Returns its slot.
    pub(super) fn slot_of(&self, lane: &Lane, id: MessageId) -> Option<u32> {
        let slot = self.away.get(&id).copied().or_else(|| {
            // In the order of ids, with those that have gone.
            let ready = &lane.line.ready;
            let place = ready.binary_search_by_key(&id, |handle| handle.id);
            place.ok().map(|place| ready[place].slot)
        })?;
        let message = self.messages.get(slot as usize)?;
        (message.id == id).then_some(slot)
    }

    /// Takes the first message out of its lane's line. It is the one that [`head`](Self::head) has returned.
    pub(super) fn pop(&mut self, number: u32, head: Handle) {
        let aisle = self.messages[head.slot as usize].aisle;
        let lane = self.lanes[number as usize]
            .as_mut()
            .expect("whoever has its number keeps a lane");
        self.away.insert(head.id, head.slot);
        match (aisle, self.ordering) {
            (Some(aisle), Ordering::None) => {
                let aisles = lane.aisles.as_mut().expect("its aisle is there");
                aisles.pop(&self.messages, aisle, head);
                lane.is_full = false;
            }
            _ => lane.line.pop(head),
        }
    }

    /// Returns when something is due.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        let failed = self.failed_loads.front().map(|(moment, _)| *moment);
        [self.wheel.next_wake(), failed].into_iter().flatten().min()
    }
}
