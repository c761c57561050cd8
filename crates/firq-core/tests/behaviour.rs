//! What each verb does, one behaviour at a time. Time stands still unless a test moves it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firq_core::{
    BackpressurePolicy, CancelResult, Clock, CloseMode, ConfigError, DequeueResult, DropReason,
    EnqueueRejectReason, EnqueueResult, EnqueueWithHandleResult, ManualClock, PreciseClock,
    Priority, Rejected, Scheduler, SchedulerConfig, Task, TenantKey,
};

type Drops = Arc<Mutex<Vec<(u64, u64, DropReason)>>>;

struct World {
    scheduler: Scheduler<u64>,
    clock: ManualClock,
    drops: Drops,
}

fn world(change: impl FnOnce(&mut SchedulerConfig<u64>)) -> World {
    let clock = ManualClock::new();
    let drops = Drops::default();
    let noted = Arc::clone(&drops);
    let mut config = SchedulerConfig::<u64>::default()
        .with_clock(clock.clone())
        .with_on_drop(move |drop| {
            let note = (drop.tenant.as_u64(), drop.task.payload, drop.reason);
            noted.lock().expect("no test panics here").push(note);
        });
    change(&mut config);
    World {
        scheduler: Scheduler::new(config).expect("the configuration is valid"),
        clock,
        drops,
    }
}

impl World {
    fn enqueue(&self, tenant: u64, payload: u64) {
        let result = self
            .scheduler
            .enqueue(TenantKey::from(tenant), Task::new(payload));
        assert_eq!(result, EnqueueResult::Enqueued);
    }

    fn next(&self) -> Option<u64> {
        let next = self.scheduler.try_dequeue().into_task();
        next.map(|(_, task)| task.payload)
    }

    fn rest(&self) -> Vec<u64> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn drops(&self) -> Vec<(u64, u64, DropReason)> {
        std::mem::take(&mut self.drops.lock().expect("no test panics here"))
    }
}

fn rejected(reason: EnqueueRejectReason) -> EnqueueResult {
    EnqueueResult::Rejected(reason)
}

#[test]
fn a_task_comes_back_as_it_went_in() {
    let World {
        scheduler, clock, ..
    } = world(|_| {});
    clock.advance(Duration::from_millis(5));
    let deadline = clock.now() + Duration::from_secs(1);
    let task = Task::new(7)
        .with_cost(3)
        .with_priority(Priority::Low)
        .with_deadline(deadline);
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), task),
        EnqueueResult::Enqueued
    );
    let enqueued = clock.now();
    clock.advance(Duration::from_secs(1));
    let (tenant, task) = scheduler
        .try_dequeue()
        .into_task()
        .expect("at its deadline it is still good");
    assert_eq!(tenant, TenantKey::from(1));
    assert_eq!(
        (task.payload, task.cost, task.priority),
        (7, 3, Priority::Low)
    );
    assert_eq!((task.enqueue_ts, task.deadline), (enqueued, Some(deadline)));
    let stats = scheduler.stats();
    assert_eq!(stats.queue_time.max, Duration::from_secs(1));
    assert_eq!(stats.queue_time_mean(), Duration::from_secs(1));
}

#[test]
fn queue_times_are_those_of_a_sample_unless_the_clock_is_precise() {
    let pass = |config: SchedulerConfig<u64>| {
        let scheduler = Scheduler::new(config).unwrap();
        for number in 0..1_600 {
            assert!(
                scheduler
                    .submit(TenantKey::from(1), Task::new(number))
                    .is_ok()
            );
            assert!(scheduler.try_dequeue().into_task().is_some());
        }
        scheduler.stats().queue_time.samples
    };
    let samples = pass(SchedulerConfig::default());
    assert!((100..=1_600).contains(&samples), "{samples} samples");
    let precise = SchedulerConfig::default().with_clock(PreciseClock);
    assert_eq!(pass(precise), 1_600);
}

#[test]
fn a_deadline_is_exact_whatever_the_precision() {
    let scheduler = Scheduler::new(SchedulerConfig::default()).unwrap();
    for number in 0..1_000 {
        let deadline = Instant::now() + Duration::from_micros(5);
        let task = Task::new(number).with_deadline(deadline);
        assert!(scheduler.submit(TenantKey::from(1), task).is_ok());
        while Instant::now() <= deadline {}
        assert!(
            scheduler.try_dequeue().into_task().is_none(),
            "it has expired"
        );
    }
    assert_eq!(scheduler.stats().expired, 1_000);
}

