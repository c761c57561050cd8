//! The lanes of a queue by fairness key, and the engine that says which lane is next.
//!
//! # What is derived from a lane
//! Whether the engine has a lane in its ring, whether its key is active and whether it can be forgotten all follow from
//! what is in the lane. [`LaneTable::get_mut`] marks a lane as changed, and the methods that read the engine or those
//! figures [refresh](LaneTable::refresh) the marked lanes first. So a caller cannot forget to.
//!
//! # Groups
//! A lane whose key is a path is in a group, and [`grouping`] keeps the groups in step with it. A lane without one pays a
//! comparison for that.
//!
//! Nothing here walks over keys, but for a change of the separator.

mod grouping;

pub(super) use self::grouping::GroupsAbove;

use std::collections::HashMap;
use std::num::NonZeroU32;

use drr::{Cost, Keyed, Quantum, Weight};
use fila_store::{FairnessKey, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::counts::Stage;
use super::fifo::Fifo;
use super::groups::{LaneGroup, NodeSettings, Paths};
use super::lane::{Activity, Home, Lane};
use super::message::Message;
use super::pace::Pace;
use crate::{Ordering, Source};

/// Lanes by fairness key and their groups, over the engine.
type Lanes = Keyed<FairnessKey, Lane, RandomState, LaneGroup>;

#[derive(Debug)]
pub(super) struct LaneTable {
    /// The queue's setting, for new lanes.
    pub(super) ordering: Ordering,
    /// The queue's setting for keys without one of their own.
    pub(super) key_concurrency: Option<NonZeroU32>,
    lanes: Lanes,
    pub(super) fifo: Fifo,
    /// The deliveries of the last minute.
    pub(super) pace: Pace,
    /// Lanes that have changed since the last refresh.
    changed: Vec<u32>,
    /// Lanes that have durable messages.
    active: usize,
    /// Groups with such lanes, on every level.
    active_groups: usize,
    /// How many of the lanes that cannot be forgotten each client has brought.
    keys_of: HashMap<Source, u64, RandomState>,
}

impl LaneTable {
    pub(super) fn new(
        ordering: Ordering,
        key_concurrency: Option<NonZeroU32>,
        quantum: Quantum,
        now: Timestamp,
    ) -> Self {
        Self {
            ordering,
            key_concurrency,
            lanes: Lanes::new(quantum, RandomState::default()),
            fifo: Fifo::default(),
            pace: Pace::new(now),
            changed: Vec::new(),
            active: 0,
            active_groups: 0,
            keys_of: HashMap::default(),
        }
    }

    /// Returns the number of a key's lane.
    pub(super) fn find(&self, key: &FairnessKey) -> Option<u32> {
        if self.fifo.is_on() {
            return self.lanes.get(0).map(|_| 0);
        }
        self.lanes.find(key)
    }

    /// Returns a lane that may have been forgotten.
    pub(super) fn try_get(&self, number: u32) -> Option<&Lane> {
        self.lanes.get(number)
    }

    pub(super) fn get(&self, number: u32) -> &Lane {
        &self.lanes[number]
    }

    pub(super) fn key(&self, number: u32) -> &FairnessKey {
        self.lanes.name(number)
    }

    /// Returns a lane to be changed.
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Lane {
        let lane = &mut self.lanes[number];
        if !lane.known.is_changed {
            lane.known.is_changed = true;
            self.changed.push(number);
        }
        lane
    }

    /// Returns a lane to be changed in something that nothing is derived from: totals, stale handles, tokens.
    pub(super) fn get_unmarked(&mut self, number: u32) -> &mut Lane {
        &mut self.lanes[number]
    }

    /// Returns how many lanes there are, idle ones too.
    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Returns how many of the lanes that cannot be forgotten a client has brought. Lanes must be refreshed.
    pub(super) fn keys_of(&self, source: Source) -> u64 {
        self.keys_of.get(&source).copied().unwrap_or(0)
    }

    /// Lets a lane without messages count for the client that brings one.
    pub(super) fn bring(&mut self, number: u32, source: Option<Source>) {
        let lane = &mut self.lanes[number];
        if lane.source != source && lane.counts.total() == 0 {
            lane.source = source;
        }
    }

    /// Returns how many places there are for lanes, some perhaps empty.
    pub(super) fn places(&self) -> usize {
        self.lanes.extent()
    }

    /// Adds the lane of a key that has none, in the groups of its path. Lanes must be refreshed; if there are `max`
    /// already, one is forgotten.
    pub(super) fn add(
        &mut self,
        key: &FairnessKey,
        weight: Weight,
        paths: Paths<'_>,
        max: usize,
    ) -> u32 {
        debug_assert!(self.changed.is_empty());
        if self.lanes.len() >= max {
            self.lanes.forget_oldest();
        }
        let settings = paths.settings_of(key.as_bytes());
        let lane = Lane::new(self.ordering, weight, settings);
        let weight = lane.weight_in_force();
        let new = || (key.clone(), lane);
        let number = if self.fifo.is_on() {
            self.lanes.find_or_insert_with(key, weight, new)
        } else {
            let name = key.as_bytes();
            self.lanes.find_or_insert_within(name, weight, &paths, new)
        };
        self.settle_in(number);
        // It is idle until something is counted.
        self.get_mut(number);
        number
    }

    /// Moves messages of a lane from one stage to another; `None` is outside of the queue.
    #[inline]
    pub(super) fn count(
        &mut self,
        number: u32,
        count: u64,
        from: Option<Stage>,
        to: Option<Stage>,
    ) {
        let lane = self.get_mut(number);
        lane.counts.shift(count, from, to);
        if lane.home != Home::Top {
            self.change_above(number, |group| group.counts.shift(count, from, to));
        }
    }

    /// Changes a lane's weight or settings, and the weight that the engine goes by.
    pub(super) fn reweigh(
        &mut self,
        number: u32,
        weight: Option<Weight>,
        settings: Option<NodeSettings>,
    ) {
        let lane = &mut self.lanes[number];
        let before = lane.weight_in_force();
        let named = lane.weight;
        lane.weight = weight.unwrap_or(named);
        lane.settings = settings.unwrap_or(lane.settings);
        let after = lane.weight_in_force();
        if lane.home == Home::Own {
            if named != lane.weight {
                self.reweigh_own(number);
            }
        } else if before != after {
            if lane.known.is_runnable {
                self.settle_share(number, before);
            }
            self.lanes.set_weight(number, after);
        }
        if settings.is_some() {
            self.get_mut(number);
        }
    }

    /// Brings the engine and the figures in step with the lanes that have changed.
    pub(super) fn refresh(&mut self, messages: &Slab<Message>) {
        // Taken, so that lanes can be borrowed; put back, so that its memory is used again.
        let mut changed = std::mem::take(&mut self.changed);
        for number in changed.drain(..) {
            self.refresh_one(number, messages);
        }
        self.changed = changed;
    }

    fn refresh_one(&mut self, number: u32, messages: &Slab<Message>) {
        let lane = &mut self.lanes[number];
        lane.known.is_changed = false;
        let blocked = lane.blocked(self.key_concurrency, messages, lane.owed());
        lane.drop_stale(messages);
        let activity = lane.activity();
        let before = std::mem::replace(&mut lane.known.activity, activity);
        self.active += usize::from(activity == Activity::Active);
        self.active -= usize::from(before == Activity::Active);
        let source = lane.source.filter(|_| activity != Activity::Idle);
        let counted = std::mem::replace(&mut lane.known.source, source);
        if counted != source {
            count_key(&mut self.keys_of, counted, source);
        }
        let is_runnable = blocked.is_empty();
        if let Some(lanes) = self.fifo.lanes() {
            let was_runnable = std::mem::replace(&mut lane.known.is_runnable, is_runnable);
            match (was_runnable, is_runnable) {
                (false, true) => lanes.push_back(number),
                (true, false) => lanes.retain(|&other| other != number),
                (false, false) | (true, true) => {}
            }
            return;
        }
        let is_nested = lane.home != Home::Top;
        if is_runnable != lane.known.is_runnable {
            lane.known.is_runnable = is_runnable;
            if is_nested {
                self.follow_member(number);
            } else if is_runnable {
                lane.share.join(&self.pace.time);
                self.lanes.wake(number);
            } else {
                let weight = lane.weight_in_force();
                lane.share.settle(&self.pace.time, weight);
                self.lanes.sleep(number);
            }
        }
        match activity {
            Activity::Idle => self.lanes.set_idle(number),
            Activity::Busy | Activity::Active => self.lanes.set_busy(number),
        }
        if is_nested {
            self.refresh_above(number);
        }
    }

    /// Returns the lanes with their engine, which must be up to date.
    pub(super) fn refreshed(&self) -> &Lanes {
        debug_assert!(self.changed.is_empty());
        &self.lanes
    }

    /// Returns the lane whose turn it is.
    pub(super) fn next(&mut self, messages: &Slab<Message>) -> Option<u32> {
        self.refresh(messages);
        if let Some(lanes) = self.fifo.lanes() {
            return lanes.front().copied();
        }
        self.lanes.next_lane()
    }

    /// Returns how many lanes have durable messages, and how many cannot be forgotten.
    pub(super) fn active_and_busy(&mut self, messages: &Slab<Message>) -> (usize, usize) {
        self.refresh(messages);
        (self.active, self.lanes.busy())
    }

    /// Returns how many groups have lanes with durable messages. Lanes must be refreshed.
    pub(super) fn active_groups(&self) -> usize {
        debug_assert!(self.changed.is_empty());
        self.active_groups
    }

    /// Charges the lane whose turn it is for a delivery.
    pub(super) fn charge(&mut self, now: Timestamp, number: u32, cost: Cost) {
        if self.fifo.is_on() {
            return;
        }
        self.lanes.charge(number, cost);
        let weight = self.lanes.engine().runnable_weight();
        self.pace.charge(now, cost, weight);
        let lane = &mut self.lanes[number];
        if lane.home == Home::Top {
            lane.share.charge(&self.pace.time, cost);
        } else {
            self.charge_shares(number, cost);
        }
    }

    /// Counts a delivery to a lane and to the groups above it.
    pub(super) fn count_delivery(&mut self, number: u32) {
        let lane = &mut self.lanes[number];
        lane.totals.delivered += 1;
        if lane.home != Home::Top {
            self.change_above(number, |group| group.delivered += 1);
        }
    }

    /// Corrects a charge.
    pub(super) fn settle_charge(&mut self, number: u32, charged: Cost, actual: Cost) {
        if !self.fifo.is_on() {
            self.lanes.settle(number, charged, actual);
        }
    }

    /// Returns the cost delivered to a lane in the last minute, and its fair share of what its group got.
    pub(super) fn recent(&mut self, number: u32) -> (u64, u64) {
        let lane = &self.lanes[number];
        if lane.known.is_runnable {
            self.settle_share(number, lane.weight_among_siblings());
        } else {
            let time = self.time_around(number);
            self.lanes[number].share.advance(&time);
        }
        let share = &self.lanes[number].share;
        (share.served(), share.ideal())
    }
}

/// Counts a lane for another client than before, or for none.
fn count_key(
    keys_of: &mut HashMap<Source, u64, RandomState>,
    before: Option<Source>,
    now: Option<Source>,
) {
    if let Some(source) = now {
        *keys_of.entry(source).or_default() += 1;
    }
    if let Some(source) = before
        && let Some(count) = keys_of.get_mut(&source)
    {
        *count -= 1;
        if *count == 0 {
            keys_of.remove(&source);
        }
    }
}
