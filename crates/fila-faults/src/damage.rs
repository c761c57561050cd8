//! Damaged files of a store of the default engine at rest, and what comes of them.
//!
//! The run records one *work* on a real store, and makes many copies of its directory: as it is after an orderly stop, or as
//! a kill at a random moment leaves it. In each copy it damages one file or folder, and opens the store. All confirmed data is there,
//! or the store refuses to open and names the file, or it reports the loss; a silent loss is a failure. Then it repairs a
//! store that refuses to open, and looks whether the rest is there and the store takes commits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use fastrand::Rng;
use fila_store::{
    Batch, Engine, FairnessKey, Locator, MessageId, Meta, OpenError, Payload, QueueName, Shard,
    Timestamp,
};
use tempfile::TempDir;

use crate::cuts::{self, State};
use crate::{Disk, FileSystem, Recording};

/// Cases that are made of one work.
pub const CASES_PER_WORK: usize = 50;

const STEPS: usize = 250;

/// What is done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// Nothing: the store must be whole, and must report nothing.
    None,
    /// It is removed.
    Removed,
    /// It is cut to nothing.
    Emptied,
    /// It is cut at a random place.
    Cut,
    /// Some of its bits are flipped.
    Flipped,
}

/// What came of a damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamageOutcome {
    /// Everything confirmed is there.
    Whole,
    /// The store refuses to open, and names the file.
    Refused,
    /// The store opens, and reports what it cannot read.
    Reported,
}

/// One kind of case: whether the store was killed, the kind of file, the damage, and what came of it.
pub type Case = (bool, String, Damage, DamageOutcome);

/// How often each kind of case came up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageTally(pub BTreeMap<Case, usize>);

impl DamageTally {
    /// Returns the number of cases.
    pub fn cases(&self) -> usize {
        self.0.values().sum()
    }

    /// Returns how many cases had this outcome.
    pub fn of(&self, outcome: DamageOutcome) -> usize {
        let cases = self.0.iter().filter(|((_, _, _, it), _)| *it == outcome);
        cases.map(|(_, count)| count).sum()
    }

    /// Adds the cases of another run.
    pub fn add(&mut self, other: Self) {
        for (case, count) in other.0 {
            *self.0.entry(case).or_default() += count;
        }
    }
}

impl fmt::Display for DamageTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:8} {:30} {:8} {:>6} {:>8} {:>9}",
            "stop", "file", "damage", "whole", "refused", "reported"
        )?;
        let rows = self
            .0
            .keys()
            .map(|(killed, file, damage, _)| (*killed, file, *damage));
        for (killed, file, damage) in BTreeSet::from_iter(rows) {
            let count = |outcome| {
                let case = (killed, file.clone(), damage, outcome);
                self.0.get(&case).copied().unwrap_or_default()
            };
            let stop = if killed { "kill" } else { "orderly" };
            let damage = format!("{damage:?}").to_lowercase();
            let [whole, refused, reported] = [
                DamageOutcome::Whole,
                DamageOutcome::Refused,
                DamageOutcome::Reported,
            ]
            .map(count);
            writeln!(
                f,
                "{stop:8} {file:30} {damage:8} {whole:6} {refused:8} {reported:9}"
            )?;
        }
        Ok(())
    }
}

/// Records one work, and damages copies of its store.
///
/// # Errors
/// If something confirmed is gone without a word, or a repaired store does not work. Says where, and what to repeat.
pub fn run(seed: u64, cases: usize) -> anyhow::Result<DamageTally> {
    let mut rng = Rng::with_seed(seed);
    let place = cuts::place()?;
    let (recording, states) = cuts::record(&mut rng, place.path(), STEPS)?;
    let payloads = payloads(&states);
    let mut tally = DamageTally::default();
    for number in 0..cases {
        let of = recording.ops.len();
        let killed = rng.bool();
        let moment = if killed { rng.usize(of / 10..of) } else { of };
        let patient = Patient {
            place: restored(&recording, moment)?,
            expected: cuts::expected(&recording, &states, moment),
            payloads: &payloads,
        };
        let choice = rng.u64(..);
        let treated = patient.treat(&mut Rng::with_seed(choice));
        let (file, damage, outcome) = treated.with_context(|| {
            let kept = restored(&recording, moment).map(TempDir::keep);
            format!(
                "seed {seed}, case {number}, stopped after {moment} of {of}; undamaged in {kept:?}"
            )
        })?;
        *tally.0.entry((killed, file, damage, outcome)).or_default() += 1;
    }
    Ok(tally)
}

