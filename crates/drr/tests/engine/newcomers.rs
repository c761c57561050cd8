//! Newcomers and the ring.

use super::*;

/// Serves a ring and an endless row of newcomers: each comes when the last has been served. Returns how many of `count`
/// dispatches were newcomers'.
fn endless(engine: &mut Drr, ring: &[Key], cost: u64, count: usize) -> usize {
    let mut newcomers = 0;
    awake(engine, 1);
    for _ in 0..count {
        let key = serve(engine, 1, cost)[0];
        if !ring.contains(&key) {
            newcomers += 1;
            let _ = engine.forget(key).unwrap();
            awake(engine, 1);
        }
    }
    newcomers
}

#[test]
fn they_go_first_for_a_round_of_everyones_share() {
    // Beside one key in the ring, a newcomer's piece moves the clock by half a round: two of them go
    // before each visit of the ring.
    let mut engine = engine(10);
    let ring = settled(&mut engine, [1], 10);
    let newcomers = endless(&mut engine, &ring, 10, 9_000);
    assert!(newcomers.abs_diff(6_000) <= 10, "{newcomers} of 9,000");
}

#[test]
fn a_new_key_begins_without_credit_and_without_debt() {
    for quantum in [1, 10, 64] {
        let mut engine = engine(quantum);
        let [old] = settled(&mut engine, [1], quantum);
        let new = awake(&mut engine, 1);
        assert_eq!(engine.debt(new), Ok(0));
        // Its first turn is one quantum. Credit from before would make it longer, debt shorter.
        let turn = quantum as usize;
        assert_eq!(serve(&mut engine, turn, 1), vec![new; turn]);
        assert_eq!(engine.next_key(), Some(old));
    }
}

#[test]
fn one_that_comes_as_the_ring_is_due_still_goes_first() {
    // Two pieces move the clock to the ring's visit, to the tick; a third newcomer comes just then.
    let mut engine = engine(10);
    let [old] = settled(&mut engine, [1], 10);
    let mut order = Vec::new();
    for _ in 0..4 {
        awake(&mut engine, 1);
        let key = serve(&mut engine, 1, 10)[0];
        order.push(key == old);
        if key != old {
            let _ = engine.forget(key).unwrap();
        }
    }
    assert_eq!(order, [false, false, false, true]);
}

#[test]
fn an_interrupted_turn_goes_on_before_a_second_newcomer() {
    let mut engine = engine(10);
    let [old] = settled(&mut engine, [1], 10);
    serve(&mut engine, 3, 1); // seven of its ten are left
    let first = awake(&mut engine, 1);
    assert_eq!(serve(&mut engine, 1, 10), [first]);
    engine.sleep(first).unwrap();
    let second = awake(&mut engine, 1);
    assert_eq!(serve(&mut engine, 1, 1), [old], "they take turns");
    assert_eq!(serve(&mut engine, 1, 10), [second]);
    engine.sleep(second).unwrap();
    assert_eq!(serve(&mut engine, 6, 1), [old; 6], "and its turn goes on");
}

#[test]
fn they_take_turns_with_a_ring_that_is_due() {
    // Beside four, by a fifth: five go first, and then one before each of the other three visits.
    let mut engine = engine(10);
    let ring = settled(&mut engine, [1, 1, 1, 1], 10);
    let newcomers = endless(&mut engine, &ring, 10, 9_000);
    assert!(newcomers.abs_diff(6_000) <= 10, "{newcomers} of 9,000");
}

#[test]
fn they_move_the_clock_by_fractions_of_a_tick() {
    // The ring weighs 131,072, so a newcomer's piece moves the clock by half a tick, and a tick is the
    // stride of the keys in the ring. Without the fractions the ring would never be due.
    let mut engine = engine(10);
    let ring = settled(&mut engine, [65_536, 65_536], 10);
    let newcomers = endless(&mut engine, &ring, 10, 9_000);
    assert!(newcomers.abs_diff(4_500) <= 10, "{newcomers} of 9,000");
}

#[test]
fn a_newcomers_weight_can_change_before_it_is_served() {
    for (owed, turn) in [(0, 10), (7, 3)] {
        let mut engine = engine(10);
        let [a, _] = settled(&mut engine, [1, 1], 10);
        until(&mut engine, a, 10);
        engine.charge(a, Cost::new(10 + owed)).unwrap();
        engine.sleep(a).unwrap();
        serve(&mut engine, 2, 10);
        engine.wake(a).unwrap();
        for value in [5, 2, 1] {
            engine.set_weight(a, weight(value)).unwrap();
            assert_eq!(engine.state(a), Ok(State::Fresh));
        }
        let got = (0..)
            .take_while(|_| serve(&mut engine, 1, 1)[0] == a)
            .count();
        assert!(
            got.abs_diff(turn) <= 1,
            "it owed {owed}, and its turn was {got}"
        );
    }
}
