//! Taking tasks in, with and without room.
//!
//! A task is admitted under the lock of its tenant's shard: the tenant's limit is checked, room is reserved,
//! and the task is linked. The ring is needed only if the lane was empty. Without room, the slow path
//! first drops expired tasks, and then applies the policy.

use std::hash::Hash;

use drr::Weight;

use super::{Phase, Scheduler};
use crate::capacity::Refused;
use crate::config::BackpressurePolicy;
use crate::effects::DroppedTask;
use crate::lane::{Age, Flag};
use crate::node::NEVER;
use crate::outcome::{
    DropReason, EnqueueRejectReason, EnqueueResult, EnqueueWithHandleResult, Rejected,
};
use crate::slab::NIL;
use crate::sync::Ordering;
use crate::task::{Task, TaskHandle};
use crate::times::{Moment, nanos};

/// How often shedding looks for another longest lane, if the one it found has shrunk meanwhile.
const SHED_TRIES: usize = 4;

/// A submission with its tenant, its shard and the time.
pub(super) struct Request<'a, T, K> {
    pub(super) tenant: &'a K,
    pub(super) hash: u64,
    pub(super) shard: u32,
    pub(super) moment: &'a mut Moment,
    pub(super) submission: &'a mut Submission<T>,
}

/// A task until it is accepted, and its handle from then on.
///
/// Passed by reference all the way, because moving it costs as much as queueing it.
pub(super) struct Submission<T> {
    task: Option<Task<T>>,
    pub(super) handle: TaskHandle,
}

impl<T> Submission<T> {
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

    /// Returns the task, which was not accepted.
    pub(super) fn into_task(self) -> Task<T> {
        self.task.expect("a task that is not accepted is not taken")
    }

    /// Returns the task, if it was not accepted.
    pub(super) fn take_back(self) -> Option<Task<T>> {
        self.task
    }

    #[inline]
    pub(super) fn take(&mut self) -> Task<T> {
        self.task
            .take()
            .expect("a submission has its task until it is accepted")
    }
}

/// Whether room for the task has been reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reserved {
    No,
    Yes,
}

/// Whether a task was admitted, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Accepted,
    TenantFull,
    /// A group of the tenant is full.
    GroupFull {
        group: u32,
    },
    GlobalFull,
    Closed,
}

