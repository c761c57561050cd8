//! Queues and their fairness keys: making them, watching them, changing them while they run.

use std::future::Future;
use std::time::{Duration, SystemTime};

use fila_proto::v1;
use fila_proto::v1::fila_admin_client::FilaAdminClient;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::message::millis;
use crate::{Client, Error, RedriveBuilder};

/// How many queues, keys or entries one request asks for.
pub(crate) const PAGE: u32 = 1000;

/// The calls of an operator. From [`Client::admin`].
///
/// Every call has the client's [deadline](crate::ClientBuilder::deadline). Calls that only look are tried again until
/// then if the connection breaks; calls that change something are not, because they may have happened.
///
/// # Cancel safety
/// A call whose future is dropped may or may not have happened.
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

impl Admin {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

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

    /// Returns up to `limit` of the fairness keys of a queue that have messages.
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
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.update_key(request).await
        });
        Ok(KeySettings::from(answer.await?.key.unwrap_or_default()))
    }

    /// Returns how the server is.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn server(&self) -> Result<ServerInfo, Error> {
        let answer = self.look(v1::ServerInfoRequest {}, |mut admin, request| async move {
            admin.server_info(request).await
        });
        answer.await.map(ServerInfo::from)
    }

    /// Makes a call that must not happen twice.
    pub(crate) async fn once<Q, A, F>(
        &self,
        request: Q,
        call: impl FnOnce(FilaAdminClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let admin = FilaAdminClient::new(self.client.channel());
        self.client.call(call(admin, Request::new(request))).await
    }

    /// Makes a call that changes nothing, again and again if need be.
    pub(crate) async fn look<Q: Clone, A, F>(
        &self,
        request: Q,
        call: impl Fn(FilaAdminClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let attempt = || {
            let admin = FilaAdminClient::new(self.client.channel());
            call(admin, Request::new(request.clone()))
        };
        self.client.call_again(attempt).await
    }
}

/// What can be set for a queue. What is not said keeps its value, or gets the default.
///
/// ```
/// use std::time::Duration;
/// use fila_sdk::{Ordering, QueueSettings};
///
/// let settings = QueueSettings::new()
///     .visibility_timeout(Duration::from_secs(60))
///     .ordering(Ordering::Key);
/// # let _ = settings;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "settings do nothing until a queue is created or updated with them"]
pub struct QueueSettings {
    /// For how long a message is leased; 30 s by default.
    pub visibility_timeout: Option<Duration>,
    /// In which order messages of one key are delivered.
    pub ordering: Option<Ordering>,
    /// How many messages of one fairness key may be leased at once; 0, the default, for any number.
    pub key_concurrency: Option<u32>,
    /// What a delivery uses of its key's share.
    pub charge: Option<Charge>,
    /// For how long a deduplication id is remembered; 5 minutes by default.
    pub deduplication_window: Option<Duration>,
    /// The most messages in the queue; 0, the default, for the server's limit.
    pub depth_max: Option<u64>,
    /// The most messages of one fairness key; 0, the default, for the server's limit.
    pub key_depth_max: Option<u64>,
    /// What messages get that name no time to live; zero, the default, for ever.
    pub message_ttl: Option<Duration>,
    /// How many deliveries of a message may end badly before it becomes a dead letter; 10 by default, 0 for any number.
    pub retry_attempts_max: Option<u32>,
    /// How long a message waits after its first delivery that ended badly, and then twice as long after each; 1 s by
    /// default.
    pub retry_backoff: Option<Duration>,
    /// The longest that it waits; 5 minutes by default.
    pub retry_backoff_max: Option<Duration>,
    /// By how much a wait may be longer or shorter, in hundredths of it; 10 by default.
    pub retry_jitter_percent: Option<u32>,
    /// The queue's hooks in Lua, `on_enqueue`, `on_failure` or both; empty, the default, for none. Left out of lists.
    pub script: Option<String>,
    /// What stands in for the answer of `on_enqueue` if it gives none.
    pub hook_fallback: Option<HookFallback>,
}

/// What stands in for the answer of `on_enqueue` if it has failed, or is not asked because it keeps failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookFallback {
    /// Fairness key `default`, weight 1, no throttle keys.
    #[default]
    Default,
    /// What was last answered for the same headers; if that is not known, the default.
    LastGood,
    /// None: the message is refused with [`HookFailed`](crate::ErrorCode::HookFailed).
    Refuse,
}

/// In which order messages of one fairness key are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// In the order in which they came; what is delivered again comes late.
    #[default]
    None,
    /// Strictly: at most one is leased, and what is delivered again keeps its place.
    Key,
}

/// What a delivery uses of its fairness key's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Charge {
    /// Every message as much as any other.
    #[default]
    Message,
    /// By the size of headers and payload.
    Bytes,
    /// By the time from delivery to result.
    Time,
}

impl QueueSettings {
    /// Returns settings that say nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says for how long a message is leased.
    pub fn visibility_timeout(mut self, time: Duration) -> Self {
        self.visibility_timeout = Some(time);
        self
    }

