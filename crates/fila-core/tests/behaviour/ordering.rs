//! Queues whose keys are strict lines: nothing overtakes what is before it.

use std::time::Duration;

use fila_core::{Command, Delivery, LeaseId, Ordering, QueueSettings, Verdict};
use fila_store::QueueId;

use crate::support::{SECOND, Shell, forgetful, key, message, nack, throttled};

#[test]
fn a_strictly_ordered_key_waits_for_what_is_before() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    let mut delayed = message("a", "1");
    delayed.delay = SECOND;
    shell.enqueue(queue, delayed);
    shell.enqueue(queue, message("a", "2"));
    shell.enqueue(queue, message("b", "1"));
    let consumer = shell.subscribe(queue, 0);
    let other = shell.next(consumer).unwrap();
    assert_eq!(other.fairness_key, key("b"), "the other key does not wait");
    assert_eq!(shell.next(consumer), None);
    shell.advance(SECOND);
    shell.run();
    let (_, first) = shell.deliveries.pop_front().unwrap();
    assert_eq!(&first.payload.body()[..], b"1");
    let delay = 2 * SECOND;
    let nacked = shell.settle(queue, first.lease, nack(delay));
    nacked.unwrap();
    assert_eq!(shell.next(consumer), None, "what failed keeps its place");
    shell.advance(2 * SECOND);
    shell.run();
    let (_, again) = shell.deliveries.pop_front().unwrap();
    assert_eq!((&again.payload.body()[..], again.attempt), (&b"1"[..], 2));
}

#[test]
fn a_strictly_ordered_key_goes_on_when_the_deletion_is_durable() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue(queue, message("a", "1"));
    shell.enqueue(queue, message("a", "2"));
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let (_, first) = shell.deliveries.pop_front().unwrap();
    shell.report(queue, first.lease, Verdict::Ack);
    shell.poll();
    shell.seal();
    shell.poll();
    assert!(shell.deliveries.is_empty(), "a crash now brings it back");
    shell.commit();
    shell.poll();
    assert_eq!(shell.deliveries.len(), 1);
}

fn ordered(ordering: Ordering) -> QueueSettings {
    let mut definition = QueueSettings::default();
    definition.ordering = ordering;
    definition
}

/// Delivers all that can be delivered, and returns the bodies.
fn delivered(shell: &mut Shell) -> Vec<(String, LeaseId)> {
    shell.run();
    let body = |it: &Delivery| String::from_utf8(it.payload.body().to_vec()).unwrap();
    let deliveries = shell.deliveries.drain(..);
    deliveries.map(|(_, it)| (body(&it), it.lease)).collect()
}

/// Acknowledges the only delivery, again and again, and returns the bodies.
fn one_by_one(shell: &mut Shell, queue: QueueId) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let mut now = delivered(shell);
        let Some((body, lease)) = now.pop() else {
            return seen;
        };
        assert!(now.is_empty(), "{now:?} beside {body}");
        seen.push(body);
        shell.settle(queue, lease, Verdict::Ack).unwrap();
    }
}

