//! Stops calls to a script that keeps failing.
//!
//! A pure state machine: its caller passes the time and the results of calls, and learns whether to make the next call.
//!
//! ```text
//!            threshold failures in a row                 cooldown over
//! Closed ─────────────────────────────────▶ Open ──────────────────────▶ HalfOpen
//!    ▲                                       ▲                             │  │
//!    │                                       └───────────── failure ───────┘  │
//!    └───────────────────────────────────────────────────── success ──────────┘
//! ```
//!
//! **Always holds.** While it is not closed, it admits at most one call per cooldown. If the result of that call never
//! arrives (the pool has abandoned its worker), it admits another one after the next cooldown.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Whether the breaker admits calls, and if not, until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// It admits calls.
    Closed {
        /// Failed calls since the last success.
        failures: u32,
    },
    /// It admits no calls.
    Open {
        /// When it admits one call.
        until: Instant,
    },
    /// It has admitted one call, whose result closes or opens it.
    HalfOpen {
        /// When it gives up on that call and admits another.
        until: Instant,
    },
}

/// Opens after failures in a row, and admits one call after a cooldown.
///
/// ```
/// use fila_lua::{Breaker, BreakerState};
/// use std::time::{Duration, Instant};
///
/// let mut breaker = Breaker::default();
/// let start = Instant::now();
/// for _ in 0..3 {
///     assert!(breaker.admits(start));
///     breaker.failed(start);
/// }
/// assert!(!breaker.admits(start));
/// assert!(breaker.admits(start + Duration::from_secs(10)));
/// breaker.succeeded();
/// assert_eq!(breaker.state(), BreakerState::Closed { failures: 0 });
/// ```
#[derive(Clone, Debug)]
pub struct Breaker {
    threshold: NonZeroU32,
    cooldown: Duration,
    state: BreakerState,
}

impl Breaker {
    /// Failures in a row that open a breaker by default.
    pub const THRESHOLD: NonZeroU32 = NonZeroU32::new(3).expect("not zero");

    /// How long a breaker stays open by default.
    pub const COOLDOWN: Duration = Duration::from_secs(10);

    /// Caps the cooldown, so that no sum of times overflows.
    const COOLDOWN_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Makes a closed breaker.
    pub fn new(threshold: NonZeroU32, cooldown: Duration) -> Self {
        let cooldown = cooldown.min(Self::COOLDOWN_MAX);
        Self {
            threshold,
            cooldown,
            state: BreakerState::Closed { failures: 0 },
        }
    }

    /// Returns whether to make a call now. If so, the caller must report its result.
    pub fn admits(&mut self, now: Instant) -> bool {
        match self.state {
            BreakerState::Closed { .. } => true,
            BreakerState::Open { until } | BreakerState::HalfOpen { until } if now >= until => {
                let until = now + self.cooldown;
                self.state = BreakerState::HalfOpen { until };
                true
            }
            BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => false,
        }
    }

    /// Records a call that succeeded.
    ///
    /// An open breaker ignores it: the call began before the breaker opened.
    pub fn succeeded(&mut self) {
        match self.state {
            BreakerState::Closed { .. } | BreakerState::HalfOpen { .. } => {
                self.state = BreakerState::Closed { failures: 0 };
            }
            BreakerState::Open { .. } => {}
        }
    }

    /// Records a call that failed, and returns whether that has opened the breaker.
    pub fn failed(&mut self, now: Instant) -> bool {
        let opens = match self.state {
            BreakerState::Closed { failures } => {
                let failures = failures.saturating_add(1);
                self.state = BreakerState::Closed { failures };
                failures >= self.threshold.get()
            }
            BreakerState::HalfOpen { .. } => true,
            // The call began before the breaker opened.
            BreakerState::Open { .. } => false,
        };
        if opens {
            let until = now + self.cooldown;
            self.state = BreakerState::Open { until };
        }
        opens
    }

    /// Closes the breaker, for a new script.
    pub const fn reset(&mut self) {
        self.state = BreakerState::Closed { failures: 0 };
    }

    /// Returns the present state.
    pub const fn state(&self) -> BreakerState {
        self.state
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new(Self::THRESHOLD, Self::COOLDOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOLDOWN: Duration = Breaker::COOLDOWN;

    fn open_at(now: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        assert!(!breaker.failed(now));
        assert!(!breaker.failed(now));
        assert!(breaker.failed(now));
        breaker
    }

    #[test]
    fn three_failures_in_a_row_open_it_for_ten_seconds() {
        let now = Instant::now();
        let mut breaker = open_at(now);
        let until = now + Duration::from_millis(10_000);
        assert_eq!(breaker.state(), BreakerState::Open { until });
        assert!(!breaker.admits(until - Duration::from_nanos(1)));
        assert!(breaker.admits(until));
    }

    #[test]
    fn a_success_in_between_starts_the_count_anew() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.failed(now);
            breaker.failed(now);
            breaker.succeeded();
        }
        assert!(breaker.admits(now));
    }

    #[test]
    fn half_open_lets_one_call_through() {
        let now = Instant::now();
        let mut breaker = open_at(now);
        let later = now + COOLDOWN;
        assert!(breaker.admits(later));
        assert!(!breaker.admits(later));
        assert!(matches!(breaker.state(), BreakerState::HalfOpen { .. }));
    }

    #[test]
    fn the_call_let_through_decides() {
        let now = Instant::now();
        let later = now + COOLDOWN;
        let mut breaker = open_at(now);
        assert!(breaker.admits(later));
        breaker.succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed { failures: 0 });

        let mut breaker = open_at(now);
        assert!(breaker.admits(later));
        assert!(breaker.failed(later));
        let until = later + COOLDOWN;
        assert_eq!(breaker.state(), BreakerState::Open { until });
    }

    #[test]
    fn a_call_that_is_never_reported_is_replaced() {
        let now = Instant::now();
        let mut breaker = open_at(now);
        assert!(breaker.admits(now + COOLDOWN));
        assert!(!breaker.admits(now + 2 * COOLDOWN - Duration::from_nanos(1)));
        assert!(breaker.admits(now + 2 * COOLDOWN));
    }

    #[test]
    fn calls_from_before_the_opening_change_nothing() {
        let now = Instant::now();
        let mut breaker = open_at(now);
        let open = breaker.state();
        breaker.succeeded();
        assert!(!breaker.failed(now + Duration::from_secs(1)));
        assert_eq!(breaker.state(), open);
    }
}
