//! A pause of a group: all its members stop, and no others.

use proptest::prelude::*;

use super::super::in_every;
use crate::driver::TreeDriver;
use crate::tree_run::{Spread, TreeRun};
use crate::trees::{DEPTH_MAX, Tree, trees};

/// Which nodes of a tree are parked.
struct Parked(Vec<bool>);

impl Parked {
    /// Returns whether a node may run, as far as pauses go.
    fn lets_run(&self, tree: &Tree, node: usize) -> bool {
        !tree.path(node).any(|above| self.0[above])
    }
}

/// With keys and groups parked and let go at random, while weights change and idle keys are evicted: `dispatch` yields
/// exactly if a key has work and neither it nor a group above it is parked; nothing parked is dispatched; all work comes
/// out once, and each key's in order.
pub fn a_paused_group_stops_its_members_and_no_others<D: TreeDriver>(make: impl Fn(u64) -> D) {
    in_every(150, trees(DEPTH_MAX), |tree| {
        let mut run = TreeRun::new(&make, tree);
        let mut parked = Parked(vec![false; run.tree.nodes()]);
        for _ in 0..800 {
            match run.run.dice.between(0, 15) {
                0..=4 => {
                    let key = run.run.dice.roll() as usize % run.tree.keys.len();
                    run.run.enqueue(key);
                }
                5..=9 => change(&mut run, &mut parked),
                _ => {
                    let keys = 0..run.tree.keys.len();
                    let lets_run = |key: usize| parked.lets_run(&run.tree, run.tree.node(key));
                    let runnable = keys.filter(|&key| run.run.waiting[key] > 0).any(lets_run);
                    let work = run.dispatch();
                    prop_assert_eq!(
                        work.is_some(),
                        runnable,
                        "dispatch yields exactly if a key may run"
                    );
                    if let Some(work) = work {
                        let node = run.tree.node(work.key as usize);
                        prop_assert!(parked.lets_run(&run.tree, node), "{work:?} is parked");
                    }
                }
            }
        }
        for node in 0..run.tree.nodes() {
            park(&mut run, node, false);
        }
        while run.dispatch().is_some() {}
        prop_assert!(
            run.run.waiting.iter().all(|&waiting| waiting == 0),
            "all work came out"
        );
        Ok(())
    });
}

/// Parks a node or lets it go, gives it another weight, or evicts it if it is an idle key.
fn change<D: TreeDriver>(run: &mut TreeRun<D>, parked: &mut Parked) {
    let groups = run.tree.groups.len();
    let node = run.run.dice.roll() as usize % run.tree.nodes();
    match run.run.dice.between(0, 4) {
        0..=2 => {
            parked.0[node] ^= true;
            park(run, node, parked.0[node]);
        }
        3 => {
            let weight = run.run.dice.between(1, 100) as u32;
            if node < groups {
                run.run.driver.set_group_weight(node as u32, weight);
            } else {
                run.run.world.tenants[node - groups].weight = weight;
                run.run.driver.set_weight((node - groups) as u32, weight);
            }
        }
        _ => {
            let key = node.checked_sub(groups);
            if let Some(key) = key.filter(|&key| run.run.waiting[key] == 0 && !parked.0[node]) {
                run.run.driver.evict(key as u32);
            }
        }
    }
}

fn park<D: TreeDriver>(run: &mut TreeRun<D>, node: usize, is_parked: bool) {
    let driver = &mut run.run.driver;
    let key = node.checked_sub(run.tree.groups.len());
    match (key, is_parked) {
        (Some(key), true) => driver.park(key as u32),
        (Some(key), false) => driver.unpark(key as u32),
        (None, true) => driver.park_group(node as u32),
        (None, false) => driver.unpark_group(node as u32),
    }
}

/// A group that is parked in the middle of its turns and let go again gets no more than its share, and the others keep
/// theirs among themselves, in every window.
pub fn parking_a_group_buys_nothing<D: TreeDriver>(make: impl Fn(u64) -> D) {
    in_every(100, (trees(DEPTH_MAX), 0usize..64), |(tree, pick)| {
        let mut run = TreeRun::new(&make, tree);
        let group = pick % run.tree.groups.len();
        let path: Vec<usize> = run.tree.path(group).collect();
        let siblings: Vec<usize> = run.tree.siblings(group).collect();
        let is_alone = path
            .iter()
            .all(|&node| run.tree.siblings(node).next().is_none());
        if is_alone {
            return Ok(()); // nothing runs while it is parked
        }
        let mut spread = Spread::new(run.tree.nodes());
        run.run.fill();
        for _ in 0..400 {
            let work = run.dispatch_backlogged();
            let is_inside = |work: u32, run: &TreeRun<D>| {
                let mut above = run.tree.path(run.tree.node(work as usize));
                above.any(|node| node == group)
            };
            if is_inside(work.key, &run) {
                run.run.driver.park_group(group as u32);
                for _ in 0..run.run.dice.between(0, 2) {
                    let other = run.dispatch_backlogged();
                    prop_assert!(!is_inside(other.key, &run), "{other:?} is parked");
                }
                run.run.driver.unpark_group(group as u32);
            }
            // The groups above may have had nothing else to run, and were away with it.
            spread.check(&run, 0, |node| !path.contains(&node))?;
            for &other in &siblings {
                let level = |node: usize| run.served[node] as f64 / run.tree.weight(node);
                let turn = |node: usize| run.turn_max(node) / run.tree.weight(node);
                let (ahead, bound) = (level(group) - level(other), turn(group) + turn(other));
                prop_assert!(
                    ahead <= 8.0 / 7.0 * bound + 1e-6,
                    "group {group} is {ahead} ahead of node {other}, allowed {bound}"
                );
            }
        }
        Ok(())
    });
}
