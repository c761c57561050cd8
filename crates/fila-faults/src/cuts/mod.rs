//! Random work on a real store, the power cut at random moments, and what is there afterwards.
//!
//! The run records one *work* once and cuts it at many moments. It opens the directory that a cut leaves, compares it with
//! the confirmed state, works on it, and cuts it again: anywhere in the second opening or in the work after it. The
//! commits that were under way at a cut have happened as a whole, or not at all, and none without those before it.
//!
//! The database has threads of its own, so the same seed makes the same work, but not every byte in the same order: a
//! failure leaves the directory behind in which it showed.

mod state;
mod work;

use std::ops::AddAssign;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use tempfile::TempDir;

pub use state::{Held, Shards, State, Store, StoreShard, open, options};

use crate::{Disk, FileSystem, Op, Recording, Watch};
use work::Work;

/// Cuts that are made of one work, half of them after a first one.
pub const CUTS_PER_WORK: usize = 100;

const STEPS: usize = 250;
const FIRST_OPERATIONS: usize = 150;
const STEPS_AFTER_A_CUT: usize = 6;

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cuts.
    pub cuts: usize,
    /// Those in the middle of a commit or another change.
    pub amid: usize,
    /// Those of them after which the change was there.
    pub kept: usize,
    /// Messages that were there after a cut, all of them whole.
    pub messages: usize,
    /// Operations on files that were recorded.
    pub operations: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.amid += other.amid;
        self.kept += other.kept;
        self.messages += other.messages;
        self.operations += other.operations;
    }
}

/// Records one work and cuts the power in it, up to [`CUTS_PER_WORK`] times.
///
/// # Errors
/// If something confirmed is gone or changed, a change half done, a store not opened. Says where, and what to repeat.
pub fn run(seed: u64, cuts: usize) -> anyhow::Result<Tally> {
    let mut rng = Rng::with_seed(seed);
    let place = place()?;
    let (recording, states) = record(&mut rng, place.path(), STEPS)?;
    for file_system in [FileSystem::Strict, FileSystem::Ordered] {
        let mut disk = Disk::new(&recording, file_system);
        disk.advance(recording.ops.len());
        disk.compare(place.path())?;
    }
    cut(&mut rng, &recording, &states, cuts).with_context(|| format!("seed {seed}"))
}

/// Cuts the power in a recorded work, and compares what is left with what had been confirmed.
///
/// # Errors
/// As [`run`].
pub fn cut(
    rng: &mut Rng,
    recording: &Recording,
    states: &[State],
    cuts: usize,
) -> anyhow::Result<Tally> {
    let of = recording.ops.len();
    let mut tally = Tally {
        operations: of,
        ..Tally::default()
    };
    for file_system in [FileSystem::Strict, FileSystem::Ordered] {
        let mut disk = Disk::new(recording, file_system);
        let moments = std::iter::repeat_with(|| moment(rng, of));
        let mut moments: Vec<usize> = moments.take(cuts.div_ceil(4)).collect();
        moments.sort_unstable();
        for moment in moments {
            let choice = rng.u64(..);
            disk.advance(moment);
            let cut = Cut {
                recording,
                states,
                file_system,
                moment,
            };
            let cut = cut.twice(&disk, choice);
            tally += cut.with_context(|| {
                format!("{file_system:?}, cut after {moment} of {of}, choice {choice}")
            })?;
        }
    }
    Ok(tally)
}

/// Returns after how many operations to cut. The first ones, by which a store is made, come up more often.
fn moment(rng: &mut Rng, operations: usize) -> usize {
    let most = if rng.u8(..8) == 0 {
        operations.min(FIRST_OPERATIONS)
    } else {
        operations
    };
    rng.usize(..=most)
}

/// Records random work of `steps` steps in an empty directory, and returns the expected state of the store before and after
/// each step.
///
/// # Errors
/// If something fails, which nothing should.
pub fn record(rng: &mut Rng, path: &Path, steps: usize) -> anyhow::Result<(Recording, Vec<State>)> {
    let watch = Watch::recording(path)?;
    let store = open(watch.root())?;
    let states = Work::on(&watch, rng, store)?.play(steps)?;
    Ok((watch.finish(), states))
}

/// A moment of a recording.
struct Cut<'a> {
    recording: &'a Recording,
    states: &'a [State],
    file_system: FileSystem,
    moment: usize,
}

