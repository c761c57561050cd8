//! One key that floods, beside others that are quiet.

use crate::driver::Driver;
use crate::run::Run;
use crate::trace::{Dice, Tenant, World};

/// The quiet keys, which together use about half of the service.
const QUIET: usize = 9;

/// The noisy key.
const NOISY: usize = QUIET;

/// The cost of a quiet key's work.
const QUIET_COST: u64 = 10;

/// How many pieces of work the noisy key has waiting at most.
const FLOOD_MAX: u32 = 10_000;

/// How the noisy key behaves.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// It always has work, and not more than it takes to have some at all times: the same load without a flood.
    Busy,
    /// It sends a hundred pieces of work for each that it gets done.
    Floods,
}

/// A key that sends a hundred times what it may delays the others by at most a tenth more than a busy neighbour that
/// sends what it may: measured in service, at the 99th percentile.
///
/// Its work is as dear as that of the others, a tenth of it, and a hundred times as much.
pub fn a_flood_delays_the_others_no_more_than_a_busy_neighbour<D: Driver>(make: impl Fn(u64) -> D) {
    for (cost, quantum) in [(1, 1), (10, 10), (10, 1), (1000, 10), (1000, 1000)] {
        let busy = quiet_waits(&make, (cost, quantum), Noise::Busy);
        let flood = quiet_waits(&make, (cost, quantum), Noise::Floods);
        let slack = make(quantum).slack();
        let allowed = p99(&busy) * 11 / 10 + slack.dispatches * cost + slack.quanta * quantum;
        assert!(
            p99(&flood) <= allowed,
            "beside a flood of cost {cost} (quantum {quantum}) quiet keys wait for {}, beside a busy neighbour for {}",
            p99(&flood),
            p99(&busy)
        );
    }
}

/// Returns how much service to others each piece of quiet work waited for.
fn quiet_waits<D: Driver>(
    make: &impl Fn(u64) -> D,
    (cost, quantum): (u64, u64),
    noise: Noise,
) -> Vec<u64> {
    let mut tenants = vec![Tenant::steady(1, QUIET_COST); QUIET];
    tenants.push(Tenant::steady(1, cost));
    let world = World {
        quantum,
        tenants,
        seed: 1,
    };
    let mut run = Run::new(make, world);
    let mut arrivals = Arrivals::new();
    // When each piece of work that waits has come, by key.
    let mut came: Vec<std::collections::VecDeque<u64>> = vec![Default::default(); QUIET];
    let mut waits = Vec::new();
    let mut now = 0;
    let dispatches = super::steps(20_000);
    for _ in 0..dispatches {
        make_noise(&mut run, noise);
        while let Some((key, at)) = arrivals.until(now) {
            run.enqueue(key);
            came[key].push_back(at);
        }
        let work = run.dispatch().expect("the noisy key always has work");
        if let Some(came) = came.get_mut(work.key as usize) {
            let at = came.pop_front().expect("what is dispatched has come");
            waits.push(now - at);
        }
        now += work.cost;
    }
    waits
}

fn make_noise<D: Driver>(run: &mut Run<D>, noise: Noise) {
    let (more, most) = match noise {
        Noise::Busy => (2, 2),
        Noise::Floods => (100, u64::from(super::steps(FLOOD_MAX))),
    };
    for _ in 0..more {
        if run.waiting[NOISY] < most {
            run.enqueue(NOISY);
        }
    }
}

/// The quiet keys' work, at random times that do not depend on the service.
struct Arrivals {
    dice: Dice,
    next: (usize, u64),
}

impl Arrivals {
    fn new() -> Self {
        Self {
            dice: Dice::new(1),
            next: (0, 0),
        }
    }

    /// Returns the next arrival, if it is not after `now`.
    fn until(&mut self, now: u64) -> Option<(usize, u64)> {
        let (key, at) = self.next;
        if at > now {
            return None;
        }
        let pause = self.dice.between(1, 4 * QUIET_COST - 1); // half of the service, on average
        self.next = (self.dice.between(0, QUIET as u64 - 1) as usize, at + pause);
        Some((key, at))
    }
}

fn p99(waits: &[u64]) -> u64 {
    let mut sorted = waits.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() * 99 / 100]
}
