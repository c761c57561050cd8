//! One thread, one enqueue and one dequeue at a time: the cost of a task without contention.

mod groups;

use std::time::Instant;

use crate::Effort;
use crate::contenders::{Contender, Fifo, Item, Ours, Rival, Room};
use crate::report::{Cell, Report};

const SIZES: [usize; 5] = [1, 10, 1_000, 100_000, 1_000_000];

pub(crate) fn run(effort: Effort) -> Vec<Report> {
    let (samples, pairs) = match effort {
        Effort::Full => (9, 400_000),
        Effort::Quick => (2, 20_000),
    };
    let rows = SIZES
        .into_iter()
        .map(|tenants| row(tenants, samples, pairs))
        .collect();
    let pairs_report = Report {
        title: "One thread: enqueue + dequeue, ns per pair".to_owned(),
        note: "One task queued per tenant; tenants in random order. Best of alternating samples. \
               Wanted: ours at most 2× the floor up to 1,000 tenants, 7× at 100,000, 12× at 1,000,000; \
               at most 1/4 of 0.1.3 up to 1,000 and 1/3 beyond.",
        columns: vec![
            "tenants",
            "Mutex<VecDeque>",
            "firq-core 0.1.3",
            "firq-core (ours)",
            "ours ÷ floor",
            "ours ÷ 0.1.3",
        ],
        rows,
    };
    vec![pairs_report, groups::run(samples, pairs)]
}

fn row(tenants: usize, samples: usize, pairs: usize) -> Vec<Cell> {
    let room = Room {
        total: 2 * tenants + 16,
        per_tenant: 2 * tenants + 16,
        shards: 1,
    };
    let floor = Fifo::new(room);
    let rival = Rival::new(room, false);
    let ours = Ours::new(room, firq_core::BackpressurePolicy::Reject);
    let [floor, rival, ours] = best_of([&floor, &rival, &ours], tenants, samples, pairs);
    vec![
        Cell::count(tenants),
        Cell::Number(floor, 0),
        Cell::Number(rival, 0),
        Cell::Number(ours, 0),
        Cell::Number(ours / floor, 2),
        Cell::Number(ours / rival, 2),
    ]
}

/// Returns the nanoseconds that a pair takes with each contender, where each tenant has a task queued.
fn best_of<const N: usize>(
    contenders: [&dyn Contender; N],
    tenants: usize,
    samples: usize,
    pairs: usize,
) -> [f64; N] {
    let order = shuffled(tenants);
    for contender in contenders {
        for &tenant in &order {
            assert!(
                contender.offer(Item {
                    tenant,
                    sent: Instant::now()
                }),
                "there is room"
            );
        }
    }
    let mut best = [f64::MAX; N];
    let mut at = 0;
    for _ in 0..samples {
        for (contender, best) in contenders.iter().zip(&mut best) {
            let sent = Instant::now();
            for pair in 0..pairs {
                let tenant = order[(at + pair) % tenants];
                contender.offer(Item { tenant, sent });
                std::hint::black_box(contender.take());
            }
            *best = best.min(sent.elapsed().as_nanos() as f64 / pairs as f64);
        }
        at += pairs;
    }
    best
}

/// Returns the numbers of all tenants in an order that a cache cannot predict.
fn shuffled(tenants: usize) -> Vec<u64> {
    let mut order: Vec<u64> = (0..tenants as u64).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..tenants).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
    order
}
