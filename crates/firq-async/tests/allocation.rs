//! The hot path asks the allocator for nothing.
#![cfg(test)] // helpers may unwrap, as tests do

use std::pin::pin;
use std::task::{Context, Waker};

use firq_async::{AsyncScheduler, SchedulerConfig, Task, TenantKey};

#[test]
fn enqueueing_and_dequeueing_allocate_nothing_unless_a_producer_waits_for_room() {
    let scheduler: AsyncScheduler<u64> = AsyncScheduler::new(SchedulerConfig::default()).unwrap();
    let pair = async |number: u64| {
        let tenant = TenantKey::from(number % 10);
        let queued = scheduler.enqueue_async(tenant, Task::new(number)).await;
        assert!(queued.is_ok());
        assert!(scheduler.dequeue_async().await.into_task().is_some());
    };
    let pairs = |count| {
        let mut context = Context::from_waker(Waker::noop());
        for number in 0..count {
            assert!(pin!(pair(number)).poll(&mut context).is_ready());
        }
    };
    pairs(1_000); // warms up
    assert_eq!(allocation_counter::measure(|| pairs(100)).count_total, 0);
}