#[test]
fn priority_orders_the_work_of_a_tenant() {
    let World { scheduler, .. } = world(|_| {});
    for (payload, priority) in [
        (1, Priority::Low),
        (2, Priority::Normal),
        (3, Priority::High),
        (4, Priority::Normal),
        (5, Priority::High),
    ] {
        assert!(
            scheduler
                .submit(
                    TenantKey::from(1),
                    Task::new(payload).with_priority(priority)
                )
                .is_ok()
        );
    }
    let order: Vec<u64> = std::iter::from_fn(|| scheduler.try_dequeue().into_task())
        .map(|(_, task)| task.payload)
        .collect();
    assert_eq!(order, [3, 5, 2, 4, 1]);
}

#[test]
fn a_full_tenant_is_rejected_and_gets_its_task_back() {
    let world = world(|config| config.max_per_tenant = 2);
    world.enqueue(1, 1);
    world.enqueue(1, 2);
    match world.scheduler.submit(TenantKey::from(1), Task::new(3)) {
        Err(Rejected::Full {
            reason: EnqueueRejectReason::TenantFull,
            task,
        }) => assert_eq!(task.payload, 3),
        other => panic!("{other:?}"),
    }
    world.enqueue(2, 9);
    let result = world
        .scheduler
        .enqueue_with_handle(TenantKey::from(1), Task::new(3));
    assert_eq!(
        result,
        EnqueueWithHandleResult::Rejected(EnqueueRejectReason::TenantFull)
    );
    assert_eq!(world.scheduler.stats().dropped, 2);
    assert_eq!(world.scheduler.stats().rejected_tenant_full, 2);
}

#[test]
fn the_oldest_gives_way() {
    let world = world(|config| {
        config.max_per_tenant = 2;
        config.backpressure = BackpressurePolicy::DropOldestPerTenant;
    });
    (1..=4).for_each(|payload| world.enqueue(1, payload));
    assert_eq!(
        world.drops(),
        [(1, 1, DropReason::Evicted), (1, 2, DropReason::Evicted)]
    );
    assert_eq!(world.rest(), [3, 4]);
    assert_eq!(world.scheduler.stats().evicted, 2);
}

#[test]
fn the_newest_gives_way() {
    let world = world(|config| {
        config.max_per_tenant = 2;
        config.backpressure = BackpressurePolicy::DropNewestPerTenant;
    });
    (1..=4).for_each(|payload| world.enqueue(1, payload));
    assert_eq!(
        world.drops(),
        [(1, 2, DropReason::Evicted), (1, 3, DropReason::Evicted)]
    );
    assert_eq!(world.rest(), [1, 4]);
}

#[test]
fn urgent_work_does_not_give_way_to_less_urgent() {
    let World { scheduler, .. } = world(|config| {
        config.max_per_tenant = 1;
        config.backpressure = BackpressurePolicy::DropOldestPerTenant;
    });
    let urgent = Task::new(1).with_priority(Priority::High);
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), urgent),
        EnqueueResult::Enqueued
    );
    let low = Task::new(2).with_priority(Priority::Low);
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), low),
        rejected(EnqueueRejectReason::TenantFull)
    );
    let urgent = Task::new(3).with_priority(Priority::High);
    assert_eq!(
        scheduler.enqueue(TenantKey::from(1), urgent),
        EnqueueResult::Enqueued
    );
}

#[test]
fn when_all_is_full_a_tenant_displaces_only_its_own() {
    let world = world(|config| {
        config.max_global = 2;
        config.backpressure = BackpressurePolicy::DropOldestPerTenant;
    });
    world.enqueue(1, 1);
    world.enqueue(2, 2);
    world.enqueue(1, 3);
    let result = world.scheduler.enqueue(TenantKey::from(3), Task::new(4));
    assert_eq!(result, rejected(EnqueueRejectReason::GlobalFull));
    assert_eq!(world.drops(), [(1, 1, DropReason::Evicted)]);
    assert_eq!(world.scheduler.len(), 2);
}

