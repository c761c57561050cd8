//! Counts the allocations of the engine: none, once keys are registered.
#![cfg(test)] // helpers may unwrap, as tests do

use allocation_counter::measure;
use drr::{Cost, Drr, Key, Quantum, Weight};

fn engine(keys: usize) -> (Drr, Vec<Key>) {
    let mut engine = Drr::with_capacity(Quantum::new(100).unwrap(), keys);
    let weight = |number: usize| Weight::new(1 + number as u64 % 9).unwrap();
    let keys = (0..keys)
        .map(|number| engine.register(weight(number)))
        .collect();
    (engine, keys)
}

#[test]
fn flat_use_never_allocates_after_registration() {
    let (mut engine, keys) = engine(1000);
    let used = measure(|| {
        for round in 0..50_u64 {
            for (number, &key) in keys.iter().enumerate() {
                engine.wake(key).unwrap();
                if number % 7 == 0 {
                    engine.park(key).unwrap();
                    engine.unpark(key).unwrap();
                }
            }
            for _ in 0..2000 {
                let key = engine.next_key().unwrap();
                // Costs of every magnitude, so that every level of the calendar is used.
                let cost = Cost::new(1 << (round % 45));
                engine.charge(key, cost).unwrap();
                engine.settle(key, cost, Cost::new(round + 1)).unwrap();
            }
            for &key in keys.iter().step_by(3) {
                engine.sleep(key).unwrap();
                engine
                    .set_weight(key, Weight::new(round + 1).unwrap())
                    .unwrap();
            }
        }
    });
    assert_eq!(used.count_total, 0);
}

#[test]
fn a_forgotten_slot_is_reused_without_allocating() {
    let (mut engine, keys) = engine(10);
    let used = measure(|| {
        for _ in 0..1000 {
            let _ = engine.forget(keys[0]);
            let key = engine.register(Weight::ONE);
            engine.wake(key).unwrap();
            let _ = engine.forget(key).unwrap();
        }
    });
    assert_eq!(used.count_total, 0);
}

#[test]
fn a_key_takes_32_bytes() {
    let used = measure(|| {
        let (engine, _) = engine(100_000);
        std::mem::forget(engine);
    });
    let keys = 100_000 * size_of::<Key>() as i64;
    let fixed = 64 * 1024; // the calendar at the top
    let each = (used.bytes_current - fixed) / 100_000;
    assert!(
        used.bytes_max as i64 - keys >= 3_200_000,
        "the slots were made"
    );
    assert!(each <= 32, "{each} bytes per key");
}

#[test]
fn groups_allocate_a_level_at_a_time_and_only_once() {
    let mut engine = Drr::new(Quantum::new(100).unwrap());
    let group = engine.register_group(Weight::ONE);
    for _ in 0..100 {
        let key = engine.register_in(group, Weight::ONE).unwrap();
        engine.wake(key).unwrap();
    }
    let serve = |engine: &mut Drr| {
        for _ in 0..1000 {
            let key = engine.next_key().unwrap();
            engine.charge(key, Cost::new(100)).unwrap();
        }
    };
    let first = measure(|| serve(&mut engine));
    let again = measure(|| serve(&mut engine));
    assert!(first.count_total > 0, "the levels that the distances need");
    assert_eq!(again.count_total, 0);
    assert!(
        first.bytes_max < 16 * 1024,
        "{} bytes for a group",
        first.bytes_max
    );
}
