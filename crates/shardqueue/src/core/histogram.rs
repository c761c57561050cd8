//! How long attempts took, in the buckets that the metric is published in.

use std::time::Duration;

/// Upper bounds of the buckets, in seconds; the last bucket has none.
pub(crate) const BOUNDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// The same bounds, in nanoseconds.
const BOUNDS_NANOS: [u64; 11] = [
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
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
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // Most attempts are short, so the search begins there. A bound belongs to the bucket below it.
        let bucket = BOUNDS_NANOS.iter().position(|&bound| nanos <= bound);
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
