//! Everything that grows has a bound, and every bound a refusal of its own.

use std::num::NonZeroU32;

use fila_core::{Departure, EnqueueError, QueueSettings, Refused, Settings, Verdict};
use fila_store::{DeduplicationId, Payload};

use crate::support::{Answer, SECOND, Shell, key, message};

fn refusal(change: impl FnOnce(&mut Settings), message: fila_core::NewMessage) -> EnqueueError {
    let (mut shell, queue) = Shell::with_settings(change);
    let mut results = shell.enqueue_all(queue, vec![message.clone(), message]);
    let refused = results.pop().unwrap().unwrap_err();
    let stats = shell.stats(queue);
    assert_eq!(stats.totals.refused as usize, 2 - stats.depth() as usize);
    refused
}

#[test]
fn every_limit_has_a_refusal_of_its_own() {
    let plain = || message("key", "payload");
    let with_headers = |count: usize| {
        let header = ("name".to_owned(), "value".to_owned());
        let payload = Payload::new(vec![header; count], "").unwrap();
        fila_core::NewMessage::new(key("key"), payload)
    };
    assert_eq!(
        refusal(|it| it.limits.payload_bytes = 6, plain()),
        EnqueueError::PayloadTooLarge { found: 7, max: 6 }
    );
    assert_eq!(
        refusal(|it| it.limits.headers = 1, with_headers(2)),
        EnqueueError::TooManyHeaders { found: 2, max: 1 }
    );
    assert_eq!(
        refusal(|it| it.limits.header_bytes = 17, with_headers(2)),
        EnqueueError::HeadersTooLarge { found: 18, max: 17 }
    );
    assert_eq!(
        refusal(|it| it.limits.fairness_key_bytes = 2, plain()),
        EnqueueError::FairnessKeyTooLong { found: 3, max: 2 }
    );
    assert_eq!(
        refusal(|it| it.limits.depth_per_queue = 1, plain()),
        EnqueueError::QueueFull { max: 1 }
    );
    assert_eq!(
        refusal(|it| it.limits.depth_per_key = 1, plain()),
        EnqueueError::KeyFull {
            path: plain().schedule.fairness_key,
            max: 1
        }
    );
    assert_eq!(
        refusal(|it| it.limits.buffered_bytes = 7, plain()),
        EnqueueError::BufferFull { max: 7 }
    );
    let mut heavy = plain();
    heavy.schedule.weight = NonZeroU32::new(65_537).unwrap();
    assert_eq!(
        refusal(|_| {}, heavy),
        EnqueueError::InvalidWeight {
            found: 65_537,
            max: 65_536
        }
    );
    let mut late = plain();
    late.delay = 2 * SECOND;
    assert_eq!(
        refusal(|it| it.limits.delay = SECOND, late),
        EnqueueError::DelayTooLong {
            found: 2 * SECOND,
            max: SECOND
        }
    );
}

#[test]
fn keys_delays_deduplication_ids_and_consumers_are_limited_as_well() {
    let (mut shell, queue) = Shell::with_settings(|it| {
        it.limits.keys_per_queue = 2;
        it.limits.delayed_per_queue = 1;
        it.limits.deduplication_ids_per_queue = 1;
        it.limits.consumers = 1;
    });
    shell.enqueue(queue, message("a", ""));
    let second = shell.enqueue(queue, message("b", ""));
    let refused = shell.enqueue_all(queue, vec![message("c", "")]);
    assert_eq!(refused, [Err(EnqueueError::TooManyKeys { max: 2 })]);

    let mut delayed = message("a", "");
    delayed.delay = SECOND;
    // Also those count that come together, before any of them is stored.
    let taken = shell.enqueue_all(queue, vec![delayed.clone(), delayed.clone()]);
    assert!(taken[0].is_ok(), "{taken:?}");
    assert_eq!(taken[1], Err(EnqueueError::TooManyDelayed { max: 1 }));
    let refused = shell.enqueue_all(queue, vec![delayed]);
    assert_eq!(refused, [Err(EnqueueError::TooManyDelayed { max: 1 })]);

    let named = |name: &'static str| {
        let mut message = message("a", "");
        message.deduplication_id = Some(DeduplicationId::new(name).unwrap());
        message
    };
    shell.enqueue(queue, named("one"));
    let refused = shell.enqueue_all(queue, vec![named("two")]);
    let max = 1;
    assert_eq!(
        refused,
        [Err(EnqueueError::TooManyDeduplicationIds { max })]
    );

    let consumer = shell.subscribe(queue, u32::MAX);
    let demand = fila_core::Demand {
        credit: u32::MAX,
        in_flight_max: 1,
        kind: fila_core::ConsumerKind::Stream(fila_core::Beginnings::Reported),
    };
    let another = fila_core::ConsumerId::new(99);
    let refused = shell.broker.subscribe(shell.now, queue, another, demand);
    assert_eq!(refused, Err(Refused::TooManyConsumers { max: 1 }));

    // A key that is done makes room for another.
    shell.run();
    let done = shell.deliveries.iter().find(|(_, it)| it.message == second);
    let lease = done.unwrap().1.lease;
    shell.settle(queue, lease, Verdict::Ack).unwrap();
    shell.enqueue(queue, message("c", ""));
    shell.unsubscribe(consumer, Departure::Closed);
}

