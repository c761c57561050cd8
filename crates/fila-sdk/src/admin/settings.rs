//! What can be set for a queue.

use std::time::Duration;

use fila_proto::v1;

use crate::message::millis;

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
