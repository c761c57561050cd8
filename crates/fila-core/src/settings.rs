//! The settings of a queue, and how the catalogue stores them.
//!
//! Settings are stored as JSON with a version of their own: they are small, seldom written, and a person reads them when
//! something is wrong. A version refuses settings that a later one has added, instead of dropping them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fila_store::FairnessKey;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::{KeySeparator, RetryPolicy};

/// The settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// How long a message is leased.
    #[serde(rename = "visibility_timeout_ms", with = "millis")]
    pub visibility_timeout: Duration,
    /// The order in which messages of one fairness key are delivered.
    pub ordering: Ordering,
    /// The most messages of one fairness key that are leased at once, if there is a limit.
    pub key_concurrency: Option<NonZeroU32>,
    /// The unit in which a delivery counts against its fairness key's share.
    pub charge: Charge,
    /// How long the queue remembers a deduplication id.
    #[serde(rename = "deduplication_window_ms", with = "millis")]
    pub deduplication_window: Duration,
    /// The messages among which a deduplication id is unique.
    #[serde(default)]
    pub deduplication_scope: DeduplicationScope,
    /// The most messages in the queue, if less than the broker's limit.
    pub depth_max: Option<u64>,
    /// The most messages of one fairness key, if less than the broker's limit. Without it a key may hold its part.
    pub key_depth_max: Option<u64>,
    /// The character that makes a fairness key a path: see [`KeySeparator`]. Without one, every key is one name.
    #[serde(default)]
    pub key_separator: Option<KeySeparator>,
    /// The time to live of messages that are sent without one.
    #[serde(rename = "message_ttl_ms", with = "some_millis")]
    pub message_ttl: Option<Duration>,
    /// Whether the queue delivers messages.
    pub delivery: Delivering,
    /// Fairness keys with settings of their own.
    #[serde(with = "hex_keys")]
    pub keys: BTreeMap<FairnessKey, KeySettings>,
    /// The source of the queue's hooks, if it has any. This crate does not run it.
    pub script: Option<Arc<str>>,
    /// How the broker schedules a message when `on_enqueue` fails.
    pub hook_fallback: HookFallback,
    /// How failed deliveries are retried, unless a hook decides.
    pub retry: RetryPolicy,
    /// Whether a hook decides: see [`judges_failures`](Self::judges_failures).
    pub failure_hook: bool,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            visibility_timeout: Duration::from_secs(30),
            ordering: Ordering::None,
            key_concurrency: None,
            charge: Charge::Message,
            deduplication_window: Duration::from_secs(300),
            deduplication_scope: DeduplicationScope::Key,
            depth_max: None,
            key_depth_max: None,
            key_separator: Some(KeySeparator::default()),
            message_ttl: None,
            delivery: Delivering::Running,
            keys: BTreeMap::new(),
            script: None,
            hook_fallback: HookFallback::LastGood,
            retry: RetryPolicy::default(),
            failure_hook: false,
        }
    }
}

/// The order of delivery inside a fairness key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// First in, first out; a message that is delivered again comes late.
    #[default]
    None,
    /// Strict: the key has at most one lease, and a message that is delivered again keeps its place.
    Key,
}

/// The cost of a delivery, charged to its fairness key's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Charge {
    /// Every message costs the same.
    #[default]
    Message,
    /// A KiB of headers and payload costs one message, in proportion.
    Bytes,
    /// A millisecond from delivery to result costs one message. The queue charges it when the result arrives.
    Time,
}

/// The messages among which a deduplication id is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeduplicationScope {
    /// Those of the same fairness key: no other key can suppress a message or learn its id.
    #[default]
    Key,
    /// Those of the whole queue.
    Queue,
}

/// Whether a queue or a key delivers its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivering {
    /// It delivers them.
    #[default]
    Running,
    /// It delivers nothing until an operator resumes it.
    Paused,
}