#[test]
fn bytes_that_are_not_confirmed_are_counted_until_they_are() {
    let mut settings = Settings::default();
    // Two messages of five bytes, with what each counts for itself.
    let max = 2 * message("a", "12345").buffered_bytes();
    settings.limits.buffered_bytes = max;
    let mut shell = Shell::new(settings);
    let (one, two) = (
        shell.create("one", QueueSettings::default()),
        shell.create("two", QueueSettings::default()),
    );
    let full = [Err(EnqueueError::BufferFull { max })];
    let tell =
        |shell: &mut Shell, queue, body: &'static str| shell.send(queue, vec![message("a", body)]);
    // In the round under way, and in the one that is collected.
    tell(&mut shell, one, "12345");
    shell.seal();
    tell(&mut shell, two, "12345");
    assert!(shell.broker.is_full());
    assert_eq!(shell.enqueue_all(one, vec![message("a", "1")]).len(), 1);
    tell(&mut shell, one, "12345");
    shell.seal();
    tell(&mut shell, two, "12345");
    let refused = tell(&mut shell, two, "1");
    assert_eq!(
        shell.answers.remove(&refused),
        Some(Answer::Enqueued(full.to_vec()))
    );
    // A deleted queue gives back its collected bytes at once, and the bytes in flight when their round is done.
    shell.delete(two);
    let three = shell.create("three", QueueSettings::default());
    let taken = tell(&mut shell, three, "12345");
    assert_eq!(shell.answers.get(&taken), None, "it waits for its round");
    shell.delete(one);
    shell.commit();
    let taken = tell(&mut shell, three, "12345");
    assert_eq!(shell.answers.get(&taken), None);
    shell.run();
    assert_eq!(shell.stats(three).depth(), 2);
    assert!(!shell.broker.is_full());
}

#[test]
fn a_queue_can_have_less_room_than_the_broker_allows() {
    let mut definition = QueueSettings::default();
    definition.depth_max = Some(3);
    definition.key_depth_max = Some(2);
    let (mut shell, queue) = Shell::with_queue(definition);
    let names = ["a", "a", "a", "b", "b"];
    let results = shell.enqueue_all(queue, names.map(|name| message(name, "")).to_vec());
    let path = key("a");
    assert_eq!(results[2], Err(EnqueueError::KeyFull { path, max: 2 }));
    assert_eq!(results[4], Err(EnqueueError::QueueFull { max: 3 }));
    assert_eq!(shell.stats(queue).depth(), 3);
}

#[test]
fn keys_count_from_the_moment_at_which_they_are_taken() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.keys_per_queue = 2);
    let batch = ["a", "b", "c"].map(|name| message(name, ""));
    let mut results = shell.enqueue_all(queue, batch.to_vec());
    let refused = Err(EnqueueError::TooManyKeys { max: 2 });
    assert_eq!(results.pop(), Some(refused));
    assert!(results.iter().all(Result::is_ok));
}

#[test]
fn while_the_disk_is_full_messages_are_refused_and_what_is_there_is_delivered_and_acknowledged() {
    let (mut shell, queue) = Shell::with_settings(|_| {});
    let mut named = message("a", "before");
    named.deduplication_id = Some(DeduplicationId::new("once").unwrap());
    shell.enqueue(queue, named.clone());
    shell.broker.set_storage_full(true);
    let refused = shell.enqueue_all(queue, vec![message("a", "x"), message("b", "y")]);
    assert_eq!(refused, [const { Err(EnqueueError::StorageFull) }; 2]);
    let known = shell.enqueue_all(queue, vec![named]);
    assert!(known[0].is_ok(), "it is stored already: {known:?}");
    let consumer = shell.subscribe(queue, 1);
    let lease = shell.next(consumer).unwrap().lease;
    shell.settle(queue, lease, Verdict::Ack).unwrap();
    assert_eq!(shell.stats(queue).depth(), 0);
    shell.broker.set_storage_full(false);
    shell.enqueue(queue, message("a", "after"));
}
