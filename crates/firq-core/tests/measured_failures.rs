//! The measured failures of firq-core 0.1.3, each as a test that this crate passes.
//!
//! Time stands still in all of them unless a test moves it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use firq_core::{
    BackpressurePolicy, CancelResult, Clock, EnqueueRejectReason, EnqueueResult, ManualClock,
    Priority, Scheduler, SchedulerConfig, Task, TenantKey,
};

fn config<T>() -> SchedulerConfig<T> {
    SchedulerConfig {
        max_global: 1 << 20,
        max_per_tenant: 1 << 20,
        ..SchedulerConfig::default()
    }
}

fn tenant(id: u64) -> TenantKey {
    TenantKey::from(id)
}

fn enqueue<T>(scheduler: &Scheduler<T>, id: u64, task: Task<T>) {
    assert_eq!(scheduler.enqueue(tenant(id), task), EnqueueResult::Enqueued);
}

/// Dequeues `count` tasks and returns the cost that each tenant was served.
fn serve<T>(scheduler: &Scheduler<T>, count: usize) -> HashMap<u64, u64> {
    let mut served = HashMap::new();
    for _ in 0..count {
        let (tenant, task) = scheduler.try_dequeue().into_task().expect("there is work");
        *served.entry(tenant.as_u64()).or_default() += task.cost;
    }
    served
}

/// 91 times the share of others, when one tenant was alone in its shard.
#[test]
fn a_tenant_alone_in_a_shard_gets_no_more_than_a_hundred_in_another() {
    /// A hundred that are all in one shard, and one that is, almost certainly, in another.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Tenant {
        Crowd(u32),
        Lonely,
    }
    impl std::hash::Hash for Tenant {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            matches!(self, Self::Lonely).hash(state);
        }
    }
    for shards in [1, 4, 64] {
        let config = SchedulerConfig {
            shards,
            max_global: 1 << 20,
            ..SchedulerConfig::default()
        };
        let scheduler: Scheduler<(), Tenant> = Scheduler::new(config).unwrap();
        let crowd = (0..100).map(Tenant::Crowd);
        for tenant in crowd.chain([Tenant::Lonely]) {
            for _ in 0..200 {
                let result = scheduler.enqueue(tenant.clone(), Task::new(()));
                assert_eq!(result, EnqueueResult::Enqueued);
            }
        }
        let served = (0..101 * 100).map(|_| scheduler.try_dequeue().into_task().unwrap().0);
        let lonely = served.filter(|tenant| *tenant == Tenant::Lonely).count();
        assert!(
            (99..=101).contains(&lonely),
            "{shards} shards: {lonely} of a fair 100"
        );
    }
}

/// 1.8 to 1.
#[test]
fn quantum_ten_to_one_gives_ten_to_one() {
    for (base, heavy, light) in [(1, 10, 1), (10, 100, 10), (100, 100, 10), (10, 10, 1)] {
        let config = SchedulerConfig {
            quantum: base,
            ..config()
        };
        let scheduler = Scheduler::new(config).unwrap();
        scheduler.set_tenant_quantum(TenantKey::from(1), heavy);
        scheduler.set_tenant_quantum(TenantKey::from(2), light);
        for _ in 0..11_000 {
            enqueue(&scheduler, 1, Task::new(()).with_cost(base));
            enqueue(&scheduler, 2, Task::new(()).with_cost(base));
        }
        let served = serve(&scheduler, 11_000);
        let ratio = served[&1] as f64 / served[&2] as f64;
        assert!(
            (ratio - 10.0).abs() < 0.1,
            "{heavy} to {light} gave {ratio}"
        );
    }
}

/// 5.5 to 1 in work.
#[test]
fn costs_ten_to_one_give_equal_work() {
    for (dear, quantum) in [(10, 1), (10, 10), (100, 1), (7, 3)] {
        let scheduler = Scheduler::new(SchedulerConfig {
            quantum,
            ..config()
        })
        .unwrap();
        for _ in 0..20_000 {
            enqueue(&scheduler, 1, Task::new(()).with_cost(dear));
            enqueue(&scheduler, 2, Task::new(()));
        }
        let served = serve(&scheduler, 10_000);
        let ratio = served[&1] as f64 / served[&2] as f64;
        assert!((ratio - 1.0).abs() < 0.02, "cost {dear} to 1 gave {ratio}");
    }
}

/// 7 times the share.
#[test]
fn expired_tasks_buy_no_share() {
    let clock = ManualClock::new();
    let scheduler = Scheduler::new(config().with_clock(clock.clone())).unwrap();
    for _ in 0..640 {
        let deadline = clock.now() + Duration::from_millis(1);
        enqueue(&scheduler, 0, Task::new(()).with_deadline(deadline));
    }
    clock.advance(Duration::from_secs(1));
    for id in 0..11 {
        for _ in 0..10_000 {
            enqueue(&scheduler, id, Task::new(()));
        }
    }
    let served = serve(&scheduler, 11 * 900);
    assert!((899..=901).contains(&served[&0]), "{served:?}");
    assert_eq!(scheduler.stats().expired, 640);
}

