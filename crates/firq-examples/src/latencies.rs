//! How long things took.

use std::time::Duration;

/// Durations that were seen, and what can be said of them.
///
/// Keeps every one of them, which is right for an example that lasts seconds; a service would use a histogram.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    seen: Vec<Duration>,
}

impl Latencies {
    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        self.seen.push(latency);
    }

    /// Adds those of another.
    pub fn merge(&mut self, mut other: Self) {
        self.seen.append(&mut other.seen);
    }

    /// Returns how many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.seen.len()
    }

    /// Returns whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Returns the latency that `percent` of all do not exceed, by nearest rank; zero if there is none.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.seen.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100);
        let latency = sorted.get(rank.saturating_sub(1));
        latency.copied().unwrap_or_default()
    }

    /// Returns the one in the middle.
    #[must_use]
    pub fn p50(&self) -> Duration {
        self.percentile(50)
    }

    /// Returns the one that only one of a hundred exceeds.
    #[must_use]
    pub fn p99(&self) -> Duration {
        self.percentile(99)
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(latencies: I) -> Self {
        let seen = latencies.into_iter().collect();
        Self { seen }
    }
}

/// Returns a duration as people read it in a table: milliseconds, with a decimal while there are few.
#[must_use]
pub fn millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1e3;
    match millis < 10.0 {
        true => format!("{millis:.1} ms"),
        false => format!("{millis:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let latencies: Latencies = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(latencies.p50(), Duration::from_millis(100));
        assert_eq!(latencies.p99(), Duration::from_millis(198));
        assert_eq!(latencies.percentile(100), Duration::from_millis(200));
        assert_eq!(Latencies::default().p99(), Duration::ZERO);
    }
}
