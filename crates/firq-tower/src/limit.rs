//! How many requests run, and how many may.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::adaptive::{Adaptive, Controller};

/// How many requests may run at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InFlight {
    Fixed(usize),
    Adaptive(Adaptive),
}

#[derive(Debug)]
pub(crate) struct Limit {
    active: AtomicUsize,
    max: AtomicUsize,
    controller: Option<Mutex<Controller>>,
}

impl Limit {
    pub(crate) fn new(in_flight: InFlight, now: Instant) -> Self {
        let (max, controller) = match in_flight {
            InFlight::Fixed(max) => (max.max(1), None),
            InFlight::Adaptive(config) => {
                let controller = Controller::new(config, now);
                (controller.limit(), Some(Mutex::new(controller)))
            }
        };
        Self {
            active: AtomicUsize::new(0),
            max: AtomicUsize::new(max),
            controller,
        }
    }

    /// Takes a permit, if one is free.
    pub(crate) fn try_take(&self) -> bool {
        let max = self.max.load(SeqCst);
        let take = |active| (active < max).then_some(active + 1);
        self.active.fetch_update(SeqCst, SeqCst, take).is_ok()
    }

    /// Gives a permit back.
    pub(crate) fn give_back(&self) {
        self.active.fetch_sub(1, SeqCst);
    }

    pub(crate) fn active(&self) -> usize {
        self.active.load(SeqCst)
    }

    pub(crate) fn max(&self) -> usize {
        self.max.load(SeqCst)
    }

    /// Returns whether the limit needs the duration of requests.
    pub(crate) const fn is_adaptive(&self) -> bool {
        self.controller.is_some()
    }

    /// Takes note of a request that has been served. Some may be missed while another is being noted.
    pub(crate) fn observe(&self, took: Duration, now: Instant) {
        let Some(controller) = &self.controller else {
            return;
        };
        if let Ok(mut controller) = controller.try_lock()
            && let Some(max) = controller.observe(took, self.active(), now)
        {
            self.max.store(max, SeqCst);
        }
    }

    /// Lets an adaptive limit forget its measurements of the service.
    pub(crate) fn reset(&self, now: Instant) {
        if let Some(controller) = &self.controller {
            let mut controller = controller.lock().unwrap_or_else(PoisonError::into_inner);
            controller.reset(now);
            self.max.store(controller.limit(), SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_permits_as_the_limit_says_and_at_least_one() {
        for (limit, permits) in [(3, 3), (0, 1)] {
            let limit = Limit::new(InFlight::Fixed(limit), Instant::now());
            for _ in 0..permits {
                assert!(limit.try_take());
            }
            assert!(!limit.try_take());
            limit.give_back();
            assert!(limit.try_take());
        }
    }

    #[test]
    fn an_adaptive_limit_follows_its_controller() {
        let mut now = Instant::now();
        let limit = Limit::new(InFlight::Adaptive(Adaptive::between(4, 8)), now);
        for _ in 0..1_000 {
            while limit.try_take() {}
            now += Duration::from_millis(1);
            limit.observe(Duration::from_millis(1), now);
        }
        assert_eq!(limit.max(), 8);
        limit.reset(now);
        assert_eq!(limit.max(), 4);
    }
}
