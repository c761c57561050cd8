//! The breaker and the statistics of one hook of one queue.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fila_lua::{Breaker, BreakerState};

/// Whether the broker calls a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookState {
    /// It does.
    Closed,
    /// It does not, because the hook failed too often in a row.
    Open {
        /// The time until the next call.
        asked_again_in: Duration,
    },
    /// It calls the hook for one message, and the result decides.
    HalfOpen,
    /// It does not, because the script does not load.
    Broken,
}

/// The figures of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFigures {
    /// The name of the hook's function.
    pub name: &'static str,
    /// Whether the broker calls it.
    pub state: HookState,
    /// Number of failed calls since the last success.
    pub failures_in_a_row: u32,
    /// Number of calls.
    pub calls: u64,
    /// Number of failed calls.
    pub failures: u64,
    /// Number of messages that got the fallback.
    pub fallbacks: u64,
    /// Number of answers with a number that was brought into range.
    pub adjusted: u64,
    /// Number of answers that could not be used, or not all of them.
    pub unusable: u64,
    /// The duration of all calls together.
    pub busy: Duration,
    /// The error of the last failed call, or of the last answer that could not be used.
    pub last_error: Option<Arc<str>>,
}

/// The breaker and the statistics of one hook of one queue. Workers and readers share it.
#[derive(Debug)]
pub(super) struct HookStats(Mutex<StatsState>);

#[derive(Clone, Debug)]
struct StatsState {
    breaker: Breaker,
    /// Since the last success.
    failures_in_a_row: u32,
    totals: Totals,
    last_error: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    calls: u64,
    failures: u64,
    fallbacks: u64,
    adjusted: u64,
    unusable: u64,
    busy: Duration,
}

/// The answer of a call that has not failed.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerCheck {
    /// Whether a number was brought into range.
    pub(super) adjusted: bool,
    /// Why the answer, or a part of it, could not be used.
    pub(super) unusable: Option<Arc<str>>,
}

/// The change that a call made to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerChange {
    None,
    Opened,
    Closed,
}

impl HookStats {
    pub(super) fn new(breaker: Breaker) -> Self {
        Self(Mutex::new(StatsState {
            breaker,
            failures_in_a_row: 0,
            totals: Totals::default(),
            last_error: None,
        }))
    }

    /// Returns statistics for another script of the same queue: totals go on, the rest starts anew.
    pub(super) fn for_another_script(&self, breaker: Breaker) -> Self {
        let totals = self.with(|state| state.totals);
        let stats = Self::new(breaker);
        stats.with(|state| state.totals = totals);
        stats
    }

    /// Returns whether to call the hook now. If so, the caller must report the result.
    pub(super) fn admits(&self, now: Instant) -> bool {
        self.with(|state| state.breaker.admits(now))
    }

    /// Returns whether the hook would not be called now, for any message. Changes nothing.
    pub(super) fn is_shut(&self, now: Instant) -> bool {
        self.with(|state| match state.breaker.state() {
            BreakerState::Open { until } | BreakerState::HalfOpen { until } => now < until,
            BreakerState::Closed { .. } => false,
        })
    }

    /// Records a call that returned. For the breaker it has succeeded, whatever it returned: the headers of one message
    /// can make an answer invalid, and must not stop the hook for others.
    pub(super) fn answered(&self, took: Duration, answer: AnswerCheck) -> BreakerChange {
        self.with(|state| {
            state.totals.calls += 1;
            state.totals.busy += took;
            state.totals.adjusted += u64::from(answer.adjusted);
            if let Some(mistake) = answer.unusable {
                state.totals.unusable += 1;
                state.last_error = Some(mistake);
            }
            state.failures_in_a_row = 0;
            let before = state.breaker.state();
            state.breaker.succeeded();
            match (before, state.breaker.state()) {
                (BreakerState::HalfOpen { .. }, BreakerState::Closed { .. }) => {
                    BreakerChange::Closed
                }
                _ => BreakerChange::None,
            }
        })
    }

    pub(super) fn failed(&self, now: Instant, took: Duration, error: Arc<str>) -> BreakerChange {
        self.with(|state| {
            state.totals.calls += 1;
            state.totals.failures += 1;
            state.totals.busy += took;
            state.failures_in_a_row = state.failures_in_a_row.saturating_add(1);
            state.last_error = Some(error);
            if state.breaker.failed(now) {
                BreakerChange::Opened
            } else {
                BreakerChange::None
            }
        })
    }

