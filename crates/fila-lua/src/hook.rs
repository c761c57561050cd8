//! The inputs and the answers of the hooks.
//!
//! This module checks every value that a script returns. A [`Scheduling`] or a [`FailureAction`] is always valid.

use std::fmt;
use std::time::Duration;

use mlua::{Table, Value};

use crate::{AnswerError, Limits};

/// A function that a script may define.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Called when a message is enqueued; decides how the broker schedules it.
    OnEnqueue,
    /// Called when a message has failed; decides whether the broker delivers it again.
    OnFailure,
}

impl Hook {
    /// Returns the name of the function.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnEnqueue => "on_enqueue",
            Self::OnFailure => "on_failure",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The input of `on_enqueue`.
#[derive(Clone, Copy, Debug)]
pub struct EnqueueInput<'a> {
    /// The headers of the message. If a name occurs twice, the last one counts.
    pub headers: &'a [(String, String)],
    /// Bytes of its payload.
    pub payload_size: usize,
    /// The name of its queue.
    pub queue: &'a str,
}

/// The input of `on_failure`.
#[derive(Clone, Copy, Debug)]
pub struct FailureInput<'a> {
    /// The headers of the message. If a name occurs twice, the last one counts.
    pub headers: &'a [(String, String)],
    /// Its id, as users see it.
    pub id: &'a str,
    /// The number of its deliveries, including the attempt that failed.
    pub attempts: u32,
    /// The name of its queue.
    pub queue: &'a str,
    /// Why the attempt failed.
    pub error: &'a str,
}

/// How a message is scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// The fairness key whose share of the queue it uses. UTF-8, like the keys of producers.
    pub fairness_key: Vec<u8>,
    /// The weight of that key, at least 1.
    pub weight: u32,
    /// The token buckets that it takes a token from, without repetitions, in the order of the script.
    pub throttle_keys: Vec<String>,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            fairness_key: b"default".to_vec(),
            weight: 1,
            throttle_keys: Vec::new(),
        }
    }
}

/// The fate of a message that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// Deliver it again.
    Retry {
        /// The time until then, at least.
        delay: Duration,
    },
    /// Move it to the dead-letter queue.
    DeadLetter,
}

impl Scheduling {
    /// Checks the fields that `on_enqueue` has returned.
    pub(crate) fn parse(
        [fairness_key, weight, throttle_keys]: [Value; 3],
        limits: &Limits,
    ) -> Result<Self, AnswerError> {
        let default = Self::default();
        let fairness_key = match fairness_key {
            Value::Nil => default.fairness_key,
            Value::String(key) => {
                let key = key.as_bytes();
                let max = limits.fairness_key_bytes;
                if key.len() > max {
                    return Err(mistake(
                        "`fairness_key`",
                        format!("a string of {} bytes", key.len()),
                        format!("at most {max} bytes are allowed"),
                    ));
                }
                // Keys are text on the wire, so no call could name another one.
                if std::str::from_utf8(&key).is_err() {
                    return Err(mistake(
                        "`fairness_key`",
                        "a string that is not UTF-8",
                        "a string of UTF-8 is expected",
                    ));
                }
                key.to_vec()
            }
            other => {
                return Err(mistake(
                    "`fairness_key`",
                    describe(&other),
                    "a string is expected, or nil for \"default\"",
                ));
            }
        };
        Ok(Self {
            fairness_key,
            weight: parse_weight(&weight, limits)?.unwrap_or(default.weight),
            throttle_keys: match throttle_keys {
                Value::Nil => default.throttle_keys,
                Value::Table(keys) => parse_throttle_keys(&keys, limits)?,
                other => {
                    return Err(mistake(
                        "`throttle_keys`",
                        describe(&other),
                        "a list of strings is expected, or nil for none",
                    ));
                }
            },
        })
    }
}

fn parse_weight(weight: &Value, limits: &Limits) -> Result<Option<u32>, AnswerError> {
    let max = limits.weight;
    let whole = match *weight {
        Value::Nil => return Ok(None),
        Value::Integer(weight) => u32::try_from(weight).ok(),
        // The cast saturates, and a saturated number differs from the original. NaN differs from every number.
        Value::Number(weight) => Some(weight as u32).filter(|&whole| f64::from(whole) == weight),
        _ => None,
    };
    match whole {
        Some(weight @ 1..) if weight <= max => Ok(Some(weight)),
        _ => Err(mistake(
            "`weight`",
            describe(weight),
            format!("a whole number from 1 to {max} is expected, or nil for 1"),
        )),
    }
}

