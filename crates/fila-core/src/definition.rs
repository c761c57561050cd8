//! What is set for a queue, and how that is written into the catalogue.
//!
//! A definition is stored as JSON with a version of its own: it is small, seldom written, and read by people when
//! something is wrong. What a later version has added is refused by an earlier one rather than dropped.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fila_store::FairnessKey;
use serde::{Deserialize, Serialize};

use crate::RetryPolicy;

/// What is set for a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Definition {
    /// For how long a message is leased.
    pub visibility_timeout: Duration,
    /// What order means inside a fairness key.
    pub ordering: Ordering,
    /// How many messages of one fairness key may be leased at once, if not any number.
    pub key_concurrency: Option<NonZeroU32>,
    /// What a delivery uses of its fairness key's share.
    pub charge: Charge,
    /// For how long a deduplication id is remembered.
    pub deduplication_window: Duration,
    /// The most messages in the queue, if less than the broker's limit.
    pub depth_max: Option<u64>,
    /// The most messages of one fairness key, if less than the broker's limit.
    pub key_depth_max: Option<u64>,
    /// What messages get that name no time to live.
    pub message_ttl: Option<Duration>,
    /// Whether messages are delivered.
    pub delivery: Delivering,
    /// Fairness keys with settings of their own.
    pub keys: BTreeMap<FairnessKey, KeySettings>,
    /// The source of the queue's hooks, if it has any. Nothing here runs it.
    pub script: Option<Arc<str>>,
    /// What stands in for the answer of a hook that gives none.
    pub hook_fallback: HookFallback,
    /// What becomes of a delivery that has failed, unless somebody else decides that.
    pub retry: RetryPolicy,
    /// Whether somebody else decides it: see [`judges_failures`](Self::judges_failures).
    pub failure_hook: bool,
}

impl Default for Definition {
    fn default() -> Self {
        Self {
            visibility_timeout: Duration::from_secs(30),
            ordering: Ordering::None,
            key_concurrency: None,
            charge: Charge::Message,
            deduplication_window: Duration::from_secs(300),
            depth_max: None,
            key_depth_max: None,
            message_ttl: None,
            delivery: Delivering::Running,
            keys: BTreeMap::new(),
            script: None,
            hook_fallback: HookFallback::Default,
            retry: RetryPolicy::default(),
            failure_hook: false,
        }
    }
}

/// What order means inside a fairness key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// First in, first out; what is delivered again comes late.
    #[default]
    None,
    /// Strict: at most one message is leased, and what is delivered again keeps its place.
    Key,
}

/// What a delivery uses of its fairness key's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Charge {
    /// Every message as much as any other.
    #[default]
    Message,
    /// As much as a message for every KiB of headers and payload, in proportion.
    Bytes,
    /// As much as a message for every millisecond from delivery to result, settled when the result is known.
    Time,
}

/// Whether a queue or a key delivers its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivering {
    /// It does.
    #[default]
    Running,
    /// It does not, until it is resumed.
    Paused,
}

/// What stands in for the answer of a hook that has failed, or is not asked because it keeps failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookFallback {
    /// The scheduling of a message without a hook that says nothing of itself.
    #[default]
    Default,
    /// What the hook has last answered for the same headers; if that is not known, the default.
    LastGood,
    /// Nothing: the message is refused.
    Refuse,
}

impl HookFallback {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What an operator has set for one fairness key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySettings {
    /// Whether its messages are delivered.
    #[serde(default)]
    pub delivery: Delivering,
    /// Its weight, whatever producers say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<NonZeroU32>,
    /// How many of its messages may be leased at once, whatever the queue says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<NonZeroU32>,
}

impl KeySettings {
    /// Tells whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The layout below. Raised when a definition can say something that earlier versions would misunderstand.
const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    visibility_timeout_ms: u64,
    ordering: Ordering,
    key_concurrency: Option<NonZeroU32>,
    charge: Charge,
    deduplication_window_ms: u64,
    depth_max: Option<u64>,
    key_depth_max: Option<u64>,
    message_ttl_ms: Option<u64>,
    delivery: Delivering,
    /// Keys are bytes, and JSON knows text only: hexadecimal.
    keys: BTreeMap<String, KeySettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    script: Option<String>,
    #[serde(default, skip_serializing_if = "HookFallback::is_default")]
    hook_fallback: HookFallback,
    /// Version 1 had none, and delivered again at once and for ever.
    #[serde(default)]
    retry: StoredRetry,
    #[serde(default, skip_serializing_if = "is_false")]
    failure_hook: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRetry {
    attempts_max: Option<NonZeroU32>,
    backoff_ms: u64,
    backoff_max_ms: u64,
    jitter_percent: u8,
}

impl Default for StoredRetry {
    fn default() -> Self {
        RetryPolicy::default().into()
    }
}

impl From<RetryPolicy> for StoredRetry {
    fn from(policy: RetryPolicy) -> Self {
        Self {
            attempts_max: policy.attempts_max,
            backoff_ms: millis(policy.backoff),
            backoff_max_ms: millis(policy.backoff_max),
            jitter_percent: policy.jitter_percent,
        }
    }
}

impl From<StoredRetry> for RetryPolicy {
    fn from(stored: StoredRetry) -> Self {
        Self {
            attempts_max: stored.attempts_max,
            backoff: Duration::from_millis(stored.backoff_ms),
            backoff_max: Duration::from_millis(stored.backoff_max_ms),
            jitter_percent: stored.jitter_percent,
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Why a stored definition cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// It was written by a later version.
    #[error(
        "the queue's definition has format {found}, newer than {VERSION}; start the version that wrote it"
    )]
    Newer {
        /// What it says of itself.
        found: u32,
    },
    /// It is not what was written.
    #[error("the queue's definition cannot be read; restore a copy")]
    Malformed(#[source] serde_json::Error),
    /// A fairness key in it is no fairness key.
    #[error("the queue's definition names a fairness key that is none; restore a copy")]
    Key,
}

impl Definition {
    /// Tells whether failures are judged by somebody else before anything becomes of them: by
    /// [`Effects::failures`](crate::Effects::failures) and [`Broker::judge`](crate::Broker::judge).
    pub fn judges_failures(&self) -> bool {
        self.failure_hook
    }

