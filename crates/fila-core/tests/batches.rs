//! Batches that are sent again, one sentence each.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::time::Duration;

use fila_core::{
    BatchId, EnqueueError, Enqueued, NewMessage, ProducerId, QueueSettings, Refused, Sequence,
    Settings, Verdict,
};
use fila_store::{DeduplicationId, MessageId};

use support::{Answer, MILLISECOND, SECOND, Shell, message, queue};

fn id(producer: u8, sequence: u64) -> BatchId {
    BatchId::new(ProducerId::new([producer; 16]), Sequence::new(sequence))
}

fn answered_below(below: u64, id: BatchId) -> BatchId {
    BatchId {
        answered_below: Sequence::new(below),
        ..id
    }
}

fn messages(count: usize) -> Vec<NewMessage> {
    let numbered = |number: usize| message(["a", "b"][number % 2], number.to_string());
    (0..count).map(numbered).collect()
}

fn named(name: &'static str) -> NewMessage {
    let mut message = message("a", name);
    message.deduplication_id = Some(DeduplicationId::new(name).unwrap());
    message
}

fn results(answer: Answer) -> Vec<Result<Enqueued, EnqueueError>> {
    match answer {
        Answer::Enqueued(results) => results,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn stored(answer: Answer) -> Vec<MessageId> {
    let ids = results(answer).into_iter().map(|result| match result {
        Ok(Enqueued::Stored(id)) => id,
        other => panic!("{other:?}"),
    });
    ids.collect()
}

#[track_caller]
fn duplicates(answer: Answer) -> Vec<MessageId> {
    let ids = results(answer).into_iter().map(|result| match result {
        Ok(Enqueued::Duplicate(id)) => id,
        other => panic!("{other:?}"),
    });
    ids.collect()
}

#[test]
fn a_batch_that_is_sent_again_is_stored_once_also_after_a_restart() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "before"));
    let first = stored(shell.enqueue_batch(queue, id(1, 7), messages(5)));
    for _ in 0..2 {
        let again = shell.enqueue_batch(queue, id(1, 7), messages(5));
        assert_eq!(duplicates(again), first);
        let stats = shell.stats(queue);
        assert_eq!((stats.depth(), stats.totals.deduplicated), (6, 5));
        shell.restart();
    }
    let again = shell.enqueue_batch(queue, id(1, 7), messages(5));
    assert_eq!(duplicates(again), first);
}

#[test]
fn batches_of_other_numbers_producers_and_queues_are_others() {
    let (mut shell, queue) = queue();
    let other = shell.create("other", QueueSettings::default());
    for (queue, id) in [
        (queue, id(1, u64::MAX)),
        (queue, id(1, 0)),
        (queue, id(2, 0)),
        (other, id(1, 0)),
    ] {
        stored(shell.enqueue_batch(queue, id, messages(2)));
    }
    assert_eq!(shell.stats(queue).depth(), 6);
}

#[test]
fn a_batch_takes_one_row_however_many_messages_it_has() {
    let (mut shell, queue) = queue();
    shell.send_as(queue, Some(id(1, 1)), messages(100));
    shell.seal();
    assert_eq!(shell.round.as_ref().unwrap().batches[0].1.len(), 101);
}

#[test]
fn a_batch_that_is_sent_again_is_not_confirmed_before_the_first_is_durable() {
    let (mut shell, queue) = queue();
    // The second comes in the round of the first, the third while that is under way.
    shell.send_as(queue, Some(id(1, 1)), messages(3));
    shell.send_as(queue, Some(id(1, 1)), messages(3));
    shell.seal();
    shell.send_as(queue, Some(id(1, 1)), messages(3));
    shell.poll();
    shell.seal_further();
    assert!(shell.further.is_empty(), "it has nothing to store");
    assert!(shell.answers.is_empty(), "a crash now loses all");
    shell.commit();
    assert_eq!(shell.answers.len(), 3);
    assert_eq!(shell.stats(queue).depth(), 3);
}

#[test]
fn a_batch_is_lost_as_a_whole_or_stored_with_its_name() {
    let (mut shell, queue) = queue();
    shell.send_as(queue, Some(id(1, 1)), messages(3));
    shell.seal();
    shell.restart();
    let first = stored(shell.enqueue_batch(queue, id(1, 1), messages(3)));
    shell.send_as(queue, Some(id(1, 2)), messages(3));
    shell.seal();
    let round = shell.round.take().unwrap();
    shell.store(&round);
    shell.restart();
    let again = duplicates(shell.enqueue_batch(queue, id(1, 2), messages(3)));
    assert!(again[0] > first[2]);
    assert_eq!(shell.stats(queue).depth(), 6);
}

