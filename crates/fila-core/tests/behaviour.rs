//! What the broker does with messages, leases, limits and failures, one sentence each.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Answer, Charge, Command, Committed, Credit, Definition, Delivering, Delivery, Dismissal,
    EnqueueError, Enqueued, KeyCursor, KeySettings, Ordering, Refused, Settings, SettleError,
    Settlement, Ttl, Verdict,
};
use fila_store::{DeduplicationId, Engine, MessageId, Payload, Shard};

use support::{
    MILLISECOND, SECOND, Shell, forgetful, key, message, nack, queue, trying_again_at_once,
};

#[test]
fn nothing_is_answered_or_delivered_before_it_is_durable() {
    let (mut shell, queue) = queue();
    shell.subscribe(queue, Credit::Unlimited);
    let ticket = shell.send(queue, vec![message("a", "one")]);
    shell.poll();
    shell.seal();
    shell.poll();
    assert!(shell.round.is_some());
    assert!(shell.answers.is_empty() && shell.deliveries.is_empty());
    shell.commit();
    assert!(shell.answers.contains_key(&ticket));
    shell.poll();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn the_next_round_is_collected_while_one_is_under_way() {
    let (mut shell, queue) = queue();
    let tickets: Vec<u64> = (0..3)
        .map(|_| {
            let ticket = shell.send(queue, vec![message("a", "one")]);
            shell.seal();
            ticket
        })
        .collect();
    let first = shell.round.as_ref().unwrap();
    assert_eq!(first.batches[0].1.len(), 1, "the first went alone");
    shell.commit();
    assert!(shell.answers.contains_key(&tickets[0]));
    assert_eq!(shell.answers.len(), 1);
    shell.seal();
    let second = shell.round.as_ref().unwrap();
    assert_eq!(second.batches[0].1.len(), 2, "the others share a round");
    shell.commit();
    assert_eq!(shell.answers.len(), 3);
}

#[test]
fn several_rounds_may_be_under_way_and_are_confirmed_in_their_order() {
    let (mut shell, queue) = queue();
    let consumer = shell.subscribe(queue, Credit::Unlimited);
    let send = |shell: &mut Shell, body: &'static str| {
        let ticket = shell.send(queue, vec![message("a", body)]);
        shell.seal_further();
        ticket
    };
    let tickets = ["one", "two", "three"].map(|body| send(&mut shell, body));
    assert_eq!(shell.further.len(), 2);
    for (stored, ticket) in tickets.iter().enumerate() {
        assert_eq!(shell.answers.len(), stored);
        shell.commit();
        assert!(shell.answers.contains_key(ticket));
        shell.poll();
        assert_eq!(shell.deliveries.len(), stored + 1, "to {consumer:?}");
    }
    // There is an end to it.
    let many: Vec<u64> = (0..20).map(|_| send(&mut shell, "more")).collect();
    assert_eq!(shell.further.len(), 7);
    shell.run();
    assert!(many.iter().all(|ticket| shell.answers.contains_key(ticket)));
}

#[test]
fn a_round_that_fails_fails_those_after_it() {
    let (mut shell, queue) = queue();
    let tickets = ["one", "two", "three"].map(|body| {
        let ticket = shell.send(queue, vec![message("a", body)]);
        shell.seal_further();
        ticket
    });
    let late = shell.send(queue, vec![message("a", "not sealed")]);
    for committed in [Committed::Unknown, Committed::Unknown, Committed::Failed] {
        shell.broker.committed(shell.now, committed);
    }
    shell.poll();
    let unknown = Answer::Refused(Refused::OutcomeUnknown);
    let failed = Answer::Refused(Refused::StoreFailed);
    assert_eq!(shell.answers[&tickets[0]], unknown);
    assert_eq!(shell.answers[&tickets[1]], unknown);
    assert_eq!(shell.answers[&tickets[2]], failed);
    assert_eq!(shell.answers[&late], failed);
    assert!(!shell.broker.is_storing());
}

#[test]
fn a_lease_that_runs_out_gives_the_message_to_somebody_else_at_that_millisecond() {
    let (mut shell, queue) = Shell::with_queue(trying_again_at_once());
    let id = shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let first = shell.next(consumer).unwrap();
    let other = shell.subscribe(queue, Credit::Unlimited);
    assert_eq!(
        shell.broker.next_timer().map(|next| next <= shell.now),
        Some(true),
        "a new consumer is to be looked after"
    );
    shell.run();
    shell.advance(30 * SECOND - MILLISECOND);
    shell.run();
    assert!(shell.deliveries.is_empty(), "not a millisecond early");
    shell.advance(MILLISECOND);
    shell.run();
    let (holder, second) = shell.deliveries.pop_front().unwrap();
    assert_eq!((holder, second.message), (other, id));
    assert_eq!((first.attempt, second.attempt), (1, 2));
    // The late result is refused, and the other delivery stays.
    let late = shell.settle(queue, first.lease, Verdict::Ack);
    assert_eq!(late, Err(SettleError::LeaseNotFound));
    assert_eq!(shell.stats(queue).leased, 1);
    assert_eq!(shell.settle(queue, second.lease, Verdict::Ack), Ok(()));
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn an_extension_counts_from_now() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let delivery = shell.next(consumer).unwrap();
    shell.advance(29 * SECOND);
    let by = Some(5 * SECOND);
    let extended = shell.settle(queue, delivery.lease, Verdict::Extend { by });
    assert_eq!(extended, Ok(()));
    shell.advance(5 * SECOND - MILLISECOND);
    shell.run();
    assert_eq!(shell.stats(queue).leased, 1);
    shell.advance(MILLISECOND);
    shell.run();
    assert_eq!(shell.stats(queue).leased, 0);
    assert_eq!(shell.stats(queue).totals.lease_expired, 1);
}

