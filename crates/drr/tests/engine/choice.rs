//! Which key is next, and for how long.

use super::*;

#[test]
fn no_key_is_next_without_work() {
    let mut engine = engine(1);
    assert_eq!(engine.next_key(), None);
    let key = engine.register(Weight::ONE);
    assert_eq!(engine.next_key(), None);
    assert!(!engine.is_runnable());
    engine.wake(key).unwrap();
    assert!(engine.is_runnable());
    assert_eq!(engine.next_key(), Some(key));
}

#[test]
fn the_choice_stands_until_it_is_charged() {
    let mut engine = engine(1);
    awake(&mut engine, 1);
    awake(&mut engine, 1);
    let key = engine.next_key();
    assert_eq!(engine.next_key(), key);
    engine.charge(key.unwrap(), Cost::ONE).unwrap();
    assert_ne!(engine.next_key(), key);
}

#[test]
fn a_turn_lasts_while_there_is_credit() {
    let mut engine = engine(10);
    let [a, b] = settled(&mut engine, [1, 1], 10);
    // Four pieces of three: the first three leave one unit of credit, the fourth overshoots by two.
    let first = serve(&mut engine, 1, 3)[0];
    let other = if first == a { b } else { a };
    assert_eq!(serve(&mut engine, 3, 3), [first; 3]);
    assert_eq!(serve(&mut engine, 4, 3), [other; 4]);
    // The two units of debt come off the next turn, so eight are left.
    assert_eq!(serve(&mut engine, 3, 3), [first; 3]);
    assert_eq!(engine.next_key(), Some(other));
}

#[test]
fn equal_keys_alternate() {
    let mut engine = engine(5);
    let keys = settled(&mut engine, [1, 1, 1], 5);
    let order = serve(&mut engine, 300, 5);
    for window in order.windows(3) {
        let mut window = window.to_vec();
        window.sort();
        assert_eq!(window, keys);
    }
}

#[test]
fn debt_is_paid_before_the_next_turn_however_deep_it_is() {
    let mut engine = engine(1);
    let [dear, cheap] = settled(&mut engine, [1, 1], 1);
    until(&mut engine, dear, 1);
    engine.charge(dear, Cost::new(1000)).unwrap();
    let before = engine.work().visits;
    let paid = (0..)
        .take_while(|_| serve(&mut engine, 1, 1)[0] == cheap)
        .count();
    assert!(
        (1000 - 125..=1000).contains(&paid),
        "served again after {paid}"
    );
    assert!(engine.work().visits - before <= paid as u64 + 2);
}

#[test]
fn alone_a_key_is_served_at_once_however_much_it_owes() {
    let mut engine = engine(1);
    let key = awake(&mut engine, 1);
    for _ in 0..10_000 {
        assert_eq!(engine.next_key(), Some(key));
        engine.charge(key, Cost::MAX).unwrap();
    }
    assert_eq!(engine.work().visits, 10_000);
}

#[test]
fn every_turn_is_counted_as_one_visit() {
    let mut engine = engine(10);
    for _ in 0..5 {
        awake(&mut engine, 1);
    }
    serve(&mut engine, 5, 10);
    assert_eq!(engine.work().visits, 5, "newcomers");
    serve(&mut engine, 50, 10);
    assert_eq!(engine.work().visits, 55, "turns of one piece");
    serve(&mut engine, 50, 1);
    assert_eq!(engine.work().visits, 60, "turns of ten pieces");
    let probes = engine.work().probes;
    assert!((1..=60).contains(&probes), "{probes} levels looked at");
}

#[test]
fn a_key_that_was_settled_into_debt_is_visited_once_more() {
    let mut engine = engine(10);
    let [a, b] = settled(&mut engine, [1, 1], 10);
    until(&mut engine, b, 10);
    engine.settle(a, Cost::new(10), Cost::new(1000)).unwrap();
    let before = engine.work().visits;
    engine.charge(b, Cost::new(10)).unwrap();
    assert_eq!(engine.next_key(), Some(b));
    assert_eq!(
        engine.work().visits - before,
        2,
        "one for a, which moves on, and one for b"
    );
}
