//! A task: a payload with the facts that the scheduler needs.

use std::fmt;
use std::time::Instant;

/// A tenant with a number for a name.
///
/// Any `Hash + Eq + Clone` type can be a key, for example `String` or `(TenantKey, Route)`. The key names the
/// party that competes for the resource, nothing finer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantKey(u64);

impl TenantKey {
    /// Returns the number that this key was made from.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl From<u64> for TenantKey {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl From<TenantKey> for u64 {
    fn from(key: TenantKey) -> Self {
        key.0
    }
}

impl fmt::Display for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How urgent a task is **among the tasks of its own tenant**.
///
/// Priority orders work inside a tenant; it never buys the tenant more than its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Comes before the tenant's other work.
    High,
    /// Comes in order of arrival.
    #[default]
    Normal,
    /// Comes when the tenant has nothing else.
    Low,
}

impl Priority {
    /// All priorities, most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// A piece of work.
///
/// ```
/// use std::time::{Duration, Instant};
/// use firq_core::{Priority, Task};
///
/// let plain = Task::new("send mail");
/// let special = Task::new("resize image")
///     .with_cost(40)
///     .with_priority(Priority::High)
///     .with_deadline(Instant::now() + Duration::from_secs(2));
/// assert_eq!((plain.cost, special.cost), (1, 40));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task<T> {
    /// The work itself.
    pub payload: T,
    /// When the task was enqueued. The scheduler sets it from its own clock when it accepts the task, so
    /// that queue time means time in the queue; the earlier value does not matter. Without a deadline it is as exact as
    /// the clock's [precision](crate::Precision).
    pub enqueue_ts: Instant,
    /// When the task is no longer worth doing. Past it the task is never delivered.
    pub deadline: Option<Instant>,
    /// How urgent the task is among those of its tenant.
    pub priority: Priority,
    /// How much of the shared resource the task uses, in units of your choice. The scheduler brings it into the
    /// range from 1 to 2⁴⁴ when it accepts the task.
    pub cost: u64,
}

impl<T> Task<T> {
    /// Returns a task of cost 1 and normal priority, without a deadline.
    #[must_use]
    pub fn new(payload: T) -> Self {
        Self {
            payload,
            enqueue_ts: unset(),
            deadline: None,
            priority: Priority::Normal,
            cost: 1,
        }
    }

    /// Sets how much of the shared resource the task uses.
    #[must_use]
    pub fn with_cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Sets when the task is no longer worth doing.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets how urgent the task is among those of its tenant.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Returns the task with another payload.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Task<U> {
        Task {
            payload: f(self.payload),
            enqueue_ts: self.enqueue_ts,
            deadline: self.deadline,
            priority: self.priority,
            cost: self.cost,
        }
    }
}

/// A moment for tasks that have not been enqueued yet: reading the clock for each would cost more than
/// enqueueing it.
fn unset() -> Instant {
    static UNSET: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *UNSET.get_or_init(Instant::now)
}

/// Names one accepted task, to [cancel](crate::Scheduler::cancel) it.
///
/// A handle fits its task only. Once the task has left the queue, the handle fits none, even if a new task has
/// the same place in memory; and it never fits a task of another scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskHandle {
    pub(crate) scheduler: u32,
    pub(crate) shard: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}
