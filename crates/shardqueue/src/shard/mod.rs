//! A shard: its core behind a lock, and the waker of the sleeping worker.
//!
//! # Locks
//! One lock per shard. Under it, the core takes a step, and the shard updates the tickets and bells that the step
//! names (each has a lock of its own, taken last). Wakers are called, and jobs dropped, after the lock is released.
//! Only the submission of a job across keys holds the locks of several shards, which it takes in ascending order.
//!
//! # Sleeping and waking
//! The worker leaves its waker here under the same lock under which it has found nothing to do. A step that gives it
//! something to do takes the waker out and calls it, once. While the worker is awake there is no waker, so
//! submitters do not pay for waking it.

mod across;
mod messages;
mod serving;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use drr::{Quantum, Weight};
use foldhash::fast::RandomState;

pub(crate) use across::{ShardKeys, WaiterId, submit_across};
pub(crate) use messages::{
    DeniedRetry, NewJob, Report, RunningFacts, Snapshot, Submitted, Task, Work,
};

use crate::bell::Bell;
use crate::contain;
use crate::core::{
    Admission, BarrierId, Cancelled, Core, JobSlot, Lease, Limits, Next, Notices, Occupancy,
    Patience, RemovedJob, Role, Spec, Status, Timestamp,
};
use crate::error::QueueFullError;
use crate::failure::JobFailure;
use crate::hooks::Hooks;
use crate::job::BoxJob;
use crate::outcome::{CancelResult, JobId, JobStatus, Outcome};
use crate::path::Separator;
use crate::sync::{Mutex, lock};
use crate::ticket::{Alerts, Ticket, TicketPool};

/// The core as a shard uses it.
type ShardCore = Core<Work, Arc<Ticket>, Arc<Bell>>;
type ShardNotices = Notices<Arc<Ticket>, Arc<Bell>>;
pub(crate) type WorkLease = Lease<Work, Arc<Ticket>>;
pub(crate) type Step = Next<Work, Arc<Ticket>>;
pub(crate) type RemovedWork = RemovedJob<Work, Arc<Ticket>>;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) number: u32,
    limits: Limits,
    pub(crate) hooks: Arc<Hooks>,
    started: tokio::time::Instant,
    state: Mutex<ShardState>,
}

#[derive(Debug)]
struct ShardState {
    core: ShardCore,
    /// The worker, while it sleeps.
    sleeper: Option<Waker>,
    wakeups: u64,
    /// Submissions of jobs across keys that wait for room.
    room_waiters: Vec<(WaiterId, Waker)>,
    tickets: TicketPool,
    /// Notices of the current step. Empty between steps; kept for its memory.
    notices: ShardNotices,
}

impl ShardState {
    /// Takes the worker's waker, if it sleeps and has something to do.
    #[inline]
    fn take_sleeper(&mut self) -> Option<Waker> {
        if self.sleeper.is_none() || !self.core.needs_worker() {
            return None;
        }
        let sleeper = self.sleeper.take();
        self.wakeups += u64::from(sleeper.is_some());
        sleeper
    }

    /// Takes the wakers of the submissions that wait for room, if there is some.
    #[inline]
    fn take_room_waiters(&mut self) -> Option<Vec<(WaiterId, Waker)>> {
        if self.room_waiters.is_empty() || !(self.core.has_room() || self.core.is_stopping()) {
            return None;
        }
        Some(std::mem::take(&mut self.room_waiters))
    }
}

