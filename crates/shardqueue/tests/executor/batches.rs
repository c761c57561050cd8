//! Submitting many jobs at once.

use shardqueue::{Config, Refusal, ShardExecutor};
use tokio::time::Instant;

use super::support::{Journal, SECOND, occupy, one_shard, plain};

#[tokio::test(start_paused = true)]
async fn a_batch_is_answered_in_its_order_and_keeps_that_of_its_keys() {
    let executor = ShardExecutor::new(Config::default()).unwrap();
    let journal = Journal::new();
    let jobs = (0..60).map(|number| (format!("key {}", number % 7), journal.noting(number)));
    let answers = executor.submit_batch(jobs).await;
    for (number, answer) in answers.iter().enumerate() {
        let shard = executor.shard_for(format!("key {}", number % 7));
        assert_eq!(answer.as_ref().unwrap().id().shard(), shard);
    }
    executor.stop().await;
    let order = journal.take();
    for key in 0..7 {
        let own: Vec<_> = order.iter().filter(|&number| number % 7 == key).collect();
        assert!(own.is_sorted());
    }
    assert_eq!(order.len(), 60);
}

#[tokio::test(start_paused = true)]
async fn of_one_key_a_full_queue_accepts_the_first_and_refuses_the_rest() {
    let executor = one_shard(Config {
        queue_size: 3,
        enqueue_timeout: SECOND,
        ..plain()
    });
    let (_gate, _held) = occupy(&executor, "key").await;
    let journal = Journal::new();
    let start = Instant::now();
    let answers = executor
        .submit_batch((0..5).map(|number| ("key", journal.noting(number))))
        .await;
    assert_eq!(start.elapsed(), SECOND, "they wait together");
    let accepted: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [true, true, true, false, false]);
    let error = answers.into_iter().next_back().unwrap().unwrap_err();
    assert!(matches!(error.refusal(), Refusal::QueueFull(_)));
}

#[tokio::test(start_paused = true)]
async fn a_batch_larger_than_the_queue_flows_through() {
    let executor = one_shard(Config {
        queue_size: 4,
        enqueue_timeout: 60 * SECOND,
        ..plain()
    });
    let journal = Journal::new();
    let answers = executor
        .submit_batch((0..100).map(|number| ("key", journal.noting(number))))
        .await;
    assert!(answers.iter().all(Result::is_ok));
    executor.stop().await;
    assert_eq!(journal.take(), (0..100).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_dropped_runs_nothing_that_has_not_begun() {
    let executor = one_shard(Config {
        queue_size: 2,
        enqueue_timeout: 60 * SECOND,
        ..plain()
    });
    let (gate, _held) = occupy(&executor, "key").await;
    let journal = Journal::new();
    let batch = executor.submit_batch((0..5).map(|number| ("key", journal.noting(number))));
    assert!(tokio::time::timeout(SECOND, batch).await.is_err());
    gate.open(1);
    executor.stop().await;
    let stats = executor.stats();
    assert_eq!((journal.len(), stats.accepted, stats.cancelled), (0, 3, 2));
}
