//! Asking how a job is.

use std::time::Duration;

use shardqueue::{JobStatus, Outcome};
use tokio::time::Instant;

use super::support::{SECOND, failing, idle, occupy, one_shard, plain};

#[tokio::test(start_paused = true)]
async fn a_job_is_queued_then_runs_then_is_done() {
    let executor = one_shard(plain());
    let (gate, first) = occupy(&executor, "key").await;
    let second = executor.submit("key", idle).await.unwrap();
    let third = executor.submit("key", idle).await.unwrap();
    assert!(matches!(first.status(), JobStatus::Running { attempt: 1 }));
    assert!(matches!(second.status(), JobStatus::Queued { position: 1 }));
    assert!(matches!(
        executor.status(third.id()),
        Some(JobStatus::Queued { position: 2 })
    ));
    second.cancel();
    assert!(matches!(third.status(), JobStatus::Queued { position: 1 }));
    assert!(matches!(
        second.status(),
        JobStatus::Ended(Outcome::Cancelled)
    ));
    gate.open(1);
    executor.flush().await;
    assert!(matches!(third.status(), JobStatus::Ended(Outcome::Done)));
    assert!(
        executor.status(third.id()).is_none(),
        "no memory is kept of it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_backs_off_says_until_when() {
    let executor = one_shard(plain());
    let handle = executor.submit("key", failing("down")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await; // between the second attempt and the third
    let JobStatus::BackingOff { attempt, until } = handle.status() else {
        panic!("{:?}", handle.status());
    };
    assert_eq!(
        (attempt, until - Instant::now()),
        (2, Duration::from_millis(1500))
    );
    tokio::time::sleep(100 * SECOND).await;
    assert!(matches!(
        handle.status(),
        JobStatus::Ended(Outcome::Failed(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn an_id_of_another_executor_names_nothing() {
    let (executor, another) = (one_shard(plain()), one_shard(plain()));
    let (_gate, _held) = occupy(&executor, "key").await;
    let handle = executor.submit("key", idle).await.unwrap();
    assert!(another.status(handle.id()).is_none());
}
