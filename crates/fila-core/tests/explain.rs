//! Why a key waits: each reason, and whether what was said is what then happens.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Answer, Basis, Charge, Command, Committed, ConsumerId, Credit, Definition, Delivering,
    Delivery, Estimate, Explanation, KeySettings, Ordering, Position, Refused, Settings, Verdict,
    Waiting,
};
use fila_store::{QueueId, Timestamp};

use support::{Chance, START, Shell, key, message, nack, throttle_key, throttled};

fn weigh(name: &str, weight: u32) -> fila_core::NewMessage {
    let mut new = message(name, "work");
    new.weight = NonZeroU32::new(weight).unwrap();
    new
}

fn enqueue(shell: &mut Shell, queue: QueueId, name: &str, weight: u32, count: usize) {
    shell.enqueue_all(queue, vec![weigh(name, weight); count]);
}

fn later(shell: &Shell, millis: u64) -> Timestamp {
    shell.now.saturating_add(Duration::from_millis(millis))
}

fn name(delivery: &Delivery) -> String {
    String::from_utf8(delivery.fairness_key.as_bytes().to_vec()).unwrap()
}

/// Delivers and acknowledges one message, and returns whose it was.
fn serve(shell: &mut Shell, queue: QueueId, consumer: ConsumerId) -> String {
    let delivery = shell.next(consumer).expect("somebody has messages");
    shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    name(&delivery)
}

