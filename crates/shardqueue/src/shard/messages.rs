//! What goes in and out of a shard.

use std::sync::Arc;
use std::time::Duration;

use drr::Cost;

use super::Step;
use crate::core::{Counters, Histogram, NoRetry, Place};
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
