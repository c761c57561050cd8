//! Samples of a server, and the rows computed from two of them.
//!
//! Rates are differences of totals. The rate is unknown until the next sample if a total is new or has shrunk, because
//! the server restarted or has forgotten the key.

use std::collections::HashMap;
use std::time::Duration;

use fila_sdk::{GroupInfo, KeyInfo, QueueInfo};

use super::ideals::Ideals;
use crate::queue::{DeadLetters, dead_letters_of};

/// The most keys, and the most groups, of one sample.
pub(crate) const KEYS_MAX: usize = 1000;

/// The state of a server at one moment, counted from the start of the view.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at: Duration,
    pub(crate) server: ServerLine,
    pub(crate) queues: Vec<QueueInfo>,
    /// The keys of the selected queue.
    pub(crate) keys: Option<Keys>,
}

/// The state of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerLine {
    pub(crate) version: String,
    pub(crate) durability: String,
    pub(crate) writable: bool,
    pub(crate) connections: u64,
    pub(crate) consumers: u64,
    pub(crate) memory_used: u64,
    pub(crate) memory_budget: u64,
    pub(crate) uptime: Duration,
}

/// Keys of a queue that have messages: the first of them, if there are too many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    pub(crate) queue: String,
    pub(crate) keys: Vec<KeyInfo>,
    /// The groups of them, as many.
    pub(crate) groups: Vec<GroupInfo>,
}

/// A queue in the view.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueueRow {
    pub(crate) name: String,
    pub(crate) paused: bool,
    pub(crate) depth: u64,
    pub(crate) ready: u64,
    /// The ready messages that wait for a token.
    pub(crate) throttled: u64,
    pub(crate) delayed: u64,
    pub(crate) leased: u64,
    /// Its dead letters; none if it has no queue of them.
    pub(crate) dead: Option<u64>,
    /// Messages stored, deliveries and acknowledgements, per second.
    pub(crate) enqueued: Option<f64>,
    pub(crate) delivered: Option<f64>,
    pub(crate) acked: Option<f64>,
    /// The mean wait of messages whose first delivery was between the two samples.
    pub(crate) wait: Option<Duration>,
    pub(crate) keys: u64,
    pub(crate) groups: u64,
    pub(crate) consumers: u64,
}

/// A fairness key in the view, or a group of them: then what is known of keys alone is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KeyRow {
    pub(crate) key: String,
    pub(crate) weight: u32,
    pub(crate) paused: bool,
    pub(crate) ready: u64,
    pub(crate) throttled: u64,
    pub(crate) delayed: u64,
    pub(crate) leased: u64,
    pub(crate) delivered: Option<f64>,
    pub(crate) acked: Option<f64>,
    /// Its share of the queue's deliveries between the two samples.
    pub(crate) share: Option<f64>,
    /// Its part of the weights of all keys and groups beside it that have ready messages, of the part of its group; none if
    /// it has no ready message, or it or its group is paused.
    pub(crate) ideal: Option<f64>,
    pub(crate) wait: Option<Duration>,
    /// How long the first of its ready messages has been ready.
    pub(crate) head: Option<Duration>,
}

/// Returns the rows of the queues, with their changes since `before`.
pub(crate) fn queue_rows(
    before: Option<&Sample>,
    now: &Sample,
    dead_letters: DeadLetters,
) -> Vec<QueueRow> {
    let rows = dead_letters.visible(&now.queues).map(|queue| {
        let stats = &queue.stats;
        let since = Since::new(
            before,
            now,
            before.and_then(|before| before.queue(&queue.name)),
        );
        QueueRow {
            name: queue.name.clone(),
            paused: queue.paused,
            depth: stats.depth,
            ready: stats.ready,
            throttled: stats.throttled,
            delayed: stats.delayed,
            leased: stats.leased,
            dead: dead_letters_of(queue, &now.queues).map(|dead| dead.stats.depth),
            enqueued: since.rate(stats.totals.enqueued, |queue| queue.stats.totals.enqueued),
            delivered: since.rate(stats.totals.delivered, |queue| queue.stats.totals.delivered),
            acked: since.rate(stats.totals.acked, |queue| queue.stats.totals.acked),
            wait: since.wait(
                (stats.totals.waited, stats.totals.first_delivered),
                |queue| {
                    (
                        queue.stats.totals.waited,
                        queue.stats.totals.first_delivered,
                    )
                },
            ),
            keys: stats.active_keys,
            groups: stats.active_groups,
            consumers: stats.consumers,
        }
    });
    rows.collect()
}

