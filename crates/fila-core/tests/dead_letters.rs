//! Messages that are not tried any more: they are in one queue or the other, at any time.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Answer, Command, Credit, Definition, EnqueueError, Judgement, Ordering, RedriveError,
    RedriveStamp, Redriven, Refused, Settings, Verdict,
};
use fila_store::{
    Cursor, DeathReason, Entry, ErrorText, Loaded, MessageId, Payload, QueueId, Shard,
};

use support::{SECOND, Shell, key, message, throttled, trying_again_at_once};

fn failed() -> Verdict {
    Verdict::Nack {
        delay: None,
        error: Some(ErrorText::new("no")),
    }
}

fn trying(attempts: u32) -> Definition {
    let mut definition = trying_again_at_once();
    definition.retry.attempts_max = NonZeroU32::new(attempts);
    definition
}

fn pair(definition: Definition) -> (Shell, QueueId, QueueId) {
    let mut shell = Shell::new(Settings::default());
    let (queue, letters) = shell.create_with_dead_letters("orders", definition);
    (shell, queue, letters)
}

/// Lets the next delivery fail.
fn fail_next(shell: &mut Shell, queue: QueueId) {
    let consumer = shell.subscribe(queue, Credit::Limited(1));
    shell.run();
    let (_, delivery) = shell.deliveries.pop_front().expect("something to fail");
    shell.settle(queue, delivery.lease, failed()).unwrap();
    shell.tell(Command::Unsubscribe { consumer });
    shell.run();
}

/// Returns everything that is stored of a queue, with what it carries.
fn stored(shell: &Shell, queue: QueueId) -> Vec<(Entry, String)> {
    let shard = &shell.shards[&queue];
    let entries = shard.scan(&Cursor::start(), usize::MAX).unwrap().items;
    let body = |entry: &Entry| match shard.load(&[entry.locator()]).unwrap().remove(0) {
        Loaded::Found(payload) => String::from_utf8(payload.body().to_vec()).unwrap(),
        lost => panic!("{lost:?}"),
    };
    entries
        .into_iter()
        .map(|it| (it.clone(), body(&it)))
        .collect()
}

fn bodies(shell: &Shell, queue: QueueId) -> Vec<String> {
    stored(shell, queue).into_iter().map(|it| it.1).collect()
}

fn redrive(
    shell: &mut Shell,
    (from, to): (QueueId, QueueId),
    stamp: RedriveStamp,
    entries: Vec<Entry>,
) -> (Vec<Result<MessageId, RedriveError>>, RedriveStamp) {
    let ticket = shell.ticket();
    shell.tell(Command::Redrive {
        queue: from,
        to,
        stamp,
        messages: entries.into_iter().map(Redriven::new).collect(),
        ticket,
    });
    shell.run();
    match shell.answers.remove(&ticket) {
        Some(Answer::Redriven { results, stamp }) => (results, stamp),
        other => panic!("{other:?}"),
    }
}

fn entries(shell: &Shell, queue: QueueId) -> Vec<Entry> {
    stored(shell, queue).into_iter().map(|it| it.0).collect()
}

#[test]
fn the_last_attempt_that_fails_makes_a_dead_letter_with_all_that_is_known() {
    let (mut shell, queue, letters) = pair(trying(3));
    let began = shell.now;
    let mut sent = message("acme", "broken");
    sent.weight = NonZeroU32::new(4).unwrap();
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
    assert_eq!(letter.meta.fairness_key, key("acme"));
    assert_eq!((letter.meta.weight.get(), letter.meta.attempts), (4, 0));
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
    // Whoever consumes it sees that, too.
    let consumer = shell.subscribe(letters, Credit::Limited(0));
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
    shell.tell(Command::Judge {
        queue,
        token,
        judgement: Judgement::DeadLetter {
            reason: DeathReason::Hook,
        },
    });
    shell.run();
    assert_eq!(bodies(&shell, letters), ["one"]);
    let letter = entries(&shell, letters).remove(0);
    let death = letter.meta.history.unwrap().death.clone().unwrap();
    assert_eq!((death.reason, death.attempts), (DeathReason::Hook, 1));
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn leases_that_run_out_and_consumers_that_go_use_attempts_up_as_well() {
    let (mut shell, queue, letters) = pair(trying(2));
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    shell.advance(30 * SECOND);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2, "once more after the first lease");
    shell.tell(Command::Unsubscribe { consumer });
    shell.run();
    assert_eq!(bodies(&shell, letters), ["one"]);
    let history = entries(&shell, letters).remove(0).meta.history.unwrap();
    assert_eq!(&*history.last_error, "consumer disconnected");
}

