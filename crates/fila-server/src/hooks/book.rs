//! What is known of one hook of one queue: whether it is asked, and how it fares.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fila_lua::{Breaker, BreakerState};

/// Whether a hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookState {
    /// It is.
    Closed,
    /// It is not, for so long: it has failed too often in a row.
    Open {
        /// When it will be asked again, from when this was read.
        asked_again_in: Duration,
    },
    /// It is asked about one message, and what comes of that decides.
    HalfOpen,
    /// It is not: its script does not load.
    Broken,
}

/// How a hook fares.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookFigures {
    /// The name of its function.
    pub name: &'static str,
    /// Whether it is asked.
    pub state: HookState,
    /// How many calls have failed since the last one that did not.
    pub failures_in_a_row: u32,
    /// How often it was called.
    pub calls: u64,
    /// How many of the calls gave no answer.
    pub failures: u64,
    /// How many messages got what stands in for an answer.
    pub fallbacks: u64,
    /// How long all calls took, together.
    pub busy: Duration,
    /// What the last call that failed has failed of.
    pub last_error: Option<Arc<str>>,
}

/// What one hook of a queue has done so far. Shared by the workers that ask it and whoever shows it.
#[derive(Debug)]
pub(super) struct Book(Mutex<Page>);

#[derive(Clone, Debug)]
struct Page {
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
    busy: Duration,
}

/// What a call has changed about whether the hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Opened,
    Closed,
}

impl Book {
    pub(super) fn new(breaker: Breaker) -> Self {
        Self(Mutex::new(Page {
            breaker,
            failures_in_a_row: 0,
            totals: Totals::default(),
            last_error: None,
        }))
    }

    /// Returns a book for another script of the same queue: totals go on, the rest begins anew.
    pub(super) fn for_another_script(&self, breaker: Breaker) -> Self {
        let totals = self.with(|page| page.totals);
        let book = Self::new(breaker);
        book.with(|page| page.totals = totals);
        book
    }

    /// Returns whether the hook is to be asked now. If so, what comes of it is to be reported.
    pub(super) fn admits(&self, now: Instant) -> bool {
        self.with(|page| page.breaker.admits(now))
    }

    /// Tells that the hook would not be asked now, whatever the message. Changes nothing.
    pub(super) fn is_shut(&self, now: Instant) -> bool {
        self.with(|page| match page.breaker.state() {
            BreakerState::Open { until } | BreakerState::HalfOpen { until } => now < until,
            _ => false,
        })
    }

    pub(super) fn succeeded(&self, took: Duration) -> Change {
        self.with(|page| {
            page.totals.calls += 1;
            page.totals.busy += took;
            page.failures_in_a_row = 0;
            let before = page.breaker.state();
            page.breaker.succeeded();
            match (before, page.breaker.state()) {
                (BreakerState::HalfOpen { .. }, BreakerState::Closed { .. }) => Change::Closed,
                _ => Change::None,
            }
        })
    }

    pub(super) fn failed(&self, now: Instant, took: Duration, error: Arc<str>) -> Change {
        self.with(|page| {
            page.totals.calls += 1;
            page.totals.failures += 1;
            page.totals.busy += took;
            page.failures_in_a_row = page.failures_in_a_row.saturating_add(1);
            page.last_error = Some(error);
            match page.breaker.failed(now) {
                true => Change::Opened,
                false => Change::None,
            }
        })
    }

    /// Counts messages that got what stands in for an answer, and returns what the hook has last failed of.
    pub(super) fn stood_in_for(&self, messages: u64) -> Option<Arc<str>> {
        self.with(|page| {
            page.totals.fallbacks += messages;
            page.last_error.clone()
        })
    }

    pub(super) fn read(&self, name: &'static str, now: Instant) -> HookFigures {
        self.with(|page| HookFigures {
            name,
            state: match page.breaker.state() {
                BreakerState::Open { until } if now < until => HookState::Open {
                    asked_again_in: until - now,
                },
                // The next message is the one that is tried.
                BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => HookState::HalfOpen,
                _ => HookState::Closed,
            },
            failures_in_a_row: page.failures_in_a_row,
            calls: page.totals.calls,
            failures: page.totals.failures,
            fallbacks: page.totals.fallbacks,
            busy: page.totals.busy,
            last_error: page.last_error.clone(),
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Page) -> T) -> T {
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
        let book = Book::new(Breaker::default());
        let start = Instant::now();
        for _ in 0..2 {
            assert!(book.admits(start));
            assert_eq!(book.failed(start, TOOK, error()), Change::None);
        }
        assert!(!book.is_shut(start));
        assert_eq!(book.failed(start, TOOK, error()), Change::Opened);
        assert!(book.is_shut(start));
        assert!(!book.admits(start));
        let later = start + Breaker::COOLDOWN;
        assert!(!book.is_shut(later));
        assert_eq!(book.read("on_enqueue", later).state, HookState::HalfOpen);
        assert!(book.admits(later));
        assert!(book.is_shut(later), "one is tried, the others are not");
        assert_eq!(book.succeeded(TOOK), Change::Closed);
        let figures = book.read("on_enqueue", later);
        assert_eq!(figures.state, HookState::Closed);
        assert_eq!((figures.calls, figures.failures), (4, 3));
        assert_eq!(figures.failures_in_a_row, 0);
        assert_eq!(figures.busy, 4 * TOOK);
        assert_eq!(figures.last_error, Some(error()));
    }

    #[test]
    fn it_says_in_how_long_the_hook_is_asked_again() {
        let book = Book::new(Breaker::default());
        let start = Instant::now();
        for _ in 0..3 {
            book.failed(start, TOOK, error());
        }
        let second = Duration::from_secs(1);
        let asked_again_in = Breaker::COOLDOWN - second;
        let shown = book.read("on_enqueue", start + second);
        assert_eq!(shown.state, HookState::Open { asked_again_in });
    }

    #[test]
    fn totals_go_on_with_another_script_and_nothing_else_does() {
        let book = Book::new(Breaker::default());
        let now = Instant::now();
        for _ in 0..3 {
            book.failed(now, TOOK, error());
        }
        book.stood_in_for(7);
        let next = book.for_another_script(Breaker::default());
        let figures = next.read("on_enqueue", now);
        assert_eq!(figures.state, HookState::Closed);
        assert_eq!((figures.calls, figures.failures), (3, 3));
        assert_eq!(figures.fallbacks, 7);
        assert_eq!((figures.failures_in_a_row, figures.last_error), (0, None));
    }
}
