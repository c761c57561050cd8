//! How long tasks waited: a histogram whose classes are an eighth of their size wide.
//!
//! Recording is an addition in place, under the lock that the dequeuer holds anyway. Statistics add up the
//! histograms of all shards.

use crate::log_linear::{class_of, classes, largest_of};
use crate::node::Nanos;

/// Times from 2⁴¹ ns (36 minutes) on are all in the last class.
const BITS: u32 = 41;

#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: Box<[u64]>,
    samples: u64,
    sum: u128,
    longest: Nanos,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            counts: vec![0; classes(BITS)].into(),
            samples: 0,
            sum: 0,
            longest: 0,
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, time: Nanos) {
        let class = class_of(time).min(self.counts.len() - 1);
        self.counts[class] += 1;
        self.samples += 1;
        self.sum += u128::from(time);
        self.longest = self.longest.max(time);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.samples += other.samples;
        self.sum += other.sum;
        self.longest = self.longest.max(other.longest);
    }

    pub(crate) const fn samples(&self) -> u64 {
        self.samples
    }

    pub(crate) const fn sum(&self) -> u128 {
        self.sum
    }

    pub(crate) const fn longest(&self) -> Nanos {
        self.longest
    }

    /// Returns a time that at least `per_mille` of a thousand samples are not above, within an eighth.
    pub(crate) fn quantile(&self, per_mille: u64) -> Nanos {
        let rank = (u128::from(self.samples) * u128::from(per_mille)).div_ceil(1000);
        let mut seen = 0;
        for (class, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if count > 0 && seen >= rank {
                return largest_of(class).min(self.longest);
            }
        }
        self.longest
    }

    /// Returns how many samples were at most `time`, within an eighth of it.
    #[cfg(feature = "prometheus")]
    pub(crate) fn at_most(&self, time: Nanos) -> u64 {
        let end = class_of(time).min(self.counts.len() - 1);
        self.counts[..=end].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_an_eighth_above_the_truth() {
        let mut histogram = Histogram::new();
        for time in 1..=100_000 {
            histogram.record(time);
        }
        for (per_mille, truth) in [(500, 50_000), (950, 95_000), (990, 99_000), (999, 99_900)] {
            let shown = histogram.quantile(per_mille);
            assert!(
                (truth..=truth + truth / 8).contains(&shown),
                "{per_mille}: {shown}"
            );
        }
        assert_eq!(histogram.quantile(1000), 100_000);
        assert_eq!(histogram.samples(), 100_000);
        assert_eq!(histogram.sum(), 100_000 * 100_001 / 2);
    }

    #[test]
    fn nothing_recorded_is_zero() {
        assert_eq!(Histogram::new().quantile(999), 0);
    }

    #[test]
    fn histograms_add_up() {
        let (mut a, mut b) = (Histogram::new(), Histogram::new());
        a.record(10);
        b.record(Nanos::MAX);
        a.add(&b);
        assert_eq!(a.samples(), 2);
        assert_eq!(a.quantile(500), 10);
        assert!(
            a.quantile(1000) >= 1 << 40,
            "the longest are in the last class"
        );
        assert_eq!(a.longest(), Nanos::MAX);
    }
}
