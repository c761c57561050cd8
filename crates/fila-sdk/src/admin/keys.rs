//! Fairness keys of a queue: their state, and the settings that an operator gives them.

use std::time::Duration;

use fila_proto::v1;

use super::{Admin, PAGE};
use crate::Error;

impl Admin {
    /// Returns up to `limit` fairness keys of a queue that have messages.
    ///
    /// # Errors
    /// If there is no such queue.
    pub async fn keys(&self, queue: &str, limit: usize) -> Result<Vec<KeyInfo>, Error> {
        let mut keys = Vec::new();
        let mut page_token = String::new();
        while keys.len() < limit {
            let left = u32::try_from(limit - keys.len()).unwrap_or(PAGE);
            let request = v1::ListKeysRequest {
                queue: queue.to_owned(),
                page_size: left.min(PAGE),
                page_token,
                within: String::new(),
            };
            let page = self.look(request, |mut admin, request| async move {
                admin.list_keys(request).await
            });
            let page = page.await?;
            keys.extend(page.keys.into_iter().map(KeyInfo::from));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        keys.truncate(limit);
        Ok(keys)
    }

    /// Pauses a fairness key of a queue, resumes it, or fixes its weight or its cap.
    ///
    /// # Errors
    /// If there is no such queue, a value is out of range, or too many keys have settings of their own.
    pub async fn update_key(
        &self,
        queue: &str,
        key: &str,
        change: KeyChange,
    ) -> Result<KeySettings, Error> {
        let request = v1::UpdateKeyRequest {
            queue: queue.to_owned(),
            fairness_key: key.to_owned(),
            paused: change.paused,
            weight: change.weight,
            concurrency: change.concurrency,
            depth_max: None,
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.update_key(request).await
        });
        Ok(KeySettings::from(answer.await?.key.unwrap_or_default()))
    }
}

/// The settings that an operator has given a fairness key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeySettings {
    /// The fairness key.
    pub key: String,
    /// Whether an operator has stopped its deliveries.
    pub paused: bool,
    /// Its weight, if an operator has fixed it. Producers set it otherwise.
    pub weight: Option<u32>,
    /// How many of its messages may be leased at once. The queue's setting applies if it is none.
    pub concurrency: Option<u32>,
}

impl From<v1::KeySettings> for KeySettings {
    fn from(wire: v1::KeySettings) -> Self {
        Self {
            key: wire.fairness_key,
            paused: wire.paused,
            weight: wire.weight,
            concurrency: wire.concurrency,
        }
    }
}

/// A change of the settings of a fairness key. A field that is none leaves its setting as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a change does nothing until a key is updated with it"]
pub struct KeyChange {
    /// Whether the broker stops deliveries of the key.
    pub paused: Option<bool>,
    /// Its weight; 0 leaves it to the producers again.
    pub weight: Option<u32>,
    /// How many of its messages may be leased at once; 0 leaves it to the queue again.
    pub concurrency: Option<u32>,
}

impl KeyChange {
    /// Returns a change that stops deliveries of the key.
    pub fn pause() -> Self {
        Self {
            paused: Some(true),
            ..Self::default()
        }
    }

    /// Returns a change that resumes deliveries of the key.
    pub fn resume() -> Self {
        Self {
            paused: Some(false),
            ..Self::default()
        }
    }

    /// Returns a change that fixes the key's weight; 0 leaves it to the producers again.
    pub fn weight(weight: u32) -> Self {
        Self {
            weight: Some(weight),
            ..Self::default()
        }
    }

    /// Returns a change that fixes how many of the key's messages may be leased at once; 0 leaves it to the queue.
    pub fn concurrency(messages: u32) -> Self {
        Self {
            concurrency: Some(messages),
            ..Self::default()
        }
    }
}

/// The state of a fairness key that has messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeyInfo {
    /// The fairness key.
    pub key: String,
    /// The weight in force.
    pub weight: u32,
    /// Whether an operator has stopped its deliveries.
    pub paused: bool,
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Ready messages in memory that wait for a token of a throttle.
    pub throttled: u64,
    /// Messages that wait for the end of their delay.
    pub delayed: u64,
    /// Messages that are leased to a consumer.
    pub leased: u64,
    /// Deliveries. All totals of a key count from the server's start, or from the end of the key's last long idle time.
    pub delivered_total: u64,
    /// Messages that a consumer has acknowledged.
    pub acked_total: u64,
    /// Deliveries that failed.
    pub nacked_total: u64,
    /// Deliveries that were the first of their message.
    pub first_delivered_total: u64,
    /// The sum of the times that messages waited for these first deliveries.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "waited_ms_total", serialize_with = "crate::json::millis")
    )]
    pub waited_total: Duration,
    /// How long the first ready message has been ready. An upper bound if the message is in the store only. None if no
    /// message is ready, or if a delayed message comes before them.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "head_waiting_ms",
            serialize_with = "crate::json::some_millis"
        )
    )]
    pub head_waiting: Option<Duration>,
}

impl From<v1::KeyInfo> for KeyInfo {
    fn from(wire: v1::KeyInfo) -> Self {
        Self {
            key: wire.fairness_key,
            weight: wire.weight,
            paused: wire.paused,
            ready: wire.ready,
            delayed: wire.delayed,
            leased: wire.leased,
            throttled: wire.throttled,
            delivered_total: wire.delivered_total,
            acked_total: wire.acked_total,
            nacked_total: wire.nacked_total,
            first_delivered_total: wire.first_delivered_total,
            waited_total: Duration::from_millis(wire.waited_ms_total),
            head_waiting: wire.head_waiting_ms.map(Duration::from_millis),
        }
    }
}