/// The replacement for the answer of a hook that has failed, or that the broker does not call because it keeps failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookFallback {
    /// The default schedule.
    Default,
    /// The hook's last answer for the same headers, or for the producer's fairness key; that key if there is none.
    #[default]
    LastGood,
    /// None: the broker refuses the message.
    Refuse,
}

/// The settings of one fairness key or of a group of keys, from an operator. Those of a group bind its members together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySettings {
    /// Whether the queue delivers its messages.
    #[serde(default)]
    pub delivery: Delivering,
    /// Its weight, instead of the producers' weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<NonZeroU32>,
    /// The most leases of its messages at once, instead of the queue's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<NonZeroU32>,
    /// The most messages of the key, or of the whole group. For a key it is in place of the queue's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth_max: Option<u64>,
}

impl KeySettings {
    /// Returns whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The layout of stored settings. Raised when earlier versions would misread them.
const VERSION: u32 = 5;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored<S> {
    version: u32,
    settings: S,
}

/// Why stored settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QueueSettingsError {
    /// A later version wrote them.
    #[error(
        "the queue's settings have format {found}, newer than {VERSION}; start the version that wrote it"
    )]
    Newer {
        /// The format that they name.
        found: u32,
    },
    /// They are damaged.
    #[error("the queue's settings cannot be read; restore a copy")]
    Malformed(#[source] serde_json::Error),
}

impl QueueSettings {
    /// Returns whether a hook decides about failed deliveries: [`Effects::failures`](crate::Effects::failures) asks it, and
    /// [`Broker::judge`](crate::Broker::judge) brings its answer.
    pub fn judges_failures(&self) -> bool {
        self.failure_hook
    }

    /// Returns the settings as the catalogue stores them.
    pub fn encode(&self) -> Bytes {
        let stored = Stored {
            version: VERSION,
            settings: self,
        };
        let json = serde_json::to_vec(&stored).expect("numbers, words and text are JSON");
        json.into()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If a later version wrote it, or it is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, QueueSettingsError> {
        let malformed = QueueSettingsError::Malformed;
        let stored: Stored<IgnoredAny> = serde_json::from_slice(bytes).map_err(malformed)?;
        if stored.version > VERSION {
            return Err(QueueSettingsError::Newer {
                found: stored.version,
            });
        }
        let stored: Stored<Self> = serde_json::from_slice(bytes).map_err(malformed)?;
        Ok(stored.settings)
    }
}

/// Times as whole milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// A time that may be missing, as whole milliseconds.
mod some_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Millis(#[serde(with = "super::millis")] Duration);

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(Millis).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::deserialize(from)?.map(|Millis(time)| time))
    }
}

/// Fairness keys are bytes, and JSON has only text: hexadecimal.
mod hex_keys {
    use std::collections::BTreeMap;

    use fila_store::FairnessKey;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::KeySettings;

    type Keys = BTreeMap<FairnessKey, KeySettings>;

