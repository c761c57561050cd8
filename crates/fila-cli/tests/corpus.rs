//! The checks of the fuzzer, on the stored corpus and on similar texts. `scripts/fuzz` needs a nightly toolchain, this
//! test does not.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../../../fuzz/corpus.rs"]
mod corpus;

use fila_cli::message_json::fuzzing::messages;
use proptest::prelude::*;

use corpus::{change, inputs};

const TARGET: &str = "message_files";

#[test]
fn every_line_of_the_corpus_is_taken_or_refused_as_the_name_of_its_file_says() {
    for (name, input) in inputs(TARGET) {
        for message in messages(&input) {
            let refused = name.starts_with("refused");
            assert_eq!(message.is_err(), refused, "{name}: {message:?}");
        }
    }
}

/// Fragments of files, so that a random combination is often nearly valid.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let texts = prop::sample::select(vec![
        "{\"payload\":",
        "\"key\":",
        "\"headers\":{",
        "\"weight\":",
        "\"ttl_ms\":",
        "\"payload_base64\":",
        "\"a\"",
        "\"\\u001b\"",
        "\"\\ud800\"",
        "\"YQ==\"",
        "1",
        "-1",
        "1e400",
        "null",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\n",
        "\r\n",
        "\"",
        " at line ",
        "\u{feff}",
        "\u{85}",
    ]);
    prop_oneof![
        4 => texts.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ]
}

proptest! {
    #[test]
    fn texts_that_are_thrown_together_break_no_promise(pieces in prop::collection::vec(piece(), 0..20)) {
        messages(&pieces.concat());
    }

    #[test]
    fn a_changed_corpus_breaks_no_promise(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
        more in prop::collection::vec(piece(), 0..4),
    ) {
        let mut kept = inputs(TARGET);
        let (_, mut input) = kept.swap_remove(which.index(kept.len()));
        input.push(b'\n');
        change(&mut input, changes);
        input.truncate(keep.index(input.len()) + 1);
        input.extend_from_slice(&more.concat());
        messages(&input);
    }
}
