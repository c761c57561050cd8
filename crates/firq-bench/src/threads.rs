//! Producers and consumers, each on its own thread: the throughput in tasks a second.

mod batches;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::Effort;
use crate::contenders::{Contender, Crossbeam, Fifo, Item, Kanal, Ours, Rival, Room};
use crate::report::{Cell, Report};

const TENANTS: u64 = 1000;

/// The tenant of the item that tells a consumer to stop.
const STOP: u64 = u64::MAX;

/// The tenants of the items.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mix {
    /// All tenants in turn.
    Even,
    /// Every second item belongs to one tenant.
    Hot,
}

impl Mix {
    fn tenant(self, number: usize) -> u64 {
        match self {
            Self::Hot if number.is_multiple_of(2) => 0,
            Self::Hot | Self::Even => number as u64 % TENANTS,
        }
    }
}

pub(crate) fn run(effort: Effort) -> Vec<Report> {
    let (samples, tasks) = match effort {
        Effort::Full => (5, 1_000_000),
        Effort::Quick => (1, 20_000),
    };
    let rows = [(1, 1), (2, 2), (8, 8)].map(|threads| row(threads, samples, tasks));
    vec![Report {
        title: "Threads: million tasks a second through the queue".to_owned(),
        note: "1,000 tenants, room for 16,384 tasks, senders wait when it is full. Best of alternating samples. \
               Wanted: ours at least 5× 0.1.3 and half of crossbeam (0.9 of it with 8 and 8).",
        columns: vec![
            "producers / consumers",
            "Mutex<VecDeque>",
            "crossbeam-channel",
            "kanal",
            "firq-core 0.1.3",
            "ours",
            "ours, 4 shards",
            "ours, batches of 64",
            "ours ÷ 0.1.3",
            "ours ÷ crossbeam",
        ],
        rows: rows.into(),
    }]
}

fn row((producers, consumers): (usize, usize), samples: usize, tasks: usize) -> Vec<Cell> {
    let room = Room {
        total: 1 << 14,
        per_tenant: 1 << 14,
        shards: 1,
    };
    let sharded = Room { shards: 4, ..room };
    let makers: [&dyn Fn() -> Box<dyn Contender>; 6] = [
        &|| Box::new(Fifo::new(room)),
        &|| Box::new(Crossbeam::new(room)),
        &|| Box::new(Kanal::new(room)),
        &|| Box::new(Rival::new(sharded, true)),
        &|| Box::new(Ours::waiting(room)),
        &|| Box::new(Ours::waiting(sharded)),
    ];
    let mut best = [0.0_f64; 7];
    for _ in 0..samples {
        for (make, best) in makers.iter().zip(&mut best) {
            *best = best.max(through(
                make().as_ref(),
                Mix::Even,
                (producers, consumers),
                tasks,
            ));
        }
        best[6] = best[6].max(batches::through(
            &Ours::waiting(room),
            producers,
            consumers,
            tasks,
        ));
    }
    let ours = best[4].max(best[5]);
    let mut row = vec![Cell::text(format!("{producers} / {consumers}"))];
    row.extend(best.map(|rate| Cell::Number(rate, 2)));
    row.push(Cell::Number(ours / best[3], 2));
    row.push(Cell::Number(ours / best[1], 2));
    row
}

/// Returns the throughput in million tasks a second.
pub(crate) fn through(
    contender: &dyn Contender,
    mix: Mix,
    (producers, consumers): (usize, usize),
    tasks: usize,
) -> f64 {
    let each = tasks / producers;
    let received = AtomicUsize::new(0);
    let send = |producer: usize, sent: Instant| {
        for number in 0..each {
            let tenant = mix.tenant(number * producers + producer);
            contender.put(Item { tenant, sent });
        }
    };
    let receive = || {
        while contender.take_wait().tenant != STOP {
            // The last item releases the consumers that still wait.
            if received.fetch_add(1, Ordering::Relaxed) + 1 == each * producers {
                for _ in 0..consumers {
                    contender.put(Item {
                        tenant: STOP,
                        sent: Instant::now(),
                    });
                }
            }
        }
    };
    let took = race(producers, consumers, send, receive);
    (each * producers) as f64 / took.as_secs_f64() / 1e6
}

/// Starts all senders and receivers together, and returns the time from the first start of a sender to the end of the last
/// receiver.
fn race(
    senders: usize,
    receivers: usize,
    send: impl Fn(usize, Instant) + Sync,
    receive: impl Fn() + Sync,
) -> Duration {
    let start = Barrier::new(senders + receivers);
    let (start, send, receive) = (&start, &send, &receive);
    std::thread::scope(|scope| {
        let sender = |number: usize| {
            scope.spawn(move || {
                start.wait();
                let begin = Instant::now();
                send(number, begin);
                begin
            })
        };
        let receiver = |_| {
            scope.spawn(move || {
                start.wait();
                receive();
                Instant::now()
            })
        };
        let senders: Vec<_> = (0..senders).map(sender).collect();
        let receivers: Vec<_> = (0..receivers).map(receiver).collect();
        let join = |thread: ScopedJoinHandle<'_, Instant>| thread.join().expect("no panic");
        let begin = senders.into_iter().map(join).min();
        let end = receivers.into_iter().map(join).max();
        end.expect("there are receivers") - begin.expect("there are senders")
    })
}
