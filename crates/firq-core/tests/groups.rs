//! Tenants in groups: room, pauses, weights, statistics. Their shares are the business of the laws.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use firq_core::{
    BackpressurePolicy, CancelResult, Clock, DequeueResult, DropReason, EnqueueRejectReason,
    ManualClock, Rejected, Scheduler, SchedulerConfig, Task, TaskHandle, TenantPath,
    group_by_first,
};
use proptest::prelude::*;

type Nested = Scheduler<u64, TenantPath>;

const SHARDS: [usize; 3] = [1, 4, 64];

fn scheduler(shards: usize, change: impl FnOnce(&mut SchedulerConfig<u64, TenantPath>)) -> Nested {
    let mut config = SchedulerConfig {
        shards,
        ..SchedulerConfig::fair()
    };
    change(&mut config);
    Scheduler::new(config.with_groups(TenantPath::parent)).unwrap()
}

fn path(text: &str) -> TenantPath {
    TenantPath::parse(text).unwrap()
}

fn submit(scheduler: &Nested, tenant: &str) -> Result<TaskHandle, Option<EnqueueRejectReason>> {
    let submitted = scheduler.submit(path(tenant), Task::new(0));
    submitted.map_err(|rejected| rejected.reason())
}

fn drain(scheduler: &Nested) -> Vec<String> {
    let next = || scheduler.try_dequeue().into_task();
    std::iter::from_fn(next)
        .map(|(tenant, _)| tenant.to_string())
        .collect()
}

/// Returns how many of the names begin with each outermost group.
fn by_root(names: &[String]) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    for name in names {
        *counts.entry(name.split('/').next().unwrap()).or_default() += 1;
    }
    counts
}

#[test]
fn a_tenant_that_splits_gains_neither_service_nor_room() {
    for shards in SHARDS {
        let scheduler = scheduler(shards, |config| {
            config.max_global = 1_000;
            config.max_per_tenant = 1_000;
        });
        for user in 0..1_000 {
            submit(&scheduler, &format!("acme/{user}")).unwrap();
        }
        // Full of acme's tasks, and no key of acme has more than one.
        for task in 0..600 {
            let expected = match task {
                0..500 => None,
                _ => Some(EnqueueRejectReason::GlobalFull),
            };
            let refused = submit(&scheduler, "globex").err().flatten();
            assert_eq!(refused, expected, "task {task}");
        }
        assert_eq!(scheduler.tenant_len(&path("acme")), 500);
        assert_eq!(scheduler.tenant_len(&path("globex")), 500);
        assert_eq!(scheduler.len(), 1_000);
        let served = drain(&scheduler);
        assert_eq!(by_root(&served[..100])["globex"], 50);
    }
}

#[test]
fn the_members_of_a_group_share_its_room_by_their_weights() {
    for shards in SHARDS {
        let scheduler = scheduler(shards, |config| config.max_per_tenant = 40);
        scheduler.set_tenant_quantum(path("acme/alice"), 3);
        for _ in 0..40 {
            submit(&scheduler, "acme/bob").unwrap();
        }
        assert_eq!(
            submit(&scheduler, "acme/bob"),
            Err(Some(EnqueueRejectReason::TenantFull))
        );
        let admitted = (0..40).filter(|_| submit(&scheduler, "acme/alice").is_ok());
        assert_eq!(
            admitted.count(),
            30,
            "three quarters, at the expense of bob"
        );
        assert_eq!(scheduler.tenant_len(&path("acme/bob")), 10);
        assert_eq!(scheduler.tenant_len(&path("acme")), 40);
        assert!(submit(&scheduler, "globex/bob").is_ok());
    }
}

