//! Power cuts beneath a real store: nothing confirmed is lost, and what was under way has happened as a whole or not at all.
//!
//! `scripts/power-cuts` makes thousands of them. A seed is set with `FILA_FAULTS_SEED`.
#![cfg(test)] // helpers may unwrap, as tests do

use fastrand::Rng;
use fila_faults::Op;
use fila_faults::cuts::{self, CUTS_PER_WORK, Tally};

#[test]
fn nothing_confirmed_is_lost_in_two_hundred_power_cuts() {
    let seed = std::env::var("FILA_FAULTS_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u64(..1 << 32), |seed| seed.parse().unwrap());
    println!("from FILA_FAULTS_SEED={seed}");
    let mut tally = Tally::default();
    for work in [seed, seed + 1] {
        match cuts::run(work, CUTS_PER_WORK) {
            Ok(done) => tally += done,
            Err(error) => panic!("with FILA_FAULTS_SEED={work}: {error:?}"),
        }
    }
    assert!(tally.cuts >= 200, "{tally:?}");
    assert!(tally.amid > 20 && tally.kept > 0, "{tally:?}");
    assert!(tally.messages > 1_000, "{tally:?}");
}

/// The check of the power cuts would be worthless if it let everything pass.
#[test]
fn a_disk_that_only_says_it_has_synced_is_found_out() {
    let mut rng = Rng::with_seed(3);
    let place = tempfile::tempdir().unwrap();
    let (mut recording, states) = cuts::record(&mut rng, place.path(), 40).unwrap();
    recording.ops.retain(|op| !matches!(op, Op::Sync { .. }));
    let lost = cuts::cut(&mut rng, &recording, &states, 80).unwrap_err();
    let said = format!("{lost:?}");
    println!("{said}");
    // The loss is planned, so the directory need not be kept.
    let kept = said.split("is in ").nth(1).unwrap();
    std::fs::remove_dir_all(kept.lines().next().unwrap()).unwrap();
}
