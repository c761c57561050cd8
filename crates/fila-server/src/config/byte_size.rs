//! Sizes as people write them: `65536`, `64 KiB`, `1.5 GB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, written as `65536`, `64 KiB` (of 1,024) or `64 KB` (of 1,000).
///
/// ```
/// use fila_server::config::ByteSize;
///
/// let size: ByteSize = "256 MiB".parse()?;
/// assert_eq!((size.bytes(), size.to_string()), (268_435_456, "256 MiB".to_owned()));
/// # Ok::<(), fila_server::config::NotAByteSize>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// The units, in the order in which a size looks for the one to be printed in.
const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl ByteSize {
    /// Returns the size of so many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the size of so many times 1,024 bytes, at most the largest size there is.
    #[must_use]
    pub const fn kib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 10))
    }

    /// Returns the size of so many times 1,048,576 bytes, at most the largest size there is.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the number of bytes as a length in memory; the largest there is, if it is larger.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Returns the size in the largest unit that it is a whole number of, if that is a unit of 1,024.
    pub(super) fn in_binary_unit(self) -> Option<(u64, &'static str)> {
        let (unit, size) = UNITS[..3]
            .iter()
            .find(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size))?;
        Some((self.0 / size, unit))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.in_binary_unit() {
            Some((count, unit)) => write!(f, "{count} {unit}"),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no size; write bytes as `65536`, or with a unit as `64 KiB`, `256 MiB`, `1 GB`")]
pub struct NotAByteSize(String);

impl FromStr for ByteSize {
    type Err = NotAByteSize;

    fn from_str(text: &str) -> Result<Self, NotAByteSize> {
        parse(text).ok_or_else(|| NotAByteSize(text.to_owned()))
    }
}

/// Reads a number, possibly with a fraction, and a unit; bytes if there is none.
fn parse(text: &str) -> Option<ByteSize> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let scale = match unit {
        "" => 1,
        unit => UNITS.iter().find(|(name, _)| *name == unit)?.1,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // A dot has digits on both sides, and an underscore stands between digits.
    if whole.is_empty() || number.ends_with('.') || number.starts_with('_') || number.ends_with('_')
    {
        return None;
    }
    let whole: u64 = whole.replace('_', "").parse().ok()?;
    let mut bytes = u128::from(whole) * u128::from(scale);
    if !fraction.is_empty() {
        let digits = u32::try_from(fraction.len()).ok().filter(|n| *n <= 9)?;
        let part: u64 = fraction.parse().ok()?;
        let (part, scale) = (u128::from(part) * u128::from(scale), 10_u128.pow(digits));
        // A part of a byte is a mistake, not something to round.
        bytes += part.is_multiple_of(scale).then_some(part / scale)?;
    }
    u64::try_from(bytes).ok().map(ByteSize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_written() {
        let cases = [
            ("0", 0),
            ("65536", 65_536),
            ("65_536", 65_536),
            ("7 B", 7),
            ("64KiB", 65_536),
            ("256 MiB", 268_435_456),
            ("2 GiB", 2_147_483_648),
            ("3 KB", 3_000),
            ("3 MB", 3_000_000),
            ("1.5 GB", 1_500_000_000),
            ("0.5 KiB", 512),
            (" 1 MiB ", 1_048_576),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let texts = [
            "",
            " ",
            "MiB",
            "1 mib",
            "1 M",
            "1 MiB!",
            "-1",
            "+1",
            "1.",
            ".5 KiB",
            "1..5 KiB",
            "0.1 B",
            "0.3 KiB",
            "1e3",
            "_1",
            "1_",
            "1._5 KB",
            "0x10",
            "٣",
            "18446744073709551616",
            "17179869184 GiB",
            "0.0000000000000000000000000000000000000000000001 GiB",
        ];
        for text in texts {
            assert_eq!(
                text.parse::<ByteSize>(),
                Err(NotAByteSize(text.to_owned())),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_size_prints_in_the_largest_unit_that_is_exact() {
        let cases = [
            (0, "0 B"),
            (256, "256 B"),
            (1024, "1 KiB"),
            (1025, "1025 B"),
            (1 << 20, "1 MiB"),
            (3 << 29, "1536 MiB"),
            (1 << 31, "2 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(ByteSize(bytes).to_string(), text);
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }
    }
}
