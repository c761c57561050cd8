//! Contention: the effect of shards on throughput and on the time in the queue, with many tenants and with a hot one.

use std::time::Duration;

use crate::Effort;
use crate::contenders::{Contender, Ours, Rival, Room};
use crate::report::{Cell, Report};
use crate::threads::{Mix, through};

pub(crate) fn run(effort: Effort) -> Vec<Report> {
    let (samples, tasks) = match effort {
        Effort::Full => (3, 400_000),
        Effort::Quick => (1, 8_000),
    };
    let mixes = [
        ("1,000 tenants", Mix::Even),
        ("half from one hot tenant", Mix::Hot),
    ];
    let mut rows = Vec::new();
    for (name, mix) in mixes {
        for shards in [1, 2, 4, 16, 64] {
            rows.push(row(name, mix, shards, samples, tasks));
        }
    }
    vec![Report {
        title: "Shards: 4 producers and 4 consumers".to_owned(),
        note: "Room for 16,384 tasks, senders wait when it is full, so the queue is mostly full and queue time is its \
               length over the rate. Best of alternating samples; queue time as the scheduler's own statistics have \
               it, of the last.",
        columns: vec![
            "tenants",
            "shards",
            "0.1.3 M/s",
            "ours M/s",
            "ours ÷ 0.1.3",
            "ours p50 ms",
            "ours p95 ms",
            "ours p99 ms",
        ],
        rows,
    }]
}

fn row(name: &str, mix: Mix, shards: usize, samples: usize, tasks: usize) -> Vec<Cell> {
    let room = Room {
        total: 1 << 14,
        per_tenant: 1 << 14,
        shards,
    };
    let (mut rival, mut ours) = (0.0_f64, 0.0_f64);
    let mut queue_time = Default::default();
    for _ in 0..samples {
        let one: &dyn Contender = &Rival::new(room, true);
        rival = rival.max(through(one, mix, (4, 4), tasks));
        let other = Ours::waiting(room);
        ours = ours.max(through(&other, mix, (4, 4), tasks));
        queue_time = other.scheduler().stats().queue_time;
    }
    let millis = |time: Duration| Cell::Number(time.as_secs_f64() * 1e3, 2);
    vec![
        Cell::text(name),
        Cell::count(shards),
        Cell::Number(rival, 2),
        Cell::Number(ours, 2),
        Cell::Number(ours / rival, 2),
        millis(queue_time.p50),
        millis(queue_time.p95),
        millis(queue_time.p99),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_contention_a_hot_tenant_and_queue_times_are_measured() {
        let table = run(Effort::Quick).remove(0);
        let hot = |row: &&Vec<Cell>| row[0].to_string().contains("hot tenant");
        assert_eq!(table.rows.iter().filter(hot).count(), 5);
        let number = |row: &[Cell], name: &str| {
            let column = table.columns.iter().position(|it| *it == name).unwrap();
            match row[column] {
                Cell::Number(value, _) => value,
                Cell::Text(_) | Cell::None => panic!("{name} is no figure"),
            }
        };
        for row in &table.rows {
            assert!(number(row, "shards") >= 1.0);
            assert!(number(row, "ours M/s") > 0.0);
            assert!(number(row, "ours p50 ms") <= number(row, "ours p99 ms"));
        }
    }
}
