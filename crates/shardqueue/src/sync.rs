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
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
