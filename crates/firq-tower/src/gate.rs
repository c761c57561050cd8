//! The gate: queued requests, running requests, and the hand-over between them.
//!
//! A request queues, gets a permit, runs with it, and gives it back. There is no dispatcher: the task that makes
//! a request or a permit available, by [entering](Gate::enter) or by dropping a [`Permit`], also
//! [admits](Gate::admit) the next request. A permit is taken first and a request chosen second, so the scheduler
//! never picks a request that then has to wait for something else.
//!
//! # Requests that need not wait
//! While no request is queued, one that finds a free permit [passes](Gate::pass): it is not queued. For the scheduler this
//! is the same as if it had been queued and chosen within a moment. The tenant pays its
//! cost, its quota counts it, and the statistics show it with a queue time of zero. The permit is taken before the
//! scheduler says that its queue is empty. So a request that is queued first goes first, and the newcomer behind it.
//!
//! # Why no request waits while a permit is free
//! Two tasks that admit at the same time can miss each other: the first finds no permit, because the second has
//! just taken the last one, and the second finds an empty queue. So a request counts its arrival after queueing
//! and before it looks for a permit. A task that gives an unused permit back then checks whether a request has
//! arrived since it looked into the queue, and if so tries again. These steps are sequentially consistent, so
//! one of the two sees the other. A request that has taken a permit and may not pass gives it back and admits, because
//! another one may have missed the permit meanwhile.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use firq_async::firq_core::{Clock, DropReason, Dropped, QueueLevel};
use firq_async::{
    AsyncScheduler, BackpressurePolicy, CloseMode, DequeueResult, EnqueueRejectReason, Priority,
    Rejected, SchedulerConfig, Task, TokioClock,
};
use tokio::sync::{Notify, oneshot};

use crate::error::{Cause, Refusal};
use crate::limit::{InFlight, Limit};
use crate::line::{Crowd, Lines};
use crate::permit::Permit;
use crate::quota::Quota;
use crate::stats::FirqStats;
use crate::turn::{Entering, Grant, Turn};

/// What tells tenants apart: anything that can be a key in a map and goes from thread to thread.
pub trait Tenant: Hash + Eq + Clone + Send + Sync + 'static {}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Tenant for K {}

/// The answer to a request in the queue.
pub(crate) enum Verdict<K: Tenant> {
    Granted(Permit<K>),
    Dropped { tenant: K, reason: DropReason },
}

/// A request in the queue.
pub(crate) type Seat<K> = oneshot::Sender<Verdict<K>>;

/// The facts about a request that the gate needs.
#[derive(Debug)]
pub(crate) struct Order<K> {
    pub(crate) tenant: K,
    pub(crate) deadline: Option<Instant>,
    pub(crate) priority: Priority,
    pub(crate) cost: u64,
}

/// What became of a request at the gate.
pub(crate) enum Entry<K: Tenant> {
    /// It need not wait.
    Granted(Grant<K>),
    Queued(Turn<K>),
    /// There may be room for it later.
    Waiting(Entering<K>),
    Refused(Refusal),
}

pub(crate) struct Gate<K: Tenant> {
    pub(crate) scheduler: AsyncScheduler<Seat<K>, K>,
    pub(crate) limit: Limit,
    /// How many permits a tenant may hold, if not all of them.
    pub(crate) quota: Option<Quota<K>>,
    /// The time that is a unit of cost, if requests cost what they take.
    pub(crate) unit: Option<Duration>,
    lines: Lines<K>,
    early_refusals: bool,
    arrivals: AtomicU64,
    refused: [AtomicU64; Cause::ALL.len()],
    max_global: usize,
    quantum: u64,
    /// Wakes the callers that wait for the end.
    idle: Notify,
}

impl<K: Tenant> Gate<K> {
    /// Returns an open gate. The configuration must be valid.
    pub(crate) fn new(
        config: SchedulerConfig<Seat<K>, K>,
        in_flight: InFlight,
        quota: Option<usize>,
        unit: Option<Duration>,
        early_refusals: bool,
    ) -> Self {
        let (max_global, quantum) = (config.max_global, config.quantum);
        let config = config
            .with_clock(TokioClock)
            .with_on_drop(|dropped: Dropped<Seat<K>, K>| {
                let verdict = Verdict::Dropped {
                    tenant: dropped.tenant,
                    reason: dropped.reason,
                };
                // A receiver that is gone needs no answer.
                let _ = dropped.task.payload.send(verdict);
            });
        Self {
            scheduler: AsyncScheduler::new(config).expect("the builder brings all into range"),
            limit: Limit::new(in_flight, TokioClock.now()),
            quota: quota.map(Quota::new),
            unit,
            lines: Lines::new(TokioClock.now()),
            early_refusals,
            arrivals: AtomicU64::new(0),
            refused: std::array::from_fn(|_| AtomicU64::new(0)),
            max_global,
            quantum,
            idle: Notify::new(),
        }
    }

