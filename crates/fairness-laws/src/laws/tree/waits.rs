//! How long a member of a group waits.

use proptest::prelude::*;

use super::super::in_every;
use crate::driver::TreeDriver;
use crate::tree_run::TreeRun;
use crate::trees::{DEPTH_MAX, trees};

/// A newcomer in a group waits while its siblings get two turns, and while the groups beside its own get their shares of
/// the time that takes, and so on upwards.
///
/// Let a node get at most `S` before the newcomer in it is served. By B1 each sibling `j` of that node gets at most
/// `wⱼ · (S/w + 8/7 · (T/w + Tⱼ/wⱼ) + Q)` meanwhile, so the node above gets at most the sum of these and `S`. The group
/// that the newcomer wakes, if there is one, is itself the newcomer, on its own level.
pub fn a_wait_adds_up_along_the_path<D: TreeDriver>(make: impl Fn(u64) -> D) {
    for depth in 2..=DEPTH_MAX {
        in_every(75, trees(depth), |tree| {
            let mut run = TreeRun::new(&make, tree);
            let mut absent: Vec<usize> = (0..run.tree.keys.len()).collect();
            while !absent.is_empty() {
                let pick = run.run.dice.roll() as usize % absent.len();
                let newcomer = absent.swap_remove(pick);
                let allowed = longest_wait(&run, newcomer);
                (0..4).for_each(|_| run.run.enqueue(newcomer));
                let mut others = 0;
                loop {
                    let work = run.dispatch_backlogged();
                    if work.key as usize == newcomer {
                        break;
                    }
                    others += work.cost;
                    prop_assert!(
                        others as f64 <= allowed,
                        "key {newcomer} waited for {others}, allowed {allowed}"
                    );
                }
                for _ in 0..run.run.dice.between(0, 40) {
                    run.dispatch_backlogged();
                }
            }
            Ok(())
        });
    }
}

/// Returns how much others get at most before a key that has just come is served.
fn longest_wait<D: TreeDriver>(run: &TreeRun<D>, newcomer: usize) -> f64 {
    let tree = &run.tree;
    // All groups that it wakes have no other work: their members do not compete with it.
    let mut path = tree
        .path(tree.node(newcomer))
        .skip_while(|&node| tree.parent(node).is_some_and(|above| !run.has_work(above)));
    let awoken = path.next().expect("the top has work, or there is no wait");
    let busy = |node: usize| {
        let siblings: Vec<usize> = tree.siblings(node).collect();
        siblings.into_iter().filter(|&other| run.has_work(other))
    };
    let longest = busy(awoken).map(|other| run.turn_max(other));
    let longest = longest.fold(0.0, f64::max);
    let dispatches = run.run.driver.slack().dispatches as f64;
    let mut wait = (2.0 + dispatches) * longest;
    for node in path {
        let weight = tree.weight(node);
        let beside = busy(node).map(|other| {
            let share = tree.weight(other) / weight;
            let turns = share * run.turn_max(node) + run.turn_max(other);
            let joined = tree.weight(other) * tree.quantum as f64;
            share * wait + 8.0 / 7.0 * turns + joined
        });
        wait += beside.sum::<f64>();
    }
    wait * (1.0 + 1e-9)
}
