use drr::Weight;
use fila_store::QueueId;

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

/// Returns throttles with buckets of these rates, each with its one token.
fn throttles(throttles: &[(&str, f64)]) -> (Throttles, Buckets) {
    let buckets = Buckets::default();
    for (key, rate) in throttles {
        buckets.set(at(0), &name(key), Throttle::new(*rate, 1.0).unwrap());
    }
    (Throttles::new(buckets.source(0)), buckets)
}

fn slots(throttles: &mut Throttles, keys: &[&str]) -> Vec<WaitSlot> {
    let keys: Vec<ThrottleKey> = keys.iter().map(|key| name(key)).collect();
    throttles.slots(&keys)
}

fn tokens(buckets: &Buckets, key: &str, now: u64) -> u64 {
    buckets.available(at(now), &name(key))
}

/// Lets a throttle set wait, and returns the id of its wait.
fn wait(
    throttles: &mut Throttles,
    now: u64,
    slots: &mut [WaitSlot],
    slot: usize,
    previous: u64,
) -> u64 {
    let wait_id = throttles.next_wait_id();
    let waiter = Waiter {
        queue: QueueId::new(1),
        lane: 0,
        set: 0,
        slot,
        wait_id,
    };
    throttles.wait(at(now), slots, waiter, &Claim::alone(ONE), previous);
    wait_id
}

/// Offers a token to the next waiter, which has these slots; returns the id of its wait.
fn offer(throttles: &mut Throttles, now: u64, slots: &mut [WaitSlot]) -> Option<u64> {
    let offer = throttles.offer(at(now))?;
    throttles.accept(&offer, &mut slots[offer.waiter.slot]);
    Some(offer.waiter.wait_id)
}

#[test]
fn a_set_that_finds_one_bucket_empty_gives_back_the_tokens_of_the_others() {
    let (mut throttles, buckets) = throttles(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]);
    let mut slots = slots(&mut throttles, &["a", "b", "c"]);
    assert_eq!(throttles.check(at(0), &slots, 0, false), Ok(()));
    // Another broker is faster.
    assert!(buckets.take(at(0), &name("c")));
    assert_eq!(
        throttles.take(at(0), &mut slots, 0),
        Err(NoToken { slot: 2 })
    );
    assert_eq!(
        ["a", "b", "c"].map(|key| tokens(&buckets, key, 0)),
        [1, 1, 0]
    );
    assert_eq!(throttles.take(at(1000), &mut slots, 0), Ok(()));
    assert_eq!(
        ["a", "b", "c"].map(|key| tokens(&buckets, key, 1000)),
        [0; 3]
    );
}

#[test]
fn a_set_without_an_offer_takes_no_token_that_others_wait_for_or_were_offered() {
    let (mut throttles, _) = throttles(&[("a", 1.0)]);
    let mut first = slots(&mut throttles, &["a"]);
    let second = slots(&mut throttles, &["a"]);
    throttles.take(at(0), &mut first, 0).unwrap();
    let wait_id = wait(&mut throttles, 0, &mut first, 0, 0);
    // The token is there, and is not offered yet.
    let no_token = Err(NoToken { slot: 0 });
    assert_eq!(throttles.check(at(1000), &second, 0, false), no_token);
    assert_eq!(offer(&mut throttles, 1000, &mut first), Some(wait_id));
    assert_eq!(throttles.check(at(1000), &second, 0, false), no_token);
    assert_eq!(throttles.check(at(1000), &first, wait_id, true), Ok(()));
    // A token that is not taken in that poll is free again.
    throttles.end_poll(at(1000));
    assert_eq!(throttles.check(at(1000), &second, 0, false), Ok(()));
}

#[test]
fn a_set_that_lacks_a_token_reserves_that_of_a_slower_bucket_and_comes_first() {
    let (mut throttles, buckets) = throttles(&[("slow", 1.0), ("fast", 10.0)]);
    let mut both = slots(&mut throttles, &["slow", "fast"]);
    let mut slow = slots(&mut throttles, &["slow"]);
    let mut fast = slots(&mut throttles, &["fast"]);
    throttles.take(at(0), &mut both, 0).unwrap();
    let wait_id = wait(&mut throttles, 0, &mut both, 0, 0);
    throttles.take(at(950), &mut fast, 0).unwrap();
    let before = wait(&mut throttles, 950, &mut fast, 0, 0);
    // The slow token comes, and there is no fast one.
    assert_eq!(offer(&mut throttles, 1000, &mut both), Some(wait_id));
    let no_token = Err(NoToken { slot: 1 });
    assert_eq!(throttles.check(at(1000), &both, wait_id, true), no_token);
    let wait_id = wait(&mut throttles, 1000, &mut both, 1, wait_id);
    throttles.end_poll(at(1000));
    assert_eq!(tokens(&buckets, "slow", 1000), 1);
    assert!(
        throttles.check(at(1000), &slow, 0, false).is_err(),
        "it is reserved"
    );
    // The set has waited for less time, and comes first.
    assert_eq!(offer(&mut throttles, 1050, &mut both), Some(wait_id));
    assert_eq!(throttles.check(at(1050), &both, wait_id, true), Ok(()));
    throttles.take(at(1050), &mut both, wait_id).unwrap();
    throttles.end_poll(at(1050));
    assert_eq!(offer(&mut throttles, 1150, &mut fast), Some(before));
    // The reservation has ended.
    assert_eq!(throttles.check(at(2050), &slow, 0, false), Ok(()));
    throttles.take(at(2050), &mut slow, 0).unwrap();
}

