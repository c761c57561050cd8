//! The primitives that the crate synchronises with: those of `std`, or loom's when it explores schedules.
//!
//! No code of a user runs while one of our locks is held, apart from `Hash`, `Eq` and `Clone` of a tenant's
//! key. If one of those panics, the protected state is still consistent, so poison is ignored.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::TryLockError;

/// Locks a mutex, whether or not a thread has panicked while it held it.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(all(test, not(loom)))]
    counted::count();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex if it is free.
#[cfg(not(loom))]
#[inline]
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(test)]
    counted::count();
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Never succeeds: loom's own `try_lock` waits, which is a deadlock where the real one is not. The models
/// explore the path that follows a failure.
#[cfg(loom)]
fn try_lock<T>(_: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    None
}

/// How often a thread yields to the threads that wait for its lock: long enough for one that sleeps to wake.
const YIELDS: u32 = 256;

/// How often a thread that found a lock taken looks again before it sleeps.
const LOOKS: u32 = if cfg!(loom) { 0 } else { 4 };

/// How long it stays away from the lock before each look, in spins: some 10 µs.
const SPINS: u32 = 256;

/// A mutex that a thread with a lot to do takes many times in a row, and lets others have in between.
///
/// A mutex is not fair: a thread that releases it and takes it again at once keeps others out, as they need longer to wake.
///
/// That has a good side, and a thread that finds the mutex taken stays away from it for a while. Two threads that take
/// turns move all that the mutex protects from one core's cache to the other's with every turn, which takes several times
/// as long as their work; within a while, the other thread takes dozens of turns with a warm cache. And a thread that does
/// not sleep need not be woken.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    mutex: Mutex<T>,
    /// How many threads found the mutex taken and still wait. No more than a hint.
    waiting: std::sync::atomic::AtomicU32,
}

impl<T> Gate<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            mutex: Mutex::new(value),
            waiting: std::sync::atomic::AtomicU32::new(0),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        match try_lock(&self.mutex) {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    /// Locks the mutex if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        try_lock(&self.mutex)
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.look_again().unwrap_or_else(|| lock(&self.mutex));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Stays away from the mutex for a while and locks it if it is free then, some times.
    fn look_again(&self) -> Option<MutexGuard<'_, T>> {
        (0..LOOKS).find_map(|_| {
            (0..SPINS).for_each(|_| core::hint::spin_loop());
            try_lock(&self.mutex)
        })
    }

    /// Lets a thread that waits for the mutex go first, if there is one. The caller does not hold it.
    pub(crate) fn make_way(&self) {
        for _ in 0..YIELDS {
            if cfg!(loom) || self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Keeps a value on cache lines of its own, so that two of them are never invalidated together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_is_counted_until_it_goes_first() {
        let gate = Gate::new(0);
        gate.make_way(); // at once, since no thread waits
        std::thread::scope(|scope| {
            let guard = gate.lock();
            let other = scope.spawn(|| *gate.lock() += 1);
            while gate.waiting.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(guard);
            gate.make_way();
            other.join().unwrap();
        });
        assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(*gate.lock(), 1);
    }
}

/// How many locks a thread takes, for tests of the cost of a call.
#[cfg(all(test, not(loom)))]
pub(crate) mod counted {
    use std::cell::Cell;

    thread_local! {
        static TAKEN: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        TAKEN.set(TAKEN.get() + 1);
    }

    /// Returns how many locks this thread has taken while `f` ran.
    pub(crate) fn locks(f: impl FnOnce()) -> u64 {
        let before = TAKEN.get();
        f();
        TAKEN.get() - before
    }
}
