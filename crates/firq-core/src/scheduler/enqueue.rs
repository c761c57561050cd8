//! Taking tasks in, and what happens when there is no room.
//!
//! A task is admitted under the lock of its tenant's shard: the tenant's limit is checked, room is reserved,
//! and the task is linked. Only if its lane was empty is the ring needed too. Everything else is the slow
//! path of somebody for whom there was no room: expired tasks are looked for first, then the policy decides.

use std::hash::Hash;

use drr::Weight;

use super::{Phase, Scheduler};
use crate::capacity::Refused;
use crate::config::BackpressurePolicy;
use crate::effects::Spoil;
use crate::lane::{Age, Flag};
use crate::node::Nanos;
use crate::outcome::{
    DropReason, EnqueueRejectReason, EnqueueResult, EnqueueWithHandleResult, Rejected,
};
use crate::shard::nanos;
use crate::slab::NIL;
use crate::sync::Ordering;
use crate::task::{Task, TaskHandle};

/// How often a shedder looks for a longer lane than the one that shrank before it came.
const SHED_TRIES: usize = 4;

/// A task on offer, with what is known about it.
pub(super) struct Offer<'a, T, K> {
    tenant: &'a K,
    hash: u64,
    shard: u32,
    now: Nanos,
    slip: &'a mut Slip<T>,
}

/// What goes along with an offer: the task until it is accepted, its handle from then on.
///
/// Passed by reference all the way, because moving it costs as much as queueing it.
pub(super) struct Slip<T> {
    task: Option<Task<T>>,
    handle: TaskHandle,
}

impl<T> Slip<T> {
    #[inline]
    pub(super) const fn new(task: Option<Task<T>>) -> Self {
        let handle = TaskHandle {
            scheduler: 0,
            shard: 0,
            slot: NIL,
            generation: 0,
        };
        Self { task, handle }
    }

    /// Returns the task of an offer that was not accepted.
    pub(super) fn into_task(self) -> Task<T> {
        self.task.expect("a task that is not accepted is not taken")
    }

    /// Returns where the task of an offer is, if it was not accepted.
    pub(super) fn take_back(self) -> Option<Task<T>> {
        self.task
    }

    #[inline]
    fn take(&mut self) -> Task<T> {
        self.task
            .take()
            .expect("an offer has a task until it is accepted")
    }
}

/// Whether room for the task has been reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserved {
    No,
    Yes,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    TenantFull,
    GlobalFull,
    Closed,
}

