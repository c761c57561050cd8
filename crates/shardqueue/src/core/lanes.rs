//! The keys of a shard: their lanes, the table that finds them by name, and the ring that says whose turn it is.
//!
//! A lane's number is its key's slot in the ring, so neither has to be looked up for the other.
//!
//! # Idle keys
//! A lane that has nothing left is kept for a while, since its key may be back: with it goes what the key owes,
//! and leaving and returning must not clear that. About [`IDLE_MAX`] are kept. Beyond that a hand goes round the
//! lanes and forgets those that it has not seen used since it last passed, as soon as nothing is lost by it
//! (which is within a pass of the ring), and beyond [`IDLE_LIMIT`] in any case. So keys that come once cost
//! nothing, however many they are.

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use drr::{Cost, Drr, Quantum, Unknown, Weight};
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::lane::Lane;

/// Idle keys that are kept in any case.
const IDLE_MAX: usize = 4096;

/// Idle keys that are kept if they owe something.
const IDLE_LIMIT: usize = 4 * IDLE_MAX;

/// From this many lanes on, memory is given back when all keys are idle.
const TRIM_FROM: usize = 8 * IDLE_MAX;

/// Lanes that the hand looks at when one more becomes idle.
const SWEEP: usize = 4;

const LIVES: &str = "a lane with nodes, and one that is idle, has a key in the ring";

/// The table behind the lanes.
#[derive(Debug, Default)]
struct Slots(Vec<Option<Lane>>);

impl Index<u32> for Slots {
    type Output = Lane;

    #[inline]
    fn index(&self, number: u32) -> &Lane {
        self.0[number as usize].as_ref().expect(LIVES)
    }
}

impl IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut Lane {
        self.0[number as usize].as_mut().expect(LIVES)
    }
}

#[derive(Debug)]
pub(crate) struct Lanes {
    slots: Slots,
    names: HashTable<u32>,
    hasher: RandomState,
    ring: Drr,
    /// Lanes that have jobs.
    busy: usize,
    /// The lane that the hand looks at next.
    hand: usize,
}

impl Lanes {
    pub(crate) fn new(quantum: Quantum, hasher: RandomState) -> Self {
        Self {
            slots: Slots::default(),
            names: HashTable::new(),
            hasher,
            ring: Drr::new(quantum),
            busy: 0,
            hand: 0,
        }
    }

    /// Returns the lane of a key, if it has one.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        let is_its = |&lane: &u32| *self.slots[lane].name == *name;
        self.names.find(hash, is_its).copied()
    }

    /// Returns the lane of a key, which gets one if it has none.
    #[inline]
    pub(crate) fn find_or_add(&mut self, name: &str, weight: Weight) -> u32 {
        let hash = self.hasher.hash_one(name);
        let is_its = |&lane: &u32| *self.slots[lane].name == *name;
        if let Some(&lane) = self.names.find(hash, is_its) {
            return lane;
        }
        let key = self.ring.register(weight);
        let lane = Some(Lane::new(Arc::from(name), key));
        if self.slots.0.len() == key.index() {
            self.slots.0.push(lane);
        } else {
            self.slots.0[key.index()] = lane;
        }
        let number = key.index() as u32;
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |&lane: &u32| hasher.hash_one(&*slots[lane].name);
        self.names.insert_unique(hash, number, rehash);
        number
    }

    /// Returns the lane whose turn it is; the choice stands until it is [charged](Self::charge).
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.ring.next_key().map(|key| key.index() as u32)
    }

    #[inline]
    pub(crate) fn charge(&mut self, lane: u32, cost: Cost) {
        known(self.ring.charge(self.slots[lane].key, cost));
    }

    pub(crate) fn park(&mut self, lane: u32) {
        known(self.ring.park(self.slots[lane].key));
    }

    pub(crate) fn unpark(&mut self, lane: u32) {
        known(self.ring.unpark(self.slots[lane].key));
    }

    #[inline]
    pub(crate) fn is_runnable(&self) -> bool {
        self.ring.is_runnable()
    }

    /// Says that a lane has got its first job.
    #[inline]
    pub(crate) fn wake(&mut self, number: u32) {
        self.busy += 1;
        known(self.ring.wake(self.slots[number].key));
    }

    /// Says that a lane has no more jobs.
    #[inline]
    pub(crate) fn sleep(&mut self, number: u32) {
        self.busy -= 1;
        known(self.ring.sleep(self.slots[number].key));
        self.tidy();
    }

    /// Forgets keys that have been idle for long, if there are many. To be called when a lane becomes idle.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        if self.ring.len() - self.busy > IDLE_MAX {
            self.sweep();
        }
    }

    /// Moves the hand on.
    fn sweep(&mut self) {
        for _ in 0..SWEEP {
            self.hand = match self.hand + 1 {
                next if next < self.slots.0.len() => next,
                _ => 0,
            };
            let Some(lane) = &mut self.slots.0[self.hand] else {
                continue;
            };
            let was_used = std::mem::replace(&mut lane.is_used, false);
            let is_crowded = self.ring.len() - self.busy > IDLE_LIMIT;
            if !lane.is_idle() || (was_used && !is_crowded) {
                continue;
            }
            if is_crowded || known(self.ring.is_settled(lane.key)) {
                self.forget(self.hand as u32);
            }
        }
    }

    /// Gives back the memory of a crowd that has left, when nobody has anything left to do or waits for room.
    ///
    /// What the keys still owe is forgotten with it: there is nobody whom they owe it to.
    pub(crate) fn trim(&mut self) {
        if self.slots.0.len() < TRIM_FROM || self.busy > 0 {
            return;
        }
        let hasher = std::mem::take(&mut self.hasher);
        *self = Self::new(self.ring.quantum(), hasher);
    }

    fn forget(&mut self, number: u32) {
        let Some(lane) = self.slots.0[number as usize].take() else {
            return;
        };
        let hash = self.hasher.hash_one(&*lane.name);
        if let Ok(entry) = self.names.find_entry(hash, |&other| other == number) {
            entry.remove();
        }
        // At the limit a debt may be lost with its standing: the price of a bound.
        let _standing = known(self.ring.forget(lane.key));
    }

    /// Forgets an idle key as the hand would, if nothing is lost by it.
    #[cfg(test)]
    pub(crate) fn evict(&mut self, number: u32) {
        let lane = &self.slots[number];
        if lane.is_idle() && known(self.ring.is_settled(lane.key)) {
            self.forget(number);
        }
    }

    /// Returns the ring, to be asked or told what only tests ask and tell it.
    #[cfg(test)]
    pub(crate) const fn ring(&mut self) -> &mut Drr {
        &mut self.ring
    }

    /// Returns what the ring has done so far.
    #[cfg(test)]
    pub(crate) const fn work(&self) -> drr::Work {
        self.ring.work()
    }

    /// Returns all lanes, by number.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Lane)> {
        let slots = self.slots.0.iter().enumerate();
        slots.filter_map(|(number, lane)| Some((number as u32, lane.as_ref()?)))
    }

    /// Returns how many keys are in memory, with and without jobs.
    pub(crate) const fn len(&self) -> usize {
        self.ring.len()
    }
}

impl Index<u32> for Lanes {
    type Output = Lane;

    #[inline]
    fn index(&self, number: u32) -> &Lane {
        &self.slots[number]
    }
}

impl IndexMut<u32> for Lanes {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut Lane {
        &mut self.slots[number]
    }
}

/// Unwraps what the ring says about a key that a lane holds.
#[inline]
fn known<R>(result: Result<R, Unknown>) -> R {
    result.expect("a lane's key is forgotten only together with the lane")
}
