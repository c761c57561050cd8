//! The answers of the hooks.
//!
//! This module checks every value that a script returns, so a [`Scheduling`] or a [`FailureAnswer`] is always valid. A
//! message's headers often decide about the answer, so one producer can make it invalid, and that must not cost more
//! than this message's own answer:
//!
//! - A number that is out of range is brought into range, and the answer says so.
//! - `on_enqueue` is checked field by field. A field that cannot be used has its default, and the answer names it. The
//!   caller may know something better.
//! - `on_failure` has one decision. If that cannot be used, there is no answer.

use std::time::Duration;

use mlua::{Table, Value};

use crate::{AnswerError, GroupWeight, Hook, HookError, Limits};

/// How a message is scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// The fairness key whose share of the queue it uses. UTF-8, like the keys of producers.
    pub fairness_key: Vec<u8>,
    /// The weight of that key, at least 1.
    pub weight: u32,
    /// The token buckets that it takes a token from, without repetitions, in the order of the script.
    pub throttle_keys: Vec<String>,
    /// The weights of groups, sorted by their paths, which differ.
    pub weights: Vec<GroupWeight>,
    /// The weight, if it was brought into range.
    pub adjusted: Option<AnswerError>,
    /// The parts of the script's answer that cannot be used; at most one of each.
    pub unusable: Vec<Unusable>,
}

/// A part of an answer that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The part.
    pub part: AnswerPart,
    /// The mistake.
    pub mistake: AnswerError,
}

impl Unusable {
    /// Returns the mistake as an error of the hook.
    pub fn error(&self) -> HookError {
        HookError::Answer {
            hook: Hook::OnEnqueue,
            mistake: self.mistake.clone(),
        }
    }
}

/// A part of the answer of `on_enqueue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// The fairness key. The default is in its place.
    FairnessKey,
    /// The weight. The default is in its place.
    Weight,
    /// The list of throttle keys: it is no list. The answer has none.
    ThrottleList,
    /// The length of that list: without some of its keys the message would escape their limits. The answer has none.
    ThrottleCount,
    /// A throttle key. It is left out: no throttle can have such a key, so it would limit nothing.
    ThrottleKey,
    /// The table of weights: it is no table, or has too many entries. The answer has none.
    GroupTable,
    /// The weight of a group: its path or its number is none. It is left out, so the group keeps the weight that it has.
    GroupWeight,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            fairness_key: b"default".to_vec(),
            weight: 1,
            throttle_keys: Vec::new(),
            weights: Vec::new(),
            adjusted: None,
            unusable: Vec::new(),
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

/// The answer of `on_failure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureAnswer {
    /// What the broker does with the message.
    pub action: FailureAction,
    /// The delay, if it was brought into range.
    pub adjusted: Option<AnswerError>,
}

impl Scheduling {
    /// Checks the fields that `on_enqueue` has returned.
    pub(crate) fn parse(
        [fairness_key, weight, throttle_keys, weights]: [Value; 4],
        limits: &Limits,
    ) -> Self {
        let mut answer = Self::default();
        match parse_fairness_key(&fairness_key, limits) {
            Ok(Some(key)) => answer.fairness_key = key,
            Ok(None) => {}
            Err(mistake) => answer.reject(AnswerPart::FairnessKey, mistake),
        }
        match parse_weight(&weight, limits) {
            Ok((weight, adjusted)) => (answer.weight, answer.adjusted) = (weight, adjusted),
            Err(mistake) => answer.reject(AnswerPart::Weight, mistake),
        }
        match throttle_keys {
            Value::Nil => {}
            Value::Table(keys) => answer.take_throttle_keys(&keys, limits),
            other => {
                let allowed = "a list of strings is expected, or nil for none";
                let mistake = mistake("`throttle_keys`", describe(&other), allowed);
                answer.reject(AnswerPart::ThrottleList, mistake);
            }
        }
        answer.take_weights(&weights, limits);
        answer
    }

