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

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use drr::{Cost, Quantum, Weight};
use foldhash::fast::RandomState;

use crate::bell::Bell;
use crate::contain;
use crate::core::{
    Admission, BarrierId, Cancelled, Core, Counters, End, HandedBack, Histogram, Limits, Next,
    NoRetry, Patience, Place, Spec, Status, Timestamp,
};
use crate::error::QueueFullError;
use crate::failure::{FailureReason, JobError, JobFailure};
use crate::job::BoxJob;
use crate::options::{JobOptions, Priority};
use crate::outcome::{CancelResult, JobId, JobStatus, Outcome};
use crate::sync::{Mutex, lock};
use crate::ticket::{Alerts, Ticket};

/// A job and, once it has failed, the error of its last attempt: boxed, because most jobs have none.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) job: BoxJob,
    pub(crate) error: Option<Box<JobError>>,
}

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

/// The job that runs.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) id: JobId,
    pub(crate) key: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) ticket: Arc<Ticket>,
}

/// What became of the job that the worker ran.
#[derive(Debug)]
pub(crate) enum Report {
    Ended(Place, Outcome),
    /// It failed, and is to be attempted again after a while.
    Retry(Place, Work, Duration),
}

impl Report {
    pub(crate) const fn is_retry(&self) -> bool {
        matches!(self, Self::Retry(..))
    }
}

/// What the worker does next.
#[derive(Debug)]
pub(crate) enum Task {
    Next(Step),
    /// The job that just failed was not let back in.
    Denied(Work, NoRetry),
}

/// A look at a shard's books.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) counters: Counters,
    pub(crate) runs: Histogram,
    pub(crate) gauges: (usize, usize, usize),
    pub(crate) keys: usize,
    pub(crate) wakeups: u64,
}

/// A job that asks to be let in.
#[derive(Debug)]
pub(crate) struct Applicant<'a> {
    pub(crate) key: &'a str,
    pub(crate) job: BoxJob,
    pub(crate) priority: Priority,
    pub(crate) cost: Cost,
    pub(crate) ticket: &'a Arc<Ticket>,
}

/// What became of a submission.
#[derive(Debug)]
pub(crate) enum Submitted {
    Accepted(JobId),
    Waiting(JobId),
    Full(QueueFullError, BoxJob),
    Closed(BoxJob),
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
    pub(crate) fn submit_all<K: AsRef<str>>(
        &self,
        jobs: Vec<(K, BoxJob, Arc<Ticket>)>,
    ) -> Vec<Submitted> {
        let ordinary = JobOptions::new();
        self.step(|core, _| {
            let admit = |(key, job, ticket): (K, BoxJob, Arc<Ticket>)| {
                let applicant = Applicant {
                    key: key.as_ref(),
                    job,
                    priority: ordinary.priority,
                    cost: ordinary.cost,
                    ticket: &ticket,
                };
                self.admit(core, applicant, Patience::Waits)
            };
            jobs.into_iter().map(admit).collect()
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

    /// Reports what became of the last job, and asks for the next; leaves the waker if there is none.
    #[inline]
    pub(crate) fn next_task(
        &self,
        cx: &Context<'_>,
        report: Option<Report>,
        (now, took): (Timestamp, Option<Duration>),
    ) -> Task {
        let mut state = lock(&self.state);
        state.sleeper = None; // it is awake
        let State { core, news, .. } = &mut *state;
        if let Some(took) = took {
            core.record(took);
        }
        let mut owner = Alerts::default();
        match report {
            None => {}
            Some(Report::Ended(place, outcome)) => {
                let ticket = core.finish(place, end(&outcome), news);
                owner = ticket.end(outcome);
            }
            Some(Report::Retry(place, work, delay)) => {
                if let Err((work, reason)) = core.retry(place, work, now.after(delay)) {
                    return Task::Denied(work, reason);
                }
            }
        }
        let next = core.next(now, news);
        let alerts = spread(news);
        if let Next::Idle(_) = next {
            state.sleeper = Some(cx.waker().clone());
        }
        drop(state);
        owner.wake();
        if let Some(alerts) = alerts {
            alerts.into_iter().for_each(Alerts::wake);
        }
        Task::Next(next)
    }

    /// Ends the job that runs, when its worker goes on no more.
    pub(crate) fn finish(&self, place: Place, outcome: Outcome) {
        let owner = self.step(|core, news| {
            let ticket = core.finish(place, end(&outcome), news);
            ticket.end(outcome)
        });
        owner.wake();
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

    /// Takes no more jobs. Returns how many are left to drain, if this is what began it.
    pub(crate) fn stop(&self) -> Option<usize> {
        self.step(|core, _| {
            if core.is_stopping() {
                return None;
            }
            let refused = core.stop().into_iter();
            let owners: Vec<Alerts> = refused
                .map(|(work, ticket)| ticket.refuse(work.job))
                .collect();
            Some((core.gauges().0, owners))
        })
        .map(|(left, owners)| {
            owners.into_iter().for_each(Alerts::wake);
            left
        })
    }

    /// Ends everything that does not run, and tells the owners. What was queued is handed back; what backed off
    /// has failed, which the error handler is still to be told.
    pub(crate) fn hand_back(&self) -> (Vec<Leaver>, Vec<(BoxJob, JobFailure)>) {
        let (queued, failed, owners) = self.step(|core, news| {
            let HandedBack {
                queued,
                backing_off,
            } = core.hand_back(news);
            let mut owners: Vec<Alerts> = Vec::new();
            for leaver in &queued {
                owners.push(leaver.ticket.end(Outcome::Returned));
            }
            let fail = |leaver: Leaver| {
                let failure = JobFailure::new(
                    (self.id(leaver.place), leaver.key),
                    leaver.attempts,
                    FailureReason::Stopped,
                    *leaver.job.error.expect("a job that backs off has failed"),
                );
                owners.push(leaver.ticket.end(Outcome::Failed(failure.clone())));
                (leaver.job.job, failure)
            };
            let failed: Vec<_> = backing_off.into_iter().map(fail).collect();
            (queued, failed, owners)
        });
        owners.into_iter().for_each(Alerts::wake);
        (queued, failed)
    }

    /// Returns the job that runs.
    pub(crate) fn runner(&self) -> Option<Runner> {
        let state = lock(&self.state);
        let (place, key, attempt, ticket) = state.core.runner()?;
        Some(Runner {
            id: self.id(place),
            key: Arc::clone(key),
            attempt,
            ticket: Arc::clone(ticket),
        })
    }

    pub(crate) fn status(&self, place: Place) -> Option<JobStatus> {
        let status = lock(&self.state).core.status(place)?;
        Some(match status {
            Status::Queued { position } => JobStatus::Queued { position },
            Status::Running { attempt } => JobStatus::Running { attempt },
            Status::BackingOff { attempt, until } => JobStatus::BackingOff {
                attempt,
                remaining: until.since(self.now()),
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

const fn end(outcome: &Outcome) -> End {
    match outcome {
        Outcome::Done => End::Ran,
        Outcome::Failed(_) => End::Failed,
        Outcome::Cancelled => End::Cancelled,
        Outcome::Returned => End::Returned,
    }
}