#[test]
fn a_reservation_ends_when_the_awaited_token_comes() {
    let (mut throttles, buckets) = throttles(&[("slow", 1.0), ("fast", 10.0)]);
    let mut both = slots(&mut throttles, &["slow", "fast"]);
    let mut slow = slots(&mut throttles, &["slow"]);
    throttles.take(at(0), &mut both, 0).unwrap();
    let wait_id = wait(&mut throttles, 0, &mut both, 0, 0);
    let after = wait(&mut throttles, 0, &mut slow, 0, 0);
    assert!(buckets.take(at(950), &name("fast")));
    assert_eq!(offer(&mut throttles, 1000, &mut both), Some(wait_id));
    assert!(throttles.check(at(1000), &both, wait_id, true).is_err());
    let wait_id = wait(&mut throttles, 1000, &mut both, 1, wait_id);
    throttles.end_poll(at(1000));
    // Another broker takes the fast token as well, so the slow one is offered to the next set.
    assert!(buckets.take(at(1050), &name("fast")));
    assert_eq!(throttles.next_alarm(), Some(at(1050)));
    assert_eq!(offer(&mut throttles, 1050, &mut both), None);
    assert_eq!(throttles.next_alarm(), Some(at(1051)));
    assert_eq!(offer(&mut throttles, 1051, &mut slow), Some(after));
    assert_eq!(throttles.check(at(1051), &slow, after, true), Ok(()));
    throttles.take(at(1051), &mut slow, after).unwrap();
    throttles.end_poll(at(1051));
    // The first set waits for the slow token like all others, and reserves no fast one.
    assert_eq!(offer(&mut throttles, 1150, &mut both), Some(wait_id));
    let no_token = Err(NoToken { slot: 0 });
    assert_eq!(throttles.check(at(1150), &both, wait_id, true), no_token);
    wait(&mut throttles, 1150, &mut both, 0, wait_id);
    throttles.end_poll(at(1150));
    assert_eq!(tokens(&buckets, "fast", 1150), 1);
    let fast = slots(&mut throttles, &["fast"]);
    assert_eq!(throttles.check(at(1150), &fast, 0, false), Ok(()));
}

#[test]
fn an_offer_due_to_a_reservation_is_not_paid_and_leaves_the_standing_unchanged() {
    let (mut throttles, buckets) = throttles(&[("slow", 1.0), ("fast", 10.0)]);
    let mut both = slots(&mut throttles, &["slow", "fast"]);
    // The ring of the fast bucket chooses the set, and the set pays.
    assert!(buckets.take(at(0), &name("fast")));
    let wait_id = wait(&mut throttles, 0, &mut both, 1, 0);
    let mut others = slots(&mut throttles, &["fast"]);
    wait(&mut throttles, 0, &mut others, 0, 0);
    assert_eq!(offer(&mut throttles, 100, &mut both), Some(wait_id));
    throttles.take(at(100), &mut both, wait_id).unwrap();
    throttles.end_poll(at(100));
    assert!(both[1].standing.is_some() && both[1].has_paid);
    // The ring of the slow bucket chooses it, and it reserves that token.
    let wait_id = wait(&mut throttles, 100, &mut both, 0, wait_id);
    assert!(buckets.take(at(1050), &name("fast")));
    assert_eq!(offer(&mut throttles, 1100, &mut both), Some(wait_id));
    let wait_id = wait(&mut throttles, 1100, &mut both, 1, wait_id);
    throttles.end_poll(at(1100));
    // Then it comes first at the fast bucket.
    assert_eq!(offer(&mut throttles, 1150, &mut both), Some(wait_id));
    assert!(both[1].standing.is_some() && !both[1].has_paid);
}

#[test]
fn a_set_that_lacks_several_tokens_waits_for_the_slowest() {
    let (mut throttles, buckets) = throttles(&[("a", 2.0), ("b", 1.0), ("c", 3.0)]);
    let slots = slots(&mut throttles, &["a", "b", "c"]);
    for key in ["a", "b", "c"] {
        assert!(buckets.take(at(0), &name(key)));
    }
    let no_token = |slot| Err(NoToken { slot });
    assert_eq!(throttles.check(at(0), &slots, 0, false), no_token(1));
    buckets.set(at(0), &name("c"), Throttle::new(0.0, 1.0).unwrap());
    assert_eq!(throttles.check(at(0), &slots, 0, false), no_token(2));
    assert_eq!(throttles.check(at(1_000), &slots, 0, false), no_token(2));
    buckets.remove(&name("c"));
    throttles.rethrottle(&[name("c")]);
    assert_eq!(throttles.check(at(1_000), &slots, 0, false), Ok(()));
}

