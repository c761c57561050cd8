//! Queues: made, listed, paused, purged and deleted; what is told of them.

use std::time::Duration;

use fila_proto::v1;

use super::{Admin, HookInfo, KeySettings, PAGE, QueueSettings};
use crate::{Error, RedriveBuilder};

impl Admin {
    /// Creates a queue, and with it the one of its dead letters: of the same name, and `.dlq`.
    ///
    /// # Errors
    /// If the name is none or taken, a setting is out of range, or there are too many queues.
    pub async fn create_queue(
        &self,
        name: &str,
        settings: QueueSettings,
    ) -> Result<QueueInfo, Error> {
        let request = v1::CreateQueueRequest {
            name: name.to_owned(),
            settings: Some(settings.to_wire()),
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.create_queue(request).await
        });
        Ok(QueueInfo::from_wire(answer.await?.queue))
    }

    /// Changes the settings that are given and leaves the others, if the queue is still at `version` or none is given.
    /// Acts on the backlog too.
    ///
    /// # Errors
    /// If there is no such queue, it has changed since, or a setting is out of range.
    pub async fn update_queue(
        &self,
        name: &str,
        settings: QueueSettings,
        version: Option<u64>,
    ) -> Result<QueueInfo, Error> {
        let request = v1::UpdateQueueRequest {
            name: name.to_owned(),
            settings: Some(settings.to_wire()),
            version,
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.update_queue(request).await
        });
        Ok(QueueInfo::from_wire(answer.await?.queue))
    }

    /// Deletes a queue, its messages and its dead letters for ever.
    ///
    /// # Errors
    /// If there is no such queue, or it holds the dead letters of another one.
    pub async fn delete_queue(&self, name: &str) -> Result<(), Error> {
        let request = v1::DeleteQueueRequest {
            name: name.to_owned(),
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.delete_queue(request).await
        });
        answer.await.map(drop)
    }

    /// Returns all queues whose names begin with `prefix`, in the order of their names; all there are if it is empty.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn queues(&self, prefix: &str) -> Result<Vec<QueueInfo>, Error> {
        let mut queues = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListQueuesRequest {
                prefix: prefix.to_owned(),
                page_size: PAGE,
                page_token,
            };
            let page = self.look(request, |mut admin, request| async move {
                admin.list_queues(request).await
            });
            let page = page.await?;
            queues.extend(page.queues.into_iter().map(QueueInfo::from));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(queues);
            }
        }
    }

    /// Returns what is set for a queue, and how it is.
    ///
    /// # Errors
    /// If there is no such queue.
    pub async fn queue(&self, name: &str) -> Result<QueueInfo, Error> {
        let request = v1::InspectQueueRequest {
            name: name.to_owned(),
        };
        let answer = self.look(request, |mut admin, request| async move {
            admin.inspect_queue(request).await
        });
        Ok(QueueInfo::from_wire(answer.await?.queue))
    }

    /// Stops deliveries of a queue. Messages and results are still taken, and leases run on.
    ///
    /// # Errors
    /// If there is no such queue.
    pub async fn pause_queue(&self, name: &str) -> Result<(), Error> {
        let request = v1::PauseQueueRequest {
            name: name.to_owned(),
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.pause_queue(request).await
        });
        answer.await.map(drop)
    }

    /// Goes on with deliveries of a queue.
    ///
    /// # Errors
    /// If there is no such queue.
    pub async fn resume_queue(&self, name: &str) -> Result<(), Error> {
        let request = v1::ResumeQueueRequest {
            name: name.to_owned(),
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.resume_queue(request).await
        });
        answer.await.map(drop)
    }

    /// Deletes all messages of a queue, leased ones too, and returns how many there were.
    ///
    /// # Errors
    /// If there is no such queue.
    pub async fn purge_queue(&self, name: &str) -> Result<u64, Error> {
        let request = v1::PurgeQueueRequest {
            name: name.to_owned(),
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.purge_queue(request).await
        });
        Ok(answer.await?.purged)
    }

    /// Moves dead letters back to the queue that they come from. `queue` is that of the dead letters, as `orders.dlq`.
    pub fn redrive(&self, queue: &str) -> RedriveBuilder {
        RedriveBuilder::new(self.client.clone(), queue)
    }
}

