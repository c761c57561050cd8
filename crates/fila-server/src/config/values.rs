//! Types of values: sizes, words and filters.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// A number of bytes, written as `65536`, `64 KiB` (of 1,024) or `64 KB` (of 1,000).
///
/// The crate `bytesize` does not fit: it rounds fractions, ignores case, and prints `1025` as `1.0 KiB`. A size here is
/// exact or rejected, and reads back as it was printed.
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

/// The units. A size prints in the first of the binary ones that is exact.
const UNITS: &[(&str, u64)] = &[
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];

impl ByteSize {
    /// Returns a size in bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns a size in units of 1,024 bytes, saturating.
    #[must_use]
    pub const fn kib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 10))
    }

    /// Returns a size in units of 1,048,576 bytes, saturating.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the number of bytes as a length in memory, saturating.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Returns the size as a whole number of the largest binary unit that fits, if one fits.
    pub(super) fn in_binary_unit(self) -> Option<(u64, &'static str)> {
        let fits = |unit: u64| self.0 >= unit && self.0.is_multiple_of(unit);
        let (unit, size) = UNITS[..3].iter().find(|(_, size)| fits(*size))?;
        Some((self.0 / size, unit))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = self.in_binary_unit().unwrap_or((self.0, "B"));
        write!(f, "{count} {unit}")
    }
}

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no size; write bytes as `65536`, or with a unit as `64 KiB`, `256 MiB`, `1 GB`")]
pub struct NotAByteSize(String);

impl FromStr for ByteSize {
    type Err = NotAByteSize;

    fn from_str(text: &str) -> Result<Self, NotAByteSize> {
        parse_size(text.trim()).ok_or_else(|| NotAByteSize(text.to_owned()))
    }
}

/// Reads a number, possibly with a fraction, and a unit.
fn parse_size(text: &str) -> Option<ByteSize> {
    let is_digit = |c: char| c.is_ascii_digit() || matches!(c, '.' | '_');
    let unit = text.trim_start_matches(is_digit);
    let number = &text[..text.len() - unit.len()];
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
    // A dot has digits on both sides, and an underscore stands between digits.
    if number.starts_with(['.', '_']) || number.ends_with(['.', '_']) {
        return None;
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = u32::try_from(fraction.len()).ok().filter(|n| *n <= 9)?;
    let whole: u64 = whole.replace('_', "").parse().ok()?;
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(*scale);
    // The parser rejects a part of a byte instead of rounding it.
    let part = part
        .is_multiple_of(10_u128.pow(digits))
        .then(|| part / 10_u128.pow(digits))?;
    let bytes = u128::from(whole) * u128::from(*scale) + part;
    u64::try_from(bytes).ok().map(ByteSize)
}

/// The storage engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageEngine {
    /// A log and sorted tables in files under `storage.path`.
    #[default]
    Lsm,
    /// The memory of this process, lost when it ends. For tests and experiments.
    Memory,
    /// A RocksDB database in files under `storage.path`.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

impl StorageEngine {
    /// All engines of this build.
    pub const ALL: &'static [Self] = &[
        Self::Lsm,
        Self::Memory,
        #[cfg(feature = "rocksdb")]
        Self::Rocksdb,
    ];

    /// Returns the engine's name, as it is configured.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lsm => "lsm",
            Self::Memory => "memory",
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => "rocksdb",
        }
    }
}

impl fmt::Display for StorageEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// The server asks for none.
    #[default]
    Off,
    /// The server checks the certificate of a client that has one.
    Optional,
    /// The server closes connections without a valid certificate.
    Required,
}

impl ClientCertificates {
    /// All choices.
    pub const ALL: &'static [Self] = &[Self::Off, Self::Optional, Self::Required];

    /// Returns the choice's name, as it is configured.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

impl fmt::Display for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON object per line.
    Json,
}

impl LogFormat {
    /// All formats.
    pub const ALL: &'static [Self] = &[Self::Text, Self::Json];

