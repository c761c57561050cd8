//! How much memory it takes, counted by the allocator.
#![cfg(test)] // helpers may unwrap, as tests do

use allocation_counter::{AllocationInfo, measure};
use firq_core::{DequeueResult, EnqueueResult, Scheduler, SchedulerConfig, Task, TenantKey};

fn scheduler(idle_tenants_max: usize) -> Scheduler<u64> {
    let config = SchedulerConfig {
        max_global: 1 << 21,
        max_per_tenant: 1 << 21,
        idle_tenants_max,
        ..SchedulerConfig::default()
    };
    Scheduler::new(config).expect("the configuration is valid")
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
fn an_idle_tenant_takes_160_bytes() {
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
            bytes <= 160.0,
            "{tenants} tenants take {bytes:.1} bytes each"
        );
    }
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
