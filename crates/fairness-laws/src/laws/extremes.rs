//! The largest numbers there are: no overflow, no panic, no livelock.

use super::in_every;
use crate::driver::Driver;
use proptest::prelude::*;

/// With any mix of the smallest and largest costs, weights and quanta, every dispatch yields, and what is
/// enqueued comes out.
pub fn the_largest_numbers_do_no_harm<D: Driver>(make: impl Fn(u64) -> D) {
    let edge = prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(u64::MAX / 2),
        Just(1 << 44),
        any::<u64>()
    ];
    let weight = prop_oneof![
        Just(1),
        Just(u32::MAX),
        Just(65_536),
        Just(65_537),
        1..=u32::MAX
    ];
    let quantum = prop_oneof![Just(1), Just(u64::MAX), Just(1 << 32), 1..=u64::MAX];
    let step = (0u32..4, edge.clone(), edge, weight, 0u32..6);
    in_every(
        300,
        (quantum, prop::collection::vec(step, 1..200)),
        |(quantum, steps)| {
            let mut driver = make(quantum);
            let (mut enqueued, mut dispatched) = (0, 0);
            let mut in_flight = Vec::new();
            for (key, cost, actual, weight, verb) in steps {
                match verb {
                    0..=2 => {
                        driver.enqueue(key, cost, weight);
                        enqueued += 1;
                    }
                    3 => driver.set_weight(key, weight),
                    4 => {
                        if let Some(work) = driver.dispatch() {
                            in_flight.push(work);
                            dispatched += 1;
                        }
                    }
                    _ => {
                        if let Some(work) = in_flight.pop() {
                            driver.finish(work, actual);
                        }
                    }
                }
            }
            while let Some(work) = driver.dispatch() {
                driver.finish(work, u64::MAX);
                dispatched += 1;
            }
            prop_assert_eq!(dispatched, enqueued, "everything came out");
            Ok(())
        },
    );
}

/// Beside a key that always takes the largest cost there is, others are served, and it is served again.
pub fn the_dearest_work_starves_no_key<D: Driver>(make: impl Fn(u64) -> D) {
    let mut driver = make(1);
    let mut served = [0_u32; 2];
    for _ in 0..3 {
        driver.enqueue(0, u64::MAX, 1);
    }
    for _ in 0..1_000 {
        driver.enqueue(1, 1, u32::MAX);
    }
    while let Some(work) = driver.dispatch() {
        driver.finish(work, work.cost);
        served[work.key as usize] += 1;
        if served[0] == 1 && served[1] == 1_000 {
            assert_eq!(work.key, 1, "the dear key pays before it is served again");
        }
    }
    assert_eq!(served, [3, 1_000]);
}
