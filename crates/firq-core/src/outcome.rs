//! The scheduler's answers.

use std::error::Error;
use std::fmt;

use crate::task::{Task, TaskHandle, TenantKey};

/// Why a task was not accepted.
///
/// Deliberately exhaustive: code that maps rejections to responses must handle every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EnqueueRejectReason {
    /// The tenant has `max_per_tenant` tasks queued.
    TenantFull,
    /// The scheduler has `max_global` tasks queued.
    GlobalFull,
    /// There was no room within the time that [`Timeout`](crate::BackpressurePolicy::Timeout) allows.
    Timeout,
}

impl EnqueueRejectReason {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::TenantFull, Self::GlobalFull, Self::Timeout];

    /// Returns the reason as a stable identifier, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TenantFull => "tenant_full",
            Self::GlobalFull => "global_full",
            Self::Timeout => "timeout",
        }
    }
}

impl fmt::Display for EnqueueRejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TenantFull => "the tenant's queue is full; retry when its tasks have been served",
            Self::GlobalFull => "the scheduler is full; retry when tasks have been served",
            Self::Timeout => "there was no room in time; retry later or allow a longer wait",
        })
    }
}

impl Error for EnqueueRejectReason {}

/// The result of enqueueing a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a task that was rejected is gone; `submit` gives it back"]
pub enum EnqueueResult {
    /// The task is queued.
    Enqueued,
    /// The task was not accepted.
    Rejected(EnqueueRejectReason),
    /// The scheduler is closed and takes no more tasks.
    Closed,
}

/// The result of enqueueing a task, with a handle to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a task that was rejected is gone; `submit` gives it back"]
pub enum EnqueueWithHandleResult {
    /// The task is queued and can be cancelled.
    Enqueued(TaskHandle),
    /// The task was not accepted.
    Rejected(EnqueueRejectReason),
    /// The scheduler is closed and takes no more tasks.
    Closed,
}

/// A task that was not accepted, and why.
#[derive(Clone, PartialEq, Eq)]
pub enum Rejected<T> {
    /// There was no room for the task.
    Full {
        /// Where there was no room.
        reason: EnqueueRejectReason,
        /// The task, untouched.
        task: Task<T>,
    },
    /// The scheduler is closed and takes no more tasks.
    Closed {
        /// The task, untouched.
        task: Task<T>,
    },
}

impl<T> Rejected<T> {
    /// Returns the task.
    #[must_use]
    pub fn into_task(self) -> Task<T> {
        match self {
            Self::Full { task, .. } | Self::Closed { task } => task,
        }
    }

    /// Returns where there was no room, or `None` if the scheduler is closed.
    #[must_use]
    pub const fn reason(&self) -> Option<EnqueueRejectReason> {
        match self {
            Self::Full { reason, .. } => Some(*reason),
            Self::Closed { .. } => None,
        }
    }
}

// Without `T: Debug`, so that a rejection can be an error whatever the payload is.
impl<T> fmt::Debug for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { reason, .. } => f.debug_tuple("Full").field(reason).finish(),
            Self::Closed { .. } => f.write_str("Closed"),
        }
    }
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { reason, .. } => reason.fmt(f),
            Self::Closed { .. } => f.write_str("the scheduler is closed and takes no more tasks"),
        }
    }
}

impl<T> Error for Rejected<T> {}

/// The next task, or why there is none.
///
/// Deliberately exhaustive: a consumer has to do something about each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the task in it is no longer queued anywhere else"]
pub enum DequeueResult<T, K = TenantKey> {
    /// A task to do.
    Task {
        /// The task's tenant.
        tenant: K,
        /// The task.
        task: Task<T>,
    },
    /// There is nothing to do now.
    Empty,
    /// There is nothing to do any more.
    Closed,
}

impl<T, K> DequeueResult<T, K> {
    /// Returns the tenant and the task, if there is one.
    #[must_use]
    pub fn into_task(self) -> Option<(K, Task<T>)> {
        match self {
            Self::Task { tenant, task } => Some((tenant, task)),
            Self::Empty | Self::Closed => None,
        }
    }
}

/// The result of cancelling a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a task that was not found may be running"]
pub enum CancelResult {
    /// The task was queued; it is gone, its payload is dropped and its place is free.
    Cancelled,
    /// The task is not queued: it was delivered, expired, evicted or cancelled before.
    NotFound,
}

/// Why a task that had been accepted left the queue without being delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// Its deadline passed.
    Expired,
    /// It gave way to another task, as the backpressure policy says.
    Evicted,
    /// The scheduler was closed at once.
    Closed,
}

/// A task that had been accepted and left the queue without being delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped<T, K = TenantKey> {
    /// The task's tenant.
    pub tenant: K,
    /// The task.
    pub task: Task<T>,
    /// Why it was dropped.
    pub reason: DropReason,
}

/// What closing does to the queued tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseMode {
    /// They are dropped, and consumers get [`DequeueResult::Closed`] at once.
    Immediate,
    /// They are delivered; then consumers get [`DequeueResult::Closed`].
    Drain,
}