/// Returns the rows of the selected queue's keys, with their changes since `before`.
pub(crate) fn key_rows(before: Option<&Sample>, now: &Sample) -> Vec<KeyRow> {
    let Some(keys) = &now.keys else {
        return Vec::new();
    };
    let ideals = ideals(keys, now);
    let old_keys = old(keys, before).flat_map(|old| &old.keys);
    let old_keys: HashMap<&str, &KeyInfo> = old_keys.map(|old| (&*old.key, old)).collect();
    let whole = delivered_since(before, now, &keys.queue);
    let rows = keys.keys.iter().map(|key| {
        let since = Since::new(before, now, old_keys.get(&*key.key).copied());
        let part = since.grown(key.delivered_total, |old| old.delivered_total);
        KeyRow {
            key: key.key.clone(),
            weight: key.weight,
            paused: key.paused,
            ready: key.ready,
            throttled: key.throttled,
            delayed: key.delayed,
            leased: key.leased,
            delivered: since.rate(key.delivered_total, |old| old.delivered_total),
            acked: since.rate(key.acked_total, |old| old.acked_total),
            share: share(part, whole),
            ideal: ideals.of_key(key),
            wait: since.wait((key.waited_total, key.first_delivered_total), |old| {
                (old.waited_total, old.first_delivered_total)
            }),
            head: key.head_waiting,
        }
    });
    rows.collect()
}

/// Returns the rows of the groups of the selected queue's keys, with their changes since `before`.
pub(crate) fn group_rows(before: Option<&Sample>, now: &Sample) -> Vec<KeyRow> {
    let Some(keys) = &now.keys else {
        return Vec::new();
    };
    let ideals = ideals(keys, now);
    let old_groups = old(keys, before).flat_map(|old| &old.groups);
    let old_groups: HashMap<&str, &GroupInfo> = old_groups.map(|old| (&*old.path, old)).collect();
    let whole = delivered_since(before, now, &keys.queue);
    let rows = keys.groups.iter().map(|group| {
        let since = Since::new(before, now, old_groups.get(&*group.path).copied());
        let part = since.grown(group.delivered_total, |old| old.delivered_total);
        KeyRow {
            key: group.path.clone(),
            weight: group.weight,
            paused: group.paused,
            ready: group.ready,
            throttled: group.throttled,
            delayed: group.delayed,
            leased: group.leased,
            delivered: since.rate(group.delivered_total, |old| old.delivered_total),
            share: share(part, whole),
            ideal: ideals.of_group(group),
            ..KeyRow::default()
        }
    });
    rows.collect()
}

fn ideals<'a>(keys: &'a Keys, now: &'a Sample) -> Ideals<'a> {
    let queue = now.queue(&keys.queue);
    let separator = queue.and_then(|queue| queue.settings.key_separator.as_deref());
    Ideals::new(keys, separator.filter(|text| !text.is_empty()))
}

/// Returns the keys of the same queue in the sample before.
fn old<'a>(keys: &Keys, before: Option<&'a Sample>) -> impl Iterator<Item = &'a Keys> {
    let old = before.and_then(|before| before.keys.as_ref());
    old.filter(|old| old.queue == keys.queue).into_iter()
}

/// Returns how many messages of a queue were delivered between two samples.
fn delivered_since(before: Option<&Sample>, now: &Sample, queue: &str) -> Option<f64> {
    let old = before?.queue(queue)?.stats.totals.delivered;
    let grown = now.queue(queue)?.stats.totals.delivered.checked_sub(old)?;
    Some(grown as f64)
}

fn share(part: Option<u64>, whole: Option<f64>) -> Option<f64> {
    let (part, whole) = part.zip(whole).filter(|&(_, whole)| whole > 0.0)?;
    // The queue was sampled a moment before its keys.
    Some((part as f64 / whole).min(1.0))
}

impl Sample {
    pub(crate) fn queue(&self, name: &str) -> Option<&QueueInfo> {
        self.queues.iter().find(|queue| queue.name == name)
    }
}

/// A previous state, and its age.
struct Since<'a, T> {
    old: Option<&'a T>,
    seconds: f64,
}

impl<'a, T> Since<'a, T> {
    fn new(before: Option<&Sample>, now: &Sample, old: Option<&'a T>) -> Self {
        let time = before.map(|before| now.at.saturating_sub(before.at));
        Self {
            old,
            seconds: time.unwrap_or_default().as_secs_f64(),
        }
    }

    fn grown(&self, total: u64, of: impl Fn(&T) -> u64) -> Option<u64> {
        total.checked_sub(of(self.old?))
    }

