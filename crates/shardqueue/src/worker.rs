//! The worker of a shard: a Tokio task that runs the jobs that the core chooses.
//!
//! It polls one job at a time. While a job waits for something, its lane is parked, and the worker goes on with
//! jobs of other keys: up to `concurrency` of them are under way at once.
//!
//! # Its end
//! It ends when the executor stops and no job is left. If its runtime is shut down before, its future is dropped
//! at any point, and [`Worker::drop`] settles all jobs: running jobs are cancelled, those that back off have failed,
//! queued ones are dropped as returned, and waiting submissions are refused. So every caller gets an answer.
//!
//! # Cost
//! One lock per job that never waits, under which the end of one job is reported and the next one taken; one reading of
//! the clock per poll. Between jobs the worker yields when its Tokio budget is used up, so that an endless row
//! of jobs that never wait does not starve other tasks. It goes on with one waiting attempt between two new jobs, so
//! neither starves the other.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop::consume_budget;
use tokio::time::Sleep;

use crate::attempts::{Attempt, AttemptSet};
use crate::contain;
use crate::context::JobContext;
use crate::core::{JobSlot, Next, NoRetry, Timestamp};
use crate::failure::{FailureReason, JobError, JobFailure, JobPanic};
use crate::hooks::RetryDecision;
use crate::outcome::Outcome;
use crate::retry::FailedAttempt;
use crate::shard::{DeniedRetry, Report, RunningFacts, Shard, Task, Work, WorkLease};

pub(crate) struct Worker {
    shard: Arc<Shard>,
    timer: Pin<Box<Sleep>>,
    attempts: AttemptSet,
    /// What became of the last attempt, until the shard has been told.
    report: Option<Report>,
    /// When the clock was last read: after every poll of a job, and on waking up.
    now: Timestamp,
    /// How long the last attempt took, until it has been reported.
    took: Option<Duration>,
    /// How long polls took since the worker has given way to other tasks.
    busy: Duration,
}

/// How long a worker runs jobs that never wait before it gives way to other tasks of its thread.
const BUSY_MAX: Duration = Duration::from_millis(1);

/// The end of a worker's turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Taken,
    Ended,
}

impl Worker {
    /// Makes the worker of a shard. To be called within the runtime that it is to run on.
    pub(crate) fn new(shard: Arc<Shard>) -> Self {
        Self {
            now: shard.now(),
            shard,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            attempts: AttemptSet::default(),
            report: None,
            took: None,
            busy: Duration::ZERO,
        }
    }

    /// Works until the executor has stopped and nothing is left.
    ///
    /// All state is in `self`, so that the futures awaited here are a pointer each and cost nothing to make.
    pub(crate) async fn work(mut self) {
        self.now = self.shard.now(); // it may begin long after it was made
        loop {
            let mut is_first_look = true;
            let turn = poll_fn(|cx| self.poll_turn(cx, &mut is_first_look)).await;
            if turn == Turn::Ended {
                return;
            }
            self.give_way().await;
        }
    }

    /// Gives way to other tasks of the thread, after many jobs or after long ones. The tasks that the worker has woken,
    /// such as those that wait for a handle, may be bound to its thread.
    async fn give_way(&mut self) {
        if self.busy < BUSY_MAX {
            return consume_budget().await;
        }
        self.busy = Duration::ZERO;
        tokio::task::yield_now().await;
        self.now = self.shard.now();
    }

    /// Goes on with one attempt that was woken, reports, and takes the next job; waits if there is nothing to do.
    fn poll_turn(&mut self, cx: &mut Context<'_>, is_first_look: &mut bool) -> Poll<Turn> {
        loop {
            if !std::mem::take(is_first_look) {
                self.now = self.shard.now();
            }
            let has_gone_on = !self.attempts.is_empty() && self.go_on(cx);
            let times = (self.now, self.took.take());
            match self.shard.next_task(cx, self.report.take(), times) {
                Task::Next(Next::Run(lease)) => self.begin(lease),
                Task::Next(Next::GiveUp(lease)) => {
                    self.fail_again(lease.place, lease.job, FailureReason::Stopped);
                }
                Task::Denied(denied) => self.denied(denied),
                Task::Next(Next::Ended) => return Poll::Ready(Turn::Ended),
                Task::Next(Next::Idle(_)) if has_gone_on => {}
                Task::Next(Next::Idle(None)) => return Poll::Pending,
                Task::Next(Next::Idle(Some(until))) => {
                    self.timer.as_mut().reset(self.shard.instant(until));
                    ready!(self.timer.as_mut().poll(cx));
                    continue;
                }
            }
            return Poll::Ready(Turn::Taken);
        }
    }

    /// Polls an attempt that was woken, if there is one.
    fn go_on(&mut self, cx: &Context<'_>) -> bool {
        let Some(slot) = self.attempts.next_woken(cx) else {
            return false;
        };
        while let Some(report) = self.report.take() {
            let times = (self.now, self.took.take());
            if let Err(denied) = self.shard.settle(report, times) {
                self.denied(denied);
            }
        }
        let polled = self.attempts.poll(slot);
        self.read_clock();
        if let Poll::Ready((Attempt { place, work, began }, result)) = polled {
            self.attempt_ended(place, began, work, result);
        }
        true
    }

    /// Takes up a job, unless its submitter's token is cancelled.
    ///
    /// A job that ends at its first poll stays where it is: its parts are not gathered in an [`Attempt`].
    #[inline]
    fn begin(&mut self, lease: WorkLease) {
        if lease.ticket.is_unwanted() {
            return self.turn_away(lease);
        }
        let (place, began, mut work) = (lease.place, self.now, lease.job);
        let id = self.shard.id(place);
        let mut context = Some(JobContext::new(lease.ticket, id, lease.attempt));
        let polled = self.attempts.begin(&mut work.job, &mut context);
        self.read_clock();
        match polled {
            Poll::Ready(result) => self.attempt_ended(place, began, work, result),
            Poll::Pending => {
                self.attempts.keep(Attempt { place, work, began });
                self.report = Some(Report::Waits(place));
            }
        }
    }

