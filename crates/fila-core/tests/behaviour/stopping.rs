//! Leases and a planned stop: they are valid after the next start, and after no other.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Beginnings, Command, ConsumerId, ConsumerKind, Delivery, Demand, Departure, Enqueued, LeaseId,
    Ordering, QueueSettings, RECONNECT_GRACE, SettleError, Verdict,
};
use fila_store::{MessageId, QueueId, Timestamp};

use crate::support::{
    SECOND, Shell, forgetful, message, nack, queue, throttled, trying_again_at_once,
};

/// Returns a shell whose queue has `count` messages of the key `a`, and a consumer.
fn with_messages(definition: QueueSettings, count: usize) -> (Shell, QueueId, ConsumerId) {
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue_all(queue, vec![message("a", "work"); count]);
    let consumer = shell.subscribe(queue, 0);
    (shell, queue, consumer)
}

fn stop_and_start(shell: &mut Shell) -> usize {
    let kept = shell.stop().into_iter().sum();
    shell.restart();
    shell.run();
    kept
}

/// Lets a new consumer take everything that it can get.
fn take_all(shell: &mut Shell, queue: QueueId) -> Vec<Delivery> {
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let taken = std::mem::take(&mut shell.deliveries);
    taken.into_iter().map(|(_, delivery)| delivery).collect()
}

fn ids(taken: &[Delivery]) -> Vec<MessageId> {
    taken.iter().map(|delivery| delivery.message).collect()
}

#[test]
fn a_lease_is_acknowledged_after_a_planned_stop_and_no_other_consumer_gets_its_message() {
    let (mut shell, queue, consumer) = with_messages(QueueSettings::default(), 2);
    let delivery = shell.next(consumer).unwrap();
    assert_eq!(stop_and_start(&mut shell), 1);
    let stats = shell.stats(queue);
    assert_eq!((stats.leased, stats.ready), (1, 1));
    let others = take_all(&mut shell, queue);
    assert_eq!(others.len(), 1);
    assert_ne!(others[0].message, delivery.message);
    assert_eq!(shell.settle(queue, delivery.lease, Verdict::Ack), Ok(()));
    let again = shell.settle(queue, delivery.lease, Verdict::Ack);
    assert_eq!(again, Err(SettleError::LeaseNotFound));
    shell.restart();
    assert_eq!(
        ids(&take_all(&mut shell, queue)),
        ids(&others),
        "it is gone"
    );
}

#[test]
fn a_lease_can_fail_be_released_and_be_extended_after_a_planned_stop() {
    let (mut shell, queue, consumer) = with_messages(trying_again_at_once(), 3);
    let taken: Vec<Delivery> = (0..3).map(|_| shell.next(consumer).unwrap()).collect();
    shell.advance(10 * SECOND);
    assert_eq!(stop_and_start(&mut shell), 3);
    shell
        .settle(queue, taken[0].lease, nack(Duration::ZERO))
        .unwrap();
    shell
        .settle(queue, taken[1].lease, Verdict::Release)
        .unwrap();
    let extended = shell.settle(queue, taken[2].lease, Verdict::Extend { by: None });
    assert_eq!(extended, Ok(()));
    let again = take_all(&mut shell, queue);
    assert_eq!(ids(&again), ids(&taken[..2]));
    let attempts: Vec<u32> = again.iter().map(|delivery| delivery.attempt).collect();
    assert_eq!(attempts, [2, 1], "only the failure counts");
    // It lasts for a whole lease from the extension on.
    shell.advance(29 * SECOND);
    shell.run();
    assert_eq!(shell.stats(queue).leased, 3);
    assert_eq!(shell.settle(queue, taken[2].lease, Verdict::Ack), Ok(()));
}

#[test]
fn a_lease_expires_at_its_old_deadline_and_the_time_without_a_server_counts() {
    for down in [5, 60] {
        let (mut shell, queue, consumer) = with_messages(trying_again_at_once(), 1);
        let delivery = shell.next(consumer).unwrap();
        shell.advance(10 * SECOND);
        shell.stop();
        shell.advance(down * SECOND);
        shell.restart();
        if down == 5 {
            shell.advance(14 * SECOND);
            assert_eq!(take_all(&mut shell, queue), []);
            shell.advance(SECOND);
        }
        let again = take_all(&mut shell, queue);
        assert_eq!(ids(&again), [delivery.message], "down for {down} seconds");
        assert_eq!(again[0].attempt, 2);
        assert_eq!(shell.stats(queue).totals.lease_expired, 1);
        let late = shell.settle(queue, delivery.lease, Verdict::Ack);
        assert_eq!(late, Err(SettleError::LeaseNotFound));
    }
}