    /// Lets a request pass, or queues it and admits the next one.
    pub(crate) fn enter(self: &Arc<Self>, order: Order<K>) -> Entry<K> {
        match self.pass(order) {
            Ok(grant) => Entry::Granted(grant),
            Err(order) => self.queue(order),
        }
    }

    /// Returns a permit for a request that need not wait, or the request.
    fn pass(self: &Arc<Self>, order: Order<K>) -> Result<Grant<K>, Order<K>> {
        let scheduler = self.scheduler.scheduler();
        let is_late = |deadline: Instant| deadline < TokioClock.now();
        if !scheduler.is_empty() || order.deadline.is_some_and(is_late) || !self.limit.try_take() {
            return Err(order);
        }
        let has_passed = match &self.quota {
            None => scheduler.pass(&order.tenant, order.cost),
            Some(quota) => quota.pass(scheduler, &order.tenant, order.cost),
        };
        if !has_passed {
            self.limit.give_back();
            self.admit();
            self.note_idle();
            return Err(order);
        }
        let Order {
            tenant,
            deadline,
            cost,
            ..
        } = order;
        self.lines.count_passed(&tenant, || TokioClock.now());
        let permit = Permit::new(self, tenant, cost.max(1));
        Ok(Grant::new(permit, deadline))
    }

    /// Queues a request, and admits the next one.
    fn queue(self: &Arc<Self>, order: Order<K>) -> Entry<K> {
        let Order {
            tenant,
            deadline,
            priority,
            cost,
        } = order;
        let (seat, verdict) = oneshot::channel();
        let mut task = Task::new(seat).with_priority(priority).with_cost(cost);
        task.deadline = deadline;
        if let BackpressurePolicy::Timeout { .. } =
            self.scheduler.scheduler().backpressure_for(&tenant)
        {
            return Entry::Waiting(Entering::new(self, tenant, task, verdict));
        }
        let submitted = if self.refuses_early(&tenant) {
            let scheduler = self.scheduler.scheduler();
            Err(scheduler.reject(EnqueueRejectReason::TenantFull, task))
        } else {
            self.scheduler.try_enqueue(tenant.clone(), task)
        };
        match submitted {
            Ok(handle) => {
                self.arrive();
                Entry::Queued(Turn::new(self, handle, deadline, verdict))
            }
            Err(rejected) => Entry::Refused(self.refuse_entry(&rejected, &tenant)),
        }
    }

    /// Counts a request that has been queued, and admits the next one.
    pub(crate) fn arrive(self: &Arc<Self>) {
        self.arrivals.fetch_add(1, Ordering::SeqCst);
        self.admit();
    }

    /// Gives permits to requests for as long as there are both.
    pub(crate) fn admit(self: &Arc<Self>) {
        loop {
            // A request that is counted here is in the queue that is looked at next, unless it was served.
            let arrivals = self.arrivals.load(Ordering::SeqCst);
            if self.scheduler.scheduler().is_empty() || !self.limit.try_take() {
                return;
            }
            let next = match &self.quota {
                None => self.scheduler.try_dequeue(),
                Some(quota) => quota.try_dequeue(self.scheduler.scheduler()),
            };
            match next {
                DequeueResult::Task { tenant, task } => {
                    self.lines.count_served(&tenant, || TokioClock.now());
                    let permit = Permit::new(self, tenant, task.cost);
                    if let Err(Verdict::Granted(permit)) =
                        task.payload.send(Verdict::Granted(permit))
                    {
                        permit.return_to(self); // its request has just gone
                    }
                }
                DequeueResult::Empty | DequeueResult::Closed => {
                    self.limit.give_back();
                    if self.arrivals.load(Ordering::SeqCst) == arrivals {
                        return;
                    }
                }
            }
        }
    }

    /// Says why a request was not let in, and when to come back.
    pub(crate) fn refuse_entry(&self, rejected: &Rejected<Seat<K>>, tenant: &K) -> Refusal {
        let Some(reason) = rejected.reason() else {
            return self.refuse(Cause::Closed);
        };
        let crowd = match reason {
            EnqueueRejectReason::TenantFull => self.crowd_of(tenant),
            EnqueueRejectReason::GlobalFull | EnqueueRejectReason::Timeout => self.crowd_of_all(),
        };
        self.turn_away(Cause::Rejected(reason), tenant, crowd)
    }

