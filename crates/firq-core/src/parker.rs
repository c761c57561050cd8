//! A thread as a waker: it sleeps until it is called or its time has come.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

use crate::clock::Clock;

#[derive(Debug)]
pub(crate) struct Parker {
    bell: Arc<Bell>,
}

impl Parker {
    /// Returns a parker for the calling thread.
    pub(crate) fn new() -> Self {
        Self {
            bell: Arc::new(Bell::new()),
        }
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }

    /// Sleeps until the waker was called since the last time, or until a moment.
    pub(crate) fn park(&self, clock: &dyn Clock, until: Option<Instant>) {
        self.bell.wait(clock, until);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(not(loom))]
use real::Bell;

#[cfg(not(loom))]
mod real {
    use std::thread::{self, Thread};
    use std::time::Instant;

    use crate::clock::Clock;
    use crate::sync::{AtomicBool, Ordering};

    #[derive(Debug)]
    pub(super) struct Bell {
        thread: Thread,
        has_rung: AtomicBool,
    }

    impl Bell {
        pub(super) fn new() -> Self {
            Self {
                thread: thread::current(),
                has_rung: AtomicBool::new(false),
            }
        }

        pub(super) fn ring(&self) {
            self.has_rung.store(true, Ordering::Release);
            self.thread.unpark();
        }

        pub(super) fn wait(&self, clock: &dyn Clock, until: Option<Instant>) {
            while !self.has_rung.swap(false, Ordering::Acquire) {
                match until {
                    None => thread::park(),
                    Some(until) if clock.now() < until => clock.park_until(until),
                    Some(_) => return,
                }
            }
        }
    }
}

#[cfg(loom)]
use model::Bell;

/// The same with a condition variable: loom's `unpark` also wakes threads that wait for a lock. Time does
/// not pass in a model.
#[cfg(loom)]
mod model {
    use std::time::Instant;

    use loom::sync::Condvar;

    use crate::clock::Clock;
    use crate::sync::{Mutex, lock};

    #[derive(Debug)]
    pub(super) struct Bell {
        has_rung: Mutex<bool>,
        changed: Condvar,
    }

    impl Bell {
        pub(super) fn new() -> Self {
            Self {
                has_rung: Mutex::new(false),
                changed: Condvar::new(),
            }
        }

        pub(super) fn ring(&self) {
            *lock(&self.has_rung) = true;
            self.changed.notify_one();
        }

        pub(super) fn wait(&self, _: &dyn Clock, _: Option<Instant>) {
            let mut has_rung = lock(&self.has_rung);
            while !*has_rung {
                has_rung = self.changed.wait(has_rung).expect("no model panics here");
            }
            *has_rung = false;
        }
    }
}
