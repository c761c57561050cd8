//! The six invariants, with threads.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use firq_core::{
    BackpressurePolicy, CancelResult, Clock, DequeueResult, DropReason, EnqueueResult, ManualClock,
    Scheduler, SchedulerConfig, Task, TenantKey,
};

const SHARDS: [usize; 3] = [1, 4, 64];

fn scheduler<T>(shards: usize, change: impl FnOnce(&mut SchedulerConfig<T>)) -> Scheduler<T> {
    let mut config = SchedulerConfig {
        shards,
        ..SchedulerConfig::default()
    };
    change(&mut config);
    Scheduler::new(config).expect("the configuration is valid")
}

/// 1: never an expired delivery, whatever the clock does meanwhile.
#[test]
fn no_expired_task_is_delivered() {
    for shards in SHARDS {
        let clock = ManualClock::new();
        let scheduler = scheduler(shards, |config| {
            config.clock = std::sync::Arc::new(clock.clone())
        });
        let delivered = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..20_000 {
                    let deadline = clock.now() + Duration::from_micros(number % 7);
                    let task = Task::new(()).with_deadline(deadline);
                    assert_eq!(
                        scheduler.enqueue(TenantKey::from(number % 13), task),
                        EnqueueResult::Enqueued
                    );
                    if number % 3 == 0 {
                        clock.advance(Duration::from_micros(1));
                    }
                }
                scheduler.close_drain();
            });
            scope.spawn(|| {
                loop {
                    let before = clock.now();
                    match scheduler.dequeue_blocking() {
                        DequeueResult::Task { task, .. } => {
                            assert!(task.deadline.unwrap() >= before, "it had expired before");
                            delivered.fetch_add(1, Ordering::Relaxed);
                        }
                        DequeueResult::Closed => break,
                        DequeueResult::Empty => panic!("waiting never ends in nothing"),
                    }
                }
            });
        });
        let stats = scheduler.stats();
        assert_eq!(stats.dequeued, delivered.load(Ordering::Relaxed));
        assert_eq!(stats.dequeued + stats.expired, 20_000);
        assert_eq!(stats.queue_len_estimate, 0);
    }
}

/// 2: the global capacity is strict, under every policy.
#[test]
fn the_queue_is_never_longer_than_its_capacity() {
    const MAX: usize = 50;
    for policy in [
        BackpressurePolicy::Reject,
        BackpressurePolicy::DropOldestPerTenant,
        BackpressurePolicy::DropNewestPerTenant,
        BackpressurePolicy::Timeout {
            wait: Duration::ZERO,
        },
        BackpressurePolicy::ShedFair,
    ] {
        for shards in SHARDS {
            let scheduler = scheduler(shards, |config| {
                config.max_global = MAX;
                config.max_per_tenant = 20;
                config.backpressure = policy;
            });
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                let producers: Vec<_> = (0..3)
                    .map(|producer| {
                        let scheduler = &scheduler;
                        scope.spawn(move || {
                            for number in 0..5_000_u64 {
                                let tenant = (number * number + producer) % 17;
                                let _ =
                                    scheduler.enqueue(TenantKey::from(tenant), Task::new(number));
                            }
                        })
                    })
                    .collect();
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        assert!(scheduler.len() <= MAX);
                        let _ = scheduler.try_dequeue();
                    }
                });
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        assert!(scheduler.stats().queue_len_estimate <= MAX);
                    }
                });
                producers
                    .into_iter()
                    .for_each(|producer| producer.join().unwrap());
                done.store(true, Ordering::Relaxed);
            });
            let queued = std::iter::from_fn(|| scheduler.try_dequeue().into_task()).count();
            assert!(queued <= MAX);
            let stats = scheduler.stats();
            assert_eq!(stats.enqueued, stats.dequeued + stats.evicted, "{policy:?}");
            assert_eq!(stats.enqueued + stats.rejected, 15_000, "{policy:?}");
        }
    }
}

