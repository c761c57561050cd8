//! How long attempts took, in the buckets that the metric is published in.

use std::time::Duration;

/// Upper bounds of the buckets, in seconds; the last bucket has none.
pub(crate) const BOUNDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// The same bounds, as durations.
const BOUNDS_EXACT: [Duration; 11] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(2_500),
    Duration::from_millis(5_000),
    Duration::from_millis(10_000),
];

/// A histogram of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    /// How many fell into each bucket, not counting those of the buckets below.
    pub(crate) buckets: [u64; 12],
    pub(crate) sum: Duration,
}

impl Histogram {
    #[inline]
    pub(crate) fn record(&mut self, duration: Duration) {
        // Most attempts are short, so the search begins there. A bound belongs to the bucket below it.
        let bucket = BOUNDS_EXACT.iter().position(|&bound| duration <= bound);
        self.buckets[bucket.unwrap_or(BOUNDS.len())] += 1;
        self.sum = self.sum.saturating_add(duration);
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_at_a_bound_is_in_the_bucket_below_it() {
        for (bucket, seconds) in BOUNDS.into_iter().enumerate() {
            let mut histogram = Histogram::default();
            let bound = Duration::from_secs_f64(seconds);
            histogram.record(bound);
            histogram.record(bound + Duration::from_nanos(1));
            assert_eq!(histogram.buckets[bucket], 1, "{seconds} s");
            assert_eq!(histogram.buckets[bucket + 1], 1, "{seconds} s");
            assert_eq!(histogram.count(), 2);
        }
    }

    #[test]
    fn the_longest_duration_does_no_harm() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::MAX);
        histogram.record(Duration::MAX);
        assert_eq!((histogram.count(), histogram.sum), (2, Duration::MAX));
    }
}