    /// Counts messages that got the fallback, and returns the last error of the hook.
    pub(super) fn stood_in_for(&self, messages: u64) -> Option<Arc<str>> {
        self.with(|state| {
            state.totals.fallbacks += messages;
            state.last_error.clone()
        })
    }

    /// Returns the mean duration of a call.
    pub(super) fn pace(&self) -> Duration {
        self.with(|state| {
            let calls = u32::try_from(state.totals.calls).unwrap_or(u32::MAX);
            state.totals.busy.checked_div(calls).unwrap_or_default()
        })
    }

    pub(super) fn read(&self, name: &'static str, now: Instant) -> HookFigures {
        self.with(|state| HookFigures {
            name,
            state: match state.breaker.state() {
                BreakerState::Open { until } if now < until => HookState::Open {
                    asked_again_in: until - now,
                },
                // The broker tries the next message.
                BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => HookState::HalfOpen,
                BreakerState::Closed { .. } => HookState::Closed,
            },
            failures_in_a_row: state.failures_in_a_row,
            calls: state.totals.calls,
            failures: state.totals.failures,
            fallbacks: state.totals.fallbacks,
            adjusted: state.totals.adjusted,
            unusable: state.totals.unusable,
            busy: state.totals.busy,
            last_error: state.last_error.clone(),
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut StatsState) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_micros(3);

    fn error() -> Arc<str> {
        "line 3: as planned".into()
    }

    #[test]
    fn three_failures_in_a_row_open_it_and_one_success_after_the_cooldown_closes_it() {
        let stats = HookStats::new(Breaker::default());
        let start = Instant::now();
        for _ in 0..2 {
            assert!(stats.admits(start));
            assert_eq!(stats.failed(start, TOOK, error()), BreakerChange::None);
        }
        assert!(!stats.is_shut(start));
        assert_eq!(stats.failed(start, TOOK, error()), BreakerChange::Opened);
        assert!(stats.is_shut(start));
        assert!(!stats.admits(start));
        let later = start + Breaker::COOLDOWN;
        assert!(!stats.is_shut(later));
        assert_eq!(stats.read("on_enqueue", later).state, HookState::HalfOpen);
        assert!(stats.admits(later));
        assert!(stats.is_shut(later), "one is tried, the others are not");
        let answered = stats.answered(TOOK, AnswerCheck::default());
        assert_eq!(answered, BreakerChange::Closed);
        let figures = stats.read("on_enqueue", later);
        assert_eq!(figures.state, HookState::Closed);
        assert_eq!((figures.calls, figures.failures), (4, 3));
        assert_eq!(figures.failures_in_a_row, 0);
        assert_eq!(figures.busy, 4 * TOOK);
        assert_eq!(figures.last_error, Some(error()));
    }

    #[test]
    fn it_says_in_how_long_the_hook_is_asked_again() {
        let stats = HookStats::new(Breaker::default());
        let start = Instant::now();
        for _ in 0..3 {
            stats.failed(start, TOOK, error());
        }
        let second = Duration::from_secs(1);
        let asked_again_in = Breaker::COOLDOWN - second;
        let shown = stats.read("on_enqueue", start + second);
        assert_eq!(shown.state, HookState::Open { asked_again_in });
    }

    #[test]
    fn answers_that_cannot_be_used_do_not_open_it() {
        let stats = HookStats::new(Breaker::default());
        let now = Instant::now();
        let wrong = AnswerCheck {
            adjusted: true,
            unusable: Some(error()),
        };
        for _ in 0..30 {
            assert!(stats.admits(now));
            let answered = stats.answered(TOOK, wrong.clone());
            assert_eq!(answered, BreakerChange::None);
        }
        let figures = stats.read("on_enqueue", now);
        assert_eq!(figures.state, HookState::Closed);
        assert_eq!((figures.adjusted, figures.unusable), (30, 30));
        assert_eq!((figures.calls, figures.failures), (30, 0));
        assert_eq!(figures.last_error, Some(error()));
    }

    #[test]
    fn totals_go_on_with_another_script_and_nothing_else_does() {
        let stats = HookStats::new(Breaker::default());
        let now = Instant::now();
        for _ in 0..3 {
            stats.failed(now, TOOK, error());
        }
        stats.stood_in_for(7);
        let next = stats.for_another_script(Breaker::default());
        let figures = next.read("on_enqueue", now);
        assert_eq!(figures.state, HookState::Closed);
        assert_eq!((figures.calls, figures.failures), (3, 3));
        assert_eq!(figures.fallbacks, 7);
        assert_eq!((figures.failures_in_a_row, figures.last_error), (0, None));
    }
}
