//! A job's id, its status and its outcome.

use std::fmt;

use tokio::time::Instant;

use crate::core::{End, JobSlot};
use crate::failure::JobFailure;

/// Names a job that was accepted, among all of its executor's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobId {
    pub(crate) shard: u32,
    pub(crate) place: JobSlot,
}

impl JobId {
    /// Returns the shard that the job belongs to.
    #[must_use]
    pub const fn shard(self) -> usize {
        self.shard as usize
    }

    /// Returns the job's number, which no other job of its shard has.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.place.serial
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.shard, self.place.serial)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({self})")
    }
}

/// How a job ended. Every job that was accepted ends in exactly one of these ways.
#[derive(Clone, Debug)]
#[must_use = "a job may have failed"]
#[non_exhaustive]
pub enum Outcome {
    /// An attempt succeeded.
    Done,
    /// The last attempt failed.
    Failed(JobFailure),
    /// It was cancelled before its first attempt, or between two.
    Cancelled,
    /// It was never attempted, because the executor stopped; the call that stopped it returned the job.
    Returned,
}

impl Outcome {
    /// Returns whether an attempt succeeded.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    pub(crate) const fn end(&self) -> End {
        match self {
            Self::Done => End::Ran,
            Self::Failed(_) => End::Failed,
            Self::Cancelled => End::Cancelled,
            Self::Returned => End::Returned,
        }
    }

    /// Returns the failure, if the last attempt failed.
    #[must_use]
    pub const fn failure(&self) -> Option<&JobFailure> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::Done | Self::Cancelled | Self::Returned => None,
        }
    }
}

/// How a job is at the moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum JobStatus {
    /// It has been accepted and waits for its turn.
    Queued {
        /// How many jobs of its key are to run before it, including one that runs or backs off. Zero if it is a job
        /// across keys that waits for the others of them.
        position: usize,
    },
    /// An attempt is under way.
    Running {
        /// Which attempt: 1 for the first.
        attempt: u32,
    },
    /// The last attempt failed; the next comes when its time and its turn have come.
    BackingOff {
        /// The attempt that failed.
        attempt: u32,
        /// When the next attempt is due; if that is past, it waits for its turn.
        until: Instant,
    },
    /// It has ended.
    Ended(Outcome),
}

/// The effect of cancelling a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CancelResult {
    /// The job has not run, or will not run again; its room is free.
    Cancelled,
    /// An attempt is under way and has been told. It ends as it likes, and is not repeated.
    Signalled,
    /// The job has ended already.
    TooLate,
}
