//! A part of the queues: lanes, their tasks, indexes and counters.
//!
//! Everything here is owned by one lock. A shard knows nothing of the order of service; where a change must
//! reach the [ring](crate::ring), the caller holds both locks and calls [`Shard::reconcile`], after which a
//! lane is in the ring exactly if it has tasks.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use drr::{Cost, Key, Weight};
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::effects::{DroppedTask, Effects};
use crate::expiry::{Turned, Wheel};
use crate::histogram::Histogram;
use crate::lane::{Flag, Lane};
use crate::lengths::Lengths;
use crate::nesting::Newcomer;
use crate::node::{NEVER, Nanos, Node};
use crate::outcome::DropReason;
use crate::ring::{Location, Ring};
use crate::slab::{Slab, Slot};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::task::{Task, TaskHandle};
use crate::times::{Moment, Times, nanos};

/// The most tasks that are dropped or moved while a lock is held.
pub(crate) const CHUNK: usize = 64;

/// Of this many tasks, the queue time of one is measured at least.
const TIMED_EVERY: u64 = 16;

/// Lanes that the eviction hand looks at when a tenant comes or goes.
const SWEEP: usize = 4;

/// Facts about a shard that other threads read without its lock. Set under the lock.
#[derive(Debug)]
pub(crate) struct ShardHints {
    /// No task of the shard expires before this.
    pub(crate) next_expiry: AtomicU64,
    /// The class of the shard's longest lanes, in the [length index](crate::lengths).
    pub(crate) longest: AtomicU32,
}

/// The counters of a shard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) enqueued: u64,
    pub(crate) dequeued: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    pub(crate) cancelled: u64,
    pub(crate) discarded: u64,
}

/// Settings that all shards of a scheduler share.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) scheduler: u32,
    pub(crate) times: Times,
    pub(crate) hasher: RandomState,
    pub(crate) sheds: bool,
    /// Whether tenants nest.
    pub(crate) nests: bool,
    /// Whether dropped tasks carry their tenant, for the observer.
    pub(crate) observes: bool,
    /// How many tenants without work a shard keeps.
    pub(crate) idle_max: usize,
}

#[derive(Debug)]
pub(crate) struct Shard<T, K> {
    number: u32,
    common: Common,
    pub(crate) hints: Arc<ShardHints>,
    nodes: Slab<Node<T>>,
    pub(crate) lanes: Slab<Lane<K>>,
    table: HashTable<u32>,
    wheel: Wheel,
    lengths: Option<Lengths>,
    /// Whether an index follows the lengths of lanes, here or in the ring.
    is_indexed: bool,
    pub(crate) counters: Counters,
    pub(crate) waits: Histogram,
    /// The coarse time at which the last task came.
    last_tick: Nanos,
    /// Lanes that have tasks.
    busy: usize,
    /// The lane that the eviction hand looks at next.
    hand: u32,
    /// The queued tasks have been discarded, and the shard takes no more.
    pub(crate) is_closed: bool,
}

impl<T, K: Hash + Eq + Clone> Shard<T, K> {
    pub(crate) fn new(number: u32, common: Common) -> Self {
        Self {
            number,
            hints: Arc::new(ShardHints {
                next_expiry: AtomicU64::new(NEVER),
                longest: AtomicU32::new(0),
            }),
            nodes: Slab::new(),
            lanes: Slab::new(),
            table: HashTable::new(),
            wheel: Wheel::new(),
            // With groups, the ring knows the lengths.
            lengths: (common.sheds && !common.nests).then(Lengths::new),
            is_indexed: common.sheds || common.nests,
            counters: Counters::default(),
            waits: Histogram::new(),
            last_tick: 0,
            busy: 0,
            hand: 0,
            is_closed: false,
            common,
        }
    }

