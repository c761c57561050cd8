//! The verbs of the engine, one behaviour at a time.
#![cfg(test)] // helpers may unwrap, as tests do

mod absence;
mod choice;
mod forgetting;
mod newcomers;
mod settlement;
mod trees;
mod waiting;
mod weights;

use drr::{Cost, DisbandError, Drr, Key, Quantum, State, Unknown, Weight};

fn engine(quantum: u64) -> Drr {
    Drr::new(Quantum::new(quantum).unwrap())
}

fn weight(value: u64) -> Weight {
    Weight::new(value).unwrap()
}

/// Dispatches `count` pieces of work of one cost and returns whose they were.
fn serve(engine: &mut Drr, count: usize, cost: u64) -> Vec<Key> {
    let one = |_| {
        let key = engine.next_key().unwrap();
        engine.charge(key, Cost::new(cost)).unwrap();
        key
    };
    (0..count).map(one).collect()
}

/// Registers a key and wakes it.
fn awake(engine: &mut Drr, value: u64) -> Key {
    let key = engine.register(weight(value));
    engine.wake(key).unwrap();
    key
}

/// Registers keys and serves them until none is a newcomer any more.
fn settled<const N: usize>(engine: &mut Drr, weights: [u64; N], cost: u64) -> [Key; N] {
    let keys = weights.map(|value| awake(engine, value));
    serve(engine, 100 * N, cost);
    keys
}

/// Serves the others, with pieces of one cost, until it is this key's turn.
fn until(engine: &mut Drr, key: Key, cost: u64) {
    while engine.next_key() != Some(key) {
        serve(engine, 1, cost);
    }
}