    /// Says in which order messages of one key are delivered.
    pub fn ordering(mut self, ordering: Ordering) -> Self {
        self.ordering = Some(ordering);
        self
    }

    /// Says how many messages of one fairness key may be leased at once; 0 for any number.
    pub fn key_concurrency(mut self, messages: u32) -> Self {
        self.key_concurrency = Some(messages);
        self
    }

    /// Says what a delivery uses of its key's share.
    pub fn charge(mut self, charge: Charge) -> Self {
        self.charge = Some(charge);
        self
    }

    /// Says for how long a deduplication id is remembered.
    pub fn deduplication_window(mut self, time: Duration) -> Self {
        self.deduplication_window = Some(time);
        self
    }

    /// Says how many messages the queue may have; 0 for the server's limit.
    pub fn depth_max(mut self, messages: u64) -> Self {
        self.depth_max = Some(messages);
        self
    }

    /// Says how many messages one fairness key may have; 0 for the server's limit.
    pub fn key_depth_max(mut self, messages: u64) -> Self {
        self.key_depth_max = Some(messages);
        self
    }

    /// Says how long messages live that do not say it themselves; zero for ever.
    pub fn message_ttl(mut self, time: Duration) -> Self {
        self.message_ttl = Some(time);
        self
    }

    /// Says how many deliveries of a message may end badly before it becomes a dead letter; 0 for any number.
    pub fn retry_attempts_max(mut self, attempts: u32) -> Self {
        self.retry_attempts_max = Some(attempts);
        self
    }

    /// Says how long a message waits after its first delivery that ended badly; zero to try again at once. The wait
    /// doubles with every attempt.
    pub fn retry_backoff(mut self, time: Duration) -> Self {
        self.retry_backoff = Some(time);
        self
    }

    /// Says how long a message waits at most before it is tried again.
    pub fn retry_backoff_max(mut self, time: Duration) -> Self {
        self.retry_backoff_max = Some(time);
        self
    }

    /// Says by how much a wait may be longer or shorter, in hundredths of it, up to 100.
    pub fn retry_jitter_percent(mut self, percent: u32) -> Self {
        self.retry_jitter_percent = Some(percent);
        self
    }

    /// Gives the queue hooks in Lua; an empty script takes them away.
    pub fn script(mut self, source: impl Into<String>) -> Self {
        self.script = Some(source.into());
        self
    }

    /// Says what stands in for the answer of `on_enqueue` if it gives none.
    pub fn hook_fallback(mut self, fallback: HookFallback) -> Self {
        self.hook_fallback = Some(fallback);
        self
    }

    pub(crate) fn to_wire(&self) -> v1::QueueSettings {
        v1::QueueSettings {
            visibility_timeout_ms: self.visibility_timeout.map(millis),
            ordering: self.ordering.map(|ordering| {
                i32::from(match ordering {
                    Ordering::None => v1::Ordering::None,
                    Ordering::Key => v1::Ordering::Key,
                })
            }),
            key_concurrency: self.key_concurrency,
            charge: self.charge.map(|charge| {
                i32::from(match charge {
                    Charge::Message => v1::Charge::Message,
                    Charge::Bytes => v1::Charge::Bytes,
                    Charge::Time => v1::Charge::Time,
                })
            }),
            deduplication_window_ms: self.deduplication_window.map(millis),
            depth_max: self.depth_max,
            key_depth_max: self.key_depth_max,
            message_ttl_ms: self.message_ttl.map(millis),
            retry_attempts_max: self.retry_attempts_max,
            retry_backoff_ms: self.retry_backoff.map(millis),
            retry_backoff_max_ms: self.retry_backoff_max.map(millis),
            retry_jitter_percent: self.retry_jitter_percent,
            script: self.script.clone(),
            hook_fallback: self.hook_fallback.map(|fallback| {
                i32::from(match fallback {
                    HookFallback::Default => v1::HookFallback::Default,
                    HookFallback::LastGood => v1::HookFallback::LastGood,
                    HookFallback::Refuse => v1::HookFallback::Refuse,
                })
            }),
        }
    }
}

