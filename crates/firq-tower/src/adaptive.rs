//! A limit on requests in flight that finds itself, from how long requests take.
//!
//! A service that has more to do than it can do at once takes longer for each request; below that point it
//! takes as long as it takes. So the time requests take while few are in flight, the *baseline*, is compared
//! with the time they take now, window by window:
//!
//! ```text
//! gradient = tolerance × baseline ÷ mean of this window, between ½ and 1
//! limit    ← limit + ⅕ × (limit × gradient + √limit − limit)      (√limit only while the limit is in use)
//! ```
//!
//! While requests take no longer than `tolerance` baselines the limit grows, by the square root, so that it
//! explores in proportion; when they take longer it shrinks, at most by a tenth per window.
//!
//! # Reset
//! A baseline is the least mean seen, so it would stay too low forever if the service became slower for good,
//! by a larger database for example. Every `reset_every` it is forgotten: for one window the limit is halved,
//! so that the service is seen without the load that the limit itself allows, the mean of that window is the new
//! baseline, and the limit continues where it was.
//!
//! Time and measurements come in as arguments; there is no clock and no lock here.

use std::time::{Duration, Instant};

/// A window with fewer requests says nothing.
const SAMPLES_MIN: u32 = 10;
/// How much of the way to its target the limit goes in a window.
const STEP: f64 = 0.2;

/// How an in-flight limit finds itself.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Adaptive {
    /// The limit never falls below this; at least 1.
    pub min: usize,
    /// The limit never rises above this.
    pub max: usize,
    /// The limit to begin with.
    pub initial: usize,
    /// How many times the baseline requests may take before the limit stops growing; at least 1.
    pub tolerance: f64,
    /// For how long requests are measured before the limit is changed.
    pub window: Duration,
    /// How often the baseline is forgotten and measured anew.
    pub reset_every: Duration,
}

impl Adaptive {
    /// Returns a limit between two bounds that begins at the lower one, with a tolerance of 1.5, windows of
    /// 100 ms, and a reset every minute.
    #[must_use]
    pub fn between(min: usize, max: usize) -> Self {
        let min = min.max(1);
        Self {
            min,
            max: max.max(min),
            initial: min,
            tolerance: 1.5,
            window: Duration::from_millis(100),
            reset_every: Duration::from_secs(60),
        }
    }

    /// Sets the limit to begin with.
    #[must_use]
    pub fn starting_at(mut self, initial: usize) -> Self {
        self.initial = initial;
        self
    }

    /// Brings every field into its range.
    fn checked(self) -> Self {
        let (min, max) = (self.min.max(1), self.max.max(self.min.max(1)));
        Self {
            min,
            max,
            initial: self.initial.clamp(min, max),
            tolerance: if self.tolerance >= 1.0 {
                self.tolerance
            } else {
                1.0
            },
            ..self
        }
    }
}

/// The limit, and the measurements behind it.
#[derive(Debug)]
pub(crate) struct Controller {
    config: Adaptive,
    limit: f64,
    phase: Phase,
    /// When the baseline was last forgotten.
    reset_at: Instant,
    window: Window,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The baseline is measured at half the limit, and the limit to go on with is kept here.
    Resetting { resume: f64 },
    /// Seconds that requests take while few are in flight.
    Following { baseline: f64 },
}

#[derive(Clone, Copy, Debug)]
struct Window {
    begun: Instant,
    samples: u32,
    seconds: f64,
    /// The most requests that were in flight.
    peak: usize,
}

impl Window {
    const fn new(begun: Instant) -> Self {
        Self {
            begun,
            samples: 0,
            seconds: 0.0,
            peak: 0,
        }
    }
}

impl Controller {
    pub(crate) fn new(config: Adaptive, now: Instant) -> Self {
        let config = config.checked();
        Self {
            config,
            limit: config.initial as f64,
            phase: Phase::Following {
                baseline: f64::INFINITY,
            },
            reset_at: now,
            window: Window::new(now),
        }
    }

    pub(crate) fn limit(&self) -> usize {
        (self.limit as usize).clamp(self.config.min, self.config.max)
    }

    /// Takes note of a request that has been served. Returns the new limit if a window has ended.
    pub(crate) fn observe(
        &mut self,
        took: Duration,
        in_flight: usize,
        now: Instant,
    ) -> Option<usize> {
        let window = &mut self.window;
        window.samples += 1;
        window.seconds += took.as_secs_f64();
        window.peak = window.peak.max(in_flight);
        let is_over = now.saturating_duration_since(window.begun) >= self.config.window;
        if window.samples < SAMPLES_MIN || !is_over {
            return None;
        }
        let ended = std::mem::replace(window, Window::new(now));
        self.turn(ended, now);
        Some(self.limit())
    }

    /// Changes the limit by the measurements of a window.
    fn turn(&mut self, window: Window, now: Instant) {
        let mean = (window.seconds / f64::from(window.samples)).max(1e-9);
        let baseline = match self.phase {
            Phase::Resetting { resume } => {
                self.limit = resume;
                self.phase = Phase::Following { baseline: mean };
                return;
            }
            Phase::Following { baseline } => baseline.min(mean),
        };
        self.phase = Phase::Following { baseline };
        let gradient = (self.config.tolerance * baseline / mean).clamp(0.5, 1.0);
        let headroom = if window.peak as f64 >= self.limit / 2.0 {
            self.limit.sqrt()
        } else {
            // A limit that is never reached has not been tried.
            0.0
        };
        self.limit += STEP * (self.limit * gradient + headroom - self.limit);
        self.limit = self
            .limit
            .clamp(self.config.min as f64, self.config.max as f64);
        if now.saturating_duration_since(self.reset_at) >= self.config.reset_every {
            self.reset(now);
        }
    }

