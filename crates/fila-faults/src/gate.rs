//! Where syncs wait while the disk is slow.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A gate that is open, unless a test holds it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    held: bool,
    waiting: usize,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes through, as soon as the gate is open.
    pub(crate) fn pass(&self) {
        let mut state = self.state();
        if !state.held {
            return;
        }
        state.waiting += 1;
        self.changed.notify_all();
        while state.held {
            state = self.wait(state, Duration::MAX);
        }
        state.waiting -= 1;
    }

    pub(crate) fn set_held(&self, held: bool) {
        self.state().held = held;
        self.changed.notify_all();
    }

    /// Waits until `count` threads wait at the gate; false if they have not come in time.
    pub(crate) fn await_waiting(&self, count: usize, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        while state.waiting < count {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.wait(state, left);
        }
        true
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, GateState>,
        most: Duration,
    ) -> MutexGuard<'a, GateState> {
        let woken = self.changed.wait_timeout(state, most);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}
