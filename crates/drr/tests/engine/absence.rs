//! Sleeping and parking: what a key takes along, and what it does not.

use super::*;

#[test]
fn sleeping_and_waking_twice_changes_nothing() {
    let mut engine = engine(1);
    let key = awake(&mut engine, 1);
    engine.wake(key).unwrap();
    engine.sleep(key).unwrap();
    engine.sleep(key).unwrap();
    assert_eq!(engine.next_key(), None);
    assert_eq!(engine.state(key), Ok(State::Idle));
}

#[test]
fn waking_a_key_that_is_awake_leaves_its_credit_alone() {
    let mut engine = engine(10);
    settled(&mut engine, [1, 1], 10);
    let key = serve(&mut engine, 4, 1)[0];
    engine.wake(key).unwrap();
    assert_eq!(serve(&mut engine, 6, 1), [key; 6], "the rest of its turn");
    assert_ne!(engine.next_key(), Some(key));
}

#[test]
fn work_that_arrives_while_parked_waits_for_unpark() {
    let mut engine = engine(1);
    let key = engine.register(Weight::ONE);
    engine.park(key).unwrap();
    engine.park(key).unwrap();
    engine.wake(key).unwrap();
    assert_eq!(
        (engine.next_key(), engine.state(key)),
        (None, Ok(State::Parked))
    );
    engine.unpark(key).unwrap();
    engine.unpark(key).unwrap();
    assert_eq!(engine.next_key(), Some(key));
}

#[test]
fn work_that_ends_while_parked_is_not_there_after_unpark() {
    let mut engine = engine(1);
    let key = awake(&mut engine, 1);
    engine.park(key).unwrap();
    engine.sleep(key).unwrap();
    engine.unpark(key).unwrap();
    assert_eq!(
        (engine.next_key(), engine.state(key)),
        (None, Ok(State::Idle))
    );
}

#[test]
fn a_state_is_told_by_name() {
    let mut engine = engine(10);
    let [a, b] = settled(&mut engine, [1, 1], 10);
    let serving = engine.next_key().unwrap();
    let waiting = if serving == a { b } else { a };
    assert_eq!(engine.state(serving), Ok(State::Serving));
    assert_eq!(engine.state(waiting), Ok(State::Waiting));
    let newcomer = awake(&mut engine, 1);
    assert_eq!(engine.state(newcomer), Ok(State::Fresh));
    engine.charge(serving, Cost::new(1)).unwrap();
    assert_eq!(
        engine.next_key(),
        Some(newcomer),
        "a newcomer does not wait for the turn to end"
    );
    assert_eq!(engine.state(newcomer), Ok(State::Serving));
    engine.charge(newcomer, Cost::new(10)).unwrap();
    assert_eq!(
        engine.next_key(),
        Some(serving),
        "and the turn goes on where it was"
    );
}

#[test]
fn what_was_not_used_of_a_turn_brings_the_next_one_closer() {
    // Quantum 10: the key uses one unit, parks and comes back at once. It may go on after as much
    // service to the other as it has used itself, not after a whole turn of it.
    let mut engine = engine(10);
    let [a, b] = settled(&mut engine, [1, 1], 10);
    until(&mut engine, a, 1);
    let mut others = 0;
    for _ in 0..100 {
        engine.charge(a, Cost::new(1)).unwrap();
        engine.park(a).unwrap();
        engine.unpark(a).unwrap();
        while engine.next_key() != Some(a) {
            engine.charge(b, Cost::new(1)).unwrap();
            others += 1;
        }
    }
    assert!(
        (80..=120).contains(&others),
        "beside 100 pieces of its own, the other got {others}"
    );
}

#[test]
fn rounds_that_pass_while_away_pay_off_debt() {
    for rounds in [10, 50, 99] {
        let mut engine = engine(1);
        let [a, b] = settled(&mut engine, [1, 1], 1);
        engine.charge(a, Cost::new(100)).unwrap();
        serve(&mut engine, 1, 1); // ends the turn that may have been a's
        engine.sleep(a).unwrap();
        let owed = engine.debt(a).unwrap();
        assert_eq!(serve(&mut engine, rounds, 1), vec![b; rounds]);
        let left = engine.debt(a).unwrap();
        assert!(
            owed.abs_diff(left + rounds as u64) <= 1,
            "owed {owed}, then {left} after {rounds}"
        );
    }
}

#[test]
fn a_small_debt_is_paid_too_and_leaves_a_whole_turn() {
    // The last piece of a turn overshoots by seven of ten; then the key is away for a while.
    for (rounds, whole) in [(0, 3), (1, 10), (5, 10)] {
        let mut engine = engine(10);
        let [a, b] = settled(&mut engine, [1, 1], 10);
        until(&mut engine, a, 10);
        engine.charge(a, Cost::new(17)).unwrap();
        engine.sleep(a).unwrap();
        // Its next visit comes when the other has had ten; from there on, seven more pay the debt.
        serve(&mut engine, 2 + rounds, 10);
        engine.wake(a).unwrap();
        let turn = (0..)
            .take_while(|_| serve(&mut engine, 1, 1)[0] == a)
            .count();
        assert!(
            turn.abs_diff(whole) <= 1,
            "{rounds} rounds later its turn was {turn}, not {whole}"
        );
        assert!(engine.debt(b).unwrap() <= 10);
    }
}

#[test]
fn debt_keeps_its_meaning_when_virtual_time_has_wrapped_many_times() {
    let mut engine = engine(1);
    let [away, busy] = settled(&mut engine, [1, 1], 1);
    engine.sleep(away).unwrap();
    // Each of these moves virtual time by 2^60 ticks: 2^64 have passed after 16.
    for _ in 0..100 {
        assert_eq!(serve(&mut engine, 1, u64::MAX), [busy]);
        assert_eq!(engine.debt(away), Ok(0));
    }
    engine.wake(away).unwrap();
    assert_eq!(engine.state(away), Ok(State::Fresh));
    assert_eq!(serve(&mut engine, 1, 1), [away]);
}