    /// Returns the lane of a tenant, if it has one.
    #[inline]
    pub(crate) fn find(&self, hash: u64, tenant: &K) -> Option<u32> {
        let is_its = |&lane: &u32| self.lanes[lane].tenant.as_ref() == Some(tenant);
        self.table.find(hash, is_its).copied()
    }

    /// Gives a new tenant a lane.
    pub(crate) fn add(&mut self, hash: u64, tenant: K, weight: Weight) -> u32 {
        let lane = self.lanes.claim();
        self.lanes[lane].occupy(tenant, weight);
        let (lanes, hasher) = (&self.lanes, &self.common.hasher);
        self.table
            .insert_unique(hash, lane, |&lane| tenant_hash(lanes, hasher, lane));
        lane
    }

    /// Queues a task for which room has been reserved.
    #[inline(always)]
    pub(crate) fn push(&mut self, lane: u32, task: Task<T>, moment: &mut Moment) -> TaskHandle {
        let index = self.nodes.claim();
        let times = &self.common.times;
        let deadline = task
            .deadline
            .map_or(NEVER, |deadline| nanos(times.epoch, deadline));
        let cost = Cost::new(task.cost).value();
        let is_timed = moment.is_exact()
            || self.counters.enqueued.is_multiple_of(TIMED_EVERY)
            || moment.coarse != self.last_tick;
        self.last_tick = moment.coarse;
        let now = match is_timed {
            true => moment.exactly(times),
            false => moment.coarse,
        };
        let node = &mut self.nodes[index];
        node.occupy(task.payload, lane, cost, task.priority, (now, deadline));
        if is_timed {
            node.set_timed();
        }
        let generation = node.generation();
        let owner = &mut self.lanes[lane];
        self.busy += usize::from(owner.len == 0);
        owner.push(&mut self.nodes, index, task.priority);
        self.counters.enqueued += 1;
        if deadline != NEVER {
            let now = moment.exactly(&self.common.times);
            self.wheel.insert(&mut self.nodes, index, now);
            self.publish_expiry();
        }
        if self.lengths.is_some() {
            self.publish_length(lane);
        }
        TaskHandle {
            scheduler: self.common.scheduler,
            shard: self.number,
            slot: index,
            generation,
        }
    }

    /// Serves the next task of a lane whose turn it is.
    ///
    /// Drops the expired ones before it, at most `budget` of them. Returns `None` if the lane had no other,
    /// and then it has left the ring, or if the budget is used up.
    #[inline(always)]
    pub(crate) fn serve(
        &mut self,
        ring: &mut Ring<K>,
        (key, lane): (Key, u32),
        moment: &mut Moment,
        budget: &mut usize,
        effects: &mut Effects<'_, T, K>,
    ) -> Option<(K, Task<T>)> {
        loop {
            let owner = &mut self.lanes[lane];
            let Some(index) = owner.first() else {
                *budget = budget.saturating_sub(1);
                self.count(ring, lane, effects);
                self.leave_ring(ring, lane, effects);
                return None;
            };
            let node = &mut self.nodes[index];
            if node.deadline != NEVER && node.is_expired(moment.exactly(&self.common.times)) {
                if *budget == 0 {
                    self.count(ring, lane, effects);
                    return None;
                }
                *budget -= 1;
                self.discard(index, DropReason::Expired, effects);
                continue;
            }
            let (cost, enqueued, deadline) = (node.cost(), node.enqueued, node.deadline);
            let (priority, is_timed) = (node.priority(), node.is_timed());
            owner.pop(priority, node.next);
            let is_empty = owner.len == 0;
            let tenant = owner.tenant.clone().expect(LIVES);
            if deadline != NEVER || owner.has(Flag::Awaited) || self.is_indexed {
                self.note_taken(index, lane, effects);
                self.count(ring, lane, effects);
            }
            effects.freed += 1;
            self.counters.dequeued += 1;
            if is_timed {
                let now = moment.exactly(&self.common.times);
                self.waits.record(now.saturating_sub(enqueued));
            }
            let payload = self.nodes[index].vacate();
            effects.retire_nodes(self.nodes.release(index));
            ring.charge(key, Cost::new(cost));
            if is_empty {
                self.busy -= 1;
                self.leave_ring(ring, lane, effects);
            }
            let epoch = self.common.times.epoch;
            let task = Task {
                payload,
                enqueue_ts: epoch + Duration::from_nanos(enqueued),
                deadline: (deadline != NEVER).then(|| epoch + Duration::from_nanos(deadline)),
                priority,
                cost,
            };
            return Some((tenant, task));
        }
    }

