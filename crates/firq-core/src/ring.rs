//! The order of service: one engine for all shards, and where each of its keys lives.
//!
//! Tenants of all shards compete in one ring, so that shards cannot be seen in the order of service. What
//! is large or slow (tasks, payloads, the table of tenants, statistics) is in the shards; what is here is 40
//! bytes per tenant, and an enqueuer comes here only when a tenant's queue was empty. Two alternatives were
//! weighed: an engine per shard, served in the order of their clocks, has to look at every shard for every
//! task and is only as fair as the clocks are close; visiting shards in turn is not fair at all.

use drr::{Drr, Key, Quantum, Weight};

/// Where a key's lane is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) shard: u32,
    pub(crate) lane: u32,
}

/// From this many keys on, an engine that has lost them all is replaced by a new one, to free its memory.
const RENEW_FROM: usize = 4096;

#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) engine: Drr,
    homes: Vec<Home>,
}

impl Ring {
    pub(crate) fn new(quantum: u64) -> Self {
        let quantum = Quantum::new(quantum).expect("the configuration's checks refuse zero");
        Self {
            engine: Drr::new(quantum),
            homes: Vec::new(),
        }
    }

    pub(crate) fn register(&mut self, weight: Weight, home: Home) -> Key {
        let key = self.engine.register(weight);
        if self.homes.len() == key.index() {
            self.homes.push(home);
        } else {
            self.homes[key.index()] = home;
        }
        key
    }

    /// Returns whose turn it is and where it lives.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(Key, Home)> {
        let key = self.engine.next_key()?;
        Some((key, self.homes[key.index()]))
    }

    /// Removes a key. If it was the last of many, returns their memory, to be dropped without a lock.
    pub(crate) fn forget(&mut self, key: Key) -> Option<Box<Self>> {
        known(self.engine.forget(key));
        if !self.engine.is_empty() || self.homes.len() < RENEW_FROM {
            return None;
        }
        let fresh = Self {
            engine: Drr::new(self.engine.quantum()),
            homes: Vec::new(),
        };
        Some(Box::new(std::mem::replace(self, fresh)))
    }
}

/// Unwraps what the engine says about a key that a lane holds.
#[inline]
pub(crate) fn known<R>(result: Result<R, drr::Unknown>) -> R {
    result.expect("a lane's key is forgotten only together with the lane")
}