    pub(super) fn serialize<S: Serializer>(keys: &Keys, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(keys.iter().map(|(key, settings)| {
            let bytes = key.as_bytes().iter();
            let hex: String = bytes.map(|byte| format!("{byte:02x}")).collect();
            (hex, settings)
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Keys, D::Error> {
        let keys = BTreeMap::<String, KeySettings>::deserialize(from)?;
        let key = |hex: &str| FairnessKey::new(from_hex(hex)?).ok();
        keys.iter()
            .map(|(hex, settings)| Some((key(hex)?, *settings)))
            .collect::<Option<_>>()
            .ok_or_else(|| D::Error::custom("a fairness key is not in hexadecimal"))
    }

    fn from_hex(text: &str) -> Option<Vec<u8>> {
        let digits: Vec<u8> = text
            .chars()
            .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
            .collect::<Option<_>>()?;
        let pairs = digits.chunks(2);
        pairs
            .map(|pair| Some(pair[0] << 4 | pair.get(1)?))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> QueueSettings {
        let settings = KeySettings {
            delivery: Delivering::Paused,
            weight: NonZeroU32::new(7),
            concurrency: None,
            depth_max: Some(u64::MAX),
        };
        QueueSettings {
            visibility_timeout: Duration::from_millis(1234),
            ordering: Ordering::Key,
            key_concurrency: NonZeroU32::new(3),
            charge: Charge::Time,
            deduplication_scope: DeduplicationScope::Queue,
            depth_max: Some(10),
            key_separator: KeySeparator::new('|').ok(),
            message_ttl: Some(Duration::from_secs(9)),
            delivery: Delivering::Paused,
            keys: [(FairnessKey::new(vec![0, 255, b'a']).unwrap(), settings)].into(),
            script: Some("function on_enqueue(msg)\n  return {}\nend".into()),
            hook_fallback: HookFallback::Refuse,
            retry: RetryPolicy {
                attempts_max: None,
                backoff: Duration::from_millis(5),
                ..RetryPolicy::default()
            },
            failure_hook: true,
            ..QueueSettings::default()
        }
    }

    #[test]
    fn settings_are_read_back_as_written() {
        let flat = QueueSettings {
            key_separator: None,
            ..full()
        };
        for definition in [QueueSettings::default(), full(), flat] {
            assert_eq!(
                QueueSettings::decode(&definition.encode()).unwrap(),
                definition
            );
        }
    }

    #[test]
    fn settings_of_format_3_have_no_scope_and_get_that_of_the_key() {
        let text = String::from_utf8(QueueSettings::default().encode().to_vec()).unwrap();
        let before = text
            .replace("\"version\":5", "\"version\":3")
            .replace("\"deduplication_scope\":\"key\",", "");
        assert_eq!(before.len() + 28, text.len(), "{text}");
        let decoded = QueueSettings::decode(before.as_bytes()).unwrap();
        assert_eq!(decoded, QueueSettings::default());
    }

    #[test]
    fn settings_of_format_4_have_no_separator_and_their_keys_stay_flat() {
        let text = String::from_utf8(QueueSettings::default().encode().to_vec()).unwrap();
        let before = text
            .replace("\"version\":5", "\"version\":4")
            .replace("\"key_separator\":\"/\",", "");
        assert_eq!(before.len() + 20, text.len(), "{text}");
        let decoded = QueueSettings::decode(before.as_bytes()).unwrap();
        let flat = QueueSettings {
            key_separator: None,
            ..QueueSettings::default()
        };
        assert_eq!(decoded, flat);
        // What is off stays off, once it is written in the present format.
        assert_eq!(QueueSettings::decode(&decoded.encode()).unwrap(), flat);
    }

    #[test]
    fn a_later_format_is_refused_by_its_number() {
        let newer = br#"{"version": 6, "settings": {"surprise": true}}"#;
        let refused = QueueSettings::decode(newer).unwrap_err();
        assert!(matches!(refused, QueueSettingsError::Newer { found: 6 }));
    }

    #[test]
    fn malformed_settings_are_refused() {
        let odd = full();
        let text = String::from_utf8(odd.encode().to_vec()).unwrap();
        for damaged in [
            text.replace("00ff61", "00ff6"),
            text.replace("00ff61", "00fg61"),
            text.replace("\"charge\":\"time\",", ""),
            text.replace("\"key_separator\":\"|\"", "\"key_separator\":\"a\""),
            text.replace("\"key_separator\":\"|\"", "\"key_separator\":\"||\""),
            text.replace("\"key_separator\":\"|\"", "\"key_separator\":\"\""),
            text.replace("\"charge\"", "\"charged\""),
            text.replace("\"backoff_ms\"", "\"backoff\""),
            "[]".to_owned(),
            String::new(),
        ] {
            assert!(
                QueueSettings::decode(damaged.as_bytes()).is_err(),
                "{damaged}"
            );
        }
    }
}
