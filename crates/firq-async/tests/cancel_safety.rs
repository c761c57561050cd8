//! Dropping a future at any point loses nothing, and keeps nothing from others.
#![cfg(test)] // helpers may unwrap, as tests do

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use firq_async::{
    AsyncScheduler, BackpressurePolicy, DequeueResult, SchedulerConfig, Task, TenantKey, TokioClock,
};
use tokio_stream::StreamExt;

const TASKS: u64 = 10_000;
const DROPS: u64 = 10_000;

fn scheduler(max_global: usize) -> AsyncScheduler<u64> {
    let config = SchedulerConfig {
        max_global,
        max_per_tenant: max_global,
        ..SchedulerConfig::default()
    };
    AsyncScheduler::new(config.with_clock(TokioClock)).unwrap()
}

fn tenant(id: u64) -> TenantKey {
    TenantKey::from(id)
}

/// Polls once, with a waker that does nothing.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A small generator, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

async fn yield_times(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// Consumes until the end, abandoning futures at random. Returns what it got.
async fn impatient(scheduler: AsyncScheduler<u64>, seed: u64, dropped: Arc<AtomicU64>) -> Vec<u64> {
    let mut dice = Dice(seed);
    let mut got = Vec::new();
    loop {
        let patience = dice.roll(4);
        tokio::select! {
            next = scheduler.dequeue_async() => match next {
                DequeueResult::Task { task, .. } => got.push(task.payload),
                DequeueResult::Closed => return got,
                DequeueResult::Empty => unreachable!("it waits"),
            },
            () = yield_times(patience) => {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

async fn ten_thousand_drops_lose_nothing() {
    let scheduler = scheduler(64);
    let dropped = Arc::new(AtomicU64::new(0));
    let consumers: Vec<_> = (0..4)
        .map(|seed| tokio::spawn(impatient(scheduler.clone(), seed, Arc::clone(&dropped))))
        .collect();
    let mut dice = Dice(99);
    for number in 0..TASKS {
        let queued = scheduler.enqueue_async(tenant(number % 7), Task::new(number));
        queued.await.unwrap();
        yield_times(dice.roll(3)).await;
    }
    while dropped.load(Ordering::Relaxed) < DROPS {
        tokio::task::yield_now().await;
    }
    scheduler.close_drain();
    let mut got = Vec::new();
    for consumer in consumers {
        got.extend(consumer.await.unwrap());
    }
    got.sort_unstable();
    assert!(
        got.into_iter().eq(0..TASKS),
        "every task was delivered once"
    );
    assert_eq!(scheduler.stats().dequeued, TASKS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_dropped_futures_lose_no_task() {
    ten_thousand_drops_lose_nothing().await;
}

#[tokio::test]
async fn ten_thousand_dropped_futures_lose_no_task_on_one_thread() {
    ten_thousand_drops_lose_nothing().await;
}

#[test]
fn a_call_to_a_future_that_is_dropped_goes_to_the_next() {
    let scheduler = scheduler(8);
    let mut second = pin!(scheduler.dequeue_async());
    {
        let mut first = pin!(scheduler.dequeue_async());
        assert!(poll_once(first.as_mut()).is_pending());
        assert!(poll_once(second.as_mut()).is_pending());
        scheduler.try_enqueue(tenant(1), Task::new(7)).unwrap();
        assert_eq!(scheduler.stats().wakeups, 1, "the first was called");
    } // and is gone
    assert_eq!(scheduler.stats().wakeups, 2, "so the second was");
    assert!(poll_once(second.as_mut()).is_ready());
}

#[test]
fn a_dropped_batch_takes_nothing() {
    let scheduler = scheduler(8);
    let mut tasks = Vec::new();
    {
        let mut batch = pin!(scheduler.dequeue_batch_async(4, &mut tasks));
        assert!(poll_once(batch.as_mut()).is_pending());
        for number in 0..3 {
            scheduler.try_enqueue(tenant(1), Task::new(number)).unwrap();
        }
    }
    assert!(tasks.is_empty());
    assert_eq!(scheduler.stats().queue_len_estimate, 3);
}

#[tokio::test(start_paused = true)]
async fn a_stream_can_be_listened_to_in_a_timeout() {
    let scheduler = scheduler(8);
    let mut tasks = scheduler.tasks();
    for round in 0..100 {
        let nothing = tokio::time::timeout(Duration::from_millis(5), tasks.next()).await;
        assert!(nothing.is_err());
        scheduler.try_enqueue(tenant(1), Task::new(round)).unwrap();
        let (_, task) = tasks.next().await.unwrap();
        assert_eq!(task.payload, round);
    }
    scheduler.close_drain();
    assert!(tasks.next().await.is_none());
}

#[test]
fn an_enqueue_that_is_abandoned_gives_its_task_back_and_its_place_up() {
    let scheduler = scheduler(1);
    scheduler.try_enqueue(tenant(1), Task::new(0)).unwrap();
    let mut first = Box::pin(scheduler.enqueue_async(tenant(2), Task::new(1)));
    let mut second = pin!(scheduler.enqueue_async(tenant(3), Task::new(2)));
    assert!(poll_once(first.as_mut()).is_pending());
    assert!(poll_once(second.as_mut()).is_pending());
    assert!(
        scheduler.try_dequeue().into_task().is_some(),
        "calls the first"
    );
    let first = *std::pin::Pin::into_inner(first);
    assert_eq!(first.into_task().unwrap().payload, 1);
    assert!(
        poll_once(second.as_mut()).is_ready(),
        "the room is the second's"
    );
}

#[tokio::test(start_paused = true)]
async fn abandoned_producers_leave_no_room_unused() {
    let config = SchedulerConfig {
        max_global: 2,
        backpressure: BackpressurePolicy::Timeout {
            wait: Duration::from_secs(1),
        },
        ..SchedulerConfig::default()
    };
    let scheduler: AsyncScheduler<u64> =
        AsyncScheduler::new(config.with_clock(TokioClock)).unwrap();
    let mut dice = Dice(5);
    let mut accepted = 0;
    for number in 0..2_000 {
        let enqueue = scheduler.enqueue_async(tenant(number % 3), Task::new(number));
        let patience = Duration::from_millis(dice.roll(3));
        if let Ok(result) = tokio::time::timeout(patience, enqueue).await {
            result.unwrap();
            accepted += 1;
        }
        if dice.roll(3) == 0 {
            let _ = scheduler.try_dequeue();
        }
    }
    while scheduler.try_dequeue().into_task().is_some() {}
    assert_eq!(scheduler.stats().enqueued, accepted);
    assert_eq!(scheduler.stats().dequeued, accepted);
    for number in 0..2 {
        scheduler.try_enqueue(tenant(number), Task::new(0)).unwrap();
    }
}
