//! A message dies: who decides that, what is known of it afterwards, and when the move has happened.

use std::num::NonZeroU32;

use fila_core::{Departure, Judgement, Ordering, QueueSettings, RECONNECT_GRACE, Verdict};
use fila_store::{DeathReason, Payload, Shard};

use crate::support::{Answer, SECOND, key, message};
use crate::{bodies, entries, fail_next, failed, pair, stored, trying};

#[test]
fn the_last_attempt_that_fails_makes_a_dead_letter_with_all_that_is_known() {
    let (mut shell, queue, letters) = pair(trying(3));
    let began = shell.now;
    let mut sent = message("acme", "broken");
    sent.schedule.weight = NonZeroU32::new(4).unwrap();
    sent.payload = Payload::new(vec![("kind".into(), "test".into())], "broken").unwrap();
    let id = shell.enqueue(queue, sent);
    for attempt in 1..=3 {
        assert_eq!(shell.stats(letters).depth(), 0, "before attempt {attempt}");
        shell.advance(SECOND);
        fail_next(&mut shell, queue);
    }
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.bytes, stats.active_keys), (0, 0, 0));
    assert_eq!((stats.totals.dead_lettered, stats.totals.retried), (1, 2));
    assert_eq!(stored(&shell, queue), []);
    let (letter, body) = stored(&shell, letters).remove(0);
    assert_eq!(body, "broken");
    assert_eq!(letter.meta.schedule.fairness_key, key("acme"));
    assert_eq!(
        (letter.meta.schedule.weight.get(), letter.meta.attempts),
        (4, 0)
    );
    assert_eq!(letter.meta.enqueued_at, shell.now);
    let history = letter.meta.history.unwrap();
    assert_eq!(&*history.last_error, "no");
    assert_eq!(history.first_failed_at, began.saturating_add(SECOND));
    assert_eq!(history.last_failed_at, shell.now);
    let death = history.death.clone().unwrap();
    assert_eq!(death.reason, DeathReason::AttemptsExhausted);
    assert_eq!((death.queue.as_str(), death.message), ("orders", id));
    assert_eq!((death.attempts, death.died_at), (3, shell.now));
    assert_eq!(death.enqueued_at, began);
    // Its consumer sees that, too.
    let consumer = shell.subscribe(letters, 0);
    let delivery = shell.next(consumer).unwrap();
    assert_eq!(delivery.attempt, 1);
    assert_eq!(&**delivery.payload.body(), b"broken");
    assert_eq!(delivery.history.unwrap().death, Some(death));
}

#[test]
fn a_judge_makes_a_dead_letter_when_he_says_so() {
    let mut definition = trying(10);
    definition.failure_hook = true;
    let (mut shell, queue, letters) = pair(definition);
    shell.enqueue(queue, message("a", "one"));
    fail_next(&mut shell, queue);
    assert_eq!(shell.stats(letters).depth(), 0);
    let token = shell.failures.pop_front().unwrap().token;
    let dies = Judgement::DeadLetter {
        reason: DeathReason::Hook,
    };
    shell.judge(queue, token, dies);
    shell.run();
    assert_eq!(bodies(&shell, letters), ["one"]);
    let letter = entries(&shell, letters).remove(0);
    let death = letter.meta.history.unwrap().death.clone().unwrap();
    assert_eq!((death.reason, death.attempts), (DeathReason::Hook, 1));
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn leases_that_run_out_and_consumers_that_are_lost_use_attempts_up_as_well() {
    let (mut shell, queue, letters) = pair(trying(2));
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, u32::MAX);
    shell.run();
    shell.advance(30 * SECOND);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2, "once more after the first lease");
    let lease = shell.deliveries[1].1.lease;
    shell.settle(queue, lease, Verdict::Begin).unwrap();
    shell.unsubscribe(consumer, Departure::Lost);
    shell.advance(RECONNECT_GRACE);
    shell.run();
    assert_eq!(bodies(&shell, letters), ["one"]);
    let history = entries(&shell, letters).remove(0).meta.history.unwrap();
    assert_eq!(&*history.last_error, "consumer disconnected");
}

#[test]
fn the_answer_to_the_last_nack_comes_when_the_move_is_stored() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    shell.subscribe(queue, 1);
    shell.subscribe(letters, 1);
    shell.run();
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    let ticket = shell.report(queue, delivery.lease, failed());
    shell.poll();
    assert_eq!(shell.answers.get(&ticket), None);
    shell.seal();
    shell.poll();
    assert!(shell.loads.is_empty() && shell.deliveries.is_empty());
    let round = shell.round.as_ref().unwrap();
    assert_eq!(round.batches.len(), 2, "both queues in one round");
    shell.commit();
    assert!(shell.answers.contains_key(&ticket));
    assert_eq!(shell.stats(letters).ready, 1);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1, "no consumer gets it before");
}

