//! Cancelling: by handle, by token, by dropping.

use std::future::pending;
use std::time::Duration;

use shardqueue::{
    CancelResult, Config, FailureReason, JobContext, JobError, JobOptions, Outcome, Refusal,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::support::{Gate, Journal, SECOND, failing, failure, idle, occupy, one_shard, plain};

/// What the error handler was told: the key, the attempts, the reason, the text.
type Told = (String, u32, FailureReason, String);

/// Returns a configuration whose error handler writes to the journal.
fn telling(config: Config) -> (Config, Journal<Told>) {
    let journal = Journal::new();
    let told = journal.clone();
    let config = config.with_error_handler(move |failure| {
        told.note((
            failure.key().to_owned(),
            failure.attempts(),
            failure.reason(),
            failure.to_string(),
        ));
    });
    (config, journal)
}

fn never_began(key: &str) -> Told {
    let text = "cancelled before its first attempt".to_owned();
    (key.to_owned(), 0, FailureReason::NeverBegan, text)
}

#[tokio::test(start_paused = true)]
async fn a_job_that_never_began_is_told_to_the_error_handler_once_however_it_was_cancelled() {
    let (config, told) = telling(Config {
        queue_size: 8,
        key_queue_size: 8,
        ..plain()
    });
    let executor = one_shard(config);
    let (gate, _held) = occupy(&executor, "held").await;

    let by_handle = executor.submit("handle", idle).await.unwrap();
    assert_eq!(by_handle.cancel(), CancelResult::Cancelled);
    assert_eq!(told.take(), [never_began("handle")]);
    assert_eq!(by_handle.cancel(), CancelResult::TooLate);

    drop(
        executor
            .submit("guard", idle)
            .await
            .unwrap()
            .cancel_on_drop(),
    );
    assert_eq!(told.take(), [never_began("guard")]);

    let token = CancellationToken::new();
    let options = JobOptions::new().cancelled_by(token.clone());
    let by_token = executor.submit_with("token", idle, options).await.unwrap();
    token.cancel();
    assert!(matches!(by_token.await, Outcome::Cancelled));
    assert_eq!(told.take(), [never_began("token")]);

    // The watcher of this token has no turn before the worker, which finds the job unwanted.
    let token = CancellationToken::new();
    let options = JobOptions::new().cancelled_by(token.clone());
    let at_worker = executor.submit_with("held", idle, options).await.unwrap();
    gate.open(1);
    token.cancel();
    assert!(matches!(at_worker.await, Outcome::Cancelled));
    executor.stop().await;
    assert_eq!(told.take(), [never_began("held")]);
    let stats = executor.stats();
    assert_eq!((stats.cancelled, stats.failed), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_submission_dropped_before_it_was_accepted_is_not_told_and_one_dropped_after_is() {
    let (config, told) = telling(Config {
        queue_size: 1,
        enqueue_timeout: 60 * SECOND,
        ..plain()
    });
    let executor = one_shard(config);
    let (gate, _held) = occupy(&executor, "key").await;
    let _blocking = executor.submit("key", |_| pending::<()>()).await.unwrap();
    {
        let waiting = executor.submit("early", idle);
        assert!(tokio::time::timeout(SECOND, waiting).await.is_err());
    }
    assert_eq!(told.take(), []);
    let mut waiting = std::pin::pin!(Some(executor.submit("late", idle)));
    let poll = tokio::time::timeout(Duration::ZERO, waiting.as_mut().as_pin_mut().unwrap()).await;
    assert!(poll.is_err());
    gate.open(1);
    while executor.stats().accepted < 3 {
        tokio::task::yield_now().await;
    }
    waiting.set(None);
    assert_eq!(told.take(), [never_began("late")]);
}

#[tokio::test(start_paused = true)]
async fn a_job_cancelled_between_two_attempts_is_told_with_its_last_error() {
    let (config, told) = telling(plain());
    let dead = Journal::new();
    let buried = dead.clone();
    let executor = one_shard(config.with_dead_job_hook(move |job| buried.note(job)));
    let handle = executor.submit("key", failing("down")).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(handle.cancel(), CancelResult::Cancelled);
    let expected = ("key".to_owned(), 1, FailureReason::Cancelled, "down".into());
    assert_eq!(told.take(), [expected]);
    assert_eq!(dead.len(), 0, "a cancelled job is not a dead job");
}

#[test]
fn the_error_handler_is_called_for_every_failed_and_every_cancelled_job_also_when_the_runtime_ends()
{
    let (config, told) = telling(plain());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let executor = runtime.block_on(async {
        let executor = one_shard(config);
        let (_gate, held) = occupy(&executor, "running").await;
        drop(held);
        drop(executor.submit("queued", idle).await.unwrap());
        executor
    });
    drop(runtime);
    let stats = executor.stats();
    assert_eq!((stats.cancelled, stats.returned), (1, 1));
    let text = "the runtime was shut down during the attempt".to_owned();
    let expected = ("running".to_owned(), 1, FailureReason::Cancelled, text);
    assert_eq!(told.take(), [expected]);
}

#[tokio::test(start_paused = true)]
async fn a_queued_job_that_is_cancelled_frees_its_room_at_once() {
    let executor = one_shard(Config {
        queue_size: 1,
        ..plain()
    });
    let (gate, _held) = occupy(&executor, "key").await;
    let journal = Journal::new();
    let handle = executor.submit("key", journal.noting(1)).await.unwrap();
    assert!(executor.try_submit("other", idle).is_err());
    assert_eq!(handle.cancel(), CancelResult::Cancelled);
    assert!(executor.try_submit("other", idle).is_ok());
    assert_eq!(handle.cancel(), CancelResult::TooLate);
    assert!(matches!(handle.await, Outcome::Cancelled));
    gate.open(1);
    executor.stop().await;
    assert_eq!(journal.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_backs_off_ends_at_once_and_lets_its_key_go_on() {
    let executor = one_shard(plain());
    let start = Instant::now();
    let handle = executor.submit("key", failing("down")).await.unwrap();
    let next = executor.submit("key", idle).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(executor.stats().backing_off, 1);
    assert_eq!(handle.cancel(), CancelResult::Cancelled);
    assert!(matches!(handle.await, Outcome::Cancelled));
    assert!(next.await.is_done());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_running_job_is_told_and_ends_as_it_likes() {
    let executor = one_shard(plain());
    let begun = Gate::closed();
    let told = begun.clone();
    let obedient = move |context: JobContext| {
        told.open(1);
        async move {
            context.cancelled().await;
            assert!(context.is_cancelled() && context.token().is_cancelled());
            Err::<(), JobError>("interrupted".into())
        }
    };
    let handle = executor.submit("key", obedient).await.unwrap();
    begun.pass().await;
    assert_eq!(handle.cancel(), CancelResult::Signalled);
    let outcome = handle.await;
    assert_eq!(failure(&outcome).reason(), FailureReason::Cancelled);
    assert_eq!(failure(&outcome).attempts(), 1, "there is no other attempt");

    let (gate, stubborn) = occupy(&executor, "key").await;
    assert_eq!(stubborn.cancel(), CancelResult::Signalled);
    gate.open(1);
    assert!(stubborn.await.is_done());
}

#[tokio::test(start_paused = true)]
async fn a_token_cancels_its_jobs_wherever_they_are() {
    let executor = one_shard(plain());
    let token = CancellationToken::new();
    let options = JobOptions::new().cancelled_by(token.clone());
    let running = executor
        .submit_with(
            "running",
            |context: JobContext| async move { context.cancelled().await },
            options.clone(),
        )
        .await
        .unwrap();
    let queued = executor
        .submit_with("queued", |_| pending::<()>(), options.clone())
        .await
        .unwrap();
    let unconcerned = executor.submit("queued", idle).await.unwrap();
    tokio::task::yield_now().await;
    token.cancel();
    assert!(running.await.is_done());
    assert!(matches!(queued.await, Outcome::Cancelled));
    assert!(unconcerned.await.is_done());
    let late = executor
        .submit_with("late", idle, options)
        .await
        .unwrap_err();
    assert_eq!(late.refusal(), Refusal::Cancelled);
    let stats = executor.stats();
    assert_eq!((stats.accepted, stats.ran, stats.cancelled), (3, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_token_cancels_a_job_that_backs_off() {
    let executor = one_shard(plain());
    let token = CancellationToken::new();
    let options = JobOptions::new().cancelled_by(token.clone());
    let start = Instant::now();
    let handle = executor
        .submit_with("key", failing("down"), options)
        .await
        .unwrap();
    tokio::task::yield_now().await;
    token.cancel();
    assert!(matches!(handle.await, Outcome::Cancelled));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_token_ends_the_wait_for_room() {
    let executor = one_shard(Config {
        queue_size: 1,
        enqueue_timeout: 60 * SECOND,
        ..plain()
    });
    let (_gate, _held) = occupy(&executor, "key").await;
    executor.submit("key", idle).await.unwrap();
    let token = CancellationToken::new();
    let options = JobOptions::new().cancelled_by(token.clone());
    let start = Instant::now();
    let submission = executor.submit_with("key", idle, options);
    let (answer, ()) = tokio::join!(submission, async { token.cancel() });
    assert_eq!(answer.unwrap_err().refusal(), Refusal::Cancelled);
    assert_eq!(
        (start.elapsed(), executor.stats().refused_full),
        (Duration::ZERO, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_handle_lets_its_job_run() {
    let executor = one_shard(plain());
    let journal = Journal::new();
    drop(executor.submit("key", journal.noting(1)).await.unwrap());
    executor.stop().await;
    assert_eq!(journal.take(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_cancels_its_job() {
    let executor = one_shard(plain());
    let (gate, _held) = occupy(&executor, "key").await;
    let journal = Journal::new();
    let guard = executor
        .submit("key", journal.noting(1))
        .await
        .unwrap()
        .cancel_on_drop();
    assert_eq!(guard.handle().id().number(), 1);
    drop(guard);
    let awaited = executor
        .submit("key", journal.noting(2))
        .await
        .unwrap()
        .cancel_on_drop();
    gate.open(1);
    assert!(awaited.await.is_done());
    assert_eq!(journal.take(), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_is_dropped_while_it_waits_leaves_nothing_behind() {
    let executor = one_shard(Config {
        queue_size: 1,
        enqueue_timeout: 60 * SECOND,
        ..plain()
    });
    let (gate, _held) = occupy(&executor, "key").await;
    executor.submit("key", idle).await.unwrap();
    let journal = Journal::new();
    let waiting = executor.submit("key", journal.noting(1));
    assert!(tokio::time::timeout(SECOND, waiting).await.is_err());
    gate.open(1);
    executor.stop().await;
    let stats = executor.stats();
    assert_eq!((journal.len(), stats.accepted, stats.ran), (0, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_is_dropped_after_its_job_was_accepted_cancels_it() {
    let executor = one_shard(Config {
        queue_size: 1,
        enqueue_timeout: 60 * SECOND,
        ..plain()
    });
    let (gate, _held) = occupy(&executor, "key").await;
    let blocking = executor.submit("key", |_| pending::<()>()).await.unwrap();
    let journal = Journal::new();
    let mut waiting = std::pin::pin!(Some(executor.submit("other", journal.noting(1))));
    let poll = tokio::time::timeout(Duration::ZERO, waiting.as_mut().as_pin_mut().unwrap()).await;
    assert!(poll.is_err());
    gate.open(1); // room for it, and a job before it that never ends
    while executor.stats().accepted < 3 {
        tokio::task::yield_now().await;
    }
    waiting.set(None); // it was never told
    let stats = executor.stats();
    assert_eq!((stats.cancelled, stats.running, stats.queued), (1, 1, 0));
    blocking.cancel();
    assert_eq!(journal.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_knows_nothing_of_those_before_it_whose_handles_are_gone() {
    let executor = one_shard(plain());
    for round in 0..20 {
        let gate = Gate::closed();
        let (own, seen) = (gate.clone(), Journal::new());
        let journal = seen.clone();
        let job = move |context: JobContext| {
            let (gate, journal) = (own.clone(), journal.clone());
            async move {
                journal.note(context.is_cancelled());
                gate.pass().await;
                journal.note(context.is_cancelled());
            }
        };
        let mut handle = executor.submit("key", job).await.unwrap();
        tokio::task::yield_now().await;
        match round % 3 {
            0 => assert_eq!(handle.cancel(), CancelResult::Signalled),
            1 => assert!(poll_once(&mut handle).is_pending()),
            _ => {}
        }
        drop(handle);
        gate.open(1);
        executor.flush().await;
        assert_eq!(seen.take(), [false, round % 3 == 0]);
        let next = executor.submit("key", idle).await.unwrap();
        assert!(matches!(
            next.status(),
            shardqueue::JobStatus::Queued { .. }
        ));
        assert!(next.await.is_done());
    }
}

/// Polls a handle once.
fn poll_once(handle: &mut shardqueue::JobHandle) -> std::task::Poll<Outcome> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::future::Future::poll(std::pin::Pin::new(handle), &mut context)
}
