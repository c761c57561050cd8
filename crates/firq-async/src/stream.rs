//! Tasks as a stream.

use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use firq_core::{Scheduler, Task, TenantKey, Waiter};
use futures_core::Stream;

use crate::dequeue::poll_next;

/// The tasks of a scheduler in the order of service, with their tenants. Made by
/// [`tasks`](crate::AsyncScheduler::tasks).
///
/// Ends when the scheduler is closed. Dropping it, or a future of its next item, loses no task.
#[must_use = "streams do nothing unless polled"]
pub struct Tasks<T, K = TenantKey> {
    scheduler: Arc<Scheduler<T, K>>,
    waiter: Waiter,
}

impl<T, K> Tasks<T, K> {
    pub(crate) const fn new(scheduler: Arc<Scheduler<T, K>>) -> Self {
        let waiter = Waiter::new();
        Self { scheduler, waiter }
    }
}

impl<T, K: Hash + Eq + Clone> Stream for Tasks<T, K> {
    type Item = (K, Task<T>);

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { scheduler, waiter } = self.get_mut();
        let next = ready!(poll_next(scheduler, context, waiter));
        Poll::Ready(next.into_task())
    }
}

impl<T, K> fmt::Debug for Tasks<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}