impl Cut<'_> {
    /// Cuts, opens, works, cuts again, and opens again.
    fn twice(&self, disk: &Disk<'_>, choice: u64) -> anyhow::Result<Tally> {
        let mut rng = Rng::with_seed(choice);
        let first = place()?;
        let chance = rng.clone();
        disk.cut(&mut rng, first.path())?;
        let watch = Watch::recording(first.path())?;
        let survived = self.survive(&watch, &mut rng);
        let (mut tally, states) = survived.with_context(|| kept(disk, chance))?;
        let recording = watch.finish();
        let second = place()?;
        let moment = rng.usize(..=recording.ops.len());
        let mut disk = Disk::new(&recording, self.file_system);
        disk.advance(moment);
        let chance = rng.clone();
        disk.cut(&mut rng, second.path())?;
        let again = Cut {
            recording: &recording,
            states: &states,
            file_system: self.file_system,
            moment,
        };
        let found = again.survive_again(second.path());
        tally += found.with_context(|| {
            let of = recording.ops.len();
            format!(
                "second cut, after {moment} of {of}; {}",
                kept(&disk, chance)
            )
        })?;
        Ok(tally)
    }

    /// Opens what a cut has left, compares, and goes on working.
    fn survive(&self, watch: &Watch, rng: &mut Rng) -> anyhow::Result<(Tally, Vec<State>)> {
        let store = open(watch.root()).context("not opened")?;
        let work = Work::on(watch, rng, store)?;
        let tally = self.check(work.state())?;
        ensure!(
            work.epoch().is_none_or(|now| Some(now) > self.last_epoch()),
            "an epoch was given twice"
        );
        Ok((tally, work.play(STEPS_AFTER_A_CUT)?))
    }

    fn survive_again(&self, path: &Path) -> anyhow::Result<Tally> {
        let store = open(path).context("not opened")?;
        let (found, _shards) = State::read(&store)?;
        self.check(&found)
    }

    fn expected(&self) -> (&State, &[State]) {
        expected(self.recording, self.states, self.moment)
    }

    fn last_epoch(&self) -> Option<u32> {
        self.expected().0.last_epoch()
    }

    fn check(&self, found: &State) -> anyhow::Result<Tally> {
        let (confirmed, under_way) = self.expected();
        let kept = found != confirmed && under_way.contains(found);
        if found != confirmed && !kept {
            let or: Vec<_> = under_way
                .iter()
                .map(|next| next.difference(found))
                .collect();
            bail!("{}; or {or:?}", confirmed.difference(found));
        }
        let is_amid = under_way.iter().any(|next| next != confirmed);
        Ok(Tally {
            cuts: 1,
            amid: usize::from(is_amid),
            kept: usize::from(kept),
            messages: found.queues.values().map(|held| held.messages.len()).sum(),
            operations: 0,
        })
    }
}

/// Returns the state that was confirmed at a moment, and those after it of the changes under way.
pub(crate) fn expected<'a>(
    recording: &Recording,
    states: &'a [State],
    moment: usize,
) -> (&'a State, &'a [State]) {
    let marks = recording.ops[..moment].iter();
    let marks = marks.filter_map(|op| match op {
        Op::Mark(mark) => Some(*mark as usize),
        Op::Write { .. }
        | Op::SetLen { .. }
        | Op::Enter { .. }
        | Op::Remove { .. }
        | Op::Rename { .. }
        | Op::Sync { .. } => None,
    });
    let (mut confirmed, mut begun) = (0, 0);
    for mark in marks {
        begun = mark / 2 + 1;
        if mark % 2 == 1 {
            confirmed = begun;
        }
    }
    let begun = begun.clamp(confirmed, states.len() - 1);
    (&states[confirmed], &states[confirmed + 1..=begun])
}

/// Puts what a cut has left into a directory that stays, and says where.
fn kept(disk: &Disk<'_>, mut chance: Rng) -> String {
    let kept = tempfile::tempdir().and_then(|place| {
        disk.cut(&mut chance, place.path())?;
        Ok(place.keep())
    });
    match kept {
        Ok(path) => format!("what the cut has left is in {}", path.display()),
        Err(error) => format!("what the cut has left could not be kept: {error}"),
    }
}

/// Returns a directory that vanishes, in memory if there is such a place: the disk beneath is simulated anyway.
pub(crate) fn place() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
}
