//! How much memory it takes, counted by the allocator. One test, because the allocator counts for all.

use std::alloc::System;

use cap::Cap;
use firq_core::{DequeueResult, EnqueueResult, Scheduler, SchedulerConfig, Task, TenantKey};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

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

#[test]
fn memory_stays_within_its_bounds() {
    // A queued task: 64 bytes and its payload, here of 8 bytes.
    for tasks in [10_000, 100_000, 1_000_000] {
        let scheduler = scheduler(1 << 12);
        enqueue(&scheduler, 0);
        let before = ALLOCATOR.allocated();
        (0..tasks).for_each(|_| enqueue(&scheduler, 0));
        let each = (ALLOCATOR.allocated() - before) as f64 / tasks as f64;
        println!("{tasks} tasks: {each:.1} bytes each");
        assert!(
            each <= 64.0 + 8.0,
            "{tasks} tasks take {each:.1} bytes each"
        );
    }

    // An idle tenant: 160 bytes, with a key of 8 bytes.
    for tenants in [10_000, 100_000, 1_000_000] {
        let before = ALLOCATOR.allocated();
        let scheduler = scheduler(usize::MAX);
        for tenant in 0..tenants {
            enqueue(&scheduler, tenant);
            drain(&scheduler);
        }
        assert_eq!(scheduler.tenants() as u64, tenants);
        let each = (ALLOCATOR.allocated() - before) as f64 / tenants as f64;
        println!("{tenants} idle tenants: {each:.1} bytes each");
        assert!(each <= 160.0, "{tenants} tenants take {each:.1} bytes each");
    }

    // A million tenants that come once each, beside some that stay.
    let scheduler = scheduler(1 << 12);
    let residents =
        |scheduler: &Scheduler<u64>| (0..5_000).for_each(|tenant| enqueue(scheduler, tenant));
    residents(&scheduler);
    drain(&scheduler);
    let before = ALLOCATOR.allocated();
    for tenant in 10_000..1_010_000 {
        enqueue(&scheduler, tenant);
        drain(&scheduler);
    }
    let after = ALLOCATOR.allocated();
    println!(
        "one-shot tenants: {before} bytes before, {after} after, {} kept",
        scheduler.tenants()
    );
    assert!(
        after <= 2 * before,
        "{before} bytes before, {after} bytes after"
    );

    // The same, all at once.
    (10_000..1_010_000).for_each(|tenant| enqueue(&scheduler, tenant));
    drain(&scheduler);
    for _ in 0..100 {
        residents(&scheduler);
        drain(&scheduler);
    }
    let after = ALLOCATOR.allocated();
    println!(
        "all at once: {before} bytes before, {after} after, {} kept",
        scheduler.tenants()
    );

    // Steady traffic allocates nothing.
    let before = ALLOCATOR.total_allocated();
    for _ in 0..100 {
        residents(&scheduler);
        drain(&scheduler);
    }
    assert_eq!(ALLOCATOR.total_allocated() - before, 0);
}