impl From<v1::QueueSettings> for QueueSettings {
    fn from(wire: v1::QueueSettings) -> Self {
        let (ordering, charge) = (wire.ordering(), wire.charge());
        let fallback = wire.hook_fallback();
        Self {
            visibility_timeout: wire.visibility_timeout_ms.map(Duration::from_millis),
            ordering: Some(match ordering {
                v1::Ordering::None => Ordering::None,
                v1::Ordering::Key => Ordering::Key,
            }),
            key_concurrency: wire.key_concurrency,
            charge: Some(match charge {
                v1::Charge::Message => Charge::Message,
                v1::Charge::Bytes => Charge::Bytes,
                v1::Charge::Time => Charge::Time,
            }),
            deduplication_window: wire.deduplication_window_ms.map(Duration::from_millis),
            depth_max: wire.depth_max,
            key_depth_max: wire.key_depth_max,
            message_ttl: wire.message_ttl_ms.map(Duration::from_millis),
            retry_attempts_max: wire.retry_attempts_max,
            retry_backoff: wire.retry_backoff_ms.map(Duration::from_millis),
            retry_backoff_max: wire.retry_backoff_max_ms.map(Duration::from_millis),
            retry_jitter_percent: wire.retry_jitter_percent,
            script: wire.script,
            hook_fallback: Some(match fallback {
                v1::HookFallback::Default => HookFallback::Default,
                v1::HookFallback::LastGood => HookFallback::LastGood,
                v1::HookFallback::Refuse => HookFallback::Refuse,
            }),
        }
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

/// How a hook of a queue fares. Totals count since the server was started, or since there is a script.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookInfo {
    /// `on_enqueue` or `on_failure`.
    pub name: String,
    /// Whether it is asked.
    pub state: HookState,
    /// How many calls have failed since the last one that did not.
    pub failures_in_a_row: u32,
    /// How often it was called.
    pub calls_total: u64,
    /// How many of the calls gave no answer.
    pub failures_total: u64,
    /// Messages that got what stands in for an answer.
    pub fallbacks_total: u64,
    /// How long all calls took, together.
    pub busy_total: Duration,
    /// What the last call that failed has failed of, with the line of the script.
    pub last_error: Option<String>,
    /// While it is not asked: in how long it will be asked again.
    pub asked_again_in: Option<Duration>,
}

/// Whether a hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookState {
    /// It is.
    Closed,
    /// It is not: it has failed too often in a row.
    Open,
    /// It is asked about one message, and what comes of that decides.
    HalfOpen,
    /// It is not: its script, which an earlier server took, does not load.
    Broken,
}

impl From<v1::HookInfo> for HookInfo {
    fn from(wire: v1::HookInfo) -> Self {
        Self {
            state: match wire.state() {
                v1::HookState::Closed => HookState::Closed,
                v1::HookState::Open => HookState::Open,
                v1::HookState::HalfOpen => HookState::HalfOpen,
                v1::HookState::Broken => HookState::Broken,
            },
            name: wire.name,
            failures_in_a_row: wire.failures_in_a_row,
            calls_total: wire.calls_total,
            failures_total: wire.failures_total,
            fallbacks_total: wire.fallbacks_total,
            busy_total: Duration::from_micros(wire.busy_us_total),
            last_error: Some(wire.last_error).filter(|error| !error.is_empty()),
            asked_again_in: wire.asked_again_in_ms.map(Duration::from_millis),
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

/// What an operator has set for a fairness key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySettings {
    /// Which key.
    pub key: String,
    /// Whether its deliveries are stopped.
    pub paused: bool,
    /// Its weight, if producers do not say it.
    pub weight: Option<u32>,
    /// How many of its messages may be leased at once, if it is not what the queue says.
    pub concurrency: Option<u32>,
}

/// A change of what is set for a fairness key. What is not said stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a change does nothing until a key is updated with it"]
pub struct KeyChange {
    /// Whether deliveries of the key are to stop.
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

    /// Returns a change that goes on with deliveries of the key.
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

/// A fairness key that has messages, and how it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyInfo {
    /// Which key.
    pub key: String,
    /// In force.
    pub weight: u32,
    /// Whether its deliveries are stopped.
    pub paused: bool,
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that a consumer has.
    pub leased: u64,
    /// Of the ready ones, how many wait for a token of a throttle. Those in the store only are not known to.
    pub throttled: u64,
    /// Deliveries, since the key was last idle for long or the server was started; so are the other totals.
    pub delivered_total: u64,
    /// Messages that were processed.
    pub acked_total: u64,
    /// Deliveries that failed.
    pub nacked_total: u64,
    /// Of the deliveries, how many were a message's first.
    pub first_delivered_total: u64,
    /// How long the messages of these first deliveries waited for them, together.
    pub waited_total: Duration,
    /// For how long the first of its ready messages has been ready; at most that, if it is in the store only. None if
    /// none is ready, or if they stand behind one that is delayed.
    pub head_waiting: Option<Duration>,
}

/// How the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Its version.
    pub version: String,
    /// How far a confirmed message has got: `fsync`, `os` or `memory`.
    pub durability: String,
    /// Whether the store takes writes.
    pub writable: bool,
    /// How many queues there are.
    pub queues: u64,
    /// How many consumers there are.
    pub consumers: u64,
    /// How many connections are open.
    pub connections: u64,
    /// How many bytes of messages may be kept in memory.
    pub memory_budget_bytes: u64,
    /// How many are.
    pub memory_used_bytes: u64,
    /// When it was started.
    pub started_at: SystemTime,
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

impl From<v1::ServerInfoResponse> for ServerInfo {
    fn from(wire: v1::ServerInfoResponse) -> Self {
        Self {
            version: wire.version,
            durability: wire.durability,
            writable: wire.writable,
            queues: wire.queues,
            consumers: wire.consumers,
            connections: wire.connections,
            memory_budget_bytes: wire.memory_budget_bytes,
            memory_used_bytes: wire.memory_used_bytes,
            started_at: SystemTime::UNIX_EPOCH + Duration::from_millis(wire.started_at_ms),
        }
    }
}
