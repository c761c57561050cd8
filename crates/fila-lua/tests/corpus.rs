//! Runs the fuzzer's checks on its stored corpus and on similar texts. `scripts/fuzz` needs a nightly toolchain, this test
//! does not.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../../../fuzz/corpus.rs"]
mod corpus;

use fila_lua::fuzzing::hook_result;
use proptest::prelude::*;

use corpus::{change, inputs};

const TARGET: &str = "hook_results";

#[test]
fn the_corpus_is_taken_or_refused_as_its_names_say() {
    for (name, input) in inputs(TARGET) {
        let answered = hook_result(&input);
        let refused = name.starts_with("refused");
        assert_eq!(answered.is_err(), refused, "{name}: {answered:?}");
    }
}

/// Pieces of scripts and values. A random sequence of them is often almost valid.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let texts = prop::sample::select(vec![
        "\0e",
        "\0f",
        "s\u{4}acme",
        "S\u{1}a",
        "d65536",
        "d0",
        "n@\u{8}\0\0\0\0\0\0",
        "{",
        "}",
        "t",
        "f",
        "0",
        "i",
        "function on_enqueue(msg) ",
        "function on_failure(msg) ",
        "return ",
        "end\n",
        "fairness_key = ",
        "weight = ",
        "throttle_keys = ",
        "weights = ",
        "action = ",
        "delay_ms = ",
        "\"retry\"",
        "\"dlq\"",
        "msg",
        "1/0",
        "0/0",
        "-1",
        "nil",
        "\"x\"",
        ", ",
        "error(",
        ")",
        "pcall(",
        "msg.headers",
        ":rep(300)",
        "math.huge",
        "setmetatable(",
    ]);
    prop_oneof![
        6 => texts.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ]
}

proptest! {
    #[test]
    fn what_is_thrown_together_breaks_no_promise(pieces in prop::collection::vec(piece(), 0..20)) {
        let _ = hook_result(&pieces.concat());
    }

    #[test]
    fn a_changed_corpus_breaks_no_promise(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        more in prop::collection::vec(piece(), 0..4),
    ) {
        let mut kept = inputs(TARGET);
        let (_, mut input) = kept.swap_remove(which.index(kept.len()));
        change(&mut input, changes);
        input.extend_from_slice(&more.concat());
        let _ = hook_result(&input);
    }
}
