//! Retries, and what they do to others: nothing.

use std::sync::Arc;
use std::time::Duration;

use shardqueue::{
    Config, FailedAttempt, FailureReason, JobContext, JobError, JobStatus, Permanent,
};
use tokio::time::Instant;

use super::support::{Journal, SECOND, failing, failure, idle, one_shard, plain};

#[tokio::test(start_paused = true)]
async fn waits_between_attempts_double() {
    let executor = one_shard(plain());
    let (journal, start) = (Journal::new(), Instant::now());
    let noted = journal.clone();
    let job = move |_| {
        noted.note(start.elapsed().as_secs());
        std::future::ready(Err::<(), JobError>("down".into()))
    };
    let outcome = executor.submit("key", job).await.unwrap().await;
    assert_eq!(journal.take(), [0, 1, 3, 7, 15, 31, 51, 71]);
    let failure = failure(&outcome);
    assert_eq!(
        (failure.attempts(), failure.reason()),
        (8, FailureReason::Exhausted)
    );
    assert_eq!(
        (failure.to_string().as_str(), failure.key()),
        ("down", "key")
    );
}

#[tokio::test(start_paused = true)]
async fn by_default_eight_attempts_take_12_7_seconds_give_or_take_half() {
    let executor = one_shard(Config::default());
    let start = Instant::now();
    let outcome = executor.submit("key", failing("down")).await.unwrap().await;
    assert_eq!(failure(&outcome).attempts(), 8);
    let took = start.elapsed().as_secs_f64();
    assert!((6.3..=19.1).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn the_seed_of_the_jitter_decides_the_waits() {
    let mut times = Vec::new();
    for jitter_seed in [1, 1, 2] {
        let executor = one_shard(Config {
            jitter_seed,
            ..Config::default()
        });
        let start = Instant::now();
        let _ = executor.submit("key", failing("down")).await.unwrap().await;
        times.push(start.elapsed());
    }
    assert_eq!(times[0], times[1]);
    assert_ne!(times[0], times[2]);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_healthy_keys_do_not_notice_a_failing_one() {
    let mut latencies = Vec::new();
    for has_failing_key in [false, true] {
        let executor = Arc::new(one_shard(Config {
            queue_size: 1 << 12,
            ..Config::default().with_retry_policy(|_: &FailedAttempt<'_>| Some(20 * SECOND))
        }));
        if has_failing_key {
            for _ in 0..100 {
                executor.submit("failing", failing("down")).await.unwrap();
            }
            tokio::task::yield_now().await; // the first of them has failed
            assert_eq!(executor.stats().backing_off, 1);
        }
        let journal = Journal::new();
        for round in 0..5 {
            let start = Instant::now();
            for key in 0..1000 {
                let noted = journal.clone();
                let job = move |_| {
                    let noted = noted.clone();
                    async move {
                        tokio::time::sleep(Duration::from_micros(100)).await; // the work
                        noted.note((round, key, start.elapsed()));
                    }
                };
                executor.submit(format!("key {key}"), job).await.unwrap();
            }
            for key in 0..1000 {
                executor.barrier(format!("key {key}")).await;
            }
        }
        latencies.push(journal.take());
    }
    assert_eq!(latencies[0].len(), 5000);
    assert_eq!(
        latencies[0], latencies[1],
        "the same order, and the same times"
    );
}

#[tokio::test(start_paused = true)]
async fn jobs_behind_a_failing_one_wait_for_it_and_keep_their_order() {
    let executor = one_shard(plain());
    let journal = Journal::new();
    let noted = journal.clone();
    let job = move |context: JobContext| {
        noted.note(0);
        std::future::ready(match context.attempt() {
            3 => Ok(()),
            _ => Err(JobError::from("down")),
        })
    };
    executor.submit("key", job).await.unwrap();
    executor.submit("key", journal.noting(1)).await.unwrap();
    executor.submit("other", journal.noting(2)).await.unwrap();
    executor.flush().await;
    assert_eq!(journal.take(), [0, 2, 0, 0, 1]);
    assert_eq!(executor.stats().retried, 2);
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_is_not_retried_also_when_wrapped() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot save")]
    struct CannotSave(#[source] Permanent);

    let executor = one_shard(plain());
    let start = Instant::now();
    let job = |_| async { Err(CannotSave(Permanent::new("no such memory"))) };
    let outcome = executor.submit("key", job).await.unwrap().await;
    assert_eq!(failure(&outcome).reason(), FailureReason::Permanent);
    assert_eq!(
        (failure(&outcome).attempts(), start.elapsed()),
        (1, Duration::ZERO)
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_of_ones_own_decides_by_the_error() {
    let policy = |failed: &FailedAttempt<'_>| {
        (failed.error.to_string() == "busy" && failed.key == "key").then_some(SECOND)
    };
    let executor = one_shard(Config::default().with_retry_policy(policy));
    let job = |context: JobContext| {
        let text = if context.attempt() < 4 {
            "busy"
        } else {
            "gone"
        };
        async move { Err::<(), JobError>(text.into()) }
    };
    let outcome = executor.submit("key", job).await.unwrap().await;
    assert_eq!(
        (
            failure(&outcome).attempts(),
            failure(&outcome).to_string().as_str()
        ),
        (4, "gone")
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_all_time_is_never_over_and_harms_no_other_key() {
    let policy = |_: &FailedAttempt<'_>| Some(Duration::MAX);
    let executor = one_shard(Config::default().with_retry_policy(policy));
    let handle = executor.submit("key", failing("down")).await.unwrap();
    assert!(
        executor
            .submit("other", idle)
            .await
            .unwrap()
            .await
            .is_done()
    );
    assert!(matches!(
        handle.status(),
        JobStatus::BackingOff { attempt: 1, .. }
    ));
    executor.stop().await;
    assert_eq!(failure(&handle.await).reason(), FailureReason::Stopped);
}