#[test]
fn shedding_follows_the_quanta() {
    let world = world(|config| {
        config.max_global = 100;
        config.backpressure = BackpressurePolicy::ShedFair;
        config.tenant_quanta.insert(TenantKey::from(1), 9);
    });
    (0..90).for_each(|payload| world.enqueue(1, payload));
    (0..10).for_each(|payload| world.enqueue(2, payload));
    // Tenant 1 has nine shares of the buffer, so neither is above its share.
    let result = world.scheduler.enqueue(TenantKey::from(2), Task::new(0));
    assert_eq!(result, rejected(EnqueueRejectReason::GlobalFull));
    world.enqueue(3, 0);
    let (_, evicted, reason) = world.drops()[0];
    assert_eq!(reason, DropReason::Evicted);
    assert!([89, 9].contains(&evicted), "the newest goes, not {evicted}");
}

#[test]
fn a_tenant_can_have_a_policy_of_its_own() {
    let world = world(|config| {
        config.max_per_tenant = 1;
        let own = BackpressurePolicy::DropOldestPerTenant;
        config.tenant_backpressure.insert(TenantKey::from(1), own);
    });
    world.enqueue(1, 1);
    world.enqueue(1, 2);
    world.enqueue(2, 3);
    let result = world.scheduler.enqueue(TenantKey::from(2), Task::new(4));
    assert_eq!(result, rejected(EnqueueRejectReason::TenantFull));
}

#[test]
fn expired_work_returns_its_room_without_a_consumer() {
    for shards in [1, 64] {
        let world = world(|config| {
            config.shards = shards;
            config.max_global = 1_000;
        });
        let deadline = world.clock.now() + Duration::from_secs(1);
        for payload in 0..1_000 {
            let task = Task::new(payload).with_deadline(deadline);
            assert_eq!(
                world.scheduler.enqueue(TenantKey::from(payload % 50), task),
                EnqueueResult::Enqueued
            );
        }
        world.clock.advance(Duration::from_secs(1));
        assert_eq!(
            world.scheduler.enqueue(TenantKey::from(99), Task::new(0)),
            rejected(EnqueueRejectReason::GlobalFull)
        );
        world.clock.advance(Duration::from_nanos(1));
        world.enqueue(99, 0);
        assert_eq!(world.scheduler.stats().queue_len_estimate, 1);
        assert_eq!(world.scheduler.stats().expired, 1_000);
        assert_eq!(world.drops().len(), 1_000);
        assert_eq!(world.rest(), [0]);
    }
}

#[test]
fn expired_work_makes_room_for_its_own_tenant() {
    let world = world(|config| config.max_per_tenant = 300);
    let deadline = world.clock.now() + Duration::from_secs(1);
    for payload in 0..300 {
        assert!(
            world
                .scheduler
                .submit(
                    TenantKey::from(1),
                    Task::new(payload).with_deadline(deadline)
                )
                .is_ok()
        );
    }
    world.clock.advance(Duration::from_secs(2));
    world.enqueue(1, 7);
    assert_eq!(world.rest(), [7]);
}

#[test]
fn a_task_that_comes_too_late_expires_at_once() {
    let world = world(|_| {});
    world.clock.advance(Duration::from_secs(1));
    let late = Task::new(5).with_deadline(world.clock.now() - Duration::from_millis(1));
    let handle = world.scheduler.submit(TenantKey::from(1), late).unwrap();
    assert_eq!(world.drops(), [(1, 5, DropReason::Expired)]);
    assert_eq!(world.scheduler.cancel(handle), CancelResult::NotFound);
    assert_eq!((world.scheduler.len(), world.next()), (0, None));
}

#[test]
fn expire_reports_expired_tasks_without_a_dequeue() {
    let world = world(|config| config.shards = 4);
    let deadline = world.clock.now() + Duration::from_secs(1);
    for tenant in 0..10 {
        let task = Task::new(tenant).with_deadline(deadline);
        assert!(
            world
                .scheduler
                .submit(TenantKey::from(tenant), task)
                .is_ok()
        );
    }
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(
        world.scheduler.expire(),
        0,
        "the deadline itself is in time"
    );
    world.clock.advance(Duration::from_nanos(1));
    assert_eq!(world.scheduler.expire(), 10);
    assert_eq!(world.drops().len(), 10);
    assert!(world.scheduler.is_empty());
}

#[test]
fn a_caller_that_decides_about_admission_has_its_rejections_counted() {
    let world = world(|_| {});
    let given_back = world
        .scheduler
        .reject(EnqueueRejectReason::Timeout, Task::new(7));
    assert_eq!(given_back.reason(), Some(EnqueueRejectReason::Timeout));
    assert_eq!(given_back.into_task().payload, 7);
    assert_eq!(world.scheduler.stats().rejected_timeout, 1);
}

