//! B3: fairness in what work really costs, which is known only when it is done.

use std::collections::BinaryHeap;

use crate::driver::{Dispatched, Driver};
use crate::run::Run;
use crate::trace::{Tenant, World};

/// Four equal keys whose work takes 1 : 1 : 10 : 100, on 1, 8 and 64 workers, charged one unit each and
/// settled when done: each gets a quarter of the *time*, within 2 %.
///
/// Charging by count gives the slowest key 89 % of the time (Jain's index 0.31).
pub fn equal_keys_get_equal_time<D: Driver>(make: impl Fn(u64) -> D) {
    for workers in [1, 8, 64] {
        let times = [1, 1, 10, 100];
        let busy = busy_time(&make, workers, &times, 400_000);
        let total: u64 = busy.iter().sum();
        for (key, &time) in busy.iter().enumerate() {
            let share = time as f64 / total as f64;
            assert!(
                (share / 0.25 - 1.0).abs() <= 0.02,
                "{workers} workers: key {key} had {:.2} % of the time: {busy:?}",
                100.0 * share,
            );
        }
    }
}

/// An estimate that was too high is given back: keys that guess a hundredfold lose nothing by it.
pub fn overestimates_are_given_back<D: Driver>(make: impl Fn(u64) -> D) {
    for workers in [1, 8] {
        let tenants = vec![Tenant::steady(1, 100), Tenant::steady(1, 1)];
        let mut run = Run::new(
            &make,
            World {
                quantum: 10,
                tenants,
                seed: 1,
            },
        );
        run.fill();
        let mut in_flight = std::collections::VecDeque::new();
        let mut busy = [0_u64; 2];
        for _ in 0..50_000 {
            while in_flight.len() < workers {
                let work = run.dispatch_only().expect("both are backlogged");
                run.enqueue(work.key as usize);
                in_flight.push_back(work);
            }
            let work = in_flight.pop_front().expect("just filled");
            run.driver.finish(work, 1); // it costs one, whatever was declared
            busy[work.key as usize] += 1;
        }
        let share = busy[0] as f64 / (busy[0] + busy[1]) as f64;
        assert!(
            (share - 0.5).abs() <= 0.01,
            "{workers} workers: the key that overestimates got {share:.3}"
        );
    }
}

/// Plays `workers` workers for `until` units of time and returns how long they were busy for each key.
fn busy_time<D: Driver>(
    make: &impl Fn(u64) -> D,
    workers: usize,
    times: &[u64],
    until: u64,
) -> Vec<u64> {
    #[derive(Debug, PartialEq, Eq)]
    struct Finish {
        at: u64,
        number: u64,
        work: Dispatched,
    }
    impl Ord for Finish {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            (other.at, other.number).cmp(&(self.at, self.number)) // the earliest is the greatest
        }
    }
    impl PartialOrd for Finish {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }

    let tenants = vec![Tenant::steady(1, 1); times.len()];
    let mut run = Run::new(
        make,
        World {
            quantum: 1,
            tenants,
            seed: 1,
        },
    );
    // Enough work that even all workers on one key leave it backlogged.
    for key in 0..times.len() {
        for _ in 0..2 * workers {
            run.enqueue(key);
        }
    }
    let mut busy = vec![0; times.len()];
    let mut running = BinaryHeap::new();
    let (mut now, mut number) = (0, 0);
    while now < until {
        while running.len() < workers {
            let work = run.dispatch_only().expect("every key is backlogged");
            run.enqueue(work.key as usize);
            running.push(Finish {
                at: now + times[work.key as usize],
                number,
                work,
            });
            number += 1;
        }
        let Finish { at, work, .. } = running.pop().expect("just filled");
        now = at;
        run.driver.finish(work, times[work.key as usize]);
        busy[work.key as usize] += times[work.key as usize];
    }
    busy
}