/// Reads a list that may have holes: `{ msg.headers["a"], msg.headers["b"] }` has one for each missing header.
fn parse_throttle_keys(keys: &Table, limits: &Limits) -> Result<Vec<String>, AnswerError> {
    let mut found: Vec<(i64, String)> = Vec::new();
    for pair in keys.pairs::<Value, Value>() {
        let (index, key) = pair
            .map_err(|error| mistake("`throttle_keys`", error.to_string(), "a list is expected"))?;
        let Value::Integer(index) = index else {
            return Err(mistake(
                "`throttle_keys`",
                format!("a table with {} as a key", describe(&index)),
                "a list of strings is expected, as in `{ \"a\", \"b\" }`",
            ));
        };
        if found.len() == limits.throttle_keys {
            return Err(mistake(
                "`throttle_keys`",
                format!("more than {} keys", limits.throttle_keys),
                format!("at most {} are allowed", limits.throttle_keys),
            ));
        }
        found.push((index, parse_throttle_key(index, &key, limits)?));
    }
    found.sort_unstable_by_key(|&(index, _)| index);
    let mut keys: Vec<String> = Vec::with_capacity(found.len());
    for (_, key) in found {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    Ok(keys)
}

fn parse_throttle_key(index: i64, key: &Value, limits: &Limits) -> Result<String, AnswerError> {
    let max = limits.throttle_key_bytes;
    let wrong = |found| {
        mistake(
            &format!("`throttle_keys[{index}]`"),
            found,
            format!("a string of 1 to {max} bytes of UTF-8 is expected"),
        )
    };
    let Value::String(text) = key else {
        return Err(wrong(describe(key)));
    };
    let bytes = text.as_bytes();
    if bytes.is_empty() || bytes.len() > max {
        return Err(wrong(format!("a string of {} bytes", bytes.len())));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| wrong("a string that is not UTF-8".to_owned()))
}

impl FailureAction {
    /// Checks the fields that `on_failure` has returned.
    pub(crate) fn parse(
        [action, delay_ms]: [Value; 2],
        limits: &Limits,
    ) -> Result<Self, AnswerError> {
        let word = match &action {
            Value::String(word) => word.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        match word.as_slice() {
            b"dlq" => Ok(Self::DeadLetter),
            b"retry" => Ok(Self::Retry {
                delay: parse_delay(&delay_ms, limits)?,
            }),
            _ => Err(mistake(
                "`action`",
                describe(&action),
                "\"retry\" or \"dlq\" is expected",
            )),
        }
    }
}

fn parse_delay(delay_ms: &Value, limits: &Limits) -> Result<Duration, AnswerError> {
    let delay = match *delay_ms {
        Value::Nil => Some(Duration::ZERO),
        Value::Integer(delay) => u64::try_from(delay).ok().map(Duration::from_millis),
        Value::Number(delay) => Duration::try_from_secs_f64(delay / 1000.0).ok(),
        _ => None,
    };
    delay.filter(|&delay| delay <= limits.delay).ok_or_else(|| {
        mistake(
            "`delay_ms`",
            describe(delay_ms),
            format!(
                "a number of milliseconds from 0 to {} is expected, or nil for 0",
                limits.delay.as_millis()
            ),
        )
    })
}

/// Describes a value in a few words.
fn describe(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Nil => "nil".to_owned(),
        Value::Boolean(yes) => yes.to_string(),
        Value::String(text) => {
            let text = text.to_string_lossy();
            let mut start: String = text.chars().take(40).collect();
            if start.len() < text.len() {
                start.push('…');
            }
            format!("{start:?}")
        }
        other => format!("a {}", other.type_name()),
    }
}

pub(crate) fn mistake(
    field: &str,
    found: impl Into<String>,
    allowed: impl Into<String>,
) -> AnswerError {
    AnswerError {
        field: field.to_owned(),
        found: found.into(),
        allowed: allowed.into(),
    }
}
