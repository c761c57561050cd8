//! The reasons why a key waits, one test each, without throttles.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Basis, Command, Committed, Delivering, Estimate, KeySettings, Ordering, Position,
    QueueSettings, Refused, Verdict, Waiting,
};
use fila_store::Timestamp;

use crate::support::{Chance, Shell, key, message, nack};
use crate::{at_cap, enqueue, later, position};

#[test]
fn a_key_without_messages_waits_for_nothing() {
    let mut definition = QueueSettings::default();
    let settings = KeySettings {
        weight: NonZeroU32::new(7),
        ..KeySettings::default()
    };
    definition.keys.insert(key("heavy"), settings);
    let (mut shell, queue) = Shell::with_queue(definition);
    let unknown = shell.explain(queue, "nobody");
    assert_eq!(unknown.waiting, Waiting::Empty);
    assert_eq!((unknown.weight, unknown.bound), (1, None));
    assert_eq!(shell.explain(queue, "heavy").weight, 7);

    let consumer = shell.subscribe(queue, 0);
    enqueue(&mut shell, queue, "a", 3, 1);
    shell.next(consumer).unwrap();
    let leased = shell.explain(queue, "a");
    assert_eq!(leased.waiting, Waiting::Empty);
    assert_eq!((leased.leased, leased.weight), (1, 3));
    assert_eq!(leased.estimate, None);
    assert_eq!(leased.bound, Some(0), "there is no other key");
}

#[test]
fn a_queue_that_is_gone_or_cannot_store_explains_nothing() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let ask = |shell: &mut Shell| shell.broker.explain(shell.now, queue, &key("a"));
    shell.send(queue, vec![message("a", "work")]);
    shell.seal();
    shell.broker.committed(shell.now, Committed::Failed);
    assert_eq!(ask(&mut shell), Err(Refused::StoreFailed));
    shell.restart();
    assert!(ask(&mut shell).is_ok());
    shell.delete(queue);
    assert_eq!(ask(&mut shell), Err(Refused::QueueGone));
}

#[test]
fn what_is_accepted_waits_until_it_is_stored() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    shell.subscribe(queue, u32::MAX);
    shell.send(queue, vec![message("a", "work")]);
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::Storing);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn a_pause_is_told_of_the_queue_and_of_the_key() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    enqueue(&mut shell, queue, "a", 1, 1);
    let consumer = shell.subscribe(queue, 0);
    let mut definition = QueueSettings::default();
    definition.delivery = Delivering::Paused;
    let settings = KeySettings {
        delivery: Delivering::Paused,
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    shell.update(queue, definition.clone());
    shell.run();
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::QueuePaused);
    definition.delivery = Delivering::Running;
    shell.update(queue, definition.clone());
    shell.run();
    let paused = shell.explain(queue, "a");
    assert_eq!(paused.waiting, Waiting::KeyPaused { path: key("a") });
    assert_eq!(paused.estimate, None);
    assert_eq!(shell.next(consumer), None);
    definition.keys.clear();
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn a_key_at_its_cap_waits_for_a_result_at_its_own_pace() {
    let mut definition = QueueSettings::default();
    definition.key_concurrency = NonZeroU32::new(2);
    let (mut shell, queue) = Shell::with_queue(definition);
    enqueue(&mut shell, queue, "a", 1, 40);
    shell.subscribe(queue, u32::MAX);
    // Two are with the consumer, and every second it is done with one.
    for _ in 0..20 {
        shell.run();
        shell.advance(Duration::from_secs(1));
        let capped = shell.explain(queue, "a");
        assert_eq!(capped.waiting, at_cap("a", 2));
        assert_eq!(shell.deliveries.len(), 2);
        let (_, oldest) = shell.deliveries.pop_front().unwrap();
        shell.settle(queue, oldest.lease, Verdict::Ack).unwrap();
    }
    let Some(Estimate { at, basis, .. }) = shell.explain(queue, "a").estimate else {
        panic!("it has a pace");
    };
    assert_eq!(basis, Basis::KeyPace);
    let wait = at.since(shell.now);
    assert!(wait.abs_diff(Duration::from_secs(1)) <= Duration::from_millis(150));
}

#[test]
fn in_a_strict_line_a_key_waits_for_its_message_before() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    enqueue(&mut shell, queue, "a", 1, 2);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let (_, first) = shell.deliveries.pop_front().unwrap();
    let at_cap = at_cap("a", 1);
    assert_eq!(shell.explain(queue, "a").waiting, at_cap);
    let delay = Duration::from_secs(5);
    let due = later(&shell, 5000);
    let settled = shell.settle(
        queue,
        first.lease,
        Verdict::Nack {
            delay: Some(delay),
            error: None,
        },
    );
    settled.unwrap();
    // The second one is ready, and stands behind the first.
    let backing_off = shell.explain(queue, "a");
    assert_eq!(backing_off.waiting, Waiting::BackingOff { until: due });
    assert_eq!((backing_off.ready, backing_off.delayed), (1, 1));
    shell.advance(delay);
    shell.run();
    assert_eq!(shell.deliveries.front().unwrap().1.message, first.message);
}