#[test]
fn a_queue_becomes_strict_at_once_with_messages_in_every_state() {
    let (mut shell, queue) = Shell::with_queue(ordered(Ordering::None));
    shell.throttle("api", 0.0, 1.0);
    let mut late = message("a", "1");
    late.delay = SECOND;
    shell.enqueue(queue, late);
    let consumer = shell.subscribe(queue, 4);
    for number in 2..=5 {
        shell.enqueue(queue, message("a", number.to_string()));
    }
    let mut slow = throttled("a", &["api"]);
    slow.payload = message("a", "6").payload;
    shell.enqueue(queue, slow);
    shell.enqueue(queue, message("a", "7"));
    let leased = delivered(&mut shell);
    assert_eq!(leased.len(), 4);
    // The fourth fails, and waits for its next attempt.
    shell.settle(queue, leased[3].1, nack(SECOND / 2)).unwrap();
    shell.tell(Command::Credit {
        consumer,
        more: 100,
    });
    shell.update(queue, ordered(Ordering::Key));
    assert_eq!(delivered(&mut shell), [], "three are leased");
    for (_, lease) in &leased[..3] {
        shell.settle(queue, *lease, Verdict::Ack).unwrap();
    }
    assert_eq!(delivered(&mut shell), [], "the first is delayed");
    shell.advance(SECOND / 2);
    assert_eq!(delivered(&mut shell), [], "the fifth waits behind it");
    shell.advance(SECOND / 2);
    assert_eq!(one_by_one(&mut shell, queue), ["1", "5"]);
    assert_eq!(shell.stats(queue).throttled, 1);
    shell.unthrottle("api");
    assert_eq!(one_by_one(&mut shell, queue), ["6", "7"]);
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn a_strict_queue_is_released_at_once_with_messages_in_every_state() {
    let (mut shell, queue) = Shell::with_queue(ordered(Ordering::Key));
    shell.throttle("api", 0.0, 1.0);
    shell.subscribe(queue, 100);
    let mut late = message("a", "1");
    late.delay = SECOND;
    shell.enqueue(queue, late);
    let mut slow = throttled("b", &["api"]);
    slow.payload = message("b", "2").payload;
    shell.enqueue(queue, slow);
    for (name, body) in [("a", "3"), ("b", "4"), ("c", "5"), ("c", "6")] {
        shell.enqueue(queue, message(name, body));
    }
    let first = delivered(&mut shell);
    assert_eq!(first.len(), 1, "{first:?}");
    shell.update(queue, ordered(Ordering::None));
    let bodies = |shell: &mut Shell| -> Vec<String> {
        let mut bodies: Vec<_> = delivered(shell).into_iter().map(|(body, _)| body).collect();
        bodies.sort();
        bodies
    };
    assert_eq!(bodies(&mut shell), ["3", "4", "6"], "beside 5");
    shell.advance(SECOND);
    assert_eq!(bodies(&mut shell), ["1"]);
    shell.unthrottle("api");
    assert_eq!(bodies(&mut shell), ["2"]);
}

#[test]
fn a_queue_becomes_strict_while_its_messages_are_in_the_store() {
    let (mut shell, queue) = forgetful(ordered(Ordering::None));
    let numbers: Vec<String> = (100..120).map(|number| number.to_string()).collect();
    let all = numbers.iter().map(|it| message("a", it.clone()));
    shell.enqueue_all(queue, all.collect());
    let consumer = shell.subscribe(queue, 2);
    let leased = delivered(&mut shell);
    shell.update(queue, ordered(Ordering::Key));
    shell.tell(Command::Credit {
        consumer,
        more: 100,
    });
    shell
        .settle(queue, leased[1].1, nack(Duration::ZERO))
        .unwrap();
    assert_eq!(delivered(&mut shell), []);
    shell.settle(queue, leased[0].1, Verdict::Ack).unwrap();
    assert_eq!(one_by_one(&mut shell, queue), numbers[1..]);
}

#[test]
fn strict_order_begins_when_earlier_deletions_are_durable() {
    let (mut shell, queue) = Shell::with_queue(ordered(Ordering::None));
    shell.enqueue_all(queue, vec![message("a", "1"), message("a", "2")]);
    let consumer = shell.subscribe(queue, 1);
    let first = delivered(&mut shell);
    shell.report(queue, first[0].1, Verdict::Ack);
    shell.poll();
    shell.seal();
    shell.update(queue, ordered(Ordering::Key));
    shell.tell(Command::Credit { consumer, more: 1 });
    shell.poll();
    assert!(shell.deliveries.is_empty(), "a crash now brings it back");
    shell.commit();
    shell.poll();
    assert_eq!(shell.deliveries.len(), 1);
}
