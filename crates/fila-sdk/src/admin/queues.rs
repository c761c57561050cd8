//! Create, list, change, pause, purge and delete queues.

use fila_proto::v1;

use super::{Admin, HookInfo, KeySettings, PAGE, QueueSettings, QueueStats};
use crate::{Error, RedriveBuilder};

impl Admin {
    /// Creates a queue, and a second one for its dead letters, with the same name and the suffix `.dlq`.
    ///
    /// # Errors
    /// If the name is not valid or taken, a setting is out of range, or there are too many queues.
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

    /// Changes the given settings of a queue and leaves the others. With a `version`, only if the queue still has this
    /// version. The new settings apply to messages that already wait, too.
    ///
    /// # Errors
    /// If there is no such queue, its version differs, or a setting is out of range.
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

    /// Deletes a queue, its messages and its dead letters.
    ///
    /// # Errors
    /// If there is no such queue, or it holds the dead letters of another queue.
    pub async fn delete_queue(&self, name: &str) -> Result<(), Error> {
        let request = v1::DeleteQueueRequest {
            name: name.to_owned(),
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.delete_queue(request).await
        });
        answer.await.map(drop)
    }

    /// Returns all queues whose names begin with `prefix`, sorted by name. An empty prefix selects every queue.
    ///
    /// # Errors
    /// If the server does not answer.
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

    /// Returns the settings and the state of a queue.
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

    /// Stops deliveries of a queue. The broker still accepts messages and results, and leases still run out.
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

    /// Resumes deliveries of a queue.
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

    /// Deletes all messages of a queue, leased ones too, and returns their number.
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

    /// Moves dead letters back to the queue that they come from. `queue` is the queue of dead letters, as `orders.dlq`.
    pub fn redrive(&self, queue: &str) -> RedriveBuilder {
        RedriveBuilder::new(self.client.clone(), queue)
    }
}

/// A queue: its settings and its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Whether an operator has stopped deliveries.
    pub paused: bool,
    /// Grows with every change of the settings.
    pub version: u64,
    /// Its settings. An answer of the server gives all of them; a list leaves the script out.
    pub settings: QueueSettings,
    /// Its statistics.
    pub stats: QueueStats,
    /// The state of its hooks.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub hooks: Vec<HookInfo>,
    /// Fairness keys that have settings of their own. Lists leave them out.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub keys: Vec<KeySettings>,
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
