//! B1: how much service a key gets.

use proptest::prelude::*;

use super::{Verdict, in_every, steps};
use crate::driver::Driver;
use crate::run::Run;
use crate::trace::{Tenant, World, worlds};

/// Between keys that stay backlogged, `|Wi/wi − Wj/wj|` stays below a constant in *every* window.
///
/// The bound is `8/7 · ((Q + Li)/wi + (Q + Lj)/wj)`. A window's difference is the difference between its
/// two ends, so it is enough that the whole range of `Wi/wi − Wj/wj`, looked at after every dispatch, is
/// no wider than that.
pub fn shares_stay_within_the_bound_in_every_window<D: Driver>(make: impl Fn(u64) -> D) {
    in_every(300, worlds(2..6), |world| {
        let mut run = Run::new(&make, world);
        let mut ranges = Ranges::new(&run);
        run.fill();
        // Newcomers are served ahead of the ring once; their first turns are part of every window too.
        for _ in 0..600 {
            run.dispatch_backlogged();
            ranges.check(&run)?;
        }
        Ok(())
    });
}

/// The bound holds for keys that come and go, too, from the moment at which both have work.
///
/// A key that comes while newcomers are being served may be counted in up to one round after them, so one
/// quantum is added for those that were not there from the start.
pub fn shares_stay_within_the_bound_as_keys_come_and_go<D: Driver>(make: impl Fn(u64) -> D) {
    in_every(300, worlds(2..6), |world| {
        let mut run = Run::new(&make, world);
        let keys = run.world.tenants.len();
        let mut ranges = Ranges::new(&run);
        ranges.extra_quanta = 1;
        let mut staying = vec![false; keys];
        for _ in 0..800 {
            let key = (run.dice.roll() % keys as u64) as usize;
            if run.dice.one_in(20) {
                staying[key] ^= true;
                if staying[key] && run.waiting[key] == 0 {
                    ranges.restart(&run, key);
                    run.enqueue(key);
                    run.enqueue(key);
                }
            }
            let Some(work) = run.dispatch() else { continue };
            if staying[work.key as usize] {
                run.enqueue(work.key as usize);
            }
            ranges.check_pairs(&run, |key| run.waiting[key] > 0)?;
        }
        Ok(())
    });
}

/// The bound is exact at the extremes: weights 1 : 1,000 and costs 1 : 10,000, over long runs.
pub fn extreme_weights_and_costs_share_exactly<D: Driver>(make: impl Fn(u64) -> D) {
    for (tenants, quantum) in [
        (vec![Tenant::steady(1, 1), Tenant::steady(1000, 1)], 1),
        (
            vec![
                Tenant::steady(1, 1000),
                Tenant::steady(1000, 1000),
                Tenant::steady(999, 1000),
            ],
            1000,
        ),
        (vec![Tenant::steady(1, 1), Tenant::steady(1, 10_000)], 1),
        (
            vec![
                Tenant::steady(1000, 10_000),
                Tenant::steady(1, 1),
                Tenant::steady(7, 300),
            ],
            10,
        ),
        (vec![Tenant::steady(1, 100), Tenant::steady(1, 1)], 1000),
    ] {
        let mut run = Run::new(
            &make,
            World {
                quantum,
                tenants,
                seed: 1,
            },
        );
        let mut ranges = Ranges::new(&run);
        run.fill();
        for _ in 0..steps(200_000) {
            run.dispatch_backlogged();
            ranges.check(&run).expect("within the bound");
        }
    }
}

/// Weights 1:2:3:4:5 hold within 1 % in every window of 1,000 dispatches.
pub fn every_thousand_dispatches_follow_the_weights<D: Driver>(make: impl Fn(u64) -> D) {
    const WINDOW: usize = 1000;
    let tenants: Vec<Tenant> = (1..=5).map(|weight| Tenant::steady(weight, 1000)).collect();
    let mut run = Run::new(
        &make,
        World {
            quantum: 1000,
            tenants,
            seed: 1,
        },
    );
    let slack = run.driver.slack().quanta as f64;
    run.fill();
    let order: Vec<usize> = (0..20_000)
        .map(|_| run.dispatch_backlogged().key as usize)
        .collect();
    for (start, window) in order.windows(WINDOW).enumerate() {
        for key in 0..5 {
            let got = window.iter().filter(|&&other| other == key).count() as f64;
            let due = (key + 1) as f64 / 15.0 * WINDOW as f64;
            let allowed = 0.01 * WINDOW as f64 + 2.0 * slack;
            assert!(
                (got - due).abs() <= allowed,
                "from dispatch {start}, key {key} got {got} instead of {due}"
            );
        }
    }
}

