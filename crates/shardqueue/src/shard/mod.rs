//! A shard: its core behind a lock, the sleeping worker's waker, and those who are to be told of things.
//!
//! # Locks
//! One lock per shard. Under it the core takes a step, and the tickets and bells that the step concerns are told
//! (each has a lock of its own, taken last). Wakers are called, and jobs dropped, after it is released. Nobody
//! ever holds two shards' locks.
//!
//! # Sleeping and waking
//! The worker leaves its waker here under the same lock under which it has found nothing to do. Whoever then
//! gives it something to do takes the waker out and calls it, once; as long as the worker is awake there is no
//! waker, so submitters wake nobody.

mod messages;
mod serving;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use drr::{Quantum, Weight};
use foldhash::fast::RandomState;

pub(crate) use messages::{Applicant, Books, Report, Submitted, Task, Work};

use crate::bell::Bell;
use crate::contain;
use crate::core::{
    Admission, BarrierId, Cancelled, Core, Limits, Next, Patience, Place, Spec, Status, Timestamp,
};
use crate::error::QueueFullError;
use crate::job::BoxJob;
use crate::outcome::{CancelResult, JobId, JobStatus, Outcome};
use crate::sync::{Mutex, lock};
use crate::ticket::{Alerts, Ticket};

/// The core as a shard uses it, and what goes in and out of it.
type ShardCore = Core<Work, Arc<Ticket>, Arc<Bell>>;
type News = crate::core::News<Arc<Ticket>, Arc<Bell>>;
pub(crate) type Lease = crate::core::Lease<Work, Arc<Ticket>>;
pub(crate) type Step = Next<Work, Arc<Ticket>>;
pub(crate) type Leaver = crate::core::Leaver<Work, Arc<Ticket>>;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) number: u32,
    limits: Limits,
    started: tokio::time::Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    core: ShardCore,
    /// The worker, while it sleeps.
    sleeper: Option<Waker>,
    wakeups: u64,
    /// Told of things in the current step. Empty between steps; kept for its memory.
    news: News,
}

impl Shard {
    pub(crate) fn new(number: u32, limits: Limits, hasher: RandomState) -> Self {
        let quantum = Quantum::new(1).expect("one is not zero");
        Self {
            number,
            limits,
            started: tokio::time::Instant::now(),
            state: Mutex::new(State {
                core: Core::new(limits, quantum, hasher),
                sleeper: None,
                wakeups: 0,
                news: News::default(),
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

    /// Takes a step of the core, and tells everybody whom it concerns.
    #[inline]
    fn step<R>(&self, step: impl FnOnce(&mut ShardCore, &mut News) -> R) -> R {
        let mut state = lock(&self.state);
        let State { core, news, .. } = &mut *state;
        let result = step(core, news);
        let alerts = spread(news);
        let sleeper = match core.needs_worker() {
            true => state.sleeper.take(),
            false => None,
        };
        state.wakeups += u64::from(sleeper.is_some());
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        if let Some(alerts) = alerts {
            alerts.into_iter().for_each(Alerts::wake);
        }
        result
    }

    /// Takes a job in.
    #[inline]
    pub(crate) fn submit(&self, applicant: Applicant<'_>, patience: Patience) -> Submitted {
        self.step(|core, _| self.admit(core, applicant, patience))
    }

    /// Takes jobs in, or puts them in line.
    pub(crate) fn submit_all(&self, applicants: Vec<Applicant<'_>>) -> Vec<Submitted> {
        self.step(|core, _| {
            let admit = |applicant| self.admit(core, applicant, Patience::Waits);
            applicants.into_iter().map(admit).collect()
        })
    }

    #[inline]
    fn admit(
        &self,
        core: &mut ShardCore,
        applicant: Applicant<'_>,
        patience: Patience,
    ) -> Submitted {
        let spec = Spec {
            priority: applicant.priority,
            cost: applicant.cost,
            weight: Weight::ONE,
        };
        let work = Work {
            job: applicant.job,
            error: None,
        };
        let ticket = Arc::clone(applicant.ticket);
        match core.admit(applicant.key, spec, (work, ticket), patience) {
            Admission::Accepted(place) => Submitted::Accepted(self.id(place)),
            Admission::Waiting(place) => {
                applicant.ticket.wait();
                Submitted::Waiting(self.id(place))
            }
            Admission::Full(work) => Submitted::Full(self.full(core), work.job),
            Admission::Closed(work) => Submitted::Closed(work.job),
        }
    }

    /// Takes a submission out of the line because its time is up. `None` if it has been accepted or refused.
    pub(crate) fn time_out(&self, place: Place) -> Option<(BoxJob, QueueFullError)> {
        self.step(|core, _| {
            let work = core.withdraw(place)?;
            core.count_refusal();
            Some((work.job, self.full(core)))
        })
    }

    /// Takes a submission out of the line because nobody wants it. `None` if it has been accepted or refused.
    pub(crate) fn withdraw(&self, place: Place) -> Option<BoxJob> {
        self.step(|core, _| core.withdraw(place))
            .map(|work| work.job)
    }

    fn full(&self, core: &ShardCore) -> QueueFullError {
        QueueFullError {
            shard: self.number as usize,
            length: core.held(),
            capacity: self.limits.queue_max,
        }
    }

    pub(crate) fn cancel(&self, place: Place, ticket: &Ticket) -> CancelResult {
        let cancelled = self.step(|core, news| {
            let cancelled = core.cancel(place, news);
            let owner = match &cancelled {
                Cancelled::Removed(_, ticket) => ticket.end(Outcome::Cancelled),
                Cancelled::IsRunning | Cancelled::Gone => Alerts::default(),
            };
            (cancelled, owner)
        });
        match cancelled {
            (Cancelled::Removed(work, _), owner) => {
                owner.wake();
                contain::discard(work);
                CancelResult::Cancelled
            }
            (Cancelled::IsRunning, _) => {
                ticket.cancel();
                CancelResult::Signalled
            }
            (Cancelled::Gone, _) => CancelResult::TooLate,
        }
    }

    pub(crate) fn status(&self, place: Place) -> Option<JobStatus> {
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

    pub(crate) fn books(&self) -> Books {
        let state = lock(&self.state);
        Books {
            counters: *state.core.counters(),
            runs: *state.core.runs(),
            gauges: state.core.gauges(),
            keys: state.core.keys(),
            wakeups: state.wakeups,
        }
    }

    pub(crate) const fn id(&self, place: Place) -> JobId {
        JobId {
            shard: self.number,
            place,
        }
    }
}

/// Where a time that cannot be represented lies: far enough to be never.
const FAR_FUTURE: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// Tells those whom a step concerns, and returns whom to wake.
#[inline]
fn spread(news: &mut News) -> Option<Vec<Alerts>> {
    if news.accepted.is_empty() && news.rung.is_empty() {
        return None;
    }
    let accepted = news.accepted.drain(..).map(|ticket| ticket.accept());
    let rung = news.rung.drain(..).map(|bell| bell.ring());
    Some(accepted.chain(rung).collect())
}