#[test]
fn a_result_for_another_message_is_refused_and_changes_nothing() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let delivery = shell.next(consumer).unwrap();
    let ticket = shell.ticket();
    shell.tell(Command::Settle {
        queue,
        results: vec![Settlement {
            lease: delivery.lease,
            message: Some(MessageId::from_number(delivery.message.get() + 1)),
            verdict: Verdict::Ack,
        }],
        ticket,
    });
    let refused = Answer::Settled(vec![Err(SettleError::AnotherMessage)]);
    assert_eq!(shell.answers.remove(&ticket), Some(refused));
    assert_eq!(shell.stats(queue).leased, 1);
}

#[test]
fn a_consumer_that_goes_gives_back_what_it_has_in_order() {
    let (mut shell, queue) = queue();
    let ids: Vec<MessageId> = (0..5)
        .map(|_| shell.enqueue(queue, message("a", "work")))
        .collect();
    let consumer = shell.subscribe(queue, Credit::Limited(5));
    shell.run();
    assert_eq!(shell.deliveries.len(), 5);
    shell.deliveries.clear();
    shell.tell(Command::Unsubscribe { consumer });
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    let again: Vec<_> = shell.deliveries.iter().map(|(_, it)| it.message).collect();
    assert_eq!(again, ids);
    assert!(shell.deliveries.iter().all(|(_, it)| it.attempt == 2));
}

#[test]
fn a_delivery_that_is_given_back_untouched_is_no_attempt() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let delivery = shell.next(consumer).unwrap();
    assert_eq!(
        shell.settle(queue, delivery.lease, Verdict::Release),
        Ok(())
    );
    assert_eq!(shell.next(consumer).unwrap().attempt, 1);
}

#[test]
fn attempts_survive_a_restart() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    for attempt in 1..4 {
        let consumer = shell.subscribe(queue, Credit::Limited(0));
        let delivery = shell.next(consumer).unwrap();
        assert_eq!(delivery.attempt, attempt);
        let delay = Duration::ZERO;
        let settled = shell.settle(queue, delivery.lease, nack(delay));
        settled.unwrap();
        shell.restart();
    }
}

#[test]
fn delayed_messages_come_at_their_millisecond_and_in_order() {
    let (mut shell, queue) = queue();
    let mut late = message("a", "late");
    late.delay = SECOND;
    let late = shell.enqueue(queue, late);
    let soon = shell.enqueue(queue, message("a", "soon"));
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    let (_, first) = shell.deliveries.pop_front().unwrap();
    assert_eq!(first.message, soon);
    assert_eq!(shell.stats(queue).delayed, 1);
    shell.advance(SECOND - MILLISECOND);
    shell.run();
    assert!(shell.deliveries.is_empty());
    shell.advance(MILLISECOND);
    shell.run();
    let (_, second) = shell.deliveries.pop_front().unwrap();
    assert_eq!(
        (second.message, &second.payload.body()[..]),
        (late, &b"late"[..])
    );
}

#[test]
fn a_strictly_ordered_key_waits_for_what_is_before() {
    let mut definition = Definition::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    let mut delayed = message("a", "1");
    delayed.delay = SECOND;
    shell.enqueue(queue, delayed);
    shell.enqueue(queue, message("a", "2"));
    shell.enqueue(queue, message("b", "1"));
    let consumer = shell.subscribe(queue, Credit::Limited(0));
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
    let mut definition = Definition::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue(queue, message("a", "1"));
    shell.enqueue(queue, message("a", "2"));
    shell.subscribe(queue, Credit::Unlimited);
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
fn messages_are_not_delivered_after_their_time_to_live() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short.clone());
    let mut delayed = short;
    delayed.delay = 2 * SECOND;
    shell.enqueue(queue, delayed);
    shell.enqueue(queue, message("a", "for ever"));
    shell.advance(SECOND);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (1, 2));
    shell.restart();
    assert_eq!(shell.stats(queue).depth(), 1, "they are deleted");
}

#[test]
fn a_message_that_is_put_off_beyond_its_life_ends_on_time() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let delivery = shell.next(consumer).unwrap();
    let delay = 2 * SECOND;
    let nacked = shell.settle(queue, delivery.lease, nack(delay));
    nacked.unwrap();
    shell.advance(SECOND);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (0, 1));
}

#[test]
fn a_lease_outlives_its_message_but_not_by_another_delivery() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short.clone());
    shell.enqueue(queue, short);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let (one, two) = (shell.next(consumer).unwrap(), shell.next(consumer).unwrap());
    shell.advance(2 * SECOND);
    shell.run();
    assert_eq!(shell.settle(queue, one.lease, Verdict::Ack), Ok(()));
    let delay = Duration::ZERO;
    let nacked = shell.settle(queue, two.lease, nack(delay));
    assert_eq!(nacked, Ok(()));
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (0, 1));
}

#[test]
fn what_is_due_while_a_message_is_read_comes_before_it() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short);
    let mut delayed = message("a", "delayed");
    delayed.delay = SECOND;
    let delayed = shell.enqueue(queue, delayed);
    let last = shell.enqueue(queue, message("a", "last"));
    let consumer = shell.subscribe(queue, Credit::Limited(2));
    shell.run();
    for (_, delivery) in std::mem::take(&mut shell.deliveries) {
        let released = shell.settle(queue, delivery.lease, Verdict::Release);
        released.unwrap();
    }
    shell.tell(Command::Credit { consumer, more: 2 });
    shell.poll();
    assert_eq!(shell.loads.len(), 1, "payloads have left memory");
    // Nobody has polled since the time came.
    shell.advance(SECOND);
    shell.load();
    shell.run();
    let delivered: Vec<_> = shell.deliveries.iter().map(|(_, it)| it.message).collect();
    assert_eq!(delivered, [delayed, last]);
    assert_eq!(shell.stats(queue).totals.expired, 1);
}

