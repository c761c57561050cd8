//! The same with the batch functions, which the published crate does not have.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use firq_core::{Task, TenantKey};

use super::{TENANTS, race};
use crate::contenders::{Item, Ours};

const BATCH: usize = 64;

/// Returns the throughput in million tasks a second.
pub(super) fn through(ours: &Ours, producers: usize, consumers: usize, tasks: usize) -> f64 {
    let each = tasks / producers / BATCH * BATCH;
    let received = AtomicUsize::new(0);
    let scheduler = ours.scheduler();
    let send = |producer: usize, sent: Instant| {
        let item = |number: usize| {
            let tenant = (number * producers + producer) as u64 % TENANTS;
            (TenantKey::from(tenant), Task::new(Item { tenant, sent }))
        };
        for first in (0..each).step_by(BATCH) {
            // The producer sends tasks without room again, one by one, and waits for room.
            for (tenant, rejected) in scheduler.enqueue_batch((first..first + BATCH).map(item)) {
                let sent = scheduler.submit(tenant, rejected.into_task());
                sent.expect("it waits for room");
            }
        }
    };
    let receive = || {
        let mut tasks = Vec::with_capacity(BATCH);
        while let Some(first) = scheduler.dequeue_blocking().into_task() {
            tasks.push(first);
            scheduler.dequeue_batch(BATCH - 1, &mut tasks);
            let done = received.fetch_add(tasks.len(), Ordering::Relaxed) + tasks.len();
            tasks.clear();
            if done == each * producers {
                scheduler.close_drain();
            }
        }
    };
    let took = race(producers, consumers, send, receive);
    (each * producers) as f64 / took.as_secs_f64() / 1e6
}
