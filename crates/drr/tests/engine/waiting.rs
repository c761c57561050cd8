//! How long a key waits: the forecast, the bound, and the actual wait.

use std::collections::BTreeSet;

use drr::Costs;
use proptest::prelude::*;

use super::*;

/// Counts the cost that others get before it is this key's turn.
fn others_before(engine: &mut Drr, key: Key, cost: u64) -> u64 {
    let mut others = 0;
    while engine.next_key() != Some(key) {
        serve(engine, 1, cost);
        others += cost;
    }
    others
}

#[test]
fn a_forecast_changes_nothing_and_foresees_the_order() {
    let mut engine = engine(10);
    let keys = settled(&mut engine, [1, 3, 7, 50], 10);
    let mut forecast = engine.forecast();
    let foreseen: Vec<Key> = std::iter::from_fn(|| {
        let key = forecast.next_key()?;
        forecast.charge(key, Cost::new(10)).unwrap();
        Some(key)
    })
    .take(200)
    .collect();
    assert_eq!(serve(&mut engine, 200, 10), foreseen);
    assert!(keys.iter().all(|key| foreseen.contains(key)));
}

#[test]
fn a_forecast_refuses_keys_that_are_gone() {
    let mut engine = engine(10);
    let gone = engine.register(weight(1));
    engine.forget(gone).unwrap();
    assert_eq!(engine.bound(gone, Cost::ONE, Costs::Equal), Err(Unknown));
    let mut forecast = engine.forecast();
    assert_eq!(forecast.next_key(), None);
    assert_eq!(forecast.charge(gone, Cost::ONE), Err(Unknown));
    assert_eq!(forecast.sleep(gone), Err(Unknown));
}

#[test]
fn a_forecast_costs_as_many_steps_as_it_looks_ahead_however_many_keys_there_are() {
    let mut engine = engine(1);
    for _ in 0..100_000 {
        awake(&mut engine, 1);
    }
    serve(&mut engine, 100_000, 1);
    let before = engine.work();
    let mut forecast = engine.forecast();
    for _ in 0..100 {
        let key = forecast.next_key().unwrap();
        forecast.charge(key, Cost::ONE).unwrap();
    }
    assert!(forecast.work().visits - before.visits <= 101);
    assert_eq!(engine.work(), before);
}

#[test]
fn what_runs_is_counted_and_weighed() {
    let mut engine = engine(1);
    assert_eq!((engine.runnable(), engine.runnable_weight()), (0, 0));
    let key = awake(&mut engine, 3);
    awake(&mut engine, 4);
    assert_eq!((engine.runnable(), engine.runnable_weight()), (2, 7));
    engine.park(key).unwrap();
    assert_eq!((engine.runnable(), engine.runnable_weight()), (1, 4));
}

#[test]
fn a_key_does_not_wait_for_keys_that_are_not_there() {
    let mut engine = engine(10);
    let key = awake(&mut engine, 5);
    assert_eq!(engine.bound(key, Cost::new(10), Costs::Equal), Ok(0));
    serve(&mut engine, 5, 10);
    assert_eq!(engine.bound(key, Cost::new(10), Costs::Equal), Ok(0));
    let idle = engine.register(weight(1));
    engine.park(key).unwrap();
    assert_eq!(engine.bound(idle, Cost::new(10), Costs::Equal), Ok(0));
}

#[test]
fn a_newcomer_waits_for_two_turns_and_two_more_for_each_that_came_before() {
    let mut engine = engine(10);
    settled(&mut engine, [1; 40], 10);
    let late = engine.register(weight(1));
    assert_eq!(
        engine.bound(late, Cost::new(10), Costs::Equal),
        Ok(20),
        "if it came now"
    );
    let newcomers: Vec<Key> = (0..5).map(|_| awake(&mut engine, 1)).collect();
    for (before, &key) in newcomers.iter().enumerate() {
        let bound = 10 * (2 * before as u64 + 2);
        assert_eq!(engine.bound(key, Cost::new(10), Costs::Equal), Ok(bound));
    }
    assert_eq!(engine.bound(late, Cost::new(10), Costs::Equal), Ok(120));
    for key in newcomers {
        let bound = engine.bound(key, Cost::new(10), Costs::Equal).unwrap();
        assert!(others_before(&mut engine, key, 10) <= bound);
    }
}

#[test]
fn newcomers_are_counted_up_to_a_limit_and_then_all_taken_to_be_before() {
    let mut engine = engine(1);
    let newcomers: Vec<Key> = (0..2000).map(|_| awake(&mut engine, 1)).collect();
    let bound = |at: usize| {
        engine
            .bound(newcomers[at], Cost::ONE, Costs::Equal)
            .unwrap()
    };
    assert_eq!(bound(0), 2);
    assert_eq!(bound(1023), 2048);
    assert_eq!(bound(1024), 2 * 1999 + 2);
    assert_eq!(bound(1999), 2 * 1999 + 2);
}

#[test]
fn a_guest_does_not_wait_and_pays_for_its_visit_afterwards() {
    let mut engine = engine(10);
    settled(&mut engine, [1; 4], 10);
    let guest = awake(&mut engine, 1);
    until(&mut engine, guest, 10);
    engine.charge(guest, Cost::new(4)).unwrap();
    assert_eq!(engine.bound(guest, Cost::new(10), Costs::Equal), Ok(0));
    engine.charge(guest, Cost::new(6)).unwrap();
    // A round of the four others, and what each may be ahead.
    let bound = engine.bound(guest, Cost::new(10), Costs::Equal).unwrap();
    assert!((80..=132).contains(&bound), "{bound}");
    assert!(others_before(&mut engine, guest, 10) <= bound);
}

