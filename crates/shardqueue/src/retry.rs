//! When a job that failed is attempted again.

use std::error::Error;
use std::time::Duration;

use crate::outcome::JobId;

/// An attempt that failed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FailedAttempt<'a> {
    /// The job.
    pub id: JobId,
    /// Its key.
    pub key: &'a str,
    /// Which attempt it was: 1 for the first.
    pub attempt: u32,
    /// Its error.
    pub error: &'a (dyn Error + Send + Sync + 'static),
}

/// Decides whether a job that failed is attempted again, and when.
///
/// It is not asked about errors marked as [`Permanent`](crate::Permanent), about jobs that were cancelled, or
/// when the executor stops: then there is no other attempt. It is called by workers, without a lock, and
/// should be quick. If it panics, the job has failed.
///
/// ```
/// use std::time::Duration;
/// use shardqueue::{FailedAttempt, RetryPolicy};
///
/// /// Three attempts, a second apart, and none when the server says that it is gone.
/// struct Patient;
///
/// impl RetryPolicy for Patient {
///     fn next_delay(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
///         let is_gone = failed.error.to_string().contains("410");
///         (failed.attempt < 3 && !is_gone).then_some(Duration::from_secs(1))
///     }
/// }
/// ```
pub trait RetryPolicy: Send + Sync + 'static {
    /// Returns how long to wait before the next attempt, or `None` to give up.
    fn next_delay(&self, failed: &FailedAttempt<'_>) -> Option<Duration>;
}

impl<F> RetryPolicy for F
where
    F: Fn(&FailedAttempt<'_>) -> Option<Duration> + Send + Sync + 'static,
{
    fn next_delay(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        self(failed)
    }
}

/// Waits twice as long before each attempt, up to a cap, give or take some: the default.
///
/// The wait before attempt `n + 1` is `base × 2ⁿ⁻¹`, at most `cap`, and then changed by up to `jitter` percent
/// of itself in either direction, so that jobs that failed together do not come back together; never above `cap`.
/// The change follows from the seed, the job and the attempt alone: the same seed gives the same waits, whatever
/// runs beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExponentialBackoff {
    base: Duration,
    cap: Duration,
    max_attempts: u32,
    jitter: u8,
    seed: u64,
}

impl ExponentialBackoff {
    /// Returns a policy without jitter.
    #[must_use]
    pub const fn new(base: Duration, cap: Duration, max_attempts: u32) -> Self {
        Self {
            base,
            cap,
            max_attempts,
            jitter: 0,
            seed: 0,
        }
    }

    /// Changes waits by up to this percentage (at most 100), drawn from a generator with this seed.
    #[must_use]
    pub const fn with_jitter(mut self, percent: u8, seed: u64) -> Self {
        self.jitter = if percent > 100 { 100 } else { percent };
        self.seed = seed;
        self
    }

    /// Returns the wait after attempt `attempt` of a job that drew `dice`.
    fn delay(&self, attempt: u32, dice: u64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let delay = self.base.saturating_mul(1 << doublings).min(self.cap);
        // From -jitter to +jitter percent, in parts of 2³².
        let spread = i128::from(self.jitter) * (i128::from(dice >> 32) * 2 - (1 << 32));
        let nanos = i128::try_from(delay.as_nanos()).unwrap_or(i128::MAX);
        let change = nanos.saturating_mul(spread) / (100 << 32);
        let changed = u64::try_from(nanos.saturating_add(change).max(0)).unwrap_or(u64::MAX);
        Duration::from_nanos(changed).min(self.cap)
    }
}

impl RetryPolicy for ExponentialBackoff {
    fn next_delay(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        if failed.attempt >= self.max_attempts {
            return None;
        }
        let mut dice = mix(self.seed ^ mix(failed.id.number()));
        dice = mix(dice ^ u64::from(failed.attempt) ^ (failed.id.shard() as u64) << 32);
        Some(self.delay(failed.attempt, dice))
    }
}

/// Scrambles a number (the finaliser of SplitMix64).
const fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::JobSlot;

    const BASE: Duration = Duration::from_millis(100);
    const CAP: Duration = Duration::from_secs(20);

    fn delay(policy: &ExponentialBackoff, serial: u64, attempt: u32) -> Option<Duration> {
        let place = JobSlot { slot: 0, serial };
        policy.next_delay(&FailedAttempt {
            id: JobId { shard: 3, place },
            key: "key",
            attempt,
            error: &std::fmt::Error,
        })
    }

    #[test]
    fn waits_double_up_to_the_cap_and_the_last_attempt_is_the_last() {
        let policy = ExponentialBackoff::new(BASE, CAP, 10);
        let waits: Vec<Option<u128>> = (1..=10)
            .map(|attempt| delay(&policy, 1, attempt).map(|wait| wait.as_millis()))
            .collect();
        let expected = [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 20_000];
        assert_eq!(waits[..9], expected.map(Some));
        assert_eq!(waits[9], None);
    }

    #[test]
    fn eight_attempts_wait_for_12_7_seconds_in_all() {
        let policy = ExponentialBackoff::new(BASE, CAP, 8);
        let total: Duration = (1..=8)
            .filter_map(|attempt| delay(&policy, 1, attempt))
            .sum();
        assert_eq!(total, Duration::from_millis(12_700));
    }

    #[test]
    fn jitter_stays_within_its_percentage_and_below_the_cap() {
        let policy = ExponentialBackoff::new(BASE, CAP, u32::MAX).with_jitter(50, 7);
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for serial in 0..10_000 {
            let ratio = delay(&policy, serial, 3).unwrap().as_secs_f64() / 0.4;
            (least, most) = (least.min(ratio), most.max(ratio));
            assert!(delay(&policy, serial, 20).unwrap() <= CAP);
        }
        assert!((0.5..0.51).contains(&least), "{least}");
        assert!((1.49..1.5).contains(&most), "{most}");
    }

    #[test]
    fn the_same_seed_gives_the_same_waits_and_another_gives_others() {
        let waits = |seed| -> Vec<_> {
            let policy = ExponentialBackoff::new(BASE, CAP, 8).with_jitter(50, seed);
            (0..20).map(|serial| delay(&policy, serial, 2)).collect()
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }

    #[test]
    fn extreme_numbers_do_no_harm() {
        let policy = ExponentialBackoff::new(Duration::MAX, Duration::MAX, u32::MAX);
        let policy = policy.with_jitter(255, u64::MAX);
        assert!(delay(&policy, u64::MAX, u32::MAX - 1).is_some());
        assert_eq!(
            delay(&ExponentialBackoff::new(Duration::ZERO, CAP, 8), 1, 7),
            Some(Duration::ZERO)
        );
    }
}
