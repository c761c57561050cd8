//! How much memory it takes, counted by the allocator.
#![cfg(test)] // helpers may unwrap, as tests do

use std::future::{Ready, ready};

use allocation_counter::measure;
use shardqueue::{Config, JobContext, ShardExecutor};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn executor(queue_size: usize) -> ShardExecutor {
    let config = Config {
        shards: 1,
        queue_size,
        ..Config::default()
    };
    ShardExecutor::new(config).unwrap()
}

fn idle(_: JobContext) -> Ready<()> {
    ready(())
}

/// Runs a job for each of the keys, a hundred at a time, all on this thread.
fn run(runtime: &Runtime, executor: &ShardExecutor, keys: impl Iterator<Item = u64>) {
    let keys: Vec<u64> = keys.collect();
    runtime.block_on(async {
        for keys in keys.chunks(100) {
            for key in keys {
                drop(executor.submit(key.to_string(), idle).await.unwrap());
            }
            executor.flush().await;
        }
    });
}

#[test]
fn a_million_keys_that_come_once_leave_nothing_behind() {
    let runtime = runtime();
    let executor = runtime.block_on(async { executor(128) });
    let before = measure(|| run(&runtime, &executor, 0..20_000));
    let since = measure(|| run(&runtime, &executor, 20_000..1_020_000));
    assert!(
        since.bytes_current <= before.bytes_current / 10,
        "{} bytes after the first keys, {} more after a million others",
        before.bytes_current,
        since.bytes_current
    );
    assert!(
        executor.stats().keys <= 4200,
        "{} keys are kept",
        executor.stats().keys
    );
}

#[test]
fn a_submission_for_a_known_key_allocates_its_job_and_its_ticket_and_nothing_else() {
    let runtime = runtime();
    let executor = runtime.block_on(async { executor(1 << 12) });
    let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
    let submit_all = || {
        for round in 0..10_u64 {
            for key in &keys {
                let job = move |_| async move { assert!(round < 10) };
                drop(executor.try_submit(key, job).unwrap());
            }
        }
    };
    submit_all(); // all tables grow
    runtime.block_on(executor.flush());
    let submissions = measure(submit_all);
    assert_eq!(submissions.count_total, 2 * 1000);
    let runs = measure(|| runtime.block_on(executor.flush()));
    assert!(
        runs.count_total < 20,
        "{} allocations to run 1000 jobs",
        runs.count_total
    );
}

#[test]
fn a_queued_job_takes_at_most_300_bytes() {
    let runtime = runtime();
    let executor = runtime.block_on(async { executor(1 << 17) });
    let jobs = 1 << 16; // where the tables are just full
    let queued = measure(|| {
        for number in 0..jobs {
            let job = move |_| async move { assert!(number < jobs) };
            drop(executor.try_submit("key", job).unwrap());
        }
    });
    let each = queued.bytes_current as f64 / f64::from(jobs);
    assert!(each <= 300.0, "{each:.0} bytes each");
    runtime.block_on(executor.stop());
}
