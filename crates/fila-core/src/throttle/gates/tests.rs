use super::*;
use crate::Throttle;
use crate::throttle::test_buckets::Buckets;

const ONE: Weight = Weight::ONE;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn name(key: &str) -> ThrottleKey {
    ThrottleKey::parse(key).unwrap()
}

/// Returns gates with buckets of these rates, each with its one token.
fn gates(throttles: &[(&str, f64)]) -> (Gates, Buckets) {
    let buckets = Buckets::default();
    for (key, rate) in throttles {
        buckets.set(at(0), &name(key), Throttle::new(*rate, 1.0).unwrap());
    }
    (Gates::new(buckets.source(0)), buckets)
}

fn seats(gates: &mut Gates, keys: &[&str]) -> Vec<Seat> {
    let keys: Vec<ThrottleKey> = keys.iter().map(|key| name(key)).collect();
    gates.seats(&keys)
}

fn tokens(buckets: &Buckets, key: &str, now: u64) -> u64 {
    buckets.available(at(now), &name(key))
}

/// Lets a throttle set wait, and returns its stamp.
fn wait(gates: &mut Gates, now: u64, seats: &mut [Seat], seat: usize, holder: u64) -> u64 {
    let stamp = gates.stamp();
    let waiter = Waiter {
        queue: QueueId::new(1),
        lane: 0,
        set: 0,
        seat,
        stamp,
    };
    gates.wait(at(now), seats, waiter, ONE, holder);
    stamp
}

/// Calls whoever is next, and lets the call reach these seats; returns the stamp.
fn call(gates: &mut Gates, now: u64, seats: &mut [Seat]) -> Option<u64> {
    let call = gates.call(at(now))?;
    gates.reached(&call, &mut seats[call.waiter.seat]);
    Some(call.waiter.stamp)
}

#[test]
fn who_finds_one_bucket_empty_after_all_gives_back_what_he_took_of_the_others() {
    let (mut gates, buckets) = gates(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]);
    let mut seats = seats(&mut gates, &["a", "b", "c"]);
    assert_eq!(gates.check(at(0), &seats, 0, false), Ok(()));
    // Somebody else is faster, on another thread.
    assert!(buckets.take(at(0), &name("c")));
    assert_eq!(gates.take(at(0), &mut seats, 0), Err(Lacking { seat: 2 }));
    assert_eq!(
        ["a", "b", "c"].map(|key| tokens(&buckets, key, 0)),
        [1, 1, 0]
    );
    assert_eq!(gates.take(at(1000), &mut seats, 0), Ok(()));
    assert_eq!(
        ["a", "b", "c"].map(|key| tokens(&buckets, key, 1000)),
        [0; 3]
    );
}

#[test]
fn who_was_not_called_takes_no_token_of_those_who_wait_or_were() {
    let (mut gates, _) = gates(&[("a", 1.0)]);
    let mut first = seats(&mut gates, &["a"]);
    let second = seats(&mut gates, &["a"]);
    gates.take(at(0), &mut first, 0).unwrap();
    let stamp = wait(&mut gates, 0, &mut first, 0, 0);
    // The token is there, and nobody has been called yet.
    let lacking = Err(Lacking { seat: 0 });
    assert_eq!(gates.check(at(1000), &second, 0, false), lacking);
    assert_eq!(call(&mut gates, 1000, &mut first), Some(stamp));
    assert_eq!(gates.check(at(1000), &second, 0, false), lacking);
    assert_eq!(gates.check(at(1000), &first, stamp, true), Ok(()));
    // Who does not come in that poll leaves it to others.
    gates.settle(at(1000));
    assert_eq!(gates.check(at(1000), &second, 0, false), Ok(()));
}

#[test]
fn a_token_of_a_slower_bucket_is_kept_for_whoever_lacks_another_and_he_comes_first() {
    let (mut gates, buckets) = gates(&[("slow", 1.0), ("fast", 10.0)]);
    let mut both = seats(&mut gates, &["slow", "fast"]);
    let mut slow = seats(&mut gates, &["slow"]);
    let mut fast = seats(&mut gates, &["fast"]);
    gates.take(at(0), &mut both, 0).unwrap();
    let stamp = wait(&mut gates, 0, &mut both, 0, 0);
    gates.take(at(950), &mut fast, 0).unwrap();
    let before = wait(&mut gates, 950, &mut fast, 0, 0);
    // The slow one comes, and the fast one is not there.
    assert_eq!(call(&mut gates, 1000, &mut both), Some(stamp));
    let lacking = Err(Lacking { seat: 1 });
    assert_eq!(gates.check(at(1000), &both, stamp, true), lacking);
    let stamp = wait(&mut gates, 1000, &mut both, 1, stamp);
    gates.settle(at(1000));
    assert_eq!(tokens(&buckets, "slow", 1000), 1);
    assert!(
        gates.check(at(1000), &slow, 0, false).is_err(),
        "it is kept"
    );
    // He has waited for less long, and is called before.
    assert_eq!(call(&mut gates, 1050, &mut both), Some(stamp));
    assert_eq!(gates.check(at(1050), &both, stamp, true), Ok(()));
    gates.take(at(1050), &mut both, stamp).unwrap();
    gates.settle(at(1050));
    assert_eq!(call(&mut gates, 1150, &mut fast), Some(before));
    // Nothing is kept any more.
    assert_eq!(gates.check(at(2050), &slow, 0, false), Ok(()));
    gates.take(at(2050), &mut slow, 0).unwrap();
}