    /// Forgets the baseline; the next window measures it anew at half the limit.
    pub(crate) fn reset(&mut self, now: Instant) {
        let resume = match self.phase {
            Phase::Resetting { resume } => resume,
            Phase::Following { .. } => self.limit,
        };
        self.phase = Phase::Resetting { resume };
        self.limit = (resume / 2.0).max(self.config.min as f64);
        self.reset_at = now;
        self.window = Window::new(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// A service that does `capacity` requests at once in `alone` each, and more in proportionally longer.
    struct Service {
        capacity: f64,
        alone: Duration,
    }

    impl Service {
        fn takes(&self, in_flight: usize) -> Duration {
            self.alone
                .mul_f64((in_flight as f64 / self.capacity).max(1.0))
        }
    }

    /// Keeps the service as busy as the limit allows, but for no more than `offered` requests at once.
    fn run(
        controller: &mut Controller,
        service: &Service,
        offered: usize,
        now: &mut Instant,
        time: Duration,
    ) {
        let end = *now + time;
        while *now < end {
            let in_flight = controller.limit().min(offered);
            let took = service.takes(in_flight);
            *now += took / in_flight as u32; // one ends every so often
            controller.observe(took, in_flight, *now);
        }
    }

    fn start(config: Adaptive) -> (Controller, Instant) {
        let now = Instant::now();
        (Controller::new(config, now), now)
    }

    #[test]
    fn the_limit_settles_near_what_the_service_can_do_at_once() {
        for capacity in [4.0, 16.0, 64.0] {
            let (mut controller, mut now) = start(Adaptive::between(1, 1_000));
            let service = Service {
                capacity,
                alone: 5 * MILLI,
            };
            run(
                &mut controller,
                &service,
                10_000,
                &mut now,
                Duration::from_secs(30),
            );
            let ratio = controller.limit() as f64 / capacity;
            assert!(
                (1.0..=3.5).contains(&ratio),
                "{} for {capacity}",
                controller.limit()
            );
        }
    }

    #[test]
    fn the_limit_stays_within_its_bounds() {
        let (mut controller, mut now) = start(Adaptive::between(4, 32).starting_at(1_000));
        assert_eq!(controller.limit(), 32);
        let hopeless = Service {
            capacity: 0.1,
            alone: MILLI,
        };
        run(
            &mut controller,
            &hopeless,
            1_000,
            &mut now,
            Duration::from_secs(20),
        );
        assert!((4..=32).contains(&controller.limit()));
        let endless = Service {
            capacity: 1e9,
            alone: MILLI,
        };
        run(
            &mut controller,
            &endless,
            1_000,
            &mut now,
            Duration::from_secs(200),
        );
        assert_eq!(controller.limit(), 32);
    }

    #[test]
    fn a_limit_that_is_not_reached_does_not_grow() {
        let (mut controller, mut now) = start(Adaptive::between(8, 1_000).starting_at(20));
        let service = Service {
            capacity: 100.0,
            alone: MILLI,
        };
        run(
            &mut controller,
            &service,
            3,
            &mut now,
            Duration::from_secs(20),
        );
        assert!(controller.limit() <= 20, "{}", controller.limit());
    }

    #[test]
    fn a_service_that_has_become_slower_is_measured_anew_at_the_reset() {
        let (mut controller, mut now) = start(Adaptive::between(2, 500));
        let mut service = Service {
            capacity: 32.0,
            alone: MILLI,
        };
        run(
            &mut controller,
            &service,
            1_000,
            &mut now,
            Duration::from_secs(10),
        );
        let before = controller.limit();
        service.alone = 10 * MILLI; // for good
        run(
            &mut controller,
            &service,
            1_000,
            &mut now,
            Duration::from_secs(20),
        );
        assert!(
            controller.limit() < before / 2,
            "slower looks like overload at first"
        );
        run(
            &mut controller,
            &service,
            1_000,
            &mut now,
            Duration::from_secs(80),
        );
        assert!(
            controller.limit() > before / 2,
            "{} after the reset, {before} before",
            controller.limit()
        );
    }

    #[test]
    fn a_reset_lasts_one_window_and_then_the_limit_goes_on() {
        let (mut controller, mut now) = start(Adaptive::between(2, 500).starting_at(100));
        controller.reset(now);
        controller.reset(now);
        assert_eq!(controller.limit(), 50);
        for _ in 0..SAMPLES_MIN {
            now += 20 * MILLI;
            controller.observe(MILLI, 50, now);
        }
        assert_eq!(controller.limit(), 100);
    }

    #[test]
    fn nonsense_is_brought_into_range() {
        let config = Adaptive {
            min: 0,
            max: 0,
            initial: 0,
            tolerance: f64::NAN,
            window: Duration::ZERO,
            reset_every: Duration::ZERO,
        };
        let (mut controller, mut now) = start(config);
        for _ in 0..1_000 {
            now += MILLI;
            controller.observe(Duration::ZERO, 0, now);
            assert_eq!(controller.limit(), 1);
        }
    }
}