#[test]
fn a_ring_turn_under_way_can_only_be_interrupted_by_newcomers() {
    let mut engine = engine(100);
    let [key, ..] = settled(&mut engine, [1; 4], 100);
    until(&mut engine, key, 100);
    engine.charge(key, Cost::new(1)).unwrap();
    // Its tick is here: what the three others may be ahead is all.
    assert_eq!(
        engine.bound(key, Cost::new(100), Costs::Equal),
        Ok(3 * 1600 / 7)
    );
}

#[test]
fn in_the_ring_the_bound_is_what_others_earn_until_the_visit_and_what_they_may_be_ahead() {
    let mut engine = engine(65_536);
    let [slow, fast] = settled(&mut engine, [1, 3], 65_536);
    until(&mut engine, slow, 65_536);
    serve(&mut engine, 1, 65_536);
    assert_eq!(engine.next_key(), Some(fast));
    let bound = engine.bound(slow, Cost::new(65_536), Costs::Equal).unwrap();
    let most = 3 * 65_536 + 3 + 2 * 65_536 * 8 / 7;
    let least = 2 * 65_536;
    assert!((least..=most).contains(&bound), "{bound}");
}

#[test]
fn a_debt_is_in_the_bound() {
    let mut engine = engine(10);
    let [key, _] = settled(&mut engine, [1, 1], 10);
    until(&mut engine, key, 10);
    engine.charge(key, Cost::new(1000)).unwrap();
    let awake = engine.bound(key, Cost::new(10), Costs::Equal).unwrap();
    assert!((1000..=1035).contains(&awake), "{awake}");
    engine.sleep(key).unwrap();
    let asleep = engine.bound(key, Cost::new(10), Costs::Equal).unwrap();
    assert!((1000..=1035).contains(&asleep), "{asleep}");
    engine.wake(key).unwrap();
    let bound = engine.bound(key, Cost::new(10), Costs::Equal).unwrap();
    let others = others_before(&mut engine, key, 10);
    assert!((980..=bound).contains(&others), "{others} of {bound}");
}

#[test]
fn a_debt_that_a_settlement_left_on_a_sleeper_counts() {
    let mut engine = engine(10);
    let [key, _] = settled(&mut engine, [1, 1], 10);
    engine.sleep(key).unwrap();
    serve(&mut engine, 100, 10);
    assert_eq!(
        engine.bound(key, Cost::new(10), Costs::Equal),
        Ok(20),
        "a newcomer"
    );
    engine.settle(key, Cost::ONE, Cost::new(5001)).unwrap();
    let bound = engine.bound(key, Cost::new(10), Costs::Equal).unwrap();
    assert!((3900..=5035).contains(&bound), "{bound}");
    engine.wake(key).unwrap();
    let others = others_before(&mut engine, key, 10);
    assert!(others <= bound && others > bound / 2, "{others} of {bound}");
}

/// A key that waits, and what others have got since it was asked.
struct Watch {
    key: Key,
    bound: u64,
    others: u64,
    /// The keys in the ring; empty, if they do not matter.
    ring: Option<BTreeSet<Key>>,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_bound_holds_in_every_history(
        quantum in 1u64..3000,
        largest in 1u64..3000,
        weights in prop::collection::vec(prop_oneof![Just(1u64), 1u64..10, 1u64..=65_536], 2..12),
        are_equal in any::<bool>(),
        steps in prop::collection::vec((0u8..8, any::<prop::sample::Index>(), any::<u64>()), 1..400),
    ) {
        let mut engine = engine(quantum);
        let keys: Vec<Key> = weights.iter().map(|&value| awake(&mut engine, value)).collect();
                let costs = if are_equal { Costs::Equal } else { Costs::Mixed };
        let mut watches: Vec<Watch> = Vec::new();
        let in_ring = |engine: &Drr, key: Key| engine.state(key) != Ok(State::Idle);
        for (what, which, number) in steps {
            let key = keys[which.index(keys.len())];
            match what {
                0 => {
                    if !in_ring(&engine, key) {
                        // Other keys may see it come before its share.
                        watches.retain(|watch| watch.ring.as_ref().is_none_or(|ring| ring.contains(&key)));
                    }
                    engine.wake(key).unwrap();
                }
                1 => {
                    engine.sleep(key).unwrap();
                    watches.retain(|watch| watch.key != key);
                }
                _ => {
                    if in_ring(&engine, key) {
                        let ring = keys.iter().copied().filter(|&key| in_ring(&engine, key));
                        watches.push(Watch {
                            key,
                            bound: engine.bound(key, Cost::new(largest), costs).unwrap(),
                            others: 0,
                            ring: (engine.state(key) != Ok(State::Fresh)).then(|| ring.collect()),
                        });
                    }
                    let Some(next) = engine.next_key() else { continue };
                    let cost = if are_equal { largest } else { 1 + number % largest };
                    engine.charge(next, Cost::new(cost)).unwrap();
                    watches.retain(|watch| watch.key != next);
                    for watch in &mut watches {
                        watch.others += cost;
                        prop_assert!(watch.others <= watch.bound, "{} of {}", watch.others, watch.bound);
                    }
                }
            }
        }
    }
}
