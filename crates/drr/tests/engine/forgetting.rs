//! Keys that are forgotten, and what is left of them.

use super::*;

#[test]
fn a_forgotten_key_is_refused_by_every_verb() {
    let mut engine = engine(1);
    let gone = awake(&mut engine, 1);
    assert_eq!(engine.forget(gone), Ok(None));
    assert_eq!((engine.next_key(), engine.len()), (None, 0));
    let successor = engine.register(Weight::ONE);
    assert_eq!(successor.index(), gone.index(), "the slot is used again");
    assert_ne!(successor, gone);
    assert_eq!(engine.wake(gone), Err(Unknown));
    assert_eq!(engine.sleep(gone), Err(Unknown));
    assert_eq!(engine.park(gone), Err(Unknown));
    assert_eq!(engine.unpark(gone), Err(Unknown));
    assert_eq!(engine.charge(gone, Cost::ONE), Err(Unknown));
    assert_eq!(engine.settle(gone, Cost::ONE, Cost::MAX), Err(Unknown));
    assert_eq!(engine.set_weight(gone, Weight::MAX), Err(Unknown));
    assert_eq!(engine.forget(gone), Err(Unknown));
    assert_eq!(engine.state(gone), Err(Unknown));
    assert_eq!(engine.weight(gone), Err(Unknown));
    assert_eq!(engine.debt(gone), Err(Unknown));
    assert_eq!((engine.len(), engine.is_empty()), (1, false));
}

#[test]
fn slots_are_reused_before_new_ones_are_made() {
    let mut engine = engine(1);
    for _ in 0..1000 {
        let keys = [(); 3].map(|()| awake(&mut engine, 1));
        assert!(keys.iter().all(|key| key.index() < 3));
        for key in keys {
            engine.forget(key).unwrap();
        }
    }
    assert!(engine.is_empty());
}

#[test]
fn a_key_that_owes_nothing_leaves_no_standing() {
    let mut engine = engine(1);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    engine.sleep(a).unwrap();
    serve(&mut engine, 10, 1);
    assert_eq!(engine.is_settled(a), Ok(true));
    assert_eq!(engine.forget(a), Ok(None));
    assert_eq!(engine.is_settled(a), Err(Unknown));
    let standing = engine.forget(b).unwrap();
    assert!(standing.is_some(), "it has just been served");
}

#[test]
fn a_standing_is_clear_once_its_debt_is_paid() {
    let mut engine = engine(1);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    engine.charge(a, Cost::new(50)).unwrap();
    serve(&mut engine, 1, 1);
    let standing = engine.forget(a).unwrap().expect("it owes fifty");
    assert!(!engine.is_clear(&standing));
    assert_eq!(serve(&mut engine, 30, 1), [b; 30]);
    assert!(!engine.is_clear(&standing));
    assert_eq!(serve(&mut engine, 30, 1), [b; 30]);
    assert!(engine.is_clear(&standing));
}

#[test]
fn a_readmitted_key_owes_what_it_owed() {
    let mut engine = engine(1);
    let [a, b] = settled(&mut engine, [1, 1], 1);
    engine.charge(a, Cost::new(50)).unwrap();
    serve(&mut engine, 1, 1);
    let owed = engine.debt(a).unwrap();
    let standing = engine.forget(a).unwrap().expect("it owes fifty");
    let back = engine.readmit(standing, Weight::ONE).unwrap();
    assert_eq!(engine.debt(back), Ok(owed));
    engine.wake(back).unwrap();
    let wait = (0..)
        .take_while(|_| serve(&mut engine, 1, 1)[0] == b)
        .count();
    assert!((42..=52).contains(&wait), "it waited for {wait}");
}

#[test]
fn a_key_that_has_just_been_served_earns_no_boost_by_being_forgotten() {
    // It used one of ten: it owes nothing, but its next visit has not come.
    let mut engine = engine(10);
    let [a, _] = settled(&mut engine, [1, 1], 10);
    until(&mut engine, a, 10);
    engine.charge(a, Cost::new(1)).unwrap();
    let standing = engine
        .forget(a)
        .unwrap()
        .expect("it has been served in this pass");
    let back = engine.readmit(standing, Weight::ONE).unwrap();
    engine.wake(back).unwrap();
    assert_eq!(engine.state(back), Ok(State::Waiting));
}

#[test]
fn a_key_whose_visit_has_come_still_owes_the_rest_after_being_forgotten() {
    // It owes seven of ten at a visit that has come just now.
    let mut engine = engine(10);
    let [a, _] = settled(&mut engine, [1, 1], 10);
    until(&mut engine, a, 10);
    engine.charge(a, Cost::new(17)).unwrap();
    engine.sleep(a).unwrap();
    serve(&mut engine, 2, 10);
    assert_eq!(engine.is_settled(a), Ok(false));
    let standing = engine.forget(a).unwrap().expect("it owes seven");
    let back = engine.readmit(standing, Weight::ONE).unwrap();
    engine.wake(back).unwrap();
    let turn = (0..)
        .take_while(|_| serve(&mut engine, 1, 1)[0] == back)
        .count();
    assert!((2..=4).contains(&turn), "its turn was {turn}");
}

#[test]
fn forgetting_the_key_whose_turn_it_is_leaves_the_others_alone() {
    let mut engine = engine(10);
    let keys = settled(&mut engine, [1, 1, 1], 10);
    let serving = engine.next_key().unwrap();
    engine.charge(serving, Cost::ONE).unwrap();
    let _ = engine.forget(serving).unwrap();
    let order = serve(&mut engine, 40, 10);
    assert!(!order.contains(&serving));
    let others: Vec<Key> = keys.into_iter().filter(|&key| key != serving).collect();
    for other in others {
        assert_eq!(order.iter().filter(|&&key| key == other).count(), 20);
    }
}
