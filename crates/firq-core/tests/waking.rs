//! One wake-up per task, and none without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use firq_core::{
    BackpressurePolicy, Clock, DequeueResult, EnqueueRejectReason, EnqueueResult, ManualClock,
    Rejected, Scheduler, SchedulerConfig, Task, TenantKey, Waiter,
};

#[derive(Default)]
struct Calls(AtomicU64);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Calls {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn caller() -> (Arc<Calls>, Waker) {
    let calls = Arc::new(Calls::default());
    (Arc::clone(&calls), Waker::from(calls))
}

/// Returns a consumer that waits.
fn seated(scheduler: &Scheduler<u64>) -> (Arc<Calls>, Waker, Waiter) {
    let (calls, waker) = caller();
    let mut waiter = Waiter::new();
    let polled = scheduler.poll_dequeue(&mut Context::from_waker(&waker), &mut waiter);
    assert!(polled.is_pending());
    (calls, waker, waiter)
}

fn wait_for_consumers(scheduler: &Scheduler<u64>, waiting: u64) {
    while scheduler.stats().consumers_waiting < waiting {
        thread::yield_now();
    }
}

#[test]
fn a_thousand_tasks_wake_sixty_four_consumers_a_thousand_times() {
    for shards in [1, 4, 64] {
        let config = SchedulerConfig {
            shards,
            ..SchedulerConfig::default()
        };
        let scheduler: Scheduler<u64> = Scheduler::new(config).unwrap();
        let served = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    while let DequeueResult::Task { .. } = scheduler.dequeue_blocking() {
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            wait_for_consumers(&scheduler, 64);
            for number in 0..1_000 {
                assert_eq!(
                    scheduler.enqueue(TenantKey::from(number % 10), Task::new(number)),
                    EnqueueResult::Enqueued
                );
            }
            while served.load(Ordering::Relaxed) < 1_000 {
                thread::yield_now();
            }
            wait_for_consumers(&scheduler, 64);
            let wakeups = scheduler.stats().wakeups;
            assert!(wakeups <= 1_000, "{wakeups} wake-ups for 1,000 tasks");
            scheduler.close();
        });
    }
}

#[test]
fn each_task_wakes_one_waiting_consumer() {
    let scheduler: Scheduler<u64> = Scheduler::new(SchedulerConfig::default()).unwrap();
    let mut waiting: Vec<_> = (0..8).map(|_| (caller(), Waiter::new())).collect();
    for ((_, waker), waiter) in &mut waiting {
        let mut context = Context::from_waker(waker);
        assert!(scheduler.poll_dequeue(&mut context, waiter).is_pending());
    }
    let called = |waiting: &[((Arc<Calls>, Waker), Waiter)]| -> u64 {
        waiting.iter().map(|((calls, _), _)| calls.count()).sum()
    };
    for tasks in 1..=5 {
        // All for one tenant: the second and later ones do not pass through the ring.
        assert_eq!(
            scheduler.enqueue(TenantKey::from(1), Task::new(tasks)),
            EnqueueResult::Enqueued
        );
        assert_eq!(called(&waiting), tasks);
    }
    assert_eq!(waiting[0].0.0.count(), 1, "who came first is called first");
    assert_eq!(waiting[5].0.0.count(), 0);
}

#[test]
fn a_call_to_one_who_has_gone_is_passed_on() {
    let scheduler: Scheduler<u64> = Scheduler::new(SchedulerConfig::default()).unwrap();
    let (first_calls, _, first_waiter) = seated(&scheduler);
    let (second_calls, second, mut second_waiter) = seated(&scheduler);
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), Task::new(7)),
        EnqueueResult::Enqueued
    );
    assert_eq!((first_calls.count(), second_calls.count()), (1, 0));
    drop(first_waiter);
    assert_eq!(second_calls.count(), 1);
    let polled = scheduler.poll_dequeue(&mut Context::from_waker(&second), &mut second_waiter);
    assert!(matches!(polled, Poll::Ready(DequeueResult::Task { .. })));
}

#[test]
fn a_waiter_that_gives_up_unwoken_is_not_woken_and_wakes_no_other() {
    let scheduler: Scheduler<u64> = Scheduler::new(SchedulerConfig::default()).unwrap();
    let (first_calls, _, first_waiter) = seated(&scheduler);
    let (second_calls, _, _second_waiter) = seated(&scheduler);
    drop(first_waiter);
    assert_eq!(second_calls.count(), 0);
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), Task::new(7)),
        EnqueueResult::Enqueued
    );
    assert_eq!((first_calls.count(), second_calls.count()), (0, 1));
}

#[test]
fn a_consumer_with_a_timeout_gives_up_when_its_time_has_come() {
    let clock = ManualClock::new();
    let scheduler: Scheduler<u64> =
        Scheduler::new(SchedulerConfig::default().with_clock(clock.clone())).unwrap();
    thread::scope(|scope| {
        let consumer = scope.spawn(|| scheduler.dequeue_blocking_timeout(Duration::from_secs(60)));
        wait_for_consumers(&scheduler, 1);
        clock.advance(Duration::from_secs(59));
        assert_eq!(scheduler.stats().consumers_waiting, 1);
        clock.advance(Duration::from_secs(1));
        assert_eq!(consumer.join().unwrap(), DequeueResult::Empty);
    });
    assert_eq!(scheduler.stats().consumers_waiting, 0);
}