/// A large weight is not a large burst: with whole tasks of one cost, each key's turns are evenly spaced.
pub fn heavy_keys_are_interleaved_with_light_ones<D: Driver>(make: impl Fn(u64) -> D) {
    for weights in [
        vec![1000, 1],
        vec![1000, 10, 10],
        vec![1000, 1000, 1],
        vec![64, 16, 4, 1],
        vec![5, 3, 2],
    ] {
        let total: u32 = weights.iter().sum();
        let tenants: Vec<Tenant> = weights
            .iter()
            .map(|&weight| Tenant::steady(weight, 1))
            .collect();
        let keys = tenants.len();
        let mut run = Run::new(
            &make,
            World {
                quantum: 1,
                tenants,
                seed: 1,
            },
        );
        let slack = run.driver.slack().quanta as f64;
        run.fill();
        let mut last = vec![None; keys];
        // Enough for the lightest key to have some turns, at least.
        for now in 0..i64::from(steps(50_000).max(5 * total)) {
            let key = run.dispatch_backlogged().key as usize;
            if let Some(before) = last[key]
                .replace(now)
                .filter(|&before| before > 2 * keys as i64)
            {
                let gap = (now - before) as f64;
                let ideal = f64::from(total) / f64::from(weights[key]);
                let allowed = 0.25 * ideal + keys as f64 + 2.0 * slack * ideal.max(keys as f64);
                assert!(
                    (gap - ideal).abs() <= allowed,
                    "{weights:?}: key {key} waited {gap}, ideal {ideal}"
                );
            }
        }
    }
}

/// Against the fluid reference, no backlogged key is ever far behind or ahead.
///
/// Behind by at most its share of one turn of every key, ahead by at most one turn of its own.
pub fn service_stays_close_to_the_fluid_reference<D: Driver>(make: impl Fn(u64) -> D) {
    in_every(200, worlds(2..8), |world| {
        let mut run = Run::new(&make, world);
        run.fill();
        let keys = run.world.tenants.len();
        let weight = |run: &Run<D>, key: usize| f64::from(run.world.tenants[key].weight);
        let total_weight: f64 = (0..keys).map(|key| weight(&run, key)).sum();
        let turns: f64 = (0..keys).map(|key| run.turn_max(key) as f64).sum();
        let mut total = 0.0;
        for _ in 0..400 {
            total += run.dispatch_backlogged().cost as f64;
            for key in 0..keys {
                let share = weight(&run, key) / total_weight;
                let lag = share * total - run.served[key] as f64;
                let (behind, ahead) = (
                    8.0 / 7.0 * share * turns,
                    8.0 / 7.0 * run.turn_max(key) as f64,
                );
                prop_assert!(
                    lag <= behind + 1e-6,
                    "key {key} is {lag} behind, allowed {behind}"
                );
                prop_assert!(
                    -lag <= ahead + 1e-6,
                    "key {key} is {} ahead, allowed {ahead}",
                    -lag
                );
            }
        }
        Ok(())
    });
}

/// Keys that want less than their share get all they want; the others share the rest by weight.
pub fn modest_keys_get_all_and_the_rest_share_the_rest<D: Driver>(make: impl Fn(u64) -> D) {
    let demand = prop::collection::vec((1u32..20, 0.05f64..0.6), 2..8);
    in_every(60, (demand, any::<u64>()), |(keys, seed)| {
        const COST: u64 = 100;
        let tenants: Vec<Tenant> = keys
            .iter()
            .map(|&(weight, _)| Tenant::steady(weight, COST))
            .collect();
        let weights: Vec<u32> = keys.iter().map(|&(weight, _)| weight).collect();
        let mut run = Run::new(
            &make,
            World {
                quantum: COST,
                tenants,
                seed,
            },
        );
        let mut fluid = crate::fluid::Fluid::new(&weights);
        let mut owed = vec![0.0; keys.len()];
        for _ in 0..steps(20_000) {
            // In one unit of time the server does one piece, and key `i` brings `demand[i]` of one.
            for (key, &(_, demand)) in keys.iter().enumerate() {
                owed[key] += demand;
                if owed[key] >= 1.0 {
                    owed[key] -= 1.0;
                    run.enqueue(key);
                    fluid.arrive(key, COST as f64);
                }
            }
            run.dispatch();
            fluid.serve(COST as f64);
        }
        let turns: u64 = (0..keys.len()).map(|key| run.turn_max(key)).sum();
        for key in 0..keys.len() {
            let (got, ideal) = (run.served[key] as f64, fluid.served(key));
            // Newcomers go first, which moves service between keys that are never backlogged for long.
            let allowed = 4.0 * turns as f64 + 0.005 * ideal;
            prop_assert!(
                (got - ideal).abs() <= allowed,
                "key {key} got {got}, the fluid server gave {ideal}"
            );
        }
        Ok(())
    });
}

