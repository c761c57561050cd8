//! The times of a scheduler, and how exact they have to be.
//!
//! Reading the clock takes longer than queueing a task. So where the clock is the [machine's](Precision::Coarse), an exact
//! time is read only for what depends on one: a deadline, and the queue times of a sample of the tasks. All others are
//! stamped by the kernel's coarse clock, which is read from memory.
//!
//! # Invariants
//! - A coarse time is never ahead of the exact one, and behind it by at most a tick of the kernel.
//! - A clock of the user is read before a lock is taken, never under it.

use std::time::Instant;

use crate::clock::{Clock, Precision};
use crate::node::{NEVER, Nanos};

/// The measure of time: nanoseconds since the scheduler was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) epoch: Instant,
    /// What a clock that the coarse one never overtakes showed at the epoch, if the coarse one is used.
    coarse: Option<Nanos>,
}

/// The present, as exactly as it has been looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// No later than the present.
    pub(crate) coarse: Nanos,
    exact: Option<Nanos>,
}

impl Times {
    pub(crate) fn new(clock: &dyn Clock) -> Self {
        let epoch = clock.now();
        let coarse = match clock.precision() {
            Precision::Coarse => machine::monotonic(),
            Precision::Exact => None,
        };
        Self { epoch, coarse }
    }

    /// Returns whether every task is stamped exactly.
    pub(crate) const fn are_exact(&self) -> bool {
        self.coarse.is_none()
    }

    /// Returns the present, exactly if there is no coarse clock.
    #[inline]
    pub(crate) fn look(&self, clock: &dyn Clock) -> Moment {
        match self.coarse {
            Some(start) => Moment {
                coarse: machine::coarse().saturating_sub(start),
                exact: None,
            },
            None => self.look_exactly(clock),
        }
    }

    /// Returns a moment that is looked at when it is needed, if that may be under a lock.
    #[inline]
    pub(crate) fn look_later(&self, clock: &dyn Clock) -> Moment {
        match self.coarse {
            Some(_) => Moment {
                coarse: 0,
                exact: None,
            },
            None => self.look_exactly(clock),
        }
    }

    fn look_exactly(&self, clock: &dyn Clock) -> Moment {
        let now = nanos(self.epoch, clock.now());
        Moment {
            coarse: now,
            exact: Some(now),
        }
    }
}

impl Moment {
    /// Returns whether the exact time is known.
    #[inline]
    pub(crate) const fn is_exact(&self) -> bool {
        self.exact.is_some()
    }

    /// Returns the exact time. Unless it is known already, the clock is the machine's.
    #[inline]
    pub(crate) fn exactly(&mut self, times: &Times) -> Nanos {
        match self.exact {
            Some(now) => now,
            None => self.look_again(times),
        }
    }

    #[cold]
    fn look_again(&mut self, times: &Times) -> Nanos {
        let now = nanos(times.epoch, Instant::now());
        self.exact = Some(now);
        now
    }
}

/// Returns the nanoseconds from `epoch` to `moment`.
pub(crate) fn nanos(epoch: Instant, moment: Instant) -> Nanos {
    let since = moment.saturating_duration_since(epoch);
    let whole = since.as_secs().saturating_mul(1_000_000_000);
    whole
        .saturating_add(u64::from(since.subsec_nanos()))
        .min(NEVER - 1)
}

/// The kernel's clocks. [`Instant`] shows the monotonic one.
#[cfg(all(target_os = "linux", not(loom)))]
mod machine {
    use rustix::time::{ClockId, clock_gettime};

    use crate::node::Nanos;

    pub(super) fn monotonic() -> Option<Nanos> {
        Some(read(ClockId::Monotonic))
    }

    #[inline]
    pub(super) fn coarse() -> Nanos {
        read(ClockId::MonotonicCoarse)
    }

    #[inline]
    fn read(clock: ClockId) -> Nanos {
        let time = clock_gettime(clock);
        let whole = time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000);
        whole.wrapping_add(time.tv_nsec.cast_unsigned())
    }
}

/// There is no coarse clock, or a model must not see the time pass.
#[cfg(not(all(target_os = "linux", not(loom))))]
mod machine {
    use crate::node::Nanos;

    pub(super) fn monotonic() -> Option<Nanos> {
        None
    }

    pub(super) fn coarse() -> Nanos {
        0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{ManualClock, PreciseClock, SystemClock};

    #[test]
    fn a_coarse_time_is_never_ahead_and_not_far_behind() {
        let times = Times::new(&SystemClock);
        let until = Instant::now() + Duration::from_millis(30);
        let mut behind = 0;
        while Instant::now() < until {
            let mut moment = times.look(&SystemClock);
            let coarse = moment.coarse;
            let exact = moment.exactly(&times);
            assert!(coarse <= exact, "{coarse} is ahead of {exact}");
            behind = behind.max(coarse);
        }
        // Ticks are at most 10 ms apart; without a coarse clock the time is the exact one.
        assert!(behind > 0, "the coarse clock goes on");
    }

    #[test]
    fn a_clock_of_the_user_is_read_at_once_and_only_once() {
        let clock = ManualClock::new();
        let times = Times::new(&clock);
        let mut moment = times.look_later(&clock);
        assert!(moment.is_exact());
        clock.advance(Duration::from_secs(1));
        assert_eq!(moment.exactly(&times), 0);
        assert_eq!(times.look(&clock).coarse, 1_000_000_000);
    }

    #[test]
    fn a_precise_clock_is_read_exactly() {
        let times = Times::new(&PreciseClock);
        assert!(times.look(&PreciseClock).is_exact());
    }
}
