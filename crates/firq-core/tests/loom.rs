//! Races, in every order that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p firq-core --release --test loom
//! ```
//!
//! Without `--cfg loom` this file is empty. Each model is a whole scheduler with two or three threads. Those
//! with two are explored completely, those with three up to three or four preemptions; all take seconds.
#![cfg(loom)]

use std::task::{Context, Waker};
use std::time::Duration;

use firq_core::{
    BackpressurePolicy, CancelResult, DequeueResult, EnqueueResult, ManualClock, Scheduler,
    SchedulerConfig, Task, TenantKey, Waiter,
};
use loom::sync::Arc;
use loom::thread;

/// Explores every schedule, or where there are too many, those with a bounded number of preemptions.
fn explore(preemptions: impl Into<Option<usize>>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(model);
}

fn scheduler(shards: usize, max_global: usize, max_per_tenant: usize) -> Arc<Scheduler<u64>> {
    let config = SchedulerConfig {
        shards,
        max_global,
        max_per_tenant,
        top_tenants_capacity: 0,
        backpressure: BackpressurePolicy::Timeout {
            wait: Duration::from_secs(1),
        },
        ..SchedulerConfig::default()
    };
    Arc::new(Scheduler::new(config.with_clock(ManualClock::new())).unwrap())
}

fn payload(result: DequeueResult<u64>) -> Option<u64> {
    result.into_task().map(|(_, task)| task.payload)
}

fn enqueue_meets_a_blocked_dequeue(shards: usize) {
    let scheduler = scheduler(shards, 8, 8);
    let consumer = {
        let scheduler = Arc::clone(&scheduler);
        thread::spawn(move || payload(scheduler.dequeue_blocking()))
    };
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), Task::new(7)),
        EnqueueResult::Enqueued
    );
    assert_eq!(consumer.join().unwrap(), Some(7));
}

#[test]
fn a_blocked_consumer_gets_the_task() {
    explore(None, || enqueue_meets_a_blocked_dequeue(1));
}

#[test]
fn a_blocked_consumer_gets_the_task_across_shards() {
    explore(None, || enqueue_meets_a_blocked_dequeue(2));
}

/// The second task does not pass through the ring, and yet both consumers must get one.
fn two_tasks_of_a_tenant_meet_two_blocked_consumers(shards: usize) {
    let scheduler = scheduler(shards, 8, 8);
    let consumers: Vec<_> = (0..2)
        .map(|_| {
            let scheduler = Arc::clone(&scheduler);
            thread::spawn(move || payload(scheduler.dequeue_blocking()).unwrap())
        })
        .collect();
    for number in [1, 2] {
        assert_eq!(
            scheduler.enqueue(TenantKey::from(1), Task::new(number)),
            EnqueueResult::Enqueued
        );
    }
    let sum: u64 = consumers
        .into_iter()
        .map(|consumer| consumer.join().unwrap())
        .sum();
    assert_eq!(sum, 3);
}

#[test]
fn every_task_wakes_a_consumer() {
    explore(4, || two_tasks_of_a_tenant_meet_two_blocked_consumers(1));
}

#[test]
fn every_task_wakes_a_consumer_across_shards() {
    explore(4, || two_tasks_of_a_tenant_meet_two_blocked_consumers(2));
}

/// Two producers of one tenant: the first to come puts the lane into the ring, perhaps after the second has
/// added to it.
#[test]
fn tasks_that_come_together_wake_as_many() {
    explore(4, || {
        let scheduler = scheduler(2, 8, 8);
        let producer = {
            let scheduler = Arc::clone(&scheduler);
            thread::spawn(move || {
                assert_eq!(
                    scheduler.enqueue(TenantKey::from(1), Task::new(1)),
                    EnqueueResult::Enqueued
                );
            })
        };
        let consumer = {
            let scheduler = Arc::clone(&scheduler);
            thread::spawn(move || payload(scheduler.dequeue_blocking()).unwrap())
        };
        assert_eq!(
            scheduler.enqueue(TenantKey::from(1), Task::new(2)),
            EnqueueResult::Enqueued
        );
        let second = payload(scheduler.dequeue_blocking()).unwrap();
        assert_eq!(consumer.join().unwrap() + second, 3);
        producer.join().unwrap();
    });
}

#[test]
fn closing_at_once_ends_a_blocked_dequeue() {
    for shards in [1, 2] {
        explore(None, move || {
            let scheduler = scheduler(shards, 8, 8);
            let consumer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || scheduler.dequeue_blocking())
            };
            scheduler.close_immediate();
            assert_eq!(consumer.join().unwrap(), DequeueResult::Closed);
        });
    }
}

