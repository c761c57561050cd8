//! The same with the batch forms, which only ours has.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use firq_core::{Task, TenantKey};

use super::TENANTS;
use crate::contenders::{Item, Ours};

const BATCH: usize = 64;

/// Returns how many million tasks a second get through.
pub(super) fn through(ours: &Ours, producers: usize, consumers: usize, tasks: usize) -> f64 {
    let each = tasks / producers / BATCH * BATCH;
    let received = AtomicUsize::new(0);
    let start = Barrier::new(producers + consumers);
    let scheduler = ours.scheduler();
    std::thread::scope(|scope| {
        let send = |producer: usize| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                let sent = Instant::now();
                for first in (0..each).step_by(BATCH) {
                    let item = |number: usize| {
                        let tenant = (number * producers + producer) as u64 % TENANTS;
                        (TenantKey::from(tenant), Task::new(Item { tenant, sent }))
                    };
                    // What does not fit is sent again, one by one, and waits for room.
                    for (tenant, rejected) in
                        scheduler.enqueue_batch((first..first + BATCH).map(item))
                    {
                        scheduler
                            .submit(tenant, rejected.into_task())
                            .expect("it waits for room");
                    }
                }
                sent
            })
        };
        let senders: Vec<_> = (0..producers).map(send).collect();
        let workers: Vec<_> = (0..consumers)
            .map(|_| {
                let (start, received) = (&start, &received);
                scope.spawn(move || {
                    start.wait();
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
                    Instant::now()
                })
            })
            .collect();
        let begins = senders
            .into_iter()
            .map(|sender| sender.join().expect("no panic"));
        let begin = begins.min().expect("there are producers");
        let ends = workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"));
        let end = ends.max().expect("there are consumers");
        (each * producers) as f64 / end.duration_since(begin).as_secs_f64() / 1e6
    })
}
