//! Arbitrary scripts, and arbitrary values as what a hook has returned: nothing panics, what is taken is within its
//! limits, and what is refused is so in a few words. `crates/fila-lua/tests/corpus.rs` replays the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = fila_lua::fuzzing::hook_result(input);
});