/// A task that is accepted while the scheduler closes is delivered before `Closed`.
#[test]
fn draining_delivers_what_was_accepted() {
    for shards in [1, 2] {
        explore(3, move || {
            let scheduler = scheduler(shards, 8, 8);
            let consumer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || {
                    let mut served = 0;
                    while let DequeueResult::Task { .. } = scheduler.dequeue_blocking() {
                        served += 1;
                    }
                    served
                })
            };
            let closer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || scheduler.close_drain())
            };
            let accepted = match scheduler.enqueue(TenantKey::from(1), Task::new(7)) {
                EnqueueResult::Enqueued => 1,
                EnqueueResult::Closed => 0,
                EnqueueResult::Rejected(reason) => panic!("{reason}"),
            };
            assert_eq!(consumer.join().unwrap(), accepted);
            closer.join().unwrap();
        });
    }
}

#[test]
fn a_task_is_cancelled_or_delivered_never_both() {
    for shards in [1, 2] {
        explore(None, move || {
            let scheduler = scheduler(shards, 8, 8);
            let handle = scheduler.submit(TenantKey::from(1), Task::new(7)).unwrap();
            let consumer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || payload(scheduler.try_dequeue()).is_some())
            };
            let cancelled = scheduler.cancel(handle) == CancelResult::Cancelled;
            assert_ne!(consumer.join().unwrap(), cancelled);
            assert_eq!(scheduler.len(), 0);
            // The lane is in order: what comes next is served.
            assert_eq!(
                scheduler.enqueue(TenantKey::from(1), Task::new(8)),
                EnqueueResult::Enqueued
            );
            assert_eq!(payload(scheduler.try_dequeue()), Some(8));
        });
    }
}

#[test]
fn capacity_is_strict_under_concurrent_enqueues() {
    for shards in [1, 2] {
        explore(None, move || {
            let scheduler = scheduler(shards, 1, 8);
            let other = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || {
                    scheduler
                        .try_enqueue(TenantKey::from(1), Task::new(1))
                        .is_ok()
                })
            };
            let mine = scheduler
                .try_enqueue(TenantKey::from(2), Task::new(2))
                .is_ok();
            assert!(scheduler.len() <= 1);
            assert!(mine ^ other.join().unwrap(), "one of the two is accepted");
            assert!(payload(scheduler.try_dequeue()).is_some());
            assert_eq!(scheduler.len(), 0);
        });
    }
}

/// Room that is freed reaches a producer that waits for it, in the scheduler and in a lane.
#[test]
fn a_waiting_producer_gets_the_room_that_is_freed() {
    for (shards, max_global, max_per_tenant) in [(1, 1, 8), (2, 1, 8), (1, 8, 1), (2, 8, 1)] {
        explore(None, move || {
            let scheduler = scheduler(shards, max_global, max_per_tenant);
            assert_eq!(
                scheduler.enqueue(TenantKey::from(1), Task::new(1)),
                EnqueueResult::Enqueued
            );
            let producer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || scheduler.enqueue(TenantKey::from(1), Task::new(2)))
            };
            assert_eq!(payload(scheduler.try_dequeue()), Some(1));
            assert_eq!(producer.join().unwrap(), EnqueueResult::Enqueued);
            assert_eq!(payload(scheduler.try_dequeue()), Some(2));
        });
    }
}

/// A producer that gives its seat up while room is freed and taken takes no room with it, and no wake-up: the scheduler
/// counts right, and the next producer that waits is called.
#[test]
fn a_producer_that_gives_up_leaves_the_count_right() {
    for shards in [1, 2] {
        explore(None, move || {
            let scheduler = scheduler(shards, 1, 8);
            assert_eq!(
                scheduler.enqueue(TenantKey::from(1), Task::new(1)),
                EnqueueResult::Enqueued
            );
            let fickle = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || {
                    let mut waiter = Waiter::new();
                    let mut task = Some(Task::new(2));
                    let mut context = Context::from_waker(Waker::noop());
                    let tenant = TenantKey::from(1);
                    let poll = scheduler.poll_submit(&mut context, &mut waiter, &tenant, &mut task);
                    poll.is_ready()
                })
            };
            assert_eq!(payload(scheduler.try_dequeue()), Some(1));
            let accepted = u64::from(fickle.join().unwrap());
            assert_eq!(scheduler.len() as u64, accepted);
            if accepted == 1 {
                assert_eq!(payload(scheduler.try_dequeue()), Some(2));
            }
            assert_eq!(
                scheduler.enqueue(TenantKey::from(1), Task::new(3)),
                EnqueueResult::Enqueued
            );
            assert_eq!(scheduler.len(), 1);
        });
    }
}

