//! The scheduler: its parts, and the helpers that its methods share.

mod close;
mod dequeue;
mod enqueue;
mod groups;
mod statistics;
mod tenants;
mod waiting;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use crate::capacity::{Capacity, Locking, Released, Remaining};
use crate::clock::Clock;
use crate::config::{BackpressurePolicy, ConfigError, DropObserver, SchedulerConfig};
use crate::consumers::Consumers;
use crate::effects::{DroppedTask, Effects, Rare};
use crate::expiry::Turned;
use crate::nesting::Levels;
use crate::node::{NEVER, Nanos};
use crate::outcome::{Dropped, EnqueueRejectReason};
use crate::quanta::Quanta;
use crate::ring::Ring;
use crate::shard::{Common, Shard, ShardHints};
use crate::sync::{AtomicU8, AtomicU64, Ordering};
use crate::task::TenantKey;
use crate::times::{Moment, Times, nanos};
use crate::topology::Topology;
use crate::tree::Tree;

/// Takes work tagged with a tenant and hands it back so that no tenant starves another, however fast it
/// submits.
///
/// All methods take `&self`; share it between threads by reference or in an `Arc`. See the
/// [crate documentation](crate) for an example and [`guide::promises`](crate::guide::promises) for the guarantees.
pub struct Scheduler<T, K = TenantKey> {
    topology: Topology<T, K>,
    hints: Box<[Arc<ShardHints>]>,
    capacity: Arc<Capacity>,
    consumers: Arc<Consumers>,
    quanta: Quanta<K>,
    levels: Option<Levels<K>>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
    times: Times,
    phase: AtomicU8,
    rejections: [AtomicU64; 3],
    number: u32,
    max_per_tenant: u32,
    backpressure: BackpressurePolicy,
    tenant_backpressure: HashMap<K, BackpressurePolicy>,
    top_tenants_capacity: usize,
    on_drop: Option<DropObserver<T, K>>,
}

