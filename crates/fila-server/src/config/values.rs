//! Values that are words or texts with rules of their own.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// What keeps the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageEngine {
    /// An embedded database in files under `storage.path`.
    #[default]
    Fjall,
    /// The memory of this process: everything is gone when it ends. For tests and for trying things out.
    Memory,
    /// A RocksDB database in files under `storage.path`.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

impl StorageEngine {
    /// All engines of this build.
    pub const ALL: &'static [Self] = &[
        Self::Fjall,
        Self::Memory,
        #[cfg(feature = "rocksdb")]
        Self::Rocksdb,
    ];

    /// Returns the engine's name, as it is configured.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fjall => "fjall",
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

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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

/// What is logged: a level, or levels per target, as `info` or `warn,fila_server=debug`.
///
/// The directives are those of [`Targets`], except that a target alone, which would mean everything it says, is
/// refused: `inof` is more often a misspelt level than a target.
#[derive(Clone, Debug, PartialEq)]
pub struct LogFilter {
    text: String,
    targets: Targets,
}

impl LogFilter {
    /// Returns the directives as they were written.
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

impl Default for LogFilter {
    fn default() -> Self {
        Self {
            text: "info".to_owned(),
            targets: Targets::new().with_default(LevelFilter::INFO),
        }
    }
}

/// A text that is no filter of log lines.
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
        let targets = directives.join(",").parse().map_err(|_| refused())?;
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
}
