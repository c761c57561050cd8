//! Jobs that need several keys at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardqueue::{
    CancelResult, Config, ExponentialBackoff, JobContext, JobError, JobOptions, JobStatus, Outcome,
    Priority, Refusal, ShardExecutor,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::support::{Gate, Journal, SECOND, failure, idle, occupy, plain};

fn options() -> JobOptions {
    JobOptions::new()
}

/// Returns an executor and two keys of different shards.
fn executor(config: Config) -> (ShardExecutor, &'static str, &'static str) {
    let executor = ShardExecutor::new(config).unwrap();
    assert_ne!(executor.shard_for("a"), executor.shard_for("b"));
    (executor, "a", "b")
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_when_all_its_keys_are_free_and_holds_them_until_it_has_ended() {
    let (executor, a, b) = executor(plain());
    let (gate, _held) = occupy(&executor, b).await;
    let journal = Journal::new();
    let both = executor
        .submit_across([a, b], journal.noting("both"), options())
        .await
        .unwrap();
    executor
        .submit(a, journal.noting("after, a"))
        .await
        .unwrap();
    executor
        .submit(b, journal.noting("after, b"))
        .await
        .unwrap();
    assert!(
        executor
            .submit("other", idle)
            .await
            .unwrap()
            .await
            .is_done()
    );
    assert_eq!(journal.len(), 0, "one of its keys is busy");
    assert!(matches!(both.status(), JobStatus::Queued { position: 0 }));
    gate.open(1);
    executor.flush().await;
    let order = journal.take();
    assert_eq!((order.len(), order[0]), (3, "both"));
    assert!(matches!(both.status(), JobStatus::Ended(Outcome::Done)));
    let stats = executor.stats();
    assert_eq!((stats.accepted, stats.ran), (6, 6), "once for each key");
}

#[tokio::test(start_paused = true)]
async fn retries_keep_the_keys_and_a_failure_gives_them_back() {
    let (executor, a, b) = executor(plain());
    let journal = Journal::new();
    let mut attempts = 0;
    let noted = journal.clone();
    let job = move |_: JobContext| {
        attempts += 1;
        noted.note(attempts);
        std::future::ready(match attempts {
            1 | 2 => Err(JobError::from("not yet")),
            _ => Ok(()),
        })
    };
    let both = executor
        .submit_across([a, b], job, options())
        .await
        .unwrap();
    executor.submit(b, journal.noting(100)).await.unwrap();
    assert!(both.await.is_done());
    executor.flush().await;
    assert_eq!(journal.take(), [1, 2, 3, 100]);

    let failing = |_: JobContext| async { Err(shardqueue::Permanent::new("no")) };
    let both = executor.submit_across([b, a], failing, options()).await;
    let outcome = both.unwrap().await;
    assert_eq!(failure(&outcome).key(), b, "the first key is its own");
    assert!(executor.submit(a, idle).await.unwrap().await.is_done());
    assert!(executor.stats().is_balanced());
}

#[tokio::test(start_paused = true)]
async fn it_can_be_cancelled_while_it_waits_for_a_key_and_gives_the_others_back() {
    let (executor, a, b) = executor(plain());
    let (gate, _held) = occupy(&executor, b).await;
    for order in [[a, b], [b, a]] {
        let both = executor
            .submit_across(order, idle, options())
            .await
            .unwrap();
        let behind = executor.submit(a, idle).await.unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(behind.status(), JobStatus::Queued { position: 1 }));
        assert_eq!(both.cancel(), CancelResult::Cancelled);
        assert!(matches!(both.await, Outcome::Cancelled));
        assert!(behind.await.is_done());
    }
    let token = CancellationToken::new();
    let by_token = options().cancelled_by(token.clone());
    let both = executor
        .submit_across([a, b], idle, by_token)
        .await
        .unwrap();
    token.cancel();
    assert!(matches!(both.await, Outcome::Cancelled));
    gate.open(1);
    executor.stop().await;
    let stats = executor.stats();
    assert_eq!((stats.cancelled, stats.ran, stats.queued), (6, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn it_takes_room_for_every_key_or_none_and_waits_for_it() {
    let (executor, a, b) = executor(Config {
        queue_size: 1,
        enqueue_timeout: SECOND,
        concurrency: 1,
        ..plain()
    });
    let (gate, _held) = occupy(&executor, b).await;
    let queued = executor.submit(b, idle).await.unwrap();
    let full = executor.try_submit_across([a, b], idle, options());
    let Refusal::QueueFull(full) = full.unwrap_err().refusal() else {
        panic!("there is no room for b");
    };
    assert_eq!(full.shard, executor.shard_for(b));
    assert_eq!(executor.stats().queued, 1, "it took no room for a, either");
    let start = tokio::time::Instant::now();
    let late = executor.submit_across([a, b], idle, options()).await;
    assert!(matches!(late.unwrap_err().refusal(), Refusal::QueueFull(_)));
    assert_eq!(start.elapsed(), SECOND);
    assert_eq!(executor.stats().refused_full, 2);
    let (both, ()) = tokio::join!(executor.submit_across([a, b], idle, options()), async {
        tokio::task::yield_now().await;
        gate.open(1);
    });
    assert!(both.unwrap().await.is_done());
    assert!(queued.await.is_done());
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_waits_can_be_cancelled_and_dropped_and_is_refused_when_all_stops() {
    let (executor, a, b) = executor(Config {
        queue_size: 1,
        enqueue_timeout: 60 * SECOND,
        concurrency: 1,
        ..plain()
    });
    let (gate, _held) = occupy(&executor, b).await;
    executor.submit(b, idle).await.unwrap();
    let token = CancellationToken::new();
    let by_token = options().cancelled_by(token.clone());
    let waiting = executor.submit_across([a, b], idle, by_token);
    let (answer, ()) = tokio::join!(waiting, async { token.cancel() });
    assert_eq!(answer.unwrap_err().refusal(), Refusal::Cancelled);
    let waiting = executor.submit_across([a, b], idle, options());
    assert!(tokio::time::timeout(SECOND, waiting).await.is_err());
    let waiting = executor.submit_across([a, b], idle, options());
    let (answer, ()) = tokio::join!(waiting, async { executor.close() });
    assert_eq!(answer.unwrap_err().refusal(), Refusal::Closed);
    gate.open(1);
    executor.stop().await;
    assert_eq!(executor.stats().ran, 2);
}

#[tokio::test(start_paused = true)]
async fn keys_that_cannot_be_are_refused_and_the_same_key_twice_is_one() {
    let (executor, a, _) = executor(plain());
    let none = executor.try_submit_across(Vec::<String>::new(), idle, options());
    assert_eq!(none.unwrap_err().refusal(), Refusal::KeyCount { max: 64 });
    let many = (0..65).map(|key| key.to_string());
    let many = executor.try_submit_across(many, idle, options());
    assert_eq!(many.unwrap_err().refusal(), Refusal::KeyCount { max: 64 });
    let high = options().priority(Priority::High);
    let high = executor.submit_across([a, "c"], idle, high).await;
    assert_eq!(high.unwrap_err().refusal(), Refusal::Prioritised);
    let same = executor.submit_across([a, a, a], idle, options()).await;
    assert!(same.unwrap().await.is_done());
    let most = (0..64).map(|key| key.to_string());
    let most = executor.try_submit_across(most, idle, options());
    assert!(most.unwrap().await.is_done());
    assert_eq!(executor.stats().ran, 65);
}

#[tokio::test(start_paused = true)]
async fn stopping_drains_and_a_deadline_hands_back_jobs_across_keys_once() {
    let (executor, a, b) = executor(plain());
    let (gate, _held) = occupy(&executor, b).await;
    let journal = Journal::new();
    for number in 0..3 {
        let keys = [[a, b], [b, a], [a, b]][number];
        let job = journal.noting(number);
        executor.submit_across(keys, job, options()).await.unwrap();
    }
    let report = executor.stop_with_deadline(SECOND).await;
    let mut keys: Vec<&str> = report.returned.iter().map(|job| &*job.key).collect();
    keys.sort_unstable();
    assert_eq!(keys, [a, a, b]);
    gate.open(1);
    executor.stop().await;
    let stats = executor.stats();
    assert_eq!((stats.returned, stats.ran, stats.queued), (6, 1, 0));

    let (executor, a, b) = self::executor(plain());
    let (gate, _held) = occupy(&executor, b).await;
    for number in 0..3 {
        let keys = [[a, b], [b, a], [a, b]][number];
        let job = journal.noting(number);
        executor.submit_across(keys, job, options()).await.unwrap();
    }
    gate.open(1);
    executor.stop().await;
    assert_eq!(journal.take(), [0, 1, 2]);
}

#[test]
fn a_runtime_that_is_shut_down_settles_jobs_across_keys() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let (executor, running, queued) = runtime.block_on(async {
        let (executor, a, b) = executor(plain());
        let begun = Gate::closed();
        let told = begun.clone();
        let job = move |_: JobContext| {
            told.open(1);
            std::future::pending::<()>()
        };
        let running = executor.submit_across([a, b], job, options()).await;
        begun.pass().await;
        let queued = executor.submit_across([b, a], idle, options()).await;
        (executor, running.unwrap(), queued.unwrap())
    });
    drop(runtime);
    assert!(matches!(
        running.status(),
        JobStatus::Ended(Outcome::Cancelled)
    ));
    assert!(matches!(
        queued.status(),
        JobStatus::Ended(Outcome::Returned)
    ));
    let stats = executor.stats();
    assert_eq!((stats.cancelled, stats.returned, stats.queued), (2, 2, 0));
}

/// A job of a random history.
#[derive(Clone, Debug)]
struct Plan {
    keys: Vec<u8>,
    millis: u64,
    failures: u32,
    is_cancelled: bool,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let keys = prop::collection::vec(0u8..6, 1..5);
    let plan = (keys, 0u64..4, 0u32..3, prop::bool::weighted(0.1)).prop_map(
        |(keys, millis, failures, is_cancelled)| Plan {
            keys,
            millis,
            failures,
            is_cancelled,
        },
    );
    prop::collection::vec(plan, 1..60)
}

/// Jobs and keys, as they begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Begins(usize),
    Ends(usize),
}

async fn play(plans: &[Plan], shards: usize, concurrency: usize) {
    let policy = ExponentialBackoff::new(Duration::from_millis(3), SECOND, 9);
    let executor = ShardExecutor::new(Config {
        shards,
        concurrency,
        queue_size: 1 << 10,
        key_queue_size: 1 << 10,
        ..Config::default().with_retry_policy(policy)
    })
    .unwrap();
    let journal: Journal<Event> = Journal::new();
    let mut handles = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        let (
            journal,
            Plan {
                millis, failures, ..
            },
        ) = (journal.clone(), plan.clone());
        let job = move |context: JobContext| {
            let journal = journal.clone();
            async move {
                if context.attempt() == 1 {
                    journal.note(Event::Begins(number));
                }
                sleep(Duration::from_millis(millis)).await;
                if context.attempt() <= failures && !context.is_cancelled() {
                    return Err(JobError::from("again"));
                }
                journal.note(Event::Ends(number));
                Ok(())
            }
        };
        let keys: Vec<String> = plan.keys.iter().map(|key| format!("key {key}")).collect();
        let handle = match &keys[..] {
            [key] => executor.submit(key, job).await,
            keys => executor.submit_across(keys, job, options()).await,
        };
        handles.push(handle.unwrap());
        if plan.is_cancelled {
            handles[number].cancel();
        }
    }
    tokio::time::timeout(600 * SECOND, executor.flush())
        .await
        .expect("no job waits for another in a circle");
    let stats = executor.stats();
    assert!(stats.is_balanced() && stats.queued == 0, "{stats:?}");
    let mut cancelled = vec![false; plans.len()];
    for (number, handle) in handles.into_iter().enumerate() {
        cancelled[number] = matches!(handle.await, Outcome::Cancelled);
    }
    check(plans, &cancelled, &journal.take());
}

/// Checks that each key saw its jobs in the order of acceptance, one after the other.
fn check(plans: &[Plan], cancelled: &[bool], events: &[Event]) {
    let mut expected: BTreeMap<u8, Vec<Event>> = BTreeMap::new();
    let mut seen: BTreeMap<u8, Vec<Event>> = BTreeMap::new();
    let concerns = |number: usize, key: &u8| plans[number].keys.contains(key) && !cancelled[number];
    for key in 0..6 {
        let jobs = (0..plans.len()).filter(|&number| concerns(number, &key));
        let both = jobs.flat_map(|number| [Event::Begins(number), Event::Ends(number)]);
        expected.insert(key, both.collect());
        let own = events.iter().filter(|event| match event {
            Event::Begins(number) | Event::Ends(number) => concerns(*number, &key),
        });
        seen.insert(key, own.cloned().collect());
    }
    assert_eq!(seen, expected);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_key_sees_its_jobs_in_order_one_at_a_time_and_all_end(
        plans in plans(),
        shards in 1usize..4,
        concurrency in 1usize..3,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(play(&plans, shards, concurrency));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_submitters_of_random_keys_neither_overlap_nor_block_each_other() {
    const KEYS: usize = 5;
    let executor = ShardExecutor::new(Config {
        shards: 3,
        concurrency: 2,
        queue_size: 64,
        enqueue_timeout: 60 * SECOND,
        ..Config::default()
    });
    let executor = Arc::new(executor.unwrap());
    let busy: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| AtomicUsize::new(0)).collect());
    let submitters = (0..4_usize).map(|task| {
        let (executor, busy) = (Arc::clone(&executor), Arc::clone(&busy));
        tokio::spawn(async move {
            for number in 0..200_usize {
                let scattered = (task + 1) * (number + 7) * 2_654_435_761;
                let bits = (scattered >> 7) | (1 << (number % KEYS));
                let keys: Vec<usize> = (0..KEYS).filter(|key| (bits >> key) & 1 == 1).collect();
                let (busy, held) = (Arc::clone(&busy), keys.clone());
                let job = move |_: JobContext| {
                    let (busy, held) = (Arc::clone(&busy), held.clone());
                    async move {
                        for &key in &held {
                            assert_eq!(busy[key].fetch_add(1, Ordering::SeqCst), 0);
                        }
                        tokio::task::yield_now().await;
                        for &key in &held {
                            busy[key].fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                };
                let keys = keys.iter().map(|key| format!("key {key}"));
                let handle = executor.submit_across(keys, job, options()).await.unwrap();
                if number.is_multiple_of(16) {
                    assert!(handle.await.is_done());
                }
            }
        })
    });
    for submitter in submitters.collect::<Vec<_>>() {
        submitter.await.unwrap();
    }
    executor.stop().await;
    let stats = executor.stats();
    assert!(stats.is_balanced(), "{stats:?}");
    assert_eq!(
        (stats.ran, stats.failed + stats.retried),
        (stats.accepted, 0)
    );
}