#[test]
fn a_stale_handle_is_not_found_also_when_its_place_is_taken() {
    let World { scheduler, .. } = world(|_| {});
    let first = scheduler.submit(TenantKey::from(1), Task::new(1)).unwrap();
    assert_eq!(scheduler.cancel_and_return(first).unwrap().payload, 1);
    let second = scheduler.submit(TenantKey::from(1), Task::new(2)).unwrap();
    assert_ne!(first, second);
    assert_eq!(scheduler.cancel(first), CancelResult::NotFound);
    let other: Scheduler<u64> = Scheduler::new(SchedulerConfig::default()).unwrap();
    let foreign = other.submit(TenantKey::from(1), Task::new(3)).unwrap();
    assert_eq!(scheduler.cancel(foreign), CancelResult::NotFound);
    assert_eq!(other.cancel(second), CancelResult::NotFound);
    assert_eq!(scheduler.cancel(second), CancelResult::Cancelled);
    assert_eq!(scheduler.stats().cancelled, 2);
}

#[test]
fn draining_delivers_the_rest_and_takes_nothing() {
    let world = world(|_| {});
    world.enqueue(1, 1);
    world.scheduler.pause_tenant(&TenantKey::from(1));
    world.scheduler.close_with_mode(CloseMode::Drain);
    assert_eq!(
        world.scheduler.enqueue(TenantKey::from(1), Task::new(2)),
        EnqueueResult::Closed
    );
    let rejected = world
        .scheduler
        .submit(TenantKey::from(1), Task::new(3))
        .unwrap_err();
    assert_eq!((rejected.reason(), rejected.into_task().payload), (None, 3));
    assert_eq!(world.next(), Some(1), "paused tenants run again");
    assert_eq!(world.scheduler.try_dequeue(), DequeueResult::Closed);
    assert_eq!(world.scheduler.dequeue_blocking(), DequeueResult::Closed);
}

#[test]
fn a_full_tenant_is_told_that_the_scheduler_is_closed() {
    for policy in [
        BackpressurePolicy::Reject,
        BackpressurePolicy::ShedFair,
        BackpressurePolicy::DropOldestPerTenant,
        BackpressurePolicy::DropNewestPerTenant,
        BackpressurePolicy::Timeout {
            wait: Duration::from_secs(1),
        },
    ] {
        let world = world(|config| {
            config.max_per_tenant = 2;
            config.backpressure = policy;
        });
        world.enqueue(1, 0);
        world.enqueue(1, 1);
        world.scheduler.close_drain();
        let late = world.scheduler.submit(TenantKey::from(1), Task::new(2));
        assert!(matches!(late, Err(Rejected::Closed { .. })), "{policy:?}");
        assert_eq!(world.drops(), [], "nothing gives way to it");
        assert_eq!(world.rest(), [0, 1]);
    }
}

#[test]
fn a_drain_can_be_cut_short() {
    let world = world(|_| {});
    world.enqueue(1, 1);
    world.scheduler.close_drain();
    assert!(world.scheduler.is_closed());
    world.scheduler.close();
    assert_eq!(world.drops(), [(1, 1, DropReason::Closed)]);
    assert_eq!(world.scheduler.try_dequeue(), DequeueResult::Closed);
}

#[test]
fn a_paused_tenant_waits_and_others_do_not() {
    let world = world(|_| {});
    let paused = TenantKey::from(1);
    world.scheduler.pause_tenant(&paused);
    world.enqueue(1, 1);
    world.enqueue(2, 2);
    assert_eq!((world.next(), world.next()), (Some(2), None));
    world.scheduler.resume_tenant(&paused);
    assert_eq!(world.next(), Some(1));
}

