//! Memory, counted by the allocator.

use std::time::Instant;

use allocation_counter::measure;

use crate::Effort;
use crate::contenders::{Contender, Item, Ours, Rival, Room};
use crate::report::{Cell, Report};

pub(crate) fn run(effort: Effort) -> Vec<Report> {
    let size = match effort {
        Effort::Full => 300_000,
        Effort::Quick => 10_000,
    };
    let room = Room {
        total: size + 16,
        per_tenant: size + 16,
        shards: 1,
    };
    let rival = || -> Box<dyn Contender> { Box::new(Rival::new(room, false)) };
    let ours = || -> Box<dyn Contender> {
        Box::new(Ours::new(room, firq_core::BackpressurePolicy::Reject))
    };
    let rows = [&rival as &dyn Fn() -> Box<dyn Contender>, &ours].map(|make| {
        vec![
            Cell::text(make().name()),
            Cell::Number(per_task(make, size), 0),
            Cell::Number(after_one_shot_tenants(make, size) / size as f64, 1),
        ]
    });
    vec![Report {
        title: "Memory: bytes".to_owned(),
        note: "Live bytes after filling one tenant's queue with tasks whose payload is 24 bytes, and after 300,000 \
               tenants have each sent one task that was served. Ours keeps a bounded number of idle tenants.",
        columns: vec!["queue", "per queued task", "per tenant that came and went"],
        rows: rows.into(),
    }]
}

fn per_task(make: &dyn Fn() -> Box<dyn Contender>, size: usize) -> f64 {
    let used = measure(|| {
        let contender = make();
        for _ in 0..size {
            contender.offer(Item {
                tenant: 1,
                sent: Instant::now(),
            });
        }
        std::mem::forget(contender);
    });
    used.bytes_current as f64 / size as f64
}

fn after_one_shot_tenants(make: &dyn Fn() -> Box<dyn Contender>, size: usize) -> f64 {
    let used = measure(|| {
        let contender = make();
        for tenant in 0..size as u64 {
            contender.offer(Item {
                tenant,
                sent: Instant::now(),
            });
            contender.take();
        }
        std::mem::forget(contender);
    });
    used.bytes_current as f64
}
