//! Where there is no room: in the queue of dead letters, or in the round in which many die at once.

use std::time::Duration;

use fila_core::{Command, Judgement, QueueSettings};
use fila_store::DeathReason;

use crate::support::{SECOND, message};
use crate::{bodies, fail_next, failed, pair, trying};

#[test]
fn where_there_is_no_room_for_dead_letters_nothing_is_lost() {
    let (mut shell, queue, letters) = pair(trying(1));
    let mut small = QueueSettings::default();
    small.depth_max = Some(1);
    shell.update(letters, small);
    shell.enqueue_all(queue, vec![message("a", "one"), message("a", "two")]);
    fail_next(&mut shell, queue);
    fail_next(&mut shell, queue);
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.delayed), (1, 1), "kept, and put off");
    assert_eq!(stats.totals.dead_letters_refused, 1);
    // For as long as the longest wait.
    let cap = QueueSettings::default().retry.backoff_max;
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
fn the_dead_letters_of_one_key_do_not_shut_out_those_of_others() {
    let (mut shell, queue, letters) = pair(trying(1));
    let mut small = QueueSettings::default();
    small.depth_max = Some(8);
    shell.update(letters, small);
    shell.enqueue_all(queue, vec![message("greedy", ""); 8]);
    for _ in 0..8 {
        fail_next(&mut shell, queue);
    }
    // Six are its part of eight. The others stay where they are.
    assert_eq!(shell.stats(letters).depth(), 6);
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.dead_letters_refused), (2, 2));
    shell.enqueue(queue, message("quiet", ""));
    fail_next(&mut shell, queue);
    assert_eq!(shell.stats(letters).depth(), 7);
    assert_eq!(shell.stats(queue).depth(), 2);
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
    shell.subscribe(queue, u32::MAX);
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
    let consumer = shell.subscribe(queue, u32::MAX);
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
            shell.judge(queue, failure.token, judgement);
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
        shell.subscribe(queue, u32::MAX);
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
    let mut small = QueueSettings::default();
    small.depth_max = Some(1);
    shell.update(letters, small);
    shell.enqueue_all(queue, vec![message("a", ""); MESSAGES]);
    let consumer = shell.subscribe(queue, u32::MAX);
    shell.run();
    for (_, delivery) in std::mem::take(&mut shell.deliveries) {
        shell.report(queue, delivery.lease, failed());
    }
    shell.run();
    shell.tell(Command::Drain { consumer });
    // No judgement comes, and the broker has only one letter left to store: the one that there is room for.
    shell.advance(shell.judging_time());
    shell.run();
    assert_eq!(shell.stats(letters).depth(), 1);
    let stats = shell.stats(queue);
    assert_eq!((stats.ready, stats.depth()), (9_999, 9_999), "{stats:?}");
}

#[test]
fn while_the_disk_is_full_messages_stay_in_their_queue() {
    let (mut shell, queue, letters) = pair(trying(1));
    shell.enqueue(queue, message("a", "one"));
    shell.broker.set_storage_full(true);
    fail_next(&mut shell, queue);
    assert_eq!(shell.stats(queue).depth(), 1);
    assert_eq!(shell.stats(queue).totals.dead_letters_refused, 1);
    shell.broker.set_storage_full(false);
    shell.advance(QueueSettings::default().retry.backoff_max);
    shell.run();
    fail_next(&mut shell, queue);
    assert_eq!(shell.stats(letters).depth(), 1);
}
