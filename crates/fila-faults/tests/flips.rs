//! Single bits that flip in files at rest: detected, and never a message less or another one.
//!
//! A seed is set with `FILA_FAULTS_SEED`, how many bits are flipped with `FILA_FAULTS_FLIPS`.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use fila_faults::cuts::{self, State};
use fila_faults::{Disk, FileSystem, Recording};
use tempfile::{TempDir, tempdir};

/// What came of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The store was not opened.
    Refused,
    /// Something was reported that could not be read.
    Reported,
    /// All messages were there: the store does not read the bit.
    Harmless,
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.metadata().unwrap().len() > 0 {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn restore(recording: &Recording) -> TempDir {
    let place = tempdir().unwrap();
    let mut disk = Disk::new(recording, FileSystem::Ordered);
    disk.advance(recording.ops.len());
    disk.restore(place.path()).unwrap();
    place
}

/// The kind of a file: its name without its number.
fn kind(root: &Path, file: &Path) -> String {
    let name = file.strip_prefix(root).unwrap().display().to_string();
    name.chars()
        .filter(|letter| !letter.is_ascii_digit())
        .collect()
}

/// Flips a bit among those that are written, and says where.
fn flip(rng: &mut Rng, file: &Path) -> String {
    let mut bytes = fs::read(file).unwrap();
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(bytes.len(), |last| last + 1);
    let (at, bit) = (rng.usize(..used), rng.u8(..8));
    bytes[at] ^= 1 << bit;
    fs::write(file, bytes).unwrap();
    format!("bit {bit} of byte {at} of {used} in {}", file.display())
}

fn outcome(place: &Path, expected: &State) -> Result<Outcome, String> {
    let store = match cuts::open(place) {
        Err(_) => return Ok(Outcome::Refused),
        Ok(store) => store,
    };
    match State::read(&store) {
        Err(_) => Ok(Outcome::Reported),
        Ok((found, _)) if found == *expected => Ok(Outcome::Harmless),
        Ok((found, _)) => Err(expected.difference(&found)),
    }
}

#[test]
fn a_flipped_bit_is_detected_and_never_costs_or_changes_a_message() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    let seed = number("FILA_FAULTS_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let flips = number("FILA_FAULTS_FLIPS").unwrap_or(60);
    println!("from FILA_FAULTS_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let place = tempdir().unwrap();
    let (recording, states) = cuts::record(&mut rng, place.path(), 200).unwrap();
    let expected = states.last().unwrap();
    let mut outcomes: BTreeMap<(String, Outcome), usize> = BTreeMap::new();
    for _ in 0..flips {
        let place = restore(&recording);
        let files = files(place.path());
        let file = rng.choice(&files).unwrap();
        let kind = kind(place.path(), file);
        let said = flip(&mut rng, file);
        let tried = std::panic::catch_unwind(|| outcome(place.path(), expected));
        match tried {
            Ok(Ok(outcome)) => *outcomes.entry((kind, outcome)).or_default() += 1,
            Ok(Err(difference)) => panic!("FILA_FAULTS_SEED={seed}: {said}: {difference}"),
            Err(_) => panic!("FILA_FAULTS_SEED={seed}: {said}: a panic"),
        }
    }
    println!("{outcomes:#?}");
    let detected = outcomes
        .keys()
        .any(|(_, outcome)| *outcome == Outcome::Refused);
    assert!(detected, "{outcomes:?}");
}