#[test]
fn messages_that_wait_for_their_time_tell_the_first_moment() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    shell.subscribe(queue, u32::MAX);
    let delays = [5000, 3000, 9000, 3000, 7000];
    for delay in delays {
        let mut new = message("a", "later");
        new.delay = Duration::from_millis(delay);
        shell.enqueue(queue, new);
    }
    let start = shell.now;
    for delay in [3000, 5000, 7000, 9000] {
        let until = start.saturating_add(Duration::from_millis(delay));
        let explanation = shell.explain(queue, "a");
        assert_eq!(explanation.waiting, Waiting::BackingOff { until });
        let estimate = explanation.estimate.unwrap();
        assert_eq!((estimate.at, estimate.basis), (until, Basis::Due));
        // Not a millisecond before, and then.
        shell.now = Timestamp::from_millis(until.as_millis() - 1);
        shell.run();
        assert_eq!(shell.deliveries.len(), 0);
        shell.now = until;
        shell.run();
        assert!(!shell.deliveries.is_empty());
        while let Some((_, delivery)) = shell.deliveries.pop_front() {
            shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
        }
    }
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::Empty);
}

#[test]
fn many_retries_and_deaths_later_the_first_moment_is_still_right() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let mut chance = Chance(7);
    let mut due: BTreeMap<u64, Timestamp> = BTreeMap::new();
    let mut ends: BTreeMap<u64, Timestamp> = BTreeMap::new();
    for step in 0..2000 {
        let mut new = message("a", "later");
        let delay = Duration::from_millis(50 + chance.below(5000));
        new.delay = delay;
        if chance.below(2) == 0 {
            let ttl = delay + Duration::from_millis(1 + chance.below(100));
            new.ttl = fila_core::Ttl::For(ttl);
            ends.insert(step, shell.now.saturating_add(ttl));
        }
        due.insert(step, shell.now.saturating_add(delay));
        shell.enqueue(queue, new);
        shell.advance(Duration::from_millis(chance.below(3)));
        shell.run();
        let now = shell.now;
        due.retain(|step, due| *due > now && ends.get(step).is_none_or(|end| *end > now));
        let explanation = shell.explain(queue, "a");
        assert_eq!(explanation.delayed, due.len() as u64);
        if explanation.ready == 0
            && let Some(until) = due.values().min().copied()
        {
            assert_eq!(explanation.waiting, Waiting::BackingOff { until });
        }
    }
}

#[test]
fn a_failed_message_is_being_judged_until_the_judgement_comes() {
    for ordering in [Ordering::None, Ordering::Key] {
        let mut definition = QueueSettings::default();
        definition.failure_hook = true;
        definition.ordering = ordering;
        let (mut shell, queue) = Shell::with_queue(definition);
        shell.subscribe(queue, u32::MAX);
        shell.enqueue(queue, message("a", "work"));
        let (_, delivery) = shell.deliveries.pop_front().unwrap();
        let failed = nack(Duration::from_secs(1));
        shell.settle(queue, delivery.lease, failed).unwrap();
        let judging = shell.explain(queue, "a");
        assert_eq!(judging.waiting, Waiting::Judging);
        assert_eq!(judging.estimate, None);
        // No judgement comes, so the queue's own policy decides.
        shell.advance(shell.judging_time());
        shell.run();
        let later = shell.explain(queue, "a");
        assert!(
            matches!(later.waiting, Waiting::BackingOff { .. }),
            "{later:?}"
        );
    }
}

#[test]
fn a_key_whose_failure_found_no_room_waits_for_room() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.delayed_per_queue = 1);
    shell.subscribe(queue, 2);
    enqueue(&mut shell, queue, "a", 1, 3);
    let failed = nack(Duration::from_secs(60));
    while let Some((_, delivery)) = shell.deliveries.pop_front() {
        shell.settle(queue, delivery.lease, failed.clone()).unwrap();
    }
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::TooManyDelayed);
}

#[test]
fn a_head_in_the_store_is_being_read_when_its_turn_has_come() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    enqueue(&mut shell, queue, "a", 1, 3);
    shell.restart();
    let consumer = shell.subscribe(queue, 0);
    shell.tell(Command::Credit { consumer, more: 1 });
    shell.poll();
    let reading = shell.explain(queue, "a");
    assert_eq!(reading.waiting, Waiting::Reading);
    let now = shell.now;
    let at = reading.estimate.map(|it| (it.at, it.basis));
    assert_eq!(at, Some((now, Basis::Store)));
    // It goes wrong, and is tried again.
    shell.fail_load();
    shell.poll();
    let until = later(&shell, 1000);
    let failed = shell.explain(queue, "a");
    assert_eq!(failed.waiting, Waiting::ReadFailed { until });
    assert_eq!(failed.estimate.unwrap().at, until);
    shell.now = until;
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn without_consumers_or_their_demand_nothing_is_delivered() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    enqueue(&mut shell, queue, "a", 1, 100);
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::NoConsumers);
    let consumer = shell.subscribe(queue, 0);
    shell.run();
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::NoCredit);
    // One that is served now and then is busy; one that is not for a minute wants nothing.
    shell.next(consumer).unwrap();
    shell.advance(Duration::from_secs(45));
    assert_eq!(
        position(&shell.explain(queue, "a")),
        Position::Exactly(0),
        "the next one is for it"
    );
    shell.advance(Duration::from_secs(20));
    let idle = shell.explain(queue, "a");
    assert_eq!(idle.waiting, Waiting::NoCredit);
    assert_eq!(idle.estimate, None);
}
