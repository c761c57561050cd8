//! How long attempts took, in the buckets that the metric is published in.

use std::time::Duration;

/// Upper bounds of the buckets, in milliseconds; the last bucket has none.
pub(crate) const BOUNDS_MS: [u32; 11] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];

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
        let is_above = |&bound: &u32| duration <= Duration::from_millis(u64::from(bound));
        let bucket = BOUNDS_MS.iter().position(is_above);
        self.buckets[bucket.unwrap_or(BOUNDS_MS.len())] += 1;
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
        for (bucket, millis) in BOUNDS_MS.into_iter().enumerate() {
            let mut histogram = Histogram::default();
            let bound = Duration::from_millis(u64::from(millis));
            histogram.record(bound);
            histogram.record(bound + Duration::from_nanos(1));
            assert_eq!(histogram.buckets[bucket], 1, "{millis} ms");
            assert_eq!(histogram.buckets[bucket + 1], 1, "{millis} ms");
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
