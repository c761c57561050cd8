//! Nanoseconds per dispatch beside a plain `VecDeque` that does the same amount of bookkeeping for nobody.
//!
//! A dispatch is `next_key` + `charge` with every key backlogged; the floor is `pop_front` + `push_back` of
//! the same key numbers. Machines are shared and noisy, so the two are measured in alternating samples, the
//! best sample of each counts, and what is reported is their ratio.
//!
//! `cargo bench -p drr` prints the table; `-- --quick` takes a tenth of the time.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use drr::{Cost, Drr, Key, Quantum, Weight};

/// Keys, as in the table's rows.
const SIZES: [usize; 5] = [1, 10, 1_000, 100_000, 1_000_000];

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (samples, dispatches) = if quick { (5, 200_000) } else { (25, 1_000_000) };
    println!("ns per dispatch, best of {samples} alternating samples of {dispatches} dispatches");
    println!();
    println!("| keys | load | VecDeque | drr | ratio | visits | levels probed |");
    println!("|---:|---|---:|---:|---:|---:|---:|");
    for keys in SIZES {
        for load in [Load::Uniform, Load::Bursts, Load::Zipf, Load::Mixed] {
            let mut fifo = Fifo::new(keys, load);
            let mut ring = Ring::new(keys, load);
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

#[derive(Clone, Copy)]
enum Load {
    /// Equal weights, every piece of work costs one quantum.
    Uniform,
    /// Equal weights, eight pieces of work to a quantum: a turn is eight dispatches.
    Bursts,
    /// Weights by a Zipf law of exponent 1.1: a few keys get most of the visits.
    Zipf,
    /// Weights 1 to 16, costs 1 to 16 quanta: nobody's visits line up.
    Mixed,
}

impl Load {
    const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Bursts => "uniform, 8 a turn",
            Self::Zipf => "Zipf 1.1 weights",
            Self::Mixed => "weights and costs 1–16",
        }
    }

    fn weight(self, rank: usize) -> Weight {
        let weight = match self {
            Self::Uniform | Self::Bursts => 1,
            Self::Zipf => (65_536.0 / ((rank + 1) as f64).powf(1.1)) as u64,
            Self::Mixed => 1 + (rank % 16) as u64,
        };
        Weight::new(weight.max(1)).expect("at least one")
    }

    const fn cost(self, key: usize) -> Cost {
        Cost::new(match self {
            Self::Uniform | Self::Zipf => QUANTUM,
            Self::Bursts => QUANTUM / 8,
            Self::Mixed => QUANTUM * (1 + (key as u64).wrapping_mul(7) % 16),
        })
    }
}

const QUANTUM: u64 = 1000;

struct Fifo {
    queue: VecDeque<u64>,
}

impl Fifo {
    fn new(keys: usize, _: Load) -> Self {
        Self {
            queue: (0..keys as u64).collect(),
        }
    }

    fn run(&mut self, dispatches: usize) {
        for _ in 0..dispatches {
            let key = self.queue.pop_front().expect("never empty");
            self.queue.push_back(black_box(key));
        }
    }
}

struct Ring {
    engine: Drr,
    load: Load,
}

impl Ring {
    fn new(keys: usize, load: Load) -> Self {
        let mut engine = Drr::with_capacity(Quantum::new(QUANTUM).expect("not zero"), keys);
        // Ranks are scattered over the slots: heavy keys are not neighbours in memory.
        let mut registered: Vec<Key> = (0..keys).map(|_| engine.register(Weight::ONE)).collect();
        shuffle(&mut registered);
        for (rank, &key) in registered.iter().enumerate() {
            engine.set_weight(key, load.weight(rank)).expect("live");
            engine.wake(key).expect("live");
        }
        Self { engine, load }
    }

    fn run(&mut self, dispatches: usize) {
        for _ in 0..dispatches {
            let key = self.engine.next_key().expect("every key is backlogged");
            self.engine
                .charge(black_box(key), self.load.cost(key.index()))
                .expect("live");
        }
    }
}

fn shuffle(keys: &mut [Key]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..keys.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        keys.swap(last, (state % (last as u64 + 1)) as usize);
    }
}
