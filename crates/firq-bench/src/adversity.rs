//! Difficult loads: how long the slowest dequeue takes compared with the usual one.

use std::time::{Duration, Instant};

use firq_core as ours;
use firq_core_rival as rival;

use crate::Effort;
use crate::contenders::{Item, Ours, Rival, Room, rival_task};
use crate::report::{Cell, Report};

pub(crate) fn run(effort: Effort) -> Vec<Report> {
    let size = match effort {
        Effort::Full => 100_000,
        Effort::Quick => 5_000,
    };
    let room = Room {
        total: 2 * size + 16,
        per_tenant: 2 * size + 16,
        shards: 1,
    };
    let mut rows = Vec::new();
    for (name, play) in DAYS {
        let (rival, mine) = play(room, size);
        rows.push(row(name, "firq-core 0.1.3", rival));
        rows.push(row(name, "firq-core (ours)", mine));
    }
    vec![Report {
        title: "Bad days: nanoseconds per dequeue".to_owned(),
        note: "100,000 tasks or tenants. The slowest single dequeue also catches the machine's own interruptions; \
               the tests count steps instead. A dequeue that finds nothing but expired or cancelled tasks counts, too.",
        columns: vec!["day", "queue", "median", "p99.9", "slowest", "total ms"],
        rows,
    }]
}

type Day = (
    &'static str,
    fn(Room, usize) -> (Vec<Duration>, Vec<Duration>),
);

const DAYS: [Day; 3] = [
    ("costs of 10,000 quanta", dear),
    ("all but a few tasks expired", expired),
    ("all but a few tasks cancelled", cancelled),
];

fn row(day: &str, name: &str, mut times: Vec<Duration>) -> Vec<Cell> {
    let total: Duration = times.iter().sum();
    times.sort_unstable();
    let at = |part: f64| {
        let index = ((times.len() - 1) as f64 * part) as usize;
        Cell::Number(times[index].as_nanos() as f64, 0)
    };
    vec![
        Cell::text(day),
        Cell::text(name),
        at(0.5),
        at(0.999),
        at(1.0),
        Cell::Number(total.as_secs_f64() * 1e3, 1),
    ]
}

fn item(tenant: usize) -> Item {
    Item {
        tenant: tenant as u64,
        sent: Instant::now(),
    }
}

fn timed(mut dequeue: impl FnMut() -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    loop {
        let begin = Instant::now();
        let more = dequeue();
        times.push(begin.elapsed());
        if !more {
            return times;
        }
    }
}

fn drain_ours(scheduler: &ours::Scheduler<Item>) -> Vec<Duration> {
    timed(|| matches!(scheduler.try_dequeue(), ours::DequeueResult::Task { .. }))
}

/// Dequeues until nothing is left; `Empty` means little while tasks are queued.
fn drain_rival(scheduler: &rival::Scheduler<Item>, most: usize) -> Vec<Duration> {
    let mut tries = 0;
    timed(|| {
        tries += 1;
        let taken = matches!(scheduler.try_dequeue(), rival::DequeueResult::Task { .. });
        taken || (scheduler.stats().queue_len_estimate > 0 && tries < most)
    })
}

fn offer_ours(scheduler: &ours::Scheduler<Item>, tenant: usize, task: ours::Task<Item>) {
    let key = ours::TenantKey::from(tenant as u64);
    assert_eq!(scheduler.enqueue(key, task), ours::EnqueueResult::Enqueued);
}

fn offer_rival(scheduler: &rival::Scheduler<Item>, tenant: usize, task: rival::Task<Item>) {
    let result = scheduler.enqueue(rival::TenantKey::from(tenant as u64), task);
    assert!(matches!(result, rival::EnqueueResult::Enqueued));
}

fn dear(room: Room, size: usize) -> (Vec<Duration>, Vec<Duration>) {
    // The published crate walks through every round, so it gets 1 % of the tasks.
    let few = size / 100;
    let rival = Rival::new(room, false);
    for tenant in 0..few {
        offer_rival(
            rival.scheduler(),
            tenant,
            rival_task(item(tenant), 10_000, None),
        );
    }
    let ours = Ours::new(room, ours::BackpressurePolicy::Reject);
    for tenant in 0..size {
        offer_ours(
            ours.scheduler(),
            tenant,
            ours::Task::new(item(tenant)).with_cost(10_000),
        );
    }
    (
        drain_rival(rival.scheduler(), 100 * size),
        drain_ours(ours.scheduler()),
    )
}

fn expired(room: Room, size: usize) -> (Vec<Duration>, Vec<Duration>) {
    let soon = Instant::now() + Duration::from_millis(if size > 10_000 { 400 } else { 50 });
    let is_live = |tenant: usize| tenant.is_multiple_of(1000);
    let rival = Rival::new(room, false);
    let ours = Ours::new(room, ours::BackpressurePolicy::Reject);
    for tenant in 0..size {
        let deadline = (!is_live(tenant)).then_some(soon);
        offer_rival(
            rival.scheduler(),
            tenant,
            rival_task(item(tenant), 1, deadline),
        );
        let mut task = ours::Task::new(item(tenant));
        task.deadline = deadline;
        offer_ours(ours.scheduler(), tenant, task);
    }
    std::thread::sleep(soon.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
    (
        drain_rival(rival.scheduler(), 100 * size),
        drain_ours(ours.scheduler()),
    )
}

fn cancelled(room: Room, size: usize) -> (Vec<Duration>, Vec<Duration>) {
    let is_live = |number: usize| number.is_multiple_of(1000);
    let rival = Rival::new(room, false);
    let ours = Ours::new(room, ours::BackpressurePolicy::Reject);
    for number in 0..size {
        let tenant = number % 100;
        let key = rival::TenantKey::from(tenant as u64);
        match rival
            .scheduler()
            .enqueue_with_handle(key, rival_task(item(tenant), 1, None))
        {
            rival::EnqueueWithHandleResult::Enqueued(handle) if !is_live(number) => {
                let _ = rival.scheduler().cancel(handle);
            }
            _ => {}
        }
        let key = ours::TenantKey::from(tenant as u64);
        match ours
            .scheduler()
            .enqueue_with_handle(key, ours::Task::new(item(tenant)))
        {
            ours::EnqueueWithHandleResult::Enqueued(handle) if !is_live(number) => {
                assert_eq!(
                    ours.scheduler().cancel(handle),
                    ours::CancelResult::Cancelled
                );
            }
            _ => {}
        }
    }
    (
        drain_rival(rival.scheduler(), 100 * size),
        drain_ours(ours.scheduler()),
    )
}
