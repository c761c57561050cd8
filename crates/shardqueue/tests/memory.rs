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
    nested(queue_size, None)
}

fn nested(queue_size: usize, key_separator: Option<char>) -> ShardExecutor {
    let config = Config {
        shards: 1,
        queue_size,
        key_separator,
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
fn a_submission_for_a_known_key_allocates_its_job_and_nothing_else() {
    let flat: Vec<String> = (0..100).map(|key| key.to_string()).collect();
    assert_allocations(None, &flat);
}

#[test]
fn a_submission_for_a_known_path_allocates_no_more() {
    let paths: Vec<String> = (0..100)
        .map(|key| format!("{}/{}/{key}", key % 3, key % 7))
        .collect();
    assert_allocations(Some('/'), &paths);
}

/// Counts the allocations of submissions for known keys.
fn assert_allocations(key_separator: Option<char>, keys: &[String]) {
    let runtime = runtime();
    let executor = runtime.block_on(async { nested(1 << 12, key_separator) });
    let submit_all = || {
        for round in 0..10_u64 {
            for key in keys {
                let job = move |_| async move { assert!(round < 10) };
                drop(executor.try_submit(key, job).unwrap());
            }
        }
    };
    submit_all(); // all tables grow
    runtime.block_on(executor.flush());
    let submissions = measure(submit_all);
    assert_eq!(submissions.count_total, 1000);
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

/// Returns how many bytes a key with one queued job takes, with its groups.
fn bytes_per_key(key_separator: Option<char>, name: impl Fn(u32) -> String) -> f64 {
    let runtime = runtime();
    let executor = runtime.block_on(async { nested(1 << 17, key_separator) });
    let keys = 60_000; // where the tables are nearly full
    let names: Vec<String> = (0..keys).map(name).collect();
    let queued = measure(|| {
        for name in &names {
            drop(executor.try_submit(name, idle).unwrap());
        }
    });
    runtime.block_on(executor.stop());
    queued.bytes_current as f64 / f64::from(keys)
}

#[test]
fn a_key_in_a_group_takes_a_tenth_more_than_a_flat_one_and_a_group_takes_450_bytes() {
    let flat = bytes_per_key(None, |key| format!("{key:06}"));
    let one_group = bytes_per_key(Some('/'), |key| format!("a/{key:06}"));
    let group_each = bytes_per_key(Some('/'), |key| format!("{key:06}/a"));
    println!("{flat:.0} flat, {one_group:.0} in one group, {group_each:.0} in a group each");
    assert!(one_group <= 1.1 * flat, "{one_group:.0} and {flat:.0}");
    let group = group_each - one_group;
    assert!(group <= 450.0, "{group:.0} for a group");
}

#[test]
fn an_executor_that_is_gone_leaves_nothing_behind() {
    let live = || {
        let runtime = runtime();
        let stopped = runtime.block_on(async { executor(128) });
        run(&runtime, &stopped, 0..1_000);
        runtime.block_on(stopped.stop());
        let abandoned = runtime.block_on(async { executor(128) });
        run(&runtime, &abandoned, 0..1_000);
        drop(abandoned.try_submit("queued", idle).unwrap());
        drop(runtime); // with its worker, and before the executor
    };
    live(); // what the runtime keeps for the thread
    let left = measure(live).bytes_current;
    assert!(left <= 0, "{left} bytes");
}
