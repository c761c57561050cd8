//! The retry policy of a queue.

use std::num::NonZeroU32;
use std::time::Duration;

use fila_store::MessageId;
use serde::{Deserialize, Serialize};

/// How often a queue tries a message, and how long the message waits in between.
///
/// The wait doubles with every attempt, from `backoff` up to `backoff_max`, and is then longer or shorter by up to
/// `jitter_percent`, so that messages that fail together do not come back together. The same message and attempt always
/// give the same wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    /// The number of failed deliveries that makes a message a dead letter; `None` retries it without end.
    pub attempts_max: Option<NonZeroU32>,
    /// The wait after the first failure.
    #[serde(rename = "backoff_ms", with = "crate::settings::millis")]
    pub backoff: Duration,
    /// The longest wait.
    #[serde(rename = "backoff_max_ms", with = "crate::settings::millis")]
    pub backoff_max: Duration,
    /// By how many percent a wait may differ.
    pub jitter_percent: u8,
}

impl Default for RetryPolicy {
    /// Ten attempts over some eight minutes: enough time to restart a failed service.
    fn default() -> Self {
        Self {
            attempts_max: NonZeroU32::new(10),
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            jitter_percent: 10,
        }
    }
}

impl RetryPolicy {
    /// Returns whether the queue gives up on a message that has failed this often.
    pub fn is_exhausted(&self, attempts: u32) -> bool {
        self.attempts_max.is_some_and(|max| attempts >= max.get())
    }

    /// Returns how long a message waits after it has failed this often, in whole milliseconds.
    pub fn delay(&self, message: MessageId, attempts: u32) -> Duration {
        let max = millis(self.backoff_max);
        let doublings = attempts.saturating_sub(1).min(63);
        let base = millis(self.backoff).saturating_mul(1 << doublings).min(max);
        // At most `base`, since the percentage is at most 100.
        let spread = (u128::from(base) * u128::from(self.jitter_percent.min(100)) / 100) as u64;
        let (least, most) = (base - spread, base.saturating_add(spread).min(max));
        let chosen = mix(message.get() ^ u64::from(attempts).rotate_right(16)) % (most - least + 1);
        Duration::from_millis(least + chosen)
    }
}

fn millis(duration: Duration) -> u64 {
    // Longer than any delay that is allowed, and small enough to calculate with.
    u64::try_from(duration.as_millis()).map_or(1 << 48, |millis| millis.min(1 << 48))
}

/// Mixes the bits of a number: the last steps of SplitMix64.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> MessageId {
        MessageId::from_number(1 << 40 | number)
    }

    #[test]
    fn the_wait_doubles_up_to_the_longest_and_stays_within_the_jitter() {
        let policy = RetryPolicy::default();
        for number in 0..500 {
            for attempts in 1..60 {
                let base = (1000_u64 << (attempts - 1).min(40)).min(300_000);
                let wait = policy.delay(id(number), attempts).as_millis() as u64;
                let (least, most) = (base - base / 10, (base + base / 10).min(300_000));
                assert!((least..=most).contains(&wait), "{attempts}: {wait}");
            }
        }
    }

    #[test]
    fn what_fails_together_does_not_come_back_together() {
        let policy = RetryPolicy::default();
        let mut waits: Vec<_> = (0..200).map(|n| policy.delay(id(n), 1)).collect();
        waits.sort_unstable();
        waits.dedup();
        assert!(waits.len() > 100, "{}", waits.len());
        assert_eq!(policy.delay(id(3), 2), policy.delay(id(3), 2));
    }

    #[test]
    fn without_a_backoff_there_is_no_wait_and_without_jitter_no_difference() {
        let at_once = RetryPolicy {
            backoff: Duration::ZERO,
            ..RetryPolicy::default()
        };
        assert_eq!(at_once.delay(id(1), 9), Duration::ZERO);
        let exact = RetryPolicy {
            jitter_percent: 0,
            ..RetryPolicy::default()
        };
        assert_eq!(exact.delay(id(1), 3), Duration::from_secs(4));
    }

    #[test]
    fn no_settings_are_too_much() {
        let most = RetryPolicy {
            attempts_max: NonZeroU32::new(u32::MAX),
            backoff: Duration::MAX,
            backoff_max: Duration::MAX,
            jitter_percent: u8::MAX,
        };
        for attempts in [0, 1, 2, 64, u32::MAX] {
            assert!(most.delay(id(7), attempts) <= Duration::from_millis(1 << 48));
        }
        assert!(most.is_exhausted(u32::MAX));
    }

    #[test]
    fn attempts_are_exhausted_at_the_last_one_that_is_allowed() {
        let policy = RetryPolicy::default();
        assert!(!policy.is_exhausted(9));
        assert!(policy.is_exhausted(10));
        let endless = RetryPolicy {
            attempts_max: None,
            ..policy
        };
        assert!(!endless.is_exhausted(u32::MAX));
    }
}
