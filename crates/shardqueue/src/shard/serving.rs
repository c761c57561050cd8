//! The methods of a shard that its worker calls, and those that stop it.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::messages::{CurrentJob, Report, Task};
use super::{RemovedWork, Shard, ShardState, spread};
use crate::core::{End, HandedBack, JobSlot, Next, Timestamp};
use crate::failure::{FailureReason, JobFailure};
use crate::job::BoxJob;
use crate::outcome::Outcome;
use crate::sync::lock;
use crate::ticket::Alerts;

impl Shard {
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
        let ShardState { core, notices, .. } = &mut *state;
        if let Some(took) = took {
            core.record(took);
        }
        let mut owner = Alerts::default();
        match report {
            None => {}
            Some(Report::Ended(place, outcome)) => {
                let ticket = core.finish(place, end(&outcome), notices);
                owner = ticket.end(outcome);
            }
            Some(Report::Retry(place, work, delay)) => {
                if let Err((work, reason)) = core.retry(place, work, now.after(delay), notices) {
                    return Task::Denied(work, reason);
                }
            }
        }
        let next = core.next(now, notices);
        let alerts = spread(notices);
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
    pub(crate) fn finish(&self, place: JobSlot, outcome: Outcome) {
        let owner = self.step(|core, notices| {
            let ticket = core.finish(place, end(&outcome), notices);
            ticket.end(outcome)
        });
        owner.wake();
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

    /// Ends all jobs that do not run, and tells their owners. Returns the queued jobs, and those that backed off with
    /// their failures, which the caller reports to the error handler.
    pub(crate) fn hand_back(&self) -> (Vec<RemovedWork>, Vec<(BoxJob, JobFailure)>) {
        let (queued, failed, owners) = self.step(|core, notices| {
            let HandedBack {
                queued,
                backing_off,
            } = core.hand_back(notices);
            let mut owners: Vec<Alerts> = Vec::new();
            for leaver in &queued {
                owners.push(leaver.ticket.end(Outcome::Returned));
            }
            let fail = |leaver: RemovedWork| {
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
    pub(crate) fn current_job(&self) -> Option<CurrentJob> {
        let state = lock(&self.state);
        let (place, key, attempt, ticket) = state.core.current_job()?;
        Some(CurrentJob {
            id: self.id(place),
            key: Arc::clone(key),
            attempt,
            ticket: Arc::clone(ticket),
        })
    }
}

const fn end(outcome: &Outcome) -> End {
    match outcome {
        Outcome::Done => End::Ran,
        Outcome::Failed(_) => End::Failed,
        Outcome::Cancelled => End::Cancelled,
        Outcome::Returned => End::Returned,
    }
}