#[test]
fn a_token_is_kept_no_longer_than_the_other_one_takes_to_come() {
    let (mut gates, buckets) = gates(&[("slow", 1.0), ("fast", 10.0)]);
    let mut both = seats(&mut gates, &["slow", "fast"]);
    let mut slow = seats(&mut gates, &["slow"]);
    gates.take(at(0), &mut both, 0).unwrap();
    let stamp = wait(&mut gates, 0, &mut both, 0, 0);
    let after = wait(&mut gates, 0, &mut slow, 0, 0);
    assert!(buckets.take(at(950), &name("fast")));
    assert_eq!(call(&mut gates, 1000, &mut both), Some(stamp));
    assert!(gates.check(at(1000), &both, stamp, true).is_err());
    let stamp = wait(&mut gates, 1000, &mut both, 1, stamp);
    gates.settle(at(1000));
    // Somebody else takes the other one as well: whoever waits for this one is called.
    assert!(buckets.take(at(1050), &name("fast")));
    assert_eq!(gates.next_alarm(), Some(at(1050)));
    assert_eq!(call(&mut gates, 1050, &mut both), None);
    assert_eq!(gates.next_alarm(), Some(at(1051)));
    assert_eq!(call(&mut gates, 1051, &mut slow), Some(after));
    assert_eq!(gates.check(at(1051), &slow, after, true), Ok(()));
    gates.take(at(1051), &mut slow, after).unwrap();
    gates.settle(at(1051));
    // And who has kept it waits for it like everybody, and keeps nothing of it.
    assert_eq!(call(&mut gates, 1150, &mut both), Some(stamp));
    let lacking = Err(Lacking { seat: 0 });
    assert_eq!(gates.check(at(1150), &both, stamp, true), lacking);
    wait(&mut gates, 1150, &mut both, 0, stamp);
    gates.settle(at(1150));
    assert_eq!(tokens(&buckets, "fast", 1150), 1);
    let fast = seats(&mut gates, &["fast"]);
    assert_eq!(gates.check(at(1150), &fast, 0, false), Ok(()));
}

#[test]
fn who_is_called_out_of_turn_has_not_paid_and_owes_what_he_owed_before() {
    let (mut gates, buckets) = gates(&[("slow", 1.0), ("fast", 10.0)]);
    let mut both = seats(&mut gates, &["slow", "fast"]);
    // His turn in the ring of the one, for which he pays;
    assert!(buckets.take(at(0), &name("fast")));
    let stamp = wait(&mut gates, 0, &mut both, 1, 0);
    let mut others = seats(&mut gates, &["fast"]);
    wait(&mut gates, 0, &mut others, 0, 0);
    assert_eq!(call(&mut gates, 100, &mut both), Some(stamp));
    gates.take(at(100), &mut both, stamp).unwrap();
    gates.settle(at(100));
    assert!(both[1].standing.is_some() && both[1].has_paid);
    // in that of the other;
    let stamp = wait(&mut gates, 100, &mut both, 0, stamp);
    assert!(buckets.take(at(1050), &name("fast")));
    assert_eq!(call(&mut gates, 1100, &mut both), Some(stamp));
    let stamp = wait(&mut gates, 1100, &mut both, 1, stamp);
    gates.settle(at(1100));
    // and before his turn in the first again.
    assert_eq!(call(&mut gates, 1150, &mut both), Some(stamp));
    assert!(both[1].standing.is_some() && !both[1].has_paid);
}

#[test]
fn who_lacks_several_tokens_waits_for_the_slowest() {
    let (mut gates, buckets) = gates(&[("a", 2.0), ("b", 1.0), ("c", 3.0)]);
    let seats = seats(&mut gates, &["a", "b", "c"]);
    for key in ["a", "b", "c"] {
        assert!(buckets.take(at(0), &name(key)));
    }
    let lacking = |seat| Err(Lacking { seat });
    assert_eq!(gates.check(at(0), &seats, 0, false), lacking(1));
    buckets.set(at(0), &name("c"), Throttle::new(0.0, 1.0).unwrap());
    assert_eq!(gates.check(at(0), &seats, 0, false), lacking(2));
    assert_eq!(gates.check(at(1_000), &seats, 0, false), lacking(2));
    buckets.remove(&name("c"));
    gates.rethrottle(&[name("c")]);
    assert_eq!(gates.check(at(1_000), &seats, 0, false), Ok(()));
}

