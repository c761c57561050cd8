//! B6: a key that goes idle keeps its debt and loses its credit.

use proptest::prelude::*;

use super::in_every;
use crate::driver::Driver;
use crate::run::Run;
use crate::trace::{Tenant, World};

/// How a key goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// It runs out of work.
    Idle,
    /// It runs out of work, and the scheduler forgets it.
    Evicted,
    /// It has work, but is parked.
    Parked,
}

fn exits() -> impl Strategy<Value = Exit> {
    prop_oneof![Just(Exit::Idle), Just(Exit::Evicted), Just(Exit::Parked)]
}

/// Credit dies with idleness: a key that sat out a hundred rounds gets one turn ahead of the others when it
/// comes back, not a hundred.
pub fn credit_dies_with_idleness<D: Driver>(make: impl Fn(u64) -> D) {
    let world = (1u64..=2000, 1u64..=2000, 1u32..=100, exits(), any::<u64>());
    in_every(200, world, |(quantum, cost, weight, exit, seed)| {
        let tenants = vec![Tenant::steady(weight, cost), Tenant::steady(weight, cost)];
        let mut run = Run::new(
            &make,
            World {
                quantum,
                tenants,
                seed,
            },
        );
        run.enqueue(0);
        run.enqueue(1);
        while run.dispatch().is_some() {}
        leave(&mut run, exit);
        run.enqueue(1);
        for _ in 0..100 * (1 + quantum / cost) {
            run.enqueue(1);
            prop_assert_eq!(run.dispatch().expect("key 1 has work").key, 1);
        }
        for _ in 0..100 * (1 + quantum / cost) {
            run.enqueue(0);
            run.enqueue(1);
        }
        come_back(&mut run, exit);
        let before = run.served[0];
        while run.dispatch().expect("there is work").key == 0 {}
        let burst = run.served[0] - before;
        // Its boost, and the turn that it may have right after.
        let allowed = 2 * run.turn_max(0);
        prop_assert!(
            burst <= allowed,
            "after idling, key 0 got {burst} in a row, allowed {allowed}"
        );
        Ok(())
    });
}

/// Debt survives idleness, eviction and parking: after one piece of work of a hundred quanta, the others
/// get their hundred before the key is served again, whether or not it went away meanwhile.
pub fn debt_survives_leaving_and_returning<D: Driver>(make: impl Fn(u64) -> D) {
    let world = (1u64..=1000, 10u64..=10_000, exits(), any::<u64>());
    in_every(200, world, |(quantum, size, exit, seed)| {
        let tenants = vec![Tenant::steady(1, quantum), Tenant::steady(1, quantum)];
        let mut run = Run::new(
            &make,
            World {
                quantum,
                tenants,
                seed,
            },
        );
        // Both have been around, so that neither is a newcomer when it matters.
        for _ in 0..8 {
            run.enqueue(0);
            run.enqueue(1);
        }
        while run.dispatch().is_some() {}
        run.enqueue_cost(0, size * quantum);
        while run.dispatch().is_some() {}
        leave(&mut run, exit);
        for _ in 0..size + 10 {
            run.enqueue(1);
        }
        run.enqueue(0);
        come_back(&mut run, exit);
        let mut others = 0;
        while run.dispatch().expect("there is work").key != 0 {
            others += 1;
        }
        // All of it but the turns that both may be ahead or behind by, and the calendar's eighth.
        let due = size - size / 8 - 4_u64.min(size) - run.driver.slack().quanta.min(size);
        prop_assert!(
            others >= due,
            "key 0 owed {size} rounds and was served after {others}"
        );
        Ok(())
    });
}

fn leave<D: Driver>(run: &mut Run<D>, exit: Exit) {
    match exit {
        Exit::Idle => {}
        Exit::Evicted => run.driver.evict(0),
        Exit::Parked => run.driver.park(0),
    }
}

fn come_back<D: Driver>(run: &mut Run<D>, exit: Exit) {
    match exit {
        Exit::Idle | Exit::Evicted => {}
        Exit::Parked => run.driver.unpark(0),
    }
}
