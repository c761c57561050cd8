//! Arbitrary bytes as a file for `fila enqueue --json-lines`: nothing panics, what is wrong is said in one line that
//! moves no cursor, and a message is read as what it was printed from. `crates/fila-cli/tests/corpus.rs` replays the
//! corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = fila_cli::message_json::fuzzing::messages(input);
});
