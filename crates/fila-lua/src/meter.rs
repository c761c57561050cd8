//! Measures a call, and stops it at its limit.
//!
//! Each VM has one [`Meter`]. The hook of the VM (every few instructions and at every call), each library function that
//! can work for long, and the pattern matcher check it.
//!
//! **Always holds.** A stop is final: until the next call begins, every check fails, even if the script catches the
//! errors.

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

/// If two checks are this far apart, the instructions are slow, and the VM checks at every instruction.
const SLOW: Duration = Duration::from_micros(500);

/// How many times its limit a call may take by the wall clock, if its thread hardly runs.
const WALL_FACTOR: u32 = 100;

/// The oldest reading of the processor's clock that a new call may use. One reading takes longer than many calls, so not
/// every call makes one.
const MARK_AGE: Duration = Duration::from_millis(1);

/// Caps the limit, so that no sum of times overflows.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
pub(crate) struct Meter {
    checked: Cell<Instant>,
    /// When to read the processor's clock.
    deadline: Cell<Instant>,
    /// When to stop, even if the thread has hardly run.
    give_up: Cell<Instant>,
    /// The last reading of the processor's clock, and its time.
    mark: Cell<(Instant, Option<Duration>)>,
    /// How far the processor's clock may advance after that reading.
    allowance: Cell<Duration>,
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
            give_up: Cell::new(now),
            mark: Cell::new((now, processor_time())),
            allowance: Cell::new(Duration::ZERO),
            stop: Cell::new(None),
            instructions: Cell::new(0),
            wary: Cell::new(false),
        }
    }

    /// Begins a call with this limit.
    pub(crate) fn begin(&self, now: Instant, timeout: Duration) {
        let timeout = timeout.min(TIMEOUT_MAX);
        self.checked.set(now);
        self.deadline.set(now + timeout);
        self.give_up.set(now + timeout * WALL_FACTOR);
        let mut marked = self.mark.get().0;
        if now.saturating_duration_since(marked) > MARK_AGE {
            marked = now;
            self.mark.set((now, processor_time()));
        }
        // Earlier calls may have used all the time since the mark; this call gets its limit on top.
        self.allowance
            .set(timeout + now.saturating_duration_since(marked));
        self.stop.set(None);
        self.instructions.set(0);
    }

    /// Counts executed instructions.
    pub(crate) fn count(&self, instructions: u32) {
        let before = self.instructions.get();
        self.instructions.set(before + u64::from(instructions));
    }

    /// Fails if the call has to stop. Returns whether the time since the last check was suspiciously long.
    pub(crate) fn pace(&self, now: Instant) -> Result<Pace, Stop> {
        if let Some(stop) = self.stop.get() {
            return Err(stop);
        }
        let since = now.saturating_duration_since(self.checked.replace(now));
        if now > self.deadline.get() {
            self.overdue(now, processor_time())?;
        }
        Ok(if since > SLOW { Pace::Slow } else { Pace::Fast })
    }

    /// Fails if the thread has used up the call's time. On a busy machine that happens later than by the wall clock.
    fn overdue(&self, now: Instant, processor: Option<Duration>) -> Result<(), Stop> {
        let used = processor
            .zip(self.mark.get().1)
            .map(|(now, mark)| now.saturating_sub(mark));
        match used.and_then(|used| self.allowance.get().checked_sub(used)) {
            Some(left) if !left.is_zero() && now < self.give_up.get() => {
                self.deadline.set(now + left);
                Ok(())
            }
            _ => Err(self.stop(Stop::Time)),
        }
    }

    /// Stops the call for this reason; an earlier reason stays.
    pub(crate) fn stop(&self, why: Stop) -> Stop {
        let why = self.stop.get().unwrap_or(why);
        self.stop.set(Some(why));
        why
    }

    /// Returns why the call has to stop, if it has to.
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

/// Returns how long this thread has been running, if the system can tell.
#[cfg(any(
    target_os = "linux",
    target_os = "android",
    target_os = "macos",
    target_os = "freebsd"
))]
pub(crate) fn processor_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).ok()
}

#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "macos",
    target_os = "freebsd"
)))]
pub(crate) fn processor_time() -> Option<Duration> {
    None
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

    fn begun() -> (Meter, Instant, Duration) {
        let meter = Meter::new();
        let start = Instant::now() + Duration::from_secs(1); // later than `MARK_AGE`, so that `begin` reads the clock
        meter.begin(start, LIMIT);
        let mark = Duration::from_secs(5);
        meter.mark.set((start, Some(mark)));
        (meter, start, mark)
    }

    #[test]
    fn the_clock_of_the_processor_is_not_read_before_the_limit() {
        let (meter, start, _) = begun();
        meter.mark.set((start, None));
        assert_eq!(meter.pace(start + LIMIT), Ok(Pace::Slow));
        let late = start + LIMIT + Duration::from_nanos(1);
        assert_eq!(meter.pace(late), Err(Stop::Time));
    }

    #[test]
    fn time_is_up_when_the_thread_has_run_for_the_limit() {
        let (meter, start, mark) = begun();
        let late = start + 2 * LIMIT;
        let little = mark + LIMIT - Duration::from_nanos(1);
        assert_eq!(meter.overdue(late, Some(little)), Ok(()));
        assert_eq!(meter.overdue(late, Some(mark + LIMIT)), Err(Stop::Time));
    }

    #[test]
    fn a_thread_that_hardly_runs_is_checked_again_when_it_can_have_used_its_time() {
        let (meter, start, mark) = begun();
        let late = start + 5 * LIMIT;
        assert_eq!(meter.overdue(late, Some(mark + LIMIT / 4)), Ok(()));
        assert_eq!(meter.deadline.get(), late + LIMIT * 3 / 4);
    }

    #[test]
    fn the_wall_clock_ends_a_call_whose_thread_hardly_runs() {
        let (meter, start, mark) = begun();
        let late = start + LIMIT * WALL_FACTOR;
        assert_eq!(meter.overdue(late, Some(mark)), Err(Stop::Time));
    }

    #[test]
    fn time_before_the_call_is_not_counted() {
        let (meter, start, mark) = begun();
        let next = start + MARK_AGE / 2;
        meter.begin(next, LIMIT);
        let used = mark + MARK_AGE / 2 + LIMIT - Duration::from_nanos(1);
        assert_eq!(meter.overdue(next + 2 * LIMIT, Some(used)), Ok(()));
    }

    #[test]
    fn a_call_reads_the_clock_of_the_processor_if_the_mark_is_old() {
        let (meter, start, mark) = begun();
        meter.begin(start + 2 * MARK_AGE, LIMIT);
        let (marked, shown) = meter.mark.get();
        assert_eq!(marked, start + 2 * MARK_AGE);
        assert_ne!(shown, Some(mark));
        assert_eq!(meter.allowance.get(), LIMIT);
    }

    #[test]
    fn a_stop_is_final_until_the_next_call() {
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
