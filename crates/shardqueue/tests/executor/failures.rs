//! Panics, and what is said about jobs that have failed for good.

use std::sync::Arc;

use shardqueue::{Config, FailedAttempt, JobContext, JobPanic, Outcome, ShardExecutor};

use super::support::{Journal, failing, failure, idle, one_shard, panics, plain};

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_attempt_and_the_worker_lives() {
    let executor = one_shard(plain());
    let job = |context: JobContext| async move {
        assert!(context.attempt() > 2, "attempt {}", context.attempt());
    };
    let handle = executor.submit("key", job).await.unwrap();
    let next = executor.submit("key", idle).await.unwrap();
    assert!(handle.await.is_done());
    assert!(next.await.is_done());
    assert_eq!(executor.stats().retried, 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_always_panics_fails_with_what_it_said() {
    let executor = one_shard(plain());
    let closure_panics = |_: JobContext| -> std::future::Ready<()> { panic!("no {}", "future") };
    let outcome = executor.submit("key", closure_panics).await.unwrap().await;
    let panic = failure(&outcome)
        .error()
        .downcast_ref::<JobPanic>()
        .unwrap();
    assert_eq!(
        (panic.message(), failure(&outcome).attempts()),
        ("no future", 8)
    );
    let odd = |_| panics(7);
    let outcome = executor.submit("key", odd).await.unwrap().await;
    assert_eq!(failure(&outcome).to_string(), "a panic without a message");
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("boom");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_panics_when_it_is_dropped_harms_no_other_job() {
    let executor = one_shard(plain());
    let bomb = Bomb;
    let job = move |_| {
        let _held = &bomb;
        std::future::ready(())
    };
    assert!(executor.submit("key", job).await.unwrap().await.is_done());
    let bomb = Bomb;
    let job = move |_| {
        let _held = &bomb;
        std::future::pending::<()>()
    };
    let (gate, _held) = super::support::occupy(&executor, "key").await;
    let handle = executor.submit("key", job).await.unwrap();
    handle.cancel();
    assert!(matches!(handle.await, Outcome::Cancelled));
    gate.open(1);
    let payload = |_| panics(Bomb);
    let outcome = executor.submit("key", payload).await.unwrap().await;
    assert_eq!(failure(&outcome).attempts(), 8);
    assert!(executor.submit("key", idle).await.unwrap().await.is_done());
}

#[tokio::test(start_paused = true)]
async fn the_error_handler_is_told_once_and_the_dead_job_comes_after() {
    let journal = Journal::new();
    let (told, buried) = (journal.clone(), journal.clone());
    let config = plain()
        .with_error_handler(move |failure| {
            told.note(format!("{} failed: {failure}", failure.key()))
        })
        .with_dead_job_hook(move |dead| buried.note(format!("{} is dead", dead.failure.key())));
    let executor = one_shard(config);
    assert!(executor.submit("good", idle).await.unwrap().await.is_done());
    let _ = executor.submit("bad", failing("down")).await.unwrap().await;
    assert_eq!(journal.take(), ["bad failed: down", "bad is dead"]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_job_can_be_submitted_again() {
    let morgue = Journal::new();
    let bodies = morgue.clone();
    let config = plain().with_dead_job_hook(move |dead| bodies.note(dead.job));
    let executor = one_shard(config);
    let mut attempts = 0;
    let job = move |_| {
        attempts += 1;
        std::future::ready(match attempts {
            9 => Ok(()),
            _ => Err("down"),
        })
    };
    let _ = executor.submit("key", job).await.unwrap().await;
    let job = morgue.take().pop().unwrap();
    assert!(executor.submit("key", job).await.unwrap().await.is_done());
}

#[tokio::test(start_paused = true)]
async fn hooks_that_panic_are_contained() {
    let config = Config::default()
        .with_retry_policy(|_: &FailedAttempt<'_>| panic!("no policy"))
        .with_error_handler(|_| panic!("no handler"))
        .with_dead_job_hook(|_| panic!("no hook"));
    let executor = Arc::new(ShardExecutor::new(config).unwrap());
    for _ in 0..3 {
        let outcome = executor.submit("key", failing("down")).await.unwrap().await;
        assert_eq!(failure(&outcome).attempts(), 1);
    }
    executor.stop().await;
    assert_eq!(executor.stats().failed, 3);
}
