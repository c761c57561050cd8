//! Several jobs of a shard under way at once, each of another key.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use shardqueue::{Config, JobContext, JobError, JobStatus, ShardExecutor};
use tokio::time::{Instant, sleep};

use super::support::{Gate, Journal, SECOND, idle, occupy, plain};

/// Returns an executor with one shard.
fn shard_of(concurrency: usize) -> ShardExecutor {
    ShardExecutor::new(Config {
        shards: 1,
        concurrency,
        queue_size: 1 << 15,
        key_queue_size: 1 << 15,
        ..plain()
    })
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn by_default_a_long_wait_of_one_key_holds_up_no_other_key_of_its_shard() {
    let executor = ShardExecutor::new(Config {
        shards: 1,
        ..Config::default()
    })
    .unwrap();
    let start = Instant::now();
    let slow = executor.submit("slow", |_| sleep(SECOND)).await.unwrap();
    let behind = executor.submit("slow", idle).await.unwrap();
    for key in 0..100 {
        let quick = executor.submit(format!("key {key}"), idle).await.unwrap();
        assert!(quick.await.is_done());
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(matches!(behind.status(), JobStatus::Queued { position: 1 }));
    assert!(slow.await.is_done());
    assert!(behind.await.is_done(), "its own key waits for it");
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn no_more_jobs_of_a_shard_are_under_way_than_it_may_have() {
    let executor = shard_of(3);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let start = Instant::now();
    let mut handles = Vec::new();
    for key in 0..10 {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        let job = move |_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(SECOND).await;
                now.fetch_sub(1, Ordering::SeqCst);
            }
        };
        handles.push(executor.submit(format!("key {key}"), job).await.unwrap());
    }
    sleep(SECOND / 2).await;
    let stats = executor.stats();
    assert_eq!((stats.running, stats.queued), (3, 7));
    let runs = |handle: &&shardqueue::JobHandle| {
        matches!(handle.status(), JobStatus::Running { attempt: 1 })
    };
    assert_eq!(handles.iter().filter(runs).count(), 3);
    executor.flush().await;
    assert_eq!(start.elapsed(), 4 * SECOND, "three at a time");
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert!(executor.stats().is_balanced());
}

#[tokio::test(start_paused = true)]
async fn keys_take_turns_while_their_jobs_wait() {
    let executor = shard_of(2);
    let journal = Journal::new();
    for key in 0..3_usize {
        for _ in 0..20 {
            let journal = journal.clone();
            let job = move |_| {
                journal.note(key);
                sleep(SECOND)
            };
            executor.submit(format!("key {key}"), job).await.unwrap();
        }
    }
    let start = Instant::now();
    executor.flush().await;
    assert_eq!(start.elapsed(), 30 * SECOND, "two at a time, always");
    let mut begun = [0_usize; 3];
    for key in journal.take() {
        begun[key] += 1;
        let spread = begun.iter().max().unwrap() - begun.iter().min().unwrap();
        assert!(spread <= 2, "{begun:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn order_within_a_key_holds_while_others_overtake_it() {
    let executor = shard_of(4);
    let journal = Journal::new();
    for number in 0..200_u64 {
        let journal = journal.clone();
        let mut attempts = 0;
        let job = move |_: JobContext| {
            attempts += 1;
            let (journal, attempts) = (journal.clone(), attempts);
            async move {
                sleep(Duration::from_millis(number * 7919 % 13)).await;
                if number.is_multiple_of(5) && attempts == 1 {
                    return Err(JobError::from("once more"));
                }
                journal.note(number);
                Ok(())
            }
        };
        let key = format!("key {}", number % 7);
        executor.submit(key, job).await.unwrap();
    }
    executor.flush().await;
    let order = journal.take();
    assert_eq!((order.len(), executor.stats().retried), (200, 40));
    for key in 0..7 {
        let own = order.iter().copied().filter(|number| number % 7 == key);
        assert!(own.is_sorted(), "the jobs of key {key} are in order");
    }
}

#[tokio::test]
async fn a_job_that_was_woken_goes_on_between_new_ones() {
    let executor = shard_of(2);
    let patient = |_: JobContext| async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    };
    let patient = executor.submit("patient", patient).await.unwrap();
    for _ in 0..20_000 {
        executor.submit("busy", idle).await.unwrap();
    }
    assert!(patient.await.is_done());
    let ran = executor.stats().ran;
    assert!(ran < 20_000, "{ran} jobs came before ten short waits");
    executor.close();
}

#[tokio::test]
async fn new_jobs_begin_while_others_keep_waking_up() {
    let executor = shard_of(2);
    let over = Gate::closed();
    let told = over.clone();
    let restless = move |_: JobContext| {
        let over = told.clone();
        async move {
            let mut over = std::pin::pin!(over.pass());
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                std::future::Future::poll(over.as_mut(), cx)
            })
            .await;
        }
    };
    let restless = executor.submit("restless", restless).await.unwrap();
    for number in 0..1000 {
        let quick = executor.submit(format!("key {number}"), idle).await;
        assert!(quick.unwrap().await.is_done());
    }
    over.open(1);
    assert!(restless.await.is_done());
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_not_woken_for_jobs_that_it_cannot_begin() {
    let executor = shard_of(2);
    let (first, _one) = occupy(&executor, "first").await;
    let before = executor.stats().wakeups;
    for _ in 0..100 {
        executor.submit("first", idle).await.unwrap();
    }
    assert_eq!(executor.stats().wakeups, before, "their key is busy");
    let (second, _two) = occupy(&executor, "second").await;
    let before = executor.stats().wakeups;
    for number in 0..100 {
        executor
            .submit(format!("key {number}"), idle)
            .await
            .unwrap();
    }
    assert_eq!(executor.stats().wakeups, before, "both places are taken");
    first.open(1);
    second.open(1);
    executor.stop().await;
    assert_eq!(executor.stats().ran, 202);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_all_that_are_under_way_and_a_deadline_names_them() {
    let executor = shard_of(3);
    let keys = ["one", "two", "three"];
    let mut gates = Vec::new();
    for key in keys {
        gates.push(occupy(&executor, key).await);
    }
    executor.submit("four", idle).await.unwrap();
    let report = executor.stop_with_deadline(SECOND).await;
    let running: Vec<&str> = report.running.iter().map(|job| &*job.key).collect();
    assert_eq!(running, keys);
    assert_eq!(report.returned.len(), 1);
    for (gate, _) in &gates {
        gate.open(1);
    }
    executor.stop().await;
    let stats = executor.stats();
    assert_eq!((stats.ran, stats.returned, stats.running), (3, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_returns_pending_without_a_waker_holds_only_its_own_key() {
    let executor = shard_of(2);
    let lost = executor.submit("lost", |_| poll_fn(|_| Poll::<()>::Pending));
    let lost = lost.await.unwrap();
    assert!(executor.submit("key", idle).await.unwrap().await.is_done());
    assert!(matches!(lost.status(), JobStatus::Running { .. }));
    let report = executor.stop_with_deadline(SECOND).await;
    assert_eq!(report.running.len(), 1);
}
