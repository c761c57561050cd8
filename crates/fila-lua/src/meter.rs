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

/// If checks are this far apart, the thread was most likely not running: machines are busy, and containers are stopped
/// for tens of milliseconds when they have used their share. That is not the script's fault.
const STALL: Duration = Duration::from_millis(2);

/// How many times its limit a call is forgiven at most, since a script can contrive instructions that are as slow.
const FORGIVEN_FACTOR: u32 = 4;

/// Longer limits count as this long, so that no sum of times overflows.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
pub(crate) struct Meter {
    checked: Cell<Instant>,
    deadline: Cell<Instant>,
    /// What stalls may still put off the deadline by.
    forgiving: Cell<Duration>,
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
            forgiving: Cell::new(Duration::ZERO),
            stop: Cell::new(None),
            instructions: Cell::new(0),
            wary: Cell::new(false),
        }
    }

    /// Begins a call that may take so long.
    pub(crate) fn begin(&self, now: Instant, timeout: Duration) {
        let timeout = timeout.min(TIMEOUT_MAX);
        self.checked.set(now);
        self.deadline.set(now + timeout);
        self.forgiving.set(timeout * FORGIVEN_FACTOR);
        self.stop.set(None);
        self.instructions.set(0);
    }

    /// Counts instructions that have been executed.
    pub(crate) fn count(&self, instructions: u32) {
        let before = self.instructions.get();
        self.instructions.set(before + u64::from(instructions));
    }

    /// Returns whether to go on, and whether the time since the last check was suspiciously long.
    pub(crate) fn pace(&self, now: Instant) -> Result<Pace, Stop> {
        if let Some(stop) = self.stop.get() {
            return Err(stop);
        }
        let since = now.saturating_duration_since(self.checked.replace(now));
        if since > STALL {
            let forgiven = since.min(self.forgiving.get());
            self.forgiving.set(self.forgiving.get() - forgiven);
            self.deadline.set(self.deadline.get() + forgiven);
        }
        if now > self.deadline.get() {
            return Err(self.stop(Stop::Time));
        }
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
        self.pace(Instant::now()).map(|_| ())
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

    const LIMIT: Duration = Duration::from_millis(10);

    #[test]
    fn time_is_up_after_the_limit() {
        let meter = Meter::new();
        let start = Instant::now();
        meter.begin(start, LIMIT);
        for step in 1..=10 {
            let now = start + Duration::from_millis(step);
            assert_eq!(meter.pace(now), Ok(Pace::Slow));
        }
        let late = start + LIMIT + Duration::from_nanos(1);
        assert_eq!(meter.pace(late), Err(Stop::Time));
    }

    #[test]
    fn a_stall_is_not_held_against_the_script() {
        let meter = Meter::new();
        let start = Instant::now();
        meter.begin(start, LIMIT);
        let stalled = Duration::from_millis(30);
        assert_eq!(meter.pace(start + stalled), Ok(Pace::Slow));
        let mut now = start + stalled;
        while meter.pace(now).is_ok() {
            now += Duration::from_micros(100);
        }
        assert_eq!(now, start + stalled + LIMIT + Duration::from_micros(100));
    }

    #[test]
    fn forgiveness_ends_within_five_limits() {
        let meter = Meter::new();
        let start = Instant::now();
        meter.begin(start, LIMIT);
        let mut now = start;
        while meter.pace(now).is_ok() {
            now += Duration::from_millis(3);
        }
        assert!(now <= start + LIMIT * (1 + FORGIVEN_FACTOR) + Duration::from_millis(3));
    }

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
