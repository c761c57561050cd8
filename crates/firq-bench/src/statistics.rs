//! Reading percentiles off what was measured.

use std::time::Duration;

/// Returns the value that this part of the values does not exceed; zero if there are none.
pub(crate) fn quantile(values: &mut [Duration], part: f64) -> Duration {
    values.sort_unstable();
    let index = (part * values.len() as f64) as usize;
    let last = values.len().saturating_sub(1);
    values.get(index.min(last)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut values: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&mut values, 0.5), Duration::from_millis(51));
        assert_eq!(quantile(&mut values, 0.99), Duration::from_millis(100));
        assert_eq!(quantile(&mut values, 1.0), Duration::from_millis(100));
        assert_eq!(quantile(&mut [], 0.5), Duration::ZERO);
    }
}
