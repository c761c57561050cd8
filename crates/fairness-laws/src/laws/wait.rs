//! B2: how long a key waits.

use proptest::prelude::*;

use super::in_every;
use crate::driver::Driver;
use crate::run::Run;
use crate::trace::{Tenant, World, worlds};

/// A key that becomes runnable without debt is served after a bounded amount of service to others.
///
/// The turn under way, one turn for each newcomer that came before it, and a turn of the ring before each
/// of them: `F` earlier newcomers make it wait for at most `Σ T(newcomers) + (F + 2) · max T`, where a turn
/// `T` is a quantum and one piece of work that overshoots it.
pub fn a_newcomer_waits_at_most_for_earlier_newcomers<D: Driver>(make: impl Fn(u64) -> D) {
    in_every(300, worlds(2..60), |world| {
        let mut run = Run::new(&make, world);
        let keys = run.world.tenants.len();
        let longest = (0..keys)
            .map(|key| run.turn_max(key))
            .max()
            .expect("there are keys");
        // For each newcomer that waits: what others may get, and have got, before it is served.
        let mut waits: Vec<Option<(u64, u64)>> = vec![None; keys];
        let mut arrived = 0;
        while arrived < keys {
            if run.dice.one_in(3) {
                let ahead: Vec<usize> = (0..keys).filter(|&other| waits[other].is_some()).collect();
                let newcomers: u64 = ahead.iter().map(|&other| run.turn_max(other)).sum();
                let slack = run.driver.slack().dispatches * longest;
                waits[arrived] = Some((newcomers + (ahead.len() as u64 + 2) * longest + slack, 0));
                for _ in 0..run.dice.between(1, 20) {
                    run.enqueue(arrived);
                }
                arrived += 1;
            }
            let Some(work) = run.dispatch() else { continue };
            waits[work.key as usize] = None;
            for (other, wait) in waits.iter_mut().enumerate() {
                if let Some((allowed, waited)) = wait {
                    *waited += work.cost;
                    prop_assert!(
                        *waited <= *allowed,
                        "key {other} waited for {waited}, allowed {allowed}"
                    );
                }
            }
        }
        Ok(())
    });
}

/// Among 1, 10 and 1,000 hot keys, a quiet key's work is dispatched after at most a few others.
pub fn a_quiet_key_is_served_ahead_of_the_hot_ones<D: Driver>(make: impl Fn(u64) -> D) {
    for hot in [1, 10, 1000] {
        let tenants = vec![Tenant::steady(1, 1000); hot + 1];
        let mut run = Run::new(
            &make,
            World {
                quantum: 1000,
                tenants,
                seed: 1,
            },
        );
        let allowed = 1 + run.driver.slack().dispatches;
        for key in 0..hot {
            for _ in 0..4 {
                run.enqueue(key);
            }
        }
        for round in 0..20 {
            for _ in 0..2 * hot + round {
                run.dispatch_backlogged();
            }
            run.enqueue(hot);
            let ahead = (0..).take_while(|_| {
                let work = run.dispatch().expect("there is work");
                if work.key as usize != hot {
                    run.enqueue(work.key as usize);
                }
                work.key as usize != hot
            });
            let ahead = ahead.count() as u64;
            assert!(
                ahead <= allowed,
                "{hot} hot keys: the quiet one waited for {ahead}"
            );
        }
    }
}

/// Leaving and coming back within a pass earns no second boost: a key that brings one piece at a time, each
/// as soon as the last is done, gets no more than one that is always backlogged.
pub fn leaving_and_returning_earns_no_second_boost<D: Driver>(make: impl Fn(u64) -> D) {
    for hot in [1, 3, 10, 100] {
        let tenants = vec![Tenant::steady(1, 1000); hot + 1];
        let mut run = Run::new(
            &make,
            World {
                quantum: 1000,
                tenants,
                seed: 1,
            },
        );
        for key in 0..hot {
            for _ in 0..4 {
                run.enqueue(key);
            }
        }
        for _ in 0..10 * hot {
            run.dispatch_backlogged();
        }
        run.enqueue(hot);
        let before = run.served.clone();
        for _ in 0..50 * (hot + 1) {
            run.dispatch_backlogged(); // the quiet key's next piece comes right after the last
        }
        let quiet = (run.served[hot] - before[hot]) / 1000;
        let slack = run.driver.slack().quanta;
        assert!(
            quiet <= 52 + slack,
            "beside {hot} hot keys, leaving and returning got {quiet} of a fair 50"
        );
    }
}

/// However many new keys keep coming, those in the ring go on getting served.
///
/// Newcomers go first until, together, they have had a round's worth of everyone's share, `W · Q`; then
/// they and the ring take turns, and those that pile up meanwhile each get a turn once the ring is past
/// them. So `F` newcomers at a time let a key in the ring wait for at most
/// `W · Q + F · T(newcomer) + Σ (T(ring) + T(newcomer))`.
pub fn endless_newcomers_do_not_starve_the_ring<D: Driver>(make: impl Fn(u64) -> D) {
    const OLD: usize = 5;
    const NEW: usize = 10_000;
    const QUANTUM: u64 = 1000;
    for cost in [100, QUANTUM, 100 * QUANTUM] {
        let mut tenants = vec![Tenant::steady(1, QUANTUM); OLD];
        tenants.extend(vec![Tenant::steady(1, cost); NEW]);
        let mut run = Run::new(
            &make,
            World {
                quantum: QUANTUM,
                tenants,
                seed: 1,
            },
        );
        for key in 0..OLD {
            for _ in 0..4 {
                run.enqueue(key);
            }
        }
        for _ in 0..10 * OLD {
            run.dispatch_backlogged();
        }
        let pass = OLD as u64 * (run.turn_max(0) + run.turn_max(OLD));
        let slack = run.driver.slack().dispatches * cost.max(QUANTUM);
        let mut others = [0_u64; OLD];
        let (mut newcomers, mut newcomers_max) = (0, 0);
        for newcomer in OLD..OLD + NEW {
            run.enqueue(newcomer); // one for every dispatch: the newcomers alone fill the server
            newcomers += 1;
            newcomers_max = newcomers.max(newcomers_max);
            let work = run.dispatch().expect("there is work");
            others.iter_mut().for_each(|service| *service += work.cost);
            match others.get_mut(work.key as usize) {
                Some(mine) => {
                    *mine = 0;
                    run.enqueue(work.key as usize);
                }
                None => newcomers -= 1,
            }
            let weight = OLD as u64 + newcomers_max;
            let allowed = weight * QUANTUM + newcomers_max * run.turn_max(OLD) + pass + slack;
            let longest = others.iter().max().expect("not empty");
            assert!(
                *longest <= allowed,
                "an old key waited for {longest}, allowed {allowed}"
            );
        }
    }
}
