//! Tokio: how many items a second get from one task to another, and how long it takes to wake a waiting task.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firq_async as ours;
use firq_async_rival as rival;
use firq_core_rival as rival_core;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::Effort;
use crate::contenders::{Item, rival_task};
use crate::report::{Cell, Report};
use lab::Latencies;

const TENANTS: u64 = 100;
const ROOM: usize = 1 << 10;

/// Measures tasks a second.
type Rate = fn(&Runtime, u64) -> f64;
/// Measures the latency of each task.
type Wakes = fn(&Runtime, usize) -> Vec<Duration>;

pub(crate) fn run(effort: Effort) -> Vec<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime can be had");
    let (samples, tasks, wakes) = match effort {
        Effort::Full => (5, 400_000, 3_000),
        Effort::Quick => (1, 10_000, 50),
    };
    vec![
        throughput(&runtime, samples, tasks),
        wakeups(&runtime, samples, wakes),
    ]
}

fn throughput(runtime: &Runtime, samples: usize, tasks: u64) -> Report {
    let contenders: [(&str, u64, Rate); 4] = [
        ("tokio::sync::mpsc", tasks, mpsc_rate),
        ("firq-async 0.1.3", tasks / 20, rival_rate),
        ("firq-async (ours)", tasks, ours_rate),
        ("firq-async (ours), batches of 64", tasks, ours_batch_rate),
    ];
    let mut best = [0.0_f64; 4];
    for _ in 0..samples {
        for ((_, tasks, rate), best) in contenders.iter().zip(&mut best) {
            *best = best.max(rate(runtime, *tasks));
        }
    }
    let rows = contenders.iter().zip(best).map(|((name, ..), rate)| {
        vec![
            Cell::text(*name),
            Cell::Number(rate / 1e6, 3),
            Cell::Number(rate / best[0], 2),
            Cell::Number(rate / best[1], 1),
        ]
    });
    Report {
        title: "Tokio: million tasks a second from one task to another".to_owned(),
        note: "One producer that waits for room (0.1.3 cannot: it tries again), one consumer, 100 tenants, room for \
               1,024, two worker threads. Best of alternating samples. Wanted: at least 25× 0.1.3, 0.4× mpsc.",
        columns: vec!["queue", "M tasks/s", "÷ mpsc", "÷ 0.1.3"],
        rows: rows.collect(),
    }
}

fn wakeups(runtime: &Runtime, samples: usize, wakes: usize) -> Report {
    let contenders: [(&str, Wakes); 3] = [
        ("tokio::sync::mpsc", mpsc_wakes),
        ("firq-async 0.1.3", rival_wakes),
        ("firq-async (ours)", ours_wakes),
    ];
    let mut waits: [Latencies; 3] = Default::default();
    for _ in 0..samples {
        for ((_, wake), waits) in contenders.iter().zip(&mut waits) {
            waits.merge(wake(runtime, wakes).into_iter().collect());
        }
    }
    let micros = |part: f64, waits: &Latencies| waits.percentile(part).as_secs_f64() * 1e6;
    let floor = micros(0.5, &waits[0]);
    let rows = contenders.iter().zip(&waits).map(|((name, _), waits)| {
        vec![
            Cell::text(*name),
            Cell::Number(micros(0.5, waits), 1),
            Cell::Number(micros(0.99, waits), 1),
            Cell::Number(micros(0.5, waits) / floor, 2),
        ]
    });
    Report {
        title: "Tokio: microseconds to wake a consumer that waits".to_owned(),
        note: "A thread sends a task every 100 µs or so to a consumer that has gone to sleep; from just before sending \
               to when the consumer has it. Wanted: p50 at most 1.5× mpsc.",
        columns: vec!["queue", "p50", "p99", "p50 ÷ mpsc"],
        rows: rows.collect(),
    }
}

fn item(number: u64) -> Item {
    Item {
        tenant: number % TENANTS,
        sent: Instant::now(),
    }
}

/// Runs a producer and a consumer at the same time, and returns their rate in tasks a second.
fn race(
    runtime: &Runtime,
    tasks: u64,
    producer: impl Future<Output = ()> + Send + 'static,
    consumer: impl Future<Output = ()> + Send + 'static,
) -> f64 {
    let begun = Instant::now();
    runtime.block_on(async {
        let ends = [tokio::spawn(producer), tokio::spawn(consumer)];
        for end in ends {
            end.await.expect("no panics");
        }
    });
    tasks as f64 / begun.elapsed().as_secs_f64()
}

fn mpsc_rate(runtime: &Runtime, tasks: u64) -> f64 {
    let (sender, mut receiver) = mpsc::channel(ROOM);
    let producer = async move {
        for number in 0..tasks {
            sender.send(item(number)).await.expect("both ends are here");
        }
    };
    let consumer = async move { while receiver.recv().await.is_some() {} };
    race(runtime, tasks, producer, consumer)
}

fn our_scheduler() -> ours::AsyncScheduler<Item> {
    let config = ours::SchedulerConfig {
        max_global: ROOM,
        max_per_tenant: ROOM,
        ..ours::SchedulerConfig::default()
    };
    ours::AsyncScheduler::new(config).expect("a valid configuration")
}

