//! A waker for a thread, which sleeps until it is woken or a moment has come.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

use crate::clock::Clock;

#[derive(Debug)]
pub(crate) struct Parker {
    signal: Arc<Signal>,
}

impl Parker {
    /// Returns a parker for the calling thread.
    pub(crate) fn new() -> Self {
        Self {
            signal: Arc::new(Signal::new()),
        }
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.signal))
    }

    /// Sleeps until the waker was called since the last time, or until a moment.
    pub(crate) fn park(&self, clock: &dyn Clock, until: Option<Instant>) {
        self.signal.wait(clock, until);
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}

#[cfg(not(loom))]
use real::ThreadSignal as Signal;

#[cfg(not(loom))]
mod real {
    use std::thread::{self, Thread};
    use std::time::Instant;

    use crate::clock::Clock;
    use crate::sync::{AtomicBool, Ordering};

    #[derive(Debug)]
    pub(super) struct ThreadSignal {
        thread: Thread,
        is_raised: AtomicBool,
    }

    impl ThreadSignal {
        pub(super) fn new() -> Self {
            Self {
                thread: thread::current(),
                is_raised: AtomicBool::new(false),
            }
        }

        pub(super) fn raise(&self) {
            self.is_raised.store(true, Ordering::Release);
            self.thread.unpark();
        }

        pub(super) fn wait(&self, clock: &dyn Clock, until: Option<Instant>) {
            while !self.is_raised.swap(false, Ordering::Acquire) {
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
use model::ModelSignal as Signal;

/// The same with a condition variable: loom's `unpark` also wakes threads that wait for a lock. Time does
/// not pass in a model.
#[cfg(loom)]
mod model {
    use std::time::Instant;

    use loom::sync::Condvar;

    use crate::clock::Clock;
    use crate::sync::{Mutex, lock};

    #[derive(Debug)]
    pub(super) struct ModelSignal {
        is_raised: Mutex<bool>,
        changed: Condvar,
    }

    impl ModelSignal {
        pub(super) fn new() -> Self {
            Self {
                is_raised: Mutex::new(false),
                changed: Condvar::new(),
            }
        }

        pub(super) fn raise(&self) {
            *lock(&self.is_raised) = true;
            self.changed.notify_one();
        }

        pub(super) fn wait(&self, _: &dyn Clock, _: Option<Instant>) {
            let mut is_raised = lock(&self.is_raised);
            while !*is_raised {
                is_raised = self.changed.wait(is_raised).expect("no model panics here");
            }
            *is_raised = false;
        }
    }
}
