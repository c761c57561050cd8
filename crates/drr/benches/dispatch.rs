//! Nanoseconds per dispatch, compared with a plain, unfair `VecDeque` of the same items.
//!
//! A dispatch is `next_key` + `charge` with every key backlogged, or, where items arrive for random keys,
//! what it takes besides: counting them, and `wake` and `sleep` when a key gets its first or loses its last.
//! The floor is `pop_front` + `push_back` of the same items. Machines are shared and noisy, so the two are
//! measured in alternating samples, the best sample of each counts, and what is reported is their ratio.
//!
//! `cargo bench -p drr` prints this table and that of [groups]; `-- --quick` takes a tenth of the time.

#[path = "dispatch/groups.rs"]
mod groups;

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use drr::{Cost, Drr, Key, Quantum, Weight};

/// Keys, as in the table's rows.
const SIZES: [usize; 5] = [1, 10, 1_000, 100_000, 1_000_000];

const LOADS: [Load; 5] = [
    Load::Uniform,
    Load::Turns,
    Load::Mixed,
    Load::ZipfWeights,
    Load::ZipfArrivals,
];

const QUANTUM: u64 = 1000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Equal weights, every piece of work costs one quantum.
    Uniform,
    /// Equal weights, eight pieces of work to a quantum: a turn is eight dispatches.
    Turns,
    /// Weights 1 to 16, costs 1 to 16 quanta: no two keys' visits line up.
    Mixed,
    /// Weights by a Zipf law of exponent 1.1: a few keys get most of the visits.
    ZipfWeights,
    /// Equal weights, items arrive for keys by a Zipf law of exponent 1.1: most keys come and go.
    ZipfArrivals,
}

impl Load {
    const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Turns => "uniform, 8 to a turn",
            Self::Mixed => "weights and costs 1–16",
            Self::ZipfWeights => "Zipf 1.1 weights",
            Self::ZipfArrivals => "Zipf 1.1 arrivals",
        }
    }

    fn weight(self, rank: usize) -> Weight {
        let weight = match self {
            Self::Uniform | Self::Turns | Self::ZipfArrivals => 1,
            Self::ZipfWeights => (65_536.0 / ((rank + 1) as f64).powf(1.1)) as u64,
            Self::Mixed => 1 + (rank % 16) as u64,
        };
        Weight::new(weight.max(1)).expect("at least one")
    }

    /// Returns the keys that items arrive for, to be taken in a circle; empty if all are backlogged.
    fn arrivals(self, keys: usize, dice: &mut Dice) -> Vec<u32> {
        if self != Self::ZipfArrivals {
            return Vec::new();
        }
        let mut sum = 0.0;
        let mut sums = Vec::with_capacity(keys);
        for rank in 0..keys {
            sum += ((rank + 1) as f64).powf(-1.1);
            sums.push(sum);
        }
        let mut draw = || {
            let at = (dice.roll() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
            sums.partition_point(|&upto| upto < at).min(keys - 1) as u32
        };
        (0..1 << 20).map(|_| draw()).collect()
    }
}

/// How long to measure.
#[derive(Clone, Copy)]
struct Effort {
    samples: usize,
    dispatches: usize,
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (samples, dispatches) = if quick { (3, 200_000) } else { (25, 1_000_000) };
    println!("ns per dispatch, best of {samples} alternating samples of {dispatches} dispatches\n");
    let effort = Effort {
        samples,
        dispatches,
    };
    flat(effort);
    groups::table(effort);
}

/// Prints the table of flat keys.
fn flat(
    Effort {
        samples,
        dispatches,
    }: Effort,
) {
    println!("| keys | load | VecDeque | drr | ratio | visits | levels probed |");
    println!("|---:|---|---:|---:|---:|---:|---:|");
    for keys in SIZES {
        for load in LOADS {
            let mut dice = Dice(1);
            let arrivals = load.arrivals(keys, &mut dice);
            let mut fifo = Fifo::new(keys, &arrivals);
            let mut ring = Ring::new(keys, load, &arrivals, &mut dice);
            let (mut fifo_ns, mut ring_ns) = (f64::MAX, f64::MAX);
            ring.run(dispatches.max(2 * keys)); // past the newcomers' boost
            let before = ring.engine.work();
            for _ in 0..samples {
                fifo_ns = fifo_ns.min(time(dispatches, || fifo.run(dispatches)));
                ring_ns = ring_ns.min(time(dispatches, || ring.run(dispatches)));
            }
            let after = ring.engine.work();
            let done = (samples * dispatches) as f64;
            println!(
                "| {keys} | {} | {fifo_ns:.1} | {ring_ns:.1} | {:.1} | {:.2} | {:.2} |",
                load.name(),
                ring_ns / fifo_ns,
                (after.visits - before.visits) as f64 / done,
                (after.probes - before.probes) as f64 / done,
            );
        }
    }
}

