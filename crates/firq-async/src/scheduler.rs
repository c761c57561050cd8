//! The scheduler as async code sees it: nothing here blocks a thread.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use firq_core::{
    CancelResult, CloseMode, ConfigError, DequeueResult, EnqueueResult, Rejected, Scheduler,
    SchedulerConfig, SchedulerStats, Task, TaskHandle, TenantKey,
};

use crate::dequeue::{Dequeue, DequeueBatch};
use crate::enqueue::Enqueue;
use crate::stream::Tasks;

/// A [`Scheduler`] for async code. Clones are the same scheduler.
///
/// Its methods never block. [`scheduler`](Self::scheduler) gives access to the others. Mind that
/// `dequeue_blocking` there, and `enqueue` there under [`Timeout`](crate::BackpressurePolicy::Timeout),
/// block the calling thread and with it everything else that runs on it.
pub struct AsyncScheduler<T, K = TenantKey> {
    scheduler: Arc<Scheduler<T, K>>,
}

impl<T, K: Hash + Eq + Clone> AsyncScheduler<T, K> {
    /// Returns an empty scheduler.
    ///
    /// The configuration's clock is kept: give it a [`TokioClock`](crate::TokioClock) if deadlines are to
    /// follow Tokio's time in tests that pause it.
    ///
    /// # Errors
    /// If a field of the configuration is out of range; the error names it.
    pub fn new(config: SchedulerConfig<T, K>) -> Result<Self, ConfigError> {
        Ok(Self::from(Arc::new(Scheduler::new(config)?)))
    }

    /// Returns the scheduler, for methods without an async form.
    #[must_use]
    pub fn scheduler(&self) -> &Arc<Scheduler<T, K>> {
        &self.scheduler
    }

