//! Messages in JSON: `fila consume --json` prints them, and `fila enqueue --json-lines` reads them.
//!
//! The second reads the output of the first, so a pipe can move messages from queue to queue.

pub mod fuzzing;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fila_sdk::{History, Message, Received};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::printable;

/// How many characters an error about a line has at most. The name of an unknown field may be as long as the line.
const WRONG_CHARACTERS_MAX: usize = 400;

/// A message in the output.
#[derive(Debug, Serialize)]
pub struct ReceivedJson<'a> {
    id: &'a str,
    key: &'a str,
    weight: u32,
    attempt: u32,
    enqueued_at_ms: u64,
    headers: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryJson<'a>>,
    #[serde(flatten)]
    payload: PayloadJson<'a>,
}

/// The failures of a message, for programs.
#[derive(Debug, Serialize)]
pub struct HistoryJson<'a> {
    last_error: &'a str,
    first_failed_at_ms: u64,
    last_failed_at_ms: u64,
    /// Present in dead letters only.
    #[serde(flatten)]
    death: Option<DeathJson<'a>>,
}

/// The death of a message, for programs.
#[derive(Debug, Serialize)]
struct DeathJson<'a> {
    reason: &'static str,
    queue: &'a str,
    id: &'a str,
    attempts: u32,
    died_at_ms: u64,
    enqueued_at_ms: u64,
}

impl<'a> From<&'a History> for HistoryJson<'a> {
    fn from(history: &'a History) -> Self {
        let death = history.death.as_ref().map(|death| DeathJson {
            reason: death.reason.as_str(),
            queue: &death.queue,
            id: death.id.as_str(),
            attempts: death.attempts,
            died_at_ms: millis(death.died_at),
            enqueued_at_ms: millis(death.enqueued_at),
        });
        Self {
            last_error: &history.last_error,
            first_failed_at_ms: millis(history.first_failed_at),
            last_failed_at_ms: millis(history.last_failed_at),
            death,
        }
    }
}

/// A payload: as text if it is valid UTF-8, otherwise in Base64.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum PayloadJson<'a> {
    /// The payload is text.
    Text {
        /// The text.
        payload: &'a str,
    },
    /// The payload is not text.
    Bytes {
        /// The payload in Base64.
        payload_base64: String,
    },
}

impl<'a> From<&'a [u8]> for PayloadJson<'a> {
    fn from(payload: &'a [u8]) -> Self {
        match std::str::from_utf8(payload) {
            Ok(payload) => Self::Text { payload },
            Err(_) => Self::Bytes {
                payload_base64: STANDARD.encode(payload),
            },
        }
    }
}

impl<'a> From<&'a Received> for ReceivedJson<'a> {
    fn from(message: &'a Received) -> Self {
        Self {
            id: message.id.as_str(),
            key: &message.key,
            weight: message.weight,
            attempt: message.attempt,
            enqueued_at_ms: millis(message.enqueued_at),
            headers: &message.headers,
            history: message.history.as_ref().map(HistoryJson::from),
            payload: PayloadJson::from(&message.payload[..]),
        }
    }
}

/// Returns milliseconds since the Unix epoch.
pub fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A message in the input. The command refuses unknown fields, because a mistyped field would have no effect.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LineJson {
    key: Option<String>,
    weight: Option<u32>,
    headers: BTreeMap<String, String>,
    payload: Option<Value>,
    payload_base64: Option<String>,
    delay_ms: Option<u64>,
    ttl_ms: Option<u64>,
    deduplication_id: Option<String>,
    throttle_keys: Vec<String>,
    // Fields that `fila consume --json` prints and that do not apply to a new message.
    #[serde(rename = "id")]
    _id: IgnoredAny,
    #[serde(rename = "attempt")]
    _attempt: IgnoredAny,
    #[serde(rename = "enqueued_at_ms")]
    _enqueued_at_ms: IgnoredAny,
    #[serde(rename = "history")]
    _history: IgnoredAny,
}

