//! How much room there is, and the callers that wait for it.
//!
//! The number of queued tasks is one atomic word, reserved before a task is inserted and released after it
//! has been taken out: it is never below the true number and never above the maximum. The word also
//! says whether a caller waits and whether the scheduler is closed. Both are thereby ordered with every
//! reservation and release: a release that does not see the waiter was seen by the waiter, and after closing
//! nothing is reserved any more, so a count of zero is final.
//!
//! With one shard, there is one lock for everything, and a caller holds it in any case when it reserves or releases. The
//! word then changes under that lock alone, with a plain load and store. The waiters' flag is beside it, because a caller
//! that gives up its seat clears the flag without that lock; it is set under it.
//!
//! Waiting for room in a lane works the same way under the lock of the lane's shard: the waiter sets the
//! lane's flag while the lane is full, and a thread that takes a task out sees the flag.
//!
//! The lock of the seats is taken last, also while a shard's lock is held.

use std::collections::HashMap;
use std::task::Waker;

use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Padded, lock};
use crate::wait_queue::{Ticket, WaitQueue};

const CLOSED: u64 = 1 << 63;
const AWAITED: u64 = 1 << 62;
const COUNT: u64 = AWAITED - 1;

/// The kind of room that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Room {
    /// In the scheduler.
    Global,
    /// In a lane of a shard.
    Tenant {
        /// The shard.
        shard: u32,
        /// The lane.
        lane: u32,
    },
    /// In a group of tenants.
    Group {
        /// Its number.
        group: u32,
    },
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Closed,
}

/// The room that was given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    /// The word before that.
    before: u64,
    tasks: u64,
}

/// Whether anything is queued after a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    Some,
    /// Nothing, and nothing will be: the scheduler is closed.
    NothingEver,
}

/// The locks under which room is reserved and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locking {
    /// One, which is held by every caller that reserves, releases, closes or begins to wait.
    One,
    /// Several, or none.
    Many,
}

#[derive(Debug)]
pub(crate) struct Capacity {
    word: Padded<AtomicU64>,
    /// Whether a caller waits, where there is one lock. Changes under the lock of the seats.
    awaited: AtomicBool,
    max: u64,
    locking: Locking,
    seats: Mutex<Seats>,
}

#[derive(Debug, Default)]
struct Seats {
    global: WaitQueue,
    /// For room in lanes and groups.
    tenants: HashMap<Room, WaitQueue>,
    tickets: Ticket,
}

impl Capacity {
    pub(crate) fn new(max: usize, locking: Locking) -> Self {
        Self {
            word: Padded(AtomicU64::new(0)),
            awaited: AtomicBool::new(false),
            max: max as u64,
            locking,
            seats: Mutex::default(),
        }
    }

    pub(crate) const fn locking(&self) -> Locking {
        self.locking
    }

