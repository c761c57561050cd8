//! Growing waits between attempts.

use std::time::Duration;

use crate::moment::FAR;

/// Waits that double up to a limit. Each is drawn from the upper half of its step, so that clients which lost the same
/// server do not come back all at once.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        let (first, longest) = (first.min(FAR), longest.min(FAR));
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// Returns the next wait. `chance` is a random number from 0 to 1.
    pub(crate) fn next(&mut self, chance: f64) -> Duration {
        let step = self.next;
        self.next = step.saturating_mul(2).min(self.longest);
        step.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0))
    }

    /// Begins again with the shortest wait.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_again() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 5 * second);
        let waits: Vec<u64> = (0..5).map(|_| backoff.next(1.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        backoff.reset();
        assert_eq!(backoff.next(0.0), second / 2);
    }
}