    /// Returns the first number that was brought into range.
    pub fn adjustment(&self) -> Option<&AnswerError> {
        let of_groups = || self.weights.iter().find_map(|it| it.adjusted.as_ref());
        self.adjusted.as_ref().or_else(of_groups)
    }

    /// Rejects the fairness key, for a reason that the caller knows. The default is in its place.
    pub fn reject_key(&mut self, allowed: impl Into<String>) {
        let key = std::mem::replace(&mut self.fairness_key, Self::default().fairness_key);
        let found = start_of(&String::from_utf8_lossy(&key));
        let mistake = mistake("`fairness_key`", format!("{found:?}"), allowed);
        self.reject(AnswerPart::FairnessKey, mistake);
    }

    /// Returns the first part that cannot be used, as an error of the hook.
    pub fn mistake(&self) -> Option<HookError> {
        self.unusable.first().map(Unusable::error)
    }

    /// Returns whether this part of the script's answer can be used.
    pub fn is_usable(&self, part: AnswerPart) -> bool {
        self.unusable.iter().all(|it| it.part != part)
    }

    pub(crate) fn reject(&mut self, part: AnswerPart, mistake: AnswerError) {
        if self.is_usable(part) {
            self.unusable.push(Unusable { part, mistake });
        }
    }

    /// Reads a list that may have holes: `{ msg.headers["a"], msg.headers["b"] }` has one for each missing header.
    fn take_throttle_keys(&mut self, keys: &Table, limits: &Limits) {
        let mut found: Vec<(i64, String)> = Vec::new();
        // No more is read than a list may have, because nothing interrupts this loop.
        for (count, pair) in keys.pairs::<Value, Value>().enumerate() {
            if count == limits.throttle_keys {
                let max = limits.throttle_keys;
                let mistake = mistake(
                    "`throttle_keys`",
                    format!("more than {max} keys"),
                    format!("at most {max} are allowed"),
                );
                return self.reject(AnswerPart::ThrottleCount, mistake);
            }
            match parse_throttle_key(pair, limits) {
                Ok(key) => found.push(key),
                Err(mistake) => self.reject(AnswerPart::ThrottleKey, mistake),
            }
        }
        found.sort_unstable_by_key(|&(index, _)| index);
        for (_, key) in found {
            if !self.throttle_keys.contains(&key) {
                self.throttle_keys.push(key);
            }
        }
    }
}

fn parse_fairness_key(key: &Value, limits: &Limits) -> Result<Option<Vec<u8>>, AnswerError> {
    let max = limits.fairness_key_bytes;
    let wrong = |found: String, allowed: &str| Err(mistake("`fairness_key`", found, allowed));
    match key {
        Value::Nil => Ok(None),
        Value::String(key) => {
            let key = key.as_bytes();
            if key.len() > max {
                let found = format!("a string of {} bytes", key.len());
                return wrong(found, &format!("at most {max} bytes are allowed"));
            }
            // Keys are text on the wire, so no call could name another one.
            if std::str::from_utf8(&key).is_err() {
                let found = "a string that is not UTF-8".to_owned();
                return wrong(found, "a string of UTF-8 is expected");
            }
            Ok(Some(key.to_vec()))
        }
        other => wrong(
            describe(other),
            "a string is expected, or nil for \"default\"",
        ),
    }
}

/// Returns the weight, and the mistake if it had to be brought into range.
fn parse_weight(
    weight: &Value,
    limits: &Limits,
) -> Result<(u32, Option<AnswerError>), AnswerError> {
    let max = limits.weight;
    let wrong = || {
        let allowed = format!("a whole number from 1 to {max} is expected, or nil for 1");
        mistake("`weight`", describe(weight), allowed)
    };
    if weight.is_nil() {
        return Ok((1, None));
    }
    let (nearest, is_exact) = nearest_weight(weight, limits).ok_or_else(wrong)?;
    Ok((nearest, (!is_exact).then(wrong)))
}

