//! Figures of the live views, with a stable width.

use std::time::Duration;

pub(crate) use crate::output::{bytes, count};

/// Returns a time in one unit, the one that fits it: at most seven characters.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    // Each limit is the value at which the previous unit would round up to one digit more.
    if seconds < 0.000_999_5 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 0.009_95 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds < 0.999_5 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 99.95 {
        format!("{seconds:.1} s")
    } else if seconds < 2.0 * 60.0 * 60.0 {
        format!("{:.0} min", seconds / 60.0)
    } else if seconds < 2.0 * 24.0 * 60.0 * 60.0 {
        format!("{:.0} h", seconds / 60.0 / 60.0)
    } else {
        format!("{:.0} d", seconds / 24.0 / 60.0 / 60.0)
    }
}

/// Returns a part of a whole in percent.
pub(crate) fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Returns a rate, with one decimal place if it is small.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 9.95 {
        format!("{per_second:.1}")
    } else {
        count(per_second.round().max(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_the_unit_that_fits_it() {
        let texts = [0, 999, 1500, 9949, 9950, 123_400, 999_499, 999_500]
            .map(|micros| time(Duration::from_micros(micros)));
        assert_eq!(
            texts,
            [
                "0 µs", "999 µs", "1.5 ms", "9.9 ms", "10 ms", "123 ms", "999 ms", "1.0 s"
            ]
        );
        let texts =
            [12, 99, 100, 7199, 7200, 172_800].map(|seconds| time(Duration::from_secs(seconds)));
        assert_eq!(
            texts,
            ["12.0 s", "99.0 s", "2 min", "120 min", "2 h", "2 d"]
        );
    }

    #[test]
    fn small_rates_keep_a_digit() {
        assert_eq!(
            [0.0, 0.5, 9.94, 9.96, 4012.4].map(rate),
            ["0", "0.5", "9.9", "10", "4,012"]
        );
    }
}
