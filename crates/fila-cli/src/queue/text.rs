//! Queues as text for people.

use std::time::Duration;

use fila_sdk::{
    HookInfo, KeySettings, QueueInfo, QueueSettings, QueueStats, SettingValue, Statistic,
    StatisticUnit,
};

use super::dead_letters::{DeadLetters, dead_letters_of};
use crate::output::{Align, Table, bytes, count, duration, printable};

/// Returns queues as a table. Queues of dead letters are a column of the queues that they belong to, unless they are to
/// be rows.
pub(super) fn list(queues: &[QueueInfo], dead_letters: DeadLetters) -> Table {
    let columns = [
        ("QUEUE", Align::Name),
        ("READY", Align::Right),
        ("DELAYED", Align::Right),
        ("LEASED", Align::Right),
        ("DEAD LETTERS", Align::Right),
        ("SIZE", Align::Right),
        ("KEYS", Align::Right),
        ("CONSUMERS", Align::Right),
        ("STATE", Align::Left),
    ];
    let mut table = Table::new(columns).spare(&["SIZE", "KEYS", "DELAYED"]);
    for queue in dead_letters.visible(queues) {
        let stats = &queue.stats;
        let dead = dead_letters_of(queue, queues);
        table.row([
            queue.name.clone(),
            count(stats.ready),
            count(stats.delayed),
            count(stats.leased),
            dead.map_or_else(|| "-".to_owned(), |dead| count(dead.stats.depth)),
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
        for line in hooks(&queue.hooks).indented(2).to_string().lines() {
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
        text += "\nkeys and groups with settings of their own\n";
        for line in keys(&queue.keys).indented(2).to_string().lines() {
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
            (Some(SettingValue::Text(text)), _) if setting.name == "key_separator" => {
                if text.is_empty() {
                    "off".to_owned()
                } else {
                    text
                }
            }
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
        ("KEY", Align::Name),
        ("WEIGHT", Align::Right),
        ("CONCURRENCY", Align::Right),
        ("DEPTH MAX", Align::Right),
        ("STATE", Align::Left),
    ]);
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), count);
    for key in keys {
        table.row([
            key.key.clone(),
            number(key.weight.map(u64::from)),
            number(key.concurrency.map(u64::from)),
            number(key.depth_max),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, depth: u64) -> QueueInfo {
        let mut queue = QueueInfo::default();
        queue.name = name.to_owned();
        (queue.stats.depth, queue.stats.ready) = (depth, depth);
        queue
    }

    #[test]
    fn queues_with_long_names_can_be_told_apart_at_every_width() {
        let names = ["mails", "orders"].map(|name| format!("payments-of-europe-in-2026-{name}"));
        let queues = names.each_ref().map(|name| {
            [
                queue(name, 1_234_567),
                queue(&format!("{name}.dlq"), 17_000),
            ]
        });
        let queues = queues.concat();
        for window in [80, 120, 200] {
            let folded = list(&queues, DeadLetters::Folded).plain(window);
            let rows = list(&queues, DeadLetters::Rows).plain(window);
            insta::assert_snapshot!(
                format!("queue_list_{window}"),
                format!("{folded}\n\n{rows}")
            );
        }
    }

    #[test]
    fn dead_letters_without_their_queue_have_a_row() {
        let queues = [queue("orders.dlq", 3)];
        let text = list(&queues, DeadLetters::Folded).to_string();
        assert!(text.contains("orders.dlq"), "{text}");
    }
}