    /// Says why a request that was queued will not run.
    pub(crate) fn refuse_dropped(&self, reason: DropReason, tenant: &K) -> Refusal {
        match reason {
            DropReason::Evicted => self.turn_away(Cause::Evicted, tenant, self.crowd_of_all()),
            DropReason::Expired => self.refuse(Cause::Expired),
            // Closed, and whatever else may put an end to it one day.
            _ => self.refuse(Cause::Closed),
        }
    }

    /// Counts a refusal that coming back does not help against.
    pub(crate) fn refuse(&self, cause: Cause) -> Refusal {
        self.refused[cause.index()].fetch_add(1, Ordering::Relaxed);
        Refusal {
            cause,
            retry_after: None,
        }
    }

    /// Counts a refusal, and says when to come back.
    fn turn_away(&self, cause: Cause, tenant: &K, crowd: Crowd) -> Refusal {
        let wait = self.lines.join(tenant, crowd, TokioClock.now());
        Refusal {
            retry_after: Some(wait),
            ..self.refuse(cause)
        }
    }

    /// Returns the crowd of a tenant whose own queue is full, or that of its group.
    fn crowd_of(&self, tenant: &K) -> Crowd {
        let queues = self.scheduler.scheduler().queue_levels(tenant);
        let own = queues.first().map_or(0, |own| own.queued);
        let Some(full) = fullest(&queues) else {
            return self.crowd_of_all();
        };
        let half = full.max / 2;
        // A line is that of one tenant, with the pace of that tenant: its part of the group's queue counts.
        let part = |count: usize| match full.queued {
            0 => count,
            queued => (count as f64 * own as f64 / queued as f64) as usize,
        };
        Crowd {
            in_the_way: part(full.queued.saturating_sub(half)),
            at_once: part(full.max - half).max(1),
            is_of_one: true,
        }
    }

    /// Returns the crowd when the whole queue is full. Clients of other tenants come back, too: an eighth is a guess.
    const fn crowd_of_all(&self) -> Crowd {
        Crowd {
            in_the_way: self.max_global / 8,
            at_once: self.max_global / 8,
            is_of_one: false,
        }
    }

    /// Returns whether to refuse a request before its tenant's queue or that of its group is full, to leave room for
    /// clients that come back.
    fn refuses_early(&self, tenant: &K) -> bool {
        let fill = || {
            let queues = self.scheduler.scheduler().queue_levels(tenant);
            fullest(&queues).map_or(0.0, |queue| queue.fill())
        };
        // A closed gate must answer `Closed`, not `TenantFull`.
        self.early_refusals
            && self.lines.refuses_early(tenant, || TokioClock.now(), fill)
            && !self.scheduler.is_closed()
    }

    pub(crate) fn close(self: &Arc<Self>, mode: CloseMode) {
        self.scheduler.close_with_mode(mode);
        self.admit();
        self.note_idle();
    }

    /// Returns when the gate is closed and no request waits or runs any more.
    pub(crate) async fn drained(&self) {
        let mut notified = std::pin::pin!(self.idle.notified());
        loop {
            notified.as_mut().enable(); // before looking, so that nothing is missed
            if self.is_idle() {
                return;
            }
            notified.as_mut().await;
            notified.set(self.idle.notified());
        }
    }

    /// Wakes the callers that wait for the end, if this is it.
    pub(crate) fn note_idle(&self) {
        if self.scheduler.is_closed() && self.is_idle() {
            self.idle.notify_waiters();
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_closed()
            && self.scheduler.scheduler().is_empty()
            && self.limit.active() == 0
    }

    pub(crate) fn set_weight(&self, tenant: K, weight: u32) {
        let quantum = self.quantum.saturating_mul(u64::from(weight.max(1)));
        self.scheduler
            .scheduler()
            .set_tenant_quantum(tenant, quantum);
    }

    pub(crate) fn stats(&self) -> FirqStats<K> {
        let refused = std::array::from_fn(|cause| self.refused[cause].load(Ordering::Relaxed));
        let scheduler = self.scheduler.stats();
        FirqStats::new(self.limit.active(), self.limit.max(), refused, scheduler)
    }
}

/// Returns the fullest of the queues that a request has to fit into.
fn fullest(queues: &[QueueLevel]) -> Option<&QueueLevel> {
    queues.iter().max_by(|a, b| a.fill().total_cmp(&b.fill()))
}

impl<K: Tenant> fmt::Debug for Gate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("scheduler", &self.scheduler)
            .field("limit", &self.limit)
            .field("unit", &self.unit)
            .finish_non_exhaustive()
    }
}
