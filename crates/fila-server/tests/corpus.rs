//! What the fuzzer checks, on the corpus that is kept and on texts that are like it: `scripts/fuzz` needs a nightly
//! toolchain, this does not.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::BTreeSet;
use std::path::Path;

use fila_server::config::fuzzing::configuration;
use fila_server::config::{Config, Key};
use proptest::prelude::*;

/// Returns the inputs in `fuzz/corpus/configuration` by the names of their files.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/configuration");
    let files = std::fs::read_dir(directory).unwrap();
    files
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, std::fs::read(file.path()).unwrap())
        })
        .collect()
}

#[test]
fn the_corpus_is_taken_or_refused_as_its_names_say() {
    for (name, input) in corpus() {
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
    for config in corpus()
        .iter()
        .filter_map(|(_, input)| configuration(input).ok())
    {
        let set = Key::all()
            .iter()
            .filter(|key| key.toml(&config) != key.toml(&default));
        sections.extend(set.map(Key::section));
    }
    assert_eq!(sections, fila_server::config::Section::ALL.into());
}

/// Pieces of which files are made, so that what is thrown together is often nearly one.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let sections = prop::sample::select(vec![
        "server",
        "scheduler",
        "storage",
        "lua",
        "limits",
        "telemetry",
    ]);
    let names = (0..Key::all().len()).prop_map(|index| Key::all()[index].name());
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
        let mut corpus = corpus();
        let (_, mut input) = corpus.swap_remove(which.index(corpus.len()));
        input.push(b'\n');
        for (at, byte) in changes {
            let at = at.index(input.len());
            input[at] = byte;
        }
        input.truncate(keep.index(input.len()) + 1);
        input.extend_from_slice(&more.concat());
        let _ = configuration(&input);
    }
}