#[test]
fn a_tenant_alone_and_its_first_member_share_the_room() {
    let scheduler = scheduler(4, |config| config.max_global = 10);
    for _ in 0..10 {
        submit(&scheduler, "acme").unwrap();
    }
    for _ in 0..5 {
        submit(&scheduler, "acme/alice").unwrap();
    }
    assert_eq!(
        submit(&scheduler, "acme/alice"),
        Err(Some(EnqueueRejectReason::GlobalFull))
    );
    assert_eq!(scheduler.tenant_len(&path("acme/alice")), 5);
    assert_eq!(scheduler.tenant_len(&path("acme")), 10);
    assert_eq!(scheduler.stats().evicted, 5);
}

#[test]
fn room_is_shared_on_every_level() {
    let scheduler = scheduler(4, |config| config.max_global = 120);
    for user in 0..120 {
        submit(&scheduler, &format!("acme/web/{}", user % 60)).unwrap();
    }
    for _ in 0..100 {
        let _ = submit(&scheduler, "acme/batch/nightly");
        let _ = submit(&scheduler, "globex");
    }
    let len = |name: &str| scheduler.tenant_len(&path(name)) as i64;
    assert_eq!(len("acme") + len("globex"), 120);
    // Lengths are told apart to within an eighth.
    assert!((len("globex") - 60).abs() <= 8, "{}", len("globex"));
    let (web, batch) = (len("acme/web"), len("acme/batch"));
    assert!((web - batch).abs() <= 8, "{web} and {batch}");
}

#[test]
fn a_group_never_has_more_queued_than_it_may() {
    for policy in [
        BackpressurePolicy::Reject,
        BackpressurePolicy::DropOldestPerTenant,
        BackpressurePolicy::DropNewestPerTenant,
        BackpressurePolicy::ShedFair,
    ] {
        let scheduler = scheduler(4, |config| {
            config.backpressure = policy;
            config.max_per_tenant = 20;
            config.max_per_group = Some(50);
        });
        thread::scope(|scope| {
            for producer in 0..4 {
                let scheduler = &scheduler;
                scope.spawn(move || {
                    for task in 0..500 {
                        let _ = submit(scheduler, &format!("acme/{}", (task + producer) % 7));
                        assert!(scheduler.tenant_len(&path("acme")) <= 50);
                        if task % 5 == 0 {
                            let _ = scheduler.try_dequeue();
                        }
                    }
                });
            }
        });
        let members = (0..7).map(|user| scheduler.tenant_len(&path(&format!("acme/{user}"))));
        let members: Vec<usize> = members.collect();
        assert!(members.iter().all(|&len| len <= 20));
        assert_eq!(scheduler.tenant_len(&path("acme")), members.iter().sum());
        assert_eq!(scheduler.len(), members.iter().sum());
        let left = drain(&scheduler).len();
        assert_eq!(left, members.iter().sum());
        assert_eq!(scheduler.tenant_len(&path("acme")), 0);
    }
}

#[test]
fn a_producer_waits_for_room_in_a_group() {
    for shards in SHARDS {
        let scheduler = scheduler(shards, |config| {
            config.max_per_tenant = 2;
            config.backpressure = BackpressurePolicy::Timeout {
                wait: Duration::from_secs(3600),
            };
        });
        submit(&scheduler, "acme/alice").unwrap();
        let cancelled = submit(&scheduler, "acme/bob").unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = ["acme/carol", "acme", "acme/dora/jobs"]
                .map(|tenant| scope.spawn(|| submit(&scheduler, tenant)))
                .into();
            assert_eq!(scheduler.cancel(cancelled), CancelResult::Cancelled);
            let mut served = 0;
            while served < 4 {
                match scheduler.dequeue_blocking() {
                    DequeueResult::Task { .. } => served += 1,
                    other => panic!("{other:?}"),
                }
            }
            for waiter in waiting {
                assert!(waiter.join().unwrap().is_ok());
            }
        });
        assert_eq!(scheduler.tenant_len(&path("acme")), 0);
    }
}

