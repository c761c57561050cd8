//! How much service a group gets, and each of its members.

use proptest::prelude::*;

use super::super::{in_every, steps};
use crate::driver::TreeDriver;
use crate::tree_run::{Spread, TreeRun};
use crate::trees::{DEPTH_MAX, trees};

/// A tenant with one key and a tenant with 100,000 keys get equal shares, within 1 %.
pub fn splitting_into_many_keys_buys_nothing<D: TreeDriver>(make: impl Fn(u64) -> D) {
    const MANY: u32 = 100_000;
    let mut driver = make(1000);
    driver.found(0, None, 1);
    driver.found(1, None, 1);
    driver.adopt(0, 0);
    for key in 1..=MANY {
        driver.adopt(key, 1);
        driver.enqueue(key, 1000, 1);
        driver.enqueue(key, 1000, 1);
    }
    let dispatches = steps(100_000);
    let mut single = 0;
    for _ in 0..dispatches + 1 {
        driver.enqueue(0, 1000, 1);
    }
    for _ in 0..dispatches {
        let work = driver.dispatch().expect("both have work");
        driver.finish(work, work.cost);
        single += u32::from(work.key == 0);
    }
    let share = f64::from(single) / f64::from(dispatches);
    assert!(
        (share / 0.5 - 1.0).abs() <= 0.01,
        "the tenant with one key got {share:.4} of the service"
    );
}

/// However a tenant arranges its keys, in how many levels and with which weights, and whichever of them come and go: as
/// long as it has some work, it gets the share of its own weight, in every window.
pub fn splitting_in_any_way_buys_nothing<D: TreeDriver>(make: impl Fn(u64) -> D) {
    in_every(100, trees(DEPTH_MAX), |tree| {
        let mut run = TreeRun::new(&make, tree);
        let tree = run.tree.clone();
        let is_top = |node: usize| tree.parent(node).is_none();
        let mut spread = Spread::new(tree.nodes());
        run.run.fill();
        for _ in 0..500 {
            let work = run.dispatch().expect("every tenant has work");
            let key = work.key as usize;
            let top = tree.path(tree.node(key)).last().expect("itself, at least");
            // Some key of the same tenant gets the next piece, or more of them.
            let keys: Vec<usize> = tree.keys_in(top).collect();
            while run.run.dice.one_in(3) || !run.has_work(top) {
                let pick = run.run.dice.roll() as usize % keys.len();
                run.run.enqueue(keys[pick]);
            }
            spread.check(&run, 0, is_top)?;
        }
        Ok(())
    });
}

/// Bounds add per level: in a tree of two, three and four levels, the members of each group share by their weights,
/// and the groups beside each other do, in every window.
pub fn bounds_add_per_level<D: TreeDriver>(make: impl Fn(u64) -> D) {
    for depth in 2..=DEPTH_MAX {
        in_every(75, trees(depth), |tree| {
            let mut run = TreeRun::new(&make, tree);
            let mut spread = Spread::new(run.tree.nodes());
            run.run.fill();
            for _ in 0..500 {
                run.dispatch_backlogged();
                spread.check(&run, 0, |_| true)?;
            }
            Ok(())
        });
    }
}

/// Against a fluid server that serves the whole tree at once, a key is behind or ahead by what its own level allows and
/// its share of what the levels above allow.
///
/// A node is behind its share of what its parent got by at most its share of one turn of every sibling, and ahead by at
/// most one turn of its own: B1′ on each level.
pub fn service_stays_close_to_the_fluid_tree<D: TreeDriver>(make: impl Fn(u64) -> D) {
    for depth in 2..=DEPTH_MAX {
        in_every(50, trees(depth), |tree| {
            let mut run = TreeRun::new(&make, tree);
            let tree = run.tree.clone();
            run.run.fill();
            let mut total = 0.0;
            for _ in 0..300 {
                total += run.dispatch_backlogged().cost as f64;
                for node in 0..tree.nodes() {
                    let (mut share, mut behind, mut ahead) = (1.0, 0.0, 0.0);
                    for node in tree.path(node) {
                        let others: Vec<usize> = tree.siblings(node).collect();
                        let weight = tree.weight(node);
                        let weights = weight + sum(&others, |other| tree.weight(other));
                        let turn = run.turn_max(node);
                        let turns = turn + sum(&others, |other| run.turn_max(other));
                        behind += share * 8.0 / 7.0 * weight / weights * turns;
                        ahead += share * 8.0 / 7.0 * turn;
                        share *= weight / weights;
                    }
                    let lag = share * total - run.served[node] as f64;
                    prop_assert!(
                        lag <= behind + 1e-6,
                        "node {node} is {lag} behind, allowed {behind}"
                    );
                    prop_assert!(
                        -lag <= ahead + 1e-6,
                        "node {node} is {} ahead, allowed {ahead}",
                        -lag
                    );
                }
            }
            Ok(())
        });
    }
}

fn sum(nodes: &[usize], of: impl Fn(usize) -> f64) -> f64 {
    nodes.iter().map(|&node| of(node)).sum()
}

/// A group whose last key stops gives its share to the others at once, and a parked group gets nothing.
pub fn an_empty_group_leaves_its_share_to_the_others<D: TreeDriver>(make: impl Fn(u64) -> D) {
    let mut driver = make(10);
    for group in 0..2 {
        driver.found(group, None, 1);
    }
    for key in 0..4 {
        driver.adopt(key, key / 2);
    }
    for _ in 0..100 {
        driver.enqueue(0, 10, 1);
        driver.enqueue(1, 10, 1);
    }
    driver.enqueue(2, 10, 1);
    let mut order = Vec::new();
    while let Some(work) = driver.dispatch() {
        driver.finish(work, work.cost);
        order.push(work.key);
    }
    assert_eq!(order.len(), 201, "everything was served");
    let at = order
        .iter()
        .position(|&key| key == 2)
        .expect("it was served");
    assert!(at <= 3, "the key alone in its group was served at {at}");
}

/// A new weight of a group acts on all work that waits in it already, on any level.
pub fn a_new_weight_of_a_group_acts_on_the_backlog<D: TreeDriver>(make: impl Fn(u64) -> D) {
    let world = (trees(DEPTH_MAX), 0usize..64, 1u32..=100);
    in_every(60, world, |(tree, pick, weight)| {
        let mut run = TreeRun::new(&make, tree);
        // All the work is queued before the change.
        for key in 0..run.tree.keys.len() {
            (0..300).for_each(|_| run.run.enqueue(key));
        }
        for _ in 0..100 {
            run.dispatch();
        }
        let group = pick % run.tree.groups.len();
        run.run.driver.set_group_weight(group as u32, weight);
        run.tree.groups[group].weight = weight;
        run.served.fill(0);
        // One turn of each may have been under way, which counts as a quantum and a piece of work more.
        let mut spread = Spread::new(run.tree.nodes());
        spread.extra_turns = 1;
        while run.run.waiting.iter().all(|&waiting| waiting > 0) {
            run.dispatch();
            spread.check(&run, 0, |_| true)?;
        }
        Ok(())
    });
}
