//! Stopping, and what becomes of every job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shardqueue::{Config, FailureReason, JobContext, JobError, Outcome, Refusal, ShardExecutor};
use tokio::time::Instant;

use super::support::{Gate, Journal, SECOND, failing, failure, idle, occupy, one_shard, plain};

#[tokio::test(start_paused = true)]
async fn what_runs_finishes_and_what_is_queued_drains_in_order() {
    let executor = one_shard(plain());
    let (gate, held) = occupy(&executor, "key").await;
    let journal = Journal::new();
    for number in 0..50 {
        executor
            .submit("key", journal.noting(number))
            .await
            .unwrap();
    }
    executor.close();
    assert!(executor.is_closed());
    gate.open(1);
    executor.stop().await;
    assert!(held.await.is_done());
    assert_eq!(journal.take(), (0..50).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_executor_takes_nothing_more() {
    let executor = one_shard(plain());
    executor.stop().await;
    let error = executor.submit("key", idle).await.unwrap_err();
    assert_eq!(
        (error.refusal(), error.to_string().as_str()),
        (Refusal::Closed, "shard executor closed")
    );
    assert_eq!(
        executor.try_submit("key", idle).unwrap_err().refusal(),
        Refusal::Closed
    );
    let batch = executor.submit_batch([("a", idle), ("b", idle)]).await;
    assert!(
        batch
            .iter()
            .all(|answer| matches!(answer, Err(e) if e.refusal() == Refusal::Closed))
    );
    executor.barrier("key").await;
    executor.flush().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_may_stop_at_once() {
    let executor = Arc::new(ShardExecutor::new(Config::default()).unwrap());
    for number in 0..100 {
        executor
            .submit(format!("key {number}"), idle)
            .await
            .unwrap();
    }
    let stop = |_| {
        let executor = Arc::clone(&executor);
        tokio::spawn(async move {
            executor.stop().await;
            executor.stats()
        })
    };
    let tasks: Vec<_> = (0..16).map(stop).collect();
    for task in tasks {
        let stats = task.await.unwrap();
        assert_eq!(
            (stats.accepted, stats.ran),
            (100, 100),
            "no call returns early"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_backs_off_fails_without_another_attempt() {
    let journal = Journal::new();
    let told = journal.clone();
    let executor =
        one_shard(plain().with_error_handler(move |failure| told.note(failure.reason())));
    let attempts = Journal::new();
    let noted = attempts.clone();
    let job = move |_| {
        noted.note(());
        std::future::ready(Err::<(), JobError>("down".into()))
    };
    let handle = executor.submit("key", job).await.unwrap();
    let behind = executor.submit("key", idle).await.unwrap();
    tokio::task::yield_now().await;
    let start = Instant::now();
    executor.stop().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    let outcome = handle.await;
    assert_eq!(failure(&outcome).reason(), FailureReason::Stopped);
    assert_eq!(
        (
            failure(&outcome).attempts(),
            failure(&outcome).to_string().as_str()
        ),
        (1, "down")
    );
    assert!(behind.await.is_done(), "what is queued behind it runs");
    assert_eq!(
        (attempts.len(), journal.take()),
        (1, vec![FailureReason::Stopped])
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_while_stopping_is_not_attempted_again() {
    let executor = one_shard(plain());
    let gate = Gate::closed();
    let inner = gate.clone();
    let job = move |_| {
        let gate = inner.clone();
        async move {
            gate.pass().await;
            Err::<(), JobError>("down".into())
        }
    };
    let handle = executor.submit("key", job).await.unwrap();
    tokio::task::yield_now().await;
    executor.close();
    gate.open(1);
    executor.stop().await;
    let outcome = handle.await;
    assert_eq!(
        (failure(&outcome).reason(), failure(&outcome).attempts()),
        (FailureReason::Stopped, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_waits_is_refused_and_gets_its_job_back() {
    let executor = Arc::new(one_shard(Config {
        queue_size: 1,
        enqueue_timeout: 60 * SECOND,
        ..plain()
    }));
    let (gate, _held) = occupy(&executor, "key").await;
    executor.submit("key", idle).await.unwrap();
    let submission = executor.submit("key", idle);
    let close = async {
        tokio::task::yield_now().await;
        executor.close();
    };
    let (answer, ()) = tokio::join!(submission, close);
    let error = answer.unwrap_err();
    assert_eq!(error.refusal(), Refusal::Closed);
    drop(error.into_job());
    gate.open(1);
    executor.stop().await;
    assert_eq!(executor.stats().accepted, 2);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_hands_back_exactly_what_did_not_run() {
    let executor = one_shard(plain());
    let journal = Journal::new();
    let failing_one = executor.submit("failing", failing("down")).await.unwrap();
    tokio::task::yield_now().await;
    let begun = Gate::closed();
    let told = begun.clone();
    let job = move |context: JobContext| {
        told.open(1);
        async move {
            context.cancelled().await;
            tokio::time::sleep(SECOND).await; // cleans up
        }
    };
    let running = executor.submit("key", job).await.unwrap();
    begun.pass().await;
    let mut handles = Vec::new();
    for number in 0..10 {
        let key = ["key", "other"][number % 2];
        handles.push(executor.submit(key, journal.noting(number)).await.unwrap());
    }
    let start = Instant::now();
    let report = executor.stop_with_deadline(5 * SECOND).await;
    assert_eq!(start.elapsed(), 5 * SECOND);
    assert!(!report.is_clean());
    let ids: Vec<_> = report.returned.iter().map(|job| job.id).collect();
    assert_eq!(
        ids,
        handles.iter().map(|handle| handle.id()).collect::<Vec<_>>()
    );
    assert_eq!(&*report.returned[1].key, "other");
    assert_eq!(report.running.len(), 1);
    assert_eq!(
        (report.running[0].id, report.running[0].attempt),
        (running.id(), 1)
    );
    for handle in handles {
        assert!(matches!(handle.await, Outcome::Returned));
    }
    assert_eq!(failure(&failing_one.await).reason(), FailureReason::Stopped);
    executor.stop().await; // for the one that runs
    assert!(running.await.is_done());
    assert_eq!(journal.len(), 0);
    let stats = executor.stats();
    assert_eq!(
        (stats.ran, stats.failed, stats.returned, stats.accepted),
        (1, 1, 10, 12)
    );
    // The returned jobs can be run elsewhere, in the same order.
    let another = one_shard(plain());
    for job in report.returned {
        another.submit(&*job.key, job.job).await.unwrap();
    }
    another.stop().await;
    assert_eq!(journal.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_met_hands_nothing_back() {
    let executor = one_shard(plain());
    executor.submit("key", idle).await.unwrap();
    let report = executor.stop_with_deadline(SECOND).await;
    assert!(report.is_clean());
    assert_eq!(executor.stats().ran, 1);
}

#[tokio::test(start_paused = true)]
async fn of_several_deadlines_the_first_hands_each_job_back_once() {
    let executor = Arc::new(one_shard(plain()));
    let (gate, _held) = occupy(&executor, "key").await;
    for _ in 0..10 {
        executor.submit("key", idle).await.unwrap();
    }
    let stop = |seconds| {
        let executor = Arc::clone(&executor);
        async move { executor.stop_with_deadline(seconds * SECOND).await }
    };
    let open = async {
        tokio::time::sleep(4 * SECOND).await;
        gate.open(1);
    };
    let (a, b, c, (), ()) = tokio::join!(stop(3), stop(1), stop(2), executor.stop(), open);
    let returned = [a, b, c].map(|report| (report.returned.len(), report.running.len()));
    assert_eq!(returned, [(0, 1), (10, 1), (0, 1)]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_executor_drains_it_in_the_background() {
    let executor = one_shard(plain());
    let journal = Journal::new();
    let handle = executor.submit("key", journal.noting(1)).await.unwrap();
    let failing_one = executor.submit("failing", failing("down")).await.unwrap();
    drop(executor);
    assert!(handle.await.is_done());
    assert_eq!(failure(&failing_one.await).reason(), FailureReason::Stopped);
    assert_eq!(journal.take(), [1]);
}

#[test]
fn a_runtime_that_is_shut_down_leaves_no_caller_waiting() {
    let dropped = Arc::new(AtomicBool::new(false));
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let build = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let runtime = build();
    let flag = Flag(Arc::clone(&dropped));
    let (executor, handles) = runtime.block_on(async {
        let executor = one_shard(plain());
        let failed = executor.submit("failing", failing("down")).await.unwrap();
        tokio::task::yield_now().await;
        let (_gate, running) = occupy(&executor, "key").await;
        let job = move |_| {
            let _held = &flag;
            std::future::ready(())
        };
        let queued = executor.submit("key", job).await.unwrap();
        (executor, [running, queued, failed])
    });
    drop(runtime);
    build().block_on(async {
        let [running, queued, failed] = handles;
        assert!(matches!(running.await, Outcome::Cancelled));
        assert!(matches!(queued.await, Outcome::Returned));
        assert_eq!(failure(&failed.await).reason(), FailureReason::Stopped);
        assert_eq!(
            executor.submit("key", idle).await.unwrap_err().refusal(),
            Refusal::Closed
        );
        executor.stop().await;
        executor.flush().await;
    });
    assert!(
        dropped.load(Ordering::SeqCst),
        "the queued job has been dropped"
    );
    let stats = executor.stats();
    assert!(stats.is_balanced());
    assert_eq!((stats.cancelled, stats.returned, stats.failed), (1, 1, 1));
}

#[test]
fn an_executor_needs_a_runtime_with_timers() {
    let error = ShardExecutor::new(Config::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no Tokio runtime; make the executor inside one, for example in `#[tokio::main]`"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let error = runtime.block_on(async { ShardExecutor::new(Config::default()).unwrap_err() });
    assert_eq!(
        error.to_string(),
        "the Tokio runtime has no timers; build it with `enable_time` or `enable_all`"
    );
}

#[test]
fn a_submission_may_come_from_outside_the_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let executor = runtime.block_on(async {
        one_shard(Config {
            queue_size: 1,
            ..plain()
        })
    });
    let (gate, _held) = runtime.block_on(occupy(&executor, "key"));
    let mut submissions: Vec<_> = (0..2)
        .map(|_| Box::pin(executor.submit("key", idle)))
        .collect();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(submissions[0].as_mut().poll(&mut context).is_ready());
    assert!(
        submissions[1].as_mut().poll(&mut context).is_pending(),
        "it waits, and does not panic"
    );
    drop(submissions);
    gate.open(1);
    runtime.block_on(executor.stop());
}
