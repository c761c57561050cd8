//! The laws. Each is a function that takes a way to make a scheduler of a given quantum, plays random
//! worlds on it, and panics at the first step that breaks the law, with the smallest world that does.

pub mod conservation;
pub mod extremes;
pub mod idleness;
pub mod settlement;
pub mod share;
pub mod steps;
pub mod tree;
pub mod wait;

use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// Whether a world obeyed a law, or how it broke it.
type Verdict = Result<(), TestCaseError>;

/// Runs `law` in `cases` random worlds (or as many as `PROPTEST_CASES` says).
fn in_every<W: Debug>(cases: u32, worlds: impl Strategy<Value = W>, law: impl Fn(W) -> Verdict) {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(cases);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..Config::default()
    };
    if let Err(broken) = TestRunner::new(config).run(&worlds, law) {
        panic!("the law is broken: {broken}");
    }
}
