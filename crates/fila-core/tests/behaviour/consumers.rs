//! Consumers come, take turns, are lent messages and leave.

use fila_core::{Command, Departure, Dismissal, Verdict};
use fila_store::MessageId;

use crate::support::{Shell, message, queue};

#[test]
fn a_consumer_that_ends_its_stream_gives_back_what_it_has_in_order() {
    let (mut shell, queue) = queue();
    let ids: Vec<MessageId> = (0..5)
        .map(|_| shell.enqueue(queue, message("a", "work")))
        .collect();
    let consumer = shell.subscribe(queue, 5);
    shell.run();
    assert_eq!(shell.deliveries.len(), 5);
    shell.deliveries.clear();
    shell.unsubscribe(consumer, Departure::Closed);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let again: Vec<_> = shell.deliveries.iter().map(|(_, it)| it.message).collect();
    assert_eq!(again, ids);
    assert!(shell.deliveries.iter().all(|(_, it)| it.attempt == 1));
}

#[test]
fn a_drained_consumer_is_dismissed_when_it_has_settled_everything() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    shell.enqueue(queue, message("a", "two"));
    let consumer = shell.subscribe(queue, 1);
    shell.run();
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    shell.tell(Command::Drain { consumer });
    shell.tell(Command::Credit { consumer, more: 5 });
    shell.run();
    assert!(shell.deliveries.is_empty() && shell.dismissed.is_empty());
    shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    assert_eq!(shell.dismissed, [(consumer, Dismissal::Drained)]);
}

#[test]
fn a_consumer_that_replaces_another_has_one_turn_in_a_round() {
    let (mut shell, queue) = queue();
    let gone = shell.subscribe(queue, u32::MAX);
    shell.subscribe(queue, u32::MAX);
    shell.unsubscribe(gone, Departure::Closed);
    let next = shell.subscribe(queue, u32::MAX);
    shell.enqueue_all(queue, vec![message("a", ""); 30]);
    let of_next = shell.deliveries.iter().filter(|(to, _)| *to == next);
    assert_eq!(of_next.count(), 15);
}

#[test]
fn a_consumer_is_lent_no_more_than_the_broker_allows() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.in_flight_per_consumer = 2);
    shell.enqueue_all(queue, vec![message("a", ""); 5]);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2);
}

#[test]
fn consumers_that_have_left_make_room_for_others() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.consumers = 1);
    let consumer = shell.subscribe(queue, u32::MAX);
    shell.tell(Command::Drain { consumer });
    let consumer = shell.subscribe(queue, u32::MAX);
    shell.unsubscribe(consumer, Departure::Closed);
    shell.subscribe(queue, u32::MAX);
}
