//! No work is lost or invented, and no key waits while the server could work.

use proptest::prelude::*;

use super::in_every;
use crate::driver::Driver;
use crate::run::Run;
use crate::trace::{Tenant, World, worlds};

/// If any key may run, `dispatch` yields; a parked or empty key is never dispatched; all work comes out
/// once, and each key's in order.
pub fn the_server_never_idles_while_a_key_may_run<D: Driver>(make: impl Fn(u64) -> D) {
    in_every(300, worlds(1..8), |world| {
        let mut run = Run::new(&make, world);
        let keys = run.world.tenants.len();
        let mut parked = vec![false; keys];
        for _ in 0..1_000 {
            let key = (run.dice.roll() % keys as u64) as usize;
            match run.dice.between(0, 9) {
                0..=3 => run.enqueue(key),
                4 => {
                    parked[key] = true;
                    run.driver.park(key as u32);
                }
                5 => {
                    parked[key] = false;
                    run.driver.unpark(key as u32);
                }
                6 => {
                    let weight = run.dice.between(1, 1000) as u32;
                    run.world.tenants[key].weight = weight;
                    run.driver.set_weight(key as u32, weight);
                }
                _ => {
                    let runnable = (0..keys).any(|key| run.waiting[key] > 0 && !parked[key]);
                    let work = run.dispatch();
                    prop_assert_eq!(
                        work.is_some(),
                        runnable,
                        "dispatch yields exactly if a key may run"
                    );
                    if let Some(work) = work {
                        prop_assert!(!parked[work.key as usize], "key {} is parked", work.key);
                    }
                }
            }
        }
        for key in 0..keys {
            run.driver.unpark(key as u32);
        }
        while run.dispatch().is_some() {}
        prop_assert!(
            run.waiting.iter().all(|&waiting| waiting == 0),
            "all work came out"
        );
        Ok(())
    });
}

/// A key that is parked in the middle of its turns and let go again keeps its share: parking moves it in
/// time, never ahead of what it has used.
pub fn parking_buys_nothing<D: Driver>(make: impl Fn(u64) -> D) {
    // A newcomer's large piece once moved the clock past a key that had not been served, which let key 0
    // count as having sat out a pass.
    let known = World {
        quantum: 7,
        tenants: vec![
            Tenant {
                weight: 1000,
                costs: (1, 1156),
            },
            Tenant {
                weight: 1,
                costs: (1, 10_000),
            },
            Tenant::steady(73, 1),
        ],
        seed: 12_634_477_225_694_476_614,
    };
    let law = |world: World| {
        let mut run = Run::new(&make, world);
        run.fill();
        let weight = |run: &Run<D>, key: usize| f64::from(run.world.tenants[key].weight);
        for _ in 0..600 {
            let work = run.dispatch_backlogged();
            if work.key == 0 {
                // Key 0 parks after every dispatch and comes back after a moment.
                run.driver.park(0);
                for _ in 0..run.dice.between(0, 2) {
                    run.dispatch_backlogged();
                }
                run.driver.unpark(0);
            }
            for other in 1..run.world.tenants.len() {
                let ahead = run.served[0] as f64 / weight(&run, 0)
                    - run.served[other] as f64 / weight(&run, other);
                let bound = run.turn_max(0) as f64 / weight(&run, 0)
                    + run.turn_max(other) as f64 / weight(&run, other);
                prop_assert!(
                    ahead <= 8.0 / 7.0 * bound + 1e-6,
                    "key 0 is {ahead} ahead of key {other}, allowed {bound}"
                );
            }
        }
        Ok(())
    };
    law(known).expect("the known world obeys");
    in_every(200, worlds(2..5), law);
}