#[test]
fn a_duplicate_gets_the_id_of_the_first_also_before_that_is_durable() {
    let (mut shell, queue) = queue();
    let mut once = message("a", "once");
    once.deduplication_id = Some(DeduplicationId::new("d").unwrap());
    let results = shell.enqueue_all(queue, vec![once.clone(), once.clone()]);
    let [Ok(Enqueued::Stored(first)), Ok(Enqueued::Duplicate(second))] = results[..] else {
        panic!("{results:?}");
    };
    assert_eq!(first, second);
    shell.restart();
    let again = shell.enqueue_all(queue, vec![once.clone()]);
    assert_eq!(again, [Ok(Enqueued::Duplicate(first))]);
    shell.advance(Duration::from_secs(300));
    let anew = shell.enqueue_all(queue, vec![once]);
    assert!(matches!(anew[..], [Ok(Enqueued::Stored(id))] if id > first));
}

#[test]
fn a_duplicate_is_not_confirmed_before_the_first_is_durable() {
    let (mut shell, queue) = queue();
    let mut once = message("a", "once");
    once.deduplication_id = Some(DeduplicationId::new("d").unwrap());
    for _ in 0..2 {
        shell.send(queue, vec![once.clone()]);
    }
    shell.seal();
    assert!(shell.answers.is_empty(), "a crash now loses both");
    shell.commit();
    assert_eq!(shell.answers.len(), 2);
}

#[test]
fn a_purged_queue_is_empty_now_and_after_a_restart() {
    let (mut shell, queue) = queue();
    for _ in 0..20 {
        shell.enqueue(queue, message("a", "work"));
    }
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let leased = shell.next(consumer).unwrap();
    let ticket = shell.purge(queue);
    shell.run();
    assert_eq!(shell.answers.remove(&ticket), Some(Answer::Purged(20)));
    let late = shell.settle(queue, leased.lease, Verdict::Ack);
    assert_eq!(late, Err(SettleError::LeaseNotFound));
    let after = shell.enqueue(queue, message("a", "after"));
    assert_eq!(shell.next(consumer).unwrap().message, after);
    shell.restart();
    assert_eq!(shell.stats(queue).depth(), 1);
}

#[test]
fn what_was_sent_before_a_purge_is_purged_and_what_is_sent_after_it_is_not() {
    let (mut shell, queue) = queue();
    for (round, name) in ["before", "before as well"].into_iter().enumerate() {
        shell.send(queue, vec![message("a", name)]);
        if round == 0 {
            shell.seal();
        }
    }
    let ticket = shell.purge(queue);
    shell.enqueue(queue, message("a", "after"));
    assert_eq!(shell.answers.remove(&ticket), Some(Answer::Purged(2)));
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let delivery = shell.next(consumer).unwrap();
    assert_eq!(&delivery.payload.body()[..], b"after");
    assert_eq!(shell.next(consumer), None);
}

#[test]
fn a_deleted_queue_dismisses_its_consumers_and_refuses_what_is_under_way() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, Credit::Unlimited);
    let ticket = shell.send(queue, vec![message("a", "two")]);
    shell.seal();
    shell.delete(queue);
    assert_eq!(shell.dismissed, [(consumer, Dismissal::QueueGone)]);
    shell.commit();
    let gone = Some(Answer::Refused(Refused::QueueGone));
    assert_eq!(shell.answers.remove(&ticket), gone);
    let again = shell.create("queue", Definition::default());
    assert_eq!(shell.stats(again).depth(), 0);
    shell.restart();
    assert_eq!(shell.stats(again).depth(), 0);
}

#[test]
fn a_drained_consumer_is_dismissed_when_it_has_settled_everything() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    shell.enqueue(queue, message("a", "two"));
    let consumer = shell.subscribe(queue, Credit::Limited(1));
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
fn paused_queues_and_keys_deliver_nothing_until_they_are_resumed() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    shell.enqueue(queue, message("b", "one"));
    let mut definition = Definition::default();
    definition.delivery = Delivering::Paused;
    shell.update(queue, definition.clone());
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    assert_eq!(shell.next(consumer), None);
    definition.delivery = Delivering::Running;
    let settings = KeySettings {
        delivery: Delivering::Paused,
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    shell.update(queue, definition.clone());
    shell.run();
    let (_, other) = shell.deliveries.pop_front().unwrap();
    assert_eq!(other.fairness_key, key("b"));
    assert_eq!(shell.next(consumer), None);
    definition.keys.clear();
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn a_key_has_no_more_leases_than_its_cap_and_a_raised_cap_acts_at_once() {
    let mut definition = Definition::default();
    definition.key_concurrency = NonZeroU32::new(2);
    let (mut shell, queue) = Shell::with_queue(definition.clone());
    for name in ["a", "b"] {
        for _ in 0..5 {
            shell.enqueue(queue, message(name, "work"));
        }
    }
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    assert_eq!(shell.deliveries.len(), 4);
    definition.key_concurrency = NonZeroU32::new(3);
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.deliveries.len(), 6);
}