#[test]
fn a_producer_that_waits_for_a_group_is_refused_in_time() {
    let clock = ManualClock::new();
    let mut config = SchedulerConfig {
        max_per_tenant: 1,
        backpressure: BackpressurePolicy::Timeout {
            wait: Duration::ZERO,
        },
        ..SchedulerConfig::default()
    }
    .with_groups(TenantPath::parent);
    config.clock = Arc::new(clock.clone());
    let scheduler: Nested = Scheduler::new(config).unwrap();
    let deadline = clock.now() + Duration::from_secs(1);
    let task = Task::new(0).with_deadline(deadline);
    assert!(scheduler.submit(path("acme/alice"), task).is_ok());
    assert_eq!(
        submit(&scheduler, "acme/bob"),
        Err(Some(EnqueueRejectReason::Timeout))
    );
    clock.advance(Duration::from_secs(2));
    assert!(
        submit(&scheduler, "acme/bob").is_ok(),
        "a task that has expired makes room in its group"
    );
}

#[test]
fn a_pause_of_a_group_binds_its_members_and_no_others() {
    for shards in SHARDS {
        let scheduler = scheduler(shards, |_| {});
        scheduler.pause_tenant(&path("acme")); // before there is a group
        for tenant in ["acme", "acme/alice", "acme/web/bob", "globex"] {
            submit(&scheduler, tenant).unwrap();
        }
        assert_eq!(drain(&scheduler), ["globex"]);
        scheduler.pause_tenant(&path("acme/web"));
        scheduler.resume_tenant(&path("acme"));
        let mut served = drain(&scheduler);
        served.sort();
        assert_eq!(served, ["acme", "acme/alice"]);
        scheduler.resume_tenant(&path("acme/web"));
        assert_eq!(drain(&scheduler), ["acme/web/bob"]);
    }
}

#[test]
fn a_paused_tenant_that_gets_members_stays_paused_with_them() {
    let scheduler = scheduler(4, |_| {});
    submit(&scheduler, "acme").unwrap();
    scheduler.pause_tenant(&path("acme"));
    submit(&scheduler, "acme/alice").unwrap();
    assert_eq!(drain(&scheduler), [""; 0]);
    scheduler.close_drain();
    assert_eq!(drain(&scheduler).len(), 2, "a drain ends all pauses");
}

#[test]
fn a_consumer_is_woken_when_a_group_may_run_again() {
    for shards in SHARDS {
        let scheduler = scheduler(shards, |_| {});
        scheduler.pause_tenant(&path("acme"));
        submit(&scheduler, "acme/alice").unwrap();
        thread::scope(|scope| {
            let consumer = scope.spawn(|| scheduler.dequeue_blocking());
            while scheduler.stats().consumers_waiting == 0 {
                thread::yield_now();
            }
            scheduler.resume_tenant(&path("acme"));
            let next = consumer.join().unwrap().into_task();
            assert_eq!(next.map(|(tenant, _)| tenant), Some(path("acme/alice")));
        });
    }
}

/// Serves 1,200 tasks of two groups of two members each and returns how many each outermost group got of the first 240.
fn contest(scheduler: &Nested) -> (usize, usize) {
    for _ in 0..300 {
        for tenant in ["acme/a", "acme/b", "globex/a", "globex/b"] {
            submit(scheduler, tenant).unwrap();
        }
    }
    let served = drain(scheduler);
    let counts = by_root(&served[..240]);
    (counts["acme"], counts["globex"])
}

#[test]
fn the_quantum_of_a_group_is_set_by_its_name() {
    for (quantum, acme) in [(30, 180), (5, 80), (10, 120)] {
        let before = scheduler(4, |config| {
            config.quantum = 10;
            config.tenant_quanta.insert(path("acme"), quantum);
        });
        let after = scheduler(4, |config| config.quantum = 10);
        submit(&after, "acme/early").unwrap();
        after.set_tenant_quantum(path("acme"), quantum);
        let by_provider = scheduler(4, |config| config.quantum = 10);
        submit(&by_provider, "acme/early").unwrap();
        by_provider.set_quantum_provider(move |tenant| match tenant.as_str() {
            "acme" => Some(quantum),
            _ => None,
        });
        for scheduler in [before, after, by_provider] {
            let (got, _) = contest(&scheduler);
            assert!(got.abs_diff(acme) <= 12, "{got} for a quantum of {quantum}");
            scheduler.clear_tenant_quantum(path("acme"));
        }
    }
}

