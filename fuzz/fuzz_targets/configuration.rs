//! Arbitrary texts as `fila.toml`, as variables and as flags: nothing panics, and what loads is printed to a file that
//! loads to the same. `crates/fila-server/tests/corpus.rs` replays the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = fila_server::config::fuzzing::configuration(input);
});
