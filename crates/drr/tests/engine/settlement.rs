//! Costs that are corrected afterwards.

use super::*;

#[test]
fn an_underestimate_is_paid_later() {
    let mut engine = engine(1);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    engine.settle(a, Cost::new(1), Cost::new(101)).unwrap();
    let order = serve(&mut engine, 110, 1);
    let others = order.iter().filter(|&&key| key == b).count();
    assert!(
        (98..=110).contains(&others),
        "the other got {others} of 110"
    );
}

#[test]
fn an_overestimate_is_given_back() {
    let mut engine = engine(1);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    until(&mut engine, a, 1);
    engine.charge(a, Cost::new(1000)).unwrap();
    assert_eq!(serve(&mut engine, 10, 1), [b; 10]);
    engine.settle(a, Cost::new(1000), Cost::new(1)).unwrap();
    // It is nine behind now, and gets them before the other goes on.
    let order = serve(&mut engine, 20, 1);
    let own = order.iter().filter(|&&key| key == a).count();
    assert!((13..=16).contains(&own), "it got {own} of 20: {order:?}");
    assert!(
        order[..8].iter().all(|&key| key == a),
        "first what it is owed: {order:?}"
    );
}

#[test]
fn a_refund_after_going_idle_is_not_saved_up() {
    let mut engine = engine(1);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    engine.charge(a, Cost::new(100)).unwrap();
    engine.sleep(a).unwrap();
    serve(&mut engine, 1000, 1);
    engine.settle(a, Cost::new(100), Cost::new(1)).unwrap();
    engine.wake(a).unwrap();
    engine.settle(a, Cost::new(100), Cost::new(1)).unwrap(); // while it is fresh
    let order = serve(&mut engine, 20, 1);
    let own = order.iter().filter(|&&key| key == a).count();
    assert!((10..=11).contains(&own), "it got {own} of 20: {order:?}");
    assert_eq!(order.iter().filter(|&&key| key == b).count(), 20 - own);
}

#[test]
fn a_refund_during_a_turn_does_not_make_it_longer() {
    let mut engine = engine(10);
    let [a, _] = settled(&mut engine, [1, 1], 10);
    until(&mut engine, a, 1);
    engine.settle(a, Cost::new(101), Cost::new(1)).unwrap();
    let burst = (0..)
        .take_while(|_| serve(&mut engine, 1, 1)[0] == a)
        .count();
    // It is ten turns behind: they come one after the other, but each is a turn of its own, between
    // which a newcomer gets in.
    assert!(burst >= 100, "{burst}");
    engine.settle(a, Cost::new(101), Cost::new(1)).unwrap();
    let newcomer = awake(&mut engine, 1);
    let ahead = (0..)
        .take_while(|_| serve(&mut engine, 1, 1)[0] != newcomer)
        .count();
    assert!(ahead <= 20, "the newcomer waited for {ahead}");
}

#[test]
fn a_refund_that_leaves_a_key_where_it_is_keeps_its_place() {
    // Both wait in one bucket. The first owes three; one of them, or all three, are given back.
    for refund in [1, 3] {
        let mut engine = engine(10);
        settled(&mut engine, [1, 1, 1], 10);
        let first = serve(&mut engine, 1, 13)[0];
        let second = serve(&mut engine, 1, 10)[0];
        serve(&mut engine, 1, 10);
        assert_eq!(engine.state(first), Ok(State::Waiting));
        engine
            .settle(first, Cost::new(1 + refund), Cost::new(1))
            .unwrap();
        assert_eq!(serve(&mut engine, 1, 10), [first], "a refund of {refund}");
        assert_eq!(serve(&mut engine, 1, 10), [second]);
    }
}

#[test]
fn a_key_that_was_settled_down_to_nothing_is_passed_over_once() {
    let mut engine = engine(10);
    settled(&mut engine, [1, 1], 10);
    let [first, second] = [serve(&mut engine, 1, 10)[0], serve(&mut engine, 1, 10)[0]];
    serve(&mut engine, 1, 10);
    engine.settle(second, Cost::new(1), Cost::new(11)).unwrap(); // all of its next turn
    assert_eq!(serve(&mut engine, 3, 10), [first, second, first]);
}

#[test]
fn debt_counts_from_the_end_of_the_credit() {
    let mut engine = engine(10);
    let [a, b] = settled(&mut engine, [1, 1], 10);
    let serving = engine.next_key().unwrap();
    engine.charge(serving, Cost::new(1)).unwrap();
    assert_eq!(engine.debt(serving), Ok(0), "nine are left");
    engine.charge(serving, Cost::new(12)).unwrap();
    assert_eq!(engine.debt(serving), Ok(3));
    assert_eq!(engine.next_key(), Some(if serving == a { b } else { a }));
    assert_eq!(
        engine.debt(serving),
        Ok(13),
        "filed, it also waits for the other's ten"
    );
}

#[test]
fn settling_the_right_cost_changes_nothing() {
    let mut left = engine(7);
    settled(&mut left, [1, 2, 3], 5);
    let mut right = left.clone();
    for _ in 0..100 {
        let key = left.next_key().unwrap();
        assert_eq!(right.next_key(), Some(key));
        left.charge(key, Cost::new(3)).unwrap();
        right.charge(key, Cost::new(3)).unwrap();
        right.settle(key, Cost::new(3), Cost::new(3)).unwrap();
    }
}
