//! Files of a store that are removed, emptied, cut or changed at rest: no loss is silent, and the store can be repaired.
//!
//! `scripts/store-damage` makes a thousand cases. A seed is set with `FILA_FAULTS_SEED`.
#![cfg(not(feature = "rocksdb"))] // it knows the files of the default engine
#![cfg(test)] // helpers may unwrap, as tests do

use fila_faults::damage::{self, CASES_PER_WORK, DamageOutcome, DamageTally};

#[test]
fn no_loss_is_silent_in_a_hundred_damaged_stores_and_each_can_be_repaired() {
    let seed = std::env::var("FILA_FAULTS_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u64(..1 << 32), |seed| seed.parse().unwrap());
    println!("from FILA_FAULTS_SEED={seed}");
    let mut tally = DamageTally::default();
    for work in [seed, seed + 1] {
        match damage::run(work, CASES_PER_WORK) {
            Ok(done) => tally.add(done),
            Err(error) => panic!("with FILA_FAULTS_SEED={work}: {error:?}"),
        }
    }
    println!("{tally}");
    assert_eq!(tally.cases(), 2 * CASES_PER_WORK);
    assert!(tally.of(DamageOutcome::Refused) > 20, "{tally}");
    assert!(tally.of(DamageOutcome::Whole) > 10, "{tally}");
}
