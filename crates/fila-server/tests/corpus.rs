//! The checks of the fuzzer, on the stored corpus and on similar texts. `scripts/fuzz` needs a nightly toolchain, this
//! test does not.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../../../fuzz/corpus.rs"]
mod corpus;

use std::collections::BTreeSet;

use fila_server::config::fuzzing::configuration;
use fila_server::config::{Config, Key};
use proptest::prelude::*;

use corpus::{change, inputs};

const TARGET: &str = "configuration";

#[test]
fn the_corpus_is_taken_or_refused_as_its_names_say() {
    for (name, input) in inputs(TARGET) {
        let loaded = configuration(&input);
        assert_eq!(
            loaded.is_err(),
            name.starts_with("refused"),
            "{name}: {loaded:?}"
        );
    }
}

#[test]
fn the_corpus_sets_a_key_of_every_section() {
    let default = Config::default();
    let mut sections = BTreeSet::new();
    for config in inputs(TARGET)
        .iter()
        .filter_map(|(_, input)| configuration(input).ok())
    {
        let set = Key::all().filter(|key| key.toml(&config) != key.toml(&default));
        sections.extend(set.map(Key::section));
    }
    assert_eq!(sections, fila_server::config::Section::ALL.into());
}

/// Fragments of files, so that a random combination is often nearly valid.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let sections = prop::sample::select(vec![
        "server",
        "tls",
        "scheduler",
        "storage",
        "lua",
        "limits",
        "telemetry",
    ]);
    let names = prop::sample::select(Key::all().map(Key::name).collect::<Vec<_>>());
    let values = prop::sample::select(vec![
        "1",
        "-1",
        "0",
        "4_096",
        "1.5",
        "inf",
        "true",
        "\"\"",
        "\"1 KiB\"",
        "\"memory\"",
        "\"[::]:0\"",
        "[]",
        "{}",
        "\"http://x\"",
        "'a\"b'",
        "\"\\u0085\"",
        "1979-05-27",
    ]);
    prop_oneof![
        sections.prop_map(|name| format!("[{name}]\n").into_bytes()),
        (names, values).prop_map(|(name, value)| format!("{name} = {value}\n").into_bytes()),
        prop::sample::select(vec![
            "\0", "\0FILA_", "\0--set ", "=", ".", "__", "\n", "#", "\r", "\u{feff}"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ]
}

proptest! {
    #[test]
    fn texts_that_are_thrown_together_break_no_promise(pieces in prop::collection::vec(piece(), 0..20)) {
        let _ = configuration(&pieces.concat());
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
        let _ = configuration(&input);
    }
}