fn time(dispatches: usize, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / dispatches as f64
}

/// The floor.
struct Fifo<'a> {
    queue: VecDeque<u64>,
    arrivals: &'a [u32],
    arrived: usize,
}

impl<'a> Fifo<'a> {
    fn new(keys: usize, arrivals: &'a [u32]) -> Self {
        let queue = (0..keys as u64).collect();
        Self {
            queue,
            arrivals,
            arrived: 0,
        }
    }

    fn run(&mut self, dispatches: usize) {
        if self.arrivals.is_empty() {
            for _ in 0..dispatches {
                let key = self.queue.pop_front().expect("never empty");
                self.queue.push_back(black_box(key));
            }
            return;
        }
        for _ in 0..dispatches {
            self.arrived = (self.arrived + 1) % self.arrivals.len();
            self.queue.push_back(u64::from(self.arrivals[self.arrived]));
            black_box(self.queue.pop_front().expect("never empty"));
        }
    }
}

/// The engine, with a count of items for each key instead of a queue.
struct Ring<'a> {
    engine: Drr,
    load: Load,
    keys: Vec<Key>,
    queued: Vec<u32>,
    arrivals: &'a [u32],
    arrived: usize,
}

impl<'a> Ring<'a> {
    fn new(keys: usize, load: Load, arrivals: &'a [u32], dice: &mut Dice) -> Self {
        let mut engine = Drr::with_capacity(Quantum::new(QUANTUM).expect("not zero"), keys);
        // Ranks are scattered over the slots: heavy keys are not neighbours in memory.
        let mut registered: Vec<Key> = (0..keys).map(|_| engine.register(Weight::ONE)).collect();
        for last in (1..keys).rev() {
            registered.swap(last, (dice.roll() % (last as u64 + 1)) as usize);
        }
        for (rank, &key) in registered.iter().enumerate() {
            engine.set_weight(key, load.weight(rank)).expect("live");
            engine.wake(key).expect("live");
        }
        Self {
            engine,
            load,
            keys: registered,
            queued: vec![1; keys],
            arrivals,
            arrived: 0,
        }
    }

    fn run(&mut self, dispatches: usize) {
        match self.load {
            Load::Uniform | Load::ZipfWeights => {
                serve(&mut self.engine, dispatches, |_| Cost::new(QUANTUM));
            }
            Load::Turns => serve(&mut self.engine, dispatches, |_| Cost::new(QUANTUM / 8)),
            Load::Mixed => serve(&mut self.engine, dispatches, |key| {
                Cost::new(QUANTUM * (1 + (key.index() as u64).wrapping_mul(7) % 16))
            }),
            Load::ZipfArrivals => self.serve_arrivals(dispatches),
        }
    }

    fn serve_arrivals(&mut self, dispatches: usize) {
        for _ in 0..dispatches {
            self.arrived = (self.arrived + 1) % self.arrivals.len();
            let key = self.keys[self.arrivals[self.arrived] as usize];
            self.queued[key.index()] += 1;
            if self.queued[key.index()] == 1 {
                self.engine.wake(key).expect("live");
            }
            let key = self.engine.next_key().expect("something has just arrived");
            self.engine.charge(key, Cost::new(QUANTUM)).expect("live");
            black_box(key.index());
            self.queued[key.index()] -= 1;
            if self.queued[key.index()] == 0 {
                self.engine.sleep(key).expect("live");
            }
        }
    }
}

/// The loop that is measured: every key is backlogged.
fn serve(engine: &mut Drr, dispatches: usize, cost: impl Fn(Key) -> Cost) {
    for _ in 0..dispatches {
        let key = engine.next_key().expect("every key is backlogged");
        engine.charge(key, cost(key)).expect("live");
        black_box(key.index());
    }
}

/// A small seeded generator (SplitMix64).
struct Dice(u64);

impl Dice {
    const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