    fn rate(&self, total: u64, of: impl Fn(&T) -> u64) -> Option<f64> {
        let grown = self.grown(total, of)?;
        (self.seconds > 0.0).then(|| grown as f64 / self.seconds)
    }

    fn wait(
        &self,
        (waited, count): (Duration, u64),
        of: impl Fn(&T) -> (Duration, u64),
    ) -> Option<Duration> {
        let (old_waited, old_count) = of(self.old?);
        let count = count.checked_sub(old_count).filter(|&count| count > 0)?;
        let waited = waited.checked_sub(old_waited)?;
        Some(waited.div_f64(count as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{key, queue, sample};
    use super::*;

    #[test]
    fn rates_are_differences_of_totals() {
        let before = sample(
            0,
            vec![queue("orders", |stats| stats.totals.enqueued = 100)],
        );
        let now = sample(
            2000,
            vec![queue("orders", |stats| stats.totals.enqueued = 150)],
        );
        let rows = queue_rows(Some(&before), &now, DeadLetters::Folded);
        assert_eq!(rows[0].enqueued, Some(25.0));
        assert_eq!(rows[0].delivered, Some(0.0));
    }

    #[test]
    fn what_was_not_seen_before_or_has_shrunk_has_no_rate() {
        let now = sample(
            1000,
            vec![queue("orders", |stats| stats.totals.enqueued = 5)],
        );
        assert_eq!(
            queue_rows(None, &now, DeadLetters::Folded)[0].enqueued,
            None
        );
        let other = sample(0, vec![queue("other", |_| {})]);
        assert_eq!(
            queue_rows(Some(&other), &now, DeadLetters::Folded)[0].enqueued,
            None
        );
        let larger = sample(0, vec![queue("orders", |stats| stats.totals.enqueued = 9)]);
        assert_eq!(
            queue_rows(Some(&larger), &now, DeadLetters::Folded)[0].enqueued,
            None
        );
        assert_eq!(
            queue_rows(Some(&now), &now, DeadLetters::Folded)[0].enqueued,
            None
        );
    }

    #[test]
    fn a_wait_is_the_mean_of_what_was_delivered_since() {
        let totals = |count, millis| {
            queue("orders", |stats| {
                stats.totals.first_delivered = count;
                stats.totals.waited = Duration::from_millis(millis);
            })
        };
        let before = sample(0, vec![totals(10, 1000)]);
        let now = sample(1000, vec![totals(14, 1100)]);
        assert_eq!(
            queue_rows(Some(&before), &now, DeadLetters::Folded)[0].wait,
            Some(Duration::from_millis(25))
        );
        assert_eq!(
            queue_rows(Some(&now), &now, DeadLetters::Folded)[0].wait,
            None
        );
    }

    #[test]
    fn a_share_is_a_part_of_the_queues_deliveries_and_its_ideal_a_part_of_the_weights() {
        let orders = |total| queue("orders", |stats| stats.totals.delivered = total);
        let keys = |totals: [u64; 3]| {
            let [gold, basic, idle] = totals;
            vec![
                key("gold", 3, 5, gold),
                key("basic", 1, 5, basic),
                // Its messages are all delayed, so it does not compete.
                key("idle", 1, 0, idle),
            ]
        };
        let mut before = sample(0, vec![orders(0)]);
        before.keys = Some(Keys {
            queue: "orders".to_owned(),
            keys: keys([0, 0, 7]),
            groups: Vec::new(),
        });
        let mut now = sample(1000, vec![orders(100)]);
        now.keys = Some(Keys {
            queue: "orders".to_owned(),
            keys: keys([75, 20, 7]),
            groups: Vec::new(),
        });
        let rows = key_rows(Some(&before), &now);
        let shares: Vec<_> = rows.iter().map(|row| (row.share, row.ideal)).collect();
        assert_eq!(
            shares,
            [
                (Some(0.75), Some(0.75)),
                (Some(0.2), Some(0.25)),
                (Some(0.0), None)
            ]
        );
    }

    #[test]
    fn keys_of_another_queue_are_no_past() {
        let mut before = sample(0, vec![queue("orders", |_| {})]);
        before.keys = Some(Keys {
            queue: "other".to_owned(),
            keys: vec![key("acme", 1, 1, 0)],
            groups: Vec::new(),
        });
        let mut now = sample(1000, vec![queue("orders", |_| {})]);
        now.keys = Some(Keys {
            queue: "orders".to_owned(),
            keys: vec![key("acme", 1, 1, 10)],
            groups: Vec::new(),
        });
        assert_eq!(key_rows(Some(&before), &now)[0].delivered, None);
    }
}