    /// Queues a task without waiting, and says whether it was accepted.
    ///
    /// Where there is no room, it is rejected at once, under [`Timeout`](crate::BackpressurePolicy::Timeout), too.
    /// A rejected task is dropped: [`try_enqueue`](Self::try_enqueue) gives it back, and
    /// [`enqueue_async`](Self::enqueue_async) waits for room.
    ///
    /// ```
    /// use firq_async::{AsyncScheduler, EnqueueResult, SchedulerConfig, Task, TenantKey};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), firq_async::ConfigError> {
    /// let scheduler = AsyncScheduler::new(SchedulerConfig::default())?;
    /// let result = scheduler.enqueue(TenantKey::from(7), Task::new("hello"));
    /// assert_eq!(result, EnqueueResult::Enqueued);
    /// let (tenant, task) = scheduler.dequeue_async().await.into_task().unwrap();
    /// assert_eq!((tenant, task.payload), (TenantKey::from(7), "hello"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn enqueue(&self, tenant: K, task: Task<T>) -> EnqueueResult {
        match self.try_enqueue(tenant, task) {
            Ok(_) => EnqueueResult::Enqueued,
            Err(Rejected::Full { reason, .. }) => EnqueueResult::Rejected(reason),
            Err(Rejected::Closed { .. }) => EnqueueResult::Closed,
        }
    }

    /// Queues a task as soon as there is room for it.
    ///
    /// Waits as long as it takes; under [`Timeout`](crate::BackpressurePolicy::Timeout) as long as that
    /// allows. Policies that make room by dropping tasks drop them first. To be refused at once instead, use
    /// [`try_enqueue`](Self::try_enqueue).
    ///
    /// Resolves to how the task can be cancelled, or to an error that has the task in it.
    ///
    /// # Cancel safety
    /// A task whose future is dropped before it resolved is not queued. It is dropped with the future; keep
    /// what you may need elsewhere, or take it out with [`Enqueue::into_task`].
    pub fn enqueue_async(&self, tenant: K, task: Task<T>) -> Enqueue<'_, T, K> {
        Enqueue::new(&self.scheduler, tenant, task)
    }

    /// Queues a task without waiting, and gives it back if it is not accepted.
    ///
    /// # Errors
    /// If there is no room now, or the scheduler is closed; the task is in the error.
    pub fn try_enqueue(&self, tenant: K, task: Task<T>) -> Result<TaskHandle, Rejected<T>> {
        self.scheduler.try_enqueue(tenant, task)
    }

    /// Takes the next task, waiting for one as long as it takes. Never resolves to
    /// [`Empty`](DequeueResult::Empty).
    ///
    /// # Cancel safety
    /// A task is taken only by the poll that returns it: a future that is dropped, by `select!`, by a timeout
    /// or with its task, loses none and keeps none from others.
    pub fn dequeue_async(&self) -> Dequeue<'_, T, K> {
        Dequeue::new(&self.scheduler)
    }

    /// Takes up to `max` tasks in the order of service, waiting for the first of them, and adds them to
    /// `tasks`. Resolves to how many; to none if the scheduler is closed, or if `max` is 0.
    ///
    /// Cheaper per task than [`dequeue_async`](Self::dequeue_async); but the order is settled for all of them
    /// at once, and a tenant that gets work a moment later comes after them.
    ///
    /// # Cancel safety
    /// Tasks are taken only by the poll that resolves, as with [`dequeue_async`](Self::dequeue_async).
    pub fn dequeue_batch_async<'a>(
        &'a self,
        max: usize,
        tasks: &'a mut Vec<(K, Task<T>)>,
    ) -> DequeueBatch<'a, T, K> {
        DequeueBatch::new(&self.scheduler, max, tasks)
    }

    /// Takes the next task, if there is one now.
    pub fn try_dequeue(&self) -> DequeueResult<T, K> {
        self.scheduler.try_dequeue()
    }

    /// Returns the tasks as a stream that ends when the scheduler is closed.
    ///
    /// Any number of streams can share a scheduler: each task goes to one of them.
    pub fn tasks(&self) -> Tasks<T, K> {
        Tasks::new(Arc::clone(&self.scheduler))
    }

    /// Queues many tasks without waiting, and returns those that were not accepted; see
    /// [`Scheduler::enqueue_batch`].
    pub fn enqueue_batch(
        &self,
        tasks: impl IntoIterator<Item = (K, Task<T>)>,
    ) -> Vec<(K, Rejected<T>)> {
        self.scheduler.enqueue_batch(tasks)
    }

    /// Takes a task out of the queue, wherever it is, in constant time.
    pub fn cancel(&self, handle: TaskHandle) -> CancelResult {
        self.scheduler.cancel(handle)
    }

    /// Reports the true cost of a finished task; see [`Scheduler::settle`].
    pub fn settle(&self, tenant: &K, charged: u64, actual: u64) {
        self.scheduler.settle(tenant, charged, actual);
    }

    /// Gives a tenant a share of its own, from now on; see [`Scheduler::set_tenant_quantum`].
    pub fn set_tenant_quantum(&self, tenant: K, quantum: u64) {
        self.scheduler.set_tenant_quantum(tenant, quantum);
    }

    /// Pauses a tenant: none of its tasks is handed out until it is resumed.
    pub fn pause_tenant(&self, tenant: &K) {
        self.scheduler.pause_tenant(tenant);
    }

    /// Lets a tenant run again.
    pub fn resume_tenant(&self, tenant: &K) {
        self.scheduler.resume_tenant(tenant);
    }

    /// Returns the scheduler's counters and its present state.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats<K> {
        self.scheduler.stats()
    }

    /// Takes no more tasks and hands out the queued ones; after that, all callers get `Closed`.
    pub fn close_drain(&self) {
        self.scheduler.close_drain();
    }

    /// Takes no more tasks, drops the queued ones, and resolves all waiting futures.
    pub fn close_immediate(&self) {
        self.scheduler.close_immediate();
    }

    /// Closes in one way or the other.
    pub fn close_with_mode(&self, mode: CloseMode) {
        self.scheduler.close_with_mode(mode);
    }

    /// Returns whether the scheduler takes no more tasks.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.scheduler.is_closed()
    }
}

impl<T, K> From<Arc<Scheduler<T, K>>> for AsyncScheduler<T, K> {
    fn from(scheduler: Arc<Scheduler<T, K>>) -> Self {
        Self { scheduler }
    }
}

impl<T, K> Clone for AsyncScheduler<T, K> {
    fn clone(&self) -> Self {
        Self::from(Arc::clone(&self.scheduler))
    }
}

impl<T, K> fmt::Debug for AsyncScheduler<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scheduler.fmt(f)
    }
}
