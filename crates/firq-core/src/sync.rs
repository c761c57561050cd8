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
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
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
pub(crate) fn try_lock<T>(_: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    None
}

/// Keeps a value on cache lines of its own, so that two of them are never invalidated together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

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