#[test]
fn what_was_refused_of_a_batch_is_tried_again_and_the_rest_is_not_stored_again() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.depth_per_queue = 2);
    let first = results(shell.enqueue_batch(queue, id(1, 1), messages(3)));
    let [
        Ok(Enqueued::Stored(one)),
        Ok(Enqueued::Stored(two)),
        Err(EnqueueError::QueueFull { max: 2 }),
    ] = first[..]
    else {
        panic!("{first:?}");
    };
    shell.restart();
    let again = results(shell.enqueue_batch(queue, id(1, 1), messages(3)));
    let expected = [
        Ok(Enqueued::Duplicate(one)),
        Ok(Enqueued::Duplicate(two)),
        Err(EnqueueError::QueueFull { max: 2 }),
    ];
    assert_eq!(again, expected);
    // Room for one more, and it is the third that takes it.
    let consumer = shell.subscribe(queue, 0);
    let delivery = shell.next(consumer).unwrap();
    shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    let again = results(shell.enqueue_batch(queue, id(1, 1), messages(3)));
    let [_, _, Ok(Enqueued::Stored(three))] = again[..] else {
        panic!("{again:?}");
    };
    shell.restart();
    let again = shell.enqueue_batch(queue, id(1, 1), messages(3));
    assert_eq!(duplicates(again), [one, two, three]);
    assert_eq!(shell.stats(queue).depth(), 2);
}

#[test]
fn messages_of_a_batch_keep_their_own_deduplication_ids() {
    let (mut shell, queue) = queue();
    let once = shell.enqueue(queue, named("once"));
    let batch = || vec![named("new"), named("once"), message("a", "plain")];
    let first = results(shell.enqueue_batch(queue, id(1, 1), batch()));
    let [
        Ok(Enqueued::Stored(new)),
        Ok(Enqueued::Duplicate(duplicate)),
        Ok(Enqueued::Stored(plain)),
    ] = first[..]
    else {
        panic!("{first:?}");
    };
    assert_eq!(duplicate, once);
    let alone = shell.enqueue_all(queue, vec![named("new")]);
    assert_eq!(alone, [Ok(Enqueued::Duplicate(new))]);
    shell.restart();
    let again = shell.enqueue_batch(queue, id(1, 1), batch());
    assert_eq!(duplicates(again), [new, once, plain]);
    assert_eq!(shell.stats(queue).depth(), 3);
}

#[test]
fn a_batch_that_comes_again_with_more_or_fewer_messages_is_refused_and_stores_nothing() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.depth_per_queue = 5);
    stored(shell.enqueue_batch(queue, id(1, 1), messages(3)));
    results(shell.enqueue_batch(queue, id(1, 2), messages(3)));
    let refused = |before, now| Answer::Refused(Refused::BatchChanged { before, now });
    for _ in 0..2 {
        for sequence in [1, 2] {
            for now in [2, 4] {
                let answer = shell.enqueue_batch(queue, id(1, sequence), messages(now));
                assert_eq!(answer, refused(3, now));
            }
        }
        assert_eq!(shell.stats(queue).depth(), 5);
        shell.restart();
    }
}

#[test]
fn a_producer_that_says_what_is_answered_can_go_on_for_ever() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.deduplication_ids_per_queue = 5);
    for sequence in 0..100_u64 {
        // Two are under way, besides the new one.
        let id = answered_below(sequence.saturating_sub(2), id(1, sequence));
        stored(shell.enqueue_batch(queue, id, messages(2)));
    }
    // A restart finds the rows of all, and keeps those that may be sent again.
    shell.restart();
    for sequence in 97..100 {
        duplicates(shell.enqueue_batch(queue, id(1, sequence), messages(2)));
    }
    let next = answered_below(99, id(1, 100));
    stored(shell.enqueue_batch(queue, next, messages(2)));
}

