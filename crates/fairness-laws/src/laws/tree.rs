//! Groups: splitting into many keys buys nothing.

use proptest::prelude::*;

use super::{Verdict, in_every};
use crate::driver::TreeDriver;

/// A tenant with one key and a tenant with 100,000 keys get equal shares, within 1 %.
pub fn splitting_into_many_keys_buys_nothing<D: TreeDriver>(make: impl Fn(u64) -> D) {
    const MANY: u32 = 100_000;
    let mut driver = make(1000);
    driver.adopt(0, 0, 1);
    for key in 1..=MANY {
        driver.adopt(key, 1, 1);
        driver.enqueue(key, 1000, 1);
        driver.enqueue(key, 1000, 1);
    }
    let dispatches = 100_000;
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

/// Bounds add per level: inside a group keys share by their weights, and between groups the groups do,
/// in every window.
pub fn bounds_add_per_level<D: TreeDriver>(make: impl Fn(u64) -> D) {
    let group = (1u32..=100, prop::collection::vec(1u32..=100, 1..4));
    let world = (prop::collection::vec(group, 2..4), 1u64..=2000, 1u64..=2000);
    in_every(150, world, |(groups, quantum, cost)| {
        let mut driver = make(quantum);
        let mut members = Vec::new(); // (group, group's weight, weight) by key
        for (group, (group_weight, weights)) in groups.iter().enumerate() {
            for &weight in weights {
                let key = members.len() as u32;
                members.push((group, *group_weight, weight));
                driver.adopt(key, group as u32, *group_weight);
                for _ in 0..4 {
                    driver.enqueue(key, cost, weight);
                }
            }
        }
        let turn = (quantum + cost + driver.slack().quanta * quantum) as f64;
        let mut served = vec![0.0; members.len()];
        let mut group_served = vec![0.0; groups.len()];
        let mut groups_seen = Spread::new(groups.len());
        let mut keys_seen = Spread::new(members.len());
        for _ in 0..500 {
            let work = driver.dispatch().expect("every key has work");
            let key = work.key as usize;
            let (group, _, weight) = members[key];
            driver.enqueue(work.key, cost, weight);
            driver.finish(work, work.cost);
            served[key] += work.cost as f64;
            group_served[group] += work.cost as f64;
            let group_weight = |group: usize| f64::from(groups[group].0);
            groups_seen.check(&group_served, group_weight, turn, |_, _| true)?;
            let same_group = |i: usize, j: usize| members[i].0 == members[j].0;
            keys_seen.check(&served, |key| f64::from(members[key].2), turn, same_group)?;
        }
        Ok(())
    });
}

/// A group whose last key stops gives its share to the others at once, and a parked group gets nothing.
pub fn an_empty_group_leaves_its_share_to_the_others<D: TreeDriver>(make: impl Fn(u64) -> D) {
    let mut driver = make(10);
    for key in 0..4 {
        driver.adopt(key, key / 2, 1);
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

/// The range of `Wi/wi − Wj/wj` seen so far for pairs.
struct Spread {
    size: usize,
    seen: Vec<(f64, f64)>,
}

impl Spread {
    fn new(size: usize) -> Self {
        Self {
            size,
            seen: vec![(0.0, 0.0); size * size],
        }
    }

    fn check(
        &mut self,
        served: &[f64],
        weight: impl Fn(usize) -> f64,
        turn: f64,
        comparable: impl Fn(usize, usize) -> bool,
    ) -> Verdict {
        for i in 0..self.size {
            for j in (0..i).filter(|&j| comparable(i, j)) {
                let now = served[i] / weight(i) - served[j] / weight(j);
                let (low, high) = &mut self.seen[i * self.size + j];
                (*low, *high) = (low.min(now), high.max(now));
                let bound = 8.0 / 7.0 * turn * (1.0 / weight(i) + 1.0 / weight(j));
                prop_assert!(
                    *high - *low <= bound + 1e-6,
                    "{i} and {j} are {} apart, allowed {bound}",
                    *high - *low
                );
            }
        }
        Ok(())
    }
}
