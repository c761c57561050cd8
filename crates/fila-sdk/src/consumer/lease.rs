//! The client's side of a lease: shared between a delivery and the task that extends it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether this consumer still holds a lease, and whether a handler has begun.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    is_begun: AtomicBool,
    is_lost: AtomicBool,
    lost: Notify,
}

impl Lease {
    /// Notes that a handler has begun.
    pub(crate) fn begin(&self) {
        self.is_begun.store(true, Ordering::Release);
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Acquire)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Marks the lease as lost.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        self.lost.notify_waiters();
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lost(&self) {
        let lost = self.lost.notified();
        // A loss from here on wakes this future.
        if !self.is_lost() {
            lost.await;
        }
    }
}
