//! Percentiles, medians, and numbers as people read them.

use std::time::Duration;

/// Measured durations.
///
/// Keeps every one of them, which suits a run of seconds; a service would use a histogram.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    seen: Vec<Duration>,
}

impl Latencies {
    /// Adds one duration.
    pub fn record(&mut self, latency: Duration) {
        self.seen.push(latency);
    }

    /// Adds all durations of another measurement.
    pub fn merge(&mut self, mut other: Self) {
        self.seen.append(&mut other.seen);
    }

    /// Returns how many durations were recorded.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.seen.len()
    }

    /// Returns whether no duration was recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Returns the duration that this part of all durations, from 0 to 1, does not exceed: the nearest rank. Zero if
    /// none was recorded.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Duration {
        let mut seen = self.seen.clone();
        let rank = (seen.len() as f64 * part).ceil() as usize;
        let index = rank.saturating_sub(1).min(seen.len().saturating_sub(1));
        if seen.is_empty() {
            return Duration::ZERO;
        }
        *seen.select_nth_unstable(index).1
    }

    /// Returns the median.
    #[must_use]
    pub fn p50(&self) -> Duration {
        self.percentile(0.5)
    }

    /// Returns the duration that one in a hundred exceeds.
    #[must_use]
    pub fn p99(&self) -> Duration {
        self.percentile(0.99)
    }

    /// Returns the longest duration.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.percentile(1.0)
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(latencies: I) -> Self {
        let seen = latencies.into_iter().collect();
        Self { seen }
    }
}

/// Returns the median of the finite values: the mean of the middle two if their number is even.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|it| it.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
}

/// Returns a duration in milliseconds with three significant digits.
#[must_use]
pub fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    match millis {
        100.0.. => format!("{millis:.0} ms"),
        10.0.. => format!("{millis:.1} ms"),
        _ => format!("{millis:.2} ms"),
    }
}

/// Returns a whole number with commas between groups of three digits.
#[must_use]
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let latencies: Latencies = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(latencies.p50(), Duration::from_millis(100));
        assert_eq!(latencies.p99(), Duration::from_millis(198));
        assert_eq!(latencies.max(), Duration::from_millis(200));
        assert_eq!(latencies.percentile(0.0), Duration::from_millis(1));
        assert_eq!(Latencies::default().p99(), Duration::ZERO);
    }

    #[test]
    fn the_median_leaves_out_values_that_are_not_finite() {
        assert_eq!(median([3.0, f64::NAN, 1.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([f64::NAN]), None);
    }

    #[test]
    fn numbers_have_commas() {
        let shown = [0.4, 999.0, 1000.0, 1_234_567.0].map(thousands);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn milliseconds_have_three_digits() {
        let shown = [1, 12_340, 123_456].map(|micros| millis(Duration::from_micros(micros)));
        assert_eq!(shown, ["0.00 ms", "12.3 ms", "123 ms"]);
    }
}