/// A changed weight acts from the key's next visit on, also for work that was queued before.
pub fn a_new_weight_acts_on_the_backlog<D: Driver>(make: impl Fn(u64) -> D) {
    let weights = (1u32..=1000, 1u32..=1000, 1u32..=1000);
    in_every(
        100,
        (weights, 1u64..=1000, any::<u64>()),
        |((first, second, changed), cost, seed)| {
            let tenants = vec![Tenant::steady(first, cost), Tenant::steady(second, cost)];
            let mut run = Run::new(
                &make,
                World {
                    quantum: 1000,
                    tenants,
                    seed,
                },
            );
            // All the work is queued before the change.
            let backlog = 4_000 / cost.min(100) + 3_000;
            for _ in 0..backlog {
                run.enqueue(0);
                run.enqueue(1);
            }
            for _ in 0..500 {
                run.dispatch();
            }
            run.driver.set_weight(0, changed);
            run.world.tenants[0].weight = changed;
            // One turn of each may have been under way.
            let mut ranges = Ranges::new(&run);
            ranges.extra_turns = 1;
            while run.waiting.iter().all(|&waiting| waiting > 0) {
                run.dispatch();
                ranges.check(&run)?;
            }
            Ok(())
        },
    );
}

/// The range that `Wi/wi − Wj/wj` has taken for every pair of keys, in exact integers.
#[derive(Debug)]
struct Ranges {
    seen: Vec<Option<(i128, i128)>>,
    /// The widening of the bound: turns of both keys, and quanta.
    extra_turns: u64,
    extra_quanta: u64,
}

impl Ranges {
    fn new<D: Driver>(run: &Run<D>) -> Self {
        let keys = run.served.len();
        let mut ranges = Self {
            seen: vec![None; keys * keys],
            extra_turns: 0,
            extra_quanta: 0,
        };
        (0..keys).for_each(|key| ranges.restart(run, key));
        ranges
    }

    /// Begins anew for a key that has just got work.
    fn restart<D: Driver>(&mut self, run: &Run<D>, key: usize) {
        let keys = run.served.len();
        for other in 0..keys {
            for (i, j) in [(key, other), (other, key)] {
                let now = Self::difference(run, i, j);
                self.seen[i * keys + j] = Some((now, now));
            }
        }
    }

    fn check<D: Driver>(&mut self, run: &Run<D>) -> Verdict {
        self.check_pairs(run, |_| true)
    }

    /// Checks the pairs of keys that have had work since they began.
    fn check_pairs<D: Driver>(
        &mut self,
        run: &Run<D>,
        has_work: impl Fn(usize) -> bool,
    ) -> Verdict {
        let keys = run.served.len();
        let weight = |key: usize| i128::from(run.world.tenants[key].weight);
        let turn = |key: usize| i128::from(run.turn_max(key)) * i128::from(1 + self.extra_turns);
        for i in 0..keys {
            for j in 0..i {
                let seen = &mut self.seen[i * keys + j];
                if !has_work(i) || !has_work(j) {
                    *seen = None; // until it begins anew
                }
                let Some((low, high)) = seen else { continue };
                let now = Self::difference(run, i, j);
                (*low, *high) = ((*low).min(now), (*high).max(now));
                let range = *high - *low;
                let extra =
                    i128::from(self.extra_quanta * run.world.quantum) * weight(i) * weight(j);
                let bound = turn(i) * weight(j) + turn(j) * weight(i);
                prop_assert!(
                    7 * range <= 8 * bound + 7 * extra,
                    "keys {i} and {j} are {} apart in some window, allowed {}",
                    range as f64 / (weight(i) * weight(j)) as f64,
                    (8.0 / 7.0 * bound as f64 + extra as f64) / (weight(i) * weight(j)) as f64,
                );
            }
        }
        Ok(())
    }

    /// Returns `(Wi/wi − Wj/wj) · wi · wj`.
    fn difference<D: Driver>(run: &Run<D>, i: usize, j: usize) -> i128 {
        let weight = |key: usize| i128::from(run.world.tenants[key].weight);
        i128::from(run.served[i]) * weight(j) - i128::from(run.served[j]) * weight(i)
    }
}
