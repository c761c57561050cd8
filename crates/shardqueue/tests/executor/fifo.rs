//! Order within a key, and parallelism across keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shardqueue::{Config, Job, JobContext, JobError, JobOptions, Priority, ShardExecutor};

use super::support::{Gate, Journal, SECOND, idle, occupy, one_shard, plain};

#[tokio::test(start_paused = true)]
async fn jobs_of_a_key_run_in_the_order_of_submission() {
    let executor = ShardExecutor::new(Config::default()).unwrap();
    let journal = Journal::new();
    for number in 0..100 {
        executor
            .submit("key", journal.noting(number))
            .await
            .unwrap();
    }
    executor.stop().await;
    assert_eq!(journal.take(), (0..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_submitters_of_one_key_are_served_in_the_order_of_acceptance() {
    // A submission that has returned comes before every one that begins later: each task's own are in order.
    let executor = Arc::new(one_shard(Config {
        queue_size: 8, // so that most of them have to wait for room
        enqueue_timeout: SECOND * 60,
        ..Config::default()
    }));
    let journal = Journal::new();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (executor, journal) = (Arc::clone(&executor), journal.clone());
            tokio::spawn(async move {
                for number in 0..200 {
                    executor
                        .submit("key", journal.noting((task, number)))
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    executor.stop().await;
    let order = journal.take();
    assert_eq!(order.len(), 1600);
    for task in 0..8 {
        let own = order
            .iter()
            .filter(|entry| entry.0 == task)
            .map(|entry| entry.1);
        assert!(own.eq(0..200), "the jobs of task {task} are in order");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_two_jobs_of_a_key_at_the_same_time() {
    let executor = Arc::new(
        ShardExecutor::new(Config {
            queue_size: 1 << 12,
            ..Config::default()
        })
        .unwrap(),
    );
    let running: Arc<Vec<AtomicUsize>> = Arc::new((0..16).map(|_| AtomicUsize::new(0)).collect());
    for number in 0..2000_usize {
        let (key, running) = (number % 16, Arc::clone(&running));
        let job = move |_| {
            let running = Arc::clone(&running);
            async move {
                assert_eq!(running[key].fetch_add(1, Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                running[key].fetch_sub(1, Ordering::SeqCst);
            }
        };
        executor.submit(format!("key {key}"), job).await.unwrap();
    }
    executor.stop().await;
    let stats = executor.stats();
    assert_eq!((stats.ran, stats.retried), (2000, 0));
}

#[tokio::test(start_paused = true)]
async fn keys_of_different_shards_run_in_parallel() {
    let executor = ShardExecutor::new(Config::default()).unwrap();
    let (a, b) = ("a", "b");
    assert_ne!(executor.shard_for(a), executor.shard_for(b));
    let (gate, held) = occupy(&executor, a).await;
    assert!(executor.submit(b, idle).await.unwrap().await.is_done());
    gate.open(1);
    assert!(held.await.is_done());
}

#[tokio::test(start_paused = true)]
async fn four_workers_take_a_quarter_of_the_time_of_one() {
    let (four, one) = (ShardExecutor::new(plain()).unwrap(), one_shard(plain()));
    let of_shard = |shard| {
        let mut names = (0..).map(|number: u32| number.to_string());
        names.find(|key| four.shard_for(key) == shard).unwrap()
    };
    let keys: Vec<String> = (0..4).map(of_shard).collect();
    let mut seconds = Vec::new();
    for executor in [&four, &one] {
        let start = tokio::time::Instant::now();
        for key in &keys {
            for _ in 0..10 {
                let job = |_| tokio::time::sleep(SECOND);
                executor.submit(key, job).await.unwrap();
            }
        }
        executor.flush().await;
        seconds.push(start.elapsed().as_secs());
    }
    assert_eq!(seconds, [10, 40]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_shards_run_four_jobs_on_four_threads_at_once() {
    let executor = ShardExecutor::new(Config::default()).unwrap();
    // It blocks its threads: without four jobs on four threads, none of them ever passes.
    let meeting = Arc::new(std::sync::Barrier::new(4));
    let mut handles = Vec::new();
    for shard in 0..4 {
        let mut names = (0..).map(|number: u32| number.to_string());
        let key = names.find(|key| executor.shard_for(key) == shard).unwrap();
        for _ in 0..10 {
            let meeting = Arc::clone(&meeting);
            let job = move |_| {
                meeting.wait();
                std::future::ready(())
            };
            handles.push(executor.submit(&key, job).await.unwrap());
        }
    }
    for handle in handles {
        assert!(handle.await.is_done());
    }
}

#[tokio::test(start_paused = true)]
async fn the_jobs_take_the_time_and_the_queue_takes_none() {
    let executor = one_shard(Config {
        queue_size: 1 << 14,
        ..plain()
    });
    let start = tokio::time::Instant::now();
    for number in 0..10_000 {
        let key = format!("key {}", number % 100);
        executor.submit(key, idle).await.unwrap();
    }
    executor.flush().await;
    assert_eq!(start.elapsed(), Duration::ZERO, "no timer is waited for");
    for number in 0..100 {
        let job = |_| tokio::time::sleep(Duration::from_millis(10));
        executor
            .submit(format!("key {}", number % 7), job)
            .await
            .unwrap();
    }
    executor.flush().await;
    assert_eq!(start.elapsed(), SECOND, "100 jobs of 10 ms, one at a time");
}

#[tokio::test(start_paused = true)]
async fn a_submission_with_room_is_accepted_at_the_first_poll() {
    let executor = one_shard(plain());
    let (_gate, _held) = occupy(&executor, "key").await;
    let mut submission = std::pin::pin!(executor.submit("key", idle));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let first = std::future::Future::poll(submission.as_mut(), &mut cx);
    assert!(first.is_ready());
}

#[tokio::test(start_paused = true)]
async fn high_jobs_go_first_within_their_key_only() {
    let executor = one_shard(plain());
    let (gate, _held) = occupy(&executor, "key").await;
    let journal = Journal::new();
    for (number, priority) in [
        Priority::Low,
        Priority::Normal,
        Priority::High,
        Priority::High,
    ]
    .into_iter()
    .enumerate()
    {
        let options = JobOptions::new().priority(priority);
        executor
            .submit_with("key", journal.noting(number), options)
            .await
            .unwrap();
    }
    executor.submit("other", journal.noting(9)).await.unwrap();
    gate.open(1);
    executor.stop().await;
    let order = journal.take();
    assert_eq!(
        order[0], 9,
        "another key is not kept waiting by this one's priorities"
    );
    assert_eq!(order[1..], [2, 3, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_urgent_job_does_not_wait_for_the_turns_of_other_keys_and_others_wait_for_four_of_them()
{
    let executor = one_shard(plain());
    let (gate, _held) = occupy(&executor, "first").await;
    let journal = Journal::new();
    for key in 0..20 {
        let job = journal.noting("ordinary");
        executor.submit(format!("key {key}"), job).await.unwrap();
    }
    let urgent = JobOptions::new().priority(Priority::Urgent);
    for key in 0..10 {
        let job = journal.noting("urgent");
        let key = format!("urgent key {key}");
        executor
            .submit_with(key, job, urgent.clone())
            .await
            .unwrap();
    }
    gate.open(1);
    executor.stop().await;
    let order = journal.take();
    let urgent: Vec<usize> = (0..order.len())
        .filter(|&at| order[at] == "urgent")
        .collect();
    assert_eq!(urgent, [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]);
    assert_eq!(order.len(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_dear_key_gets_fewer_turns() {
    let executor = one_shard(plain());
    let (gate, _held) = occupy(&executor, "first").await;
    let journal = Journal::new();
    for _ in 0..40 {
        let dear = JobOptions::new().cost(10);
        executor
            .submit_with("dear", journal.noting("dear"), dear)
            .await
            .unwrap();
        executor
            .submit("cheap", journal.noting("cheap"))
            .await
            .unwrap();
    }
    gate.open(1);
    executor.stop().await;
    let dear = journal.take()[..44]
        .iter()
        .filter(|&&key| key == "dear")
        .count();
    assert!((3..=6).contains(&dear), "{dear} of the first 44");
}

struct Counter {
    attempts: Vec<u32>,
    journal: Journal<Vec<u32>>,
}

impl Job for Counter {
    async fn run(&mut self, context: JobContext) -> Result<(), JobError> {
        self.attempts.push(context.attempt());
        match self.attempts.len() {
            1 => Err("not yet".into()),
            2 => panic!("not like this"),
            _ => {
                self.journal.note(self.attempts.clone());
                Ok(())
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_keeps_its_state_across_attempts_and_panics() {
    let executor = one_shard(plain());
    let journal = Journal::new();
    let job = Counter {
        attempts: Vec::new(),
        journal: journal.clone(),
    };
    let handle = executor.submit("key", job).await.unwrap();
    assert!(handle.await.is_done());
    assert_eq!(journal.take(), [vec![1, 2, 3]]);
}

#[tokio::test(start_paused = true)]
async fn a_job_knows_its_key_and_its_id() {
    let executor = one_shard(plain());
    let journal = Journal::new();
    let noted = journal.clone();
    let job = move |context: JobContext| {
        noted.note((context.key().to_owned(), context.id()));
        std::future::ready(())
    };
    let handle = executor.submit("memory-123", job).await.unwrap();
    let id = handle.id();
    assert!(handle.await.is_done());
    assert_eq!(journal.take(), [("memory-123".to_owned(), id)]);
    assert_eq!(
        (id.shard(), id.number(), id.to_string().as_str()),
        (0, 0, "0.0")
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_inherits_a_ticket_knows_its_own_key() {
    let executor = one_shard(plain());
    let journal = Journal::new();
    for key in ["one", "two", "three"] {
        let noted = journal.clone();
        let job = move |context: JobContext| {
            noted.note(context.key().to_owned());
            std::future::ready(())
        };
        drop(executor.submit(key, job).await.unwrap());
        executor.flush().await;
    }
    assert_eq!(journal.take(), ["one", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn a_context_that_outlives_its_job_still_knows_the_key() {
    let executor = one_shard(plain());
    let kept = Journal::new();
    let keeping = |result: Result<(), &'static str>| {
        let kept = kept.clone();
        move |context: JobContext| {
            kept.note(context);
            std::future::ready(result.map_err(JobError::from))
        }
    };
    executor.submit("ran", keeping(Ok(()))).await.unwrap();
    let failing = executor.submit("cancelled", keeping(Err("once"))).await;
    executor
        .submit("failed", keeping(Err("again")))
        .await
        .unwrap();
    while kept.len() < 3 {
        tokio::task::yield_now().await;
    }
    failing.unwrap().cancel(); // it backs off
    executor.stop().await; // the last one is given up
    let keys: Vec<String> = kept.take().iter().map(|it| it.key().to_owned()).collect();
    assert_eq!(keys, ["ran", "cancelled", "failed"]);
}

#[tokio::test]
async fn an_endless_row_of_jobs_does_not_starve_other_tasks() {
    let executor = Arc::new(one_shard(Config {
        queue_size: 1 << 16,
        ..plain()
    }));
    for _ in 0..20_000 {
        executor.submit("key", idle).await.unwrap();
    }
    // The worker shares one thread with this task, which must get its turn in between.
    tokio::task::yield_now().await;
    let ran = executor.stats().ran;
    assert!(
        (1..20_000).contains(&ran),
        "{ran} jobs ran before another key"
    );
    executor.stop().await;
}

#[tokio::test]
async fn jobs_that_keep_their_thread_busy_let_other_tasks_run_in_between() {
    let executor = one_shard(Config::default());
    for _ in 0..50 {
        let job = |_| {
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            std::future::ready(())
        };
        executor.try_submit("busy", job).unwrap();
    }
    tokio::task::yield_now().await; // the worker's turn
    let ran = executor.stats().ran;
    assert!(ran <= 1, "{ran} jobs ran before this task");
    executor.close();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_awake_is_not_woken_again() {
    let executor = one_shard(Config {
        queue_size: 256,
        ..plain()
    });
    let (gate, _held) = occupy(&executor, "key").await;
    let before = executor.stats().wakeups;
    for _ in 0..100 {
        executor.submit("key", idle).await.unwrap();
    }
    let _ = Gate::closed();
    gate.open(1);
    executor.flush().await;
    assert_eq!(executor.stats().wakeups, before);
}
