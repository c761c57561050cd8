//! The order of service: one engine for all shards, and where each of its keys lives.
//!
//! Tenants of all shards compete in one ring, so that shards cannot be seen in the order of service. Large or
//! slow parts (tasks, payloads, the table of tenants, statistics) are in the shards. The ring takes 40 bytes per
//! tenant, and an enqueuer needs it only when a tenant's queue was empty. This is why the scheduler does not use
//! [`drr::Keyed`]: there, names and values live beside the engine, under one lock. Two alternatives were
//! weighed: an engine per shard, served in the order of their clocks, has to look at every shard for every
//! task and is only as fair as the clocks are close; visiting shards in turn is not fair at all.

use std::hash::Hash;

use drr::{Cost, Drr, Key, Quantum, Weight};

use crate::nesting::Newcomer;
use crate::tree::Tree;

/// Where a key's lane is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) shard: u32,
    pub(crate) lane: u32,
}

/// From this many keys on, an engine that has lost them all is replaced by a new one, to free its memory.
const RENEW_FROM: usize = 4096;

#[derive(Debug)]
pub(crate) struct Ring<K> {
    engine: Drr,
    locations: Vec<Location>,
    /// The groups, if tenants nest.
    tree: Option<Box<Tree<K>>>,
}

const NOWHERE: Location = Location {
    shard: u32::MAX,
    lane: u32::MAX,
};

impl<K> Ring<K> {
    pub(crate) fn new(quantum: u64, tree: Option<Tree<K>>) -> Self {
        let quantum = Quantum::new(quantum).expect("the configuration's checks refuse zero");
        Self {
            engine: Drr::new(quantum),
            locations: Vec::new(),
            tree: tree.map(Box::new),
        }
    }

    pub(crate) fn register(&mut self, weight: Weight, location: Location) -> Key {
        let key = self.engine.register(weight);
        self.place(key, location);
        key
    }

    fn place(&mut self, key: Key, location: Location) {
        drr::extend_to(&mut self.locations, key.index() + 1, &NOWHERE);
        self.locations[key.index()] = location;
    }

    /// Returns the groups, if tenants nest.
    pub(crate) fn tree(&self) -> Option<(&Tree<K>, &Drr)> {
        Some((self.tree.as_deref()?, &self.engine))
    }

    /// Returns the groups to be changed, if tenants nest.
    pub(crate) fn tree_mut(&mut self) -> Option<(&mut Tree<K>, &mut Drr)> {
        Some((self.tree.as_deref_mut()?, &mut self.engine))
    }

    /// Returns where the lane of a key is.
    pub(crate) fn location(&self, slot: usize) -> Location {
        self.locations[slot]
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
}

impl<K: Hash + Eq + Clone> Ring<K> {
    /// Adds a tenant, in its groups if tenants nest.
    pub(crate) fn introduce(&mut self, newcomer: &Newcomer<'_, K>, location: Location) -> Key {
        let Some((tree, engine)) = self.tree_mut() else {
            return self.register(newcomer.weight, location);
        };
        let key = tree.register(engine, newcomer);
        self.place(key, location); // groups have slots, too
        key
    }

    /// Removes a tenant. If it was the last of many, returns their memory, to be dropped without a lock.
    pub(crate) fn forget(&mut self, key: Key, tenant: &K) -> Option<Box<Self>> {
        match self.tree_mut() {
            Some((tree, engine)) => tree.forget(engine, key, tenant),
            None => drop(registered(self.engine.forget(key))),
        }
        if !self.engine.is_empty() || self.locations.len() < RENEW_FROM {
            return None;
        }
        let fresh = Self {
            engine: Drr::new(self.engine.quantum()),
            locations: Vec::new(),
            tree: self.tree.as_ref().map(|tree| Box::new(tree.fresh())),
        };
        Some(Box::new(std::mem::replace(self, fresh)))
    }
}

/// Unwraps the engine's answer about a key that a lane holds, or a group of it.
#[inline]
pub(crate) fn registered<R>(result: Result<R, drr::Unknown>) -> R {
    result.expect("a lane's key is forgotten only together with the lane")
}