#[test]
fn work_of_a_groups_own_name_is_one_member_of_it() {
    let scheduler = scheduler(4, |config| config.quantum = 10);
    scheduler.set_tenant_quantum(path("acme"), 25); // a finer scale for all
    for _ in 0..300 {
        for tenant in ["acme", "acme/alice", "globex"] {
            submit(&scheduler, tenant).unwrap();
        }
    }
    let served = drain(&scheduler);
    let of = |name: &str| {
        served[..350]
            .iter()
            .filter(|served| *served == name)
            .count()
    };
    assert!(of("globex").abs_diff(100) <= 10, "{}", of("globex"));
    assert!(of("acme").abs_diff(of("acme/alice")) <= 10);
}

#[test]
fn the_policy_of_a_group_is_that_of_its_members() {
    let scheduler = scheduler(4, |config| {
        config.max_per_tenant = 1;
        config.max_per_group = Some(10);
        let policy = BackpressurePolicy::DropOldestPerTenant;
        config.tenant_backpressure.insert(path("acme"), policy);
    });
    for tenant in ["acme/alice", "globex"] {
        submit(&scheduler, tenant).unwrap();
    }
    assert!(submit(&scheduler, "acme/alice").is_ok());
    assert!(submit(&scheduler, "globex").is_err());
}

#[test]
fn statistics_name_the_busiest_groups() {
    let scheduler = scheduler(4, |config| config.top_tenants_capacity = 2);
    for (tenant, tasks) in [
        ("acme/a", 3),
        ("acme/b", 4),
        ("globex/a", 5),
        ("small/a", 1),
    ] {
        for _ in 0..tasks {
            submit(&scheduler, tenant).unwrap();
        }
    }
    let _ = scheduler.try_dequeue();
    let stats = scheduler.stats();
    assert_eq!(stats.groups.count, 3);
    assert_eq!(scheduler.groups(), 3);
    let top = stats.groups.top.iter();
    let top: Vec<(&str, u64)> = top.map(|top| (top.tenant.as_str(), top.enqueued)).collect();
    assert_eq!(top, [("acme", 7), ("globex", 5)]);
    let text = stats.to_prometheus();
    assert!(text.contains("firq_groups 3\n"));
    assert!(text.contains("firq_top_group_enqueued{group=\"acme\"} 7\n"));
    assert!(text.contains("firq_top_group_queue_length{group=\"globex\"} "));
    assert!(!text.contains("small"), "labels are bounded");
}

#[test]
fn groups_are_forgotten_with_their_members() {
    let scheduler = scheduler(1, |config| config.idle_tenants_max = 0);
    for tenant in 0..1_000 {
        for user in 0..3 {
            submit(&scheduler, &format!("t{tenant}/team/{user}")).unwrap();
        }
        drain(&scheduler);
    }
    assert!(scheduler.tenants() < 50, "{} tenants", scheduler.tenants());
    assert!(scheduler.groups() < 100, "{} groups", scheduler.groups());
}

#[test]
fn pairs_are_fair_between_tenants_and_then_between_routes() {
    let config = SchedulerConfig::fair().with_groups(group_by_first);
    let scheduler: Scheduler<(), (&str, &str)> = Scheduler::new(config).unwrap();
    for _ in 0..100 {
        for key in [
            ("acme", "/a"),
            ("acme", "/b"),
            ("acme", "/c"),
            ("globex", "/a"),
        ] {
            assert!(scheduler.submit(key, Task::new(())).is_ok());
        }
    }
    let mut served = Vec::new();
    scheduler.dequeue_batch(60, &mut served);
    let of = |key| served.iter().filter(|(tenant, _)| *tenant == key).count();
    assert_eq!(of(("globex", "/a")), 30);
    assert_eq!(of(("acme", "/b")), 10);
}