fn bounded(max_global: usize, max_per_tenant: usize, clock: &ManualClock) -> Scheduler<u64> {
    let config = SchedulerConfig {
        max_global,
        max_per_tenant,
        backpressure: BackpressurePolicy::Timeout {
            wait: Duration::from_secs(10),
        },
        ..SchedulerConfig::default()
    };
    Scheduler::new(config.with_clock(clock.clone())).expect("the configuration is valid")
}

#[test]
fn a_producer_is_called_when_there_is_room() {
    for (max_global, max_per_tenant) in [(1, 100), (100, 1)] {
        let scheduler = bounded(max_global, max_per_tenant, &ManualClock::new());
        assert_eq!(
            scheduler.enqueue(TenantKey::from(1), Task::new(1)),
            EnqueueResult::Enqueued
        );
        let (calls, waker) = caller();
        let mut context = Context::from_waker(&waker);
        let (mut waiter, mut task) = (Waiter::new(), Some(Task::new(2)));
        let tenant = TenantKey::from(1);
        assert!(
            scheduler
                .poll_submit(&mut context, &mut waiter, &tenant, &mut task)
                .is_pending()
        );
        assert_eq!(calls.count(), 0);
        assert!(scheduler.try_dequeue().into_task().is_some());
        assert_eq!(calls.count(), 1);
        let polled = scheduler.poll_submit(&mut context, &mut waiter, &tenant, &mut task);
        assert!(matches!(polled, Poll::Ready(Ok(_))));
    }
}

#[test]
fn room_for_a_tenant_that_cannot_be_used_is_offered_to_the_next() {
    // The first who waits is called for room in the lane, but finds the scheduler full, and gives up.
    let scheduler = bounded(2, 1, &ManualClock::new());
    let tenant = TenantKey::from(1);
    assert_eq!(
        scheduler.enqueue(tenant, Task::new(1)),
        EnqueueResult::Enqueued
    );
    let ((_, first), (second_calls, second)) = (caller(), caller());
    let (mut first_waiter, mut second_waiter) = (Waiter::new(), Waiter::new());
    let (mut first_task, mut second_task) = (Some(Task::new(2)), Some(Task::new(3)));
    let mut first = Context::from_waker(&first);
    let mut second = Context::from_waker(&second);
    assert!(
        scheduler
            .poll_submit(&mut first, &mut first_waiter, &tenant, &mut first_task)
            .is_pending()
    );
    assert!(
        scheduler
            .poll_submit(&mut second, &mut second_waiter, &tenant, &mut second_task)
            .is_pending()
    );
    assert!(scheduler.try_dequeue().into_task().is_some());
    for other in [5, 6] {
        assert_eq!(
            scheduler.enqueue(TenantKey::from(other), Task::new(9)),
            EnqueueResult::Enqueued
        );
    }
    assert!(
        scheduler
            .poll_submit(&mut first, &mut first_waiter, &tenant, &mut first_task)
            .is_pending()
    );
    assert_eq!(
        second_calls.count(),
        1,
        "the lane has room that the first could not use"
    );
    drop(first_waiter);
    assert!(
        scheduler
            .poll_submit(&mut second, &mut second_waiter, &tenant, &mut second_task)
            .is_pending()
    );
    assert!(scheduler.try_dequeue().into_task().is_some());
    assert_eq!(
        second_calls.count(),
        2,
        "and now it waits for the scheduler"
    );
    let polled = scheduler.poll_submit(&mut second, &mut second_waiter, &tenant, &mut second_task);
    assert!(matches!(polled, Poll::Ready(Ok(_))));
}

#[test]
fn a_producer_gives_up_when_its_time_has_come_and_gets_its_task_back() {
    let clock = ManualClock::new();
    let scheduler = bounded(1, 1, &clock);
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), Task::new(1)),
        EnqueueResult::Enqueued
    );
    let submit = |number| scheduler.submit(TenantKey::from(2), Task::new(number));
    thread::scope(|scope| {
        let producer = scope.spawn(|| submit(42));
        while !producer.is_finished() {
            clock.advance(Duration::from_secs(1));
            thread::yield_now();
        }
        match producer.join().unwrap() {
            Err(Rejected::Full {
                reason: EnqueueRejectReason::Timeout,
                task,
            }) => assert_eq!(task.payload, 42),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(scheduler.stats().rejected_timeout, 1);
}

#[test]
fn a_producer_gets_the_room_of_a_task_that_expires_without_a_consumer() {
    let clock = ManualClock::new();
    let scheduler = bounded(1, 1, &clock);
    let deadline = clock.now() + Duration::from_secs(5);
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), Task::new(1).with_deadline(deadline)),
        EnqueueResult::Enqueued
    );
    thread::scope(|scope| {
        let producer = scope.spawn(|| scheduler.submit(TenantKey::from(2), Task::new(2)));
        clock.advance(Duration::from_secs(5) + Duration::from_nanos(1));
        assert!(producer.join().unwrap().is_ok());
    });
    assert_eq!(scheduler.stats().expired, 1);
}
