//! The verbs of the engine, one behaviour at a time.
#![cfg(test)] // helpers may unwrap, as tests do

use drr::{Cost, DisbandError, Drr, Key, Quantum, State, Unknown, Weight};

fn engine(quantum: u64) -> Drr {
    Drr::new(Quantum::new(quantum).unwrap())
}

fn weight(value: u64) -> Weight {
    Weight::new(value).unwrap()
}

/// Dispatches `count` pieces of work of one cost and returns whose they were.
fn serve(engine: &mut Drr, count: usize, cost: u64) -> Vec<Key> {
    let one = |_| {
        let key = engine.next_key().unwrap();
        engine.charge(key, Cost::new(cost)).unwrap();
        key
    };
    (0..count).map(one).collect()
}

/// Registers a key and wakes it.
fn awake(engine: &mut Drr, value: u64) -> Key {
    let key = engine.register(weight(value));
    engine.wake(key).unwrap();
    key
}

/// Registers keys and serves them until none is a newcomer any more.
fn settled<const N: usize>(engine: &mut Drr, weights: [u64; N], cost: u64) -> [Key; N] {
    let keys = weights.map(|value| awake(engine, value));
    serve(engine, 100 * N, cost);
    keys
}

mod choice {
    use super::*;

    #[test]
    fn nobody_is_next_without_work() {
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
        // The two units of debt come off the next turn, of which eight are left.
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
        while engine.next_key() != Some(dear) {
            engine.charge(cheap, Cost::ONE).unwrap();
        }
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
        while engine.next_key() != Some(b) {
            engine.charge(a, Cost::new(10)).unwrap();
        }
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
}

mod absence {
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
        while engine.next_key() != Some(a) {
            engine.charge(b, Cost::new(1)).unwrap();
        }
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
            while engine.next_key() != Some(a) {
                engine.charge(b, Cost::new(10)).unwrap();
            }
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
}

mod newcomers {
    use super::*;

    /// Serves an endless row of newcomers, each of which comes when the last has been served, beside a
    /// ring; returns how many of `count` dispatches were newcomers'.
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
            let [a, b] = settled(&mut engine, [1, 1], 10);
            while engine.next_key() != Some(a) {
                engine.charge(b, Cost::new(10)).unwrap();
            }
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
}

mod settlement {
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
        while engine.next_key() != Some(a) {
            engine.charge(b, Cost::ONE).unwrap();
        }
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
        let [a, b] = settled(&mut engine, [1, 1], 10);
        while engine.next_key() != Some(a) {
            engine.charge(b, Cost::new(1)).unwrap();
        }
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
}

mod weights {
    use super::*;

    fn shares(engine: &mut Drr, keys: [Key; 2], count: usize) -> [usize; 2] {
        let order = serve(engine, count, 1);
        keys.map(|key| order.iter().filter(|&&other| other == key).count())
    }

    #[test]
    fn a_key_in_deep_debt_pays_it_at_its_new_pace() {
        let mut engine = engine(1);
        let [a, b] = settled(&mut engine, [1, 1], 1);
        while engine.next_key() != Some(a) {
            engine.charge(b, Cost::ONE).unwrap();
        }
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
}

mod forgetting {
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
        let [a, b] = settled(&mut engine, [1, 1], 10);
        while engine.next_key() != Some(a) {
            engine.charge(b, Cost::new(10)).unwrap();
        }
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
        let [a, b] = settled(&mut engine, [1, 1], 10);
        while engine.next_key() != Some(a) {
            engine.charge(b, Cost::new(10)).unwrap();
        }
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
}

mod trees {
    use super::*;
    use drr::Group;

    /// Returns the share of each key over many dispatches.
    fn shares<const N: usize>(engine: &mut Drr, keys: [Key; N]) -> [f64; N] {
        let order = serve(engine, 12_000, 10);
        keys.map(|key| order.iter().filter(|&&other| other == key).count() as f64 / 12_000.0)
    }

    fn awake_in(engine: &mut Drr, group: Group, value: u64) -> Key {
        let key = engine.register_in(group, weight(value)).unwrap();
        engine.wake(key).unwrap();
        key
    }

    fn assert_near<const N: usize>(got: [f64; N], ideal: [f64; N]) {
        for (got, ideal) in got.iter().zip(ideal) {
            assert!((got - ideal).abs() < 0.003, "got {got}, ideal {ideal}");
        }
    }

    #[test]
    fn weights_act_at_every_level_of_a_deep_tree() {
        let mut engine = engine(10);
        // org (3) → team (2) → [user 1, user 4]; org (3) → user (1); flat key (1)
        let org = engine.register_group(weight(3));
        let team = engine.register_group_in(org, weight(2)).unwrap();
        let keys = [
            awake_in(&mut engine, team, 1),
            awake_in(&mut engine, team, 4),
            awake_in(&mut engine, org, 1),
            awake(&mut engine, 1),
        ];
        let ideal = [
            0.75 * 2.0 / 3.0 / 5.0,
            0.75 * 2.0 / 3.0 * 0.8,
            0.75 / 3.0,
            0.25,
        ];
        assert_near(shares(&mut engine, keys), ideal);
    }