#[test]
fn the_answer_to_the_last_nack_comes_when_the_move_is_stored() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    shell.subscribe(queue, Credit::Limited(1));
    shell.run();
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    let ticket = shell.report(queue, delivery.lease, failed());
    shell.poll();
    assert_eq!(shell.answers.get(&ticket), None);
    assert_eq!(shell.stats(letters).ready, 0, "nobody gets it before");
    shell.seal();
    let round = shell.round.as_ref().unwrap();
    assert_eq!(round.batches.len(), 2, "both queues in one round");
    shell.commit();
    assert!(shell.answers.contains_key(&ticket));
    assert_eq!(shell.stats(letters).ready, 1);
}

#[test]
fn a_crash_in_the_middle_of_a_move_leaves_the_message_in_one_queue() {
    for is_stored in [false, true] {
        let (mut shell, queue, letters) = pair(trying(1));
        shell.enqueue(queue, message("a", "one"));
        shell.subscribe(queue, Credit::Limited(1));
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
    shell.subscribe(queue, Credit::Unlimited);
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
    let mut forgetful = Definition::default();
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
fn where_there_is_no_room_for_dead_letters_nothing_is_lost() {
    let (mut shell, queue, letters) = pair(trying(1));
    let mut small = Definition::default();
    small.depth_max = Some(1);
    shell.update(letters, small);
    shell.enqueue_all(queue, vec![message("a", "one"), message("a", "two")]);
    fail_next(&mut shell, queue);
    fail_next(&mut shell, queue);
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.delayed), (1, 1), "kept, and put off");
    assert_eq!(stats.totals.dead_letters_refused, 1);
    // For as long as the longest wait.
    let cap = Definition::default().retry.backoff_max;
    shell.advance(cap - Duration::from_millis(1));
    shell.run();
    assert_eq!(shell.stats(queue).ready, 0);
    shell.advance(Duration::from_millis(1));
    shell.run();
    assert_eq!(shell.stats(queue).ready, 1);
    // With room, it goes at its next failure; so it does after a restart.
    shell.restart();
    fail_next(&mut shell, queue);
    assert_eq!(shell.stats(queue).depth(), 0);
    assert_eq!(shell.stats(letters).depth(), 2);
}

#[test]
fn where_the_queue_of_dead_letters_is_gone_nothing_is_lost() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    shell.tell(Command::Close { queue: letters });
    fail_next(&mut shell, queue);
    assert_eq!(shell.stats(queue).depth(), 1);
    assert_eq!(bodies(&shell, queue), ["one"]);
}