/// Returns what was done to the directory up to a moment, which is what a kill leaves.
fn restored(recording: &Recording, moment: usize) -> std::io::Result<TempDir> {
    let place = cuts::place()?;
    let mut disk = Disk::new(recording, FileSystem::Ordered);
    disk.advance(moment);
    disk.restore(place.path())?;
    Ok(place)
}

/// All payloads that a queue has ever had.
type Payloads = BTreeMap<(QueueName, Locator), Option<Payload>>;

fn payloads(states: &[State]) -> Payloads {
    let queues = states.iter().flat_map(|state| &state.queues);
    let messages = queues.flat_map(|(name, held)| {
        let messages = held.messages.iter();
        messages
            .map(move |(place, message)| ((name.clone(), place.clone()), message.payload.clone()))
    });
    messages.collect()
}

/// A copy of a store.
struct Patient<'a> {
    place: TempDir,
    expected: (&'a State, &'a [State]),
    payloads: &'a Payloads,
}

impl Patient<'_> {
    /// Damages a file, opens the store, and repairs it if it refuses.
    fn treat(&self, rng: &mut Rng) -> anyhow::Result<(String, Damage, DamageOutcome)> {
        let root = self.place.path();
        let (kind, path) = choose(rng, root)?;
        let damage = damage(rng, &path)?;
        let said = format!("{damage:?} {}", path.display());
        let outcome = self.outcome().with_context(|| said.clone())?;
        ensure!(
            damage != Damage::None || outcome == DamageOutcome::Whole,
            "{said}: a whole store is {outcome:?}"
        );
        if outcome == DamageOutcome::Refused {
            self.repair().with_context(|| format!("{said}, repaired"))?;
        }
        Ok((kind, damage, outcome))
    }

    fn outcome(&self) -> anyhow::Result<DamageOutcome> {
        let root = self.place.path();
        let store = match cuts::open(root) {
            Ok(store) => store,
            Err(error) => {
                let said = format!("{:#}", anyhow::Error::new(error));
                ensure!(
                    said.contains(&root.display().to_string()),
                    "no name: {said}"
                );
                return Ok(DamageOutcome::Refused);
            }
        };
        let torn = store.health()?.torn;
        match State::read(&store) {
            Err(_) => Ok(DamageOutcome::Reported),
            Ok((found, _)) => {
                let (confirmed, under_way) = self.expected;
                let is_whole = found == *confirmed || under_way.contains(&found);
                match torn {
                    Some(_) => Ok(DamageOutcome::Reported),
                    None if is_whole => Ok(DamageOutcome::Whole),
                    None => bail!("a silent loss: {}", confirmed.difference(&found)),
                }
            }
        }
    }

    /// Repairs the store, looks whether what is left is what was put, and uses it.
    fn repair(&self) -> anyhow::Result<()> {
        let root = self.place.path();
        let repaired = match cuts::options(root).repair() {
            // Not damage: a folder is in the place of a file, and the like.
            Err(OpenError::Foreign(_)) => return Ok(()),
            repaired => repaired?,
        };
        ensure!(!repaired.damage.is_empty(), "nothing was found");
        let store = cuts::open(root)?;
        if let Ok((found, _)) = State::read(&store) {
            for (name, held) in &found.queues {
                for (place, message) in &held.messages {
                    let put = self.payloads.get(&(name.clone(), place.clone()));
                    ensure!(
                        put == Some(&message.payload),
                        "a wrong message at {place:?}"
                    );
                }
            }
        }
        use_store(&store)?;
        drop(store);
        let store = cuts::open(root)?;
        let name = QueueName::parse("after-the-repair")?;
        let queue = store.queue(&name)?.context("the new queue is gone")?;
        let shard = store.claim(queue.id)?;
        let page = shard.scan(&fila_store::Cursor::start(), 10)?;
        ensure!(page.items.len() == 1, "the new message is gone");
        Ok(())
    }
}

