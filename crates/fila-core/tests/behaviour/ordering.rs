//! Queues whose keys are strict lines: nothing overtakes what is before it.

use fila_core::{Ordering, QueueSettings, Verdict};

use crate::support::{SECOND, Shell, key, message, nack};

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

#[test]
fn the_order_of_a_queue_is_never_changed() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition.clone());
    shell.enqueue_all(queue, vec![message("a", ""); 3]);
    definition.ordering = Ordering::None;
    shell.update(queue, definition);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}