/// 3 and 6: every accepted task is found, none is lost and none comes twice; a drain ends.
#[test]
fn everything_accepted_comes_out_once_and_then_the_scheduler_is_closed() {
    for shards in SHARDS {
        let scheduler = scheduler(shards, |config| {
            config.max_global = 100;
            config.backpressure = BackpressurePolicy::Timeout {
                wait: Duration::from_secs(3600),
            };
        });
        let seen = Mutex::new(HashSet::new());
        let accepted = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    while let DequeueResult::Task { task, .. } = scheduler.dequeue_blocking() {
                        mine.push(task.payload);
                    }
                    let mut seen = seen.lock().unwrap();
                    mine.into_iter()
                        .for_each(|number| assert!(seen.insert(number)));
                });
            }
            let producers: Vec<_> = (0..4_u64)
                .map(|producer| {
                    let (scheduler, accepted) = (&scheduler, &accepted);
                    scope.spawn(move || {
                        for number in 0..5_000 {
                            let task = Task::new(producer << 32 | number);
                            let result = scheduler.enqueue(TenantKey::from(number % 97), task);
                            assert_eq!(result, EnqueueResult::Enqueued);
                            accepted.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            producers
                .into_iter()
                .for_each(|producer| producer.join().unwrap());
            scheduler.close_drain();
        });
        assert_eq!(
            seen.lock().unwrap().len() as u64,
            accepted.load(Ordering::Relaxed)
        );
        assert_eq!(
            scheduler.enqueue(TenantKey::from(1), Task::new(0)),
            EnqueueResult::Closed
        );
        assert_eq!(scheduler.try_dequeue(), DequeueResult::Closed);
    }
}

/// 4: a tenant with work makes progress beside a flood.
#[test]
fn a_flood_starves_no_tenant() {
    for shards in SHARDS {
        let scheduler = scheduler(shards, |config| config.max_global = 1 << 16);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = scheduler.enqueue(TenantKey::from(0), Task::new(0_u64));
                }
            });
            for number in 1..500 {
                assert_eq!(
                    scheduler.enqueue(TenantKey::from(1), Task::new(number)),
                    EnqueueResult::Enqueued
                );
                let mut others = 0;
                while scheduler
                    .try_dequeue()
                    .into_task()
                    .is_none_or(|(_, task)| task.payload != number)
                {
                    others += 1;
                    assert!(others <= 3, "the quiet tenant waited for {others}");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

/// 5: closing at once wakes all consumers, and every queued task is accounted for.
#[test]
fn closing_at_once_wakes_everybody() {
    for shards in SHARDS {
        let dropped = std::sync::Arc::new(AtomicU64::new(0));
        let counter = std::sync::Arc::clone(&dropped);
        let scheduler = scheduler::<u64>(shards, |config| {
            config.max_global = 10;
            config.backpressure = BackpressurePolicy::Timeout {
                wait: Duration::from_secs(3600),
            };
            config.on_drop = Some(std::sync::Arc::new(move |drop| {
                assert_eq!(drop.reason, DropReason::Closed);
                counter.fetch_add(1, Ordering::Relaxed);
            }));
        });
        thread::scope(|scope| {
            let consumers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        while let DequeueResult::Task { .. } = scheduler.dequeue_blocking() {}
                    })
                })
                .collect();
            while scheduler.stats().consumers_waiting < 4 {
                thread::yield_now();
            }
            scheduler.close();
            consumers
                .into_iter()
                .for_each(|consumer| consumer.join().unwrap());
        });
        assert_eq!(dropped.load(Ordering::Relaxed), 0);

        let scheduler = self::scheduler(shards, |config| {
            config.max_global = 10;
            config.backpressure = BackpressurePolicy::Timeout {
                wait: Duration::from_secs(3600),
            };
            let counter = std::sync::Arc::clone(&dropped);
            config.on_drop = Some(std::sync::Arc::new(move |_| {
                counter.fetch_add(1, Ordering::Relaxed);
            }));
        });
        for number in 0..10 {
            assert_eq!(
                scheduler.enqueue(TenantKey::from(number), Task::new(number)),
                EnqueueResult::Enqueued
            );
        }
        thread::scope(|scope| {
            let producers: Vec<_> = (0..3)
                .map(|number| {
                    scope.spawn({
                        let scheduler = &scheduler;
                        move || scheduler.enqueue(TenantKey::from(number), Task::new(99))
                    })
                })
                .collect();
            scheduler.close_immediate();
            for producer in producers {
                assert_eq!(producer.join().unwrap(), EnqueueResult::Closed);
            }
        });
        assert_eq!(dropped.load(Ordering::Relaxed), 10);
        assert_eq!(scheduler.stats().discarded, 10);
        assert!(scheduler.is_empty());
    }
}

/// A handle cancels its task or nothing, while others dequeue and reuse the same places.
#[test]
fn a_cancelled_task_is_not_delivered_and_a_delivered_one_not_cancelled() {
    for shards in SHARDS {
        let scheduler = scheduler(shards, |_| {});
        let delivered = Mutex::new(HashSet::new());
        let cancelled = Mutex::new(HashSet::new());
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let DequeueResult::Task { task, .. } = scheduler.dequeue_blocking() {
                        assert!(delivered.lock().unwrap().insert(task.payload));
                    }
                });
            }
            let cancellers: Vec<_> = (0..2_u64)
                .map(|canceller| {
                    let (scheduler, cancelled) = (&scheduler, &cancelled);
                    scope.spawn(move || {
                        let mut old = None;
                        for number in 0..5_000 {
                            let number = canceller << 32 | number;
                            let handle = scheduler
                                .submit(TenantKey::from(number % 5), Task::new(number))
                                .unwrap();
                            if scheduler.cancel(handle) == CancelResult::Cancelled {
                                cancelled.lock().unwrap().insert(number);
                            }
                            if let Some(old) = old.replace(handle) {
                                assert_eq!(scheduler.cancel(old), CancelResult::NotFound);
                            }
                        }
                    })
                })
                .collect();
            cancellers
                .into_iter()
                .for_each(|canceller| canceller.join().unwrap());
            scheduler.close_drain();
        });
        let (delivered, cancelled) = (
            delivered.into_inner().unwrap(),
            cancelled.into_inner().unwrap(),
        );
        assert!(delivered.is_disjoint(&cancelled));
        assert_eq!(delivered.len() + cancelled.len(), 10_000);
    }
}

/// Keys are compared, not only hashed.
#[test]
fn tenants_with_the_same_hash_are_not_merged() {
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Clash(u32);
    impl std::hash::Hash for Clash {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            0.hash(state);
        }
    }
    let scheduler: Scheduler<u32, Clash> = Scheduler::new(SchedulerConfig::default()).unwrap();
    for number in 0..100 {
        assert_eq!(
            scheduler.enqueue(Clash(number), Task::new(number)),
            EnqueueResult::Enqueued
        );
    }
    assert_eq!(scheduler.tenants(), 100);
    for _ in 0..100 {
        let (tenant, task) = scheduler.try_dequeue().into_task().unwrap();
        assert_eq!(tenant, Clash(task.payload));
    }
    let _: TenantKey = 7.into();
}