impl Shard {
    pub(crate) fn new(
        number: u32,
        (limits, separator): (Limits, Option<Separator>),
        hasher: RandomState,
        hooks: Arc<Hooks>,
    ) -> Self {
        let quantum = Quantum::new(1).expect("one is not zero");
        Self {
            number,
            limits,
            hooks,
            started: tokio::time::Instant::now(),
            state: Mutex::new(ShardState {
                core: Core::new(limits, separator, quantum, hasher),
                sleeper: None,
                wakeups: 0,
                room_waiters: Vec::new(),
                tickets: TicketPool::new(limits.queue_max.min(TICKETS_MAX)),
                notices: ShardNotices::default(),
            }),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::since_start(self.started.elapsed())
    }

    pub(crate) fn instant(&self, at: Timestamp) -> tokio::time::Instant {
        let at = self.started.checked_add(at.elapsed());
        at.unwrap_or_else(|| self.started + FAR_FUTURE)
    }

    /// Takes a step of the core, and sends its notices.
    #[inline]
    fn step<R>(&self, step: impl FnOnce(&mut ShardCore, &mut ShardNotices) -> R) -> R {
        self.step_whole(|ShardState { core, notices, .. }| step(core, notices))
    }

    /// Takes a step of the core that also concerns the state around it, and sends its notices.
    #[inline]
    fn step_whole<R>(&self, step: impl FnOnce(&mut ShardState) -> R) -> R {
        let mut state = lock(&self.state);
        let result = step(&mut state);
        let alerts = spread(&mut state.notices);
        let sleeper = state.take_sleeper();
        let waiters = state.take_room_waiters();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        wake_all(waiters);
        if let Some(alerts) = alerts {
            alerts.into_iter().for_each(Alerts::wake);
        }
        result
    }

    /// Takes a job in.
    #[inline]
    pub(crate) fn submit(self: &Arc<Self>, new_job: NewJob<'_>, patience: Patience) -> Submitted {
        let mut state = lock(&self.state);
        let submitted = self.admit(&mut state, new_job, patience);
        let sleeper = state.take_sleeper();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        submitted
    }

    /// Takes jobs in, or puts them in line.
    pub(crate) fn submit_all(self: &Arc<Self>, jobs: Vec<NewJob<'_>>) -> Vec<Submitted> {
        let mut state = lock(&self.state);
        let admit = |new_job| self.admit(&mut state, new_job, Patience::Waits);
        let submitted = jobs.into_iter().map(admit).collect();
        let sleeper = state.take_sleeper();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        submitted
    }

    #[inline]
    fn admit(
        self: &Arc<Self>,
        state: &mut ShardState,
        new_job: NewJob<'_>,
        patience: Patience,
    ) -> Submitted {
        let spec = Spec {
            priority: new_job.priority,
            cost: new_job.cost,
            role: Role::Single,
        };
        let work = Work {
            job: new_job.job,
            error: None,
        };
        let ticket = state.tickets.take(self, new_job.caller);
        let own = Arc::clone(&ticket);
        match state.core.admit(new_job.key, spec, (work, own), patience) {
            Admission::Accepted(place) => Submitted::Accepted(self.id(place), ticket),
            Admission::Waiting(place) => {
                ticket.wait();
                Submitted::Waiting(self.id(place), ticket)
            }
            Admission::Full(work, occupancy) => {
                Submitted::Full(Box::new(self.full(occupancy)), work.job)
            }
            Admission::Closed(work) => Submitted::Closed(work.job),
        }
    }

    /// Takes a submission out of the line because its time is up. `None` if it has been accepted or refused.
    pub(crate) fn time_out(&self, place: JobSlot) -> Option<(BoxJob, QueueFullError)> {
        self.step(|core, _| {
            let (work, occupancy) = core.time_out(place)?;
            Some((work.job, self.full(occupancy)))
        })
    }

    /// Takes a submission out of the line because its submitter is gone. `None` if it was accepted or refused.
    pub(crate) fn withdraw(&self, place: JobSlot) -> Option<BoxJob> {
        self.step(|core, _| core.withdraw(place))
            .map(|work| work.job)
    }

    const fn full(&self, occupancy: Occupancy) -> QueueFullError {
        QueueFullError {
            shard: self.number as usize,
            length: occupancy.held,
            capacity: self.limits.queue_max,
            key_length: occupancy.key_held,
            key_capacity: occupancy.key_max,
            level: occupancy.level,
        }
    }

    /// Cancels a job. If that ends the job, the caller's thread tells the error handler.
    pub(crate) fn cancel(&self, place: JobSlot, ticket: &Ticket) -> CancelResult {
        let cancelled = self.step(|core, notices| {
            let cancelled = core.cancel(place, notices);
            let owner = match &cancelled {
                Cancelled::Removed(removed) => removed.ticket.end(Outcome::Cancelled, &removed.key),
                Cancelled::IsRunning | Cancelled::Gone => Alerts::default(),
            };
            (cancelled, owner)
        });
        match cancelled {
            (Cancelled::Removed(removed), owner) => {
                owner.wake();
                let RemovedJob {
                    place,
                    key,
                    attempts,
                    job,
                    ..
                } = removed;
                contain::discard(job.job);
                let error = job.error.map(|error| *error);
                let failure = JobFailure::cancelled((self.id(place), key), attempts, error);
                self.hooks.tell(&failure);
                CancelResult::Cancelled
            }
            (Cancelled::IsRunning, _) => {
                ticket.cancel();
                CancelResult::Signalled
            }
            (Cancelled::Gone, _) => CancelResult::TooLate,
        }
    }

    /// Returns the key of a job that has not ended.
    pub(crate) fn key_of(&self, place: JobSlot) -> Option<Arc<str>> {
        lock(&self.state).core.key_of(place).cloned()
    }

    pub(crate) fn status(&self, place: JobSlot) -> Option<JobStatus> {
        let status = lock(&self.state).core.status(place)?;
        Some(match status {
            Status::Queued { position } => JobStatus::Queued { position },
            Status::Running { attempt } => JobStatus::Running { attempt },
            Status::BackingOff { attempt, until } => JobStatus::BackingOff {
                attempt,
                until: self.instant(until),
            },
        })
    }

    /// Sets a barrier; `None` if there is nothing to wait for.
    pub(crate) fn barrier(&self, key: Option<&str>) -> Option<(BarrierId, Arc<Bell>)> {
        let bell = Arc::new(Bell::new());
        let id = lock(&self.state).core.barrier(key, Arc::clone(&bell));
        Some((id.ok()?, bell))
    }

    pub(crate) fn take_down(&self, barrier: BarrierId) {
        lock(&self.state).core.take_down(barrier);
    }

    pub(crate) fn set_weight(&self, name: &Arc<str>, weight: Weight) {
        lock(&self.state).core.set_weight(name, weight);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = lock(&self.state);
        Snapshot {
            counters: *state.core.counters(),
            runs: *state.core.runs(),
            gauges: state.core.gauges(),
            keys: state.core.keys(),
            groups: state.core.groups(),
            wakeups: state.wakeups,
        }
    }

    pub(crate) const fn id(&self, place: JobSlot) -> JobId {
        JobId {
            shard: self.number,
            place,
        }
    }
}

/// The most tickets that a shard keeps for jobs to come.
const TICKETS_MAX: usize = 1024;

/// Where a time that cannot be represented lies: far enough to be never.
const FAR_FUTURE: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// Wakes the submissions that may find room.
#[inline]
fn wake_all(waiters: Option<Vec<(WaiterId, Waker)>>) {
    if let Some(waiters) = waiters {
        waiters.into_iter().for_each(|(_, waiter)| waiter.wake());
    }
}

/// Updates the tickets and bells that a step names, and returns the wakers.
#[inline]
fn spread(notices: &mut ShardNotices) -> Option<Vec<Alerts>> {
    if notices.is_empty() {
        return None;
    }
    let accepted = notices.accepted.drain(..).map(|ticket| ticket.accept());
    let rung = notices.rung.drain(..).map(|bell| bell.ring());
    let arrived = notices.arrived.drain(..).map(|ticket| ticket.arrive());
    Some(accepted.chain(rung).chain(arrived).collect())
}