#[test]
fn an_operators_weight_wins_over_what_producers_say() {
    let mut definition = Definition::default();
    let settings = KeySettings {
        weight: NonZeroU32::new(3),
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    let (mut shell, queue) = Shell::with_queue(definition);
    let mut heavy = message("b", "work");
    heavy.weight = NonZeroU32::new(1).unwrap();
    let mut modest = message("a", "work");
    modest.weight = NonZeroU32::new(50).unwrap();
    shell.enqueue_all(queue, vec![modest; 400]);
    shell.enqueue_all(queue, vec![heavy; 400]);
    shell.subscribe(queue, Credit::Limited(400));
    shell.run();
    let of_a = shell
        .deliveries
        .iter()
        .filter(|(_, it)| it.fairness_key == key("a"))
        .count();
    assert!((298..=302).contains(&of_a), "{of_a} of 400");
}

#[test]
fn a_queue_that_charges_by_time_shares_time() {
    let mut definition = Definition::default();
    definition.charge = Charge::Time;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue_all(queue, vec![message("slow", "work"); 1000]);
    shell.enqueue_all(queue, vec![message("fast", "work"); 4000]);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let mut spent = [0u64; 2];
    for _ in 0..1500 {
        let delivery = shell.next(consumer).unwrap();
        let (slot, millis) = if delivery.fairness_key == key("slow") {
            (0, 20)
        } else {
            (1, 2)
        };
        shell.advance(Duration::from_millis(millis));
        spent[slot] += millis;
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    let share = spent[0] as f64 / (spent[0] + spent[1]) as f64;
    assert!((0.48..=0.52).contains(&share), "{spent:?}");
}

#[test]
fn a_slow_key_does_not_get_all_places_before_its_results_are_there() {
    let mut definition = Definition::default();
    definition.charge = Charge::Time;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue_all(queue, vec![message("slow", "work"); 1000]);
    shell.enqueue_all(queue, vec![message("fast", "work"); 1000]);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    // How long they take becomes known.
    for _ in 0..300 {
        let delivery = shell.next(consumer).unwrap();
        let is_slow = delivery.fairness_key == key("slow");
        shell.advance(Duration::from_millis(if is_slow { 100 } else { 1 }));
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    // A hundred places are free at once, and no result comes.
    shell.deliveries.clear();
    shell.tell(Command::Credit {
        consumer,
        more: 100,
    });
    shell.run();
    let delivered = shell.deliveries.iter();
    let of_slow = delivered.filter(|(_, it)| it.fairness_key == key("slow"));
    assert!(of_slow.count() <= 2);
    assert_eq!(shell.deliveries.len(), 100);
}

#[test]
fn a_backlog_far_beyond_memory_is_delivered_in_order_and_within_the_budget() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 64 << 10);
    let payload = vec![7; 1024];
    for _ in 0..40 {
        let batch = (0..100).map(|n| message(["a", "b", "c"][n % 3], payload.clone()));
        let batch = batch.collect();
        shell.enqueue_all(queue, batch);
    }
    assert!(shell.broker.memory_used() <= 64 << 10);
    let stats = shell.stats(queue);
    assert!(stats.stored_only > 3900, "{stats:?}");
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let mut last = std::collections::BTreeMap::new();
    let mut most = 0;
    for turn in 0..4000 {
        let delivery = shell.next(consumer).unwrap();
        let before = last.insert(delivery.fairness_key.clone(), delivery.message);
        assert!(before < Some(delivery.message), "in order");
        most = most.max(shell.broker.memory_used());
        if turn < 3000 {
            assert!(last.len() == 3 || turn < 3, "all keys take part");
        }
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    // A chunk per key on top of the budget, however long the backlog.
    assert!(most <= (64 << 10) + 3 * (20 << 10), "{most}");
    assert_eq!(shell.stats(queue).depth(), 0);
    assert_eq!(shell.broker.memory_used(), 0);
}

#[test]
fn backlogs_of_many_keys_take_a_handful_of_messages_each_beyond_the_budget() {
    const KEYS: usize = 400;
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 64 << 10);
    for _ in 0..40 {
        let batch = (0..KEYS).map(|n| message(&format!("key-{n}"), "small"));
        shell.enqueue_all(queue, batch.collect());
    }
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let mut most = 0;
    for _ in 0..40 * KEYS {
        let delivery = shell.next(consumer).unwrap();
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
        most = most.max(shell.broker.memory_used());
    }
    assert!(most <= (64 << 10) + KEYS * 4 * 640, "{most}");
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn a_quiet_key_is_kept_in_memory_beside_a_noisy_one() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 64 << 10);
    let payload = vec![7; 1024];
    shell.enqueue_all(queue, vec![message("noisy", payload.clone()); 200]);
    let before = shell.stats(queue).stored_only;
    shell.enqueue(queue, message("quiet", payload));
    assert_eq!(shell.stats(queue).stored_only, before);
}

#[test]
fn a_million_keys_that_came_and_went_leave_nothing() {
    let (mut shell, queue) = queue();
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let rounds = 20;
    let mut places = 0;
    for round in 0..rounds {
        let batch = (0..1000).map(|n| message(&format!("{round}/{n}"), "once"));
        let batch = batch.collect();
        shell.enqueue_all(queue, batch);
        shell.tell(Command::Credit {
            consumer,
            more: 1000,
        });
        shell.run();
        let ticket = shell.ticket();
        let results = std::mem::take(&mut shell.deliveries)
            .into_iter()
            .map(|(_, delivery)| Settlement {
                lease: delivery.lease,
                message: None,
                verdict: Verdict::Ack,
            })
            .collect();
        shell.tell(Command::Settle {
            queue,
            results,
            ticket,
        });
        shell.run();
        shell.tell(Command::Keys {
            queue,
            after: KeyCursor::from_number(2200),
            limit: usize::MAX,
            ticket,
        });
        let Some(Answer::Keys(_, next)) = shell.answers.remove(&ticket) else {
            panic!();
        };
        places = next.map_or(0, KeyCursor::get);
    }
    assert_eq!(shell.stats(queue).active_keys, 0);
    assert_eq!(places, 0, "places are used again");
}

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
        EnqueueError::KeyFull { max: 1 }
    );
    assert_eq!(
        refusal(|it| it.limits.buffered_bytes = 7, plain()),
        EnqueueError::BufferFull { max: 7 }
    );
    let mut heavy = plain();
    heavy.weight = NonZeroU32::new(65_537).unwrap();
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

    let consumer = shell.subscribe(queue, Credit::Unlimited);
    let ticket = shell.ticket();
    shell.tell(Command::Subscribe {
        queue,
        consumer: fila_core::ConsumerId::new(99),
        demand: fila_core::Demand {
            credit: Credit::Unlimited,
            in_flight_max: 1,
        },
        ticket,
    });
    let refused = Answer::Refused(Refused::TooManyConsumers { max: 1 });
    assert_eq!(shell.answers.remove(&ticket), Some(refused));

    // A key that is done makes room for another.
    shell.run();
    let done = shell.deliveries.iter().find(|(_, it)| it.message == second);
    let lease = done.unwrap().1.lease;
    shell.settle(queue, lease, Verdict::Ack).unwrap();
    shell.enqueue(queue, message("c", ""));
    shell.tell(Command::Unsubscribe { consumer });
}

