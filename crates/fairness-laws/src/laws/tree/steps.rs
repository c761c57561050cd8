//! How much work a choice takes in a tree, counted, not timed.

use crate::driver::{CountingDriver, TreeDriver};

/// With a million groups of one member, one group of a million members, a hundred of a thousand, and on four levels: a
/// dispatch looks at no more than two nodes on each level, on average.
pub fn a_dispatch_takes_two_steps_on_each_level<D: TreeDriver + CountingDriver>(
    make: impl Fn(u64) -> D,
) {
    for (keys, members) in [(1_000_000, 1), (100_000, 1_000), (1_000_000, 1_000_000)] {
        let mut driver = make(1000);
        for key in 0..keys {
            let group = key / members;
            if key % members == 0 {
                driver.found(group, None, 1 + group % 5);
            }
            driver.adopt(key, group);
            driver.enqueue(key, 1000, 1 + key % 7);
        }
        assert_steps(&mut driver, 2, u64::from(keys) + 100_000);
    }
    let mut driver = make(1000);
    let mut groups = 0;
    for key in 0..10_000 {
        // A tree of ten members in each group, down to the keys.
        for (level, size) in [1_000, 100, 10].into_iter().enumerate() {
            if key % size == 0 {
                let parent = (level > 0).then(|| group_of(key, level - 1));
                driver.found(group_of(key, level), parent, 1 + groups % 3);
                groups += 1;
            }
        }
        driver.adopt(key, group_of(key, 2));
        driver.enqueue(key, 1000, 1 + key % 7);
    }
    assert_steps(&mut driver, 4, 100_000);
}

/// Returns the group of a key on a level of the tree of tens.
const fn group_of(key: u32, level: usize) -> u32 {
    match level {
        0 => 100_000 + key / 1_000,
        1 => 200_000 + key / 100,
        _ => 300_000 + key / 10,
    }
}

/// A hundred thousand parked groups, and as many parked members, beside runnable ones cost nothing.
pub fn parked_groups_cost_nothing<D: TreeDriver + CountingDriver>(make: impl Fn(u64) -> D) {
    const PARKED: u32 = 100_000;
    let mut driver = make(1000);
    for group in 1..=PARKED {
        driver.found(group, None, 1);
        driver.adopt(group, group);
        driver.enqueue(group, 1000, 1);
        driver.park_group(group);
    }
    driver.found(0, None, 1);
    for key in PARKED + 1..=2 * PARKED {
        driver.adopt(key, 0);
        driver.enqueue(key, 1000, 1);
        driver.park(key);
    }
    driver.adopt(0, 0);
    driver.enqueue(0, 1000, 1);
    driver.enqueue(2 * PARKED + 1, 1000, 1);
    assert_steps(&mut driver, 2, 10_000);
}

/// Corrections after the fact add no walks, on no level: every dispatch settled a hundredfold.
pub fn settlement_adds_no_walks_in_groups<D: TreeDriver + CountingDriver>(make: impl Fn(u64) -> D) {
    const DISPATCHES: u64 = 50_000;
    let mut driver = make(10);
    for group in 0..10 {
        driver.found(group, None, 1);
    }
    for key in 0..100 {
        driver.adopt(key, key % 10);
        driver.enqueue(key, 10, 1);
        driver.enqueue(key, 10, 1);
    }
    let before = driver.steps();
    let mut in_flight = std::collections::VecDeque::new();
    for _ in 0..DISPATCHES {
        let work = driver.dispatch().expect("every key has work");
        driver.enqueue(work.key, 10, 1);
        in_flight.push_back(work);
        if in_flight.len() == 8 {
            let work = in_flight.pop_front().expect("just filled");
            driver.finish(work, 1_000 * u64::from(work.key % 2) + 1);
        }
    }
    let steps = driver.steps() - before;
    assert!(
        steps <= 2 * 2 * DISPATCHES,
        "{steps} steps for {DISPATCHES} dispatches on two levels"
    );
}

fn assert_steps<D: CountingDriver>(driver: &mut D, levels: u64, dispatches: u64) {
    let before = driver.steps();
    for _ in 0..dispatches {
        let work = driver.dispatch().expect("a key has work");
        driver.enqueue(work.key, 1000, 1 + work.key % 7);
        driver.finish(work, work.cost);
    }
    let steps = driver.steps() - before;
    assert!(
        steps <= 2 * levels * dispatches,
        "{steps} steps for {dispatches} dispatches on {levels} levels"
    );
}