    /// Charges a lane for a task that runs without having been queued. The ring is empty: no lane has tasks.
    pub(crate) fn pass(&mut self, ring: &mut Ring<K>, lane: u32, cost: Cost) {
        let key = self.enter(ring, lane);
        ring.wake(key);
        let next = ring.next();
        debug_assert!(next.is_some_and(|(chosen, _)| chosen == key), "it is alone");
        ring.charge(key, cost);
        ring.sleep(key);
        if let Some((tree, engine)) = ring.tree_mut() {
            tree.note_accepted(engine, key);
        }
        self.lanes[lane].note_accepted();
        // Its queue time is zero whatever clock shows it, and counts as often as those of tasks that were queued.
        if self.common.times.are_exact() || self.counters.enqueued.is_multiple_of(TIMED_EVERY) {
            self.waits.record(0);
        }
        self.counters.enqueued += 1;
        self.counters.dequeued += 1;
    }

    /// Returns the slot that a handle names, if its task is still queued.
    pub(crate) fn resolve(&self, handle: TaskHandle) -> Option<u32> {
        let node = self.nodes.get(handle.slot)?;
        let fits = node.payload.is_some() && node.generation() == handle.generation;
        fits.then_some(handle.slot)
    }

    /// Takes a task out of the queue. Returns it and its lane.
    pub(crate) fn cancel(&mut self, index: u32, effects: &mut Effects<'_, T, K>) -> (Task<T>, u32) {
        let lane = self.nodes[index].lane;
        self.counters.cancelled += 1;
        (self.take(index, effects), lane)
    }

    /// Drops a task, notes it for the observer, and frees its room.
    pub(crate) fn discard(
        &mut self,
        index: u32,
        reason: DropReason,
        effects: &mut Effects<'_, T, K>,
    ) {
        let owner = &self.lanes[self.nodes[index].lane];
        let tenant = self.common.observes.then(|| owner.tenant.clone());
        let task = self.take(index, effects);
        match reason {
            DropReason::Expired => self.counters.expired += 1,
            DropReason::Evicted => self.counters.evicted += 1,
            DropReason::Closed => self.counters.discarded += 1,
        }
        effects.note_dropped(DroppedTask {
            tenant: tenant.flatten(),
            task,
            reason,
        });
    }

    /// Drops tasks that have expired, and takes the lanes that they leave empty out of the ring.
    pub(crate) fn expire(
        &mut self,
        ring: &mut Ring<K>,
        now: Nanos,
        effects: &mut Effects<'_, T, K>,
    ) -> Turned {
        let mut expired = Vec::new();
        let turned = self
            .wheel
            .turn(&mut self.nodes, now, CHUNK, |nodes, index| {
                nodes[index].deadline = NEVER; // it is no longer in the wheel
                expired.push(index);
            });
        for index in expired {
            let lane = self.nodes[index].lane;
            self.discard(index, DropReason::Expired, effects);
            self.reconcile(ring, lane, effects);
        }
        self.publish_expiry();
        turned
    }

    /// Returns whether the ring does not know yet that a lane has tasks, or that it has none.
    #[inline]
    pub(crate) fn is_news(&self, lane: u32) -> bool {
        let owner = &self.lanes[lane];
        owner.has(Flag::InRing) != (owner.len > 0)
    }

