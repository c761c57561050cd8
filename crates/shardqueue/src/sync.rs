//! The primitives that the crate synchronises with: those of `std`, or loom's when it explores schedules.
//!
//! No code of a user runs while one of our locks is held, so a panic under a lock is a bug of ours; what the
//! lock protects is changed in steps that cannot fail, and poison is ignored.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

use std::sync::PoisonError;

/// Locks a mutex, whether or not a thread has panicked while it held it.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(all(test, not(loom)))]
    counted::count();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many locks a thread takes, for tests of the cost of a job.
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
