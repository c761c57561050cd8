//! The user's code that a failed job calls: the retry policy, the error handler, the hook for dead jobs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::contain;
use crate::failure::{FailureReason, JobFailure, is_permanent};
use crate::job::BoxJob;
use crate::retry::{FailedAttempt, RetryPolicy};

/// Is told of every job that has failed for good or was cancelled, once.
pub type ErrorHandler = Arc<dyn Fn(&JobFailure) + Send + Sync>;

/// Is given every job that has failed for good, once.
pub type DeadJobHook = Arc<dyn Fn(DeadJob) + Send + Sync>;

/// A job that has failed for good, with the job itself: to be kept, looked at, or submitted again.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeadJob {
    /// How it failed.
    pub failure: JobFailure,
    /// The job.
    pub job: BoxJob,
}

#[derive(Clone)]
pub(crate) struct Hooks {
    pub(crate) retry: Arc<dyn RetryPolicy>,
    pub(crate) on_error: Option<ErrorHandler>,
    pub(crate) on_dead: Option<DeadJobHook>,
}

/// The decision about a failed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    Retry(Duration),
    GiveUp(FailureReason),
}

impl Hooks {
    /// Decides whether to attempt a job again. If the user's policy panics, the job is given up.
    pub(crate) fn decide(&self, failed: &FailedAttempt<'_>) -> RetryDecision {
        let decide = || {
            if is_permanent(failed.error) {
                return RetryDecision::GiveUp(FailureReason::Permanent);
            }
            match self.retry.next_delay(failed) {
                Some(delay) => RetryDecision::Retry(delay),
                None => RetryDecision::GiveUp(FailureReason::Exhausted),
            }
        };
        contain::call(decide).unwrap_or_else(|panic| {
            tracing::error!(panic = %panic, "shardqueue: retry policy panic: {panic}");
            RetryDecision::GiveUp(FailureReason::Exhausted)
        })
    }

    /// Tells the error handler that a job has failed for good or was cancelled.
    pub(crate) fn tell(&self, failure: &JobFailure) {
        if let Some(handler) = &self.on_error
            && let Err(panic) = contain::call(|| handler(failure))
        {
            tracing::error!(panic = %panic, "shardqueue: error handler panic: {panic}");
        }
    }

    /// Reports that a job has failed for good.
    pub(crate) fn failed(&self, failure: JobFailure, job: BoxJob) {
        self.tell(&failure);
        let Some(hook) = &self.on_dead else {
            contain::discard(job);
            return;
        };
        if let Err(panic) = contain::call(|| hook(DeadJob { failure, job })) {
            tracing::error!(panic = %panic, "shardqueue: dead job hook panic: {panic}");
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("on_error", &self.on_error.is_some())
            .field("on_dead", &self.on_dead.is_some())
            .finish_non_exhaustive()
    }
}
