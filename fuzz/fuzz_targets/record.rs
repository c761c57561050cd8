//! Arbitrary bytes as keys and records of the store: nothing panics, nothing allocates more than it was given reason
//! to, and what is decoded is encoded to the same bytes. `crates/fila-store/tests/corpus.rs` replays the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = fila_store::fuzzing::record(input);
});