    /// Returns the definition as the catalogue keeps it.
    pub fn encode(&self) -> Bytes {
        let stored = Stored {
            version: VERSION,
            visibility_timeout_ms: millis(self.visibility_timeout),
            ordering: self.ordering,
            key_concurrency: self.key_concurrency,
            charge: self.charge,
            deduplication_window_ms: millis(self.deduplication_window),
            depth_max: self.depth_max,
            key_depth_max: self.key_depth_max,
            message_ttl_ms: self.message_ttl.map(millis),
            delivery: self.delivery,
            keys: self
                .keys
                .iter()
                .map(|(key, settings)| (to_hex(key.as_bytes()), *settings))
                .collect(),
            script: self.script.as_deref().map(str::to_owned),
            hook_fallback: self.hook_fallback,
            retry: self.retry.into(),
            failure_hook: self.failure_hook,
        };
        let json = serde_json::to_vec(&stored).expect("numbers, words and text are JSON");
        json.into()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If it was written by a later version, or is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, DefinitionError> {
        let malformed = DefinitionError::Malformed;
        let Versioned { version } = serde_json::from_slice(bytes).map_err(malformed)?;
        if version > VERSION {
            return Err(DefinitionError::Newer { found: version });
        }
        let stored: Stored = serde_json::from_slice(bytes).map_err(malformed)?;
        let mut keys = BTreeMap::new();
        for (key, settings) in stored.keys {
            let key = from_hex(&key).and_then(|bytes| FairnessKey::new(bytes).ok());
            keys.insert(key.ok_or(DefinitionError::Key)?, settings);
        }
        Ok(Self {
            visibility_timeout: Duration::from_millis(stored.visibility_timeout_ms),
            ordering: stored.ordering,
            key_concurrency: stored.key_concurrency,
            charge: stored.charge,
            deduplication_window: Duration::from_millis(stored.deduplication_window_ms),
            depth_max: stored.depth_max,
            key_depth_max: stored.key_depth_max,
            message_ttl: stored.message_ttl_ms.map(Duration::from_millis),
            delivery: stored.delivery,
            keys,
            script: stored.script.map(Into::into),
            hook_fallback: stored.hook_fallback,
            retry: stored.retry.into(),
            failure_hook: stored.failure_hook,
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Definition {
        let settings = KeySettings {
            delivery: Delivering::Paused,
            weight: NonZeroU32::new(7),
            concurrency: None,
        };
        Definition {
            visibility_timeout: Duration::from_millis(1234),
            ordering: Ordering::Key,
            key_concurrency: NonZeroU32::new(3),
            charge: Charge::Time,
            depth_max: Some(10),
            message_ttl: Some(Duration::from_secs(9)),
            delivery: Delivering::Paused,
            keys: [(FairnessKey::new(vec![0, 255, b'a']).unwrap(), settings)].into(),
            script: Some("function on_enqueue(msg)\n  return {}\nend".into()),
            hook_fallback: HookFallback::LastGood,
            retry: RetryPolicy {
                attempts_max: None,
                backoff: Duration::from_millis(5),
                ..RetryPolicy::default()
            },
            failure_hook: true,
            ..Definition::default()
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for definition in [Definition::default(), full()] {
            assert_eq!(
                Definition::decode(&definition.encode()).unwrap(),
                definition
            );
        }
    }

    #[test]
    fn a_later_format_is_refused_by_its_number() {
        let newer = br#"{"version": 3, "surprise": true}"#;
        let refused = Definition::decode(newer).unwrap_err();
        assert!(matches!(refused, DefinitionError::Newer { found: 3 }));
    }

    #[test]
    fn a_definition_of_the_first_version_has_the_default_retry_policy() {
        let first = br#"{"version":1,"visibility_timeout_ms":30000,"ordering":"none","key_concurrency":null,
            "charge":"message","deduplication_window_ms":300000,"depth_max":null,"key_depth_max":null,
            "message_ttl_ms":null,"delivery":"running","keys":{}}"#;
        assert_eq!(Definition::decode(first).unwrap(), Definition::default());
    }

    #[test]
    fn what_is_no_definition_is_refused() {
        let odd = full();
        let text = String::from_utf8(odd.encode().to_vec()).unwrap();
        for damaged in [
            text.replace("00ff61", "00ff6"),
            text.replace("00ff61", "00fg61"),
            text.replace("\"charge\":\"time\",", ""),
            text.replace("\"charge\"", "\"charged\""),
            text.replace("\"backoff_ms\"", "\"backoff\""),
            "[]".to_owned(),
            String::new(),
        ] {
            assert!(Definition::decode(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }
}
