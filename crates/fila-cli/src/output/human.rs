//! Numbers and texts as people read them.

use std::time::Duration;

/// Returns a number with its thousands apart: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of bytes: `999 B`, `1.5 KiB`, `12 MiB`.
pub(crate) fn bytes(number: u64) -> String {
    let mut value = number as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].iter();
    let mut unit = "B";
    for next in units.by_ref() {
        unit = next;
        if value < 999.5 {
            break;
        }
        if unit != "PiB" {
            value /= 1024.0;
        }
    }
    figure(value, unit)
}

/// Returns a time: `250 µs`, `1.5 s`, `5 min`, `2 h 30 min`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let whole = |larger: u64, unit: &str, of: u64, smaller: &str| {
        let parts = (seconds.round() as u64) / of;
        let (first, second) = (parts / larger, parts % larger);
        if second == 0 {
            format!("{first} {unit}")
        } else {
            format!("{first} {unit} {second} {smaller}")
        }
    };
    if time.is_zero() {
        "0 s".to_owned()
    } else if seconds < 0.000_999_5 {
        figure(seconds * 1e6, "µs")
    } else if seconds < 0.999_5 {
        figure(seconds * 1e3, "ms")
    } else if seconds < 59.5 {
        figure(seconds, "s")
    } else if seconds < 3_599.5 {
        whole(60, "min", 1, "s")
    } else if seconds < 86_399.5 {
        whole(60, "h", 60, "min")
    } else {
        whole(24, "d", 3600, "h")
    }
}

/// Returns the rate of a number of events in a time.
pub(crate) fn rate(number: u64, time: Duration) -> String {
    let rate = number as f64 / time.as_secs_f64().max(1e-9);
    format!("{}/s", count(rate.round() as u64))
}

/// Returns two digits of a small value, and all digits of a large one.
fn figure(value: f64, unit: &str) -> String {
    let text = if value < 9.95 && unit != "B" {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    };
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_their_thousands_apart() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn sizes_have_two_figures_at_least() {
        for (number, text) in [
            (0, "0 B"),
            (7, "7 B"),
            (999, "999 B"),
            (1000, "1 KiB"),
            (1536, "1.5 KiB"),
            (12 << 20, "12 MiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(number), text, "{number}");
        }
    }

    #[test]
    fn times_are_in_the_unit_that_fits() {
        for (millis, text) in [
            (0, "0 s"),
            (250, "250 ms"),
            (1500, "1.5 s"),
            (30_000, "30 s"),
            (60_000, "1 min"),
            (90_000, "1 min 30 s"),
            (300_000, "5 min"),
            (9_000_000, "2 h 30 min"),
            (604_800_000, "7 d"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(duration(Duration::from_micros(250)), "250 µs");
        assert_eq!(duration(Duration::from_micros(1_250)), "1.2 ms");
    }
}
