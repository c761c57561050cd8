//! Fairness keys of a queue and their groups: their state, and the settings that an operator gives them.

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
        self.keys_within(queue, "", limit).await
    }

    /// As [`keys`](Self::keys), of one part of the tree: the key of this path, and those in the group of this path, on
    /// every level. An empty path selects all keys.
    ///
    /// # Errors
    /// If there is no such queue, or no key can have this path.
    pub async fn keys_within(
        &self,
        queue: &str,
        path: &str,
        limit: usize,
    ) -> Result<Vec<KeyInfo>, Error> {
        let mut keys = Vec::new();
        let mut page_token = String::new();
        while keys.len() < limit {
            let request = v1::ListKeysRequest {
                queue: queue.to_owned(),
                page_size: page_size(limit - keys.len(), path),
                page_token,
                within: path.to_owned(),
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

    /// Returns up to `limit` groups of fairness keys that have messages. A group comes before or after its members.
    ///
    /// # Errors
    /// If there is no such queue.
    pub async fn groups(&self, queue: &str, limit: usize) -> Result<Vec<GroupInfo>, Error> {
        self.groups_within(queue, "", limit).await
    }

    /// As [`groups`](Self::groups), of one part of the tree: the group of this path, and those in it, on every level. An
    /// empty path selects all groups.
    ///
    /// # Errors
    /// If there is no such queue, or no group can have this path.
    pub async fn groups_within(
        &self,
        queue: &str,
        path: &str,
        limit: usize,
    ) -> Result<Vec<GroupInfo>, Error> {
        let mut groups = Vec::new();
        let mut page_token = String::new();
        while groups.len() < limit {
            let request = v1::ListGroupsRequest {
                queue: queue.to_owned(),
                page_size: page_size(limit - groups.len(), path),
                page_token,
                within: path.to_owned(),
            };
            let page = self.look(request, |mut admin, request| async move {
                admin.list_groups(request).await
            });
            let page = page.await?;
            groups.extend(page.groups.into_iter().map(GroupInfo::from));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        groups.truncate(limit);
        Ok(groups)
    }

    /// Pauses a fairness key or a group of keys, resumes it, or fixes its weight, its cap or its limit. `key` is a key, or
    /// the path of a group.
    ///
    /// # Errors
    /// If there is no such queue, no message can have this key, a value is out of range, or too many keys have settings of
    /// their own.
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
            depth_max: change.depth_max,
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.update_key(request).await
        });
        Ok(KeySettings::from(answer.await?.key.unwrap_or_default()))
    }

    /// Makes changes to several keys and groups, in their order: all of them, or none. With a `version`, only if the queue
    /// still has this version. Returns the version of the queue after the changes.
    ///
    /// ```no_run
    /// # async fn change(admin: fila_sdk::Admin) -> Result<(), fila_sdk::Error> {
    /// use fila_sdk::KeyChange;
    ///
    /// let seen = admin.queue("orders").await?.version;
    /// let changes = [("acme", KeyChange::weight(3)), ("acme/batch", KeyChange::pause())];
    /// admin.update_keys("orders", changes, Some(seen)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is no such queue, its version differs, there are more than 1,000 changes, or one of them is refused.
    pub async fn update_keys<K: Into<String>>(
        &self,
        queue: &str,
        changes: impl IntoIterator<Item = (K, KeyChange)>,
        version: Option<u64>,
    ) -> Result<u64, Error> {
        let request = v1::UpdateKeysRequest {
            queue: queue.to_owned(),
            changes: to_wire(changes),
            version,
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.update_keys(request).await
        });
        Ok(answer.await?.version)
    }
}

/// Returns changes for the wire.
pub(crate) fn to_wire<K: Into<String>>(
    changes: impl IntoIterator<Item = (K, KeyChange)>,
) -> Vec<v1::KeyChange> {
    let changes = changes.into_iter().map(|(key, change)| v1::KeyChange {
        fairness_key: key.into(),
        paused: change.paused,
        weight: change.weight,
        concurrency: change.concurrency,
        depth_max: change.depth_max,
    });
    changes.collect()
}

/// Returns the size of the next page for a list that lacks `wanted` entries. A page has fewer if it is of one part of the
/// tree: the server leaves the others out.
fn page_size(wanted: usize, within: &str) -> u32 {
    match within {
        "" => u32::try_from(wanted).map_or(PAGE, |wanted| wanted.min(PAGE)),
        _ => PAGE,
    }
}

/// The settings that an operator has given a fairness key, or the group of this path.
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
    /// How many of its messages may be leased at once. If it is none, the queue's setting applies to a key, and no limit to
    /// a group.
    pub concurrency: Option<u32>,
    /// How many messages it may have. If it is none, the queue's setting applies to a key, and a group may have its part.
    pub depth_max: Option<u64>,
}

impl From<v1::KeySettings> for KeySettings {
    fn from(wire: v1::KeySettings) -> Self {
        Self {
            key: wire.fairness_key,
            paused: wire.paused,
            weight: wire.weight,
            concurrency: wire.concurrency,
            depth_max: wire.depth_max,
        }
    }
}

/// A change of the settings of a fairness key or a group. A field that is none leaves its setting as it is.
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
    /// How many messages it may have; 0 leaves it to the queue again.
    pub depth_max: Option<u64>,
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

    /// Returns a change that fixes how many messages the key may have; 0 leaves it to the queue.
    pub fn depth_max(messages: u64) -> Self {
        Self {
            depth_max: Some(messages),
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
    /// The deliveries of the last minute, in thousandths of a message of the unit that the queue charges.
    pub recent_served: u64,
    /// The part of the deliveries to its group, or to the queue if it is in none, that it should have had.
    pub recent_ideal: u64,
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
            recent_served: wire.recent_served,
            recent_ideal: wire.recent_ideal,
        }
    }
}

/// The state of a group of fairness keys that has messages: of all its members together, on every level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupInfo {
    /// Its path. The messages of the key of the same name are those of one member.
    pub path: String,
    /// The weight in force, among the keys and groups beside it.
    pub weight: u32,
    /// Whether an operator has stopped the deliveries of all its members.
    pub paused: bool,
    /// How many messages of its members may be leased at once, if an operator has fixed it.
    pub concurrency: Option<u32>,
    /// How many messages its members may have, if an operator has fixed it.
    pub depth_max: Option<u64>,
    /// Keys and groups directly in it.
    pub members: u64,
    /// Keys in it that have messages, on every level.
    pub active_keys: u64,
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Ready messages in memory that wait for a token of a throttle.
    pub throttled: u64,
    /// Messages that wait for the end of their delay.
    pub delayed: u64,
    /// Messages that are leased to a consumer.
    pub leased: u64,
    /// Deliveries, since the group last came into memory.
    pub delivered_total: u64,
    /// As [`KeyInfo::recent_served`].
    pub recent_served: u64,
    /// The part of the deliveries to the group around it, or to the queue if there is none, that it should have had.
    pub recent_ideal: u64,
}

impl From<v1::GroupInfo> for GroupInfo {
    fn from(wire: v1::GroupInfo) -> Self {
        Self {
            path: wire.path,
            weight: wire.weight,
            paused: wire.paused,
            concurrency: wire.concurrency,
            depth_max: wire.depth_max,
            members: wire.members,
            active_keys: wire.active_keys,
            ready: wire.ready,
            throttled: wire.throttled,
            delayed: wire.delayed,
            leased: wire.leased,
            delivered_total: wire.delivered_total,
            recent_served: wire.recent_served,
            recent_ideal: wire.recent_ideal,
        }
    }
}