fn position(explanation: &Explanation) -> Position {
    match explanation.waiting {
        Waiting::Runnable { position } => position,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_without_messages_waits_for_nothing() {
    let mut definition = Definition::default();
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

    let consumer = shell.subscribe(queue, Credit::Limited(0));
    enqueue(&mut shell, queue, "a", 3, 1);
    shell.next(consumer).unwrap();
    let leased = shell.explain(queue, "a");
    assert_eq!(leased.waiting, Waiting::Empty);
    assert_eq!((leased.leased, leased.weight), (1, 3));
    assert_eq!(leased.estimate, None);
    assert_eq!(leased.bound, Some(0), "nobody else is there");
}

#[test]
fn a_queue_that_is_gone_or_cannot_store_explains_nothing() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    let ask = |shell: &mut Shell| {
        let ticket = shell.ticket();
        let fairness_key = key("a");
        shell.tell(Command::Explain {
            queue,
            fairness_key,
            ticket,
        });
        shell.answers.remove(&ticket).unwrap()
    };
    shell.send(queue, vec![message("a", "work")]);
    shell.seal();
    shell.broker.committed(shell.now, Committed::Failed);
    assert_eq!(ask(&mut shell), Answer::Refused(Refused::StoreFailed));
    shell.restart();
    assert!(matches!(ask(&mut shell), Answer::Explained(_)));
    shell.delete(queue);
    assert_eq!(ask(&mut shell), Answer::Refused(Refused::QueueGone));
}

#[test]
fn what_is_accepted_waits_until_it_is_stored() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    shell.subscribe(queue, Credit::Unlimited);
    shell.send(queue, vec![message("a", "work")]);
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::Storing);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn a_pause_is_told_of_the_queue_and_of_the_key() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    enqueue(&mut shell, queue, "a", 1, 1);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let mut definition = Definition::default();
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
    assert_eq!(paused.waiting, Waiting::KeyPaused);
    assert_eq!(paused.estimate, None);
    assert_eq!(shell.next(consumer), None);
    definition.keys.clear();
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn a_key_at_its_cap_waits_for_a_result_at_its_own_pace() {
    let mut definition = Definition::default();
    definition.key_concurrency = NonZeroU32::new(2);
    let (mut shell, queue) = Shell::with_queue(definition);
    enqueue(&mut shell, queue, "a", 1, 40);
    shell.subscribe(queue, Credit::Unlimited);
    // Two are with the consumer, and every second it is done with one.
    for _ in 0..20 {
        shell.run();
        shell.advance(Duration::from_secs(1));
        let capped = shell.explain(queue, "a");
        assert_eq!(capped.waiting, Waiting::AtCap { cap: 2 });
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
    let mut definition = Definition::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    enqueue(&mut shell, queue, "a", 1, 2);
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    let (_, first) = shell.deliveries.pop_front().unwrap();
    let at_cap = Waiting::AtCap { cap: 1 };
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
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    shell.subscribe(queue, Credit::Unlimited);
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
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    let mut chance = Chance(7);
    let mut due: BTreeMap<u64, Timestamp> = BTreeMap::new();
    let mut ends: BTreeMap<u64, Timestamp> = BTreeMap::new();
    for step in 0..2000 {
        let mut new = message("a", "later");
        let delay = Duration::from_millis(50 + chance.below(5000));
        new.delay = delay;
        if chance.below(2) == 0 {
            let ttl = Duration::from_millis(1 + chance.below(100));
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
fn what_lacks_a_token_tells_of_which_throttle_and_until_when() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    shell.subscribe(queue, Credit::Unlimited);
    shell.throttle("api", 10.0, 1.0);
    shell.enqueue_all(queue, vec![throttled("a", &["api"]); 5]);
    assert_eq!(shell.deliveries.len(), 1);
    for passed in 1..5 {
        let explanation = shell.explain(queue, "a");
        let until = Timestamp::from_millis(START + passed * 100);
        let waiting = Waiting::Throttled {
            key: throttle_key("api"),
            until: Some(until),
        };
        assert_eq!(explanation.waiting, waiting);
        let estimate = explanation.estimate.unwrap();
        assert_eq!((estimate.at, estimate.basis), (until, Basis::Due));
        // Not a millisecond before, and then.
        shell.now = Timestamp::from_millis(until.as_millis() - 1);
        shell.run();
        assert_eq!(shell.deliveries.len() as u64, passed);
        shell.now = until;
        shell.run();
        assert_eq!(shell.deliveries.len() as u64, passed + 1);
    }
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::Empty);
}

#[test]
fn who_waits_before_it_for_the_same_throttle_is_counted_in() {
    // Whoever was called waits again, and may come back one place earlier or later than foreseen: two tokens, at most.
    for (weight, tolerance) in [(1, 200), (3, 400)] {
        let (mut shell, queue) = Shell::with_queue(Definition::default());
        shell.subscribe(queue, Credit::Unlimited);
        shell.throttle("api", 5.0, 1.0);
        let names = ["a", "b", "c", "d", "e"];
        for name in names {
            let mut new = throttled(name, &["api"]);
            let weight = if name == "c" { weight } else { 1 };
            new.weight = NonZeroU32::new(weight).unwrap();
            shell.enqueue_all(queue, vec![new; 12]);
        }
        // For a while, and then what is said is held against what happens.
        for _ in 0..4 {
            shell.advance(Duration::from_millis(1570));
            shell.run();
            shell.deliveries.clear();
            let mut said = BTreeMap::new();
            for name in names {
                let Waiting::Throttled { key, until } = shell.explain(queue, name).waiting else {
                    panic!("{name} has more");
                };
                assert_eq!(key, throttle_key("api"));
                said.insert(name.to_owned(), until.unwrap());
            }
            while !said.is_empty() {
                shell.advance(Duration::from_millis(1));
                shell.run();
                while let Some((_, delivery)) = shell.deliveries.pop_front() {
                    if let Some(until) = said.remove(&name(&delivery)) {
                        let error = shell.now.as_millis().abs_diff(until.as_millis());
                        assert!(error <= tolerance, "{} by {error} ms", name(&delivery));
                    }
                }
            }
        }
    }
}

#[test]
fn a_throttle_that_gives_nothing_has_no_end() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    shell.subscribe(queue, Credit::Unlimited);
    shell.throttle("off", 0.0, 1.0);
    shell.enqueue(queue, throttled("a", &["off"]));
    let explanation = shell.explain(queue, "a");
    let waiting = Waiting::Throttled {
        key: throttle_key("off"),
        until: None,
    };
    assert_eq!(explanation.waiting, waiting);
    assert_eq!(explanation.estimate, None);
}

#[test]
fn of_several_throttles_the_first_to_let_something_through_is_told() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    let consumer = shell.subscribe(queue, Credit::Limited(100));
    for (name, rate) in [("slow", 1.0), ("fast", 4.0), ("off", 0.0)] {
        shell.throttle(name, rate, 1.0);
    }
    for throttle in ["off", "slow", "fast"] {
        shell.enqueue_all(queue, vec![throttled("a", &[throttle]); 3]);
    }
    let explanation = shell.explain(queue, "a");
    let waiting = Waiting::Throttled {
        key: throttle_key("fast"),
        until: Some(later(&shell, 250)),
    };
    assert_eq!(explanation.waiting, waiting);
    // What it has beside those does not wait for them.
    shell.tell(Command::Drain { consumer });
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    shell.enqueue(queue, message("a", "free"));
    assert_eq!(position(&shell.explain(queue, "a")), Position::Exactly(0));
    assert!(shell.next(consumer).is_some());
}