/// A scheduler that is closed while a task comes and another goes takes no more, and counts right.
#[test]
fn closing_is_not_lost_between_a_release_and_a_reservation() {
    for shards in [1, 2] {
        explore(4, move || {
            let scheduler = scheduler(shards, 8, 8);
            assert_eq!(
                scheduler.enqueue(TenantKey::from(1), Task::new(1)),
                EnqueueResult::Enqueued
            );
            let producer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || {
                    scheduler
                        .try_enqueue(TenantKey::from(2), Task::new(2))
                        .is_ok()
                })
            };
            let closer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || scheduler.close_drain())
            };
            let mut taken = u64::from(payload(scheduler.try_dequeue()).is_some());
            let accepted = 1 + u64::from(producer.join().unwrap());
            closer.join().unwrap();
            assert!(scheduler.is_closed());
            assert!(
                scheduler
                    .try_enqueue(TenantKey::from(3), Task::new(3))
                    .is_err()
            );
            while payload(scheduler.try_dequeue()).is_some() {
                taken += 1;
            }
            assert_eq!((taken, scheduler.len()), (accepted, 0));
            assert!(matches!(scheduler.try_dequeue(), DequeueResult::Closed));
        });
    }
}

/// A scheduler whose tenants 11, 12, … are members of the group 1, which has room for one task.
fn nested(shards: usize) -> Arc<Scheduler<u64>> {
    let config = SchedulerConfig {
        shards,
        max_per_group: Some(1),
        top_tenants_capacity: 0,
        backpressure: BackpressurePolicy::Timeout {
            wait: Duration::from_secs(1),
        },
        ..SchedulerConfig::default()
    };
    let config = config.with_groups(|tenant: &TenantKey| {
        let group = tenant.as_u64() / 10;
        (group > 0).then(|| TenantKey::from(group))
    });
    Arc::new(Scheduler::new(config.with_clock(ManualClock::new())).unwrap())
}

#[test]
fn a_waiting_producer_gets_the_room_that_is_freed_in_its_group() {
    for shards in [1, 2] {
        explore(3, move || {
            let scheduler = nested(shards);
            assert_eq!(
                scheduler.enqueue(TenantKey::from(11), Task::new(1)),
                EnqueueResult::Enqueued
            );
            let producer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || scheduler.enqueue(TenantKey::from(12), Task::new(2)))
            };
            assert_eq!(payload(scheduler.try_dequeue()), Some(1));
            assert_eq!(producer.join().unwrap(), EnqueueResult::Enqueued);
            assert_eq!(payload(scheduler.try_dequeue()), Some(2));
        });
    }
}

#[test]
fn the_room_of_a_group_is_strict_under_concurrent_enqueues() {
    for shards in [1, 2] {
        explore(3, move || {
            let scheduler = nested(shards);
            let other = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || {
                    scheduler
                        .try_enqueue(TenantKey::from(11), Task::new(1))
                        .is_ok()
                })
            };
            let mine = scheduler
                .try_enqueue(TenantKey::from(12), Task::new(2))
                .is_ok();
            assert!(scheduler.tenant_len(&TenantKey::from(1)) <= 1);
            assert!(mine ^ other.join().unwrap(), "one of the two is accepted");
            assert!(payload(scheduler.try_dequeue()).is_some());
            assert_eq!(scheduler.tenant_len(&TenantKey::from(1)), 0);
        });
    }
}

#[test]
fn a_blocked_consumer_is_woken_when_a_group_is_resumed() {
    for shards in [1, 2] {
        explore(3, move || {
            let scheduler = nested(shards);
            scheduler.pause_tenant(&TenantKey::from(1));
            assert_eq!(
                scheduler.enqueue(TenantKey::from(11), Task::new(7)),
                EnqueueResult::Enqueued
            );
            let consumer = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || payload(scheduler.dequeue_blocking()))
            };
            scheduler.resume_tenant(&TenantKey::from(1));
            assert_eq!(consumer.join().unwrap(), Some(7));
        });
    }
}

#[test]
fn a_task_passes_only_before_another_is_queued_and_neither_is_lost() {
    for shards in [1, 2] {
        explore(None, move || {
            let scheduler = scheduler(shards, 8, 8);
            let (ours, theirs) = (TenantKey::from(1), TenantKey::from(2));
            assert_eq!(
                scheduler.enqueue(ours, Task::new(1)),
                EnqueueResult::Enqueued
            );
            assert_eq!(payload(scheduler.try_dequeue()), Some(1));
            let other = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || {
                    assert_eq!(
                        scheduler.enqueue(theirs, Task::new(2)),
                        EnqueueResult::Enqueued
                    );
                    // No other thread takes it.
                    assert!(!scheduler.pass(&ours, 1));
                })
            };
            let has_passed = scheduler.pass(&ours, 1);
            other.join().unwrap();
            assert_eq!(payload(scheduler.try_dequeue()), Some(2));
            assert_eq!(scheduler.stats().dequeued, 2 + u64::from(has_passed));
        });
    }
}
