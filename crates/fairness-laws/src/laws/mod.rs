//! The laws. Each is a function that takes a way to make a scheduler of a given quantum, plays random
//! worlds on it, and panics at the first step that breaks the law, with the smallest world that does.

pub mod conservation;
pub mod extremes;
pub mod flood;
pub mod idleness;
pub mod settlement;
pub mod share;
pub mod steps;
pub mod tree;
pub mod wait;

use std::cell::Cell;
use std::fmt::Debug;
use std::str::FromStr;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

/// Whether a world obeyed a law, or how it broke it.
type Verdict = Result<(), TestCaseError>;

thread_local! {
    static ONE_IN: Cell<u32> = const { Cell::new(1) };
}

/// Checks a law in one of `one_in` of its worlds, and for a share of its longest runs: for schedulers behind a wire, a
/// thousand times slower than one that is called.
pub fn sparingly(one_in: u32, law: impl FnOnce()) {
    ONE_IN.set(one_in.max(1));
    law();
    ONE_IN.set(1);
}

/// Returns how many steps of a long run to take.
fn steps(usual: u32) -> u32 {
    usual / ONE_IN.get()
}

/// Runs `law` in `cases` random worlds (or as many as `PROPTEST_CASES` says).
///
/// The worlds are the same in every run, so that a change is judged by what it changes; `FAIRNESS_SEED`
/// makes others.
fn in_every<W: Debug>(cases: u32, worlds: impl Strategy<Value = W>, law: impl Fn(W) -> Verdict) {
    let seed = number("FAIRNESS_SEED").unwrap_or(1);
    let config = Config {
        cases: number("PROPTEST_CASES").unwrap_or_else(|| (cases / ONE_IN.get()).max(2)),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 500,
        ..Config::default()
    };
    if let Err(broken) = TestRunner::new(config).run(&worlds, law) {
        panic!("the law is broken (FAIRNESS_SEED={seed}): {broken}");
    }
}

/// Returns a number from the environment.
fn number<N: FromStr<Err: Debug>>(name: &str) -> Option<N> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text} is no number: {error:?}")),
    )
}