#[test]
fn a_late_copy_of_an_answered_batch_is_refused_and_not_stored() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.depth_per_queue = 4);
    stored(shell.enqueue_batch(queue, id(1, 5), messages(2)));
    stored(shell.enqueue_batch(queue, answered_below(6, id(1, 6)), messages(2)));
    for _ in 0..2 {
        let late = shell.enqueue_batch(queue, id(1, 5), messages(2));
        let sequence = Sequence::new(5);
        let answered_below = Sequence::new(6);
        let refused = Refused::BatchAnswered {
            sequence,
            answered_below,
        };
        assert_eq!(late, Answer::Refused(refused));
        let stats = shell.stats(queue);
        assert_eq!((stats.depth(), stats.totals.refused), (4, 2));
        shell.restart();
    }
    // `answered_below` counts even if nothing of the batch that carried it was stored.
    let refused = shell.enqueue_batch(queue, answered_below(7, id(1, 7)), messages(1));
    let max = 4;
    assert_eq!(results(refused), [Err(EnqueueError::QueueFull { max })]);
    let late = shell.enqueue_batch(queue, id(1, 6), messages(2));
    assert!(matches!(
        late,
        Answer::Refused(Refused::BatchAnswered { .. })
    ));
    // It makes no sense to say so of the batch itself.
    let odd = shell.enqueue_batch(queue, answered_below(2, id(2, 1)), messages(1));
    assert!(matches!(
        odd,
        Answer::Refused(Refused::BatchAnswered { .. })
    ));
}

#[test]
fn a_batch_counts_for_as_long_as_it_might_be_sent_again_but_not_beyond_the_window() {
    let (mut shell, queue) = queue();
    let for_seconds = |seconds: u32, id: BatchId| BatchId {
        remember_max: Some(seconds * SECOND),
        ..id
    };
    let ids = [
        (id(1, 1), 300),
        (for_seconds(7, id(1, 2)), 7),
        (for_seconds(301, id(1, 3)), 300),
    ];
    for (id, seconds) in ids {
        let begin = shell.now;
        let first = stored(shell.enqueue_batch(queue, id, messages(2)));
        shell.advance(seconds * SECOND - MILLISECOND);
        let again = shell.enqueue_batch(queue, id, messages(2));
        assert_eq!(duplicates(again), first);
        shell.restart();
        let again = shell.enqueue_batch(queue, id, messages(2));
        assert_eq!(duplicates(again), first);
        shell.advance(MILLISECOND);
        stored(shell.enqueue_batch(queue, id, messages(2)));
        assert_eq!(shell.now, begin.saturating_add(seconds * SECOND));
    }
}

#[test]
fn a_queue_without_a_window_remembers_nothing() {
    let mut definition = QueueSettings::default();
    definition.deduplication_window = Duration::ZERO;
    let mut settings = Settings::default();
    settings.limits.deduplication_ids_per_queue = 0;
    let mut shell = Shell::new(settings);
    let queue = shell.create("forgetful", definition);
    for _ in 0..2 {
        stored(shell.enqueue_batch(queue, id(1, 1), messages(2)));
    }
    shell.send_as(queue, Some(id(1, 2)), messages(2));
    shell.seal();
    assert_eq!(shell.round.as_ref().unwrap().batches[0].1.len(), 2);
}

#[test]
fn a_purge_forgets_batches_now_and_after_a_restart() {
    let purged = || {
        let (mut shell, queue) = queue();
        stored(shell.enqueue_batch(queue, id(1, 1), messages(2)));
        stored(shell.enqueue_batch(queue, answered_below(2, id(1, 2)), messages(2)));
        shell.send_as(queue, Some(id(1, 3)), messages(2));
        shell.purge(queue);
        shell.run();
        (shell, queue)
    };
    let is_forgotten = |mut shell: Shell, queue| {
        for sequence in [1, 2, 3] {
            stored(shell.enqueue_batch(queue, id(1, sequence), messages(2)));
        }
        assert_eq!(shell.stats(queue).depth(), 6);
    };
    let (shell, queue) = purged();
    is_forgotten(shell, queue);
    let (mut shell, queue) = purged();
    shell.restart();
    is_forgotten(shell, queue);
}

#[test]
fn batches_and_deduplication_ids_share_a_limit() {
    // A producer, its batch, and an id of a message.
    let max = 3;
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.deduplication_ids_per_queue = max);
    let short = BatchId {
        remember_max: Some(SECOND),
        ..id(1, 1)
    };
    let first = stored(shell.enqueue_batch(queue, short, messages(2)));
    shell.enqueue(queue, named("one"));
    let full = Err(EnqueueError::TooManyDeduplicationIds { max });
    let refused = shell.enqueue_batch(queue, id(1, 2), messages(2));
    assert_eq!(results(refused), [full.clone(), full.clone()]);
    assert_eq!(shell.enqueue_all(queue, vec![named("two")]), [full]);
    assert_eq!(shell.stats(queue).totals.refused, 3);
    // The queue still knows the remembered batches, and a batch without an id needs no room.
    let again = shell.enqueue_batch(queue, short, messages(2));
    assert_eq!(duplicates(again), first);
    shell.enqueue(queue, message("a", "plain"));
    shell.advance(SECOND);
    shell.enqueue(queue, named("two"));
    stored(shell.enqueue_batch(queue, id(1, 2), messages(2)));
}