#[test]
fn after_a_failed_write_everybody_is_told_and_nothing_more_is_taken() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "kept"));
    let tickets: Vec<u64> = (0..2)
        .map(|_| {
            let ticket = shell.send(queue, vec![message("a", "lost?")]);
            shell.seal();
            ticket
        })
        .collect();
    shell.round = None;
    shell.broker.committed(shell.now, Committed::Unknown);
    shell.poll();
    let unknown = Answer::Refused(Refused::OutcomeUnknown);
    assert_eq!(shell.answers.remove(&tickets[0]), Some(unknown));
    let failed = Answer::Refused(Refused::StoreFailed);
    assert_eq!(shell.answers.remove(&tickets[1]), Some(failed.clone()));
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    assert!(
        shell.deliveries.is_empty(),
        "its result could not be stored"
    );
    let ticket = shell.purge(queue);
    assert_eq!(shell.answers.remove(&ticket), Some(failed));
    shell.restart();
    assert!(shell.stats(queue).depth() >= 1);
}

#[test]
fn commands_for_a_queue_that_is_not_there_are_refused() {
    let (mut shell, queue) = queue();
    shell.delete(queue);
    let ticket = shell.ticket();
    shell.tell(Command::Inspect { queue, ticket });
    let gone = Some(Answer::Refused(Refused::QueueGone));
    assert_eq!(shell.answers.remove(&ticket), gone);
    shell.tell(Command::Keys {
        queue,
        after: KeyCursor::start(),
        limit: 10,
        ticket,
    });
    assert_eq!(shell.answers.remove(&ticket), gone);
    shell.tell(Command::Close { queue });
    shell.tell(Command::Credit {
        consumer: fila_core::ConsumerId::new(7),
        more: 1,
    });
    shell.run();
}

#[test]
fn a_message_that_cannot_be_read_is_reported_and_not_served() {
    let (mut shell, queue) = forgetful(Definition::default());
    let lost = shell.enqueue(queue, message("a", "payload"));
    shell.enqueue(queue, message("a", "payload"));
    let kept = shell.enqueue(queue, message("a", vec![1; 2000]));
    // Somebody has been at the store behind the broker's back.
    let mut batch = fila_store::Batch::new();
    batch.delete(fila_store::Locator {
        fairness_key: key("a"),
        id: kept,
    });
    let shard = &shell.shards[&queue];
    shard.commit(&batch).unwrap();
    let consumer = shell.subscribe(queue, Credit::Limited(0));
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
fn no_result_puts_a_message_off_for_longer_than_the_limit() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.delay = SECOND);
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let lease = shell.next(consumer).unwrap().lease;
    let (max, found) = (SECOND, SECOND + MILLISECOND);
    let too_long = Err(SettleError::TooLong { found, max });
    let verdict = nack(found);
    assert_eq!(shell.settle(queue, lease, verdict), too_long);
    let extend = Verdict::Extend { by: Some(found) };
    assert_eq!(shell.settle(queue, lease, extend), too_long);
    let extend = Verdict::Extend { by: Some(max) };
    assert_eq!(shell.settle(queue, lease, extend), Ok(()));
    let verdict = nack(max);
    assert_eq!(shell.settle(queue, lease, verdict), Ok(()));
}

#[test]
fn only_results_that_are_stored_wait_for_a_round() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let lease = shell.next(consumer).unwrap().lease;
    let extended = shell.report(queue, lease, Verdict::Extend { by: None });
    assert!(shell.answers.contains_key(&extended));
    let released = shell.report(queue, lease, Verdict::Release);
    assert!(shell.answers.contains_key(&released));
    let lease = shell.next(consumer).unwrap().lease;
    // Given back when its life has ended, it is deleted.
    shell.advance(SECOND);
    let released = shell.report(queue, lease, Verdict::Release);
    assert!(!shell.answers.contains_key(&released));
    assert_eq!(shell.stats(queue).totals.expired, 1);
    shell.run();
    assert!(shell.answers.contains_key(&released));
}

#[test]
fn a_read_that_failed_is_tried_again_after_a_second_and_not_before() {
    let (mut shell, queue) = forgetful(Definition::default());
    shell.enqueue_all(queue, vec![message("a", vec![1; 2000]); 2]);
    shell.subscribe(queue, Credit::Limited(1));
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
    let gone = shell.subscribe(queue, Credit::Limited(40));
    shell.poll();
    assert_eq!(shell.deliveries.len(), 20, "the others are being read");
    shell.tell(Command::Unsubscribe { consumer: gone });
    shell.deliveries.clear();
    shell.load();
    shell.subscribe(queue, Credit::Limited(40));
    shell.run();
    let is_stored = |it: &&Delivery| it.fairness_key == key("stored");
    let delivered = shell.deliveries.iter().map(|(_, it)| it);
    let stored = delivered.filter(is_stored).count();
    // Deliveries to the consumer that has gone came to nothing for both, and nobody makes up for it.
    assert!((19..=21).contains(&stored), "{stored} of 40");
}

