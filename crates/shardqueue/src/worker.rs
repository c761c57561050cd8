//! The worker of a shard: a Tokio task that runs the jobs that the core chooses, one at a time.
//!
//! # Its end
//! It ends when the executor stops and no job is left. If its runtime is shut down before, its future is dropped
//! at any point, and [`Worker::drop`] settles all jobs: a running job is cancelled, one that backs off has failed,
//! queued ones are dropped as returned, and waiting submissions are refused. So every caller gets an answer.
//!
//! # Cost
//! One lock per job, under which the end of one job is reported and the next one taken; one reading of the
//! clock per attempt. Between jobs the worker yields when its Tokio budget is used up, so that an endless row
//! of jobs that never wait does not starve other tasks.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop::consume_budget;
use tokio::time::Sleep;

use crate::contain;
use crate::context::JobContext;
use crate::core::{JobSlot, Next, NoRetry, Timestamp};
use crate::failure::{FailureReason, JobError, JobFailure, JobPanic};
use crate::hooks::RetryDecision;
use crate::job::BoxJob;
use crate::outcome::Outcome;
use crate::retry::FailedAttempt;
use crate::shard::{Report, Shard, Task, Work, WorkLease};

pub(crate) struct Worker {
    shard: Arc<Shard>,
    timer: Pin<Box<Sleep>>,
    /// The job at hand, until it has been reported.
    current: Option<JobSlot>,
    /// The attempt under way, with its context until it has begun.
    attempt: Option<(Work, Option<JobContext>)>,
    report: Option<Report>,
    /// When the clock was last read: after every attempt, and on waking up.
    now: Timestamp,
    /// How long the last attempt took, until it has been reported.
    took: Option<Duration>,
    /// How long attempts took since the worker has given way to other tasks.
    busy: Duration,
}

/// How long a worker runs jobs that never wait before it gives way to other tasks of its thread.
const BUSY_MAX: Duration = Duration::from_millis(1);

impl Worker {
    /// Makes the worker of a shard. To be called within the runtime that it is to run on.
    pub(crate) fn new(shard: Arc<Shard>) -> Self {
        Self {
            now: shard.now(),
            shard,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            current: None,
            attempt: None,
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
            match poll_fn(|cx| self.poll_task(cx, &mut is_first_look)).await {
                Task::Next(Next::Run(lease)) => {
                    if self.begin(lease) {
                        let result = poll_fn(|cx| self.poll_attempt(cx)).await;
                        self.attempt_ended(result);
                    }
                    self.give_way().await;
                }
                Task::Next(Next::GiveUp(lease)) => {
                    self.current = Some(lease.place);
                    self.fail_again(lease.job, FailureReason::Stopped);
                }
                Task::Denied(work, NoRetry::Cancelled) => {
                    self.fail_again(work, FailureReason::Cancelled);
                }
                Task::Denied(work, NoRetry::Stopping) => {
                    self.fail_again(work, FailureReason::Stopped);
                }
                Task::Next(Next::Idle(_)) => {} // it has been waited out
                Task::Next(Next::Ended) => return,
            }
        }
    }

    /// Gives way to other tasks of the thread, after many jobs or after long ones. The tasks that the worker has woken,
    /// such as those that wait for a handle, may be bound to its thread.
    async fn give_way(&mut self) {
        self.busy += self.took.unwrap_or_default();
        if self.busy < BUSY_MAX {
            return consume_budget().await;
        }
        self.busy = Duration::ZERO;
        tokio::task::yield_now().await;
    }

    /// Reports the last job, and waits for the next.
    fn poll_task(&mut self, cx: &mut Context<'_>, is_first_look: &mut bool) -> Poll<Task> {
        loop {
            if !std::mem::take(is_first_look) {
                self.now = self.shard.now();
            }
            let times = (self.now, self.took.take());
            let task = self.shard.next_task(cx, self.report.take(), times);
            if !matches!(task, Task::Denied(..)) {
                self.current = None;
            }
            match task {
                Task::Next(Next::Idle(None)) => return Poll::Pending,
                Task::Next(Next::Idle(Some(until))) => {
                    self.timer.as_mut().reset(self.shard.instant(until));
                    ready!(self.timer.as_mut().poll(cx));
                }
                task => return Poll::Ready(task),
            }
        }
    }

