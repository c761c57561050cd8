//! Running handlers for the tasks of a scheduler, a limited number at a time.
//!
//! There are as many workers as handlers may run at once. Each takes a task, runs the handler to its end, settles
//! the cost, and takes the next. So a task leaves the queue only when a worker is free to run it, the scheduler
//! chooses as late as possible, and no second queue forms behind the first.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use firq_core::{DequeueResult, Task, TenantKey};
use futures_util::FutureExt;
use tokio::task::JoinSet;

use crate::scheduler::AsyncScheduler;
use crate::spent::{IntoSpent, Spent, cost_of_time};

/// The default number of handlers that run at once.
const IN_FLIGHT_LIMIT: usize = 64;

/// Runs a handler for every task of a scheduler, with a limit on how many run at once.
///
/// ```
/// use std::time::Duration;
/// use firq_async::{AsyncScheduler, Dispatcher, SchedulerConfig, Task, TenantKey};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = AsyncScheduler::new(SchedulerConfig::fair())?;
/// for number in 0..10 {
///     scheduler.try_enqueue(TenantKey::from(number % 3), Task::new(number))?;
/// }
/// scheduler.close_drain(); // takes no more, hands out the rest
///
/// let report = Dispatcher::new(scheduler)
///     .in_flight_limit(4)
///     .settle_by_elapsed(Duration::from_millis(1)) // a unit of cost is a millisecond
///     .run(async |_tenant: TenantKey, task: Task<u64>| {
///         tokio::time::sleep(Duration::from_millis(task.payload)).await;
///     })
///     .await;
/// assert_eq!(report.completed, 10);
/// # Ok(())
/// # }
/// ```
#[must_use = "a dispatcher does nothing until it is run"]
pub struct Dispatcher<T, K = TenantKey> {
    scheduler: AsyncScheduler<T, K>,
    in_flight_limit: usize,
    unit: Option<Duration>,
    in_flight: Arc<AtomicUsize>,
}

/// The result of a dispatcher's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Handlers that ran to their end.
    pub completed: u64,
    /// Handlers that panicked. Their tasks are not run again.
    pub panicked: u64,
}

impl<T, K> Dispatcher<T, K>
where
    T: Send + 'static,
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Returns a dispatcher of 64 handlers at a time, whose tasks cost what they declare.
    pub fn new(scheduler: AsyncScheduler<T, K>) -> Self {
        Self {
            scheduler,
            in_flight_limit: IN_FLIGHT_LIMIT,
            unit: None,
            in_flight: Arc::default(),
        }
    }

    /// Sets how many handlers run at once; at least one does.
    pub fn in_flight_limit(mut self, limit: usize) -> Self {
        self.in_flight_limit = limit.max(1);
        self
    }

    /// Charges tenants for the time that their handlers take, a unit of cost for each `unit` begun, unless a
    /// handler says [exactly](Spent::Exactly) what its task has cost.
    ///
    /// Time includes waiting. Declare costs in the same unit, as an estimate: the
    /// tenant is charged with it until the handler has ended.
    pub fn settle_by_elapsed(mut self, unit: Duration) -> Self {
        self.unit = Some(unit.max(Duration::from_nanos(1)));
        self
    }

    /// Returns how many handlers are running, as a number to look at while the dispatcher runs.
    pub fn in_flight(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.in_flight)
    }

    /// Runs `handler` for every task until the scheduler is closed and the last handler has ended.
    ///
    /// Handlers run on the current runtime, on any of its threads. A handler that panics is counted and
    /// logged; its tenant is charged, its place is free, and the other handlers go on.
    ///
    /// # Cancel safety
    /// Dropping the future stops the handlers that are running where they are, and their tasks with them;
    /// queued tasks stay queued. To stop without losing work, close the scheduler and wait.
    ///
    /// # Panics
    /// If `Hash`, `Eq` or `Clone` of the tenant's key panics.
    pub async fn run<H, F>(self, handler: H) -> Report
    where
        H: Fn(K, Task<T>) -> F + Send + Sync + 'static,
        F: Future<Output: IntoSpent> + Send + 'static,
    {
        let limit = self.in_flight_limit;
        let work = Arc::new(Work {
            dispatcher: self,
            handler,
            completed: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
        });
        let mut workers = JoinSet::new();
        for _ in 0..limit {
            let work = Arc::clone(&work);
            workers.spawn(async move { work.run().await });
        }
        while let Some(worker) = workers.join_next().await {
            if let Err(error) = worker
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        Report {
            completed: work.completed.load(Ordering::Relaxed),
            panicked: work.panicked.load(Ordering::Relaxed),
        }
    }
}

/// State that the workers share.
struct Work<T, K, H> {
    dispatcher: Dispatcher<T, K>,
    handler: H,
    completed: AtomicU64,
    panicked: AtomicU64,
}

impl<T, K, H, F> Work<T, K, H>
where
    K: Hash + Eq + Clone,
    H: Fn(K, Task<T>) -> F,
    F: Future<Output: IntoSpent>,
{
    async fn run(&self) {
        let scheduler = &self.dispatcher.scheduler;
        while let DequeueResult::Task { tenant, task } = scheduler.dequeue_async().await {
            let (owner, charged) = (tenant.clone(), task.cost);
            let begun = scheduler.scheduler().clock().now();
            let in_flight = InFlight::enter(&self.dispatcher.in_flight);
            // In a future of its own, so that calling the handler is covered as well as running it.
            // The handler shares nothing with the worker that a panic could leave half changed.
            let handling = AssertUnwindSafe(async { (self.handler)(tenant, task).await });
            let outcome = handling.catch_unwind().await;
            drop(in_flight);
            let elapsed = || {
                scheduler
                    .scheduler()
                    .clock()
                    .now()
                    .saturating_duration_since(begun)
            };
            let spent = match outcome {
                Ok(output) => {
                    self.completed.fetch_add(1, Ordering::Relaxed);
                    output.into_spent()
                }
                Err(panic) => {
                    self.panicked.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(
                        panic = message(&*panic),
                        "handler panicked, its task is lost"
                    );
                    Spent::Measured
                }
            };
            let actual = match (spent, self.dispatcher.unit) {
                (Spent::Exactly(cost), _) => cost,
                (Spent::Measured, Some(unit)) => cost_of_time(elapsed(), unit),
                (Spent::Measured, None) => charged,
            };
            if actual != charged {
                scheduler.settle(&owner, charged, actual);
            }
        }
    }
}

/// One running handler, counted until it is dropped.
struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T, K> fmt::Debug for Dispatcher<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("scheduler", &self.scheduler)
            .field("in_flight_limit", &self.in_flight_limit)
            .field("unit", &self.unit)
            .finish_non_exhaustive()
    }
}

/// Returns the message of a panic, if it has one.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_says_what_it_said() {
        assert_eq!(message(&"plain"), "plain");
        assert_eq!(message(&"formatted".to_owned()), "formatted");
        assert_eq!(message(&7), "a panic without a message");
    }
}
