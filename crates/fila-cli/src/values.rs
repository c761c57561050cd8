//! Values in the notation of the command line.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;

use crate::failure::Failure;

/// Parses `30000` (milliseconds), `250ms`, `30s`, `5m`, `2h` or `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let refused = || {
        format!(
            "`{text}` is not a time; write `30s`, `5m`, `2h`, `7d`, or a number of milliseconds"
        )
    };
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| refused())?;
    let unit = match unit.trim_start() {
        "" | "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return Err(refused()),
    };
    let millis = number.checked_mul(unit).ok_or_else(refused)?;
    Ok(Duration::from_millis(millis))
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
    fn a_bare_number_is_milliseconds_and_units_are_known() {
        for (text, millis) in [
            ("30000", 30_000),
            ("0", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("5 min", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_examples() {
        for text in [
            "",
            "s",
            "5x",
            "-5s",
            "1.5s",
            "99999999999999999999",
            "18446744073709551615d",
        ] {
            let refusal = duration(text).unwrap_err();
            assert!(refusal.contains("30s"), "{refusal}");
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
