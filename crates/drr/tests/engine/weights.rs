//! Weights that change.

use super::*;

fn shares(engine: &mut Drr, keys: [Key; 2], count: usize) -> [usize; 2] {
    let order = serve(engine, count, 1);
    keys.map(|key| order.iter().filter(|&&other| other == key).count())
}

#[test]
fn a_key_in_deep_debt_pays_it_at_its_new_pace() {
    let mut engine = engine(1);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    until(&mut engine, a, 1);
    engine.charge(a, Cost::new(10_000)).unwrap();
    serve(&mut engine, 1, 1);
    assert!(engine.debt(a).unwrap() > 9_000);
    engine.set_weight(a, weight(1000)).unwrap();
    assert!(
        engine.debt(a).unwrap().abs_diff(10_000) < 1_100,
        "the debt is the same"
    );
    let wait = (0..)
        .take_while(|_| serve(&mut engine, 1, 1)[0] == b)
        .count();
    assert!(
        wait <= 12,
        "ten rounds at the new pace, not ten thousand: {wait}"
    );
}

#[test]
fn a_weight_can_change_in_any_state() {
    let mut engine = engine(10);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    let serving = engine.next_key().unwrap();
    engine.set_weight(serving, weight(3)).unwrap(); // in its turn
    let waiting = if serving == a { b } else { a };
    engine.set_weight(waiting, weight(3)).unwrap(); // in the ring
    assert_eq!(engine.weight(a), Ok(weight(3)));
    assert_eq!(shares(&mut engine, [a, b], 600), [300, 300]);
    engine.sleep(a).unwrap();
    engine.set_weight(a, weight(9)).unwrap(); // away
    serve(&mut engine, 100, 1);
    engine.wake(a).unwrap();
    engine.set_weight(a, weight(1)).unwrap(); // fresh
    engine.set_weight(a, weight(6)).unwrap();
    let [heavy, light] = shares(&mut engine, [a, b], 900);
    assert!((580..=620).contains(&heavy), "6:3 gave {heavy}:{light}");
}

#[test]
fn a_key_that_waits_keeps_what_it_owes_when_its_weight_changes() {
    for away in [false, true] {
        let mut engine = engine(10);
        settled(&mut engine, [1, 1], 10);
        let [first, second] = [serve(&mut engine, 1, 17)[0], serve(&mut engine, 1, 10)[0]];
        assert_eq!(engine.next_key(), Some(first)); // ends the second's turn
        engine.charge(first, Cost::new(3)).unwrap();
        assert_eq!(engine.next_key(), Some(second));
        // The first has had its three of ten; the second overshoots by seven and waits.
        engine.charge(second, Cost::new(17)).unwrap();
        assert_eq!(engine.next_key(), Some(first));
        if away {
            engine.sleep(second).unwrap();
        }
        for value in [2, 4, 1] {
            engine.set_weight(second, weight(value)).unwrap();
        }
        if away {
            engine.wake(second).unwrap(); // its visit has come already: it goes first
        } else {
            serve(&mut engine, 10, 1);
        }
        let turn = (0..)
            .take_while(|_| serve(&mut engine, 1, 1)[0] == second)
            .count();
        assert!(
            (2..=4).contains(&turn),
            "it owed seven of ten, and its turn was {turn}"
        );
    }
}

#[test]
fn switching_a_weight_to_and_fro_clears_no_debt() {
    let mut engine = engine(1);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    engine.charge(a, Cost::new(1000)).unwrap();
    serve(&mut engine, 1, 1);
    let owed = engine.debt(a).unwrap();
    for _ in 0..100 {
        engine.set_weight(a, Weight::MAX).unwrap();
        engine.set_weight(a, Weight::ONE).unwrap();
    }
    let left = engine.debt(a).unwrap();
    assert!(left + 2 >= owed, "owed {owed}, then {left}");
    assert_eq!(serve(&mut engine, 100, 1), [b; 100]);
}

#[test]
fn a_key_that_gets_the_weight_that_it_has_keeps_its_place() {
    let mut engine = engine(1);
    let [a, ..] = settled(&mut engine, [1, 1, 1], 1);
    let mut same = engine.clone();
    for _ in 0..30 {
        same.set_weight(a, weight(1)).unwrap();
        let key = engine.next_key().unwrap();
        assert_eq!(same.next_key(), Some(key));
        engine.charge(key, Cost::ONE).unwrap();
        same.charge(key, Cost::ONE).unwrap();
    }
}