#[test]
fn a_reservation_at_the_slowest_bucket_goes_on_while_the_set_waits_for_one_after_another() {
    let (mut throttles, buckets) = throttles(&[("slow", 1.0), ("some", 5.0), ("fast", 10.0)]);
    let mut all = slots(&mut throttles, &["slow", "some", "fast"]);
    let (slow, some) = (
        slots(&mut throttles, &["slow"]),
        slots(&mut throttles, &["some"]),
    );
    throttles.take(at(0), &mut all, 0).unwrap();
    let wait_id = wait(&mut throttles, 0, &mut all, 0, 0);
    assert!(buckets.take(at(950), &name("some")));
    assert_eq!(offer(&mut throttles, 1000, &mut all), Some(wait_id));
    let wait_id = wait(&mut throttles, 1000, &mut all, 1, wait_id);
    throttles.end_poll(at(1000));
    assert!(buckets.take(at(1140), &name("fast")));
    assert_eq!(offer(&mut throttles, 1150, &mut all), Some(wait_id));
    let no_token = Err(NoToken { slot: 2 });
    assert_eq!(throttles.check(at(1150), &all, wait_id, true), no_token);
    let wait_id = wait(&mut throttles, 1150, &mut all, 2, wait_id);
    throttles.end_poll(at(1150));
    for others in [&slow, &some] {
        assert!(throttles.check(at(1200), others, 0, false).is_err());
    }
    assert_eq!(offer(&mut throttles, 1240, &mut all), Some(wait_id));
    assert_eq!(throttles.check(at(1240), &all, wait_id, true), Ok(()));
}

#[test]
fn a_set_that_waits_for_a_slower_bucket_reserves_nothing_of_a_faster_one() {
    let (mut throttles, buckets) = throttles(&[("slow", 1.0), ("fast", 10.0)]);
    let mut both = slots(&mut throttles, &["slow", "fast"]);
    let fast = slots(&mut throttles, &["fast"]);
    assert!(buckets.take(at(0), &name("fast")));
    let wait_id = wait(&mut throttles, 0, &mut both, 1, 0);
    assert!(buckets.take(at(50), &name("slow")));
    assert_eq!(offer(&mut throttles, 100, &mut both), Some(wait_id));
    let no_token = Err(NoToken { slot: 0 });
    assert_eq!(throttles.check(at(100), &both, wait_id, true), no_token);
    wait(&mut throttles, 100, &mut both, 0, wait_id);
    throttles.end_poll(at(100));
    assert_eq!(throttles.check(at(100), &fast, 0, false), Ok(()));
}

#[test]
fn a_set_that_did_not_get_its_token_has_its_turn_again() {
    let (mut throttles, buckets) = throttles(&[("a", 10.0)]);
    assert!(buckets.take(at(0), &name("a")));
    let mut all: Vec<Vec<WaitSlot>> = (0..3).map(|_| slots(&mut throttles, &["a"])).collect();
    let mut wait_ids: Vec<u64> = (all.iter_mut())
        .map(|slots| wait(&mut throttles, 0, slots, 0, 0))
        .collect();
    let mut served = [0; 3];
    for turn in 1..=90 {
        let now = turn * 100;
        let offer = throttles.offer(at(now)).unwrap();
        let who = wait_ids.iter().position(|it| *it == offer.waiter.wait_id);
        let who = who.unwrap();
        throttles.accept(&offer, &mut all[who][0]);
        // At every other turn of the first set another broker is faster.
        if who == 0 && turn % 2 == 0 {
            assert!(buckets.take(at(now), &name("a")));
        } else {
            let taken = throttles.take(at(now), &mut all[who], offer.waiter.wait_id);
            assert_eq!(taken, Ok(()));
            served[who] += 1;
        }
        wait_ids[who] = wait(&mut throttles, now, &mut all[who], 0, offer.waiter.wait_id);
        throttles.end_poll(at(now));
    }
    let (most, least) = (served.iter().max(), served.iter().min());
    assert!(most.unwrap() - least.unwrap() <= 2, "{served:?}");
}

#[test]
fn unused_queues_are_removed() {
    let (mut throttles, _) = throttles(&[]);
    let kept = slots(&mut throttles, &["kept"]);
    for number in 0..10_000 {
        slots(&mut throttles, &[&format!("key-{number}")]);
    }
    assert!(
        throttles.work().0 <= SWEEP_MIN + 1,
        "{:?}",
        throttles.work()
    );
    assert_eq!(throttles.slots(&[name("kept")])[0].queue, kept[0].queue);
}