#[test]
fn every_task_of_a_closed_scheduler_is_accounted_for() {
    let drops = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&drops);
    let config = SchedulerConfig::fair()
        .with_groups(TenantPath::parent)
        .with_on_drop(move |dropped: firq_core::Dropped<u64, TenantPath>| {
            noted.lock().unwrap().push((dropped.tenant, dropped.reason));
        });
    let scheduler = Scheduler::new(config).unwrap();
    submit(&scheduler, "acme/alice").unwrap();
    scheduler.close_immediate();
    assert_eq!(
        drops.lock().unwrap()[..],
        [(path("acme/alice"), DropReason::Closed)]
    );
    assert_eq!(scheduler.tenant_len(&path("acme")), 0);
    let closed = scheduler.submit(path("acme/bob"), Task::new(1));
    assert!(matches!(closed, Err(Rejected::Closed { .. })));
}

/// A task of each member in turn, by random choice, into a full scheduler.
fn crowd() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0..NAMES.len(), prop::bool::weighted(0.2)), 1..400)
}

const NAMES: [&str; 8] = ["a", "a/1", "a/2", "a/x/1", "a/x/2", "b", "b/1", "c"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Who is refused has its share of the buffer, on the level at which it competes, to within an eighth.
    #[test]
    fn no_tenant_below_its_share_of_the_buffer_is_refused(
        crowd in crowd(),
        quanta in prop::collection::vec(1_u64..5, NAMES.len()),
        shards in prop::sample::select(vec![1_usize, 4]),
    ) {
        const ROOM: usize = 30;
        let scheduler = scheduler(shards, |config| {
            (config.max_global, config.max_per_tenant) = (ROOM, ROOM);
        });
        let quantum_of: HashMap<&str, u64> = NAMES.into_iter().zip(quanta).collect();
        for (name, quantum) in &quantum_of {
            scheduler.set_tenant_quantum(path(name), *quantum);
        }
        for (pick, serves) in crowd {
            let name = NAMES[pick];
            let is_refused = submit(&scheduler, name).is_err();
            if is_refused {
                prop_assert_eq!(scheduler.len(), ROOM);
                let root = name.split('/').next().unwrap();
                let level = |root: &str| {
                    let len = scheduler.tenant_len(&path(root)) as f64;
                    (len, quantum_of[root] as f64)
                };
                let (len, weight) = level(root);
                for other in ["a", "b", "c"] {
                    let (other_len, other_weight) = level(other);
                    prop_assert!(
                        other == root || (len + 1.0) / weight >= other_len / other_weight * 7.0 / 8.0,
                        "{} has {}, {} has {}", root, len, other, other_len
                    );
                }
            }
            if serves {
                let _ = scheduler.try_dequeue();
            }
        }
    }
}

/// One step of a scheduler's life; the number picks a name.
#[derive(Clone, Copy, Debug)]
enum Step {
    Submit {
        name: usize,
        cost: u64,
        seconds: Option<u8>,
    },
    Dequeue,
    Cancel,
    Pause {
        name: usize,
    },
    Resume {
        name: usize,
    },
    Settle {
        name: usize,
        actual: u64,
    },
    Forget {
        name: usize,
    },
    Weigh {
        name: usize,
        quantum: u64,
    },
    Advance,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || 0..WILD.len();
    let step = prop_oneof![
        8 => (name(), 1_u64..40, prop::option::weighted(0.3, 1_u8..5))
            .prop_map(|(name, cost, seconds)| Step::Submit { name, cost, seconds }),
        6 => Just(Step::Dequeue),
        1 => Just(Step::Cancel),
        1 => name().prop_map(|name| Step::Pause { name }),
        2 => name().prop_map(|name| Step::Resume { name }),
        2 => (name(), 0_u64..200).prop_map(|(name, actual)| Step::Settle { name, actual }),
        2 => name().prop_map(|name| Step::Forget { name }),
        1 => (name(), 1_u64..50).prop_map(|(name, quantum)| Step::Weigh { name, quantum }),
        1 => Just(Step::Advance),
    ];
    prop::collection::vec(step, 1..300)
}

