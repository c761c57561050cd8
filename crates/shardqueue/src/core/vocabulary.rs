//! The types that the core takes and returns.

use drr::Cost;

use super::node::{JobSlot, Role};
use super::stopping::RemovedJob;
use super::time::Timestamp;
use crate::error::FullLevel;
use crate::options::Priority;

/// How much a shard holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Jobs queued in all.
    pub(crate) queue_max: usize,
    /// Jobs queued for one key.
    pub(crate) key_max: KeyLimit,
    /// Jobs that back off, and queued jobs behind them, without using up the queue's room.
    pub(crate) backoff_max: usize,
    /// Jobs that run at once, each of another key.
    pub(crate) concurrency: usize,
    /// Urgent jobs that begin in a row while others wait.
    pub(crate) urgent_max: usize,
}

/// How many jobs of one key may be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyLimit {
    /// Three times as many as the queue has room for now: see [`drr::Pool`].
    Part,
    Fixed(usize),
}

/// How full a shard is, for a submission that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupancy {
    /// How much of the queue's room is in use.
    pub(crate) held: usize,
    /// The level that has no room.
    pub(crate) level: FullLevel,
    /// How many jobs of that key or group are queued; of the key, if the shard has no room.
    pub(crate) key_held: usize,
    /// How many it may have queued now.
    pub(crate) key_max: usize,
}

/// The facts about a job that the core needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) priority: Priority,
    pub(crate) cost: Cost,
    pub(crate) role: Role,
}

/// How a job ends, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Ran,
    Failed,
    Cancelled,
    Returned,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) accepted: u64,
    pub(crate) ran: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) returned: u64,
    pub(crate) retried: u64,
    pub(crate) refused_full: u64,
}

/// The notices of a step, which the shard sends after it.
#[derive(Debug)]
pub(crate) struct Notices<T, B> {
    /// Tickets of submissions that have been accepted.
    pub(crate) accepted: Vec<T>,
    /// Bells of barriers that are open.
    pub(crate) rung: Vec<B>,
    /// Tickets of nodes of jobs across keys that hold their key from now on.
    pub(crate) arrived: Vec<T>,
}

impl<T, B> Notices<T, B> {
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.accepted.is_empty() && self.rung.is_empty() && self.arrived.is_empty()
    }
}

impl<T, B> Default for Notices<T, B> {
    fn default() -> Self {
        Self {
            accepted: Vec::new(),
            rung: Vec::new(),
            arrived: Vec::new(),
        }
    }
}

/// A job that is to be attempted, or given up, by the worker.
#[derive(Debug)]
pub(crate) struct Lease<J, T> {
    pub(crate) place: JobSlot,
    /// The attempt that begins; for a job that is given up, the one that was the last.
    pub(crate) attempt: u32,
    pub(crate) job: J,
    pub(crate) ticket: T,
}

/// The worker's next step.
#[derive(Debug)]
pub(crate) enum Next<J, T> {
    /// Attempt this job.
    Run(Lease<J, T>),
    /// Let this job fail with the error it has: the executor stops, and it was backing off.
    GiveUp(Lease<J, T>),
    /// Sleep until there is something to do, or until the time given.
    Idle(Option<Timestamp>),
    /// End: the executor stops, and nothing is left.
    Ended,
}

/// Why a job that failed is not attempted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRetry {
    Cancelled,
    Stopping,
}

/// The effect of cancelling a job.
#[derive(Debug)]
pub(crate) enum Cancelled<J, T> {
    Removed(RemovedJob<J, T>),
    IsRunning,
    Gone,
}

/// The status of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Queued { position: usize },
    Running { attempt: u32 },
    BackingOff { attempt: u32, until: Timestamp },
}