/// Whether an offer could be decided.
enum Attempt {
    Decided(Verdict),
    /// The tenant is new, and its weight has to be asked for.
    Unweighed,
}

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Queues a task, or does what the tenant's [policy](BackpressurePolicy) says if there is no room.
    ///
    /// Blocks only under [`BackpressurePolicy::Timeout`]. A task whose deadline has passed is accepted and
    /// expires at once.
    #[expect(clippy::needless_pass_by_value, reason = "a key goes with its task")]
    #[inline]
    pub fn enqueue(&self, tenant: K, task: Task<T>) -> EnqueueResult {
        let mut slip = Slip::new(Some(task));
        let verdict = self.offer(&tenant, &mut slip, self.now());
        if verdict == Verdict::Accepted {
            return EnqueueResult::Enqueued;
        }
        match self.submit_slowly(&tenant, slip, verdict) {
            Ok(_) => EnqueueResult::Enqueued,
            Err(Rejected::Full { reason, .. }) => EnqueueResult::Rejected(reason),
            Err(Rejected::Closed { .. }) => EnqueueResult::Closed,
        }
    }

    /// Queues a task as [`enqueue`](Self::enqueue) does, and returns how to cancel it.
    pub fn enqueue_with_handle(&self, tenant: K, task: Task<T>) -> EnqueueWithHandleResult {
        match self.submit(tenant, task) {
            Ok(handle) => EnqueueWithHandleResult::Enqueued(handle),
            Err(Rejected::Full { reason, .. }) => EnqueueWithHandleResult::Rejected(reason),
            Err(Rejected::Closed { .. }) => EnqueueWithHandleResult::Closed,
        }
    }

    /// Queues a task as [`enqueue`](Self::enqueue) does, and gives it back if it is not accepted.
    ///
    /// # Errors
    /// If there is no room, or the scheduler is closed; the task is in the error.
    #[expect(clippy::needless_pass_by_value, reason = "a key goes with its task")]
    pub fn submit(&self, tenant: K, task: Task<T>) -> Result<TaskHandle, Rejected<T>> {
        let mut slip = Slip::new(Some(task));
        let verdict = self.offer(&tenant, &mut slip, self.now());
        if verdict == Verdict::Accepted {
            return Ok(slip.handle);
        }
        self.submit_slowly(&tenant, slip, verdict)
    }

    /// Queues a task without ever waiting, whatever the policy, and gives it back if it is not accepted.
    ///
    /// # Errors
    /// If there is no room now, or the scheduler is closed; the task is in the error.
    #[expect(clippy::needless_pass_by_value, reason = "a key goes with its task")]
    pub fn try_enqueue(&self, tenant: K, task: Task<T>) -> Result<TaskHandle, Rejected<T>> {
        let mut slip = Slip::new(Some(task));
        let verdict = self.offer(&tenant, &mut slip, self.now());
        self.conclude(verdict, slip)
    }

    /// Queues many tasks, never waiting, and returns those that were not accepted.
    ///
    /// Reads the clock once. Each task is accepted or not by itself, in the order given.
    pub fn enqueue_batch(
        &self,
        tasks: impl IntoIterator<Item = (K, Task<T>)>,
    ) -> Vec<(K, Rejected<T>)> {
        let now = self.now();
        let mut rejected = Vec::new();
        for (tenant, task) in tasks {
            let mut slip = Slip::new(Some(task));
            let verdict = self.offer(&tenant, &mut slip, now);
            if verdict == Verdict::Accepted {
                continue;
            }
            if let Err(rejection) = self.conclude(verdict, slip) {
                rejected.push((tenant, rejection));
            }
        }
        rejected
    }

    #[cold]
    fn submit_slowly(
        &self,
        tenant: &K,
        slip: Slip<T>,
        verdict: Verdict,
    ) -> Result<TaskHandle, Rejected<T>> {
        let full = matches!(verdict, Verdict::TenantFull | Verdict::GlobalFull);
        match self.backpressure_for(tenant) {
            BackpressurePolicy::Timeout { wait } if full => {
                let until = self.clock.now().checked_add(wait);
                self.submit_waiting(tenant, slip.into_task(), until)
            }
            _ => self.conclude(verdict, slip),
        }
    }

    /// Turns a verdict into what the caller gets, and counts rejections.
    pub(super) fn conclude(
        &self,
        verdict: Verdict,
        slip: Slip<T>,
    ) -> Result<TaskHandle, Rejected<T>> {
        let reason = match verdict {
            Verdict::Accepted => return Ok(slip.handle),
            Verdict::TenantFull => EnqueueRejectReason::TenantFull,
            Verdict::GlobalFull => EnqueueRejectReason::GlobalFull,
            Verdict::Closed => {
                return Err(Rejected::Closed {
                    task: slip.into_task(),
                });
            }
        };
        Err(self.reject(reason, slip.into_task()))
    }

    /// Gives a task back as rejected, and counts it: for callers that decide about admission themselves, as one
    /// who has [waited for room](Self::poll_submit) as long as it may.
    pub fn reject(&self, reason: EnqueueRejectReason, task: Task<T>) -> Rejected<T> {
        self.count_rejection(reason);
        Rejected::Full { reason, task }
    }

    /// Offers a task: everything but waiting.
    #[inline]
    pub(super) fn offer(&self, tenant: &K, slip: &mut Slip<T>, now: Nanos) -> Verdict {
        let (hash, shard) = self.locate(tenant);
        let mut offer = Offer {
            tenant,
            hash,
            shard,
            now,
            slip,
        };
        if self.beacons[shard as usize]
            .next_expiry
            .load(Ordering::Relaxed)
            <= now
        {
            self.expire_some(shard, now);
        }
        let deadline = offer.slip.task.as_ref().and_then(|task| task.deadline);
        if deadline.is_some_and(|deadline| nanos(self.epoch, deadline) < now) {
            return self.expire_on_arrival(&mut offer);
        }
        match self.admit(&mut offer, Reserved::No) {
            Verdict::TenantFull if self.expire_all(shard, now) > 0 => self.offer_again(offer),
            Verdict::GlobalFull if self.reclaim(now) => self.offer_again(offer),
            verdict @ (Verdict::TenantFull | Verdict::GlobalFull) => self.make_room(offer, verdict),
            verdict @ (Verdict::Accepted | Verdict::Closed) => verdict,
        }
    }

    /// Offers a task again after expired ones have made room, as often as they do.
    #[cold]
    fn offer_again(&self, mut offer: Offer<'_, T, K>) -> Verdict {
        loop {
            match self.admit(&mut offer, Reserved::No) {
                Verdict::GlobalFull if self.reclaim(offer.now) => {}
                verdict @ (Verdict::TenantFull | Verdict::GlobalFull) => {
                    return self.make_room(offer, verdict);
                }
                verdict @ (Verdict::Accepted | Verdict::Closed) => return verdict,
            }
        }
    }

    /// Lets another task give way, if the policy says so.
    #[cold]
    fn make_room(&self, mut offer: Offer<'_, T, K>, verdict: Verdict) -> Verdict {
        if self.capacity.is_closed() {
            return Verdict::Closed; // nobody gives way for what is not accepted, and nobody waits for it
        }
        match self.backpressure_for(offer.tenant) {
            BackpressurePolicy::Reject | BackpressurePolicy::Timeout { .. } => verdict,
            BackpressurePolicy::DropOldestPerTenant => {
                self.displace(&mut offer, Age::Oldest).unwrap_or(verdict)
            }
            BackpressurePolicy::DropNewestPerTenant => {
                self.displace(&mut offer, Age::Newest).unwrap_or(verdict)
            }
            BackpressurePolicy::ShedFair if verdict == Verdict::GlobalFull => {
                if !self.shed(&offer) {
                    return verdict;
                }
                let verdict = self.admit(&mut offer, Reserved::Yes);
                if !matches!(verdict, Verdict::Accepted) {
                    self.release(1);
                }
                verdict
            }
            BackpressurePolicy::ShedFair => verdict,
        }
    }

    /// Admits a task if there is room.
    #[inline]
    fn admit(&self, offer: &mut Offer<'_, T, K>, reserved: Reserved) -> Verdict {
        let version = self.quanta.version();
        let weight = self.quanta.are_equal().then(|| self.quanta.neutral());
        match self.attempt(offer, reserved, weight, version) {
            Attempt::Decided(verdict) => verdict,
            Attempt::Unweighed => self.admit_new_tenant(offer, reserved),
        }
    }

    #[cold]
    fn admit_new_tenant(&self, offer: &mut Offer<'_, T, K>, reserved: Reserved) -> Verdict {
        loop {
            let version = self.quanta.version();
            let weight = self.weight(offer.tenant);
            match self.attempt(offer, reserved, Some(weight), version) {
                Attempt::Decided(verdict) => return verdict,
                Attempt::Unweighed => {}
            }
        }
    }

    #[inline(always)]
    fn attempt(
        &self,
        offer: &mut Offer<'_, T, K>,
        reserved: Reserved,
        weight: Option<Weight>,
        version: u64,
    ) -> Attempt {
        let mut effects = self.effects();
        let attempt =
            self.topology
                .with_shard_then_ring(offer.shard, &mut effects, |shard, effects| {
                    let lane = match shard.find(offer.hash, offer.tenant) {
                        Some(lane) if shard.lanes[lane].len >= self.max_per_tenant => {
                            return (Attempt::Decided(Verdict::TenantFull), None);
                        }
                        // A weight that was found before quanta changed may be an old one.
                        None if weight.is_none() || self.quanta.version() != version => {
                            return (Attempt::Unweighed, None);
                        }
                        found => found,
                    };
                    if shard.is_closed {
                        return (Attempt::Decided(Verdict::Closed), None);
                    }
                    if reserved == Reserved::No {
                        match self.capacity.reserve() {
                            Ok(()) => {}
                            Err(Refused::Full) => {
                                return (Attempt::Decided(Verdict::GlobalFull), None);
                            }
                            Err(Refused::Closed) => {
                                return (Attempt::Decided(Verdict::Closed), None);
                            }
                        }
                    }
                    let lane = lane.unwrap_or_else(|| {
                        let weight = weight.unwrap_or(Weight::ONE); // there is one, or the lane was found
                        shard.add(offer.hash, offer.tenant.clone(), weight)
                    });
                    let task = offer.slip.take();
                    offer.slip.handle = shard.push(lane, task, offer.now);
                    let owner = &shard.lanes[lane];
                    if owner.has(Flag::InRing) && !owner.has(Flag::Paused) {
                        effects.announced += 1;
                    }
                    let entering = (!owner.has(Flag::InRing)).then_some(lane);
                    (Attempt::Decided(Verdict::Accepted), entering)
                });
        self.apply(effects);
        attempt
    }

    /// Puts a task into the place of another one of its tenant, if there is one that gives way.
    fn displace(&self, offer: &mut Offer<'_, T, K>, age: Age) -> Option<Verdict> {
        let mut effects = self.effects();
        let verdict =
            self.topology
                .with_shard_then_ring(offer.shard, &mut effects, |shard, effects| {
                    if shard.is_closed || self.capacity.is_closed() {
                        return (Some(Verdict::Closed), None);
                    }
                    let priority = offer
                        .slip
                        .task
                        .as_ref()
                        .map_or_else(Default::default, |task| task.priority);
                    let victim = shard
                        .find(offer.hash, offer.tenant)
                        .and_then(|lane| Some((lane, shard.lanes[lane].victim(priority, age)?)));
                    let Some((lane, victim)) = victim else {
                        return (None, None);
                    };
                    shard.discard(victim, DropReason::Evicted, effects);
                    effects.freed -= 1; // its room is the new task's
                    let task = offer.slip.take();
                    offer.slip.handle = shard.push(lane, task, offer.now);
                    // Consumers have been called for the old task, and now they find this one.
                    let entering = (!shard.lanes[lane].has(Flag::InRing)).then_some(lane);
                    (Some(Verdict::Accepted), entering)
                });
        self.apply(effects);
        verdict
    }

    /// Evicts the newest task of the tenant furthest above its share of the buffer, if the tenant on offer
    /// would be below that one's share with one more. The room stays reserved.
    fn shed(&self, offer: &Offer<'_, T, K>) -> bool {
        let own = self.topology.with_shard(offer.shard, |shard| {
            let lane = shard.find(offer.hash, offer.tenant)?;
            let owner = &shard.lanes[lane];
            Some((owner.len, owner.weight))
        });
        let (len, weight) = own.unwrap_or_else(|| (0, self.weight(offer.tenant)));
        let wanted = u64::from(len) + 1;
        (0..SHED_TRIES).any(|_| {
            let longest = (0_u32..)
                .zip(&self.beacons)
                .map(|(shard, beacon)| (beacon.longest.load(Ordering::Relaxed), shard))
                .max();
            match longest {
                Some((class, shard)) if class > 0 => self.shed_from(shard, wanted, weight),
                _ => false,
            }
        })
    }

    fn shed_from(&self, shard: u32, wanted: u64, weight: Weight) -> bool {
        let mut effects = self.effects();
        let shed = self
            .topology
            .with_shard_then_ring(shard, &mut effects, |shard, effects| {
                let Some(lane) = shard.longest() else {
                    return (false, None);
                };
                let owner = &shard.lanes[lane];
                let theirs = u64::from(owner.len) * u64::from(weight.value());
                let ours = wanted * u64::from(owner.weight.value());
                let Some(victim) = owner.last().filter(|_| ours < theirs) else {
                    return (false, None);
                };
                shard.discard(victim, DropReason::Evicted, effects);
                effects.freed -= 1; // its room goes to who shed it
                let emptied = (shard.lanes[lane].len == 0).then_some(lane);
                (true, emptied)
            });
        self.apply(effects);
        shed
    }

    /// Accepts a task whose deadline has passed, and lets it expire at once.
    #[cold]
    fn expire_on_arrival(&self, offer: &mut Offer<'_, T, K>) -> Verdict {
        if self.phase() != Phase::Open {
            return Verdict::Closed;
        }
        let task = offer.slip.take();
        self.topology.with_shard(offer.shard, |shard| {
            shard.counters.enqueued += 1;
            shard.counters.expired += 1;
        });
        let mut effects = self.effects();
        effects.spoil(Spoil {
            tenant: self.on_drop.is_some().then(|| offer.tenant.clone()),
            task,
            reason: DropReason::Expired,
        });
        self.apply(effects);
        // The slip's handle fits nothing, as that of a task that has left the queue.
        Verdict::Accepted
    }
}
