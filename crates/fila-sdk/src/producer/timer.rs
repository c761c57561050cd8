//! The one timer of a connection.

use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer for many moments, of which the task waits for the earliest.
///
/// Setting a timer takes a lock of the runtime. Moments are mostly set later and later, so the timer stays where it is and
/// may fire early: the task then finds nothing to do, and sets it to the moment that is next by then.
#[derive(Debug)]
pub(super) struct LazyTimer {
    sleep: Pin<Box<Sleep>>,
    /// When it fires; `None` if it has fired.
    set_to: Option<Instant>,
}

impl LazyTimer {
    /// Returns a timer that is not set. To be called within a runtime.
    pub(super) fn new() -> Self {
        Self {
            sleep: Box::pin(sleep_until(Instant::now())),
            set_to: None,
        }
    }

    /// Sees to it that it fires at this moment, or before. Returns whether it had to be set.
    pub(super) fn fire_by(&mut self, moment: Instant) -> bool {
        let is_late = self.set_to.is_none_or(|set_to| moment < set_to);
        if is_late {
            self.sleep.as_mut().reset(moment);
            self.set_to = Some(moment);
        }
        is_late
    }

    /// Waits until it fires. Dropping the future changes nothing.
    pub(super) async fn fired(&mut self) {
        self.sleep.as_mut().await;
        self.set_to = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_row_of_later_moments_sets_the_timer_once() {
        let begun = Instant::now();
        let mut timer = LazyTimer::new();
        let mut set = 0;
        for millis in 0..1_000 {
            let moment = begun + Duration::from_secs(30) + Duration::from_millis(millis);
            set += u32::from(timer.fire_by(moment));
        }
        assert_eq!(set, 1);
        timer.fired().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_moment_is_not_missed() {
        let begun = Instant::now();
        let mut timer = LazyTimer::new();
        for secs in [30, 20, 25] {
            timer.fire_by(begun + Duration::from_secs(secs));
        }
        timer.fired().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(20));
        assert!(
            timer.fire_by(begun + Duration::from_secs(25)),
            "it has fired"
        );
        timer.fired().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(25));
    }
}