    /// Makes the ring know a lane exactly if it has tasks.
    #[inline]
    pub(crate) fn reconcile(
        &mut self,
        ring: &mut Ring<K>,
        lane: u32,
        effects: &mut Effects<'_, T, K>,
    ) {
        // Since the caller looked, the lane may have been given up, with all the memory around it.
        let owner = self.lanes.get(lane);
        let Some(owner) = owner.filter(|owner| owner.tenant.is_some()) else {
            return;
        };
        let (len, is_in_ring) = (owner.len, owner.has(Flag::InRing));
        if self.common.nests {
            self.count(ring, lane, effects);
        }
        if len == 0 {
            if is_in_ring {
                self.leave_ring(ring, lane, effects);
            }
        } else if !is_in_ring {
            if self.may_run(ring, lane) {
                effects.announced += u64::from(len);
            }
            self.lanes[lane].set(Flag::InRing, true);
            let key = self.enter(ring, lane);
            ring.wake(key);
            self.sweep(ring, effects);
        }
    }

    /// Returns a lane's key in the ring, which it gets if it has none.
    pub(crate) fn enter(&mut self, ring: &mut Ring<K>, lane: u32) -> Key {
        let owner = &mut self.lanes[lane];
        if let Some(key) = owner.key {
            return key;
        }
        let shard = self.number;
        let key = ring.register(owner.weight, Location { shard, lane });
        owner.key = Some(key);
        if owner.has(Flag::Paused) {
            ring.park(key);
        }
        key
    }

    /// Gives a new lane its key in the ring, in the groups of its tenant.
    pub(crate) fn introduce(
        &mut self,
        ring: &mut Ring<K>,
        hash: u64,
        newcomer: &Newcomer<'_, K>,
    ) -> u32 {
        let lane = self.add(hash, newcomer.tenant.clone(), newcomer.weight);
        if self.common.nests {
            let shard = self.number;
            let key = ring.introduce(newcomer, Location { shard, lane });
            self.lanes[lane].key = Some(key);
        }
        lane
    }

    /// Returns whether the tasks of a lane are handed out, as far as pauses say.
    pub(crate) fn may_run(&self, ring: &Ring<K>, lane: u32) -> bool {
        let owner = &self.lanes[lane];
        let is_free_above = match (ring.tree(), owner.key) {
            (Some((tree, engine)), Some(key)) => tree.is_free_above(engine, key),
            _ => true,
        };
        is_free_above && !owner.has(Flag::Paused)
    }

    /// Tells the groups of a lane how many tasks it has, if tenants nest.
    pub(crate) fn count(&self, ring: &mut Ring<K>, lane: u32, effects: &mut Effects<'_, T, K>) {
        let owner = &self.lanes[lane];
        if let (Some((tree, engine)), Some(key)) = (ring.tree_mut(), owner.key) {
            tree.count(engine, key, owner.len, &mut |group| {
                effects.group_has_room(group)
            });
        }
    }

    #[inline]
    fn leave_ring(&mut self, ring: &mut Ring<K>, lane: u32, effects: &mut Effects<'_, T, K>) {
        let owner = &mut self.lanes[lane];
        owner.set(Flag::InRing, false);
        if let Some(key) = owner.key {
            ring.sleep(key);
        }
        self.sweep(ring, effects);
    }

    /// Changes a tenant's share.
    pub(crate) fn set_weight(&mut self, ring: &mut Ring<K>, lane: u32, weight: Weight) {
        let owner = &mut self.lanes[lane];
        if owner.weight == weight {
            return;
        }
        owner.weight = weight;
        if self.common.nests {
            return; // the ring has it by the tenant's name
        }
        if let Some(key) = owner.key {
            ring.set_weight(key, weight);
        }
        if self.lengths.is_some() {
            self.publish_length(lane);
        }
    }

    /// Returns the lane that is furthest above its share of the buffer.
    pub(crate) fn longest(&self) -> Option<u32> {
        self.lengths.as_ref()?.longest()
    }