/// Tenants and groups on all levels, some of them both.
const WILD: [&str; 12] = [
    "a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/e", "a/b/x", "a/y", "b", "b/1", "b/2", "c", "d/e/f/g",
];

/// Checks that every group counts the tasks of its members, and the scheduler all tasks.
fn check_books(scheduler: &Nested, queued: &HashMap<&str, usize>) {
    for name in WILD.iter().chain(&["d", "d/e", "d/e/f"]) {
        let within = |other: &&str| other == name || other.starts_with(&format!("{name}/"));
        let members = WILD.iter().filter(|other| within(other));
        let expected: usize = members.map(|other| queued[other]).sum();
        assert_eq!(scheduler.tenant_len(&path(name)), expected, "{name}");
    }
    assert_eq!(scheduler.len(), queued.values().sum::<usize>());
}

fn live(scheduler: &Nested, clock: &ManualClock, steps: Vec<Step>) {
    let mut handles = Vec::new();
    for step in steps {
        match step {
            Step::Submit {
                name,
                cost,
                seconds,
            } => {
                let mut task = Task::new(0).with_cost(cost);
                task.deadline = seconds.map(|s| clock.now() + Duration::from_secs(s.into()));
                if let Ok(handle) = scheduler.submit(path(WILD[name]), task) {
                    handles.push(handle);
                }
            }
            Step::Dequeue => drop(scheduler.try_dequeue()),
            Step::Cancel => drop(handles.pop().map(|handle| scheduler.cancel(handle))),
            Step::Pause { name } => scheduler.pause_tenant(&path(WILD[name])),
            Step::Resume { name } => scheduler.resume_tenant(&path(WILD[name])),
            Step::Settle { name, actual } => scheduler.settle(&path(WILD[name]), 20, actual),
            Step::Forget { name } => drop(scheduler.forget_tenant(&path(WILD[name]))),
            Step::Weigh { name, quantum } => {
                scheduler.set_tenant_quantum(path(WILD[name]), quantum);
            }
            Step::Advance => clock.advance(Duration::from_secs(2)),
        }
        scheduler.expire();
        // Of the tenants alone, since the name of a group counts its members.
        let own = |name: &&'static str| {
            let levels = scheduler.queue_levels(&path(name));
            (*name, levels[0].queued)
        };
        check_books(scheduler, &WILD.iter().map(own).collect());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_of_groups_balance_whatever_happens(
        steps in steps(),
        shards in prop::sample::select(SHARDS.to_vec()),
        policy in prop::sample::select(vec![
            BackpressurePolicy::Reject,
            BackpressurePolicy::DropOldestPerTenant,
            BackpressurePolicy::ShedFair,
        ]),
    ) {
        let clock = ManualClock::new();
        let scheduler = scheduler(shards, |config| {
            config.max_global = 40;
            config.max_per_tenant = 8;
            config.max_per_group = Some(16);
            config.quantum = 10;
            config.idle_tenants_max = 0;
            config.backpressure = policy;
            config.clock = Arc::new(clock.clone());
        });
        live(&scheduler, &clock, steps);
        let left = scheduler.len();
        scheduler.close_drain();
        prop_assert_eq!(drain(&scheduler).len(), left, "a drain ends all pauses");
        prop_assert_eq!(scheduler.tenant_len(&path("a")), 0);
    }
}
