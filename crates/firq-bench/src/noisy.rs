//! A noisy neighbour: 99 quiet tenants, one that floods, and a server that is slower than the load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Effort;
use crate::contenders::{Contender, Fifo, Item, Ours, Rival, Room};
use crate::report::{Cell, Report};
use lab::Latencies;

const QUIET: u64 = 99;
const NOISY: u64 = QUIET;
/// Each quiet tenant sends one task in this time: 100 a second.
const QUIET_EVERY: Duration = Duration::from_millis(10);
/// The server serves 15,000 tasks a second.
const SERVICE: Duration = Duration::from_nanos(1_000_000_000 / 15_000);

pub(crate) fn run(effort: Effort) -> Vec<Report> {
    let time = match effort {
        Effort::Full => Duration::from_secs(5),
        Effort::Quick => Duration::from_millis(300),
    };
    let room = Room {
        total: 20_000,
        per_tenant: 1_000,
        shards: 1,
    };
    let sharded = Room { shards: 4, ..room };
    let contenders: [Box<dyn Contender>; 4] = [
        Box::new(Fifo::new(room)),
        Box::new(Rival::new(sharded, false)),
        Box::new(Ours::new(room, firq_core::BackpressurePolicy::ShedFair)),
        Box::new(Ours::new(sharded, firq_core::BackpressurePolicy::ShedFair)),
    ];
    let rows = contenders
        .iter()
        .map(|contender| row(contender.as_ref(), time))
        .collect();
    vec![Report {
        title: "A noisy neighbour: what 99 quiet tenants see".to_owned(),
        note: "Quiet tenants send 100 tasks a second each, the noisy one about a million; the server does 15,000. \
               Waits in ms from sending to being served. Four threads share the machine's cores, so the highest \
               percentiles are mostly the machine's. Wanted: nothing quiet refused, p50 at most 0.3× 0.1.3.",
        columns: vec![
            "queue",
            "quiet p50",
            "quiet p99",
            "quiet refused %",
            "noisy served/s",
            "quiet served/s",
        ],
        rows,
    }]
}

fn row(contender: &dyn Contender, time: Duration) -> Vec<Cell> {
    let stop = AtomicBool::new(false);
    let refused = AtomicU64::new(0);
    let offered = AtomicU64::new(0);
    let (waits, noisy) = std::thread::scope(|scope| {
        scope.spawn(|| flood(contender, &stop));
        scope.spawn(|| trickle(contender, &stop, &offered, &refused));
        let served = serve(contender, time);
        stop.store(true, Ordering::Relaxed);
        served
    });
    let served = waits.len();
    let waits: Latencies = waits.into_iter().collect();
    let at = |part: f64| match served {
        0 => Cell::None,
        _ => Cell::Number(waits.percentile(part).as_secs_f64() * 1e3, 3),
    };
    let share =
        refused.load(Ordering::Relaxed) as f64 / offered.load(Ordering::Relaxed).max(1) as f64;
    vec![
        Cell::text(contender.name()),
        at(0.5),
        at(0.99),
        Cell::Number(100.0 * share, 2),
        Cell::Number(noisy as f64 / time.as_secs_f64(), 0),
        Cell::Number(served as f64 / time.as_secs_f64(), 0),
    ]
}

/// Sends about a million a second, in small bursts.
fn flood(contender: &dyn Contender, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..100 {
            contender.offer(Item {
                tenant: NOISY,
                sent: Instant::now(),
            });
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Sends for all quiet tenants, evenly spread over time.
fn trickle(contender: &dyn Contender, stop: &AtomicBool, offered: &AtomicU64, refused: &AtomicU64) {
    let every = QUIET_EVERY / QUIET as u32;
    let begin = Instant::now();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = begin + every * number;
        let now = Instant::now();
        if now < due {
            std::thread::sleep(due - now);
            continue;
        }
        let tenant = u64::from(number) % QUIET;
        offered.fetch_add(1, Ordering::Relaxed);
        if !contender.offer(Item {
            tenant,
            sent: Instant::now(),
        }) {
            refused.fetch_add(1, Ordering::Relaxed);
        }
        number += 1;
    }
}

/// Serves at the server's rate, and returns the waits of quiet tasks and the number of noisy ones served.
fn serve(contender: &dyn Contender, time: Duration) -> (Vec<Duration>, u64) {
    let begin = Instant::now();
    let warm = begin + time / 10;
    let mut waits = Vec::new();
    let mut noisy = 0;
    let mut free = begin;
    while begin.elapsed() < time + time / 10 {
        let item = contender.take_wait();
        let now = Instant::now();
        if now >= warm {
            match item.tenant {
                NOISY => noisy += 1,
                _ => waits.push(now - item.sent),
            }
        }
        // The work: the server is busy, not asleep. If it falls behind, it does not catch up in a burst.
        free = (free + SERVICE).max(now + SERVICE / 2);
        while Instant::now() < free {
            std::hint::spin_loop();
        }
    }
    (waits, noisy)
}