#[test]
fn a_crash_after_the_start_uses_the_kept_leases_up() {
    let (mut shell, queue, consumer) = with_messages(QueueSettings::default(), 1);
    let delivery = shell.next(consumer).unwrap();
    assert_eq!(stop_and_start(&mut shell), 1);
    shell.restart();
    let again = take_all(&mut shell, queue);
    assert_eq!((ids(&again), again[0].attempt), (vec![delivery.message], 1));
    let late = shell.settle(queue, delivery.lease, Verdict::Ack);
    assert_eq!(late, Err(SettleError::LeaseNotFound));
}

#[test]
fn a_lease_outlives_one_planned_stop_after_the_other() {
    let (mut shell, queue, consumer) = with_messages(QueueSettings::default(), 1);
    let delivery = shell.next(consumer).unwrap();
    for _ in 0..5 {
        assert_eq!(stop_and_start(&mut shell), 1);
        shell.advance(5 * SECOND);
    }
    assert_eq!(shell.settle(queue, delivery.lease, Verdict::Ack), Ok(()));
}

#[test]
fn new_leases_never_have_the_id_of_a_kept_one() {
    let (mut shell, queue, consumer) = with_messages(QueueSettings::default(), 300);
    let mut seen: BTreeSet<LeaseId> = BTreeSet::new();
    for round in 0..3 {
        let consumer = if round == 0 {
            consumer
        } else {
            shell.subscribe(queue, 0)
        };
        for _ in 0..100 {
            let delivery = shell.next(consumer).unwrap();
            assert!(seen.insert(delivery.lease), "{:?}", delivery.lease);
        }
        assert_eq!(stop_and_start(&mut shell), seen.len());
    }
    for lease in seen {
        assert_eq!(shell.settle(queue, lease, Verdict::Ack), Ok(()));
    }
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn a_strictly_ordered_key_stays_blocked_while_its_message_is_leased() {
    let definition = QueueSettings {
        ordering: Ordering::Key,
        ..trying_again_at_once()
    };
    let (mut shell, queue, consumer) = with_messages(definition, 3);
    let first = shell.next(consumer).unwrap();
    stop_and_start(&mut shell);
    assert_eq!(take_all(&mut shell, queue), []);
    shell
        .settle(queue, first.lease, nack(Duration::ZERO))
        .unwrap();
    let (_, again) = shell.deliveries.pop_front().unwrap();
    assert_eq!((again.message, again.attempt), (first.message, 2));
    assert!(shell.deliveries.is_empty());
    shell.settle(queue, again.lease, Verdict::Ack).unwrap();
    let (_, second) = shell.deliveries.pop_front().unwrap();
    assert!(second.message > first.message);
}

#[test]
fn kept_leases_count_for_the_concurrency_of_their_key() {
    let definition = QueueSettings {
        key_concurrency: NonZeroU32::new(2),
        ..QueueSettings::default()
    };
    let (mut shell, queue, consumer) = with_messages(definition, 4);
    let taken = [shell.next(consumer).unwrap(), shell.next(consumer).unwrap()];
    stop_and_start(&mut shell);
    assert_eq!(take_all(&mut shell, queue), []);
    shell.settle(queue, taken[0].lease, Verdict::Ack).unwrap();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn messages_before_and_behind_kept_leases_are_delivered_once_and_in_order() {
    for (mut shell, queue) in [queue(), forgetful(QueueSettings::default())] {
        let mut delayed = message("a", "late");
        delayed.delay = 40 * SECOND;
        let mut mortal = message("a", "mortal");
        mortal.ttl = fila_core::Ttl::For(20 * SECOND);
        let mut all = vec![delayed, mortal];
        all.extend(vec![message("a", "work"); 40]);
        let sent: Vec<MessageId> = shell
            .enqueue_all(queue, all)
            .into_iter()
            .map(|sent| match sent {
                Ok(Enqueued::Stored(id)) => id,
                other => panic!("{other:?}"),
            })
            .collect();
        let consumer = shell.subscribe(queue, 0);
        let taken: Vec<Delivery> = (0..7).map(|_| shell.next(consumer).unwrap()).collect();
        // The mortal one and two others are ready again when the server stops.
        for delivery in [&taken[0], &taken[2], &taken[4]] {
            shell
                .settle(queue, delivery.lease, Verdict::Release)
                .unwrap();
        }
        assert_eq!(stop_and_start(&mut shell), 4);
        shell.advance(25 * SECOND);
        let stats = shell.stats(queue);
        assert_eq!((stats.leased, stats.delayed), (4, 1));
        let others = take_all(&mut shell, queue);
        let mut expected = vec![taken[2].message, taken[4].message];
        expected.extend(&sent[8..]);
        assert_eq!(ids(&others), expected);
        assert_eq!(shell.stats(queue).totals.expired, 1);
        for place in [1, 3, 5, 6] {
            assert_eq!(
                shell.settle(queue, taken[place].lease, Verdict::Ack),
                Ok(())
            );
        }
        shell.advance(20 * SECOND);
        for delivery in &others {
            shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
        }
        shell.run();
        let late: Vec<_> = shell.deliveries.drain(..).map(|(_, it)| it).collect();
        assert_eq!(ids(&late), [sent[0]]);
        shell.settle(queue, late[0].lease, Verdict::Ack).unwrap();
        assert_eq!(shell.stats(queue).depth(), 0);
        assert_eq!(shell.stats(queue).bytes, 0);
    }
}

#[test]
fn a_kept_lease_of_a_throttled_message_takes_no_token_and_its_next_delivery_takes_one() {
    let (mut shell, queue) = Shell::with_queue(trying_again_at_once());
    shell.throttle("api", 1.0, 1.0);
    shell.enqueue_all(queue, vec![throttled("a", &["api"]); 3]);
    let consumer = shell.subscribe(queue, 0);
    shell.advance(2 * SECOND);
    let first = shell.next(consumer).unwrap();
    assert_eq!(stop_and_start(&mut shell), 1);
    shell
        .settle(queue, first.lease, nack(Duration::ZERO))
        .unwrap();
    assert_eq!(
        take_all(&mut shell, queue),
        [],
        "buckets are empty after a start"
    );
    for _ in 0..3 {
        shell.advance(SECOND);
        shell.run();
        assert_eq!(shell.deliveries.len(), 1);
        shell.deliveries.clear();
    }
}

#[test]
fn a_message_that_was_purged_has_no_lease_after_the_start() {
    let (mut shell, queue, consumer) = with_messages(QueueSettings::default(), 1);
    let delivery = shell.next(consumer).unwrap();
    shell.purge(queue);
    assert_eq!(stop_and_start(&mut shell), 0);
    let late = shell.settle(queue, delivery.lease, Verdict::Ack);
    assert_eq!(late, Err(SettleError::LeaseNotFound));
    shell.enqueue(queue, message("a", "work"));
    assert_eq!(take_all(&mut shell, queue).len(), 1);
}

#[test]
fn a_message_that_expires_under_a_kept_lease_goes_when_the_lease_ends() {
    let definition = QueueSettings {
        message_ttl: Some(20 * SECOND),
        ..QueueSettings::default()
    };
    let (mut shell, queue, consumer) = with_messages(definition, 1);
    let delivery = shell.next(consumer).unwrap();
    shell.stop();
    shell.advance(25 * SECOND);
    shell.restart();
    shell.run();
    assert_eq!(shell.stats(queue).leased, 1);
    assert_eq!(
        shell.settle(queue, delivery.lease, Verdict::Release),
        Ok(())
    );
    assert_eq!(shell.stats(queue).depth(), 0);
    assert_eq!(shell.stats(queue).totals.expired, 1);
}

#[test]
fn a_lease_whose_consumer_was_lost_before_the_stop_keeps_the_end_of_its_grace() {
    let (mut shell, queue, consumer) = with_messages(trying_again_at_once(), 1);
    let delivery = shell.next(consumer).unwrap();
    shell.settle(queue, delivery.lease, Verdict::Begin).unwrap();
    shell.unsubscribe(consumer, Departure::Lost);
    stop_and_start(&mut shell);
    assert_eq!(shell.stats(queue).leased, 1);
    shell.advance(RECONNECT_GRACE);
    let again = take_all(&mut shell, queue);
    let lost: Vec<(u32, u32)> = again.iter().map(|it| (it.attempt, it.lost)).collect();
    assert_eq!(lost, [(2, 1)], "its handler had begun");
}

#[test]
fn a_consumer_that_comes_back_takes_its_kept_lease_over() {
    let (mut shell, queue, consumer) = with_messages(trying_again_at_once(), 1);
    let delivery = shell.next(consumer).unwrap();
    stop_and_start(&mut shell);
    let consumer = shell.subscribe(queue, 1);
    let ticket = shell.ticket();
    shell.tell(Command::Settle {
        queue,
        results: vec![fila_core::Settlement {
            lease: delivery.lease,
            message: None,
            verdict: Verdict::Extend { by: None },
        }],
        by: Some(consumer),
        ticket,
    });
    // Now it is a lease of this stream: losing the stream ends it after the grace.
    shell.unsubscribe(consumer, Departure::Lost);
    shell.advance(RECONNECT_GRACE);
    let again = take_all(&mut shell, queue);
    assert_eq!((ids(&again), again[0].attempt), (vec![delivery.message], 1));
}

#[test]
fn deliveries_that_a_socket_has_not_taken_end_with_the_stop() {
    let (mut shell, queue) = queue();
    shell.enqueue_all(queue, vec![message("a", "work"); 3]);
    let consumer = ConsumerId::new(77);
    let demand = Demand {
        credit: 1,
        in_flight_max: u32::MAX,
        kind: ConsumerKind::Stream(Beginnings::Reported),
    };
    shell.subscribe_as(queue, consumer, demand);
    shell.run();
    let (_, sent) = shell.deliveries.pop_front().unwrap();
    shell.stop_reading(consumer);
    shell.tell(Command::Credit { consumer, more: 2 });
    shell.run();
    let unsent: BTreeSet<LeaseId> = shell.deliveries.drain(..).map(|(_, it)| it.lease).collect();
    let found = shell.broker.unsent(consumer);
    assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), unsent);
    shell.tell(Command::Unsubscribe {
        consumer,
        departure: Departure::Stopped,
        unsent: found,
    });
    assert_eq!(stop_and_start(&mut shell), 1);
    let taken = take_all(&mut shell, queue);
    assert_eq!(
        taken.iter().map(|it| it.attempt).collect::<Vec<_>>(),
        [1, 1]
    );
    assert_eq!(shell.settle(queue, sent.lease, Verdict::Ack), Ok(()));
}