impl LineJson {
    /// Reads a line.
    ///
    /// # Errors
    /// A text for the user.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(line).map_err(|error| {
            let text = error.to_string();
            // It contains the line number within this one line.
            let wrong = text.rsplit_once(" at line ");
            let wrong = wrong.map_or(&*text, |(wrong, _)| wrong);
            // It quotes the input.
            let wrong: String = printable(wrong)
                .chars()
                .take(WRONG_CHARACTERS_MAX)
                .collect();
            format!(
                "is not a message in JSON, at column {}: {wrong}",
                error.column()
            )
        })
    }

    /// Makes a message of it. The template supplies the fields that it lacks.
    ///
    /// # Errors
    /// A text for the user.
    pub fn into_message(
        self,
        template: impl FnOnce(Vec<u8>) -> Message,
    ) -> Result<Message, String> {
        let payload = match (self.payload, self.payload_base64) {
            (Some(_), Some(_)) => return Err("has both payload and payload_base64".to_owned()),
            (Some(Value::String(text)), None) => text.into_bytes(),
            (Some(value), None) => value.to_string().into_bytes(),
            (None, Some(text)) => STANDARD
                .decode(text)
                .map_err(|error| format!("has an invalid payload_base64: {error}"))?,
            (None, None) => return Err("has no payload".to_owned()),
        };
        let mut message = template(payload).headers(self.headers);
        if let Some(key) = self.key {
            message = message.key(key);
        }
        if let Some(weight) = self.weight {
            message = message.weight(weight);
        }
        if let Some(delay) = self.delay_ms {
            message = message.delay(Duration::from_millis(delay));
        }
        match self.ttl_ms {
            Some(0) => message = message.without_ttl(),
            Some(ttl) => message = message.time_to_live(Duration::from_millis(ttl)),
            None => {}
        }
        if let Some(id) = self.deduplication_id {
            message = message.deduplication_id(id);
        }
        for key in self.throttle_keys {
            message = message.throttle_key(key);
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Message, String> {
        LineJson::parse(line.as_bytes())?.into_message(Message::new)
    }

    #[test]
    fn a_payload_is_text_or_json_or_base64() {
        assert_eq!(read(r#"{"payload":"seven"}"#), Ok(Message::new("seven")));
        assert_eq!(
            read(r#"{"payload":{"order": 7}}"#),
            Ok(Message::new(r#"{"order":7}"#))
        );
        assert_eq!(
            read(r#"{"payload_base64":"/wA="}"#),
            Ok(Message::new(vec![0xff, 0x00]))
        );
    }

    #[test]
    fn what_a_line_says_is_stronger_than_the_template() {
        let line = LineJson::parse(br#"{"key":"acme","headers":{"a":"1"},"payload":""}"#).unwrap();
        let message = line.into_message(|payload| {
            Message::new(payload)
                .key("other")
                .weight(3)
                .header("a", "0")
                .header("b", "2")
        });
        let expected = Message::new("")
            .key("acme")
            .weight(3)
            .header("a", "1")
            .header("b", "2");
        assert_eq!(message, Ok(expected));
    }

    #[test]
    fn what_was_printed_can_be_read() {
        let line = r#"{"id":"x","key":"acme","weight":1,"attempt":2,"enqueued_at_ms":5,"headers":{},"payload":"p"}"#;
        assert_eq!(read(line), Ok(Message::new("p").key("acme").weight(1)));
    }

    #[test]
    fn a_mistyped_field_is_refused_and_so_is_a_missing_payload() {
        assert!(
            read(r#"{"payload":"p","kye":"acme"}"#)
                .unwrap_err()
                .contains("kye")
        );
        assert_eq!(read("{}"), Err("has no payload".to_owned()));
        assert!(read("seven").is_err());
        assert!(read(r#"{"payload_base64":"?"}"#).is_err());
    }

    #[test]
    fn what_is_wrong_with_a_line_is_one_short_line_whatever_it_cites() {
        let wrong = read(r#"{"\u001b[2J\n at line 5":1}"#).unwrap_err();
        let start = "is not a message in JSON, at column 24: unknown field `\\u{1b}[2J\\n at line 5`, expected";
        assert!(wrong.starts_with(start), "{wrong}");
        let long = "x".repeat(1 << 20);
        let wrong = read(&format!(r#"{{"{long}":1}}"#)).unwrap_err();
        assert!(wrong.len() < 500, "{} bytes", wrong.len());
    }
}
