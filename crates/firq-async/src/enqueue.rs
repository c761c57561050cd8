//! The future that waits for room.
//!
//! Tasks that are served or cancelled make room, and the core then wakes a waiting future. Tasks that expire make
//! room, too, and the time of the wait or of the task itself may run out; for these there is a timer, set to
//! the earliest. A task that is accepted at its first poll costs none.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use firq_core::{
    BackpressurePolicy, EnqueueRejectReason, Rejected, Scheduler, Task, TaskHandle, TenantKey,
    Waiter,
};
use tokio::task::coop;
use tokio::time::Sleep;

/// The finest that Tokio's timers tell apart.
const TICK: Duration = Duration::from_millis(1);

/// A task that is queued as soon as there is room. Made by
/// [`enqueue_async`](crate::AsyncScheduler::enqueue_async).
///
/// # Panics
/// If it has to wait and is polled outside of a Tokio runtime with time enabled, or after it resolved.
#[must_use = "futures do nothing unless polled"]
pub struct Enqueue<'a, T, K = TenantKey> {
    scheduler: &'a Scheduler<T, K>,
    tenant: K,
    task: Option<Task<T>>,
    waiter: Waiter,
    wait: Option<Box<Wait>>,
}

/// Parts of a future that was not admitted at once.
struct Wait {
    /// When patience ends, if the policy sets a limit.
    until: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<'a, T, K: Hash + Eq + Clone> Enqueue<'a, T, K> {
    pub(crate) const fn new(scheduler: &'a Scheduler<T, K>, tenant: K, task: Task<T>) -> Self {
        Self {
            scheduler,
            tenant,
            task: Some(task),
            waiter: Waiter::new(),
            wait: None,
        }
    }

    /// Gives up waiting and returns the task, unless it has been queued or given back.
    #[must_use = "the task is not queued"]
    pub fn into_task(self) -> Option<Task<T>> {
        self.task
    }

    /// Returns when to look again without being woken, given that there is no room now; `None` if the time of
    /// the wait is over.
    fn alarm(&mut self, now: Instant) -> Option<Option<Instant>> {
        let scheduler = self.scheduler;
        let wait = self.wait.get_or_insert_with(|| {
            let until = match scheduler.backpressure_for(&self.tenant) {
                BackpressurePolicy::Timeout { wait } => now.checked_add(wait),
                _ => None,
            };
            Box::new(Wait { until, timer: None })
        });
        if wait.until.is_some_and(|until| until <= now) {
            return None;
        }
        let own = self.task.as_ref().and_then(|task| task.deadline);
        let moments = [wait.until, own, scheduler.next_expiry()];
        Some(moments.into_iter().flatten().min())
    }
}

impl<T, K: Hash + Eq + Clone> Future for Enqueue<'_, T, K> {
    type Output = Result<TaskHandle, Rejected<T>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let budget = ready!(coop::poll_proceed(context));
        loop {
            let submitted =
                this.scheduler
                    .poll_submit(context, &mut this.waiter, &this.tenant, &mut this.task);
            if submitted.is_ready() {
                budget.made_progress();
                return submitted;
            }
            let now = this.scheduler.clock().now();
            let Some(alarm) = this.alarm(now) else {
                budget.made_progress();
                this.waiter = Waiter::new(); // passes on a wake-up that came too late
                let task = this.task.take().expect("a task that waits is here");
                let rejected = this.scheduler.reject(EnqueueRejectReason::Timeout, task);
                return Poll::Ready(Err(rejected));
            };
            let wait = this.wait.as_mut().expect("an alarm belongs to a wait");
            let Some(at) = alarm else {
                wait.timer = None;
                return Poll::Pending;
            };
            // At least a tick, because a task that has just expired is dropped only by a later look.
            let sleep = at.saturating_duration_since(now).max(TICK);
            let timer = wait.timer.insert(Box::pin(tokio::time::sleep(sleep)));
            ready!(timer.as_mut().poll(context));
        }
    }
}

// Nothing is pinned but the timer, which has a box of its own.
impl<T, K> Unpin for Enqueue<'_, T, K> {}

impl<T, K> fmt::Debug for Enqueue<'_, T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueue")
            .field("is_waiting", &self.wait.is_some())
            .finish_non_exhaustive()
    }
}