#[test]
fn in_a_strict_line_the_first_waits_for_its_token_and_all_behind_it() {
    let mut definition = Definition::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.subscribe(queue, Credit::Unlimited);
    shell.throttle("api", 2.0, 1.0);
    shell.enqueue(queue, throttled("other", &["api"]));
    shell.enqueue(queue, throttled("a", &["api"]));
    shell.enqueue(queue, message("a", "free"));
    let until = later(&shell, 500);
    let waiting = Waiting::Throttled {
        key: throttle_key("api"),
        until: Some(until),
    };
    assert_eq!(shell.explain(queue, "a").waiting, waiting);
    shell.deliveries.clear();
    shell.now = until;
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn what_has_failed_is_being_judged_until_somebody_says_what_becomes_of_it() {
    for ordering in [Ordering::None, Ordering::Key] {
        let mut definition = Definition::default();
        definition.failure_hook = true;
        definition.ordering = ordering;
        let (mut shell, queue) = Shell::with_queue(definition);
        shell.subscribe(queue, Credit::Unlimited);
        shell.enqueue(queue, message("a", "work"));
        let (_, delivery) = shell.deliveries.pop_front().unwrap();
        let failed = nack(Duration::from_secs(1));
        shell.settle(queue, delivery.lease, failed).unwrap();
        let judging = shell.explain(queue, "a");
        assert_eq!(judging.waiting, Waiting::Judging);
        assert_eq!(judging.estimate, None);
        // Nobody says anything: then the queue's own policy does.
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
    shell.subscribe(queue, Credit::Limited(2));
    enqueue(&mut shell, queue, "a", 1, 3);
    let failed = nack(Duration::from_secs(60));
    while let Some((_, delivery)) = shell.deliveries.pop_front() {
        shell.settle(queue, delivery.lease, failed.clone()).unwrap();
    }
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::TooManyDelayed);
}

#[test]
fn a_head_in_the_store_is_being_read_when_its_turn_has_come() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    enqueue(&mut shell, queue, "a", 1, 3);
    shell.restart();
    let consumer = shell.subscribe(queue, Credit::Limited(0));
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
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    enqueue(&mut shell, queue, "a", 1, 100);
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::NoConsumers);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
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

