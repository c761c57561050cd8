//! A bound on log lines that clients cause.

use std::time::{Duration, Instant};

/// Lets a bounded number of lines of one kind through in each second, and counts the others.
#[derive(Debug)]
pub(crate) struct LogGate {
    most: u32,
    /// The second that is counted began here.
    since: Option<Instant>,
    passed: u32,
    held_back: u64,
}

impl LogGate {
    pub(crate) const fn new(most: u32) -> Self {
        Self {
            most,
            since: None,
            passed: 0,
            held_back: 0,
        }
    }

    /// Returns how many lines were held back since the last one, if another may be written now. Otherwise counts it.
    pub(crate) fn pass(&mut self, now: Instant) -> Option<u64> {
        let is_new = self
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1));
        if is_new {
            self.since = Some(now);
            self.passed = 0;
        }
        if self.passed >= self.most {
            self.held_back += 1;
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_bound_are_counted_and_told_with_the_next_one() {
        let mut gate = LogGate::new(2);
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let passed = [0, 1, 2, 999, 1_000, 1_001, 1_002, 5_000].map(|now| gate.pass(at(now)));
        let expected = [
            Some(0),
            Some(0),
            None,
            None,
            Some(2),
            Some(0),
            None,
            Some(1),
        ];
        assert_eq!(passed, expected);
    }
}
