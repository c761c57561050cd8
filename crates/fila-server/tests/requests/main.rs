//! The checks of the fuzzer, on the stored corpus. `scripts/fuzz` needs a nightly toolchain, this test does not.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
mod play;
mod recipes;

use std::time::Duration;

use proptest::prelude::*;

use corpus::{change, directory, inputs};
use recipes::recipes;

const TARGET: &str = "requests";

/// Set this to write the recipes into the corpus.
const WRITE: &str = "FILA_WRITE_CORPUS";

/// Plays an input with time for what is slow on a busy machine.
fn play(input: &[u8]) -> play::Ledger {
    play::play(input, Duration::from_secs(2))
}

#[test]
fn every_recipe_is_in_the_corpus() {
    for (name, input, _) in recipes() {
        let path = directory(TARGET).join(name);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, &input).unwrap();
        }
        let kept = std::fs::read(&path).unwrap();
        assert_eq!(kept, input, "{name} is another; {WRITE}=1 writes it");
    }
}

#[test]
fn every_recipe_meets_the_refusals_that_it_is_for_and_no_others() {
    for (name, input, refused) in recipes() {
        let met = play(&input).refused;
        assert!(met.keys().eq(&refused), "{name}: {met:?}");
    }
}

#[test]
fn the_recipes_take_every_step() {
    let recipes = recipes();
    let steps = recipes.iter().flat_map(|(_, input, _)| play::steps(input));
    let taken: Vec<play::Step> = steps.map(|(step, _)| step).collect();
    for step in play::STEPS {
        assert!(taken.contains(&step), "{step:?}");
    }
}

#[test]
fn the_corpus_breaks_no_promise() {
    for (name, input) in inputs(TARGET) {
        println!("{name}");
        play::play(&input, Duration::from_millis(5));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn changed_recipes_one_after_the_other_break_no_promise(
        which in prop::collection::vec(any::<prop::sample::Index>(), 1..3),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let recipes = recipes();
        let chosen = which.iter().map(|which| recipes[which.index(recipes.len())].1.clone());
        let mut input: Vec<u8> = chosen.flatten().collect();
        change(&mut input, changes);
        play::play(&input, Duration::from_millis(5));
    }
}