/// How far a scheduler is in its life. Never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Open,
    /// Takes no more tasks, and hands out the queued ones.
    Draining,
    /// Neither takes nor hands out tasks.
    Closed,
}

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Returns an empty scheduler.
    ///
    /// # Errors
    /// If a field of the configuration is out of range; the error names it.
    pub fn new(mut config: SchedulerConfig<T, K>) -> Result<Self, ConfigError> {
        config.validate()?;
        let sheds = config.sheds();
        let levels = config.take_levels();
        let hasher = hasher();
        let times = Times::new(&*config.clock);
        let quanta = Quanta::new(config.quantum, config.tenant_quanta);
        let number = next_number();
        let common = Common {
            scheduler: number,
            times,
            hasher: hasher.clone(),
            sheds,
            nests: levels.is_some(),
            observes: config.on_drop.is_some(),
            idle_max: config.idle_tenants_max.div_ceil(config.shards),
        };
        let debts_kept = config.idle_tenants_max.saturating_mul(16).max(1 << 16);
        let tree = levels
            .is_some()
            .then(|| Tree::new(hasher.clone(), sheds, debts_kept));
        let locking = match config.shards {
            1 => Locking::One,
            _ => Locking::Many,
        };
        let shards: Vec<Shard<T, K>> = (0..config.shards)
            .map(|number| Shard::new(number as u32, common.clone()))
            .collect();
        Ok(Self {
            hints: shards
                .iter()
                .map(|shard| Arc::clone(&shard.hints))
                .collect(),
            topology: Topology::new(Ring::new(config.quantum, tree), shards),
            capacity: Arc::new(Capacity::new(config.max_global, locking)),
            consumers: Arc::new(Consumers::new()),
            quanta,
            levels,
            hasher,
            clock: config.clock,
            times,
            phase: AtomicU8::new(Phase::Open as u8),
            rejections: std::array::from_fn(|_| AtomicU64::new(0)),
            number,
            max_per_tenant: u32::try_from(config.max_per_tenant).unwrap_or(u32::MAX),
            backpressure: config.backpressure,
            tenant_backpressure: config.tenant_backpressure,
            top_tenants_capacity: config.top_tenants_capacity,
            on_drop: config.on_drop,
        })
    }

    /// Returns how many tasks are queued. Never above `max_global`.
    ///
    /// This includes expired tasks that no call has met yet; [`stats`](Self::stats) drops those first.
    #[must_use]
    pub fn len(&self) -> usize {
        self.capacity.len() as usize
    }

    /// Returns whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the policy for tasks of this tenant when there is no room: its own, or else that of the innermost
    /// [group](SchedulerConfig::with_groups) that has one, or else that of all.
    #[must_use]
    pub fn backpressure_for(&self, tenant: &K) -> BackpressurePolicy {
        if self.tenant_backpressure.is_empty() {
            return self.backpressure;
        }
        let set = |name: &K| self.tenant_backpressure.get(name).copied();
        set(tenant)
            .or_else(|| self.groups_of(tenant).iter().find_map(set))
            .unwrap_or(self.backpressure)
    }

    /// Returns the clock that deadlines and waits are measured by.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns a moment before which no queued task expires, if any has a deadline.
    ///
    /// A future that waits for room sets a timer to it, because tasks that expire make room.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        let next = self
            .hints
            .iter()
            .map(|hints| hints.next_expiry.load(Ordering::Relaxed));
        let next = next.min().filter(|&next| next != NEVER)?;
        Some(self.times.epoch + Duration::from_nanos(next))
    }

    /// Returns the exact time.
    fn now(&self) -> Nanos {
        nanos(self.times.epoch, self.clock.now())
    }

    /// Returns the present, as exactly as a task without a deadline needs it.
    #[inline]
    fn look(&self) -> Moment {
        self.times.look(&*self.clock)
    }

    /// Returns a tenant's hash and its shard.
    #[inline]
    fn locate(&self, tenant: &K) -> (u64, u32) {
        let hash = self.hasher.hash_one(tenant);
        // The table uses the top and the bottom bits; the middle ones are as good.
        let shard = ((hash >> 16) & 0xffff_ffff) * self.hints.len() as u64;
        (hash, (shard >> 32) as u32)
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Open,
            1 => Phase::Draining,
            _ => Phase::Closed,
        }
    }

    fn count_rejection(&self, reason: EnqueueRejectReason) {
        self.rejections[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn effects(&self) -> Effects<'_, T, K> {
        Effects::new(&self.capacity)
    }

    /// Carries out the effects that were noted under a lock.
    #[inline]
    fn apply(&self, effects: Effects<'_, T, K>) {
        if effects.announced > 0 {
            self.consumers.call(effects.announced);
        }
        if let Some(released) = effects.released {
            self.announce(released);
        }
        if effects.freed > 0 {
            self.release(effects.freed);
        }
        if let Some(rare) = effects.rare {
            self.apply_rare(*rare);
        }
    }

    #[cold]
    fn apply_rare(&self, rare: Rare<T, K>) {
        let Rare {
            wakers, dropped, ..
        } = rare;
        wakers.into_iter().for_each(std::task::Waker::wake);
        for DroppedTask {
            tenant,
            task,
            reason,
        } in dropped
        {
            if let (Some(observer), Some(tenant)) = (&self.on_drop, tenant) {
                observer(Dropped {
                    tenant,
                    task,
                    reason,
                });
            }
        }
    }

    /// Gives room back. The caller holds no lock.
    fn release(&self, tasks: u64) {
        let released = self.topology.in_order(|| self.capacity.release(tasks));
        self.announce(released);
    }

    /// Wakes the callers that wait for room that was given back, or for the end. The caller holds no lock.
    #[inline]
    fn announce(&self, released: Released) {
        match self.capacity.announce(released) {
            Remaining::Some => {}
            Remaining::NothingEver => self.consumers.call_all(),
        }
    }

    /// Drops some of the expired tasks of a shard, if there are any.
    fn expire_some(&self, shard: u32, now: Nanos) -> Expired {
        if self.hints[shard as usize]
            .next_expiry
            .load(Ordering::Relaxed)
            > now
        {
            return Expired {
                freed: 0,
                turned: Turned::Fully,
            };
        }
        let mut effects = self.effects();
        let turned = self
            .topology
            .with_both(shard, |ring, shard| shard.expire(ring, now, &mut effects));
        let freed = effects.freed;
        self.apply(effects);
        Expired { freed, turned }
    }

    /// Drops all expired tasks of a shard. Returns how many there were.
    fn expire_all(&self, shard: u32, now: Nanos) -> u64 {
        let mut freed = 0;
        loop {
            let expired = self.expire_some(shard, now);
            freed += expired.freed;
            if expired.turned == Turned::Fully {
                return freed;
            }
            self.topology.make_way(Some(shard));
        }
    }

    /// Makes room by dropping expired tasks, wherever they are. Returns whether it found any.
    fn reclaim(&self, now: Nanos) -> bool {
        (0..self.hints.len() as u32).any(|shard| {
            loop {
                let expired = self.expire_some(shard, now);
                if expired.freed > 0 || expired.turned == Turned::Fully {
                    return expired.freed > 0;
                }
                self.topology.make_way(Some(shard));
            }
        })
    }
}

/// The result of looking for expired tasks.
#[derive(Clone, Copy, Debug)]
struct Expired {
    freed: u64,
    turned: Turned,
}

impl<T, K> fmt::Debug for Scheduler<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("shards", &self.hints.len())
            .field("len", &self.capacity.len())
            .field("max_global", &self.capacity.max())
            .finish_non_exhaustive()
    }
}

/// Returns a number that no other scheduler of this process has, up to four billion of them.
fn next_number() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Returns a randomly seeded hasher, so that a client cannot aim tenants at one shard.
#[cfg(not(loom))]
fn hasher() -> RandomState {
    RandomState::default()
}

/// A model must take the same path every time.
#[cfg(loom)]
fn hasher() -> RandomState {
    static ONE: std::sync::OnceLock<RandomState> = std::sync::OnceLock::new();
    ONE.get_or_init(RandomState::default).clone()
}
