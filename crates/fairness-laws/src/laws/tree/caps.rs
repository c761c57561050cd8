//! A cap of a group: so many of its members' pieces run at a time, and no others wait for it.

use proptest::prelude::*;

use super::super::in_every;
use crate::driver::{CapDriver, Dispatched};
use crate::tree_run::TreeRun;
use crate::trees::{DEPTH_MAX, trees};

/// The caps of groups, and how much of each runs.
struct Running {
    caps: Vec<Option<u32>>,
    in_flight: Vec<u32>,
    works: Vec<Dispatched>,
}

impl Running {
    fn has_room(&self, group: usize) -> bool {
        self.caps[group].is_none_or(|cap| self.in_flight[group] < cap)
    }
}

/// With caps on groups of any level that come, go and change: a group never starts a piece while as many run as may;
/// `dispatch` yields exactly if a key has work and every group above it has room.
pub fn a_capped_group_runs_no_more_than_its_cap_and_stops_no_others<D: CapDriver>(
    make: impl Fn(u64) -> D,
) {
    in_every(100, trees(DEPTH_MAX), |tree| {
        let groups = tree.groups.len();
        let mut run = TreeRun::new(&make, tree);
        let mut running = Running {
            caps: vec![None; groups],
            in_flight: vec![0; groups],
            works: Vec::new(),
        };
        for _ in 0..600 {
            match run.run.dice.between(0, 11) {
                0..=3 => {
                    let key = run.run.dice.roll() as usize % run.tree.keys.len();
                    run.run.enqueue(key);
                }
                4 => {
                    let group = run.run.dice.roll() as usize % groups;
                    let cap = run.run.dice.between(0, 4) as u32;
                    running.caps[group] = (cap > 0).then_some(cap);
                    let driver = &mut run.run.driver;
                    driver.set_group_cap(group as u32, running.caps[group]);
                }
                5..=7 => finish(&mut run, &mut running),
                _ => start(&mut run, &mut running)?,
            }
        }
        // With caps in force, all work comes out.
        loop {
            let before = running.works.len();
            start(&mut run, &mut running)?;
            if running.works.len() == before {
                if before == 0 {
                    break;
                }
                finish(&mut run, &mut running);
            }
        }
        prop_assert!(
            run.run.waiting.iter().all(|&waiting| waiting == 0),
            "all work came out"
        );
        Ok(())
    });
}

/// Dispatches a piece of work, and checks that there is one exactly if there may be.
fn start<D: CapDriver>(run: &mut TreeRun<D>, running: &mut Running) -> Result<(), TestCaseError> {
    let groups = |run: &TreeRun<D>, key: usize| -> Vec<usize> {
        run.tree.path(run.tree.node(key)).skip(1).collect()
    };
    let may_run = |key: &usize| {
        let mut above = groups(run, *key).into_iter();
        run.run.waiting[*key] > 0 && above.all(|group| running.has_room(group))
    };
    let runnable: Vec<usize> = (0..run.tree.keys.len()).filter(may_run).collect();
    let work = run.run.dispatch_only();
    prop_assert_eq!(
        work.is_some(),
        !runnable.is_empty(),
        "dispatch yields exactly if a key may run"
    );
    if let Some(work) = work {
        let key = work.key as usize;
        prop_assert!(runnable.contains(&key), "{work:?} is above a cap");
        for group in groups(run, key) {
            running.in_flight[group] += 1;
        }
        running.works.push(work);
    }
    Ok(())
}

/// Finishes a random piece of work, if one runs.
fn finish<D: CapDriver>(run: &mut TreeRun<D>, running: &mut Running) {
    if running.works.is_empty() {
        return;
    }
    let pick = run.run.dice.roll() as usize % running.works.len();
    let work = running.works.swap_remove(pick);
    run.run.driver.finish(work, work.cost);
    for group in run.tree.path(run.tree.node(work.key as usize)).skip(1) {
        running.in_flight[group] -= 1;
    }
}