    /// Moves the eviction hand on if there are too many tenants without work.
    #[inline]
    fn sweep(&mut self, ring: &mut Ring<K>, effects: &mut Effects<'_, T, K>) {
        if self.lanes.len() - self.busy > self.common.idle_max {
            self.sweep_some(ring, effects);
        }
    }

    #[cold]
    fn sweep_some(&mut self, ring: &mut Ring<K>, effects: &mut Effects<'_, T, K>) {
        // Debt is remembered, but only of a bounded number of tenants.
        let idle = self.lanes.len() - self.busy;
        let forgives = idle > self.common.idle_max.saturating_mul(16).max(1 << 16);
        for _ in 0..SWEEP {
            if self.hand >= self.lanes.end() {
                self.hand = 0;
            }
            let lane = self.hand;
            self.hand += 1;
            let Some(owner) = self.lanes.get(lane) else {
                // The rest of a chunk that is not in use.
                self.hand = self.hand.next_multiple_of(512);
                continue;
            };
            if owner.tenant.is_none() || !owner.is_idle() || self.is_awaited(ring, lane) {
                continue;
            }
            if owner.has(Flag::Used) {
                self.lanes[lane].set(Flag::Used, false);
                continue; // it may be back soon
            }
            if forgives || self.owes_nothing(ring, lane) {
                self.evict(ring, lane, effects);
            }
        }
    }

    /// Returns whether forgetting a tenant that has no work would clear no debt and earn no second boost.
    pub(crate) fn owes_nothing(&self, ring: &Ring<K>, lane: u32) -> bool {
        let key = self.lanes[lane].key;
        key.is_none_or(|key| ring.is_settled(key))
    }

    /// Returns whether a producer waits for room in a group of a lane, which must not be disbanded then.
    pub(crate) fn is_awaited(&self, ring: &Ring<K>, lane: u32) -> bool {
        match (ring.tree(), self.lanes[lane].key) {
            (Some((tree, engine)), Some(key)) => tree.is_awaited(engine, key),
            _ => false,
        }
    }

    /// Forgets a tenant that has no work.
    pub(crate) fn evict(&mut self, ring: &mut Ring<K>, lane: u32, effects: &mut Effects<'_, T, K>) {
        let owner = &mut self.lanes[lane];
        let tenant = owner.tenant.take().expect(LIVES);
        if let Some(key) = owner.key.take() {
            effects.retire_ring(ring.forget(key, &tenant));
        }
        let hash = self.common.hasher.hash_one(&tenant);
        if let Ok(entry) = self.table.find_entry(hash, |&other| other == lane) {
            entry.remove();
        }
        effects.retire_lanes(self.lanes.release(lane));
        self.shrink_table();
    }

    /// Lets the table follow the number of tenants down, at a quarter of its size.
    fn shrink_table(&mut self) {
        if self.table.capacity() > 1024 && self.table.len() < self.table.capacity() / 8 {
            let (lanes, hasher) = (&self.lanes, &self.common.hasher);
            self.table.shrink_to(self.table.len() * 2, |&lane| {
                tenant_hash(lanes, hasher, lane)
            });
        }
    }

    /// Keeps a lane from running, or lets it.
    pub(crate) fn set_paused(
        &mut self,
        ring: &mut Ring<K>,
        lane: u32,
        paused: bool,
        effects: &mut Effects<'_, T, K>,
    ) {
        let key = self.enter(ring, lane);
        let owner = &mut self.lanes[lane];
        if owner.has(Flag::Paused) == paused {
            return;
        }
        owner.set(Flag::Paused, paused);
        if let Some((tree, engine)) = ring.tree_mut() {
            let tenant = owner.tenant.as_ref().expect(LIVES);
            let tasks = tree.set_parked(engine, tenant, key, paused);
            effects.announced += if paused { 0 } else { u64::from(tasks) };
            return;
        }
        if paused {
            ring.park(key);
        } else {
            ring.unpark(key);
            if owner.has(Flag::InRing) {
                effects.announced += u64::from(owner.len);
            }
        }
    }

