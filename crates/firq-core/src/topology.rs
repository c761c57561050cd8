//! The locks: one for the ring, one for each shard, or a single one for both if there is one shard.
//!
//! # Order
//! The ring's lock comes before a shard's, and no thread holds two shards. A thread that holds a shard and
//! needs the ring tries to lock it; if the ring is taken, it releases the shard and takes both in order.
//! The locks of the wait queues ([`Consumers`](crate::consumers), [`Capacity`](crate::capacity)) come last.

use std::hash::Hash;

use crate::effects::Effects;
use crate::ring::Ring;
use crate::shard::Shard;
use crate::sync::{Gate, Padded};

/// A shard and its lock.
type Part<T, K> = Padded<Gate<Shard<T, K>>>;

#[derive(Debug)]
pub(crate) enum Topology<T, K> {
    /// One shard: nothing is gained by two locks.
    Solo(Box<Padded<Gate<Solo<T, K>>>>),
    Sharded {
        ring: Box<Padded<Gate<Ring<K>>>>,
        shards: Box<[Part<T, K>]>,
    },
}

#[derive(Debug)]
pub(crate) struct Solo<T, K> {
    pub(crate) ring: Ring<K>,
    pub(crate) shard: Shard<T, K>,
}

impl<T, K> Topology<T, K> {
    pub(crate) fn new(ring: Ring<K>, mut shards: Vec<Shard<T, K>>) -> Self {
        match (shards.pop(), shards.is_empty()) {
            (Some(shard), true) => Self::Solo(Box::new(Padded(Gate::new(Solo { ring, shard })))),
            (last, _) => {
                let shards = shards.into_iter().chain(last);
                Self::Sharded {
                    ring: Box::new(Padded(Gate::new(ring))),
                    shards: shards.map(|shard| Padded(Gate::new(shard))).collect(),
                }
            }
        }
    }

    /// Does something in a shard.
    #[inline]
    pub(crate) fn with_shard<R>(&self, number: u32, f: impl FnOnce(&mut Shard<T, K>) -> R) -> R {
        match self {
            Self::Solo(solo) => f(&mut solo.0.lock().shard),
            Self::Sharded { shards, .. } => f(&mut shards[number as usize].0.lock()),
        }
    }

    /// Does something in the ring.
    pub(crate) fn with_ring<R>(&self, f: impl FnOnce(&mut Ring<K>) -> R) -> R {
        match self {
            Self::Solo(solo) => f(&mut solo.0.lock().ring),
            Self::Sharded { ring, .. } => f(&mut ring.0.lock()),
        }
    }

    /// Does something under the one lock, if there is one for everything, and else under none.
    pub(crate) fn in_order<R>(&self, f: impl FnOnce() -> R) -> R {
        match self {
            Self::Solo(solo) => {
                let _guard = solo.0.lock();
                f()
            }
            Self::Sharded { .. } => f(),
        }
    }

    /// Lets other threads go first that wait for the lock of the ring or a shard. The caller holds no lock.
    pub(crate) fn make_way(&self, shard: Option<u32>) {
        match self {
            Self::Solo(solo) => solo.0.make_way(),
            Self::Sharded { ring, shards } => {
                ring.0.make_way();
                if let Some(number) = shard {
                    shards[number as usize].0.make_way();
                }
            }
        }
    }

    /// Does something in the ring and in a shard.
    #[inline]
    pub(crate) fn with_both<R>(
        &self,
        number: u32,
        f: impl FnOnce(&mut Ring<K>, &mut Shard<T, K>) -> R,
    ) -> R {
        match self {
            Self::Solo(solo) => {
                let Solo { ring, shard } = &mut *solo.0.lock();
                f(ring, shard)
            }
            Self::Sharded { ring, shards } => {
                let mut ring = ring.0.lock();
                f(&mut ring, &mut shards[number as usize].0.lock())
            }
        }
    }

    /// Does something in the shard that a look at the ring chooses, if it does.
    pub(crate) fn with_chosen<C, R>(
        &self,
        choose: impl FnOnce(&mut Ring<K>) -> Option<(u32, C)>,
        f: impl FnOnce(&mut Ring<K>, &mut Shard<T, K>, C) -> R,
    ) -> Option<R> {
        match self {
            Self::Solo(solo) => {
                let Solo { ring, shard } = &mut *solo.0.lock();
                let (_, chosen) = choose(ring)?;
                Some(f(ring, shard, chosen))
            }
            Self::Sharded { ring, shards } => {
                let mut ring = ring.0.lock();
                let (number, chosen) = choose(&mut ring)?;
                Some(f(&mut ring, &mut shards[number as usize].0.lock(), chosen))
            }
        }
    }

    /// Does something in a shard, and then, if that returns a lane, lets the ring know how the lane is.
    ///
    /// Other threads may use the shard in between. The ring gets the state that the lane has by then.
    #[inline]
    pub(crate) fn with_shard_then_ring<R>(
        &self,
        number: u32,
        effects: &mut Effects<'_, T, K>,
        f: impl FnOnce(&mut Shard<T, K>, &mut Effects<'_, T, K>) -> (R, Option<u32>),
    ) -> R
    where
        K: Hash + Eq + Clone,
    {
        match self {
            Self::Solo(solo) => {
                let Solo { ring, shard } = &mut *solo.0.lock();
                let (result, lane) = f(shard, effects);
                if let Some(lane) = lane {
                    shard.reconcile(ring, lane, effects);
                }
                effects.settle();
                result
            }
            Self::Sharded { ring, shards } => {
                let shard = &shards[number as usize].0;
                let mut guard = shard.lock();
                let (result, lane) = f(&mut guard, effects);
                let Some(lane) = lane else { return result };
                if let Some(mut ring) = ring.0.try_lock() {
                    guard.reconcile(&mut ring, lane, effects);
                } else {
                    drop(guard);
                    let mut ring = ring.0.lock();
                    shard.lock().reconcile(&mut ring, lane, effects);
                }
                result
            }
        }
    }
}