impl Admission {
    const fn is_full(self) -> bool {
        match self {
            Self::TenantFull | Self::GroupFull { .. } | Self::GlobalFull => true,
            Self::Accepted | Self::Closed => false,
        }
    }
}

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Queues a task, or does what the tenant's [policy](BackpressurePolicy) says if there is no room.
    ///
    /// Blocks only under [`BackpressurePolicy::Timeout`]. A task whose deadline has passed is accepted and
    /// expires at once.
    #[expect(clippy::needless_pass_by_value, reason = "a key goes with its task")]
    #[inline]
    pub fn enqueue(&self, tenant: K, task: Task<T>) -> EnqueueResult {
        let mut submission = Submission::new(Some(task));
        let admission = self.try_submit(&tenant, &mut submission, &mut self.look());
        if admission == Admission::Accepted {
            return EnqueueResult::Enqueued;
        }
        match self.submit_slowly(&tenant, submission, admission) {
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
    /// ```
    /// use firq_core::{Scheduler, SchedulerConfig, Task, TenantKey};
    ///
    /// let scheduler = Scheduler::new(SchedulerConfig { max_global: 1, ..Default::default() })?;
    /// let tenant = TenantKey::from(7);
    /// assert!(scheduler.submit(tenant, Task::new("first")).is_ok());
    /// let rejected = scheduler.submit(tenant, Task::new("second")).unwrap_err();
    /// assert_eq!(rejected.into_task().payload, "second");
    /// # Ok::<(), firq_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// If there is no room, or the scheduler is closed; the task is in the error.
    #[expect(clippy::needless_pass_by_value, reason = "a key goes with its task")]
    pub fn submit(&self, tenant: K, task: Task<T>) -> Result<TaskHandle, Rejected<T>> {
        let mut submission = Submission::new(Some(task));
        let admission = self.try_submit(&tenant, &mut submission, &mut self.look());
        if admission == Admission::Accepted {
            return Ok(submission.handle);
        }
        self.submit_slowly(&tenant, submission, admission)
    }

    /// Queues a task without ever waiting, whatever the policy, and gives it back if it is not accepted.
    ///
    /// # Errors
    /// If there is no room now, or the scheduler is closed; the task is in the error.
    #[expect(clippy::needless_pass_by_value, reason = "a key goes with its task")]
    pub fn try_enqueue(&self, tenant: K, task: Task<T>) -> Result<TaskHandle, Rejected<T>> {
        let mut submission = Submission::new(Some(task));
        let admission = self.try_submit(&tenant, &mut submission, &mut self.look());
        self.conclude(admission, submission)
    }

    /// Queues many tasks, never waiting, and returns those that were not accepted.
    ///
    /// Reads the clock at most once. Each task is accepted or not by itself, in the order given.
    pub fn enqueue_batch(
        &self,
        tasks: impl IntoIterator<Item = (K, Task<T>)>,
    ) -> Vec<(K, Rejected<T>)> {
        let mut moment = self.look();
        let mut rejected = Vec::new();
        for (tenant, task) in tasks {
            let mut submission = Submission::new(Some(task));
            let admission = self.try_submit(&tenant, &mut submission, &mut moment);
            if admission == Admission::Accepted {
                continue;
            }
            if let Err(rejection) = self.conclude(admission, submission) {
                rejected.push((tenant, rejection));
            }
        }
        rejected
    }

    #[cold]
    fn submit_slowly(
        &self,
        tenant: &K,
        submission: Submission<T>,
        admission: Admission,
    ) -> Result<TaskHandle, Rejected<T>> {
        match self.backpressure_for(tenant) {
            BackpressurePolicy::Timeout { wait } if admission.is_full() => {
                let until = self.clock.now().checked_add(wait);
                self.submit_waiting(tenant, submission.into_task(), until)
            }
            _ => self.conclude(admission, submission),
        }
    }

    /// Turns an admission into the caller's result, and counts rejections.
    pub(super) fn conclude(
        &self,
        admission: Admission,
        submission: Submission<T>,
    ) -> Result<TaskHandle, Rejected<T>> {
        let reason = match admission {
            Admission::Accepted => return Ok(submission.handle),
            Admission::TenantFull | Admission::GroupFull { .. } => EnqueueRejectReason::TenantFull,
            Admission::GlobalFull => EnqueueRejectReason::GlobalFull,
            Admission::Closed => {
                return Err(Rejected::Closed {
                    task: submission.into_task(),
                });
            }
        };
        Err(self.reject(reason, submission.into_task()))
    }

    /// Counts a task as rejected and gives it back. For callers that decide about admission themselves, for
    /// example after they have [waited for room](Self::poll_submit) for long enough.
    pub fn reject(&self, reason: EnqueueRejectReason, task: Task<T>) -> Rejected<T> {
        self.count_rejection(reason);
        Rejected::Full { reason, task }
    }

    /// Tries to admit a task, with everything but waiting.
    #[inline]
    pub(super) fn try_submit(
        &self,
        tenant: &K,
        submission: &mut Submission<T>,
        moment: &mut Moment,
    ) -> Admission {
        let (hash, shard) = self.locate(tenant);
        let mut request = Request {
            tenant,
            hash,
            shard,
            moment,
            submission,
        };
        let next_expiry = self.hints[shard as usize]
            .next_expiry
            .load(Ordering::Relaxed);
        if next_expiry != NEVER {
            self.expire_some(shard, request.moment.exactly(&self.times));
        }
        let task = request.submission.task.as_ref();
        if let Some(deadline) = task.and_then(|task| task.deadline)
            && nanos(self.times.epoch, deadline) < request.moment.exactly(&self.times)
        {
            return self.expire_on_arrival(&mut request);
        }
        match self.admit(&mut request, Reserved::No) {
            Admission::TenantFull
                if self.expire_all(shard, request.moment.exactly(&self.times)) > 0 =>
            {
                self.retry_submit(request)
            }
            Admission::GlobalFull | Admission::GroupFull { .. }
                if self.reclaim(request.moment.exactly(&self.times)) =>
            {
                self.retry_submit(request)
            }
            admission @ (Admission::TenantFull
            | Admission::GroupFull { .. }
            | Admission::GlobalFull) => self.make_room(request, admission),
            admission @ (Admission::Accepted | Admission::Closed) => admission,
        }
    }

    /// Tries again after expired tasks have made room, as often as they do.
    #[cold]
    fn retry_submit(&self, mut request: Request<'_, T, K>) -> Admission {
        loop {
            match self.admit(&mut request, Reserved::No) {
                Admission::GlobalFull | Admission::GroupFull { .. }
                    if self.reclaim(request.moment.exactly(&self.times)) => {}
                admission @ (Admission::TenantFull
                | Admission::GroupFull { .. }
                | Admission::GlobalFull) => {
                    return self.make_room(request, admission);
                }
                admission @ (Admission::Accepted | Admission::Closed) => return admission,
            }
        }
    }

    /// Lets another task give way, if the policy says so.
    #[cold]
    fn make_room(&self, mut request: Request<'_, T, K>, admission: Admission) -> Admission {
        if self.capacity.is_closed() {
            return Admission::Closed; // no task gives way to one that is refused anyway
        }
        match self.backpressure_for(request.tenant) {
            BackpressurePolicy::Reject | BackpressurePolicy::Timeout { .. } => admission,
            BackpressurePolicy::DropOldestPerTenant => self
                .displace(&mut request, Age::Oldest)
                .unwrap_or(admission),
            BackpressurePolicy::DropNewestPerTenant => self
                .displace(&mut request, Age::Newest)
                .unwrap_or(admission),
            BackpressurePolicy::ShedFair => {
                let has_room = match admission {
                    Admission::GlobalFull => self.shed(&request, None),
                    Admission::GroupFull { group } => self.shed(&request, Some(group)),
                    Admission::TenantFull | Admission::Accepted | Admission::Closed => false,
                };
                if !has_room {
                    return admission;
                }
                let admission = self.admit(&mut request, Reserved::Yes);
                if !matches!(admission, Admission::Accepted) {
                    self.release(1);
                }
                admission
            }
        }
    }

    /// Admits a task if there is room.
    #[inline]
    fn admit(&self, request: &mut Request<'_, T, K>, reserved: Reserved) -> Admission {
        if let Some(levels) = &self.levels {
            return self.admit_nested(levels, request, reserved);
        }
        let version = self.quanta.version();
        let weight = self.quanta.are_equal().then(|| self.quanta.neutral());
        self.admit_weighed(request, reserved, weight, version)
            .unwrap_or_else(|| self.admit_new_tenant(request, reserved))
    }

    #[cold]
    fn admit_new_tenant(&self, request: &mut Request<'_, T, K>, reserved: Reserved) -> Admission {
        loop {
            let version = self.quanta.version();
            let weight = self.weight(request.tenant);
            let admission = self.admit_weighed(request, reserved, Some(weight), version);
            if let Some(admission) = admission {
                return admission;
            }
        }
    }

    /// Admits a task if there is room; `None` if the tenant is new and its weight is not known.
    #[inline(always)]
    fn admit_weighed(
        &self,
        request: &mut Request<'_, T, K>,
        reserved: Reserved,
        weight: Option<Weight>,
        version: u64,
    ) -> Option<Admission> {
        let mut effects = self.effects();
        let admission =
            self.topology
                .with_shard_then_ring(request.shard, &mut effects, |shard, effects| {
                    let lane = match shard.find(request.hash, request.tenant) {
                        Some(lane) if shard.lanes[lane].len >= self.max_per_tenant => {
                            return (Some(Admission::TenantFull), None);
                        }
                        // A weight that was found before quanta changed may be an old one.
                        None if weight.is_none() || self.quanta.version() != version => {
                            return (None, None);
                        }
                        found => found,
                    };
                    if shard.is_closed {
                        return (Some(Admission::Closed), None);
                    }
                    if reserved == Reserved::No {
                        match self.capacity.reserve() {
                            Ok(()) => {}
                            Err(Refused::Full) => {
                                return (Some(Admission::GlobalFull), None);
                            }
                            Err(Refused::Closed) => {
                                return (Some(Admission::Closed), None);
                            }
                        }
                    }
                    let lane = lane.unwrap_or_else(|| {
                        let weight = weight.unwrap_or(Weight::ONE); // there is one, or the lane was found
                        shard.add(request.hash, request.tenant.clone(), weight)
                    });
                    let task = request.submission.take();
                    request.submission.handle = shard.push(lane, task, request.moment);
                    let owner = &shard.lanes[lane];
                    if owner.has(Flag::InRing) && !owner.has(Flag::Paused) {
                        effects.announced += 1;
                    }
                    let entering = (!owner.has(Flag::InRing)).then_some(lane);
                    (Some(Admission::Accepted), entering)
                });
        self.apply(effects);
        admission
    }

    /// Puts a task into the place of another one of its tenant, if there is one that gives way.
    fn displace(&self, request: &mut Request<'_, T, K>, age: Age) -> Option<Admission> {
        let mut effects = self.effects();
        let admission = self.change_lane(request.shard, &mut effects, |shard, effects| {
            if shard.is_closed || self.capacity.is_closed() {
                return (Some(Admission::Closed), None);
            }
            let priority = request
                .submission
                .task
                .as_ref()
                .map_or_else(Default::default, |task| task.priority);
            let victim = shard
                .find(request.hash, request.tenant)
                .and_then(|lane| Some((lane, shard.lanes[lane].victim(priority, age)?)));
            let Some((lane, victim)) = victim else {
                return (None, None);
            };
            shard.discard(victim, DropReason::Evicted, effects);
            effects.freed -= 1; // its room is the new task's
            let task = request.submission.take();
            request.submission.handle = shard.push(lane, task, request.moment);
            // Consumers have been called for the old task, and now they find this one.
            (Some(Admission::Accepted), Some(lane))
        });
        self.apply(effects);
        admission
    }

    /// Evicts the newest task of the tenant that is furthest above its share of the buffer, or of a group's part of it,
    /// if this tenant would be below that one's share with one more task. The room stays reserved.
    fn shed(&self, request: &Request<'_, T, K>, group: Option<u32>) -> bool {
        if self.levels.is_some() {
            return self.shed_nested(request, group);
        }
        let own = self.topology.with_shard(request.shard, |shard| {
            let lane = shard.find(request.hash, request.tenant)?;
            let owner = &shard.lanes[lane];
            Some((owner.len, owner.weight))
        });
        let (len, weight) = own.unwrap_or_else(|| (0, self.weight(request.tenant)));
        let wanted = u64::from(len) + 1;
        (0..SHED_TRIES).any(|_| {
            let longest = (0_u32..)
                .zip(&self.hints)
                .map(|(shard, hints)| (hints.longest.load(Ordering::Relaxed), shard))
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
                effects.freed -= 1; // its room goes to the new task
                let emptied = (shard.lanes[lane].len == 0).then_some(lane);
                (true, emptied)
            });
        self.apply(effects);
        shed
    }

    /// Accepts a task whose deadline has passed, and lets it expire at once.
    #[cold]
    fn expire_on_arrival(&self, request: &mut Request<'_, T, K>) -> Admission {
        if self.phase() != Phase::Open {
            return Admission::Closed;
        }
        let task = request.submission.take();
        self.topology.with_shard(request.shard, |shard| {
            shard.counters.enqueued += 1;
            shard.counters.expired += 1;
        });
        let mut effects = self.effects();
        effects.note_dropped(DroppedTask {
            tenant: self.on_drop.is_some().then(|| request.tenant.clone()),
            task,
            reason: DropReason::Expired,
        });
        self.apply(effects);
        // The submission's handle fits no task, like that of a task that has left the queue.
        Admission::Accepted
    }
}
