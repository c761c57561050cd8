//! B5: how much work a choice takes, counted, not timed.

use crate::driver::CountingDriver;

/// With 1, 1,000 and 1,000,000 keys, a dispatch looks at no more than two keys on average.
pub fn a_dispatch_takes_two_steps_at_any_size<D: CountingDriver>(make: impl Fn(u64) -> D) {
    for keys in [1, 1_000, 1_000_000] {
        let mut driver = make(1000);
        for key in 0..keys {
            driver.enqueue(key, 1000, 1 + key % 7);
        }
        assert_steps(&mut driver, 2 * u64::from(keys).max(10_000), |_| 1000);
    }
}

/// Work that costs ten thousand quanta is paid off by waiting, not by walking ten thousand rounds.
pub fn debt_is_waited_out_not_walked_through<D: CountingDriver>(make: impl Fn(u64) -> D) {
    for keys in [1, 2, 1_000] {
        let mut driver = make(1);
        for key in 0..keys {
            driver.enqueue(key, 10_000, 1);
        }
        assert_steps(&mut driver, 20_000, |dispatched| {
            if dispatched.is_multiple_of(3) {
                10_000
            } else {
                1
            }
        });
    }
}

/// A million parked keys beside a runnable one cost nothing.
pub fn parked_keys_cost_nothing<D: CountingDriver>(make: impl Fn(u64) -> D) {
    let mut driver = make(1000);
    for key in 1..=1_000_000 {
        driver.enqueue(key, 1000, 1);
        driver.park(key);
    }
    driver.enqueue(0, 1000, 1);
    assert_steps(&mut driver, 10_000, |_| 1000);
}

/// Corrections after the fact do not add walks either: every dispatch settled a hundredfold.
pub fn settlement_adds_no_walks<D: CountingDriver>(make: impl Fn(u64) -> D) {
    let mut driver = make(10);
    for key in 0..100 {
        driver.enqueue(key, 10, 1);
        driver.enqueue(key, 10, 1);
    }
    let before = driver.steps();
    let mut in_flight = std::collections::VecDeque::new();
    const DISPATCHES: u64 = 50_000;
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
        steps <= 2 * DISPATCHES,
        "{steps} steps for {DISPATCHES} dispatches"
    );
}

fn assert_steps<D: CountingDriver>(driver: &mut D, dispatches: u64, cost: impl Fn(u64) -> u64) {
    let before = driver.steps();
    for dispatched in 0..dispatches {
        let work = driver.dispatch().expect("a key has work");
        driver.enqueue(work.key, cost(dispatched), 1 + work.key % 7);
        driver.finish(work, work.cost);
    }
    let steps = driver.steps() - before;
    assert!(
        steps <= 2 * dispatches,
        "{steps} steps for {dispatches} dispatches"
    );
}