#[test]
fn a_crash_in_the_middle_of_a_move_leaves_the_message_in_one_queue() {
    for is_stored in [false, true] {
        let (mut shell, queue, letters) = pair(trying(1));
        shell.enqueue(queue, message("a", "one"));
        shell.subscribe(queue, 1);
        shell.run();
        let (_, delivery) = shell.deliveries.pop_front().unwrap();
        shell.report(queue, delivery.lease, failed());
        shell.poll();
        shell.seal();
        if is_stored {
            let round = shell.round.take().unwrap();
            shell.store(&round);
        }
        shell.restart();
        let (here, there) = if is_stored { (0, 1) } else { (1, 0) };
        assert_eq!(shell.stats(queue).depth(), here);
        assert_eq!(shell.stats(letters).depth(), there);
    }
}

#[test]
fn in_a_strict_line_the_next_one_waits_until_the_move_is_stored() {
    let mut definition = trying(1);
    definition.ordering = Ordering::Key;
    let (mut shell, queue, _) = pair(definition);
    shell.enqueue_all(queue, vec![message("a", "one"), message("a", "two")]);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    shell.report(queue, delivery.lease, failed());
    shell.poll();
    shell.seal();
    shell.poll();
    assert!(shell.deliveries.is_empty());
    shell.commit();
    shell.run();
    assert_eq!(&**shell.deliveries[0].1.payload.body(), b"two");
}

#[test]
fn a_dead_letter_does_not_expire_unless_its_queue_says_so() {
    let mut definition = trying(1);
    definition.message_ttl = Some(5 * SECOND);
    let (mut shell, queue, letters) = pair(definition);
    shell.enqueue(queue, message("a", "one"));
    fail_next(&mut shell, queue);
    assert_eq!(entries(&shell, letters)[0].meta.expires_at, None);
    let mut forgetful = QueueSettings::default();
    forgetful.message_ttl = Some(3 * SECOND);
    shell.update(letters, forgetful);
    shell.enqueue(queue, message("b", "two"));
    fail_next(&mut shell, queue);
    let end = shell.now.saturating_add(3 * SECOND);
    assert_eq!(entries(&shell, letters)[1].meta.expires_at, Some(end));
}

#[test]
fn a_dead_letter_that_fails_is_tried_for_ever() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    fail_next(&mut shell, queue);
    for _ in 0..30 {
        fail_next(&mut shell, letters);
        shell.advance(600 * SECOND);
        shell.run();
    }
    assert_eq!(shell.stats(letters).depth(), 1);
    let history = entries(&shell, letters).remove(0).meta.history.unwrap();
    let death = history.death.as_ref().expect("it stays what it was");
    assert_eq!(death.attempts, 1);
}

#[test]
fn purges_take_what_is_in_their_queue_and_nothing_that_has_left_it() {
    for purged in [0, 1] {
        let (mut shell, queue, letters) = pair(trying(1));
        shell.enqueue_all(queue, vec![message("a", "one"), message("a", "two")]);
        shell.subscribe(queue, 1);
        shell.run();
        let (_, delivery) = shell.deliveries.pop_front().unwrap();
        shell.report(queue, delivery.lease, failed());
        // In the same round as the move.
        let ticket = shell.purge([queue, letters][purged]);
        shell.run();
        assert_eq!(shell.answers.remove(&ticket), Some(Answer::Purged(1)));
        let (here, there) = (bodies(&shell, queue), bodies(&shell, letters));
        match purged {
            0 => assert_eq!((here.len(), there), (0, vec!["one".to_owned()])),
            _ => assert_eq!((here, there.len()), (vec!["two".to_owned()], 0)),
        }
    }
}

#[test]
fn a_payload_that_is_lost_is_reported_and_the_rest_goes_on() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    shell.enqueue(queue, message("b", "two"));
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let leases: Vec<_> = shell.deliveries.drain(..).map(|it| it.1.lease).collect();
    // The test deletes a message from the store without the broker.
    let entry = entries(&shell, queue).remove(0);
    let mut batch = fila_store::Batch::new();
    batch.delete(entry.locator());
    shell.shards[&queue].commit(&batch).unwrap();
    for lease in leases {
        shell.settle(queue, lease, failed()).unwrap();
    }
    shell.damaged = Some(Vec::new());
    shell.subscribe(letters, u32::MAX);
    shell.run();
    assert_eq!(shell.damaged.as_ref().unwrap().len(), 1);
    assert_eq!(shell.deliveries.len(), 1);
    assert_eq!(&**shell.deliveries[0].1.payload.body(), b"two");
    assert_eq!(shell.stats(letters).totals.damaged, 1);
}
