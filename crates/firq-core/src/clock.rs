//! Where time comes from.
//!
//! The scheduler asks its [`Clock`] for the time, at most once per call or batch. Services use [`SystemClock`], which lets
//! the scheduler do without an exact time where it needs none; tests use a [`ManualClock`], which stands still until it is
//! told to move, so that a test of deadlines and timeouts is exact and never sleeps.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A source of time, and of waiting for it to pass.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the present. It never goes backwards.
    fn now(&self) -> Instant;

    /// Returns how exact the times have to be that the scheduler only reports. [`Precision::Exact`], unless the clock
    /// is the machine's.
    fn precision(&self) -> Precision {
        Precision::Exact
    }

    /// Parks the calling thread until it is unparked or `until` has come, whichever is first.
    ///
    /// May return early: the caller checks what it waits for.
    fn park_until(&self, until: Instant) {
        thread::park_timeout(until.saturating_duration_since(self.now()));
    }
}

/// How exact the times are that a scheduler reports but does not act on. Deadlines and waits are exact in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// Every task is stamped with [`Clock::now`] when it comes, and again when it goes.
    Exact,
    /// The clock is that of the machine, which is [`Instant::now`], and a scheduler may look at it less often.
    ///
    /// A task without a deadline gets an `enqueue_ts` that is up to a tick of the kernel early, 1 to 10 ms; on machines
    /// without a coarse clock it is exact. Queue times are exact, but of a sample: at least every sixteenth task, and of
    /// each tick the first.
    Coarse,
}

/// The monotonic clock of the machine, read exactly [where that matters](Precision::Coarse).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn precision(&self) -> Precision {
        Precision::Coarse
    }
}

/// The monotonic clock of the machine, read exactly for every task: two reads more for each, some 30 ns apiece.
///
/// ```
/// use firq_core::{PreciseClock, Scheduler, SchedulerConfig};
///
/// let config = SchedulerConfig::fair().with_clock(PreciseClock);
/// let scheduler: Scheduler<String> = Scheduler::new(config)?;
/// # Ok::<(), firq_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PreciseClock;

impl Clock for PreciseClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that moves only when it is told to. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use firq_core::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now() - before, Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    /// Nanoseconds since `start`.
    elapsed: AtomicU64,
    /// The threads that wait for time to pass.
    parked: Mutex<Vec<Thread>>,
}

impl ManualClock {
    /// Returns a clock that shows some moment and stands still.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                start: Instant::now(),
                elapsed: AtomicU64::new(0),
                parked: Mutex::default(),
            }),
        }
    }

    /// Lets time pass, and wakes the threads that wait for it.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.shared.elapsed.fetch_add(by, Ordering::SeqCst);
        let parked = std::mem::take(&mut *self.parked());
        parked.iter().for_each(Thread::unpark);
    }

    fn parked(&self) -> std::sync::MutexGuard<'_, Vec<Thread>> {
        let parked = self.shared.parked.lock();
        parked.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.shared.start + Duration::from_nanos(self.shared.elapsed.load(Ordering::SeqCst))
    }

    fn park_until(&self, until: Instant) {
        // Registered before the time is looked at: an advance in between unparks this thread.
        self.parked().push(thread::current());
        if self.now() < until {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_still_until_it_is_advanced() {
        let clock = ManualClock::new();
        let start = clock.now();
        assert_eq!(clock.now(), start);
        clock.clone().advance(Duration::from_millis(5));
        assert_eq!(clock.now(), start + Duration::from_millis(5));
    }

    #[test]
    fn advancing_wakes_a_thread_that_waits_for_the_time() {
        let clock = ManualClock::new();
        let until = clock.now() + Duration::from_secs(1000);
        thread::scope(|scope| {
            scope.spawn(|| {
                while clock.now() < until {
                    clock.park_until(until);
                }
            });
            clock.advance(Duration::from_secs(400));
            clock.advance(Duration::from_secs(600));
        });
    }

    #[test]
    fn the_system_clock_does_not_wait_for_the_past() {
        let clock = SystemClock;
        clock.park_until(clock.now());
    }
}
