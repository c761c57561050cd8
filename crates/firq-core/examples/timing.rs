//! A quick look at the speed of one enqueue and one dequeue, beside a plain queue behind a mutex.
//!
//! `cargo run --release -p firq-core --example timing`
//!
//! For a look while working on the crate; `firq-bench` has the benches that count.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use firq_core::{DequeueResult, EnqueueResult, Scheduler, SchedulerConfig, Task, TenantKey};

const PAIRS: u64 = 2_000_000;

fn main() {
    println!("one thread, one enqueue and one dequeue, ns");
    println!(
        "{:>9} {:>6} {:>8} {:>8} {:>8} {:>8} {:>6}",
        "tenants", "queued", "mutex", "1 shard", "4 shards", "batch 64", "ratio"
    );
    for (tenants, queued) in [
        (1, 0),
        (1, 1),
        (10, 1),
        (1_000, 0),
        (1_000, 1),
        (100_000, 0),
        (100_000, 1),
        (1_000_000, 1),
    ] {
        let mutex = best(|| plain(tenants * queued));
        let one = best(|| pairs(&scheduler(1), tenants, queued));
        let four = best(|| pairs(&scheduler(4), tenants, queued));
        let batch = best(|| batches(&scheduler(1), tenants, queued));
        println!(
            "{tenants:>9} {queued:>6} {mutex:>8.1} {one:>8.1} {four:>8.1} {batch:>8.1} {:>5.2}x",
            one / mutex
        );
    }
    println!("\nthroughput with 1,000 tenants, million tasks a second");
    println!(
        "{:>7} {:>8} {:>8} {:>8}",
        "threads", "mutex", "1 shard", "4 shards"
    );
    for threads in [1, 2, 8] {
        let one = best_rate(|| traffic(&Arc::new(scheduler(1)), threads));
        let four = best_rate(|| traffic(&Arc::new(scheduler(4)), threads));
        println!("{threads:>3}p/{threads}c {:>8} {one:>8.2} {four:>8.2}", "");
    }
}

fn best(run: impl Fn() -> f64) -> f64 {
    (0..3).map(|_| run()).fold(f64::MAX, f64::min)
}

fn best_rate(run: impl Fn() -> f64) -> f64 {
    (0..3).map(|_| run()).fold(0.0, f64::max)
}

fn scheduler(shards: usize) -> Scheduler<u64> {
    let scheduler = Scheduler::new(SchedulerConfig {
        shards,
        max_global: 1 << 22,
        max_per_tenant: 1 << 20,
        ..SchedulerConfig::default()
    });
    scheduler.expect("the configuration is valid")
}

fn plain(queued: u64) -> f64 {
    let queue = Mutex::new(VecDeque::new());
    let task = || Task {
        enqueue_ts: Instant::now(),
        ..Task::new(7_u64)
    };
    let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..queued {
        lock().push_back(task());
    }
    let start = Instant::now();
    for _ in 0..PAIRS {
        lock().push_back(task());
        let task = lock().pop_front();
        black_box((task, Instant::now()));
    }
    start.elapsed().as_nanos() as f64 / PAIRS as f64
}

/// Visits the tenants in an order that a cache does not foresee.
fn next(tenant: u64, tenants: u64) -> u64 {
    (tenant
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
        >> 20)
        % tenants
}

fn fill(scheduler: &Scheduler<u64>, tenants: u64, queued: u64) {
    for _ in 0..queued {
        for tenant in 0..tenants {
            enqueue(scheduler, tenant);
        }
    }
}

fn enqueue(scheduler: &Scheduler<u64>, tenant: u64) {
    let result = scheduler.enqueue(TenantKey::from(tenant), Task::new(7));
    assert_eq!(result, EnqueueResult::Enqueued);
}

fn pairs(scheduler: &Scheduler<u64>, tenants: u64, queued: u64) -> f64 {
    fill(scheduler, tenants, queued);
    let mut tenant = 1;
    let start = Instant::now();
    for turn in 0..PAIRS {
        tenant = next(tenant + turn, tenants);
        enqueue(scheduler, tenant);
        let _ = black_box(scheduler.try_dequeue());
    }
    start.elapsed().as_nanos() as f64 / PAIRS as f64
}

fn batches(scheduler: &Scheduler<u64>, tenants: u64, queued: u64) -> f64 {
    fill(scheduler, tenants, queued);
    let mut tenant = 1;
    let mut out = Vec::with_capacity(64);
    let start = Instant::now();
    for turn in 0..PAIRS / 64 {
        let batch = (0..64).map(|_| {
            tenant = next(tenant + turn, tenants);
            (TenantKey::from(tenant), Task::new(7))
        });
        assert!(scheduler.enqueue_batch(batch).is_empty());
        assert_eq!(scheduler.dequeue_batch(64, &mut out), 64);
        out.clear();
    }
    start.elapsed().as_nanos() as f64 / PAIRS as f64
}

fn traffic(scheduler: &Arc<Scheduler<u64>>, threads: u64) -> f64 {
    const TASKS: u64 = 2_000_000;
    let each = TASKS / threads;
    let start = Instant::now();
    let consumers: Vec<_> = (0..threads)
        .map(|_| {
            let scheduler = Arc::clone(scheduler);
            thread::spawn(move || {
                let mut count = 0_u64;
                while let DequeueResult::Task { .. } = scheduler.dequeue_blocking() {
                    count += 1;
                }
                count
            })
        })
        .collect();
    let producers: Vec<_> = (0..threads)
        .map(|producer| {
            let scheduler = Arc::clone(scheduler);
            thread::spawn(move || {
                let mut tenant = producer;
                for turn in 0..each {
                    tenant = next(tenant + turn, 1_000);
                    enqueue(&scheduler, tenant);
                }
            })
        })
        .collect();
    for producer in producers {
        producer.join().expect("a producer does not panic");
    }
    scheduler.close_drain();
    let served: u64 = consumers
        .into_iter()
        .map(|consumer| consumer.join().expect("a consumer does not panic"))
        .sum();
    assert_eq!(served, each * threads);
    served as f64 / start.elapsed().as_secs_f64() / 1e6
}
