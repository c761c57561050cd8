//! The types that a shard takes and returns.

use std::sync::Arc;
use std::time::Duration;

use drr::Cost;
use tokio_util::sync::CancellationToken;

use super::Step;
use crate::core::{Counters, Histogram, JobSlot, NoRetry};
use crate::error::QueueFullError;
use crate::failure::JobError;
use crate::job::BoxJob;
use crate::options::Priority;
use crate::outcome::{JobId, Outcome};
use crate::ticket::Ticket;

/// A job and, once it has failed, the error of its last attempt: boxed, because most jobs have none.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) job: BoxJob,
    pub(crate) error: Option<Box<JobError>>,
}

/// The facts about a job that runs.
#[derive(Debug)]
pub(crate) struct RunningFacts {
    pub(crate) id: JobId,
    pub(crate) key: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) ticket: Arc<Ticket>,
}

/// What became of a job that the worker has polled.
#[derive(Debug)]
pub(crate) enum Report {
    /// Its attempt has begun and waits for something: jobs of other keys may run meanwhile.
    Waits(JobSlot),
    Ended(JobSlot, Outcome),
    /// It failed, and is to be attempted again after a while.
    Retry(JobSlot, Work, Duration),
}

impl Report {
    pub(crate) const fn is_retry(&self) -> bool {
        matches!(self, Self::Retry(..))
    }
}

/// The next task of the worker.
#[derive(Debug)]
pub(crate) enum Task {
    Next(Step),
    Denied(DeniedRetry),
}

/// A job that has failed and was not let back in.
#[derive(Debug)]
pub(crate) struct DeniedRetry {
    pub(crate) place: JobSlot,
    pub(crate) work: Work,
    pub(crate) why: NoRetry,
}

/// The counters and gauges of a shard at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) counters: Counters,
    pub(crate) runs: Histogram,
    pub(crate) gauges: (usize, usize, usize),
    pub(crate) keys: usize,
    pub(crate) groups: usize,
    pub(crate) wakeups: u64,
}

/// A job that is submitted.
#[derive(Debug)]
pub(crate) struct NewJob<'a> {
    pub(crate) key: &'a str,
    pub(crate) job: BoxJob,
    pub(crate) priority: Priority,
    pub(crate) cost: Cost,
    /// The submitter's token, if it gave one.
    pub(crate) caller: Option<CancellationToken>,
}

/// The result of a submission.
#[derive(Debug)]
pub(crate) enum Submitted {
    Accepted(JobId, Arc<Ticket>),
    Waiting(JobId, Arc<Ticket>),
    /// There is no room. Boxed, because it is large and rare.
    Full(Box<QueueFullError>, BoxJob),
    Closed(BoxJob),
}
