//! The order of service: one engine for all shards, and where each of its keys lives.
//!
//! Tenants of all shards compete in one ring, so that shards cannot be seen in the order of service. Large or
//! slow parts (tasks, payloads, the table of tenants, statistics) are in the shards. The ring takes 40 bytes per
//! tenant, and an enqueuer needs it only when a tenant's queue was empty. This is why the scheduler does not use
//! [`drr::Keyed`]: there, names and values live beside the engine, under one lock. Two alternatives were
//! weighed: an engine per shard, served in the order of their clocks, has to look at every shard for every
//! task and is only as fair as the clocks are close; visiting shards in turn is not fair at all.

use drr::{Cost, Drr, Key, Quantum, Weight};

/// Where a key's lane is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) shard: u32,
    pub(crate) lane: u32,
}

/// From this many keys on, an engine that has lost them all is replaced by a new one, to free its memory.
const RENEW_FROM: usize = 4096;

#[derive(Debug)]
pub(crate) struct Ring {
    engine: Drr,
    locations: Vec<Location>,
}

impl Ring {
    pub(crate) fn new(quantum: u64) -> Self {
        let quantum = Quantum::new(quantum).expect("the configuration's checks refuse zero");
        Self {
            engine: Drr::new(quantum),
            locations: Vec::new(),
        }
    }

    pub(crate) fn register(&mut self, weight: Weight, location: Location) -> Key {
        let key = self.engine.register(weight);
        if self.locations.len() == key.index() {
            self.locations.push(location);
        } else {
            self.locations[key.index()] = location;
        }
        key
    }

    /// Returns the key that is next, and the location of its lane.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(Key, Location)> {
        let key = self.engine.next_key()?;
        Some((key, self.locations[key.index()]))
    }

    /// Returns whether a tenant may run.
    pub(crate) fn is_runnable(&self) -> bool {
        self.engine.is_runnable()
    }

    #[inline]
    pub(crate) fn charge(&mut self, key: Key, cost: Cost) {
        registered(self.engine.charge(key, cost));
    }

    pub(crate) fn settle(&mut self, key: Key, charged: Cost, actual: Cost) {
        registered(self.engine.settle(key, charged, actual));
    }

    #[inline]
    pub(crate) fn wake(&mut self, key: Key) {
        registered(self.engine.wake(key));
    }

    #[inline]
    pub(crate) fn sleep(&mut self, key: Key) {
        registered(self.engine.sleep(key));
    }

    pub(crate) fn park(&mut self, key: Key) {
        registered(self.engine.park(key));
    }

    pub(crate) fn unpark(&mut self, key: Key) {
        registered(self.engine.unpark(key));
    }

    pub(crate) fn set_weight(&mut self, key: Key, weight: Weight) {
        registered(self.engine.set_weight(key, weight));
    }

    /// Returns whether forgetting a key would clear no debt.
    pub(crate) fn is_settled(&self, key: Key) -> bool {
        registered(self.engine.is_settled(key))
    }

    /// Returns how many visits the engine has made.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn visits(&self) -> u64 {
        self.engine.work().visits
    }

    /// Removes a key. If it was the last of many, returns their memory, to be dropped without a lock.
    pub(crate) fn forget(&mut self, key: Key) -> Option<Box<Self>> {
        registered(self.engine.forget(key));
        if !self.engine.is_empty() || self.locations.len() < RENEW_FROM {
            return None;
        }
        let fresh = Self {
            engine: Drr::new(self.engine.quantum()),
            locations: Vec::new(),
        };
        Some(Box::new(std::mem::replace(self, fresh)))
    }
}

/// Unwraps the engine's answer about a key that a lane holds.
#[inline]
fn registered<R>(result: Result<R, drr::Unknown>) -> R {
    result.expect("a lane's key is forgotten only together with the lane")
}
