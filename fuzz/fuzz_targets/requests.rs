//! Arbitrary sequences of gRPC requests into a broker that runs, over the engine `memory`: nothing panics, every request
//! is answered or refused with a code, and the books of every queue balance. `crates/fila-server/tests/requests`
//! replays the corpus.
#![no_main]

use std::time::Duration;

#[path = "../../crates/fila-server/tests/requests/play/mod.rs"]
mod play;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    play::play(input, Duration::from_millis(5));
});