#[test]
fn a_position_is_how_many_others_come_before() {
    for seed in 1..60 {
        let mut chance = Chance(seed);
        let mut definition = Definition::default();
        definition.charge = [Charge::Message, Charge::Bytes][chance.below(2) as usize];
        let mut settings = Settings::default();
        let quantum = [1000, 1000, 4000, 300][chance.below(4) as usize];
        settings.quantum = drr::Quantum::new(quantum).unwrap();
        let mut shell = Shell::new(settings);
        let queue = shell.create("queue", definition);
        let consumer = shell.subscribe(queue, Credit::Limited(0));
        let keys = 2 + chance.below(20);
        for round in 0..5 {
            for number in 0..keys {
                if chance.below(3) == 0 {
                    continue; // gone for a while, and perhaps a newcomer then
                }
                let count = chance.below(12);
                let mut new = message(&number.to_string(), vec![0; chance.below(4000) as usize]);
                new.weight = NonZeroU32::new(1 + chance.below(9) as u32).unwrap();
                let messages = vec![new; count as usize];
                shell.enqueue_all(queue, messages);
            }
            for _ in 0..chance.below(60) {
                if shell.stats(queue).ready > 0 {
                    serve(&mut shell, queue, consumer);
                }
            }
            if shell.stats(queue).ready > 0 {
                serve(&mut shell, queue, consumer);
            }
            let mut foreseen = BTreeMap::new();
            let mut bounds = BTreeMap::new();
            for number in 0..keys {
                let name = number.to_string();
                let explanation = shell.explain(queue, &name);
                if explanation.ready > 0 {
                    foreseen.insert(name.clone(), position(&explanation));
                    bounds.insert(name, explanation.bound.unwrap());
                }
            }
            if round < 4 {
                continue;
            }
            // Nothing comes any more: what was said is what happens.
            let mut deliveries = 0;
            while !foreseen.is_empty() {
                let name = serve(&mut shell, queue, consumer);
                if let Some(position) = foreseen.remove(&name) {
                    assert_eq!(
                        position,
                        Position::Exactly(deliveries),
                        "{name}, seed {seed}"
                    );
                }
                deliveries += 1;
            }
        }
    }
}

#[test]
fn others_get_no_more_than_the_bound_whatever_keys_come_back_or_leave() {
    let mut checks = 0;
    for seed in 1..80 {
        let mut chance = Chance(seed);
        let mut settings = Settings::default();
        let quantum = [1000, 1000, 3500, 400][chance.below(4) as usize];
        settings.quantum = drr::Quantum::new(quantum).unwrap();
        let mut shell = Shell::new(settings);
        let queue = shell.create("queue", Definition::default());
        let consumer = shell.subscribe(queue, Credit::Limited(0));
        let keys = 2 + chance.below(10);
        let weights: Vec<u32> = (0..keys)
            .map(|_| [1, 2, 5, 100][chance.below(4) as usize])
            .collect();
        for number in 0..keys {
            let count = 5 + chance.below(40) as usize;
            let weight = weights[number as usize];
            enqueue(&mut shell, queue, &number.to_string(), weight, count);
        }
        // What was said to each, and what others have got since.
        let mut said: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        // The bound counts keys that are there: it is asked while all are.
        let mut everyone = keys;
        for _ in 0..300 {
            if shell.stats(queue).ready == 0 {
                break;
            }
            if everyone == keys && chance.below(4) == 0 {
                let name = chance.below(keys).to_string();
                let explanation = shell.explain(queue, &name);
                if explanation.ready > 0 {
                    said.insert(name, (explanation.bound.unwrap(), 0));
                }
            }
            let delivered = serve(&mut shell, queue, consumer);
            said.remove(&delivered);
            for (name, (bound, others)) in &mut said {
                *others += 1;
                checks += 1;
                assert!(*others <= *bound, "{name} was told {bound}, seed {seed}");
            }
            if shell.explain(queue, &delivered).ready == 0 {
                // It has left the ring, and may come back to it.
                let number: usize = delivered.parse().unwrap();
                let count = chance.below(3) as usize;
                enqueue(&mut shell, queue, &delivered, weights[number], count);
                everyone = shell.stats(queue).active_keys;
            }
        }
    }
    assert!(checks > 10_000, "{checks}");
}

#[test]
fn a_newcomer_is_told_two_turns_however_many_keys_there_are() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    for number in 0..3000 {
        shell.send(queue, vec![weigh(&format!("hot {number}"), 1); 3]);
    }
    shell.run();
    for _ in 0..4000 {
        serve(&mut shell, queue, consumer);
    }
    enqueue(&mut shell, queue, "quiet", 1, 1);
    let quiet = shell.explain(queue, "quiet");
    assert_eq!(quiet.bound, Some(2));
    let Position::Exactly(others) = position(&quiet) else {
        panic!("{quiet:?}");
    };
    assert!(others <= 2);
    for _ in 0..others {
        assert_ne!(serve(&mut shell, queue, consumer), "quiet");
    }
    assert_eq!(serve(&mut shell, queue, consumer), "quiet");
}

