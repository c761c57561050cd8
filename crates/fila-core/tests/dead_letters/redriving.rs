//! Back to work: dead letters that are sent to their queue again.

use std::num::NonZeroU32;

use fila_core::{
    Command, EnqueueError, MovedMessage, RedriveError, RedriveStamp, Refused, Settings, Settlement,
    Verdict,
};
use fila_store::{MessageId, QueueId, StoredMessage};

use crate::support::{Answer, SECOND, Shell, key, message, throttled};
use crate::{bodies, entries, fail_next, pair, stored, trying};

pub(crate) fn redrive(
    shell: &mut Shell,
    (from, to): (QueueId, QueueId),
    stamp: RedriveStamp,
    entries: Vec<StoredMessage>,
) -> (Vec<Result<MessageId, RedriveError>>, RedriveStamp) {
    let ticket = shell.ticket();
    shell.tell(Command::Redrive {
        queue: from,
        to,
        stamp,
        messages: entries.into_iter().map(MovedMessage::from).collect(),
        ticket,
    });
    shell.run();
    match shell.answers.remove(&ticket) {
        Some(Answer::Redriven { results, stamp }) => (results, stamp),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_redriven_message_is_tried_anew_in_its_queue_and_gone_from_the_other() {
    let (mut shell, queue, letters) = pair(trying(1));
    let old = shell.enqueue(queue, message("a", "one"));
    fail_next(&mut shell, queue);
    shell.advance(SECOND);
    let (_, stamp) = redrive(
        &mut shell,
        (letters, queue),
        RedriveStamp::default(),
        vec![],
    );
    let found = entries(&shell, letters);
    let (results, _) = redrive(&mut shell, (letters, queue), stamp, found);
    let new = *results[0].as_ref().unwrap();
    assert_ne!(new, old);
    assert_eq!(stored(&shell, letters), []);
    let (entry, body) = stored(&shell, queue).remove(0);
    assert_eq!((entry.id, body.as_str()), (new, "one"));
    assert_eq!(entry.meta.attempts, 0);
    assert_eq!(entry.meta.enqueued_at, shell.now);
    let stats = shell.stats(letters);
    assert_eq!(
        (stats.depth(), stats.bytes, stats.totals.redriven),
        (0, 0, 1)
    );
    let consumer = shell.subscribe(queue, 0);
    assert_eq!(shell.next(consumer).unwrap().attempt, 1);
}

#[test]
fn a_message_keeps_its_id_and_its_history_on_all_its_ways() {
    let (mut shell, queue, letters) = pair(trying(2));
    let began = shell.now;
    let id = shell.enqueue(queue, message("a", "one"));
    for times in 1..=3 {
        for attempt in 1..=2 {
            shell.advance(SECOND);
            let consumer = shell.subscribe(queue, 0);
            let delivery = shell.next(consumer).unwrap();
            assert_eq!((delivery.message, delivery.attempt), (id, attempt));
            let death = delivery.history.and_then(|history| history.death.clone());
            assert_eq!(death.is_some(), times > 1, "{death:?}");
            let ticket = shell.ticket();
            shell.tell(Command::Settle {
                queue,
                results: vec![Settlement {
                    lease: delivery.lease,
                    message: Some(id),
                    verdict: crate::failed(),
                }],
                by: None,
                ticket,
            });
            shell.run();
            let settled = shell.answers.remove(&ticket);
            assert_eq!(settled, Some(Answer::Settled(vec![Ok(())])));
            shell.unsubscribe(consumer, fila_core::Departure::Closed);
        }
        let reader = shell.subscribe(letters, 0);
        let letter = shell.next(reader).unwrap();
        assert_eq!(letter.message, id);
        let history = letter.history.unwrap();
        assert_eq!(history.first_failed_at, began.saturating_add(SECOND));
        assert_eq!(history.last_failed_at, shell.now);
        let death = history.death.clone().unwrap();
        assert_eq!((death.message, death.attempts), (id, 2 * times));
        assert_eq!((death.enqueued_at, death.died_at), (began, shell.now));
        shell
            .settle(letters, letter.lease, Verdict::Release)
            .unwrap();
        shell.unsubscribe(reader, fila_core::Departure::Closed);
        let (_, stamp) = redrive(
            &mut shell,
            (letters, queue),
            RedriveStamp::default(),
            vec![],
        );
        let found = entries(&shell, letters);
        let (results, _) = redrive(&mut shell, (letters, queue), stamp, found);
        assert!(results[0].is_ok(), "{results:?}");
        // The store has all that is needed.
        shell.restart();
    }
}

#[test]
fn a_redrive_may_say_anew_whose_share_a_message_uses() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    fail_next(&mut shell, queue);
    let (_, stamp) = redrive(
        &mut shell,
        (letters, queue),
        RedriveStamp::default(),
        vec![],
    );
    let mut redriven = MovedMessage::from(entries(&shell, letters).remove(0));
    redriven.meta.schedule.fairness_key = key("vip");
    redriven.meta.schedule.weight = NonZeroU32::new(9).unwrap();
    let ticket = shell.ticket();
    shell.tell(Command::Redrive {
        queue: letters,
        to: queue,
        stamp,
        messages: vec![redriven],
        ticket,
    });
    shell.run();
    assert_eq!(bodies(&shell, queue), ["one"]);
    let keys = shell.keys(queue);
    assert_eq!((&keys[0].fairness_key, keys[0].weight), (&key("vip"), 9));
}

#[test]
fn a_dead_letter_takes_no_tokens_until_it_is_redriven() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.throttle("api", 1.0, 1.0);
    shell.enqueue_all(queue, vec![throttled("a", &["api"]); 2]);
    for _ in 0..2 {
        fail_next(&mut shell, queue);
        shell.advance(SECOND);
    }
    shell.throttle("api", 0.0, 1.0);
    let reader = shell.subscribe(letters, 0);
    for _ in 0..2 {
        let delivery = shell.next(reader).expect("nothing stands in its way");
        let again = Verdict::Release;
        shell.settle(letters, delivery.lease, again).unwrap();
    }
    let found = entries(&shell, letters);
    let (results, _) = redrive(&mut shell, (letters, queue), RedriveStamp::default(), found);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let consumer = shell.subscribe(queue, 2);
    shell.run();
    assert!(shell.deliveries.is_empty());
    assert_eq!(shell.stats(queue).throttled, 2);
    shell.throttle("api", 1.0, 1.0);
    shell.advance(SECOND);
    assert_eq!(shell.next(consumer).map(|it| it.attempt), Some(1));
    assert_eq!(shell.stats(queue).throttled, 1);
}