#[test]
fn what_is_kept_of_the_slowest_is_kept_while_one_after_the_other_is_lacking() {
    let (mut gates, buckets) = gates(&[("slow", 1.0), ("some", 5.0), ("fast", 10.0)]);
    let mut all = seats(&mut gates, &["slow", "some", "fast"]);
    let (slow, some) = (seats(&mut gates, &["slow"]), seats(&mut gates, &["some"]));
    gates.take(at(0), &mut all, 0).unwrap();
    let stamp = wait(&mut gates, 0, &mut all, 0, 0);
    assert!(buckets.take(at(950), &name("some")));
    assert_eq!(call(&mut gates, 1000, &mut all), Some(stamp));
    let stamp = wait(&mut gates, 1000, &mut all, 1, stamp);
    gates.settle(at(1000));
    assert!(buckets.take(at(1140), &name("fast")));
    assert_eq!(call(&mut gates, 1150, &mut all), Some(stamp));
    let lacking = Err(Lacking { seat: 2 });
    assert_eq!(gates.check(at(1150), &all, stamp, true), lacking);
    let stamp = wait(&mut gates, 1150, &mut all, 2, stamp);
    gates.settle(at(1150));
    for others in [&slow, &some] {
        assert!(gates.check(at(1200), others, 0, false).is_err());
    }
    assert_eq!(call(&mut gates, 1240, &mut all), Some(stamp));
    assert_eq!(gates.check(at(1240), &all, stamp, true), Ok(()));
}

#[test]
fn nothing_of_a_faster_bucket_is_kept_for_whoever_lacks_a_slower_one() {
    let (mut gates, buckets) = gates(&[("slow", 1.0), ("fast", 10.0)]);
    let mut both = seats(&mut gates, &["slow", "fast"]);
    let fast = seats(&mut gates, &["fast"]);
    assert!(buckets.take(at(0), &name("fast")));
    let stamp = wait(&mut gates, 0, &mut both, 1, 0);
    assert!(buckets.take(at(50), &name("slow")));
    assert_eq!(call(&mut gates, 100, &mut both), Some(stamp));
    let lacking = Err(Lacking { seat: 0 });
    assert_eq!(gates.check(at(100), &both, stamp, true), lacking);
    wait(&mut gates, 100, &mut both, 0, stamp);
    gates.settle(at(100));
    assert_eq!(gates.check(at(100), &fast, 0, false), Ok(()));
}

#[test]
fn who_was_called_for_nothing_has_his_turn_again() {
    let (mut gates, buckets) = gates(&[("a", 10.0)]);
    assert!(buckets.take(at(0), &name("a")));
    let mut all: Vec<Vec<Seat>> = (0..3).map(|_| seats(&mut gates, &["a"])).collect();
    let mut stamps: Vec<u64> = (all.iter_mut())
        .map(|seats| wait(&mut gates, 0, seats, 0, 0))
        .collect();
    let mut served = [0; 3];
    for turn in 1..=90 {
        let now = turn * 100;
        let called = gates.call(at(now)).unwrap();
        let who = stamps.iter().position(|it| *it == called.waiter.stamp);
        let who = who.unwrap();
        gates.reached(&called, &mut all[who][0]);
        // Every other time that it is the first one's turn, another broker is faster.
        if who == 0 && turn % 2 == 0 {
            assert!(buckets.take(at(now), &name("a")));
        } else {
            let taken = gates.take(at(now), &mut all[who], called.waiter.stamp);
            assert_eq!(taken, Ok(()));
            served[who] += 1;
        }
        stamps[who] = wait(&mut gates, now, &mut all[who], 0, called.waiter.stamp);
        gates.settle(at(now));
    }
    let (most, least) = (served.iter().max(), served.iter().min());
    assert!(most.unwrap() - least.unwrap() <= 2, "{served:?}");
}

#[test]
fn gates_that_nobody_uses_are_forgotten() {
    let (mut gates, _) = gates(&[]);
    let kept = seats(&mut gates, &["kept"]);
    for number in 0..10_000 {
        seats(&mut gates, &[&format!("key-{number}")]);
    }
    assert!(gates.work().0 <= SWEEP_MIN + 1, "{:?}", gates.work());
    assert_eq!(gates.seats(&[name("kept")])[0].gate, kept[0].gate);
}
