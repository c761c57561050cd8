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
use crate::sync::{Mutex, Padded, lock, try_lock};

/// A shard and its lock.
type Part<T, K> = Padded<Mutex<Shard<T, K>>>;

#[derive(Debug)]
pub(crate) enum Topology<T, K> {
    /// One shard: nothing is gained by two locks.
    Solo(Box<Padded<Mutex<Solo<T, K>>>>),
    Sharded {
        ring: Box<Padded<Mutex<Ring<K>>>>,
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
            (Some(shard), true) => Self::Solo(Box::new(Padded(Mutex::new(Solo { ring, shard })))),
            (last, _) => {
                let shards = shards.into_iter().chain(last);
                Self::Sharded {
                    ring: Box::new(Padded(Mutex::new(ring))),
                    shards: shards.map(|shard| Padded(Mutex::new(shard))).collect(),
                }
            }
        }
    }

    /// Does something in a shard.
    #[inline]
    pub(crate) fn with_shard<R>(&self, number: u32, f: impl FnOnce(&mut Shard<T, K>) -> R) -> R {
        match self {
            Self::Solo(solo) => f(&mut lock(&solo.0).shard),
            Self::Sharded { shards, .. } => f(&mut lock(&shards[number as usize].0)),
        }
    }

    /// Does something in the ring.
    pub(crate) fn with_ring<R>(&self, f: impl FnOnce(&mut Ring<K>) -> R) -> R {
        match self {
            Self::Solo(solo) => f(&mut lock(&solo.0).ring),
            Self::Sharded { ring, .. } => f(&mut lock(&ring.0)),
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
                let Solo { ring, shard } = &mut *lock(&solo.0);
                f(ring, shard)
            }
            Self::Sharded { ring, shards } => {
                let mut ring = lock(&ring.0);
                f(&mut ring, &mut lock(&shards[number as usize].0))
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
                let Solo { ring, shard } = &mut *lock(&solo.0);
                let (_, chosen) = choose(ring)?;
                Some(f(ring, shard, chosen))
            }
            Self::Sharded { ring, shards } => {
                let mut ring = lock(&ring.0);
                let (number, chosen) = choose(&mut ring)?;
                Some(f(&mut ring, &mut lock(&shards[number as usize].0), chosen))
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
                let Solo { ring, shard } = &mut *lock(&solo.0);
                let (result, lane) = f(shard, effects);
                if let Some(lane) = lane {
                    shard.reconcile(ring, lane, effects);
                }
                result
            }
            Self::Sharded { ring, shards } => {
                let shard = &shards[number as usize].0;
                let mut guard = lock(shard);
                let (result, lane) = f(&mut guard, effects);
                let Some(lane) = lane else { return result };
                if let Some(mut ring) = try_lock(&ring.0) {
                    guard.reconcile(&mut ring, lane, effects);
                } else {
                    drop(guard);
                    let mut ring = lock(&ring.0);
                    lock(shard).reconcile(&mut ring, lane, effects);
                }
                result
            }
        }
    }
}