/// `TenantFull` with 60 of 100 cancelled.
#[test]
fn cancelled_tasks_take_no_room() {
    let config = SchedulerConfig {
        max_per_tenant: 100,
        ..config()
    };
    let scheduler = Scheduler::new(config).unwrap();
    let handles: Vec<_> = (0..100)
        .map(|number| {
            scheduler
                .submit(TenantKey::from(1), Task::new(number))
                .unwrap()
        })
        .collect();
    let full = EnqueueResult::Rejected(EnqueueRejectReason::TenantFull);
    assert_eq!(scheduler.enqueue(TenantKey::from(1), Task::new(100)), full);
    for handle in &handles[40..] {
        assert_eq!(scheduler.cancel(*handle), CancelResult::Cancelled);
    }
    for number in 0..60 {
        enqueue(&scheduler, 1, Task::new(number));
    }
    assert_eq!(scheduler.enqueue(TenantKey::from(1), Task::new(100)), full);
}

/// 30,001 payloads in memory.
#[test]
fn cancelled_payloads_are_dropped_at_once() {
    #[derive(Debug)]
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let alive = Arc::new(AtomicUsize::new(0));
    let counted = || {
        alive.fetch_add(1, Ordering::Relaxed);
        Task::new(Counted(Arc::clone(&alive)))
    };
    let scheduler = Scheduler::new(SchedulerConfig {
        max_global: 10,
        ..config()
    });
    let scheduler = scheduler.unwrap();
    enqueue(&scheduler, 1, counted());
    for _ in 0..30_000 {
        let handle = scheduler.submit(TenantKey::from(1), counted()).unwrap();
        assert_eq!(scheduler.cancel(handle), CancelResult::Cancelled);
        assert_eq!(alive.load(Ordering::Relaxed), 1);
    }
}

/// 91 % for the tenant that marks all its work `High`.
#[test]
fn priority_buys_no_share() {
    let scheduler = Scheduler::new(config()).unwrap();
    for id in 0..11 {
        for _ in 0..1_000 {
            let priority = if id == 0 {
                Priority::High
            } else {
                Priority::Normal
            };
            enqueue(&scheduler, id, Task::new(()).with_priority(priority));
        }
    }
    let served = serve(&scheduler, 11 * 500);
    assert!((499..=501).contains(&served[&0]), "{served:?}");
}

/// With the default policy, `Reject`, ten greedy tenants at `max_global` shut out an eleventh that has nothing queued; with
/// `SchedulerConfig::fair` it is admitted.
#[test]
fn by_default_greedy_tenants_shut_out_a_modest_one_and_fair_is_the_cure() {
    let admitted = |config: SchedulerConfig<()>| {
        let scheduler = Scheduler::new(SchedulerConfig {
            max_global: 1_000,
            ..config
        });
        let scheduler = scheduler.unwrap();
        for number in 0..1_000 {
            enqueue(&scheduler, number % 10, Task::new(()));
        }
        let modest = || scheduler.enqueue(TenantKey::from(11), Task::new(()));
        (0..50)
            .filter(|_| modest() == EnqueueResult::Enqueued)
            .count()
    };
    assert_eq!(admitted(SchedulerConfig::default()), 0, "the harm");
    assert_eq!(admitted(SchedulerConfig::fair()), 50, "the cure");
}

/// Ten greedy tenants at `max_global` shut out an eleventh that had nothing queued.
#[test]
fn greedy_tenants_do_not_shut_out_a_modest_one() {
    for shards in [1, 4, 64] {
        let scheduler = Scheduler::new(SchedulerConfig {
            shards,
            max_global: 1_000,
            backpressure: BackpressurePolicy::ShedFair,
            ..config()
        });
        let scheduler = scheduler.unwrap();
        for number in 0..1_000 {
            enqueue(&scheduler, number % 10, Task::new(()));
        }
        // It may queue up to its share of the buffer, and not more.
        let accepted = (0..1_000)
            .filter(|_| {
                scheduler.enqueue(TenantKey::from(11), Task::new(())) == EnqueueResult::Enqueued
            })
            .count();
        assert!(
            (80..=91).contains(&accepted),
            "{shards} shards: {accepted} of a fair 90"
        );
        assert_eq!(scheduler.len(), 1_000);
        for id in 0..10 {
            let left = scheduler.tenant_len(&tenant(id));
            assert!(
                (80..=100).contains(&left),
                "tenant {id} has {left} of a fair 90"
            );
        }
        assert_eq!(scheduler.stats().evicted, accepted as u64);
    }
}
