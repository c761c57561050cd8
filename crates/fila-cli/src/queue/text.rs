//! Queues as text for people.

use std::time::Duration;

use fila_sdk::{
    HookInfo, KeySettings, QueueInfo, QueueSettings, QueueStats, SettingValue, Statistic,
    StatisticUnit,
};

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

/// Returns the whole description of a queue.
pub(super) fn inspect(queue: &QueueInfo) -> String {
    let mut text = format!(
        "queue      {}\nstate      {}\nversion    {}\n",
        queue.name,
        state(queue.paused),
        queue.version
    );
    text += "\nsettings\n";
    text += &settings(&queue.settings);
    if !queue.hooks.is_empty() {
        text += "\nhooks\n";
        for line in hooks(&queue.hooks).to_string().lines() {
            text += &format!("  {line}\n");
        }
        for hook in &queue.hooks {
            let (adjusted, unusable) = (hook.adjusted_total, hook.unusable_total);
            if adjusted > 0 || unusable > 0 {
                text += &format!(
                    "  {}: {} answers brought into range, {} could not be used\n",
                    hook.name,
                    count(adjusted),
                    count(unusable)
                );
            }
            if let Some(error) = &hook.last_error {
                text += &format!("  {} failed last: {}\n", hook.name, printable(error));
            }
        }
    }
    text += "\nmessages\n";
    text += &statistics(QueueStats::NOW, &queue.stats);
    text += "\nsince the server was started\n";
    let totals = &queue.stats.totals;
    text += &statistics(QueueStats::TOTALS, &queue.stats);
    text += &block([(
        "mean wait",
        mean_wait(totals.waited, totals.first_delivered),
    )]);
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

fn settings(settings: &QueueSettings) -> String {
    let values = QueueSettings::TABLE.iter().map(|setting| {
        let value = match ((setting.get)(settings), setting.zero) {
            (None, _) => unknown(),
            (Some(SettingValue::Time(Duration::ZERO) | SettingValue::Number(0)), Some(zero)) => {
                zero.to_owned()
            }
            (Some(SettingValue::Time(time)), _) => duration(time),
            (Some(SettingValue::Number(number)), _) => count(number),
            (Some(SettingValue::Word(word)), _) => word.to_owned(),
            (Some(SettingValue::Text(text)), _) if text.is_empty() => "none".to_owned(),
            (Some(SettingValue::Text(text)), _) => format!("{} lines", text.lines().count()),
            (Some(_), _) => unknown(),
        };
        (setting.name, value)
    });
    block(values)
}

fn statistics(rows: &[Statistic], stats: &QueueStats) -> String {
    let values = rows.iter().map(|row| {
        let value = (row.get)(stats);
        let value = match row.unit {
            StatisticUnit::Bytes => bytes(value),
            StatisticUnit::Time => duration(Duration::from_millis(value)),
            _ => count(value),
        };
        (row.name, value)
    });
    block(values)
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
        let state = hook.state.as_str().replace('_', " ");
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

/// Returns the mean wait of messages for their first delivery.
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

fn block(values: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let line = |(name, value): (&str, String)| {
        format!("  {:<22}{}\n", name.replace('_', " "), printable(&value))
    };
    values.into_iter().map(line).collect()
}

fn unknown() -> String {
    "?".to_owned()
}