/// Creates a queue, and puts a message into it.
fn use_store(store: &cuts::Store) -> anyhow::Result<()> {
    let name = QueueName::parse("after-the-repair")?;
    let queue = store.create_queue(&name, Bytes::from_static(b"{}"))?;
    let shard = store.claim(queue.id)?;
    let payload = Payload::new(Vec::new(), Bytes::from_static(b"new"))?;
    let key = FairnessKey::new(b"acme".to_vec())?;
    let mut meta = Meta::new(key, Timestamp::from_millis(1));
    meta.sizes = payload.sizes();
    let id = MessageId::new(shard.epoch(), 1).context("no id")?;
    let mut batch = Batch::new();
    batch.put(id, meta, payload);
    Ok(shard.commit(&batch)?)
}

/// Chooses a kind of file, and then a file or a folder of that kind. Half of them are files of the log, and few are folders.
fn choose(rng: &mut Rng, root: &Path) -> anyhow::Result<(String, PathBuf)> {
    let mut kinds: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            kinds.entry(kind(root, &path)).or_default().push(path);
        }
    }
    let chance = rng.u8(..8);
    let is_chosen = |kind: &str| match chance {
        0 => kind.ends_with('/'),
        1..=4 => kind.starts_with("log/") && !kind.ends_with('/'),
        _ => !kind.ends_with('/'),
    };
    let kinds = kinds.into_iter().filter(|(kind, _)| is_chosen(kind));
    let kinds: Vec<_> = kinds.collect();
    let (kind, mut paths) = rng.choice(kinds).context("an empty store")?;
    // Directories list their entries in any order.
    paths.sort();
    let path = rng.choice(paths).context("an empty kind")?;
    Ok((kind, path))
}

/// The kind of a file: its path in the store without its number.
fn kind(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).unwrap_or(path);
    let name = inside.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split('.').next().unwrap_or_default();
    let digits = stem.strip_prefix('v').unwrap_or(stem);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shown = if is_number {
        name.replace(digits, "N")
    } else {
        name.into_owned()
    };
    let shown = inside.with_file_name(shown).display().to_string();
    if path.is_dir() { shown + "/" } else { shown }
}

fn damage(rng: &mut Rng, path: &Path) -> anyhow::Result<Damage> {
    if path.is_dir() {
        fs::remove_dir_all(path)?;
        return Ok(Damage::Removed);
    }
    let mut bytes = fs::read(path)?;
    let damage = match rng.u8(..9) {
        0 => Damage::None,
        1 | 2 => Damage::Removed,
        _ if bytes.is_empty() => Damage::Removed,
        3 | 4 => Damage::Emptied,
        5 | 6 => Damage::Cut,
        _ => Damage::Flipped,
    };
    match damage {
        Damage::None => return Ok(damage),
        Damage::Removed => {
            fs::remove_file(path)?;
            return Ok(damage);
        }
        Damage::Emptied => bytes.clear(),
        Damage::Cut => bytes.truncate(rng.usize(..bytes.len())),
        Damage::Flipped => {
            // Among those that are written: a segment ends with zeros.
            let used = bytes.iter().rposition(|byte| *byte != 0);
            let used = used.map_or(bytes.len(), |last| last + 1);
            let at = rng.usize(..used);
            for _ in 0..rng.usize(1..=4) {
                let near = (at + rng.usize(..8)).min(used - 1);
                bytes[near] ^= 1 << rng.u8(..8);
            }
        }
    }
    fs::write(path, bytes)?;
    Ok(damage)
}
