//! The lanes of a queue by fairness key, and the engine that says which lane is next.
//!
//! # What is derived from a lane
//! Whether the engine has a lane in its ring, whether its key is active and whether it can be forgotten all follow from
//! what is in the lane. [`LaneTable::get_mut`] marks a lane as changed, and the methods that read the engine or those
//! figures [refresh](LaneTable::refresh) the marked lanes first. So a caller cannot forget to.
//!
//! Nothing here walks over keys.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;

use drr::{Cost, Drr, Quantum, Weight};
use fila_store::{FairnessKey, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::lane::{Activity, Lane};
use super::message::Message;
use super::pace::Pace;
use crate::{KeySettings, Ordering};

/// How many idle lanes are looked at when a new lane comes.
const FORGET_STEPS: usize = 2;

#[derive(Debug)]
pub(super) struct LaneTable {
    ordering: Ordering,
    /// The queue's setting for keys without one of their own.
    pub(super) key_concurrency: Option<NonZeroU32>,
    engine: Drr,
    /// What was delivered in the last minute.
    pub(super) pace: Pace,
    /// At the index of their engine keys.
    lanes: Vec<Option<Lane>>,
    numbers: HashMap<FairnessKey, u32, RandomState>,
    /// Lanes that have changed since the last refresh.
    changed: Vec<u32>,
    /// Lanes that have durable messages.
    active: usize,
    /// Lanes that cannot be forgotten.
    busy: usize,
    /// Lanes that perhaps can.
    idle: VecDeque<u32>,
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
            engine: Drr::new(quantum),
            pace: Pace::new(now),
            lanes: Vec::new(),
            numbers: HashMap::default(),
            changed: Vec::new(),
            active: 0,
            busy: 0,
            idle: VecDeque::new(),
        }
    }

    /// Returns the number of a key's lane.
    pub(super) fn find(&self, key: &FairnessKey) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// Returns a lane that may have been forgotten.
    pub(super) fn try_get(&self, number: u32) -> Option<&Lane> {
        self.lanes.get(number as usize)?.as_ref()
    }

    pub(super) fn get(&self, number: u32) -> &Lane {
        self.try_get(number).expect(IS_KEPT)
    }

    /// Returns a lane to be changed.
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Lane {
        let lane = self.lanes[number as usize].as_mut().expect(IS_KEPT);
        if !lane.known.is_changed {
            lane.known.is_changed = true;
            self.changed.push(number);
        }
        lane
    }

    /// Returns a lane to be changed in something that nothing is derived from: totals, stale handles, tokens.
    pub(super) fn get_unmarked(&mut self, number: u32) -> &mut Lane {
        self.lanes[number as usize].as_mut().expect(IS_KEPT)
    }

    /// Returns how many places there are for lanes, some perhaps empty.
    pub(super) fn places(&self) -> usize {
        self.lanes.len()
    }

    /// Adds the lane of a key that has none. Lanes must be refreshed; if there are `max` already, one is forgotten.
    pub(super) fn add(
        &mut self,
        key: &FairnessKey,
        weight: Weight,
        settings: KeySettings,
        max: usize,
    ) -> u32 {
        debug_assert!(self.changed.is_empty());
        if self.numbers.len() >= max {
            self.forget_one();
        }
        self.forget_some();
        let engine = self.engine.register(weight);
        let index = engine.index();
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        let lane = Lane::new(key.clone(), engine, self.ordering, weight, settings);
        if lane.weight_in_force() != weight {
            let known = self.engine.set_weight(engine, lane.weight_in_force());
            known.expect(IS_REGISTERED);
        }
        self.lanes[index] = Some(lane);
        let number = index as u32;
        self.numbers.insert(key.clone(), number);
        number
    }

    /// Changes a lane's weight or settings, and the weight that the engine goes by.
    pub(super) fn reweigh(
        &mut self,
        number: u32,
        weight: Option<Weight>,
        settings: Option<KeySettings>,
    ) {
        let lane = self.lanes[number as usize].as_mut().expect(IS_KEPT);
        let before = lane.weight_in_force();
        lane.weight = weight.unwrap_or(lane.weight);
        lane.settings = settings.unwrap_or(lane.settings);
        let after = lane.weight_in_force();
        if before != after {
            if lane.known.is_runnable {
                lane.share.settle(&self.pace, before);
            }
            let known = self.engine.set_weight(lane.engine, after);
            known.expect(IS_REGISTERED);
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
        let lane = self.lanes[number as usize].as_mut().expect(IS_KEPT);
        lane.known.is_changed = false;
        let blocked = lane.blocked(self.key_concurrency, messages, lane.owed());
        let is_runnable = blocked.is_empty();
        if is_runnable != lane.known.is_runnable {
            lane.known.is_runnable = is_runnable;
            let known = if is_runnable {
                lane.share.join(&self.pace);
                self.engine.wake(lane.engine)
            } else {
                let weight = lane.weight_in_force();
                lane.share.settle(&self.pace, weight);
                self.engine.sleep(lane.engine)
            };
            known.expect(IS_REGISTERED);
        }
        lane.drop_stale(messages);
        let activity = lane.activity();
        let before = std::mem::replace(&mut lane.known.activity, activity);
        let is = |activity, least| usize::from(activity >= least);
        self.active = self.active + is(activity, Activity::Active) - is(before, Activity::Active);
        self.busy = self.busy + is(activity, Activity::Busy) - is(before, Activity::Busy);
        if activity == Activity::Idle && !lane.known.is_listed {
            lane.known.is_listed = true;
            self.idle.push_back(number);
        }
    }

    /// Returns the engine, which must be up to date.
    pub(super) fn engine(&self) -> &Drr {
        debug_assert!(self.changed.is_empty());
        &self.engine
    }

    /// Returns the lane whose turn it is.
    pub(super) fn next(&mut self, messages: &Slab<Message>) -> Option<u32> {
        self.refresh(messages);
        let key = self.engine.next_key()?;
        Some(key.index() as u32)
    }

    /// Returns how many lanes have durable messages, and how many cannot be forgotten.
    pub(super) fn active_and_busy(&mut self, messages: &Slab<Message>) -> (usize, usize) {
        self.refresh(messages);
        (self.active, self.busy)
    }

    /// Charges the lane whose turn it is for a delivery.
    pub(super) fn charge(&mut self, now: Timestamp, number: u32, cost: Cost) {
        let lane = self.lanes[number as usize].as_mut().expect(IS_KEPT);
        let known = self.engine.charge(lane.engine, cost);
        known.expect(IS_REGISTERED);
        self.pace.charge(now, cost, self.engine.runnable_weight());
        lane.share.charge(&self.pace, cost);
    }

    /// Corrects a charge.
    pub(super) fn settle_charge(&mut self, number: u32, charged: Cost, actual: Cost) {
        let known = self.engine.settle(self.get(number).engine, charged, actual);
        known.expect(IS_REGISTERED);
    }

    /// Returns what a lane got in the last minute, and what it should have got.
    pub(super) fn recent(&mut self, number: u32) -> (u64, u64) {
        let lane = self.lanes[number as usize].as_mut().expect(IS_KEPT);
        if lane.known.is_runnable {
            let weight = lane.weight_in_force();
            lane.share.settle(&self.pace, weight);
        } else {
            lane.share.advance(&self.pace);
        }
        (lane.share.served(), lane.share.ideal())
    }

    /// Forgets some lanes that have nothing and owe nothing.
    fn forget_some(&mut self) {
        for _ in 0..FORGET_STEPS {
            let Some(number) = self.next_idle() else {
                return;
            };
            if self.engine.is_settled(self.get(number).engine) == Ok(true) {
                self.forget(number);
            } else {
                self.idle.push_back(number);
            }
        }
    }

    /// Forgets the lane that has been idle for longest, whatever it owes: less than a round's worth.
    fn forget_one(&mut self) {
        if let Some(number) = self.next_idle() {
            self.forget(number);
        }
    }

    /// Takes the first lane that is idle off the list. Drops those that are not from it on the way.
    fn next_idle(&mut self) -> Option<u32> {
        while let Some(number) = self.idle.pop_front() {
            let lane = self.lanes[number as usize].as_mut().expect(IS_KEPT);
            if lane.known.activity == Activity::Idle {
                return Some(number);
            }
            lane.known.is_listed = false;
        }
        None
    }

    fn forget(&mut self, number: u32) {
        if let Some(lane) = self.lanes[number as usize].take() {
            self.numbers.remove(&lane.key);
            let _ = self.engine.forget(lane.engine);
        }
    }
}

const IS_KEPT: &str = "a lane is kept while something refers to it by its number";
const IS_REGISTERED: &str = "a lane's key is registered";