#[test]
fn bytes_that_were_guessed_before_a_read_are_corrected_after_it() {
    let mut definition = Definition::default();
    definition.charge = Charge::Bytes;
    let (mut shell, queue) = forgetful(definition);
    // The mean of the first key says little of any of its messages.
    shell.enqueue_all(queue, vec![message("uneven", vec![1; 10 << 10]); 60]);
    shell.enqueue_all(queue, vec![message("uneven", ""); 600]);
    shell.enqueue_all(queue, vec![message("even", vec![1; 1 << 10]); 600]);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
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
fn whoever_was_promised_a_message_is_served_before_those_who_came_later() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short);
    let first = shell.subscribe(queue, Credit::Limited(0));
    let lease = shell.next(first).unwrap().lease;
    shell.settle(queue, lease, Verdict::Release).unwrap();
    let ids = [(); 2].map(|()| shell.enqueue(queue, message("a", "fresh")));
    // What it is promised has to be read, and ends meanwhile; the next ones are in memory.
    shell.tell(Command::Credit {
        consumer: first,
        more: 1,
    });
    shell.poll();
    assert_eq!(shell.loads.len(), 1);
    shell.advance(SECOND);
    let second = shell.subscribe(queue, Credit::Limited(1));
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
    let mut definition = Definition::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    let lost = shell.enqueue(queue, message("a", "lost"));
    let next = shell.enqueue(queue, message("a", "next"));
    let consumer = shell.subscribe(queue, Credit::Limited(0));
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
    let (mut shell, queue) = forgetful(Definition::default());
    let batch = (0..200).map(|n| message(&n.to_string(), vec![1; 2000]));
    let batch = batch.collect();
    shell.enqueue_all(queue, batch);
    shell.subscribe(queue, Credit::Unlimited);
    shell.poll();
    assert_eq!(shell.loads.len(), 64);
    shell.run();
    assert_eq!(shell.deliveries.len(), 200);
}

#[test]
fn a_key_whose_messages_wait_for_their_time_beyond_the_limit_holds_up_itself_alone() {
    let (mut shell, queue) = Shell::with_settings(|it| {
        it.memory_budget = 1 << 10;
        it.limits.delayed_per_queue = 1;
    });
    let mut first = message("patient", "first");
    first.delay = 2 * SECOND;
    shell.enqueue(queue, first);
    // Behind a message that has no room in memory, a second one that waits for its time.
    shell.enqueue(queue, message("patient", vec![1; 2000]));
    let ticket = shell.ticket();
    let mut second = message("patient", "second");
    second.delay = 3 * SECOND;
    let mut shell = {
        let mut raised = Settings::default();
        raised.memory_budget = 1 << 10;
        shell.reopen_with(raised);
        shell.tell(Command::Enqueue {
            queue,
            messages: vec![second, message("patient", "third")],
            batch_id: None,
            ticket,
        });
        shell.run();
        let mut lowered = Settings::default();
        lowered.memory_budget = 1 << 10;
        lowered.limits.delayed_per_queue = 1;
        shell.reopen_with(lowered);
        shell
    };
    shell.enqueue(queue, message("other", vec![1; 2000]));
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    let keys = |shell: &Shell| -> Vec<_> {
        let deliveries = shell.deliveries.iter();
        deliveries.map(|(_, it)| it.fairness_key.clone()).collect()
    };
    let mut seen = keys(&shell);
    seen.sort();
    assert_eq!(
        seen,
        [key("other"), key("patient")],
        "the third waits behind the second"
    );
    assert_eq!(shell.stats(queue).delayed, 1, "no more than the limit");
    for _ in 0..4 {
        shell.advance(SECOND);
        shell.run();
    }
    assert_eq!(shell.deliveries.len(), 5);
}

#[test]
fn promises_that_are_broken_are_not_saved_up() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 4 << 10);
    shell.enqueue_all(queue, vec![message("a", vec![1; 1 << 10]); 200]);
    // Its turns are promised while it is alone, to somebody who goes before its messages are read.
    let consumer = shell.subscribe(queue, Credit::Limited(100));
    shell.poll();
    shell.tell(Command::Unsubscribe { consumer });
    shell.deliveries.clear();
    shell.enqueue_all(queue, vec![message("b", ""); 60]);
    shell.subscribe(queue, Credit::Limited(40));
    shell.run();
    let firsts = shell.deliveries.iter().take(40);
    let of_a = firsts.filter(|(_, it)| it.fairness_key == key("a")).count();
    assert!((18..=22).contains(&of_a), "{of_a} of 40");
}