    /// Takes room for one task. The caller holds the lock, if there is one.
    #[inline]
    pub(crate) fn reserve(&self) -> Result<(), Refused> {
        let mut word = self.word.0.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                return Err(Refused::Closed);
            }
            if word & COUNT >= self.max {
                return Err(Refused::Full);
            }
            if self.locking == Locking::One {
                self.word.0.store(word + 1, Ordering::Release);
                return Ok(());
            }
            match self.word.0.compare_exchange_weak(
                word,
                word + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(current) => word = current,
            }
        }
    }

    /// Gives room back. The caller holds the lock, if there is one, and passes the result to
    /// [`announce`](Self::announce) when it holds none.
    #[inline]
    pub(crate) fn release(&self, tasks: u64) -> Released {
        let before = match self.locking {
            Locking::One => {
                let before = self.word.0.load(Ordering::Relaxed);
                self.word.0.store(before - tasks, Ordering::Release);
                match self.awaited.load(Ordering::Relaxed) {
                    true => before | AWAITED,
                    false => before,
                }
            }
            Locking::Many => self.word.0.fetch_sub(tasks, Ordering::AcqRel),
        };
        Released { before, tasks }
    }

    /// Wakes callers that wait for room that was given back. The caller holds no lock.
    #[inline]
    pub(crate) fn announce(&self, released: Released) -> Remaining {
        let Released { before, tasks } = released;
        if before & (AWAITED | CLOSED) == 0 {
            return Remaining::Some;
        }
        if before & AWAITED != 0 {
            (0..tasks).for_each(|_| self.call(Room::Global));
        }
        match (before & CLOSED != 0, before & COUNT == tasks) {
            (true, true) => Remaining::NothingEver,
            _ => Remaining::Some,
        }
    }

    /// Admits no more tasks, and returns the wakers of all waiting callers. The caller holds the lock, if there is one.
    #[must_use = "the callers wait"]
    pub(crate) fn close(&self) -> Vec<Waker> {
        self.word.0.fetch_or(CLOSED, Ordering::AcqRel); // under the lock, if there is one
        let mut wakers = Vec::new();
        let mut seats = lock(&self.seats);
        let Seats {
            global, tenants, ..
        } = &mut *seats;
        for queue in tenants.values_mut().chain([global]) {
            wakers.extend(std::iter::from_fn(|| queue.pop()));
        }
        tenants.clear();
        wakers
    }

    /// Returns how many tasks are queued or about to be.
    pub(crate) fn len(&self) -> u64 {
        self.word.0.load(Ordering::Acquire) & COUNT
    }

    pub(crate) const fn max(&self) -> u64 {
        self.max
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns whether nothing is queued, and tasks are still taken in.
    pub(crate) fn is_idle(&self) -> bool {
        self.word.0.load(Ordering::Acquire) & (CLOSED | COUNT) == 0
    }

    /// Returns whether nothing is queued, and nothing will be any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.word.0.load(Ordering::Acquire) & (CLOSED | COUNT) == CLOSED
    }

    /// Waits for room in the scheduler, unless there is some or the scheduler is closed. The caller holds the lock, if
    /// there is one.
    pub(crate) fn wait(&self, ticket: Option<Ticket>, waker: Waker) -> Option<Ticket> {
        let mut seats = lock(&self.seats);
        let word = match self.locking {
            Locking::One => {
                self.awaited.store(true, Ordering::Relaxed);
                self.word.0.load(Ordering::Relaxed)
            }
            Locking::Many => self.word.0.fetch_or(AWAITED, Ordering::AcqRel),
        };
        if word & CLOSED != 0 || word & COUNT < self.max {
            self.forget_waiters_if_none(&seats.global);
            return None;
        }
        let ticket = seats.ticket(ticket);
        seats.global.join(ticket, waker);
        Some(ticket)
    }

    /// Waits for room in a lane or a group. The caller holds the lock of the shard or the ring, and sets the flag of the
    /// lane or the group.
    pub(crate) fn wait_for_tenant(
        &self,
        room: Room,
        ticket: Option<Ticket>,
        waker: Waker,
    ) -> Option<Ticket> {
        let mut seats = lock(&self.seats);
        if self.is_closed() {
            return None;
        }
        let ticket = seats.ticket(ticket);
        let queue = seats.tenants.entry(room).or_default();
        queue.join(ticket, waker);
        Some(ticket)
    }

    /// Gives up a seat. Returns whether there was one: if not, its owner has been called.
    pub(crate) fn leave(&self, room: Room, ticket: Ticket) -> bool {
        let mut seats = lock(&self.seats);
        let waker = match room {
            Room::Global => {
                let waker = seats.global.leave(ticket);
                self.forget_waiters_if_none(&seats.global);
                waker
            }
            Room::Tenant { .. } | Room::Group { .. } => {
                let tenants = &mut seats.tenants;
                let waker = tenants.get_mut(&room).and_then(|queue| queue.leave(ticket));
                if tenants.get(&room).is_some_and(|queue| queue.waiting() == 0) {
                    tenants.remove(&room);
                }
                waker
            }
        };
        drop(seats); // before the waker
        waker.is_some()
    }

    /// Wakes the first caller that waits for this room. The caller holds no lock.
    #[cold]
    pub(crate) fn call(&self, room: Room) {
        let waker = match room {
            Room::Global => {
                let mut seats = lock(&self.seats);
                let waker = seats.global.pop();
                self.forget_waiters_if_none(&seats.global);
                waker
            }
            Room::Tenant { .. } | Room::Group { .. } => self.next_for(room).0,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the waker of the first caller that waits for room in a lane or a group, and whether more wait.
    pub(crate) fn next_for(&self, room: Room) -> (Option<Waker>, bool) {
        let mut seats = lock(&self.seats);
        let Some(queue) = seats.tenants.get_mut(&room) else {
            return (None, false);
        };
        let waker = queue.pop();
        let more = queue.waiting() > 0;
        if !more {
            seats.tenants.remove(&room);
        }
        (waker, more)
    }

    /// Clears the flag if no caller waits. The caller holds the lock of the seats.
    fn forget_waiters_if_none(&self, global: &WaitQueue) {
        if global.waiting() > 0 {
            return;
        }
        match self.locking {
            Locking::One => self.awaited.store(false, Ordering::Relaxed),
            Locking::Many => _ = self.word.0.fetch_and(!AWAITED, Ordering::AcqRel),
        }
    }
}

impl Seats {
    fn ticket(&mut self, kept: Option<Ticket>) -> Ticket {
        kept.unwrap_or_else(|| {
            self.tickets += 1;
            self.tickets
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BOTH: [Locking; 2] = [Locking::One, Locking::Many];

    fn release(capacity: &Capacity, tasks: u64) -> Remaining {
        capacity.announce(capacity.release(tasks))
    }

    #[test]
    fn room_is_taken_and_given_back() {
        for locking in BOTH {
            let capacity = Capacity::new(2, locking);
            assert_eq!(capacity.reserve(), Ok(()));
            assert_eq!(capacity.reserve(), Ok(()));
            assert_eq!(capacity.reserve(), Err(Refused::Full));
            assert_eq!(capacity.len(), 2);
            assert_eq!(release(&capacity, 2), Remaining::Some);
            assert_eq!(capacity.len(), 0);
        }
    }

    #[test]
    fn after_closing_the_last_release_is_final() {
        for locking in BOTH {
            let capacity = Capacity::new(5, locking);
            capacity.reserve().unwrap();
            capacity.reserve().unwrap();
            assert!(capacity.close().is_empty());
            assert_eq!(capacity.reserve(), Err(Refused::Closed));
            assert_eq!(release(&capacity, 1), Remaining::Some);
            assert_eq!(release(&capacity, 1), Remaining::NothingEver);
        }
    }

    #[test]
    fn no_producer_waits_for_room_that_is_there() {
        for locking in BOTH {
            let capacity = Capacity::new(1, locking);
            assert_eq!(capacity.wait(None, Waker::noop().clone()), None);
            capacity.reserve().unwrap();
            let ticket = capacity.wait(None, Waker::noop().clone()).unwrap();
            release(&capacity, 1);
            assert!(
                !capacity.leave(Room::Global, ticket),
                "the release called it"
            );
            assert_eq!(
                capacity.word.0.load(Ordering::Relaxed),
                0,
                "no flag is left behind"
            );
            assert!(!capacity.awaited.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn waiters_of_a_tenant_are_woken_for_that_tenant() {
        let capacity = Capacity::new(1, Locking::Many);
        let room = Room::Tenant { shard: 0, lane: 1 };
        let ticket = capacity
            .wait_for_tenant(room, None, Waker::noop().clone())
            .unwrap();
        let other = Room::Tenant { shard: 0, lane: 2 };
        assert!(capacity.next_for(other).0.is_none());
        let (waker, more) = capacity.next_for(room);
        assert!(waker.is_some() && !more);
        assert!(!capacity.leave(room, ticket));
        assert!(lock(&capacity.seats).tenants.is_empty());
    }
}