/// Returns a shell with three dead letters that are only in the store. The first is being moved back.
fn one_of_three_on_its_way() -> (Shell, QueueId, QueueId) {
    let (mut shell, queue, letters) = pair(trying(1));
    for body in ["one", "two", "three"] {
        shell.enqueue(queue, message("a", body));
        fail_next(&mut shell, queue);
    }
    shell.restart();
    let ticket = shell.ticket();
    let first = entries(&shell, letters).remove(0);
    shell.tell(Command::Redrive {
        queue: letters,
        to: queue,
        stamp: RedriveStamp::default(),
        messages: vec![MovedMessage::from(first)],
        ticket,
    });
    (shell, queue, letters)
}

#[test]
fn nothing_is_read_while_one_of_those_in_the_store_is_on_its_way_back() {
    let (mut shell, queue, letters) = one_of_three_on_its_way();
    shell.subscribe(letters, u32::MAX);
    shell.poll();
    assert!(shell.loads.is_empty(), "it might be found, too");
    shell.run();
    let read: Vec<_> = shell.deliveries.drain(..).map(|it| it.1).collect();
    let read: Vec<_> = read.iter().map(|it| &it.payload.body()[..]).collect();
    assert_eq!(read, [&b"two"[..], b"three"]);
    assert_eq!(bodies(&shell, queue), ["one"]);
}