    /// Returns the format's name, as it is configured.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A filter of the events that the server logs: a level, or levels per target, as `info` or `warn,fila_server=debug`.
///
/// The directives are those of [`Targets`], except for a target alone, which would enable all its levels. The filter
/// rejects it: `inof` is more often a misspelt level than a target.
///
/// At `info` the database logs each table that it opens. Its lines are left out there unless the filter names
/// `lsm_tree`; warnings are not.
#[derive(Clone, Debug, PartialEq)]
pub struct LogFilter {
    text: String,
    targets: Targets,
}

impl LogFilter {
    /// Returns the directives as the user wrote them.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the filter.
    #[must_use]
    pub const fn targets(&self) -> &Targets {
        &self.targets
    }
}

/// The target of the database's own lines.
const DATABASE: &str = "lsm_tree";

impl Default for LogFilter {
    fn default() -> Self {
        Self {
            text: "info".to_owned(),
            targets: Targets::new()
                .with_default(LevelFilter::INFO)
                .with_target(DATABASE, LevelFilter::WARN),
        }
    }
}

/// A text that is not a filter of log lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no filter of log lines; write `off`, `error`, `warn`, `info`, `debug` or `trace`, \
     or such levels per target, as `warn,fila_server=debug`"
)]
pub struct NotALogFilter(String);

impl FromStr for LogFilter {
    type Err = NotALogFilter;

    fn from_str(text: &str) -> Result<Self, NotALogFilter> {
        let is_clear = |directive: &str| match directive.trim().split_once('=') {
            Some((target, level)) => is_target(target) && is_level(level),
            None => is_level(directive.trim()),
        };
        let refused = || NotALogFilter(text.to_owned());
        if !text.split(',').all(is_clear) {
            return Err(refused());
        }
        let directives: Vec<&str> = text.split(',').map(str::trim).collect();
        let mut targets: Targets = directives.join(",").parse().map_err(|_| refused())?;
        let names_database = |directive: &&str| directive.starts_with(DATABASE);
        if targets.default_level() == Some(LevelFilter::INFO)
            && !directives.iter().any(names_database)
        {
            targets = targets.with_target(DATABASE, LevelFilter::WARN);
        }
        Ok(Self {
            text: text.to_owned(),
            targets,
        })
    }
}

fn is_target(text: &str) -> bool {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.');
    !text.is_empty() && text.chars().all(is_fit)
}

fn is_level(text: &str) -> bool {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    levels.iter().any(|level| text.eq_ignore_ascii_case(level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_filter_lets_through_what_its_directives_say() {
        let filter: LogFilter = "warn, fila_server=debug".parse().unwrap();
        assert!(
            filter
                .targets()
                .would_enable("fila_server::config", &Level::DEBUG)
        );
        assert!(filter.targets().would_enable("h2", &Level::WARN));
        assert!(!filter.targets().would_enable("h2", &Level::INFO));
        assert_eq!("info".parse(), Ok(LogFilter::default()));
    }

    #[test]
    fn the_databases_own_lines_are_logged_at_debug_or_by_name() {
        let shows = |text: &str, level| {
            let filter: LogFilter = text.parse().unwrap();
            filter.targets().would_enable("lsm_tree::tree", &level)
        };
        for text in ["info", "INFO", "info,fila_server=debug"] {
            assert!(!shows(text, Level::INFO), "{text}");
            assert!(shows(text, Level::WARN), "{text}");
        }
        for text in ["debug", "info,lsm_tree=info", "info, lsm_tree::tree=info"] {
            assert!(shows(text, Level::INFO), "{text}");
        }
        assert!(!shows("error", Level::WARN));
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for text in [
            "",
            " ",
            "inof",
            "fila",
            "fila=",
            "=info",
            "fila=loud",
            "info,",
            "[span]=info",
            "3",
            "a b=info",
        ] {
            assert!(text.parse::<LogFilter>().is_err(), "{text:?}");
        }
    }

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