#[test]
fn a_quantum_acts_on_the_backlog_and_can_be_taken_back() {
    let world = world(|config| config.quantum = 100);
    let served = |count: usize| {
        let tasks = (0..count).map(|_| world.scheduler.try_dequeue().into_task().unwrap());
        tasks.filter(|(tenant, _)| tenant.as_u64() == 1).count()
    };
    for _ in 0..2_000 {
        for tenant in [1, 2] {
            let task = Task::new(0).with_cost(100);
            assert_eq!(
                world.scheduler.enqueue(TenantKey::from(tenant), task),
                EnqueueResult::Enqueued
            );
        }
    }
    assert!(served(100).abs_diff(50) <= 1);
    world.scheduler.set_tenant_quantum(TenantKey::from(1), 300);
    assert!(served(400).abs_diff(300) <= 3);
    world.scheduler.set_tenant_quantum(TenantKey::from(1), 50);
    assert!(
        served(300).abs_diff(100) <= 3,
        "also for less than the base"
    );
    world.scheduler.clear_tenant_quantum(TenantKey::from(1));
    assert!(served(100).abs_diff(50) <= 2);
    world
        .scheduler
        .set_quantum_provider(|tenant| (tenant.as_u64() == 1).then_some(400));
    assert!(served(500).abs_diff(400) <= 4);
    world.scheduler.set_tenant_quantum(TenantKey::from(1), 100);
    assert!(
        served(100).abs_diff(50) <= 2,
        "what is set goes before what is provided"
    );
}

#[test]
fn settling_charges_what_work_really_cost() {
    let world = world(|config| config.max_per_tenant = 1 << 20);
    for _ in 0..20_000 {
        world.enqueue(1, 1);
        world.enqueue(2, 10);
    }
    let mut time = [0, 0];
    for _ in 0..10_000 {
        let (tenant, task) = world.scheduler.try_dequeue().into_task().unwrap();
        world.scheduler.settle(&tenant, task.cost, task.payload);
        time[tenant.as_u64() as usize - 1] += task.payload;
    }
    let ratio = time[0] as f64 / time[1] as f64;
    assert!((ratio - 1.0).abs() < 0.02, "{time:?}");
}

#[test]
fn batches_keep_the_order_of_service() {
    let world = world(|config| {
        config.max_per_tenant = 100;
        config.max_global = 250;
    });
    let tasks = (0..300).map(|number| (TenantKey::from(number % 3), Task::new(number)));
    let rejected = world.scheduler.enqueue_batch(tasks);
    assert_eq!(rejected.len(), 50);
    assert!(
        rejected
            .iter()
            .all(|(_, task)| task.reason() == Some(EnqueueRejectReason::GlobalFull))
    );
    let mut tasks = Vec::new();
    assert_eq!(world.scheduler.dequeue_batch(200, &mut tasks), 200);
    for window in tasks.chunks(3).skip(1).take(60) {
        let mut tenants: Vec<u64> = window.iter().map(|(tenant, _)| tenant.as_u64()).collect();
        tenants.sort_unstable();
        assert_eq!(tenants, [0, 1, 2]);
    }
    assert_eq!(world.scheduler.dequeue_batch(200, &mut tasks), 50);
    assert_eq!(world.scheduler.dequeue_batch(1, &mut tasks), 0);
}

#[test]
fn statistics_name_the_busiest_tenants() {
    let world = world(|config| config.top_tenants_capacity = 2);
    for (tenant, tasks) in [(1, 5), (2, 50), (3, 7)] {
        (0..tasks).for_each(|payload| world.enqueue(tenant, payload));
    }
    let stats = world.scheduler.stats();
    let top: Vec<(u64, u64, usize)> = stats
        .top_tenants
        .iter()
        .map(|top| (top.tenant.as_u64(), top.enqueued, top.queue_len))
        .collect();
    assert_eq!(top, [(2, 50, 50), (3, 7, 7)]);
    assert_eq!((stats.tenants, stats.queue_len_estimate), (3, 62));
    assert!(stats.saturation() > 0.0);
}

#[test]
fn keys_can_be_of_any_type() {
    let scheduler: Scheduler<u8, (String, u16)> =
        Scheduler::new(SchedulerConfig::default()).unwrap();
    let tenant = ("acme".to_owned(), 7);
    assert_eq!(
        scheduler.enqueue(tenant.clone(), Task::new(1)),
        EnqueueResult::Enqueued
    );
    assert_eq!(scheduler.tenant_len(&tenant), 1);
    assert_eq!(scheduler.try_dequeue().into_task().unwrap().0, tenant);
}

#[test]
fn a_wrong_configuration_is_refused() {
    let config = SchedulerConfig::<()> {
        max_global: 0,
        ..SchedulerConfig::default()
    };
    let ConfigError::OutOfRange { field, .. } = Scheduler::new(config).unwrap_err() else {
        panic!("another error")
    };
    assert_eq!(field, "max_global");
}