#[test]
fn a_place_far_behind_is_told_within_a_tenth() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let keys = 6000;
    for number in 0..keys {
        shell.send(queue, vec![weigh(&number.to_string(), 1); 3]);
    }
    shell.run();
    let mut order = Vec::new();
    for _ in 0..keys + 1500 {
        order.push(serve(&mut shell, queue, consumer));
    }
    let mut foreseen = BTreeMap::new();
    for number in (0..keys).step_by(97) {
        let name = number.to_string();
        let explanation = shell.explain(queue, &name);
        foreseen.insert(name, position(&explanation));
    }
    let (mut exact, mut about) = (0, 0);
    for others in 0..keys {
        let name = serve(&mut shell, queue, consumer);
        match foreseen.remove(&name) {
            Some(Position::Exactly(said)) => {
                assert_eq!(said, others);
                exact += 1;
            }
            Some(Position::About(said)) => {
                assert!(said.abs_diff(others) <= others / 10, "{said} and {others}");
                about += 1;
            }
            None => {}
        }
    }
    assert!(exact >= 5 && about >= 40, "{exact} and {about}");
}

#[test]
fn shares_and_ideals_agree_within_one_percent_while_all_have_work() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    for (name, weight) in [("one", 1), ("two", 2), ("seven", 7)] {
        enqueue(&mut shell, queue, name, weight, 8000);
    }
    for _ in 0..8000 {
        serve(&mut shell, queue, consumer);
        shell.advance(Duration::from_millis(10));
    }
    let mut sum = (0, 0);
    for (name, weight) in [("one", 1.0), ("two", 2.0), ("seven", 7.0)] {
        let recent = shell.explain(queue, name).recent;
        assert!((50..=60).contains(&recent.over.as_secs()), "{recent:?}");
        let (served, ideal) = (recent.served as f64, recent.ideal as f64);
        let total = recent.total as f64;
        assert!((served / total - weight / 10.0).abs() <= 0.01, "{recent:?}");
        assert!(
            (ideal / total - weight / 10.0).abs() <= 0.0001,
            "{recent:?}"
        );
        sum = (sum.0 + recent.served, sum.1 + recent.ideal);
        let expected = recent.over.as_millis() as u64 / 10 * 1000;
        assert!(recent.total.abs_diff(expected) <= 2000, "{recent:?}");
        assert!(sum.0 <= recent.total);
    }
    assert!(sum.1.abs_diff(sum.0) <= 100, "{sum:?}");
}

