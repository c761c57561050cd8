//! The client's side of a lease: shared between a delivery and the task that keeps it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether a lease is still ours.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    is_lost: AtomicBool,
    lost: Notify,
}

impl Lease {
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Says that it is ours no longer.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        self.lost.notify_waiters();
    }

    /// Waits until it is ours no longer.
    pub(crate) async fn lost(&self) {
        let lost = self.lost.notified();
        // Whoever loses it from here on wakes us.
        if !self.is_lost() {
            lost.await;
        }
    }
}