    /// Takes up a job. Returns whether to attempt it: not if its submitter's token is cancelled.
    fn begin(&mut self, lease: WorkLease) -> bool {
        let place = lease.place;
        self.current = Some(place);
        let id = self.shard.id(place);
        if lease.ticket.is_unwanted() {
            contain::discard(lease.job.job);
            let error = lease.job.error.map(|error| *error);
            let failure = JobFailure::cancelled((id, lease.key), lease.attempt - 1, error);
            self.shard.hooks.tell(&failure);
            self.report = Some(Report::Ended(place, Outcome::Cancelled));
            return false;
        }
        let context = JobContext::new(lease.ticket, lease.key, id, lease.attempt);
        self.attempt = Some((lease.job, Some(context)));
        true
    }

    fn poll_attempt(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let (work, context) = self.attempt.as_mut().expect(UNDER_WAY);
        work.job.poll_attempt(cx, context)
    }

    /// Decides about the job after an attempt.
    fn attempt_ended(&mut self, result: Result<(), JobError>) {
        let (work, _) = self.attempt.take().expect(UNDER_WAY);
        let began = std::mem::replace(&mut self.now, self.shard.now());
        self.took = Some(self.now.since(began));
        match (result, self.current) {
            (Ok(()), Some(place)) => {
                contain::discard(work);
                self.report = Some(Report::Ended(place, Outcome::Done));
            }
            (Err(error), _) => self.attempt_failed(work, error),
            (Ok(()), None) => unreachable!("{AT_HAND}"),
        }
    }

    /// Decides whether there is another attempt.
    fn attempt_failed(&mut self, mut work: Work, error: JobError) {
        let shard = self.shard.number;
        if let Some(panic) = error.downcast_ref::<JobPanic>() {
            tracing::error!(shard, panic = %panic, "shardqueue: worker {shard} panic: {panic}");
        }
        let current_job = self.shard.current_job().expect(AT_HAND);
        let failed = FailedAttempt {
            id: current_job.id,
            key: &current_job.key,
            attempt: current_job.attempt,
            error: &*error,
        };
        let decision = if current_job.ticket.is_cancelled() {
            RetryDecision::GiveUp(FailureReason::Cancelled)
        } else {
            self.shard.hooks.decide(&failed)
        };
        match decision {
            RetryDecision::Retry(delay) => {
                work.error = Some(Box::new(error));
                self.report = Some(Report::Retry(current_job.id.place, work, delay));
            }
            RetryDecision::GiveUp(reason) => self.fail(work.job, error, reason),
        }
    }

    /// Lets a job fail with the error that it has from its last attempt.
    fn fail_again(&mut self, work: Work, reason: FailureReason) {
        let error = work.error;
        let error = error.expect("a job that was to be repeated has failed");
        self.fail(work.job, *error, reason);
    }

    /// Lets the job at hand fail for good.
    fn fail(&mut self, job: BoxJob, error: JobError, reason: FailureReason) {
        let current_job = self.shard.current_job().expect(AT_HAND);
        let place = current_job.id.place;
        let failure = JobFailure::new(
            (current_job.id, current_job.key),
            current_job.attempt,
            reason,
            error,
        );
        let outcome = Outcome::Failed(failure.clone());
        self.report = Some(Report::Ended(place, outcome));
        self.shard.hooks.failed(failure, job);
        self.now = self.shard.now();
    }

    /// Ends the job whose attempt was dropped with the runtime.
    fn interrupted(&self, place: JobSlot) {
        let job = self.shard.current_job().expect(AT_HAND);
        let error = JobError::from("the runtime was shut down during the attempt");
        let failure = JobFailure::cancelled((job.id, job.key), job.attempt, Some(error));
        self.shard.finish(place, Outcome::Cancelled);
        self.shard.hooks.tell(&failure);
    }
}

const UNDER_WAY: &str = "an attempt is under way until it has ended";
const AT_HAND: &str = "a job is at hand until it has been reported";

impl Drop for Worker {
    fn drop(&mut self) {
        contain::discard(self.attempt.take());
        if let Some(Report::Retry(_, work, _)) = self.report.take_if(|report| report.is_retry()) {
            self.fail_again(work, FailureReason::Stopped);
        }
        match (self.report.take(), self.current.take()) {
            (Some(Report::Ended(place, outcome)), _) => self.shard.finish(place, outcome),
            (_, Some(place)) => self.interrupted(place),
            (_, None) => {}
        }
        self.shard.stop();
        let (queued, failed) = self.shard.hand_back();
        queued.into_iter().for_each(contain::discard);
        for (job, failure) in failed {
            self.shard.hooks.failed(failure, job);
        }
    }
}
