//! The consumers that wait for work.
//!
//! # Why no wake-up is lost
//! A consumer takes a seat while it holds the ring's lock and has seen that no tenant may run. A producer that
//! puts a lane into the ring holds the same lock. Either it comes first, and the consumer sees the work; or it
//! comes second, and it sees the consumer. A producer that adds to a lane in the ring holds the lock of the
//! lane's shard, which was also held when the lane entered the ring: it sees every consumer that waited then,
//! and no consumer can have taken a seat since without finding the lane empty.
//!
//! Closing stores the new phase first and wakes all consumers second; a consumer takes a seat first and reads
//! the phase second. The lock of the queue orders the two.

use std::task::Waker;

use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::wait_queue::{Ticket, WaitQueue};

#[derive(Debug)]
pub(crate) struct Consumers {
    queue: Mutex<(WaitQueue, Ticket)>,
    /// The number of waiting consumers, so that callers need no lock when it is zero. Changes under the lock.
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

    /// Wakes all consumers, because there will be no more work.
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