/// Returns the weight that is nearest to a number, and whether it is that number; `None` if the value is no number.
pub(crate) fn nearest_weight(weight: &Value, limits: &Limits) -> Option<(u32, bool)> {
    let max = limits.weight;
    match *weight {
        Value::Integer(weight) => {
            let nearest = weight.clamp(1, max.into());
            Some((nearest as u32, nearest == weight))
        }
        Value::Number(weight) if !weight.is_nan() => {
            let nearest = weight.round().clamp(1.0, max.into());
            Some((nearest as u32, nearest == weight))
        }
        _ => None,
    }
}

fn parse_throttle_key(
    pair: mlua::Result<(Value, Value)>,
    limits: &Limits,
) -> Result<(i64, String), AnswerError> {
    let (index, key) =
        pair.map_err(|error| mistake("`throttle_keys`", error.to_string(), "a list is expected"))?;
    let Value::Integer(index) = index else {
        return Err(mistake(
            "`throttle_keys`",
            format!("a table with {} as a key", describe(&index)),
            "a list of strings is expected, as in `{ \"a\", \"b\" }`",
        ));
    };
    let max = limits.throttle_key_bytes;
    let wrong = |found| {
        mistake(
            &format!("`throttle_keys[{index}]`"),
            found,
            format!("a string of 1 to {max} bytes of UTF-8 is expected"),
        )
    };
    let Value::String(text) = key else {
        return Err(wrong(describe(&key)));
    };
    let bytes = text.as_bytes();
    if bytes.is_empty() || bytes.len() > max {
        return Err(wrong(format!("a string of {} bytes", bytes.len())));
    }
    let key = String::from_utf8(bytes.to_vec());
    let key = key.map_err(|_| wrong("a string that is not UTF-8".to_owned()))?;
    Ok((index, key))
}

impl FailureAnswer {
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
            b"dlq" => Ok(Self {
                action: FailureAction::DeadLetter,
                adjusted: None,
            }),
            b"retry" => {
                let (delay, adjusted) = parse_delay(&delay_ms, limits)?;
                let action = FailureAction::Retry { delay };
                Ok(Self { action, adjusted })
            }
            _ => Err(mistake(
                "`action`",
                describe(&action),
                "\"retry\" or \"dlq\" is expected",
            )),
        }
    }
}

/// Returns the delay, and the mistake if it had to be brought into range.
fn parse_delay(
    delay_ms: &Value,
    limits: &Limits,
) -> Result<(Duration, Option<AnswerError>), AnswerError> {
    let max = limits.delay;
    let wrong = || {
        let allowed = format!(
            "a number of milliseconds from 0 to {} is expected, or nil for 0",
            max.as_millis()
        );
        mistake("`delay_ms`", describe(delay_ms), allowed)
    };
    let (delay, is_negative) = match *delay_ms {
        Value::Nil => (Some(Duration::ZERO), false),
        Value::Integer(delay) => {
            let whole = u64::try_from(delay).ok();
            (whole.map(Duration::from_millis), delay < 0)
        }
        Value::Number(delay) if !delay.is_nan() => {
            let seconds = delay.abs() / 1000.0;
            let amount = Duration::try_from_secs_f64(seconds).ok();
            (amount.filter(|_| delay >= 0.0), delay < 0.0)
        }
        _ => return Err(wrong()),
    };
    Ok(match delay {
        Some(delay) if delay <= max => (delay, None),
        _ if is_negative => (Duration::ZERO, Some(wrong())),
        _ => (max, Some(wrong())),
    })
}

/// Describes a value in a few words.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Nil => "nil".to_owned(),
        Value::Boolean(yes) => yes.to_string(),
        Value::String(text) => format!("{:?}", start_of(&text.to_string_lossy())),
        other => format!("a {}", other.type_name()),
    }
}

/// Returns the first characters of a text.
pub(crate) fn start_of(text: &str) -> String {
    let mut start: String = text.chars().take(40).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
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
