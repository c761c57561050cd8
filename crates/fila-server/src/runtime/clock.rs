//! The clock of the server: the wall clock at the start of the process, plus the monotonic time since then.
//!
//! The wall clock may be set back or forth while the server runs. Leases and delays must not depend on that, so the
//! server reads it only once.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fila_store::Timestamp;

/// A clock that never goes back. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Duration,
    origin: Instant,
}

impl Clock {
    /// Reads the wall clock, once.
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            // A wall clock before 1970 was never set; time then begins at 1970.
            began: wall.unwrap_or_default(),
            origin: Instant::now(),
        }
    }

    /// Returns the present time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(millis(self.elapsed()))
    }

    /// Returns the time until this clock shows `moment`, which is zero for the past.
    pub fn until(&self, moment: Timestamp) -> Duration {
        Duration::from_millis(moment.as_millis()).saturating_sub(self.elapsed())
    }

    /// Returns when this clock was started.
    pub fn started_at(&self) -> Timestamp {
        Timestamp::from_millis(millis(self.began))
    }

    fn elapsed(&self) -> Duration {
        self.began.saturating_add(self.origin.elapsed())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_from_the_start_and_never_back() {
        let clock = Clock::start();
        let mut last = clock.started_at();
        for _ in 0..1000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn waiting_until_a_moment_is_enough_for_it_to_be_shown() {
        let clock = Clock::start();
        let moment = clock.now().saturating_add(Duration::from_millis(3));
        let wait = clock.until(moment);
        assert!(wait <= Duration::from_millis(3));
        std::thread::sleep(wait);
        assert!(clock.now() >= moment);
        assert_eq!(clock.until(clock.started_at()), Duration::ZERO);
    }
}
