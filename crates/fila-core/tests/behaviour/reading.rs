//! Messages that the broker has to read from the store first: reservations during the read, and messages that it cannot
//! read.

use std::num::NonZeroU32;

use fila_core::{
    Charge, Command, Delivery, Departure, Ordering, QueueSettings, Settings, Ttl, Verdict,
};
use fila_store::{Engine, Shard};

use crate::support::{Answer, MILLISECOND, SECOND, Shell, forgetful, key, message, queue};

#[test]
fn a_message_that_cannot_be_read_is_reported_and_not_served() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    let lost = shell.enqueue(queue, message("a", "payload"));
    shell.enqueue(queue, message("a", "payload"));
    let kept = shell.enqueue(queue, message("a", vec![1; 2000]));
    // The test changes the store without the broker.
    let mut batch = fila_store::Batch::new();
    batch.delete(fila_store::Locator {
        fairness_key: key("a"),
        id: kept,
    });
    let shard = &shell.shards[&queue];
    shard.commit(&batch).unwrap();
    let consumer = shell.subscribe(queue, 0);
    assert_eq!(shell.next(consumer).unwrap().message, lost);
    assert!(shell.next(consumer).is_some());
    assert_eq!(shell.next(consumer), None);
    let stats = shell.stats(queue);
    assert_eq!((stats.ready, stats.totals.damaged), (0, 1));
    let _ = shell.engine.health();
    let ticket = shell.purge(queue);
    shell.run();
    assert_eq!(shell.answers.remove(&ticket), Some(Answer::Purged(2)));
}

#[test]
fn a_read_that_failed_is_tried_again_after_a_second_and_not_before() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    shell.enqueue_all(queue, vec![message("a", vec![1; 2000]); 2]);
    shell.subscribe(queue, 1);
    shell.poll();
    shell.fail_load();
    shell.run();
    assert_eq!(
        shell.broker.next_timer(),
        Some(shell.now.saturating_add(SECOND))
    );
    shell.advance(SECOND - MILLISECOND);
    shell.poll();
    assert!(shell.loads.is_empty(), "the store is left alone");
    shell.advance(MILLISECOND);
    shell.poll();
    assert_eq!(shell.loads.len(), 1);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn a_turn_whose_consumer_has_gone_is_a_turn() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 64 << 10);
    shell.enqueue_all(queue, vec![message("fresh", ""); 60]);
    shell.enqueue_all(queue, vec![message("stored", vec![1; 60 << 10]); 60]);
    let gone = shell.subscribe(queue, 40);
    shell.has_read(gone);
    shell.poll();
    assert_eq!(shell.deliveries.len(), 20, "the others are being read");
    shell.unsubscribe(gone, Departure::Closed);
    shell.deliveries.clear();
    shell.load();
    shell.subscribe(queue, 40);
    shell.run();
    let is_stored = |it: &&Delivery| it.fairness_key == key("stored");
    let delivered = shell.deliveries.iter().map(|(_, it)| it);
    let stored = delivered.filter(is_stored).count();
    // The deliveries to the consumer that left have used the turns of both keys, and neither gets them back.
    assert!((19..=21).contains(&stored), "{stored} of 40");
}

#[test]
fn bytes_that_were_guessed_before_a_read_are_corrected_after_it() {
    let mut definition = QueueSettings::default();
    definition.charge = Charge::Bytes;
    let (mut shell, queue) = forgetful(definition);
    // The mean of the first key says little of any of its messages.
    shell.enqueue_all(queue, vec![message("uneven", vec![1; 10 << 10]); 60]);
    shell.enqueue_all(queue, vec![message("uneven", ""); 600]);
    shell.enqueue_all(queue, vec![message("even", vec![1; 1 << 10]); 600]);
    let consumer = shell.subscribe(queue, 0);
    let mut bytes = [0; 2];
    while bytes[0] < 50 * (10 << 10) {
        let delivery = shell.next(consumer).unwrap();
        let slot = usize::from(delivery.fairness_key == key("even"));
        bytes[slot] += delivery.payload.body().len();
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    let spread = bytes[0].abs_diff(bytes[1]);
    assert!(spread <= 20 << 10, "{bytes:?}");
}

#[test]
fn a_consumer_with_a_reserved_message_is_served_before_later_ones() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short);
    let first = shell.subscribe(queue, 0);
    let lease = shell.next(first).unwrap().lease;
    shell.settle(queue, lease, Verdict::Release).unwrap();
    let ids = [(); 2].map(|()| shell.enqueue(queue, message("a", "fresh")));
    // Its reserved messages have to be read and expire meanwhile; the next ones are in memory.
    shell.tell(Command::Credit {
        consumer: first,
        more: 1,
    });
    shell.poll();
    assert_eq!(shell.loads.len(), 1);
    shell.advance(SECOND);
    let second = shell.subscribe(queue, 1);
    shell.run();
    let delivered: Vec<_> = shell
        .deliveries
        .iter()
        .map(|(to, it)| (*to, it.message))
        .collect();
    assert_eq!(delivered, [(first, ids[0]), (second, ids[1])]);
}

