//! The checks of the fuzzer, on the stored corpus and on random bytes. `scripts/fuzz` needs a nightly toolchain, this
//! test does not.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../../../fuzz/corpus.rs"]
mod corpus;

use std::collections::BTreeSet;

use allocation_counter::measure;
use fila_store::fuzzing;
use fila_store::record::Record;
use proptest::prelude::*;

use corpus::{change, inputs};

const TARGET: &str = "record";

fn kind(record: &Record) -> &'static str {
    match record {
        Record::Number(_) => "number",
        Record::Queue { .. } => "queue",
        Record::Config { .. } => "config",
        Record::Meta(_) => "meta",
        Record::Payload(_) => "payload",
        Record::Remembered { .. } => "remembered",
        record @ Record::ValuePointer(_) => {
            panic!("{record:?} is of a kind that the corpus does not know")
        }
    }
}

/// Feeds one input to the decoders, which must not take more memory than they were given reason to: a header of
/// eight bytes becomes two strings of 24 and is held as what was decoded, encoded and decoded again.
fn within_memory(input: &[u8]) -> u64 {
    // Once before it is measured: the measure does not survive a panic, and would hide its message.
    let _ = fuzzing::record(input);
    let used = measure(|| {
        let _ = fuzzing::record(input);
    });
    let allowed = 4_096 + 32 * input.len() as u64;
    assert!(
        used.bytes_max <= allowed,
        "{} bytes in use for {}",
        used.bytes_max,
        input.len()
    );
    used.bytes_max
}

#[test]
fn the_corpus_keeps_every_promise_of_the_format() {
    for (name, input) in inputs(TARGET) {
        println!("{name}: {} bytes", within_memory(&input));
    }
}

#[test]
fn the_corpus_has_a_sound_record_of_every_kind() {
    let decoded = inputs(TARGET)
        .into_iter()
        .filter_map(|(_, input)| fuzzing::record(&input).ok());
    let kinds: BTreeSet<_> = decoded.map(|record| kind(&record)).collect();
    let all = ["config", "meta", "number", "payload", "queue", "remembered"];
    assert!(kinds.into_iter().eq(all));
}

/// The greatest lengths that a record can state, with nothing behind them.
#[test]
fn a_length_is_not_believed_before_the_bytes_are_there() {
    for kind in 0..=7 {
        for fields in [[0xff; 2].as_slice(), &[0xff; 6], &[0xff; 64]] {
            for version in 1..=2 {
                within_memory(&[&[0, 0, kind, version], fields].concat());
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_break_no_promise(input in prop::collection::vec(any::<u8>(), 0..300)) {
        within_memory(&input);
    }

    #[test]
    fn a_changed_corpus_breaks_no_promise(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
        more in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut kept = inputs(TARGET);
        let (_, mut input) = kept.swap_remove(which.index(kept.len()));
        change(&mut input, changes);
        input.truncate(keep.index(input.len()) + 1);
        input.extend_from_slice(&more);
        within_memory(&input);
    }
}