#[test]
fn a_purge_right_behind_a_redrive_takes_the_others() {
    let (mut shell, queue, letters) = one_of_three_on_its_way();
    let ticket = shell.purge(letters);
    shell.run();
    assert_eq!(shell.answers.remove(&ticket), Some(Answer::Purged(2)));
    assert_eq!(bodies(&shell, queue), ["one"]);
    assert!(bodies(&shell, letters).is_empty());
    // And it is as good as new.
    shell.enqueue(letters, message("a", "new"));
    shell.subscribe(letters, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn a_redrive_skips_leased_and_deleted_messages_and_those_of_an_older_scan() {
    let (mut shell, queue, letters) = pair(trying(1));
    for body in ["one", "two", "three"] {
        shell.enqueue(queue, message("a", body));
        fail_next(&mut shell, queue);
    }
    let way = (letters, queue);
    let found = entries(&shell, letters);
    // A redrive with another stamp takes nothing out of the store.
    let (_, stamp) = redrive(&mut shell, way, RedriveStamp::default(), vec![]);
    let (first, _) = redrive(&mut shell, way, stamp, vec![found[2].clone()]);
    assert!(first[0].is_ok());
    let (results, stamp) = redrive(&mut shell, way, stamp, found.clone());
    assert_eq!(results, [const { Err(RedriveError::Stale) }; 3]);
    // One that comes twice is moved once.
    let twice = vec![found[0].clone(), found[0].clone()];
    let (results, stamp) = redrive(&mut shell, way, stamp, twice);
    assert!(results[0].is_ok());
    assert_eq!(results[1], Err(RedriveError::Stale));
    let consumer = shell.subscribe(letters, 0);
    shell.next(consumer).unwrap();
    let (results, _) = redrive(&mut shell, way, stamp, found);
    let expected = [RedriveError::Gone, RedriveError::Leased, RedriveError::Gone];
    assert_eq!(results, expected.map(Err));
    assert_eq!(shell.stats(queue).depth() + shell.stats(letters).depth(), 3);
}

#[test]
fn what_the_queue_does_not_take_stays_a_dead_letter() {
    let mut definition = trying(1);
    definition.depth_max = Some(1);
    let (mut shell, queue, letters) = pair(definition);
    for body in ["one", "two"] {
        shell.enqueue(queue, message("a", body));
        fail_next(&mut shell, queue);
    }
    let way = (letters, queue);
    let (_, stamp) = redrive(&mut shell, way, RedriveStamp::default(), vec![]);
    let found = entries(&shell, letters);
    let (results, _) = redrive(&mut shell, way, stamp, found);
    assert!(results[0].is_ok());
    let full = EnqueueError::QueueFull { max: 1 };
    assert_eq!(results[1], Err(RedriveError::Refused(full)));
    assert_eq!(bodies(&shell, letters), ["two"]);
}

#[test]
fn a_redrive_needs_two_queues() {
    let (mut shell, queue, letters) = pair(trying(1));
    let nowhere = QueueId::new(99);
    for (from, to) in [(letters, nowhere), (nowhere, queue), (letters, letters)] {
        let ticket = shell.ticket();
        shell.tell(Command::Redrive {
            queue: from,
            to,
            stamp: RedriveStamp::default(),
            messages: vec![],
            ticket,
        });
        let refused = Answer::Refused(Refused::QueueGone);
        assert_eq!(shell.answers.remove(&ticket), Some(refused));
    }
}

#[test]
fn a_dead_letter_that_is_read_while_it_is_redriven_is_left_and_not_doubled() {
    let mut settings = Settings::default();
    settings.memory_budget = 1 << 10;
    let mut shell = Shell::new(settings);
    let (queue, letters) = shell.create_with_dead_letters("orders", trying(1));
    shell.enqueue_all(queue, vec![message("a", "one"), message("a", "two")]);
    fail_next(&mut shell, queue);
    fail_next(&mut shell, queue);
    let way = (letters, queue);
    let (_, stamp) = redrive(&mut shell, way, RedriveStamp::default(), vec![]);
    let found = entries(&shell, letters);
    shell.subscribe(letters, 1);
    shell.poll();
    assert_eq!(shell.loads.len(), 1, "the first is being read");
    let ticket = shell.ticket();
    shell.tell(Command::Redrive {
        queue: letters,
        to: queue,
        stamp,
        messages: found.iter().cloned().map(MovedMessage::from).collect(),
        ticket,
    });
    shell.run();
    let Some(Answer::Redriven { results, .. }) = shell.answers.remove(&ticket) else {
        panic!("no answer");
    };
    assert_eq!(results, [const { Err(RedriveError::Busy) }; 2]);
    assert_eq!(shell.deliveries.len(), 1);
    assert_eq!(shell.stats(letters).depth(), 2);
}

#[test]
fn a_message_between_two_queues_counts_in_exactly_one_of_them_at_every_step() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, 0);
    let lease = shell.next(consumer).unwrap().lease;
    let counted = |shell: &mut Shell| {
        let [here, there] = [queue, letters].map(|queue| shell.stats(queue));
        assert_eq!(here.bytes + there.bytes, 3);
        let keys = [queue, letters].map(|queue| shell.keys(queue).len() as u64);
        assert_eq!(keys, [here.depth(), there.depth()]);
        (here.depth(), there.depth())
    };
    let store = |shell: &mut Shell, expected| {
        assert_eq!(counted(shell), expected);
        shell.poll();
        assert_eq!(counted(shell), expected);
        shell.seal();
        assert_eq!(counted(shell), expected);
        shell.commit();
        assert_eq!(counted(shell), expected);
        shell.run();
    };
    assert_eq!(counted(&mut shell), (1, 0));
    shell.report(queue, lease, crate::failed());
    store(&mut shell, (0, 1));
    let ticket = shell.ticket();
    let messages = entries(&shell, letters).into_iter();
    shell.tell(Command::Redrive {
        queue: letters,
        to: queue,
        stamp: RedriveStamp::default(),
        messages: messages.map(MovedMessage::from).collect(),
        ticket,
    });
    store(&mut shell, (1, 0));
}