#[test]
fn a_payload_that_has_gone_is_reported_and_does_not_hold_up_what_is_behind() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    let lost = shell.enqueue(queue, message("a", "lost"));
    let next = shell.enqueue(queue, message("a", "next"));
    let consumer = shell.subscribe(queue, 0);
    let lease = shell.next(consumer).unwrap().lease;
    shell.settle(queue, lease, Verdict::Release).unwrap();
    let locator = fila_store::Locator {
        fairness_key: key("a"),
        id: lost,
    };
    let mut batch = fila_store::Batch::new();
    batch.delete(locator.clone());
    shell.shards[&queue].commit(&batch).unwrap();
    shell.damaged = Some(Vec::new());
    assert_eq!(shell.next(consumer).unwrap().message, next);
    let damaged = shell.damaged.take().unwrap();
    let reported: Vec<_> = damaged.into_iter().map(|it| it.message).collect();
    assert_eq!(reported, [Some(locator)]);
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.damaged), (1, 1));
}

#[test]
fn no_more_than_some_reads_are_under_way_for_a_queue() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    let batch = (0..200).map(|n| message(&n.to_string(), vec![1; 2000]));
    let batch = batch.collect();
    shell.enqueue_all(queue, batch);
    let consumer = shell.subscribe(queue, u32::MAX);
    shell.has_read(consumer);
    shell.poll();
    assert_eq!(shell.loads.len(), 64);
    shell.run();
    assert_eq!(shell.deliveries.len(), 200);
}

#[test]
fn promises_that_are_broken_are_not_saved_up() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 4 << 10);
    shell.enqueue_all(queue, vec![message("a", vec![1; 1 << 10]); 200]);
    // While it is alone, its turns are reserved for a consumer that leaves before its messages are read.
    let consumer = shell.subscribe(queue, 100);
    shell.poll();
    shell.unsubscribe(consumer, Departure::Closed);
    shell.deliveries.clear();
    shell.enqueue_all(queue, vec![message("b", ""); 60]);
    shell.subscribe(queue, 40);
    shell.run();
    let firsts = shell.deliveries.iter().take(40);
    let of_a = firsts.filter(|(_, it)| it.fairness_key == key("a")).count();
    assert!((18..=22).contains(&of_a), "{of_a} of 40");
}

#[test]
fn a_key_is_promised_no_more_than_it_has_and_may_deliver() {
    for (messages, cap) in [(1, None), (5, NonZeroU32::new(1))] {
        let mut definition = QueueSettings::default();
        definition.key_concurrency = cap;
        let mut settings = Settings::default();
        settings.memory_budget = 4 << 10;
        let mut shell = Shell::new(settings);
        let queue = shell.create("shared", definition);
        shell.enqueue_all(queue, vec![message("stored", vec![1; 8 << 10]); messages]);
        shell.subscribe(queue, 3);
        shell.poll();
        assert_eq!(shell.loads.len(), 1);
        // The rest of the credit goes to keys that can use it.
        for name in ["b", "c"] {
            shell.send(queue, vec![message(name, "")]);
            shell.seal();
            shell.commit();
            shell.poll();
        }
        assert_eq!(shell.deliveries.len(), 2, "{messages} with {cap:?}");
        shell.run();
        assert_eq!(shell.deliveries.len(), 3);
    }
}
