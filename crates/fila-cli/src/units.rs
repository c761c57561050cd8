//! Numbers as people read them: `50,000`, `12.4 s`, `1.5 GiB`; and times as they write them.

use std::time::Duration;

/// Returns a count with a comma between thousands.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a time in the unit that fits it, with two digits that matter.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    // Each limit is where the unit before would be rounded up to one digit too many.
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

/// Returns a number of bytes in the unit that fits it.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 99.95 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Returns a part of a whole in percent.
pub(crate) fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Returns a rate: with one digit after the point while that says something.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 9.95 {
        format!("{per_second:.1}")
    } else {
        count(per_second.round().max(0.0) as u64)
    }
}

/// Reads a time, as `1s`, `250ms` or `2m`. A bare number is one of seconds.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let seconds = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        unit => return Err(format!("`{unit}` is no unit; use ms, s, m or h")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "expected a time, as `1s` or `500ms`".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_parted() {
        let texts = [0, 999, 1000, 50_000, 1_234_567].map(count);
        assert_eq!(texts, ["0", "999", "1,000", "50,000", "1,234,567"]);
    }

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
    fn bytes_have_the_unit_that_fits_them() {
        let texts = [0, 1023, 1024, 1536, 1 << 30, 200 << 20].map(bytes);
        assert_eq!(
            texts,
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 GiB", "200 MiB"]
        );
    }

    #[test]
    fn small_rates_keep_a_digit() {
        assert_eq!(
            [0.0, 0.5, 9.94, 9.96, 4012.4].map(rate),
            ["0", "0.5", "9.9", "10", "4,012"]
        );
    }

    #[test]
    fn a_time_is_read_as_people_write_it() {
        assert_eq!(parse_time("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_time("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_time("250 ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_time("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "s", "1 fortnight", "1.2.3s", "-1s"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