#[test]
fn bytes_that_are_not_confirmed_are_counted_until_they_are() {
    let mut settings = Settings::default();
    // Two messages of five bytes, with what each counts for itself.
    let max = 2 * message("a", "12345").buffered_bytes();
    settings.limits.buffered_bytes = max;
    let mut shell = Shell::new(settings);
    let (one, two) = (
        shell.create("one", Definition::default()),
        shell.create("two", Definition::default()),
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
    // What a deleted queue had collected is given back at once, and what it has under way when that is done.
    shell.delete(two);
    let three = shell.create("three", Definition::default());
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
fn a_message_without_a_time_to_live_has_its_queues() {
    let mut definition = Definition::default();
    definition.message_ttl = Some(SECOND);
    let (mut shell, queue) = Shell::with_queue(definition);
    let mut lasting = message("a", "lasting");
    lasting.ttl = Ttl::Forever;
    shell.enqueue_all(queue, vec![message("a", "short"), lasting]);
    shell.advance(SECOND);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (1, 1));
}

#[test]
fn what_waits_for_its_time_leaves_its_payload_in_the_store() {
    let (mut shell, queue) = queue();
    let mut delayed = message("a", vec![1; 100_000]);
    delayed.delay = SECOND;
    shell.enqueue(queue, delayed);
    assert!(shell.broker.memory_used() < 1000);
}

#[test]
fn what_producers_say_last_of_a_weight_counts_for_the_whole_backlog() {
    let (mut shell, queue) = queue();
    shell.enqueue_all(queue, vec![message("a", ""); 400]);
    shell.enqueue_all(queue, vec![message("b", ""); 400]);
    let mut heavy = message("a", "");
    heavy.weight = NonZeroU32::new(3).unwrap();
    shell.enqueue(queue, heavy);
    shell.subscribe(queue, Credit::Limited(400));
    shell.run();
    let delivered = shell.deliveries.iter();
    let of_a = delivered.filter(|(_, it)| it.fairness_key == key("a"));
    let of_a = of_a.count();
    assert!((298..=302).contains(&of_a), "{of_a} of 400");
}

#[test]
fn a_queue_can_have_less_room_than_the_broker_allows() {
    let mut definition = Definition::default();
    definition.depth_max = Some(3);
    definition.key_depth_max = Some(2);
    let (mut shell, queue) = Shell::with_queue(definition);
    let names = ["a", "a", "a", "b", "b"];
    let results = shell.enqueue_all(queue, names.map(|name| message(name, "")).to_vec());
    assert_eq!(results[2], Err(EnqueueError::KeyFull { max: 2 }));
    assert_eq!(results[4], Err(EnqueueError::QueueFull { max: 3 }));
    assert_eq!(shell.stats(queue).depth(), 3);
}

#[test]
fn a_key_is_promised_no_more_than_it_has_and_may_deliver() {
    for (messages, cap) in [(1, None), (5, NonZeroU32::new(1))] {
        let mut definition = Definition::default();
        definition.key_concurrency = cap;
        let mut settings = Settings::default();
        settings.memory_budget = 4 << 10;
        let mut shell = Shell::new(settings);
        let queue = shell.create("shared", definition);
        shell.enqueue_all(queue, vec![message("stored", vec![1; 8 << 10]); messages]);
        shell.subscribe(queue, Credit::Limited(3));
        shell.poll();
        assert_eq!(shell.loads.len(), 1);
        // The rest of the credit is for those who can use it.
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

#[test]
fn a_key_that_owes_makes_good_for_it_when_it_comes_back() {
    let mut definition = Definition::default();
    definition.charge = Charge::Time;
    definition.visibility_timeout = 1000 * SECOND;
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    shell.enqueue(queue, message("slow", ""));
    let slow = shell.next(consumer).unwrap();
    // It has competition while it takes its time.
    shell.enqueue_all(queue, vec![message("other", ""); 100]);
    shell.advance(100 * SECOND);
    shell.settle(queue, slow.lease, Verdict::Ack).unwrap();
    // New keys take the places of those that have nothing, but not of one that owes.
    let passing = (0..10).map(|n| message(&n.to_string(), ""));
    let passing = passing.collect();
    shell.enqueue_all(queue, passing);
    shell.enqueue_all(queue, vec![message("slow", ""); 100]);
    shell.tell(Command::Credit { consumer, more: 60 });
    shell.run();
    let delivered = shell.deliveries.iter();
    let of_slow = delivered.filter(|(_, it)| it.fairness_key == key("slow"));
    assert_eq!(of_slow.count(), 0);
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
fn the_order_of_a_queue_is_never_changed() {
    let mut definition = Definition::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition.clone());
    shell.enqueue_all(queue, vec![message("a", ""); 3]);
    definition.ordering = Ordering::None;
    shell.update(queue, definition);
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn a_raised_cap_reaches_any_number_of_keys() {
    let mut definition = Definition::default();
    definition.key_concurrency = NonZeroU32::new(1);
    let (mut shell, queue) = Shell::with_queue(definition.clone());
    let batch = (0..5000).map(|n| message(&(n / 2).to_string(), ""));
    let batch = batch.collect();
    shell.enqueue_all(queue, batch);
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2500);
    definition.key_concurrency = None;
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.deliveries.len(), 5000);
}

#[test]
fn whoever_takes_the_place_of_one_that_went_has_one_turn_in_a_round() {
    let (mut shell, queue) = queue();
    let gone = shell.subscribe(queue, Credit::Unlimited);
    shell.subscribe(queue, Credit::Unlimited);
    shell.tell(Command::Unsubscribe { consumer: gone });
    let next = shell.subscribe(queue, Credit::Unlimited);
    shell.enqueue_all(queue, vec![message("a", ""); 30]);
    let of_next = shell.deliveries.iter().filter(|(to, _)| *to == next);
    assert_eq!(of_next.count(), 15);
}

#[test]
fn nothing_of_a_deleted_queue_is_taken_for_the_one_that_gets_its_place() {
    let mut settings = Settings::default();
    settings.limits.consumers = 1;
    let mut shell = Shell::new(settings);
    let old = shell.create("old", Definition::default());
    shell.enqueue(old, message("a", "leased"));
    shell.subscribe(old, Credit::Unlimited);
    shell.run();
    let ticket = shell.send(old, vec![message("a", "under way")]);
    // It is stored, and deleted before the broker hears of it.
    shell.seal();
    let round = shell.round.take().unwrap();
    let fenced = shell.store(&round);
    assert!(fenced.is_empty());
    shell.delete(old);
    assert_eq!(shell.broker.memory_used(), 0);
    let new = shell.create("new", Definition::default());
    shell.deliveries.clear();
    shell.subscribe(new, Credit::Unlimited);
    let committed = Committed::Stored { round, fenced };
    shell.broker.committed(shell.now, committed);
    shell.run();
    let gone = Some(Answer::Refused(Refused::QueueGone));
    assert_eq!(shell.answers.remove(&ticket), gone);
    assert!(shell.deliveries.is_empty());
    let mut reported = Vec::new();
    shell
        .broker
        .changed(|queue, stats| reported.push((queue, stats.depth())));
    assert_eq!(reported, [(new, 0)]);
    // Nor does its lease run out.
    assert_eq!(shell.broker.next_timer(), None);
    shell.delete(new);
    shell.advance(60 * SECOND);
    shell.run();
}

#[test]
fn a_round_that_another_owner_has_fenced_off_is_not_confirmed() {
    let (mut shell, queue) = queue();
    shell.subscribe(queue, Credit::Unlimited);
    let ticket = shell.send(queue, vec![message("a", "")]);
    shell.seal();
    shell.engine.delete_queue(queue).unwrap();
    shell.commit();
    shell.poll();
    let gone = Some(Answer::Refused(Refused::QueueGone));
    assert_eq!(shell.answers.remove(&ticket), gone);
    assert!(shell.deliveries.is_empty());
}

#[test]
fn nobody_is_woken_for_what_has_ended() {
    let (mut shell, queue) = queue();
    shell.enqueue_all(queue, vec![message("a", ""); 2]);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let first = shell.next(consumer).unwrap();
    shell.advance(SECOND);
    let second = shell.next(consumer).unwrap();
    shell.settle(queue, first.lease, Verdict::Ack).unwrap();
    shell.settle(queue, second.lease, Verdict::Ack).unwrap();
    assert_eq!(shell.broker.next_timer(), None);
}

#[test]
fn a_clock_that_goes_back_shortens_nothing() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", ""));
    shell.advance(10 * SECOND);
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    let lease = shell.next(consumer).unwrap().lease;
    let late = shell.now;
    shell.now = fila_store::Timestamp::from_millis(support::START);
    let extended = shell.settle(queue, lease, Verdict::Extend { by: None });
    extended.unwrap();
    shell.now = late.saturating_add(30 * SECOND - MILLISECOND);
    shell.run();
    assert_eq!(shell.stats(queue).leased, 1);
}

#[test]
fn a_consumer_is_lent_no_more_than_the_broker_allows() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.in_flight_per_consumer = 2);
    shell.enqueue_all(queue, vec![message("a", ""); 5]);
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2);
}

