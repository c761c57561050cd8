//! Schedulers that say how long a key waits at most are held to it.

use proptest::prelude::*;

use super::super::in_every;
use crate::driver::BoundDriver;
use crate::tree_run::TreeRun;
use crate::trees::{DEPTH_MAX, trees};

/// At every step, for every key: others get no more before it is served than the scheduler has said, at any step since
/// the key was last served.
pub fn no_wait_is_longer_than_the_bound_on_its_path<D: BoundDriver>(make: impl Fn(u64) -> D) {
    for depth in 1..=DEPTH_MAX {
        in_every(75, trees(depth.max(2)), |mut tree| {
            if depth == 1 {
                tree.keys.iter_mut().for_each(|leaf| leaf.group = None);
                tree.groups.clear();
            }
            let mut run = TreeRun::new(&make, tree);
            let keys = run.tree.keys.len();
            let largest = (0..keys).map(|key| run.run.world.cost_max(key)).max();
            let largest = largest.expect("there are keys");
            run.run.fill();
            // What others may still get, by the strictest of all that was said.
            let mut allowed = vec![u64::MAX; keys];
            for _ in 0..300 {
                for (key, allowed) in allowed.iter_mut().enumerate() {
                    *allowed = run.run.driver.bound(key as u32, largest).min(*allowed);
                }
                let work = run.dispatch_backlogged();
                for (key, allowed) in allowed.iter_mut().enumerate() {
                    if work.key as usize == key {
                        *allowed = u64::MAX;
                        continue;
                    }
                    prop_assert!(
                        work.cost <= *allowed,
                        "key {key} waits for {} more than was said",
                        work.cost - *allowed
                    );
                    *allowed -= work.cost;
                }
            }
            Ok(())
        });
    }
}
