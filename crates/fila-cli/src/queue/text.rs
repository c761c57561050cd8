//! Queues for people.

use std::time::Duration;

use fila_sdk::{HookInfo, KeySettings, QueueInfo, QueueSettings, QueueStats};

use super::json::{charge, fallback, hook_state, ordering};
use crate::output::{Align, Table, bytes, count, duration, printable};

/// Returns queues as a table.
pub(super) fn list(queues: &[QueueInfo]) -> Table {
    let mut table = Table::new([
        ("QUEUE", Align::Left),
        ("READY", Align::Right),
        ("DELAYED", Align::Right),
        ("LEASED", Align::Right),
        ("SIZE", Align::Right),
        ("KEYS", Align::Right),
        ("CONSUMERS", Align::Right),
        ("STATE", Align::Left),
    ]);
    for queue in queues {
        let stats = &queue.stats;
        table.row([
            queue.name.clone(),
            count(stats.ready),
            count(stats.delayed),
            count(stats.leased),
            bytes(stats.bytes),
            count(stats.active_keys),
            count(stats.consumers),
            state(queue.paused).to_owned(),
        ]);
    }
    table
}

/// Returns all there is to say about a queue.
pub(super) fn inspect(queue: &QueueInfo) -> String {
    let mut text = format!(
        "queue      {}\nstate      {}\nversion    {}\n",
        queue.name,
        state(queue.paused),
        queue.version
    );
    text += "\nsettings\n";
    text += &block(settings(&queue.settings));
    if !queue.hooks.is_empty() {
        text += "\nhooks\n";
        for line in hooks(&queue.hooks).to_string().lines() {
            text += &format!("  {line}\n");
        }
        for hook in &queue.hooks {
            if let Some(error) = &hook.last_error {
                text += &format!("  {} failed last: {}\n", hook.name, printable(error));
            }
        }
    }
    text += "\nmessages\n";
    text += &block(messages(&queue.stats));
    text += "\nsince the server was started\n";
    text += &block(totals(&queue.stats));
    if !queue.keys.is_empty() {
        text += "\nkeys with settings of their own\n";
        for line in keys(&queue.keys).to_string().lines() {
            text += &format!("  {line}\n");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

pub(crate) fn state(paused: bool) -> &'static str {
    if paused { "paused" } else { "active" }
}

fn settings(settings: &QueueSettings) -> Vec<(&'static str, String)> {
    let time = |time: Option<Duration>| time.map_or_else(unknown, duration);
    let limit = |limit: Option<u64>, none: &str| match limit {
        Some(0) => none.to_owned(),
        Some(limit) => count(limit),
        None => unknown(),
    };
    vec![
        ("visibility timeout", time(settings.visibility_timeout)),
        (
            "ordering",
            settings
                .ordering
                .and_then(ordering)
                .map_or_else(unknown, str::to_owned),
        ),
        (
            "key concurrency",
            limit(settings.key_concurrency.map(u64::from), "any"),
        ),
        (
            "charge",
            settings
                .charge
                .and_then(charge)
                .map_or_else(unknown, str::to_owned),
        ),
        ("deduplication window", time(settings.deduplication_window)),
        ("depth max", limit(settings.depth_max, "the server's limit")),
        (
            "key depth max",
            limit(settings.key_depth_max, "the server's limit"),
        ),
        (
            "message ttl",
            match settings.message_ttl {
                Some(Duration::ZERO) => "for ever".to_owned(),
                other => time(other),
            },
        ),
        (
            "max attempts",
            limit(settings.retry_attempts_max.map(u64::from), "any"),
        ),
        ("retry backoff", time(settings.retry_backoff)),
        ("retry cap", time(settings.retry_backoff_max)),
        (
            "retry jitter",
            settings
                .retry_jitter_percent
                .map_or_else(unknown, |percent| format!("{percent} %")),
        ),
        (
            "hooks",
            match settings.script.as_deref() {
                None => unknown(),
                Some("") => "none".to_owned(),
                Some(script) => format!("a script of {} lines", script.lines().count()),
            },
        ),
        (
            "hook fallback",
            settings
                .hook_fallback
                .and_then(fallback)
                .map_or_else(unknown, str::to_owned),
        ),
    ]
}

fn hooks(hooks: &[HookInfo]) -> Table {
    let mut table = Table::new([
        ("HOOK", Align::Left),
        ("BREAKER", Align::Left),
        ("CALLS", Align::Right),
        ("FAILED", Align::Right),
        ("FALLBACKS", Align::Right),
        ("MEAN TIME", Align::Right),
    ]);
    for hook in hooks {
        let state = hook_state(hook.state).map_or_else(unknown, |state| state.replace('_', " "));
        let state = match hook.asked_again_in {
            Some(wait) => format!("{state}, tried again in {}", duration(wait)),
            None => state,
        };
        let calls = u32::try_from(hook.calls_total).unwrap_or(u32::MAX);
        table.row([
            hook.name.clone(),
            state,
            count(hook.calls_total),
            count(hook.failures_total),
            count(hook.fallbacks_total),
            match calls {
                0 => "-".to_owned(),
                calls => duration(hook.busy_total / calls),
            },
        ]);
    }
    table
}

fn messages(stats: &QueueStats) -> Vec<(&'static str, String)> {
    vec![
        ("depth", count(stats.depth)),
        ("ready", count(stats.ready)),
        ("throttled", count(stats.throttled)),
        ("delayed", count(stats.delayed)),
        ("leased", count(stats.leased)),
        ("stored only", count(stats.stored_only)),
        ("size", bytes(stats.bytes)),
        ("active keys", count(stats.active_keys)),
        ("consumers", count(stats.consumers)),
    ]
}

fn totals(stats: &QueueStats) -> Vec<(&'static str, String)> {
    vec![
        ("enqueued", count(stats.enqueued_total)),
        ("deduplicated", count(stats.deduplicated_total)),
        ("delivered", count(stats.delivered_total)),
        ("acked", count(stats.acked_total)),
        ("nacked", count(stats.nacked_total)),
        ("leases expired", count(stats.lease_expired_total)),
        ("released", count(stats.released_total)),
        ("expired", count(stats.expired_total)),
        ("purged", count(stats.purged_total)),
        ("damaged", count(stats.damaged_total)),
        ("retried", count(stats.retried_total)),
        ("dead-lettered", count(stats.dead_lettered_total)),
        (
            "dead letters refused",
            count(stats.dead_letters_refused_total),
        ),
        ("redriven", count(stats.redriven_total)),
        (
            "mean wait",
            mean_wait(stats.waited_total, stats.first_delivered_total),
        ),
    ]
}

/// Returns how long messages have waited for their first delivery, on average.
pub(crate) fn mean_wait(waited: Duration, deliveries: u64) -> String {
    match u32::try_from(deliveries.min(u32::MAX.into())) {
        Ok(deliveries @ 1..) => duration(waited / deliveries),
        _ => "-".to_owned(),
    }
}

fn keys(keys: &[KeySettings]) -> Table {
    let mut table = Table::new([
        ("KEY", Align::Left),
        ("WEIGHT", Align::Right),
        ("CONCURRENCY", Align::Right),
        ("STATE", Align::Left),
    ]);
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |n| count(n.into()));
    for key in keys {
        table.row([
            key.key.clone(),
            number(key.weight),
            number(key.concurrency),
            state(key.paused).to_owned(),
        ]);
    }
    table
}

fn block(lines: Vec<(&'static str, String)>) -> String {
    let lines = lines.into_iter();
    let lines = lines.map(|(name, value)| format!("  {name:<22}{}\n", printable(&value)));
    lines.collect()
}

fn unknown() -> String {
    "?".to_owned()
}
