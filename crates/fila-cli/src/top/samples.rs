//! Samples for tests.

use std::time::Duration;

use fila_sdk::{GroupInfo, KeyInfo, QueueInfo, QueueStats};

use super::sample::{Keys, Sample, ServerLine};

pub(crate) fn sample(at_ms: u64, queues: Vec<QueueInfo>) -> Sample {
    Sample {
        at: Duration::from_millis(at_ms),
        server: ServerLine {
            version: "0.1.0".to_owned(),
            durability: "fsync".to_owned(),
            writable: true,
            connections: 7,
            consumers: 12,
            memory_used: 13 << 20,
            memory_budget: 256 << 20,
            uptime: Duration::from_secs(3 * 60 * 60),
        },
        queues,
        keys: None,
    }
}

pub(crate) fn queue(name: &str, set: impl FnOnce(&mut QueueStats)) -> QueueInfo {
    let mut queue = QueueInfo::default();
    queue.name = name.to_owned();
    set(&mut queue.stats);
    queue
}

pub(crate) fn key(name: &str, weight: u32, ready: u64, delivered_total: u64) -> KeyInfo {
    let mut key = KeyInfo::default();
    key.key = name.to_owned();
    key.weight = weight;
    key.ready = ready;
    key.delivered_total = delivered_total;
    key.acked_total = delivered_total;
    key.first_delivered_total = delivered_total;
    key
}

/// A server with some queues, a second before and now.
pub(crate) fn two() -> [Sample; 2] {
    [(0, 0), (1000, 1)].map(|(at, second)| {
        let mut billing = queue("billing", |_| {});
        billing.paused = true;
        let orders = queue("orders", |stats| {
            stats.depth = 48_210;
            stats.ready = 48_190;
            stats.leased = 20;
            stats.throttled = 7;
            stats.active_keys = 3;
            stats.consumers = 8;
            stats.totals.enqueued = 90_000 + second * 1250;
            stats.totals.delivered = 41_790 + second * 4000;
            stats.totals.acked = 41_770 + second * 3990;
            stats.totals.first_delivered = 41_790 + second * 4000;
            stats.totals.waited = Duration::from_secs(1000 + second * 2480);
        });
        let mails = queue("mails", |stats| {
            stats.depth = 1_204_000;
            stats.ready = 4000;
            stats.delayed = 1_200_000;
            stats.active_keys = 120_000;
            stats.consumers = 4;
            stats.totals.enqueued = second * 3;
        });
        let dead = queue("orders.dlq", |stats| stats.depth = 17);
        let mut sample = sample(at, vec![billing, mails, orders, dead]);
        let mut noisy = key("noisy", 1, 48_000, 30_000 + second * 1990);
        noisy.leased = 12;
        noisy.waited_total = Duration::from_secs(second * 2470);
        noisy.head_waiting = Some(Duration::from_millis(12_400));
        let mut gold = key("gold", 3, 190, 11_000 + second * 2010);
        gold.leased = 8;
        gold.waited_total = Duration::from_secs(second * 8);
        gold.head_waiting = Some(Duration::from_millis(7));
        let mut held = key("held", 1, 0, 790);
        held.paused = true;
        held.delayed = 3;
        sample.keys = Some(Keys {
            queue: "orders".to_owned(),
            keys: vec![gold, held, noisy],
            groups: Vec::new(),
        });
        sample
    })
}

/// The same server, where two of the keys are those of one tenant.
pub(crate) fn with_groups() -> [Sample; 2] {
    let mut second = 0;
    two().map(|mut sample| {
        let queue = sample.queues.iter_mut().find(|it| it.name == "orders");
        let queue = queue.expect("two() has it");
        queue.settings.key_separator = Some("/".to_owned());
        queue.stats.active_groups = 1;
        if let Some(keys) = &mut sample.keys {
            for (key, name) in keys
                .keys
                .iter_mut()
                .zip(["acme/gold", "acme/held", "noisy"])
            {
                key.key = name.to_owned();
            }
            let mut acme = GroupInfo::default();
            acme.path = "acme".to_owned();
            (acme.weight, acme.members, acme.active_keys) = (3, 2, 2);
            (acme.ready, acme.delayed, acme.leased) = (190, 3, 8);
            acme.delivered_total = 11_790 + second * 2010;
            keys.groups = vec![acme];
        }
        second += 1;
        sample
    })
}

/// The same server with names as long as names get, in two scripts.
pub(crate) fn long_names() -> [Sample; 2] {
    two().map(|mut sample| {
        let long = |name: &str| format!("payments-of-all-customers-in-europe-{name}");
        for queue in &mut sample.queues {
            queue.name = long(&queue.name);
        }
        if let Some(keys) = &mut sample.keys {
            keys.queue = long("orders");
            let first = keys.keys[0].clone();
            keys.keys = (1..=6)
                .map(|number| {
                    let mut key = first.clone();
                    key.key = match number % 2 {
                        0 => format!("大きな顧客の名前-{number:06}"),
                        _ => format!("customer-{number:06}-of-a-reseller-{number:06}"),
                    };
                    key
                })
                .collect();
        }
        sample
    })
}