/// A queue: what is set for it, and how it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// What it is called.
    pub name: String,
    /// What is set for it. In answers of the server all settings are said.
    pub settings: QueueSettings,
    /// Whether deliveries are stopped.
    pub paused: bool,
    /// Grows with every change of the settings.
    pub version: u64,
    /// How it is.
    pub stats: QueueStats,
    /// Fairness keys that have settings of their own. Left out of lists.
    pub keys: Vec<KeySettings>,
    /// How its hooks fare.
    pub hooks: Vec<HookInfo>,
}

impl QueueInfo {
    fn from_wire(wire: Option<v1::QueueInfo>) -> Self {
        wire.map(Self::from).unwrap_or_default()
    }
}

impl From<v1::QueueInfo> for QueueInfo {
    fn from(wire: v1::QueueInfo) -> Self {
        Self {
            name: wire.name,
            settings: wire.settings.unwrap_or_default().into(),
            paused: wire.paused,
            version: wire.version,
            stats: wire.stats.unwrap_or_default().into(),
            keys: wire.keys.into_iter().map(KeySettings::from).collect(),
            hooks: wire.hooks.into_iter().map(HookInfo::from).collect(),
        }
    }
}

/// How a queue is. Totals count since the server was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Messages in the queue: ready, delayed and leased.
    pub depth: u64,
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Of the ready ones, how many wait for a token of a throttle. Those in the store only are not known to.
    pub throttled: u64,
    /// Messages that a consumer has.
    pub leased: u64,
    /// Of the ready ones, how many are in the store only.
    pub stored_only: u64,
    /// Bytes of headers and payloads of all messages in the queue.
    pub bytes: u64,
    /// Fairness keys that have messages.
    pub active_keys: u64,
    /// Consumers that are connected.
    pub consumers: u64,
    /// Messages that were stored.
    pub enqueued_total: u64,
    /// Messages that were not stored again.
    pub deduplicated_total: u64,
    /// Deliveries.
    pub delivered_total: u64,
    /// Messages that were processed.
    pub acked_total: u64,
    /// Deliveries that failed.
    pub nacked_total: u64,
    /// Leases that ran out.
    pub lease_expired_total: u64,
    /// Leases given back, by their consumers or because these were gone.
    pub released_total: u64,
    /// Messages whose time to live passed.
    pub expired_total: u64,
    /// Messages that were purged.
    pub purged_total: u64,
    /// Messages that could not be read back from the store, and were not served.
    pub damaged_total: u64,
    /// Of the deliveries, how many were a message's first.
    pub first_delivered_total: u64,
    /// How long the messages of these first deliveries waited for them, together: from acceptance, or from when their
    /// delay was over. What this grew by, divided by what `first_delivered_total` did, is the mean wait.
    pub waited_total: Duration,
    /// Deliveries that ended badly, after which the message was to be delivered again.
    pub retried_total: u64,
    /// Messages that became dead letters.
    pub dead_lettered_total: u64,
    /// Times that a message was to become a dead letter and there was no room for it: it was kept, and tried again.
    pub dead_letters_refused_total: u64,
    /// Dead letters that went back to the queue that they had come from.
    pub redriven_total: u64,
}

impl From<v1::QueueStats> for QueueStats {
    fn from(wire: v1::QueueStats) -> Self {
        Self {
            depth: wire.depth,
            ready: wire.ready,
            delayed: wire.delayed,
            throttled: wire.throttled,
            leased: wire.leased,
            stored_only: wire.stored_only,
            bytes: wire.bytes,
            active_keys: wire.active_keys,
            consumers: wire.consumers,
            enqueued_total: wire.enqueued_total,
            deduplicated_total: wire.deduplicated_total,
            delivered_total: wire.delivered_total,
            acked_total: wire.acked_total,
            nacked_total: wire.nacked_total,
            lease_expired_total: wire.lease_expired_total,
            released_total: wire.released_total,
            expired_total: wire.expired_total,
            purged_total: wire.purged_total,
            damaged_total: wire.damaged_total,
            first_delivered_total: wire.first_delivered_total,
            waited_total: Duration::from_millis(wire.waited_ms_total),
            retried_total: wire.retried_total,
            dead_lettered_total: wire.dead_lettered_total,
            dead_letters_refused_total: wire.dead_letters_refused_total,
            redriven_total: wire.redriven_total,
        }
    }
}
