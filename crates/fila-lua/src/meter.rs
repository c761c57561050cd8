//! What a call may take, and whether that is used up.
//!
//! One [`Meter`] belongs to one VM. It is asked by the hook of the VM (every few instructions and at every call), by
//! each library function that can work for long, and by the pattern matcher.
//!
//! **Always holds.** A verdict is final: once a call is to stop, every question is answered so, whatever the script
//! does with the errors that it catches, until the next call begins.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::pattern::Budget;

/// Why a call has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    #[error("the script ran for too long")]
    Time,
    #[error("the script used too much memory")]
    Memory,
}

/// If checks are this far apart, instructions are slow, and each is checked.
const SLOW: Duration = Duration::from_micros(500);

#[derive(Debug)]
pub(crate) struct Meter {
    checked: Cell<Instant>,
    deadline: Cell<Instant>,
    stop: Cell<Option<Stop>>,
    instructions: Cell<u64>,
    /// Whether every instruction is checked.
    wary: Cell<bool>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            checked: Cell::new(now),
            deadline: Cell::new(now),
            stop: Cell::new(None),
            instructions: Cell::new(0),
            wary: Cell::new(false),
        }
    }

    /// Begins a call that may take so long.
    pub(crate) fn begin(&self, now: Instant, timeout: Duration) {
        self.checked.set(now);
        self.deadline.set(now + timeout);
        self.stop.set(None);
        self.instructions.set(0);
    }

    /// Counts instructions that have been executed.
    pub(crate) fn count(&self, instructions: u32) {
        let before = self.instructions.get();
        self.instructions.set(before + u64::from(instructions));
    }

    /// Returns whether to go on, and whether the time since the last check was suspiciously long.
    pub(crate) fn pace(&self) -> Result<Pace, Stop> {
        if let Some(stop) = self.stop.get() {
            return Err(stop);
        }
        let now = Instant::now();
        if now > self.deadline.get() {
            return Err(self.stop(Stop::Time));
        }
        let since = now - self.checked.replace(now);
        Ok(if since > SLOW { Pace::Slow } else { Pace::Fast })
    }

    /// Ends the call for this reason, unless there was one before.
    pub(crate) fn stop(&self, why: Stop) -> Stop {
        let why = self.stop.get().unwrap_or(why);
        self.stop.set(Some(why));
        why
    }

    /// Returns why the call has to stop, if it has.
    pub(crate) const fn stopped(&self) -> Option<Stop> {
        self.stop.get()
    }

    pub(crate) fn set_wary(&self, wary: bool) {
        self.wary.set(wary);
    }

    pub(crate) const fn is_wary(&self) -> bool {
        self.wary.get()
    }

    pub(crate) const fn instructions(&self) -> u64 {
        self.instructions.get()
    }
}

impl Budget for Meter {
    fn check(&self) -> Result<(), Stop> {
        self.pace().map(|_| ())
    }
}

/// How far apart two checks were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Fast,
    Slow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_final_until_the_next_call() {
        let meter = Meter::new();
        meter.begin(Instant::now(), Duration::from_secs(3600));
        assert_eq!(meter.check(), Ok(()));
        assert_eq!(meter.stop(Stop::Memory), Stop::Memory);
        assert_eq!(meter.stop(Stop::Time), Stop::Memory);
        assert_eq!(meter.check(), Err(Stop::Memory));
        meter.begin(Instant::now(), Duration::from_secs(3600));
        assert_eq!(meter.check(), Ok(()));
    }
}