async fn our_producer(scheduler: ours::AsyncScheduler<Item>, tasks: u64) {
    for number in 0..tasks {
        let tenant = ours::TenantKey::from(number % TENANTS);
        let queued = scheduler
            .enqueue_async(tenant, ours::Task::new(item(number)))
            .await;
        assert!(queued.is_ok(), "it waits for room");
    }
}

fn ours_rate(runtime: &Runtime, tasks: u64) -> f64 {
    let scheduler = our_scheduler();
    let consumer = scheduler.clone();
    let consumer = async move {
        for _ in 0..tasks {
            assert!(consumer.dequeue_async().await.into_task().is_some());
        }
    };
    race(runtime, tasks, our_producer(scheduler, tasks), consumer)
}

fn ours_batch_rate(runtime: &Runtime, tasks: u64) -> f64 {
    let scheduler = our_scheduler();
    let consumer = scheduler.clone();
    let consumer = async move {
        let (mut left, mut batch) = (tasks, Vec::with_capacity(64));
        while left > 0 {
            left -= consumer.dequeue_batch_async(64, &mut batch).await as u64;
            batch.clear();
        }
    };
    race(runtime, tasks, our_producer(scheduler, tasks), consumer)
}

fn rival_scheduler() -> (
    Arc<rival_core::Scheduler<Item>>,
    rival::AsyncScheduler<Item>,
) {
    let scheduler = Arc::new(rival_core::Scheduler::new(rival_core::SchedulerConfig {
        shards: 4,
        max_global: ROOM,
        max_per_tenant: ROOM,
        quantum: 1,
        quantum_by_tenant: HashMap::new(),
        quantum_provider: None,
        backpressure: rival_core::BackpressurePolicy::Reject,
        backpressure_by_tenant: HashMap::new(),
        top_tenants_capacity: 16,
    }));
    let in_async = rival::AsyncScheduler::new(Arc::clone(&scheduler));
    (scheduler, in_async)
}

/// Returns whether the task was queued.
fn offer_rival(
    scheduler: &rival_core::Scheduler<Item>,
    tenant: rival_core::TenantKey,
    item: Item,
) -> bool {
    let queued = scheduler.enqueue(tenant, rival_task(item, 1, None));
    matches!(queued, rival_core::EnqueueResult::Enqueued)
}

fn rival_rate(runtime: &Runtime, tasks: u64) -> f64 {
    let (scheduler, consumer) = rival_scheduler();
    let producer = async move {
        for number in 0..tasks {
            let tenant = rival_core::TenantKey::from(number % TENANTS);
            while !offer_rival(&scheduler, tenant, item(number)) {
                tokio::task::yield_now().await;
            }
        }
    };
    let consumer = async move {
        for _ in 0..tasks {
            let next = consumer.dequeue_async().await;
            assert!(matches!(next, rival_core::DequeueResult::Task { .. }));
        }
    };
    race(runtime, tasks, producer, consumer)
}

/// Sends an item about every 100 µs, from its own thread, and returns the latency of each to the consumer.
fn wakes(
    runtime: &Runtime,
    wakes: usize,
    send: impl Fn(Item) + Send,
    consumer: impl Future<Output = Vec<Duration>> + Send + 'static,
) -> Vec<Duration> {
    let consumer = runtime.spawn(consumer);
    for number in 0..wakes {
        std::thread::sleep(Duration::from_micros(100));
        send(item(number as u64));
    }
    runtime.block_on(consumer).expect("no panics")
}

fn mpsc_wakes(runtime: &Runtime, count: usize) -> Vec<Duration> {
    let (sender, mut receiver) = mpsc::channel::<Item>(ROOM);
    let consumer = async move {
        let mut waits = Vec::with_capacity(count);
        while waits.len() < count {
            let item = receiver.recv().await.expect("both ends are here");
            waits.push(item.sent.elapsed());
        }
        waits
    };
    let send = |item| sender.try_send(item).expect("there is room");
    wakes(runtime, count, send, consumer)
}

fn ours_wakes(runtime: &Runtime, count: usize) -> Vec<Duration> {
    let scheduler = our_scheduler();
    let consumer = scheduler.clone();
    let consumer = async move {
        let mut waits = Vec::with_capacity(count);
        while let ours::DequeueResult::Task { task, .. } = consumer.dequeue_async().await {
            waits.push(task.payload.sent.elapsed());
            if waits.len() == count {
                break;
            }
        }
        waits
    };
    let send = |item: Item| {
        let tenant = ours::TenantKey::from(item.tenant);
        let queued = scheduler.try_enqueue(tenant, ours::Task::new(item));
        assert!(queued.is_ok(), "there is room");
    };
    wakes(runtime, count, send, consumer)
}

fn rival_wakes(runtime: &Runtime, count: usize) -> Vec<Duration> {
    let (scheduler, consumer) = rival_scheduler();
    let consumer = async move {
        let mut waits = Vec::with_capacity(count);
        while waits.len() < count {
            if let rival_core::DequeueResult::Task { task, .. } = consumer.dequeue_async().await {
                waits.push(task.payload.sent.elapsed());
            }
        }
        waits
    };
    let send = |item: Item| {
        let tenant = rival_core::TenantKey::from(item.tenant);
        assert!(offer_rival(&scheduler, tenant, item), "there is room");
    };
    wakes(runtime, count, send, consumer)
}
