//! Room, and waiting for it.

use std::sync::Arc;

use shardqueue::{Config, FailedAttempt, Refusal, ShardExecutor};
use tokio::time::Instant;

use super::support::{Journal, SECOND, failing, idle, occupy, one_shard, plain};

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_after_the_timeout_and_says_how_full_it_is() {
    let executor = one_shard(Config {
        queue_size: 2,
        ..plain()
    });
    let (_gate, _held) = occupy(&executor, "key").await;
    for _ in 0..2 {
        executor.submit("key", idle).await.unwrap();
    }
    let start = Instant::now();
    let error = executor.submit("other", idle).await.unwrap_err();
    assert_eq!(
        start.elapsed().as_millis(),
        100,
        "the default of the timeout"
    );
    let Refusal::QueueFull(full) = error.refusal() else {
        panic!("{error:?}");
    };
    assert_eq!((full.shard, full.length, full.capacity), (0, 2, 2));
    assert_eq!(
        error.to_string(),
        "shard queue full: shard 0 holds 2 of 2 jobs; retry later, submit less, or raise SQ_QUEUE_SIZE"
    );
    assert_eq!(executor.stats().refused_full, 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_shard_leaves_the_room_of_the_others_alone() {
    let executor = ShardExecutor::new(Config {
        queue_size: 1,
        ..plain()
    })
    .unwrap();
    assert_ne!(executor.shard_for("a"), executor.shard_for("b"));
    let (_gate, _held) = occupy(&executor, "a").await;
    executor.try_submit("a", idle).unwrap();
    assert!(executor.try_submit("a", idle).is_err());
    assert!(executor.try_submit("b", idle).unwrap().await.is_done());
}

#[tokio::test(start_paused = true)]
async fn a_refused_job_comes_back_and_can_be_submitted_again() {
    let executor = one_shard(Config {
        queue_size: 1,
        ..plain()
    });
    let (gate, _held) = occupy(&executor, "key").await;
    executor.submit("key", idle).await.unwrap();
    let journal = Journal::new();
    let job = executor
        .try_submit("key", journal.noting(7))
        .unwrap_err()
        .into_job();
    let job = executor.submit("key", job).await.unwrap_err().into_job();
    gate.open(1);
    assert!(executor.submit("key", job).await.unwrap().await.is_done());
    assert_eq!(journal.take(), [7]);
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_waits_gets_the_room_that_comes() {
    let executor = Arc::new(one_shard(Config {
        queue_size: 1,
        enqueue_timeout: SECOND,
        ..plain()
    }));
    let (gate, _held) = occupy(&executor, "key").await;
    executor.submit("key", idle).await.unwrap();
    let submission = executor.submit("key", idle);
    let open = async {
        tokio::task::yield_now().await;
        gate.open(1);
    };
    let (handle, ()) = tokio::join!(submission, open);
    assert!(handle.unwrap().await.is_done());
}

#[tokio::test(start_paused = true)]
async fn no_submission_overtakes_a_waiting_one_of_the_same_key() {
    let executor = Arc::new(one_shard(Config {
        queue_size: 1,
        enqueue_timeout: 60 * SECOND,
        ..plain()
    }));
    let (gate, _held) = occupy(&executor, "key").await;
    let journal = Journal::new();
    executor.submit("key", journal.noting(0)).await.unwrap();
    let mut tasks = Vec::new();
    for number in 1..10 {
        let (own, job) = (Arc::clone(&executor), journal.noting(number));
        tasks.push(tokio::spawn(async move {
            let handle = own.submit("key", job).await.unwrap();
            handle.await.is_done()
        }));
        tokio::task::yield_now().await; // it is in line
    }
    assert!(executor.try_submit("key", journal.noting(99)).is_err());
    gate.open(1);
    for task in tasks {
        assert!(task.await.unwrap());
    }
    assert_eq!(journal.take(), (0..10).collect::<Vec<_>>());
}

/// Submits jobs for a key, one after another, to an executor with long backoffs. Returns how many were accepted.
async fn flood(executor: &ShardExecutor, key: &str, jobs: usize) -> usize {
    let mut accepted = 0;
    for _ in 0..jobs {
        accepted += usize::from(executor.submit(key, failing("down")).await.is_ok());
        tokio::task::yield_now().await;
    }
    accepted
}

/// The defaults, with a policy that lets a failed job back off for 20 seconds.
fn long_backoff() -> Config {
    Config::default().with_retry_policy(|_: &FailedAttempt<'_>| Some(20 * SECOND))
}

#[tokio::test(start_paused = true)]
async fn by_default_a_key_that_backs_off_leaves_room_to_the_other_keys_of_its_shard() {
    let executor = one_shard(long_backoff());
    let accepted = flood(&executor, "failing", 300).await;
    assert!((97..=129).contains(&accepted), "{accepted}");
    let stats = executor.stats();
    assert_eq!((stats.backing_off, stats.running), (1, 0));
    for key in 0..100 {
        let answer = executor.try_submit(format!("healthy {key}"), idle);
        assert!(answer.is_ok(), "{key}: {answer:?}");
        tokio::task::yield_now().await;
    }
    // Also for keys that come all at once, and wait for each other.
    let burst = (0..100).map(|key| (format!("burst {key}"), idle));
    let answers = executor.submit_batch(burst).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn eight_keys_that_back_off_leave_room_to_the_others() {
    let executor = one_shard(long_backoff());
    for key in 0..8 {
        let name = format!("failing {key}");
        for _ in 0..300 {
            drop(executor.try_submit(&name, failing("down")));
            tokio::task::yield_now().await;
        }
    }
    for key in 0..100 {
        let answer = executor.try_submit(format!("healthy {key}"), idle);
        assert!(answer.is_ok(), "{key}: {answer:?}");
        tokio::task::yield_now().await;
    }
    assert_eq!(executor.stats().ran, 100);
}

#[tokio::test(start_paused = true)]
async fn a_key_over_its_part_is_told_what_it_holds_and_what_it_may() {
    let executor = one_shard(plain());
    let (_gate, _held) = occupy(&executor, "greedy").await;
    for _ in 0..96 {
        executor.try_submit("greedy", idle).unwrap();
    }
    let at_once = executor.try_submit("greedy", idle).unwrap_err();
    let in_time = executor.submit("greedy", idle).await.unwrap_err();
    for error in [at_once, in_time] {
        let Refusal::QueueFull(full) = error.refusal() else {
            panic!("{error:?}");
        };
        assert!(full.is_of_key());
        assert_eq!((full.key_length, full.key_capacity), (96, 96));
        assert_eq!(
            error.to_string(),
            "shard queue full: 96 jobs of this key wait and a key may have 96 now, shard 0 holds 96 of 128 jobs; \
             retry later, submit less, or set SQ_KEY_QUEUE_SIZE"
        );
    }
    assert_eq!(executor.stats().refused_full, 2);
    executor.try_submit("modest", idle).unwrap();
}

#[tokio::test(start_paused = true)]
async fn submissions_of_a_key_over_its_part_wait_while_other_keys_pass_them() {
    let executor = Arc::new(one_shard(Config {
        enqueue_timeout: 60 * SECOND,
        ..plain()
    }));
    let (gate, _held) = occupy(&executor, "greedy").await;
    let journal = Journal::new();
    let mut tasks = Vec::new();
    for number in 0..200 {
        let (own, job) = (Arc::clone(&executor), journal.noting(number));
        tasks.push(tokio::spawn(async move {
            own.submit("greedy", job).await.unwrap();
        }));
        tokio::task::yield_now().await; // it is queued, or in line
    }
    assert_eq!(executor.stats().queued, 96);
    for number in 1000..1008 {
        executor
            .try_submit("modest", journal.noting(number))
            .unwrap();
    }
    gate.open(1);
    for task in tasks {
        task.await.unwrap();
    }
    executor.flush().await;
    let (modest, greedy): (Vec<i32>, Vec<i32>) = journal
        .take()
        .into_iter()
        .partition(|&number| number >= 1000);
    assert_eq!(modest, (1000..1008).collect::<Vec<_>>());
    assert_eq!(
        greedy,
        (0..200).collect::<Vec<_>>(),
        "in the order of submission"
    );
    assert_eq!(executor.stats().refused_full, 0);
}

#[tokio::test(start_paused = true)]
async fn a_key_may_fill_its_shard_if_it_is_told_so() {
    let executor = one_shard(Config {
        key_queue_size: 128,
        ..plain()
    });
    let (_gate, _held) = occupy(&executor, "greedy").await;
    for _ in 0..128 {
        executor.try_submit("greedy", idle).unwrap();
    }
    let error = executor.try_submit("modest", idle).unwrap_err();
    assert!(matches!(error.refusal(), Refusal::QueueFull(full) if !full.is_of_key()));
}

#[tokio::test(start_paused = true)]
async fn jobs_behind_a_key_in_backoff_leave_room_to_others_if_they_must() {
    let executor = one_shard(Config {
        queue_size: 8,
        key_queue_size: 4,
        ..plain()
    });
    executor.submit("failing", failing("down")).await.unwrap();
    tokio::task::yield_now().await;
    for _ in 0..4 {
        executor.try_submit("failing", idle).unwrap();
    }
    assert!(executor.try_submit("failing", idle).is_err());
    assert!(
        executor
            .try_submit("healthy", idle)
            .unwrap()
            .await
            .is_done()
    );
}

#[tokio::test(start_paused = true)]
async fn keys_in_backoff_do_not_use_up_the_queue() {
    let executor = one_shard(Config {
        queue_size: 4,
        backoff_size: 100,
        ..Config::default().with_retry_policy(|_: &FailedAttempt<'_>| Some(20 * SECOND))
    });
    for key in 0..100 {
        executor
            .submit(format!("failing {key}"), failing("down"))
            .await
            .unwrap();
    }
    executor.submit("healthy", idle).await.unwrap();
    executor.barrier("healthy").await;
    let stats = executor.stats();
    assert_eq!((stats.backing_off, stats.queued, stats.ran), (100, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_however_many_keys_back_off() {
    let executor = one_shard(Config {
        queue_size: 4,
        backoff_size: 10,
        ..Config::default().with_retry_policy(|_: &FailedAttempt<'_>| Some(20 * SECOND))
    });
    let mut refused = 0;
    for key in 0..100 {
        let answer = executor
            .submit(format!("failing {key}"), failing("down"))
            .await;
        refused += usize::from(answer.is_err());
        tokio::task::yield_now().await;
        let stats = executor.stats();
        assert!(stats.backing_off + stats.queued + stats.running <= 10 + 4 + 1);
    }
    assert!(refused >= 85, "{refused}");
}

#[test]
fn what_is_handed_out_can_go_anywhere() {
    fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
    fn is_shared<T: Send + Sync + 'static>() {}
    is_error::<shardqueue::SubmitError>();
    is_error::<shardqueue::JobFailure>();
    is_error::<shardqueue::ConfigError>();
    is_shared::<shardqueue::ShardExecutor>();
    is_shared::<shardqueue::JobHandle>();
    is_shared::<shardqueue::Outcome>();
}