#[test]
fn consumers_that_have_left_make_room_for_others() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.consumers = 1);
    let consumer = shell.subscribe(queue, Credit::Unlimited);
    shell.tell(Command::Drain { consumer });
    let consumer = shell.subscribe(queue, Credit::Unlimited);
    shell.tell(Command::Unsubscribe { consumer });
    shell.subscribe(queue, Credit::Unlimited);
}

#[test]
fn a_broker_whose_store_has_failed_has_nothing_more_to_store() {
    let (mut shell, queue) = forgetful(Definition::default());
    shell.enqueue(queue, message("a", "leased"));
    shell.enqueue_all(queue, vec![message("b", vec![1; 2000]); 2]);
    let consumer = shell.subscribe(queue, Credit::Limited(2));
    shell.poll();
    assert_eq!((shell.deliveries.len(), shell.loads.len()), (1, 1));
    shell.send(queue, vec![message("a", "")]);
    shell.seal();
    shell.round = None;
    shell.broker.committed(shell.now, Committed::Failed);
    shell.load();
    assert_eq!(shell.deliveries.len(), 1, "its result could not be stored");
    shell.tell(Command::Unsubscribe { consumer });
    shell.seal();
    assert!(shell.round.is_none());
    assert!(!shell.broker.is_writing(), "nobody waits for it to end");
}

#[test]
fn leases_that_end_together_beyond_a_round_end_in_the_next() {
    const LEASES: usize = 300_000;
    let mut settings = Settings::default();
    settings.limits.in_flight_per_consumer = LEASES as u32;
    settings.limits.buffered_bytes = 1 << 30;
    let mut shell = Shell::new(settings);
    let queue = shell.create("busy", trying_again_at_once());
    shell.enqueue_all(queue, vec![message("a", ""); LEASES]);
    let consumer = shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    assert_eq!(shell.deliveries.len(), LEASES);
    shell.tell(Command::Drain { consumer });
    shell.advance(30 * SECOND);
    shell.poll();
    assert!(shell.broker.is_full());
    shell.seal();
    let first = shell.round.as_ref().unwrap().batches[0].1.len();
    assert!(first < LEASES, "{first}");
    // The rest is collected while these are stored.
    shell.poll();
    assert_eq!(shell.stats(queue).totals.lease_expired, LEASES as u64);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.leased, stats.ready), (0, LEASES as u64));
    let waits = shell
        .broker
        .next_timer()
        .is_none_or(|next| next > shell.now);
    assert!(waits, "there is nothing left to do at once");
}

#[test]
fn what_is_due_waits_without_being_asked_for_while_there_is_no_room_for_it() {
    const LEASES: usize = 600_000;
    let (mut shell, queue) = Shell::with_settings(|it| {
        it.limits.in_flight_per_consumer = LEASES as u32;
        it.limits.buffered_bytes = 1 << 30;
    });
    shell.enqueue_all(queue, vec![message("a", ""); LEASES]);
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    shell.advance(30 * SECOND);
    shell.poll();
    shell.seal();
    shell.poll();
    // Both rounds are full: whoever drives the broker is to wait for the first, not to ask again and again.
    assert!(shell.broker.is_full());
    assert!(
        shell
            .broker
            .next_timer()
            .is_none_or(|next| next > shell.now)
    );
    shell.run();
    assert_eq!(shell.stats(queue).totals.lease_expired, LEASES as u64);
}