#[test]
fn the_ideal_follows_who_can_run_and_with_what_weight() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let serve_for = |shell: &mut Shell, count: u32| {
        for _ in 0..count {
            serve(shell, queue, consumer);
            shell.advance(Duration::from_millis(10));
        }
    };
    enqueue(&mut shell, queue, "a", 1, 5000);
    enqueue(&mut shell, queue, "b", 1, 5000);
    // 10 s with one of two, 10 s paused, 10 s with three of four.
    serve_for(&mut shell, 1000);
    let mut definition = Definition::default();
    let settings = KeySettings {
        delivery: Delivering::Paused,
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    shell.update(queue, definition);
    shell.run();
    serve_for(&mut shell, 1000);
    let mut definition = Definition::default();
    let settings = KeySettings {
        weight: NonZeroU32::new(3),
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    shell.update(queue, definition);
    shell.run();
    serve_for(&mut shell, 1000);
    let recent = shell.explain(queue, "a").recent;
    assert_eq!(recent.total, 3_000_000);
    assert!(
        recent.ideal.abs_diff(500_000 + 750_000) <= 2000,
        "{recent:?}"
    );
    assert!(recent.served.abs_diff(recent.ideal) <= 5000, "{recent:?}");
    // A minute later nothing of it counts.
    shell.advance(Duration::from_secs(61));
    let recent = shell.explain(queue, "a").recent;
    assert_eq!((recent.total, recent.served, recent.ideal), (0, 0, 0));
}

#[test]
fn at_a_steady_pace_the_estimate_is_right_within_five_percent() {
    let (mut shell, queue) = Shell::with_queue(Definition::default());
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    for number in 0..200 {
        let weight = 1 + number % 3;
        enqueue(&mut shell, queue, &format!("key {number}"), weight, 60);
    }
    // One every 20 ms.
    let step = Duration::from_millis(20);
    for _ in 0..1500 {
        serve(&mut shell, queue, consumer);
        shell.advance(step);
    }
    let asked_at = shell.now;
    let mut said = BTreeMap::new();
    for number in (0..200).step_by(7) {
        let name = format!("key {number}");
        let estimate = shell.explain(queue, &name).estimate.expect("a pace");
        assert_eq!(estimate.basis, Basis::QueuePace);
        said.insert(name, estimate.at.since(asked_at));
    }
    while !said.is_empty() {
        let name = serve(&mut shell, queue, consumer);
        if let Some(said) = said.remove(&name) {
            let waited = shell.now.since(asked_at);
            let error = said.abs_diff(waited);
            assert!(error <= waited / 20 + step, "{said:?} and {waited:?}");
        }
        shell.advance(step);
    }
}

#[test]
fn a_debt_is_told_and_paid_by_waiting() {
    let mut definition = Definition::default();
    definition.charge = Charge::Bytes;
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    // Messages of 20 KiB, which are worth 20, beside messages of 1 KiB.
    shell.enqueue_all(queue, vec![message("large", vec![0; 20 << 10]); 5]);
    shell.enqueue_all(queue, vec![message("small", vec![0; 1 << 10]); 200]);
    while serve(&mut shell, queue, consumer) != "large" {}
    let large = shell.explain(queue, "large");
    assert!((18_000..=20_000).contains(&large.debt), "{large:?}");
    let bound = large.bound.unwrap();
    let Position::Exactly(others) = position(&large) else {
        panic!("{large:?}");
    };
    assert!((17..=21).contains(&others) && others <= bound, "{large:?}");
    for _ in 0..others {
        assert_eq!(serve(&mut shell, queue, consumer), "small");
    }
    assert!(shell.explain(queue, "large").debt <= 1000);
    assert_eq!(serve(&mut shell, queue, consumer), "large");
}

#[test]
fn a_place_behind_many_strict_lines_that_are_not_due_is_told_without_a_look_at_all_of_them() {
    let mut definition = Definition::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    shell.enqueue(queue, message("before", ""));
    serve(&mut shell, queue, consumer);
    // Nobody is asked yet who of these is due.
    let later = (0..5_000).map(|number| fila_core::NewMessage {
        delay: Duration::from_secs(60),
        ..message(&format!("later {number}"), "")
    });
    shell.enqueue_all(queue, later.collect());
    shell.enqueue(queue, message("now", ""));
    let said = position(&shell.explain(queue, "now"));
    assert!(matches!(said, Position::About(_)), "{said:?}");
    assert_eq!(serve(&mut shell, queue, consumer), "now");
    shell.enqueue(queue, message("now", ""));
    let said = position(&shell.explain(queue, "now"));
    assert_eq!(said, Position::Exactly(0), "once they have been asked");
}

#[test]
fn asking_changes_nothing() {
    let run = |asks: bool| {
        let (mut shell, queue) = Shell::with_queue(Definition::default());
        let consumer = shell.subscribe(queue, Credit::Limited(0));
        let mut order = Vec::new();
        for number in 0..20 {
            enqueue(&mut shell, queue, &number.to_string(), 1 + number % 4, 30);
        }
        for _ in 0..500 {
            for number in 0..20 {
                if asks {
                    shell.explain(queue, &number.to_string());
                }
            }
            order.push(serve(&mut shell, queue, consumer));
        }
        order
    };
    assert_eq!(run(true), run(false));
}