#[test]
fn many_large_messages_that_die_at_once_take_several_rounds() {
    const MESSAGES: usize = 60;
    let (mut shell, queue, letters) = pair(trying(1));
    let body = "x".repeat(1 << 20);
    for _ in 0..MESSAGES / 20 {
        let messages = vec![message("a", body.clone()); 20];
        shell.enqueue_all(queue, messages);
    }
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    assert_eq!(shell.deliveries.len(), MESSAGES);
    shell.advance(30 * SECOND);
    shell.poll();
    shell.seal();
    let round = shell.round.as_ref().unwrap();
    let bytes: usize = round.batches.iter().map(|(_, batch)| batch.bytes()).sum();
    assert!((1..=32 << 20).contains(&bytes), "{bytes}");
    shell.run();
    for _ in 0..5 {
        shell.advance(Duration::from_millis(10));
        shell.run();
    }
    assert_eq!(shell.stats(letters).depth(), MESSAGES as u64);
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn a_sentence_that_has_to_wait_for_the_next_round_is_the_last_word() {
    const MESSAGES: usize = 40;
    let mut definition = trying(5);
    definition.failure_hook = true;
    let (mut shell, queue, letters) = pair(definition);
    let body = "x".repeat(1 << 20);
    shell.enqueue_all(queue, vec![message("a", body); MESSAGES]);
    let consumer = shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    for (_, delivery) in std::mem::take(&mut shell.deliveries) {
        shell.report(queue, delivery.lease, failed());
    }
    shell.tell(Command::Drain { consumer });
    shell.run();
    let failures = std::mem::take(&mut shell.failures);
    assert_eq!(failures.len(), MESSAGES);
    let dies = Judgement::DeadLetter {
        reason: DeathReason::Hook,
    };
    let lives = Judgement::Retry {
        delay: Duration::ZERO,
    };
    for judgement in [dies, lives] {
        for failure in &failures {
            shell.tell(Command::Judge {
                queue,
                token: failure.token,
                judgement,
            });
        }
    }
    for _ in 0..5 {
        shell.run();
        shell.advance(Duration::from_millis(10));
    }
    assert_eq!(shell.stats(letters).depth(), MESSAGES as u64);
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn many_messages_that_die_at_once_do_so_a_round_at_a_time() {
    const MESSAGES: usize = 20_000;
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue_all(queue, vec![message("a", ""); MESSAGES]);
    for _ in 0..2 {
        shell.subscribe(queue, Credit::Unlimited);
    }
    shell.run();
    assert_eq!(shell.deliveries.len(), MESSAGES);
    shell.advance(30 * SECOND);
    shell.poll();
    // Those that the round has no room for are not even looked at.
    let stats = shell.stats(queue);
    assert!(stats.leased > 10_000 && stats.delayed == 0, "{stats:?}");
    shell.poll();
    assert_eq!(shell.stats(queue).delayed, 1, "and found it full");
    for _ in 0..3 {
        shell.run();
        shell.advance(Duration::from_millis(10));
    }
    assert_eq!(shell.stats(letters).depth(), MESSAGES as u64);
    assert_eq!(shell.stats(queue).depth(), 0);
    assert_eq!(shell.stats(queue).totals.dead_lettered, MESSAGES as u64);
}

#[test]
fn many_messages_that_find_no_room_and_need_not_wait_are_tried_on_and_on() {
    const MESSAGES: usize = 10_000;
    let mut definition = trying(1);
    definition.retry.backoff_max = Duration::ZERO;
    definition.failure_hook = true;
    let (mut shell, queue, letters) = pair(definition);
    let mut small = Definition::default();
    small.depth_max = Some(1);
    shell.update(letters, small);
    shell.enqueue_all(queue, vec![message("a", ""); MESSAGES]);
    let consumer = shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    for (_, delivery) in std::mem::take(&mut shell.deliveries) {
        shell.report(queue, delivery.lease, failed());
    }
    shell.run();
    shell.tell(Command::Drain { consumer });
    // Nobody judges, and all that is left to be stored is the one letter that there is room for.
    shell.advance(shell.judging_time());
    shell.run();
    assert_eq!(shell.stats(letters).depth(), 1);
    let stats = shell.stats(queue);
    assert_eq!((stats.ready, stats.depth()), (9_999, 9_999), "{stats:?}");
}

#[test]
fn purges_take_what_is_in_their_queue_and_nothing_that_has_left_it() {
    for purged in [0, 1] {
        let (mut shell, queue, letters) = pair(trying(1));
        shell.enqueue_all(queue, vec![message("a", "one"), message("a", "two")]);
        shell.subscribe(queue, Credit::Limited(1));
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

// Back to work.

#[test]
fn a_redriven_message_is_a_new_one_in_its_queue_and_gone_from_the_other() {
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
    assert_eq!((entry.meta.attempts, &entry.meta.history), (0, &None));
    assert_eq!(entry.meta.enqueued_at, shell.now);
    let stats = shell.stats(letters);
    assert_eq!(
        (stats.depth(), stats.bytes, stats.totals.redriven),
        (0, 0, 1)
    );
    let consumer = shell.subscribe(queue, Credit::Limited(0));
    assert_eq!(shell.next(consumer).unwrap().attempt, 1);
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
    let mut redriven = Redriven::new(entries(&shell, letters).remove(0));
    redriven.fairness_key = key("vip");
    redriven.weight = NonZeroU32::new(9).unwrap();
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
    let reader = shell.subscribe(letters, Credit::Limited(0));
    for _ in 0..2 {
        let delivery = shell.next(reader).expect("nothing stands in its way");
        let again = Verdict::Release;
        shell.settle(letters, delivery.lease, again).unwrap();
    }
    let found = entries(&shell, letters);
    let (results, _) = redrive(&mut shell, (letters, queue), RedriveStamp::default(), found);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let consumer = shell.subscribe(queue, Credit::Limited(2));
    shell.run();
    assert!(shell.deliveries.is_empty());
    assert_eq!(shell.stats(queue).throttled, 2);
    shell.throttle("api", 1.0, 1.0);
    shell.advance(SECOND);
    assert_eq!(shell.next(consumer).map(|it| it.attempt), Some(1));
    assert_eq!(shell.stats(queue).throttled, 1);
}

/// Returns a shell with three dead letters in the store only, of which the first is on its way back.
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
        messages: vec![Redriven::new(first)],
        ticket,
    });
    (shell, queue, letters)
}

#[test]
fn nothing_is_read_while_one_of_those_in_the_store_is_on_its_way_back() {
    let (mut shell, queue, letters) = one_of_three_on_its_way();
    shell.subscribe(letters, Credit::Unlimited);
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
    shell.subscribe(letters, Credit::Unlimited);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}

#[test]
fn what_is_leased_or_gone_or_was_found_before_somebody_else_came_stays() {
    let (mut shell, queue, letters) = pair(trying(1));
    for body in ["one", "two", "three"] {
        shell.enqueue(queue, message("a", body));
        fail_next(&mut shell, queue);
    }
    let way = (letters, queue);
    let found = entries(&shell, letters);
    // Whoever does not know the stamp takes nothing out of the store.
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
    let consumer = shell.subscribe(letters, Credit::Limited(0));
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
    shell.subscribe(letters, Credit::Limited(1));
    shell.poll();
    assert_eq!(shell.loads.len(), 1, "the first is being read");
    let ticket = shell.ticket();
    shell.tell(Command::Redrive {
        queue: letters,
        to: queue,
        stamp,
        messages: found.iter().cloned().map(Redriven::new).collect(),
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
fn a_payload_that_is_lost_is_reported_and_the_rest_goes_on() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    shell.enqueue(queue, message("b", "two"));
    shell.subscribe(queue, Credit::Unlimited);
    shell.run();
    let leases: Vec<_> = shell.deliveries.drain(..).map(|it| it.1.lease).collect();
    // Somebody takes a message away behind the broker's back.
    let entry = entries(&shell, queue).remove(0);
    let mut batch = fila_store::Batch::new();
    batch.delete(entry.locator());
    shell.shards[&queue].commit(&batch).unwrap();
    for lease in leases {
        shell.settle(queue, lease, failed()).unwrap();
    }
    shell.damaged = Some(Vec::new());
    shell.subscribe(letters, Credit::Unlimited);
    shell.run();
    assert_eq!(shell.damaged.as_ref().unwrap().len(), 1);
    assert_eq!(shell.deliveries.len(), 1);
    assert_eq!(&**shell.deliveries[0].1.payload.body(), b"two");
    assert_eq!(shell.stats(letters).totals.damaged, 1);
}
