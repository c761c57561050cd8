//! Tokio's time as the scheduler's.

use std::time::Instant;

use firq_core::Clock;

/// The clock of Tokio: the machine's monotonic clock, or, in a test with paused time, the paused one.
///
/// Outside of a runtime it is the machine's.
///
/// ```
/// use firq_async::{AsyncScheduler, SchedulerConfig, TokioClock};
///
/// let config = SchedulerConfig::fair().with_clock(TokioClock);
/// let scheduler: AsyncScheduler<String> = AsyncScheduler::new(config)?;
/// # Ok::<(), firq_async::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    #[inline]
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}