    /// Returns the lanes in use among the `count` from `start` on, and where the next ones start, if any do.
    pub(crate) fn lanes_from(&self, start: u32, count: usize) -> (Vec<u32>, Option<u32>) {
        let end = start.saturating_add(count as u32).min(self.lanes.end());
        let in_use = |&lane: &u32| {
            let owner = self.lanes.get(lane);
            owner.is_some_and(|owner| owner.tenant.is_some())
        };
        let lanes = (start..end).filter(in_use).collect();
        (lanes, (end < self.lanes.end()).then_some(end))
    }

    /// Drops the tasks in the `count` slots from `start` on. Returns where the next ones start, if any do.
    pub(crate) fn discard_from(
        &mut self,
        ring: &mut Ring<K>,
        start: u32,
        count: usize,
        reason: DropReason,
        effects: &mut Effects<'_, T, K>,
    ) -> Option<u32> {
        let end = start.saturating_add(count as u32).min(self.nodes.end());
        for index in start..end {
            let queued = self.nodes.get(index).filter(|node| node.payload.is_some());
            if let Some(lane) = queued.map(|node| node.lane) {
                self.discard(index, reason, effects);
                self.reconcile(ring, lane, effects);
            }
        }
        (end < self.nodes.end()).then_some(end)
    }

    /// Moves a task out of the queue, wherever it is; its room is freed.
    fn take(&mut self, index: u32, effects: &mut Effects<'_, T, K>) -> Task<T> {
        let Node {
            lane,
            deadline,
            enqueued,
            ..
        } = self.nodes[index];
        self.lanes[lane].unlink(&mut self.nodes, index);
        self.busy -= usize::from(self.lanes[lane].len == 0);
        self.note_taken(index, lane, effects);
        effects.freed += 1;
        let node = &mut self.nodes[index];
        let (priority, cost) = (node.priority(), node.cost());
        let payload = node.vacate();
        effects.retire_nodes(self.nodes.release(index));
        let epoch = self.common.times.epoch;
        Task {
            payload,
            enqueue_ts: epoch + Duration::from_nanos(enqueued),
            deadline: (deadline != NEVER).then(|| epoch + Duration::from_nanos(deadline)),
            priority,
            cost,
        }
    }

    /// Updates the optional indexes (expiry wheel, waiters, lengths) after a task has left its lane.
    fn note_taken(&mut self, index: u32, lane: u32, effects: &mut Effects<'_, T, K>) {
        if self.nodes[index].deadline != NEVER {
            self.wheel.remove(&mut self.nodes, index);
            self.publish_expiry();
        }
        let owner = &mut self.lanes[lane];
        if owner.has(Flag::Awaited) {
            owner.set(Flag::Awaited, effects.tenant_has_room(self.number, lane));
        }
        if self.lengths.is_some() {
            self.publish_length(lane);
        }
    }

    fn publish_expiry(&self) {
        let next = self.wheel.next();
        self.hints.next_expiry.store(next, Ordering::Relaxed);
    }

    fn publish_length(&mut self, lane: u32) {
        if let Some(lengths) = &mut self.lengths {
            let owner = &self.lanes[lane];
            lengths.update(lane, owner.len, owner.weight);
            let longest = lengths.longest_class();
            self.hints.longest.store(longest, Ordering::Relaxed);
        }
    }
}

/// Returns the hash of the tenant of a lane in the table.
fn tenant_hash<K: Hash>(lanes: &Slab<Lane<K>>, hasher: &RandomState, lane: u32) -> u64 {
    hasher.hash_one(lanes[lane].tenant.as_ref().expect(LIVES))
}

const LIVES: &str = "a lane in the table has a tenant";
