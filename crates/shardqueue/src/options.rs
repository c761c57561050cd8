//! Options of a job.

use drr::Cost;
use tokio_util::sync::CancellationToken;

/// How urgent a job is.
///
/// Jobs of one key and priority run in the order in which they were accepted, and a job never overtakes one that
/// has begun. `High`, `Normal` and `Low` order the jobs of one key, and do not let a key go before another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before the others of its key, and before the turns of all other keys of its shard.
    ///
    /// Keys with urgent jobs take turns among themselves, by [levels](crate::Config::key_separator) if keys are paths. While
    /// other jobs wait, at most [`urgent_in_a_row`](crate::Config::urgent_in_a_row) urgent jobs begin in a row. The key
    /// pays for its urgent jobs with its turns for other jobs.
    Urgent,
    /// Before the others of its key that are not urgent.
    High,
    /// In order of submission.
    #[default]
    Normal,
    /// When its key has nothing else queued.
    Low,
}

impl Priority {
    /// Returns the queue of its lane that a job is in; `None` if it is in the express line.
    #[inline]
    pub(crate) const fn queue(self) -> Option<usize> {
        match self {
            Self::Urgent => None,
            Self::High => Some(0),
            Self::Normal => Some(1),
            Self::Low => Some(2),
        }
    }
}

/// Options of a job: its priority, cost and cancellation token.
///
/// ```
/// use shardqueue::{JobOptions, Priority};
/// use tokio_util::sync::CancellationToken;
///
/// let token = CancellationToken::new();
/// let options = JobOptions::new().priority(Priority::High).cancelled_by(token.clone());
/// # drop(options);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct JobOptions {
    pub(crate) priority: Priority,
    pub(crate) cost: Cost,
    pub(crate) cancel: Option<CancellationToken>,
}

impl JobOptions {
    /// Returns the options of an ordinary job.
    pub const fn new() -> Self {
        Self {
            priority: Priority::Normal,
            cost: Cost::ONE,
            cancel: None,
        }
    }

    /// Sets how urgent the job is.
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets what an attempt costs its key, where an ordinary one costs 1; zero counts as 1.
    ///
    /// Keys get equal shares of cost: one whose jobs cost 10 has a tenth as many attempts as the others while
    /// all of them have jobs queued.
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = Cost::new(cost);
        self
    }

    /// Sets a token that cancels the job, also while its submission waits for room.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.cancel = Some(token);
        self
    }
}

impl Default for JobOptions {
    fn default() -> Self {
        Self::new()
    }
}