    /// Ends a job that has not begun, because its submitter's token is cancelled.
    fn turn_away(&mut self, lease: WorkLease) {
        let facts = self.facts(lease.place);
        contain::discard(lease.job.job);
        let error = lease.job.error.map(|error| *error);
        let failure = JobFailure::cancelled((facts.id, facts.key), lease.attempt - 1, error);
        self.shard.hooks.tell(&failure);
        self.report = Some(Report::Ended(lease.place, Outcome::Cancelled));
    }

    /// Reads the clock after a poll.
    fn read_clock(&mut self) {
        let before = std::mem::replace(&mut self.now, self.shard.now());
        self.busy += self.now.since(before);
    }

    /// Decides about the job after an attempt.
    #[inline]
    fn attempt_ended(
        &mut self,
        place: JobSlot,
        began: Timestamp,
        work: Work,
        result: Result<(), JobError>,
    ) {
        self.took = Some(self.now.since(began));
        match result {
            Ok(()) => {
                contain::discard(work);
                self.report = Some(Report::Ended(place, Outcome::Done));
            }
            Err(error) => self.attempt_failed(place, work, error),
        }
    }

    /// Decides whether there is another attempt.
    fn attempt_failed(&mut self, place: JobSlot, mut work: Work, error: JobError) {
        let shard = self.shard.number;
        if let Some(panic) = error.downcast_ref::<JobPanic>() {
            tracing::error!(shard, panic = %panic, "shardqueue: worker {shard} panic: {panic}");
        }
        let facts = self.facts(place);
        let failed = FailedAttempt {
            id: facts.id,
            key: &facts.key,
            attempt: facts.attempt,
            error: &*error,
        };
        let decision = if facts.ticket.is_cancelled() {
            RetryDecision::GiveUp(FailureReason::Cancelled)
        } else {
            self.shard.hooks.decide(&failed)
        };
        match decision {
            RetryDecision::Retry(delay) => {
                work.error = Some(Box::new(error));
                self.report = Some(Report::Retry(place, work, delay));
            }
            RetryDecision::GiveUp(reason) => self.fail(place, work, error, reason),
        }
    }

    fn denied(&mut self, denied: DeniedRetry) {
        let DeniedRetry { place, work, why } = denied;
        let reason = match why {
            NoRetry::Cancelled => FailureReason::Cancelled,
            NoRetry::Stopping => FailureReason::Stopped,
        };
        self.fail_again(place, work, reason);
    }

    /// Lets a job fail with the error that it has from its last attempt.
    fn fail_again(&mut self, place: JobSlot, mut work: Work, reason: FailureReason) {
        let error = work.error.take();
        let error = error.expect("a job that was to be repeated has failed");
        self.fail(place, work, *error, reason);
    }

    /// Lets a job fail for good.
    fn fail(&mut self, place: JobSlot, work: Work, error: JobError, reason: FailureReason) {
        let facts = self.facts(place);
        let failure = JobFailure::new((facts.id, facts.key), facts.attempt, reason, error);
        let outcome = Outcome::Failed(failure.clone());
        self.report = Some(Report::Ended(place, outcome));
        self.shard.hooks.failed(failure, work.job);
        self.now = self.shard.now();
    }

    /// Ends a job whose attempt is dropped with the runtime.
    fn interrupt(&self, attempt: Attempt) {
        let facts = self.facts(attempt.place);
        contain::discard(attempt.work);
        let error = JobError::from("the runtime was shut down during the attempt");
        let failure = JobFailure::cancelled((facts.id, facts.key), facts.attempt, Some(error));
        self.shard.finish(attempt.place, Outcome::Cancelled);
        self.shard.hooks.tell(&failure);
    }

    fn facts(&self, place: JobSlot) -> RunningFacts {
        let facts = self.shard.running_job(place);
        facts.expect("a job runs until it has been reported")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(Report::Retry(place, work, _)) = self.report.take_if(|report| report.is_retry())
        {
            self.fail_again(place, work, FailureReason::Stopped);
        }
        if let Some(Report::Ended(place, outcome)) = self.report.take() {
            self.shard.finish(place, outcome);
        }
        for attempt in self.attempts.drain() {
            self.interrupt(attempt);
        }
        self.shard.stop();
        let (queued, failed) = self.shard.hand_back();
        queued.into_iter().for_each(contain::discard);
        for (job, failure) in failed {
            self.shard.hooks.failed(failure, job);
        }
        self.shard.drop_tickets();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tokio::runtime::Builder;

    use crate::sync::counted::locks;
    use crate::{Config, JobContext, ShardExecutor};

    #[test]
    fn a_job_takes_one_lock_to_be_submitted_and_one_to_run() {
        const JOBS: u64 = 1_000;
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let config = Config {
            shards: 1,
            queue_size: JOBS as usize,
            key_queue_size: JOBS as usize,
            ..Config::default()
        };
        let executor = runtime.block_on(async { ShardExecutor::new(config) });
        let executor = executor.unwrap();
        let submit_all = || {
            for number in 0..JOBS {
                let job = |_: JobContext| async {};
                drop(executor.try_submit((number % 7).to_string(), job).unwrap());
            }
        };
        assert_eq!(locks(submit_all), JOBS);
        let to_run = locks(|| runtime.block_on(executor.flush()));
        assert!(to_run <= JOBS + 10, "{to_run} locks to run {JOBS} jobs");
        assert!(executor.stats().wakeups <= 1);
    }
}
