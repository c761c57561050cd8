//! Queues for programs. The names of the fields are promised: docs/cli.md has them.

use std::time::Duration;

use fila_sdk::{
    Charge, HookFallback, HookInfo, HookState, KeySettings, Ordering, QueueInfo, QueueSettings,
    QueueStats,
};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct QueueJson<'a> {
    name: &'a str,
    paused: bool,
    version: u64,
    settings: SettingsJson<'a>,
    stats: StatsJson,
    /// Left out of queues without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<HookJson<'a>>,
    /// Left out of lists, where it is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keys: Vec<KeySettingsJson<'a>>,
}

#[derive(Debug, Serialize)]
struct SettingsJson<'a> {
    visibility_timeout_ms: Option<u64>,
    ordering: Option<&'static str>,
    key_concurrency: Option<u32>,
    charge: Option<&'static str>,
    deduplication_window_ms: Option<u64>,
    depth_max: Option<u64>,
    key_depth_max: Option<u64>,
    message_ttl_ms: Option<u64>,
    retry_attempts_max: Option<u32>,
    retry_backoff_ms: Option<u64>,
    retry_backoff_max_ms: Option<u64>,
    retry_jitter_percent: Option<u32>,
    /// Left out of queues without one, and of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    script: Option<&'a str>,
    hook_fallback: Option<&'static str>,
}

/// How a hook fares.
#[derive(Debug, Serialize)]
struct HookJson<'a> {
    name: &'a str,
    state: Option<&'static str>,
    failures_in_a_row: u32,
    calls_total: u64,
    failures_total: u64,
    fallbacks_total: u64,
    busy_us_total: u64,
    last_error: Option<&'a str>,
    asked_again_in_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct StatsJson {
    depth: u64,
    ready: u64,
    throttled: u64,
    delayed: u64,
    leased: u64,
    stored_only: u64,
    bytes: u64,
    active_keys: u64,
    consumers: u64,
    enqueued_total: u64,
    deduplicated_total: u64,
    delivered_total: u64,
    acked_total: u64,
    nacked_total: u64,
    lease_expired_total: u64,
    released_total: u64,
    expired_total: u64,
    purged_total: u64,
    damaged_total: u64,
    first_delivered_total: u64,
    waited_ms_total: u64,
    retried_total: u64,
    dead_lettered_total: u64,
    dead_letters_refused_total: u64,
    redriven_total: u64,
}

/// What is set for a fairness key.
#[derive(Debug, Serialize)]
pub(crate) struct KeySettingsJson<'a> {
    key: &'a str,
    paused: bool,
    weight: Option<u32>,
    concurrency: Option<u32>,
}

impl<'a> From<&'a QueueInfo> for QueueJson<'a> {
    fn from(queue: &'a QueueInfo) -> Self {
        Self {
            name: &queue.name,
            paused: queue.paused,
            version: queue.version,
            settings: (&queue.settings).into(),
            stats: (&queue.stats).into(),
            hooks: queue.hooks.iter().map(HookJson::from).collect(),
            keys: queue.keys.iter().map(KeySettingsJson::from).collect(),
        }
    }
}

impl<'a> From<&'a QueueSettings> for SettingsJson<'a> {
    fn from(settings: &'a QueueSettings) -> Self {
        Self {
            visibility_timeout_ms: settings.visibility_timeout.map(millis),
            ordering: settings.ordering.and_then(ordering),
            key_concurrency: settings.key_concurrency,
            charge: settings.charge.and_then(charge),
            deduplication_window_ms: settings.deduplication_window.map(millis),
            depth_max: settings.depth_max,
            key_depth_max: settings.key_depth_max,
            message_ttl_ms: settings.message_ttl.map(millis),
            retry_attempts_max: settings.retry_attempts_max,
            retry_backoff_ms: settings.retry_backoff.map(millis),
            retry_backoff_max_ms: settings.retry_backoff_max.map(millis),
            retry_jitter_percent: settings.retry_jitter_percent,
            script: settings.script.as_deref().filter(|it| !it.is_empty()),
            hook_fallback: settings.hook_fallback.and_then(fallback),
        }
    }
}

impl<'a> From<&'a HookInfo> for HookJson<'a> {
    fn from(hook: &'a HookInfo) -> Self {
        Self {
            name: &hook.name,
            state: hook_state(hook.state),
            failures_in_a_row: hook.failures_in_a_row,
            calls_total: hook.calls_total,
            failures_total: hook.failures_total,
            fallbacks_total: hook.fallbacks_total,
            busy_us_total: u64::try_from(hook.busy_total.as_micros()).unwrap_or(u64::MAX),
            last_error: hook.last_error.as_deref(),
            asked_again_in_ms: hook.asked_again_in.map(millis),
        }
    }
}

impl From<&QueueStats> for StatsJson {
    fn from(stats: &QueueStats) -> Self {
        Self {
            depth: stats.depth,
            ready: stats.ready,
            throttled: stats.throttled,
            delayed: stats.delayed,
            leased: stats.leased,
            stored_only: stats.stored_only,
            bytes: stats.bytes,
            active_keys: stats.active_keys,
            consumers: stats.consumers,
            enqueued_total: stats.enqueued_total,
            deduplicated_total: stats.deduplicated_total,
            delivered_total: stats.delivered_total,
            acked_total: stats.acked_total,
            nacked_total: stats.nacked_total,
            lease_expired_total: stats.lease_expired_total,
            released_total: stats.released_total,
            expired_total: stats.expired_total,
            purged_total: stats.purged_total,
            damaged_total: stats.damaged_total,
            first_delivered_total: stats.first_delivered_total,
            waited_ms_total: millis(stats.waited_total),
            retried_total: stats.retried_total,
            dead_lettered_total: stats.dead_lettered_total,
            dead_letters_refused_total: stats.dead_letters_refused_total,
            redriven_total: stats.redriven_total,
        }
    }
}

impl<'a> From<&'a KeySettings> for KeySettingsJson<'a> {
    fn from(settings: &'a KeySettings) -> Self {
        Self {
            key: &settings.key,
            paused: settings.paused,
            weight: settings.weight,
            concurrency: settings.concurrency,
        }
    }
}

/// None for one that this program does not know yet.
pub(super) fn ordering(ordering: Ordering) -> Option<&'static str> {
    match ordering {
        Ordering::None => Some("none"),
        Ordering::Key => Some("key"),
        _ => None,
    }
}

/// None for one that this program does not know yet.
pub(super) fn charge(charge: Charge) -> Option<&'static str> {
    match charge {
        Charge::Message => Some("message"),
        Charge::Bytes => Some("bytes"),
        Charge::Time => Some("time"),
        _ => None,
    }
}

/// None for one that this program does not know yet.
pub(super) fn fallback(fallback: HookFallback) -> Option<&'static str> {
    match fallback {
        HookFallback::Default => Some("default"),
        HookFallback::LastGood => Some("last_good"),
        HookFallback::Refuse => Some("refuse"),
        _ => None,
    }
}

/// None for one that this program does not know yet.
pub(super) fn hook_state(state: HookState) -> Option<&'static str> {
    match state {
        HookState::Closed => Some("closed"),
        HookState::Open => Some("open"),
        HookState::HalfOpen => Some("half_open"),
        HookState::Broken => Some("broken"),
        _ => None,
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
