//! The methods of a shard that its worker calls, and those that stop it.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::messages::{DeniedRetry, Report, RunningFacts, Task};
use super::{RemovedWork, Shard, ShardState, spread, wake_all};
use crate::core::{HandedBack, JobSlot, Next, Timestamp};
use crate::failure::{FailureReason, JobFailure};
use crate::job::BoxJob;
use crate::outcome::Outcome;
use crate::sync::lock;
use crate::ticket::{Alerts, Ticket};

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
        let mut owner = None;
        if let Some(report) = report {
            match apply(&mut state, report, (now, took)) {
                Ok(alerts) => owner = alerts,
                Err(denied) => return Task::Denied(denied),
            }
        }
        let ShardState { core, notices, .. } = &mut *state;
        let next = core.next(now, notices);
        let alerts = spread(notices);
        if let Next::Idle(_) = next {
            state.sleeper = Some(cx.waker().clone());
        }
        let waiters = state.take_room_waiters();
        drop(state);
        if let Some(owner) = owner {
            owner.wake();
        }
        wake_all(waiters);
        if let Some(alerts) = alerts {
            alerts.into_iter().for_each(Alerts::wake);
        }
        Task::Next(next)
    }

    /// Reports what became of a job, and takes no other.
    pub(crate) fn settle(
        &self,
        report: Report,
        times: (Timestamp, Option<Duration>),
    ) -> Result<(), DeniedRetry> {
        if let Some(owner) = self.step_whole(|state| apply(state, report, times))? {
            owner.wake();
        }
        Ok(())
    }

    /// Ends a job that runs, when its worker goes on no more.
    pub(crate) fn finish(&self, place: JobSlot, outcome: Outcome) {
        if let Some(owner) = self.step_whole(|state| finish(state, place, outcome)) {
            owner.wake();
        }
    }

    /// Lets go of the tickets for jobs to come, when its worker goes on no more.
    pub(crate) fn drop_tickets(&self) {
        let tickets = lock(&self.state).tickets.close();
        drop(tickets);
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
                owners.push(leaver.ticket.end(Outcome::Returned, &leaver.key));
            }
            let fail = |leaver: RemovedWork| {
                let failure = JobFailure::new(
                    (self.id(leaver.place), Arc::clone(&leaver.key)),
                    leaver.attempts,
                    FailureReason::Stopped,
                    *leaver.job.error.expect("a job that backs off has failed"),
                );
                let outcome = Outcome::Failed(failure.clone());
                owners.push(leaver.ticket.end(outcome, &leaver.key));
                (leaver.job.job, failure)
            };
            let failed: Vec<_> = backing_off.into_iter().map(fail).collect();
            (queued, failed, owners)
        });
        owners.into_iter().for_each(Alerts::wake);
        (queued, failed)
    }

    /// Returns the facts about a job that runs.
    pub(crate) fn running_job(&self, place: JobSlot) -> Option<RunningFacts> {
        let state = lock(&self.state);
        let facts = state.core.running_job(place)?;
        Some(self.facts(place, facts))
    }

    /// Returns the facts about all jobs that run, in the order in which they were accepted.
    pub(crate) fn running_jobs(&self) -> Vec<RunningFacts> {
        let state = lock(&self.state);
        let jobs = state.core.running_jobs().into_iter();
        jobs.filter_map(|place| Some(self.facts(place, state.core.running_job(place)?)))
            .collect()
    }

    fn facts(
        &self,
        place: JobSlot,
        (key, attempt, ticket): (&Arc<str>, u32, &Arc<Ticket>),
    ) -> RunningFacts {
        RunningFacts {
            id: self.id(place),
            key: Arc::clone(key),
            attempt,
            ticket: Arc::clone(ticket),
        }
    }
}

/// Tells the core what became of a job. Returns the wakers of the job's owner, if it may have one.
#[inline]
fn apply(
    state: &mut ShardState,
    report: Report,
    (now, took): (Timestamp, Option<Duration>),
) -> Result<Option<Alerts>, DeniedRetry> {
    let ShardState { core, notices, .. } = &mut *state;
    if let Some(took) = took {
        core.record(took);
    }
    match report {
        Report::Waits(place) => core.set_aside(place),
        Report::Ended(place, outcome) => return Ok(finish(state, place, outcome)),
        Report::Retry(place, work, delay) => {
            let retried = core.retry(place, work, now.after(delay), notices);
            retried.map_err(|(work, why)| DeniedRetry { place, work, why })?;
        }
    }
    Ok(None)
}

/// Ends a job that runs. Returns the wakers of its owner, if it may have one.
#[inline]
fn finish(state: &mut ShardState, place: JobSlot, outcome: Outcome) -> Option<Alerts> {
    let ShardState {
        core,
        notices,
        tickets,
        ..
    } = state;
    let (ticket, lane) = core.finish(place, outcome.end(), notices);
    tickets.end(ticket, outcome, || core.lane_name(lane))
}
