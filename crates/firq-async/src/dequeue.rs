//! Futures that wait for work.
//!
//! Each holds a seat in the scheduler's wait queue, and nothing else. They take part in Tokio's cooperative
//! scheduling: a task that always finds work yields now and then, so that other tasks on its thread run, too.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use firq_core::{DequeueResult, Scheduler, Task, TenantKey, Waiter};
use tokio::task::coop;

/// Takes the next task of `scheduler` as [`Scheduler::poll_dequeue`] does, within the budget of the Tokio
/// task that runs it.
#[inline]
pub(crate) fn poll_next<T, K: Hash + Eq + Clone>(
    scheduler: &Scheduler<T, K>,
    context: &mut Context<'_>,
    waiter: &mut Waiter,
) -> Poll<DequeueResult<T, K>> {
    let budget = ready!(coop::poll_proceed(context));
    let next = ready!(scheduler.poll_dequeue(context, waiter));
    budget.made_progress();
    Poll::Ready(next)
}

/// The next task, once there is one. Made by
/// [`dequeue_async`](crate::AsyncScheduler::dequeue_async).
#[must_use = "futures do nothing unless polled"]
pub struct Dequeue<'a, T, K = TenantKey> {
    scheduler: &'a Scheduler<T, K>,
    waiter: Waiter,
}

impl<'a, T, K> Dequeue<'a, T, K> {
    pub(crate) const fn new(scheduler: &'a Scheduler<T, K>) -> Self {
        let waiter = Waiter::new();
        Self { scheduler, waiter }
    }
}

impl<T, K: Hash + Eq + Clone> Future for Dequeue<'_, T, K> {
    type Output = DequeueResult<T, K>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { scheduler, waiter } = self.get_mut();
        poll_next(scheduler, context, waiter)
    }
}

impl<T, K> fmt::Debug for Dequeue<'_, T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dequeue")
            .field("waiter", &self.waiter)
            .finish_non_exhaustive()
    }
}

/// Some tasks, once there is one. Made by
/// [`dequeue_batch_async`](crate::AsyncScheduler::dequeue_batch_async).
#[must_use = "futures do nothing unless polled"]
pub struct DequeueBatch<'a, T, K = TenantKey> {
    next: Dequeue<'a, T, K>,
    max: usize,
    tasks: &'a mut Vec<(K, Task<T>)>,
}

impl<'a, T, K> DequeueBatch<'a, T, K> {
    pub(crate) const fn new(
        scheduler: &'a Scheduler<T, K>,
        max: usize,
        tasks: &'a mut Vec<(K, Task<T>)>,
    ) -> Self {
        let next = Dequeue::new(scheduler);
        Self { next, max, tasks }
    }
}

impl<T, K: Hash + Eq + Clone> Future for DequeueBatch<'_, T, K> {
    type Output = usize;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<usize> {
        let Self { next, max, tasks } = self.get_mut();
        if *max == 0 {
            return Poll::Ready(0);
        }
        let Some(first) = ready!(Pin::new(&mut *next).poll(context)).into_task() else {
            return Poll::Ready(0);
        };
        tasks.push(first);
        Poll::Ready(1 + next.scheduler.dequeue_batch(*max - 1, tasks))
    }
}

impl<T, K> fmt::Debug for DequeueBatch<'_, T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DequeueBatch")
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}