#[test]
fn a_scheduler_can_be_shared_between_threads() {
    fn shared<S: Send + Sync>() {}
    shared::<Scheduler<Vec<u8>>>();
    shared::<Scheduler<Box<dyn FnOnce() + Send>, String>>();
}

#[test]
fn an_observer_may_call_back() {
    // It is called without any lock being held.
    let scheduler: Arc<std::sync::OnceLock<Arc<Scheduler<u64>>>> = Arc::default();
    let back = Arc::clone(&scheduler);
    let config = SchedulerConfig {
        max_per_tenant: 1,
        backpressure: BackpressurePolicy::DropOldestPerTenant,
        ..SchedulerConfig::default()
    };
    let config = config.with_on_drop(move |drop| {
        let scheduler = back.get().unwrap();
        assert_eq!(
            scheduler.enqueue(TenantKey::from(99), Task::new(drop.task.payload)),
            EnqueueResult::Enqueued
        );
        assert_eq!(scheduler.stats().evicted, 1);
    });
    let ours = Arc::new(Scheduler::new(config).unwrap());
    scheduler.set(Arc::clone(&ours)).unwrap();
    for payload in [1, 2] {
        assert_eq!(
            ours.enqueue(TenantKey::from(1), Task::new(payload)),
            EnqueueResult::Enqueued
        );
    }
    assert_eq!(ours.tenant_len(&TenantKey::from(99)), 1);
}

#[test]
fn the_crate_depends_on_no_runtime_and_on_nothing_that_does_io() {
    let manifest = include_str!("../Cargo.toml");
    let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap();
    let section = rest.split("\n[").next().unwrap();
    let names: Vec<&str> = section
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["drr", "foldhash", "hashbrown", "thiserror"]);
}

/// Modules of `std` that can neither read, write, send, run a program nor see its surroundings.
const WITHOUT_IO: [&str; 17] = [
    "array",
    "borrow",
    "cell",
    "cmp",
    "collections",
    "error",
    "fmt",
    "hash",
    "iter",
    "mem",
    "num",
    "ops",
    "str",
    "sync",
    "task",
    "thread",
    "time",
];

/// Returns what a text takes from `std`: the names that follow `std::`.
fn taken_from_std(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut parts = text.split("std::");
    let mut before = parts.next().unwrap_or_default();
    parts.filter_map(move |rest| {
        let is_path = !before.ends_with(is_word);
        before = rest;
        is_path.then(|| rest.split(|c| !is_word(c)).next().unwrap_or_default())
    })
}

#[test]
fn the_sources_use_nothing_of_std_that_does_io_and_print_nothing() {
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            let path = path.display();
            for name in taken_from_std(&text) {
                assert!(WITHOUT_IO.contains(&name), "std::{name} in {path}");
            }
            for forbidden in [
                "print!", "println!", "eprint", "dbg!", "extern ", "use std ",
            ] {
                assert!(!text.contains(forbidden), "{forbidden} in {path}");
            }
        }
    }
    assert!(files > 20, "{files} files: these are not the sources");
}

#[test]
fn what_is_taken_from_std_is_found() {
    let text = "use std::{fs, io}; std::net::TcpStream; not_std::fs; ::std::process::exit(1)";
    let found: Vec<&str> = taken_from_std(text).collect();
    assert_eq!(
        found,
        ["", "net", "process"],
        "groups are not known, and refused"
    );
}

#[test]
fn the_specified_fields_make_a_task_and_a_configuration() {
    let config = SchedulerConfig {
        shards: 4,
        max_global: 100,
        max_per_tenant: 10,
        quantum: 1,
        backpressure: BackpressurePolicy::Reject,
        ..SchedulerConfig::default()
    };
    let scheduler: Result<Scheduler<&str>, ConfigError> = Scheduler::new(config);
    let task = Task {
        payload: "work",
        enqueue_ts: std::time::Instant::now(),
        deadline: None,
        cost: 3,
        priority: Priority::Normal,
    };
    assert_eq!(
        task,
        Task {
            enqueue_ts: task.enqueue_ts,
            ..Task::new("work").with_cost(3)
        }
    );
    let result = scheduler.unwrap().enqueue(TenantKey::from(1), task);
    assert_eq!(result, EnqueueResult::Enqueued);
}
