//! A task that passes is one that was enqueued and dequeued within a moment, as far as anything can be seen.
#![cfg(test)] // helpers may unwrap, as tests do

use firq_core::{ManualClock, Scheduler, SchedulerConfig, Task, TenantKey};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Verb {
    /// A task comes; it need not wait if none is queued.
    Come {
        tenant: u64,
        cost: u64,
    },
    /// A task comes that is queued in any case.
    Queue {
        tenant: u64,
        cost: u64,
    },
    Dequeue,
    Settle {
        tenant: u64,
        actual: u64,
    },
    Weigh {
        tenant: u64,
        quantum: u64,
    },
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let (tenant, cost) = (0..6_u64, 1..40_u64);
    let task = (tenant.clone(), cost.clone());
    let verb = prop_oneof![
        4 => task.clone().prop_map(|(tenant, cost)| Verb::Come { tenant, cost }),
        2 => task.clone().prop_map(|(tenant, cost)| Verb::Queue { tenant, cost }),
        5 => Just(Verb::Dequeue),
        1 => task.prop_map(|(tenant, actual)| Verb::Settle { tenant, actual }),
        // Multiples of the base: others make the scale finer, tenant by tenant in the order of their seeded hashes.
        1 => (tenant, 1..6_u64)
            .prop_map(|(tenant, times)| Verb::Weigh { tenant, quantum: 10 * times }),
    ];
    prop::collection::vec(verb, 1..300)
}

/// How a task that need not wait is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Pass,
    Queue,
}

/// What a scheduler shows: the tenant of each task in the order of service, and its counters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    order: Vec<u64>,
    counters: Vec<u64>,
    top: Vec<(u64, u64)>,
    passed: usize,
}

fn play(verbs: &[Verb], (shards, nests): (usize, bool), way: Way) -> Seen {
    let mut config = SchedulerConfig {
        shards,
        quantum: 10,
        ..SchedulerConfig::fair()
    }
    .with_clock(ManualClock::new());
    if nests {
        config = config.with_groups(|tenant: &TenantKey| {
            let tenant = tenant.as_u64();
            (tenant >= 2).then(|| TenantKey::from(tenant % 2))
        });
    }
    let scheduler: Scheduler<()> = Scheduler::new(config).unwrap();
    let mut seen = Seen::default();
    for &verb in verbs {
        match verb {
            Verb::Come { tenant, cost } | Verb::Queue { tenant, cost } => {
                let key = TenantKey::from(tenant);
                let need_not_wait = matches!(verb, Verb::Come { .. }) && scheduler.is_empty();
                if need_not_wait && way == Way::Pass && scheduler.pass(&key, cost) {
                    seen.order.push(tenant);
                    seen.passed += 1;
                    continue;
                }
                assert!(scheduler.submit(key, Task::new(()).with_cost(cost)).is_ok());
                if need_not_wait {
                    let next = scheduler.try_dequeue().into_task();
                    seen.order.extend(next.map(|(tenant, _)| tenant.as_u64()));
                }
            }
            Verb::Dequeue => {
                let next = scheduler.try_dequeue().into_task();
                seen.order.extend(next.map(|(tenant, _)| tenant.as_u64()));
            }
            Verb::Settle { tenant, actual } => {
                scheduler.settle(&TenantKey::from(tenant), 1, actual);
            }
            Verb::Weigh { tenant, quantum } => {
                scheduler.set_tenant_quantum(TenantKey::from(tenant), quantum);
            }
        }
    }
    while let Some((tenant, _)) = scheduler.try_dequeue().into_task() {
        seen.order.push(tenant.as_u64());
    }
    let stats = scheduler.stats();
    let samples = stats.queue_time.samples;
    seen.counters = vec![stats.enqueued, stats.dequeued, samples];
    let top = stats.top_tenants.iter().chain(&stats.groups.top);
    seen.top = top.map(|top| (top.tenant.as_u64(), top.enqueued)).collect();
    seen.top.sort_unstable(); // the order among equals is that of their lanes
    seen
}

proptest! {
    #[test]
    fn a_task_that_passes_changes_no_turn_and_no_count(
        verbs in verbs(),
        shards in prop::sample::select(vec![1_usize, 4]),
        nests in any::<bool>(),
    ) {
        let passed = play(&verbs, (shards, nests), Way::Pass);
        let queued = play(&verbs, (shards, nests), Way::Queue);
        prop_assert_eq!(&passed.order, &queued.order);
        prop_assert_eq!(&passed.counters, &queued.counters);
        prop_assert_eq!(&passed.top, &queued.top);
    }
}

/// A scheduler that knows tenant 1, and one of its own kind.
fn known() -> Scheduler<()> {
    let scheduler = Scheduler::new(SchedulerConfig::fair()).unwrap();
    assert!(scheduler.submit(TenantKey::from(1), Task::new(())).is_ok());
    assert!(scheduler.try_dequeue().into_task().is_some());
    scheduler
}

#[test]
fn none_passes_a_task_that_is_queued() {
    let scheduler = known();
    let handle = scheduler.submit(TenantKey::from(2), Task::new(())).unwrap();
    assert!(!scheduler.pass(&TenantKey::from(1), 1));
    let _ = scheduler.cancel(handle);
    assert!(scheduler.pass(&TenantKey::from(1), 1));
}

#[test]
fn none_passes_while_its_tenant_is_paused() {
    let scheduler = known();
    scheduler.pause_tenant(&TenantKey::from(1));
    assert!(!scheduler.pass(&TenantKey::from(1), 1));
    scheduler.resume_tenant(&TenantKey::from(1));
    assert!(scheduler.pass(&TenantKey::from(1), 1));
}

#[test]
fn none_passes_when_the_scheduler_is_closed() {
    for close in [Scheduler::close_drain, Scheduler::close_immediate] {
        let scheduler = known();
        close(&scheduler);
        assert!(!scheduler.pass(&TenantKey::from(1), 1));
        assert_eq!(scheduler.stats().dequeued, 1);
    }
}

#[test]
fn passing_allocates_nothing_and_reads_no_clock() {
    #[derive(Debug, Default)]
    struct Counted(std::sync::atomic::AtomicU64);
    impl firq_core::Clock for Counted {
        fn now(&self) -> std::time::Instant {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::time::Instant::now()
        }
    }
    let clock = std::sync::Arc::new(Counted::default());
    let config = SchedulerConfig {
        clock: std::sync::Arc::clone(&clock) as std::sync::Arc<dyn firq_core::Clock>,
        ..SchedulerConfig::fair()
    };
    let scheduler: Scheduler<()> = Scheduler::new(config).unwrap();
    let tenant = TenantKey::from(1);
    assert!(scheduler.submit(tenant, Task::new(())).is_ok());
    assert!(scheduler.try_dequeue().into_task().is_some());
    let reads = || clock.0.load(std::sync::atomic::Ordering::Relaxed);
    let before = reads();
    let counted = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            assert!(scheduler.pass(&tenant, 3));
        }
    });
    assert_eq!((counted.count_total, reads() - before), (0, 0));
}
