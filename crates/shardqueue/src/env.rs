//! Reading a configuration from the environment.

use std::ffi::{OsStr, OsString};
use std::str::FromStr;
use std::time::Duration;

use crate::config::Config;
use crate::duration;
use crate::error::ConfigError;
use crate::path::Separator;

const WHOLE_NUMBER: &str = "a whole number such as `8`";
const SEPARATOR: &str = "one character such as `/`, and no letter, digit or space";
const DURATION: &str = "a duration such as `100ms`, `1.5s` or `1m30s`";

impl Config {
    /// Reads `SQ_SHARDS`, `SQ_CONCURRENCY`, `SQ_QUEUE_SIZE`, `SQ_KEY_QUEUE_SIZE`, `SQ_KEY_SEPARATOR`,
    /// `SQ_ENQUEUE_TIMEOUT`, `SQ_MAX_ATTEMPTS`, `SQ_BASE_BACKOFF` and `SQ_MAX_INTERVAL`; those that are not set, or
    /// empty, keep their default.
    /// Durations are written as `100ms`, `1.5s` or `1m30s`.
    ///
    /// # Errors
    /// If one of them has an invalid value; the error names the variable and quotes the value.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Reads a configuration as [`from_env`](Self::from_env) does, from any list of names and texts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shardqueue::Config;
    ///
    /// let config = Config::from_vars([("SQ_SHARDS", "8"), ("SQ_BASE_BACKOFF", "50ms"), ("HOME", "/")])?;
    /// assert_eq!((config.shards, config.base_backoff), (8, Duration::from_millis(50)));
    ///
    /// let error = Config::from_vars([("SQ_SHARDS", "many")]).unwrap_err();
    /// assert_eq!(error.to_string(), "SQ_SHARDS: expected a whole number such as `8`, got `many`");
    /// # Ok::<(), shardqueue::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_vars<N, T>(vars: impl IntoIterator<Item = (N, T)>) -> Result<Self, ConfigError>
    where
        N: Into<OsString>,
        T: Into<OsString>,
    {
        let mut config = Self::default();
        for (name, text) in vars {
            let (name, text) = (name.into(), text.into());
            if text.is_empty() {
                continue;
            }
            match name.to_str() {
                Some("SQ_SHARDS") => config.shards = number("SQ_SHARDS", &text)?,
                Some("SQ_CONCURRENCY") => config.concurrency = number("SQ_CONCURRENCY", &text)?,
                Some("SQ_QUEUE_SIZE") => config.queue_size = number("SQ_QUEUE_SIZE", &text)?,
                Some("SQ_KEY_QUEUE_SIZE") => {
                    config.key_queue_size = number("SQ_KEY_QUEUE_SIZE", &text)?;
                }
                Some("SQ_KEY_SEPARATOR") => config.key_separator = Some(separator(&text)?),
                Some("SQ_ENQUEUE_TIMEOUT") => {
                    config.enqueue_timeout = time("SQ_ENQUEUE_TIMEOUT", &text)?;
                }
                Some("SQ_MAX_ATTEMPTS") => config.max_attempts = number("SQ_MAX_ATTEMPTS", &text)?,
                Some("SQ_BASE_BACKOFF") => config.base_backoff = time("SQ_BASE_BACKOFF", &text)?,
                Some("SQ_MAX_INTERVAL") => config.max_interval = time("SQ_MAX_INTERVAL", &text)?,
                _ => {}
            }
        }
        Ok(config)
    }
}

fn number<N: FromStr>(variable: &'static str, text: &OsStr) -> Result<N, ConfigError> {
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| wrong(variable, WHOLE_NUMBER, text))
}

fn separator(text: &OsStr) -> Result<char, ConfigError> {
    let mut characters = text.to_str().unwrap_or_default().chars();
    match (characters.next(), characters.next()) {
        (Some(character), None) if Separator::new(character).is_some() => Ok(character),
        _ => Err(wrong("SQ_KEY_SEPARATOR", SEPARATOR, text)),
    }
}

fn time(variable: &'static str, text: &OsStr) -> Result<Duration, ConfigError> {
    let parsed = text.to_str().and_then(duration::parse);
    parsed.ok_or_else(|| wrong(variable, DURATION, text))
}

fn wrong(variable: &'static str, expected: &'static str, text: &OsStr) -> ConfigError {
    ConfigError::Variable {
        variable,
        expected,
        text: text.to_string_lossy().into_owned(),
    }
}
