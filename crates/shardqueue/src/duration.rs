//! Durations as people write them in the environment: `100ms`, `1.5s`, `2m`, `1m30s`.
//!
//! A number, possibly with a fraction, and a unit; any number of such pairs, which are added up. Units are `ns`,
//! `us` (or `µs`), `ms`, `s`, `m` and `h`. A plain `0` needs no unit. There are no signs: no setting is negative.

use std::time::Duration;

const UNITS: [(&str, u64); 8] = [
    // Longest first, so that `ms` is not taken for `m`.
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, micro sign
    ("μs", 1_000), // U+03BC, Greek letter mu
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 60 * 60 * 1_000_000_000),
];

/// Returns the duration that a text stands for, or `None` if it stands for none, or for more than 584 years.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos: u64 = 0;
    loop {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let unit = UNITS.iter().find(|(name, _)| after.starts_with(name))?;
        nanos = nanos.checked_add(value(whole, fraction, unit.1)?)?;
        rest = &after[unit.0.len()..];
        if rest.is_empty() {
            return Some(Duration::from_nanos(nanos));
        }
    }
}

/// Splits a text behind its leading digits.
fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Returns `whole.fraction` units in nanoseconds, rounded down.
fn value(whole: &str, fraction: &str, unit: u64) -> Option<u64> {
    let whole: u64 = match whole {
        "" => 0,
        digits => digits.parse().ok()?,
    };
    let mut nanos = u128::from(whole) * u128::from(unit);
    // Eighteen digits are more than a nanosecond's worth of an hour.
    let (mut scale, mut part) = (1_u128, 0_u128);
    for digit in fraction.bytes().take(18) {
        part = part * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    nanos += part * u128::from(unit) / scale;
    u64::try_from(nanos).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_they_are_written() {
        let cases = [
            ("0", 0),
            ("0s", 0),
            ("1ns", 1),
            ("100ms", 100_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("2.s", 2_000_000_000),
            ("2m", 120_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("7µs", 7_000),
            ("7μs", 7_000),
            ("0.0000000001s", 0),
            ("0.1234567891234567891234h", 444_444_440_844),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        let texts = [
            "",
            " ",
            "s",
            "1",
            "10",
            "1.5",
            "-1s",
            "+1s",
            "1 s",
            "1s ",
            "abc",
            "1x",
            "1s2",
            ".",
            ".s",
            "1..5s",
            "1e3s",
            "1ms!",
            "٣s",
            "18446744073709551616ns",
            "999999999999999h",
        ];
        for text in texts {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