#[test]
fn a_full_disk_takes_no_rows_and_the_leases_end_with_the_broker() {
    let (mut shell, queue, consumer) = with_messages(QueueSettings::default(), 1);
    let delivery = shell.next(consumer).unwrap();
    shell.broker.set_storage_full(true);
    assert_eq!(stop_and_start(&mut shell), 0);
    let late = shell.settle(queue, delivery.lease, Verdict::Ack);
    assert_eq!(late, Err(SettleError::LeaseNotFound));
}

#[test]
fn a_hundred_thousand_leases_are_one_commit_and_a_round_has_room_for_no_more_than_262_143() {
    let (mut shell, queue) = Shell::with_settings(|settings| {
        settings.limits.buffered_bytes = usize::MAX;
        settings.limits.in_flight_per_consumer = u32::MAX;
        settings.memory_budget = 4 << 30;
    });
    let mut expected = Vec::new();
    for (count, rounds) in [
        (100_000, vec![100_000]),
        (170_000, vec![262_143, 270_000 - 262_143]),
    ] {
        shell.enqueue_all(queue, vec![message("a", ""); count]);
        expected.extend(take_all(&mut shell, queue).iter().map(|it| it.lease));
        assert_eq!(shell.stop(), rounds);
        shell.restart();
        shell.run();
        assert_eq!(shell.stats(queue).leased, expected.len() as u64);
    }
    for &lease in expected.iter().step_by(1_000) {
        assert_eq!(shell.settle(queue, lease, Verdict::Ack), Ok(()));
    }
}

#[test]
fn rows_of_leases_are_swept_an_hour_after_the_stop() {
    use fila_store::{Engine, Shard};
    let (mut shell, queue, consumer) = with_messages(QueueSettings::default(), 1);
    shell.next(consumer).unwrap();
    shell.stop();
    let stopped: Timestamp = shell.now;
    shell.restart();
    let rows = |shell: &Shell| {
        let page = shell.shards[&queue].remembered(None, usize::MAX);
        page.unwrap().items.len()
    };
    assert_eq!(rows(&shell), 2, "the lease, and the ids");
    let hour = Duration::from_secs(3600);
    shell
        .engine
        .sweep(stopped.saturating_add(hour), 100)
        .unwrap();
    assert_eq!(rows(&shell), 0);
}
