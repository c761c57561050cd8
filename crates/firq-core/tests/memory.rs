//! How much memory it takes, counted by the allocator.
#![cfg(test)] // helpers may unwrap, as tests do

use allocation_counter::{AllocationInfo, measure};
use firq_core::{DequeueResult, EnqueueResult, Scheduler, SchedulerConfig, Task, TenantKey};

fn config(idle_tenants_max: usize) -> SchedulerConfig<u64> {
    SchedulerConfig {
        max_global: 1 << 21,
        max_per_tenant: 1 << 21,
        idle_tenants_max,
        ..SchedulerConfig::default()
    }
}

fn scheduler(idle_tenants_max: usize) -> Scheduler<u64> {
    Scheduler::new(config(idle_tenants_max)).expect("the configuration is valid")
}

/// Tenants nest: the low half of a tenant's number is its group, the high half counts the members from 1.
fn nested(idle_tenants_max: usize) -> Scheduler<u64> {
    let group_of = |tenant: &TenantKey| {
        let (member, group) = (tenant.as_u64() >> 32, tenant.as_u64() & 0xffff_ffff);
        (member > 0).then(|| TenantKey::from(group))
    };
    let nested = config(idle_tenants_max).with_groups(group_of);
    Scheduler::new(nested).expect("the configuration is valid")
}

/// Returns the number of a member of a group.
const fn member(group: u64, number: u64) -> u64 {
    (number + 1) << 32 | group
}

fn enqueue(scheduler: &Scheduler<u64>, tenant: u64) {
    let result = scheduler.enqueue(TenantKey::from(tenant), Task::new(tenant));
    assert_eq!(result, EnqueueResult::Enqueued);
}

fn drain(scheduler: &Scheduler<u64>) {
    while let DequeueResult::Task { .. } = scheduler.try_dequeue() {}
}

/// Returns the bytes that are live after `f` and were not before, for each of `count`.
fn each(count: u64, f: impl FnOnce()) -> f64 {
    let AllocationInfo { bytes_current, .. } = measure(f);
    bytes_current as f64 / count as f64
}

#[test]
fn a_queued_task_takes_64_bytes_and_its_payload() {
    for tasks in [10_000, 100_000, 1_000_000] {
        let scheduler = scheduler(1 << 12);
        enqueue(&scheduler, 0);
        let bytes = each(tasks, || (0..tasks).for_each(|_| enqueue(&scheduler, 0)));
        assert!(
            bytes <= 64.0 + 8.0,
            "{tasks} tasks take {bytes:.1} bytes each"
        );
    }
}

#[test]
fn an_idle_tenant_takes_120_bytes() {
    for tenants in [10_000, 100_000, 1_000_000] {
        let scheduler = scheduler(usize::MAX);
        let bytes = each(tenants, || {
            for tenant in 0..tenants {
                enqueue(&scheduler, tenant);
                drain(&scheduler);
            }
        });
        assert_eq!(scheduler.tenants() as u64, tenants);
        assert!(
            bytes <= 120.0,
            "{tenants} tenants take {bytes:.1} bytes each"
        );
    }
}

#[test]
fn an_idle_tenant_in_a_group_takes_180_bytes_and_in_one_of_its_own_320() {
    for tenants in [10_000, 100_000, 1_000_000] {
        let scheduler = nested(usize::MAX);
        let of_one_group = each(tenants, || {
            for tenant in 0..tenants {
                enqueue(&scheduler, member(0, tenant));
                drain(&scheduler);
            }
        });
        assert_eq!(
            (scheduler.tenants() as u64, scheduler.groups()),
            (tenants, 1)
        );
        assert!(
            of_one_group <= 180.0,
            "{tenants} members take {of_one_group:.1} bytes each"
        );
        let scheduler = nested(usize::MAX);
        let alone = each(tenants, || {
            for tenant in 0..tenants {
                enqueue(&scheduler, member(tenant, 0));
                drain(&scheduler);
            }
        });
        assert_eq!(scheduler.groups() as u64, tenants);
        assert!(
            alone <= 320.0,
            "{tenants} groups of one member take {alone:.1} bytes each"
        );
    }
}

#[test]
fn a_group_takes_no_more_while_its_only_member_has_a_task() {
    for tenants in [10_000, 100_000] {
        let scheduler = nested(usize::MAX);
        let bytes = each(tenants, || {
            (0..tenants).for_each(|tenant| enqueue(&scheduler, member(tenant, 0)));
        });
        assert!(
            bytes <= 320.0 + 64.0 + 8.0,
            "{tenants} groups of one member and its task take {bytes:.1} bytes each"
        );
    }
}

#[test]
fn groups_that_come_once_leave_nothing_behind() {
    let mut made = None;
    let before = measure(|| {
        let scheduler = made.insert(nested(1 << 12));
        (0..5_000).for_each(|tenant| enqueue(scheduler, member(tenant, tenant)));
        drain(scheduler);
    });
    let scheduler = made.expect("just made");
    let since = measure(|| {
        for tenant in 10_000..210_000 {
            enqueue(&scheduler, member(tenant, tenant));
            drain(&scheduler);
        }
    });
    assert!(
        since.bytes_current <= before.bytes_current / 2,
        "{} bytes before, {} more after",
        before.bytes_current,
        since.bytes_current
    );
}

#[test]
fn steady_traffic_in_groups_allocates_nothing() {
    let scheduler = nested(1 << 13); // all of them are kept
    let round = || {
        for tenant in 0..5_000 {
            enqueue(&scheduler, member(tenant % 100, tenant));
        }
        drain(&scheduler);
    };
    (0..100).for_each(|_| round());
    let steady = measure(|| (0..100).for_each(|_| round()));
    assert_eq!(steady.count_total, 0);
}

/// Queues one task for each of the tenants that stay.
fn residents(scheduler: &Scheduler<u64>) {
    (0..5_000).for_each(|tenant| enqueue(scheduler, tenant));
}

#[test]
fn a_million_tenants_that_come_once_leave_nothing_behind() {
    let mut made = None;
    let before = measure(|| {
        let scheduler = made.insert(scheduler(1 << 12));
        residents(scheduler);
        drain(scheduler);
    });
    let scheduler = made.expect("just made");
    let since = measure(|| {
        for tenant in 10_000..1_010_000 {
            enqueue(&scheduler, tenant);
            drain(&scheduler);
        }
    });
    assert!(
        since.bytes_current <= before.bytes_current,
        "{} bytes before, {} more after",
        before.bytes_current,
        since.bytes_current
    );
}

#[test]
fn steady_traffic_allocates_nothing() {
    let scheduler = scheduler(1 << 12);
    let round = || {
        residents(&scheduler);
        drain(&scheduler);
    };
    (0..100).for_each(|_| round());
    let steady = measure(|| (0..100).for_each(|_| round()));
    assert_eq!(steady.count_total, 0);
}
