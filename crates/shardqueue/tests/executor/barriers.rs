//! Waiting for what was submitted before.

use std::time::Duration;

use shardqueue::{Config, ShardExecutor};
use tokio::time::Instant;

use super::support::{Journal, SECOND, failing, idle, occupy, one_shard, plain};

#[tokio::test(start_paused = true)]
async fn a_barrier_waits_for_what_came_before_it_and_not_for_what_comes_after() {
    let executor = one_shard(plain());
    let journal = Journal::new();
    let (gate, _held) = occupy(&executor, "key").await;
    executor
        .submit("key", journal.noting("before"))
        .await
        .unwrap();
    let barrier = async {
        executor.barrier("key").await;
        journal.note("barrier");
    };
    let later = async {
        tokio::task::yield_now().await;
        let (later_gate, held) = (gate.clone(), executor.submit("key", idle).await.unwrap());
        later_gate.open(1);
        let _ = held.await;
        journal.note("after");
    };
    tokio::join!(barrier, later);
    assert_eq!(journal.take()[..2], ["before", "barrier"]);
}

#[tokio::test(start_paused = true)]
async fn a_barrier_of_an_idle_key_is_passed_at_once() {
    let executor = one_shard(plain());
    let (_gate, _held) = occupy(&executor, "busy").await;
    let start = Instant::now();
    executor.barrier("idle").await;
    executor.submit("other", idle).await.unwrap().cancel();
    executor.barrier("other").await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_barrier_waits_out_the_retries() {
    let executor = one_shard(plain());
    let start = Instant::now();
    executor.submit("key", failing("down")).await.unwrap();
    executor.barrier("key").await;
    assert_eq!(start.elapsed(), 71 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_every_key_in_every_shard() {
    let executor = ShardExecutor::new(Config::default()).unwrap();
    let journal = Journal::new();
    for number in 0..100 {
        executor
            .submit(format!("key {number}"), journal.noting(number))
            .await
            .unwrap();
    }
    executor.flush().await;
    assert_eq!(journal.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_barrier_without_a_waiter_is_gone() {
    let executor = one_shard(plain());
    let (gate, _held) = occupy(&executor, "key").await;
    for _ in 0..100 {
        let barrier = executor.barrier("key");
        assert!(tokio::time::timeout(SECOND, barrier).await.is_err());
    }
    gate.open(1);
    executor.barrier("key").await;
}

#[tokio::test(start_paused = true)]
async fn a_barrier_is_passed_when_its_jobs_are_handed_back() {
    let executor = one_shard(plain());
    let (_gate, held) = occupy(&executor, "busy").await;
    executor.submit("key", idle).await.unwrap();
    let (report, ()) = tokio::join!(executor.stop_with_deadline(SECOND), executor.barrier("key"));
    assert_eq!(report.returned.len(), 1);
    held.cancel();
}
