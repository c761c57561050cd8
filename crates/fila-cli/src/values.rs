//! Values in the notation of the command line.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;

use crate::failure::Failure;

/// Parses `250ms`, `30s`, `5m`, `2h` or `7d`. A number without a unit is refused, unless it is 0: people mean seconds by
/// it as often as milliseconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    if text.starts_with('-') {
        return Err("a time cannot be negative; write `30s`".to_owned());
    }
    if number.is_empty() {
        return Err("this is not a time; write `30s`, `5m`, `2h` or `7d`".to_owned());
    }
    let unit = match unit.trim_start() {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        "" if number.bytes().all(|digit| digit == b'0') => 1,
        "" => {
            return Err(format!(
                "the unit is missing; write `{number}s` or `{number}ms`"
            ));
        }
        _ => return Err("this is not a time; write `30s`, `5m`, `2h` or `7d`".to_owned()),
    };
    let millis = number
        .parse()
        .ok()
        .and_then(|number: u64| number.checked_mul(unit));
    let millis = millis.ok_or("the number is too large")?;
    Ok(Duration::from_millis(millis))
}

/// As [`duration`], where a number without a unit is milliseconds.
pub(crate) fn duration_or_millis(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(millis) => Ok(Duration::from_millis(millis)),
        Err(_) => duration(text),
    }
}

/// Returns a time in whole milliseconds, for JSON.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Parses a rate: messages in a second, above 0.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let rate: Option<f64> = text.parse().ok();
    let rate = rate.filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "expected messages per second, as 50 or 0.5".to_owned())
}

/// Parses `name=value`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not a header; write it as NAME=VALUE")),
    }
}

/// Reads a text file; the standard input if the path is `-`.
pub(crate) fn text_file(path: &Path) -> Result<String, Failure> {
    let read = match path.as_os_str() == "-" {
        true => io::read_to_string(io::stdin()),
        false => fs::read_to_string(path),
    };
    Ok(read.with_context(|| format!("cannot read `{}`", path.display()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        for (text, millis) in [
            ("0", 0),
            ("00", 0),
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("5 min", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(duration_or_millis(text), duration(text), "{text}");
        }
        let refusal = duration("5").unwrap_err();
        assert!(refusal.contains("`5s` or `5ms`"), "{refusal}");
        let millis = Duration::from_millis(30_000);
        assert_eq!(duration_or_millis("30000"), Ok(millis));
    }

    #[test]
    fn what_is_no_time_is_refused_with_an_example() {
        for text in ["", "s", "5x", "-5s", "-5", "1.5s", "--key"] {
            for parse in [duration, duration_or_millis] {
                let refusal = parse(text).unwrap_err();
                assert!(refusal.contains("`30s`"), "{text}: {refusal}");
            }
        }
        for text in ["99999999999999999999s", "18446744073709551615d"] {
            assert_eq!(duration(text), Err("the number is too large".to_owned()));
        }
    }

    #[test]
    fn a_header_may_have_an_empty_value_and_no_empty_name() {
        assert_eq!(header("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(header("a="), Ok(("a".to_owned(), String::new())));
        assert!(header("=b").is_err());
        assert!(header("a").is_err());
    }
}
