//! The consumers that wait for work.
//!
//! # Why no wake-up is lost
//! A consumer takes a seat while it holds the ring's lock and has seen that no tenant may run. Whoever puts
//! a lane into the ring holds the same lock, so it comes either before, and the consumer sees the work, or
//! after, and it sees the consumer. Whoever adds to a lane that is in the ring holds the lane's shard, which
//! was held when the lane was put there: it sees every consumer that waited then, and none can have sat down
//! since without finding the ring, and so the lane, empty.
//!
//! Closing stores the new phase first and calls everybody second; a consumer sits down first and looks at
//! the phase second. The lock of the queue orders the two.

use std::task::Waker;

use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::wait_queue::{Ticket, WaitQueue};

#[derive(Debug)]
pub(crate) struct Consumers {
    queue: Mutex<(WaitQueue, Ticket)>,
    /// How many wait, for those who need not look closer if it is none. Changes under the lock.
    waiting: AtomicU64,
    /// How many have been called so far.
    calls: AtomicU64,
}

impl Consumers {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::new((WaitQueue::default(), 0)),
            waiting: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        }
    }

    /// Takes a seat. The caller holds the ring's lock and has seen that there is no work.
    pub(crate) fn join(&self, waker: Waker) -> Ticket {
        let mut guard = lock(&self.queue);
        let (queue, tickets) = &mut *guard;
        *tickets += 1;
        queue.join(*tickets, waker);
        self.waiting
            .store(queue.waiting() as u64, Ordering::Relaxed);
        *tickets
    }

    /// Gives up a seat. Returns whether there was one: if not, its owner has been called.
    pub(crate) fn leave(&self, ticket: Ticket) -> bool {
        let mut guard = lock(&self.queue);
        let waker = guard.0.leave(ticket);
        self.waiting
            .store(guard.0.waiting() as u64, Ordering::Relaxed);
        drop(guard); // before the waker
        waker.is_some()
    }

    /// Calls as many as there are tasks for, or as wait.
    #[inline]
    pub(crate) fn call(&self, tasks: u64) {
        for _ in 0..tasks {
            if self.waiting.load(Ordering::Relaxed) == 0 || !self.call_one() {
                return;
            }
        }
    }

    /// Calls everybody, because there will be no more work.
    pub(crate) fn call_all(&self) {
        while self.call_one() {}
    }

    /// Returns how many consumers have been called so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns how many consumers wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    #[cold]
    fn call_one(&self) -> bool {
        let mut guard = lock(&self.queue);
        let waker = guard.0.pop();
        self.waiting
            .store(guard.0.waiting() as u64, Ordering::Relaxed);
        drop(guard);
        let Some(waker) = waker else { return false };
        self.calls.fetch_add(1, Ordering::Relaxed);
        waker.wake();
        true
    }
}