    #[test]
    fn a_chain_of_a_hundred_groups_works_like_one() {
        let mut engine = engine(10);
        let mut group = engine.register_group(Weight::ONE);
        for _ in 0..100 {
            group = engine.register_group_in(group, weight(7)).unwrap();
        }
        let keys = [awake_in(&mut engine, group, 1), awake(&mut engine, 1)];
        assert_near(shares(&mut engine, keys), [0.5, 0.5]);
    }

    #[test]
    fn parking_a_group_parks_all_that_is_in_it() {
        let mut engine = engine(10);
        let org = engine.register_group(Weight::ONE);
        let team = engine.register_group_in(org, Weight::ONE).unwrap();
        let inside = awake_in(&mut engine, team, 1);
        let outside = awake(&mut engine, 1);
        engine.park(org).unwrap();
        assert_eq!(engine.state(org), Ok(State::Parked));
        assert_eq!(serve(&mut engine, 10, 10), [outside; 10]);
        let late = awake_in(&mut engine, team, 1); // work arrives below a parked group
        assert_eq!(serve(&mut engine, 10, 10), [outside; 10]);
        engine.sleep(inside).unwrap();
        engine.unpark(org).unwrap();
        let order = serve(&mut engine, 100, 10);
        assert!(!order.contains(&inside));
        assert!((48..=52).contains(&order.iter().filter(|&&key| key == late).count()));
        engine.park(org).unwrap();
        engine.sleep(late).unwrap(); // work ends below a parked group
        engine.sleep(outside).unwrap();
        engine.unpark(org).unwrap();
        assert_eq!(engine.next_key(), None);
    }

    #[test]
    fn settlement_reaches_every_level() {
        let mut engine = engine(10);
        let org = engine.register_group(Weight::ONE);
        let inside = awake_in(&mut engine, org, 1);
        let outside = awake(&mut engine, 1);
        serve(&mut engine, 100, 10);
        engine
            .settle(inside, Cost::new(10), Cost::new(1010))
            .unwrap();
        serve(&mut engine, 1, 10);
        assert!(
            engine.debt(org).unwrap() >= 900,
            "the group owes: {:?}",
            engine.debt(org)
        );
        let order = serve(&mut engine, 80, 10);
        assert_eq!(order, [outside; 80]);
        engine
            .settle(inside, Cost::new(1010), Cost::new(10))
            .unwrap();
        let order = serve(&mut engine, 80, 10);
        let own = order.iter().filter(|&&key| key == inside).count();
        assert!(own >= 75, "the group is given back what it overpaid: {own}");
    }

    #[test]
    fn a_group_with_children_is_not_disbanded() {
        let mut engine = engine(1);
        let group = engine.register_group(Weight::ONE);
        let child = awake_in(&mut engine, group, 1);
        assert_eq!(
            engine.disband(group),
            Err(DisbandError::NotEmpty { children: 1 })
        );
        assert_eq!(engine.next_key(), Some(child));
        let _ = engine.forget(child).unwrap();
        let _ = engine.disband(group).unwrap();
        assert!(engine.is_empty());
        assert_eq!(engine.disband(group), Err(DisbandError::Unknown(Unknown)));
        assert_eq!(engine.register_in(group, Weight::ONE), Err(Unknown));
        assert_eq!(engine.register_group_in(group, Weight::ONE), Err(Unknown));
    }

    #[test]
    fn a_standing_leads_back_to_its_group_or_nowhere() {
        let mut engine = engine(1);
        let group = engine.register_group(Weight::ONE);
        let [a, b] = [(); 2].map(|()| awake_in(&mut engine, group, 1));
        serve(&mut engine, 10, 1);
        engine.charge(a, Cost::new(100)).unwrap();
        let standing = engine.forget(a).unwrap().expect("it owes a hundred");
        let back = engine.readmit(standing, Weight::ONE).unwrap();
        engine.wake(back).unwrap();
        assert_eq!(serve(&mut engine, 50, 1), [b; 50], "it owes in its group");
        let standing = engine.forget(back).unwrap().expect("it still owes");
        let _ = engine.forget(b).unwrap();
        let group_standing = engine.disband(group).unwrap();
        assert!(
            engine.is_clear(&standing),
            "nothing is left of a group that is gone"
        );
        assert_eq!(engine.readmit(standing, Weight::ONE), Err(Unknown));
        if let Some(standing) = group_standing {
            let group = engine.readmit_group(standing, Weight::ONE).unwrap();
            assert!(engine.register_in(group, Weight::ONE).is_ok());
        }
    }

    #[test]
    fn a_slot_that_was_in_a_tree_is_used_again_outside_it() {
        let mut engine = engine(10);
        let group = engine.register_group(Weight::ONE);
        let child = awake_in(&mut engine, group, 1);
        let _ = engine.forget(child).unwrap();
        let _ = engine.disband(group).unwrap();
        let keys = [awake(&mut engine, 1), awake(&mut engine, 1)];
        let again = engine.register_group(Weight::ONE);
        let inside = awake_in(&mut engine, again, 1);
        let [first, second, third] = shares(&mut engine, [keys[0], keys[1], inside]);
        assert_near([first, second, third], [1.0 / 3.0; 3]);
    }
}
