//! The broker against a small model, from seeds: random commands, jumps of the clock, rounds and reads that take their
//! time, and crashes between any two steps.
//!
//! The model knows what a producer or a consumer may rely on, and nothing of lanes, windows or rounds. It is asked
//! after every step whether what was seen may be, and in every quiet moment whether something that should have been
//! seen was not. `FILA_SIMULATION_SEED=n` replays one run, `FILA_SIMULATION_RUNS=n` makes more of them, and
//! `FILA_SIMULATION_FIRST=n` begins with another seed than 0; `scripts/soak-broker` sets both.

#![cfg(test)] // helpers may unwrap, as tests do

mod model;
mod support;

use std::env;

use model::Simulation;

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

fn play(seed: u64) {
    let steps = 250;
    let outcome = std::panic::catch_unwind(|| Simulation::new(seed).play(steps));
    if let Err(panic) = outcome {
        eprintln!("replay with FILA_SIMULATION_SEED={seed}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn the_broker_does_what_the_model_allows_and_nothing_less() {
    if let Some(seed) = number("FILA_SIMULATION_SEED") {
        return play(seed);
    }
    let runs = number("FILA_SIMULATION_RUNS").unwrap_or(4000);
    let first = number("FILA_SIMULATION_FIRST").unwrap_or(0);
    (first..first.saturating_add(runs)).for_each(play);
}
