//! Calls that take messages once: what they wait for, when their answer is complete, and what becomes of their leases.

use std::collections::BTreeSet;
use std::time::Duration;

use fila_core::{
    Charge, Command, ConsumerId, Delivery, Departure, Dismissal, Ordering, QueueSettings,
    RECONNECT_GRACE, SettleError, Verdict,
};
use fila_store::{MessageId, QueueId};

use crate::support::{MILLISECOND, SECOND, Shell, forgetful, message, queue, trying_again_at_once};

/// Takes up to this many messages and answers the caller.
fn receive(shell: &mut Shell, queue: QueueId, messages: u32) -> Vec<Delivery> {
    let call = shell.call(queue, messages, None);
    shell.tell(Command::Drain { consumer: call });
    shell.run();
    answer(shell, call)
}

/// Answers a call that is complete.
fn answer(shell: &mut Shell, call: ConsumerId) -> Vec<Delivery> {
    assert_eq!(shell.dismissed, [(call, Dismissal::Served)]);
    shell.dismissed.clear();
    shell.unsubscribe(call, Departure::Answered);
    take(shell)
}

fn take(shell: &mut Shell) -> Vec<Delivery> {
    let deliveries = shell.deliveries.drain(..);
    deliveries.map(|(_, delivery)| delivery).collect()
}

fn ids(deliveries: &[Delivery]) -> Vec<MessageId> {
    deliveries.iter().map(|it| it.message).collect()
}

#[test]
fn a_call_gets_what_is_there_up_to_its_number_in_one_answer() {
    let (mut shell, queue) = queue();
    let sent: Vec<MessageId> = (0..5)
        .map(|_| shell.enqueue(queue, message("a", "work")))
        .collect();
    assert_eq!(ids(&receive(&mut shell, queue, 3)), sent[..3]);
    assert_eq!(ids(&receive(&mut shell, queue, 3)), sent[3..]);
    assert_eq!(receive(&mut shell, queue, 3), []);
    assert_eq!(shell.stats(queue).leased, 5);
    assert_eq!(shell.stats(queue).consumers, 0);
}

#[test]
fn a_call_waits_for_its_first_message_and_for_no_other() {
    let (mut shell, queue) = queue();
    let call = shell.call(queue, 10, None);
    shell.run();
    assert_eq!(shell.dismissed, []);
    assert_eq!(shell.stats(queue).consumers, 1);
    let first = shell.enqueue(queue, message("a", "first"));
    let later = shell.enqueue(queue, message("a", "later"));
    assert_eq!(ids(&answer(&mut shell, call)), [first]);
    assert_eq!(ids(&receive(&mut shell, queue, 1)), [later]);
}

#[test]
fn a_call_that_waits_no_longer_is_answered_without_a_message() {
    let (mut shell, queue) = queue();
    let call = shell.call(queue, 10, None);
    shell.run();
    shell.tell(Command::Drain { consumer: call });
    shell.run();
    assert_eq!(answer(&mut shell, call), []);
    let id = shell.enqueue(queue, message("a", "work"));
    assert_eq!(ids(&receive(&mut shell, queue, 1)), [id]);
}

#[test]
fn a_call_that_does_not_wait_gets_messages_that_are_in_the_store_only() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    let mut sent = BTreeSet::new();
    for key in ["a", "b", "c"] {
        for _ in 0..4 {
            sent.insert(shell.enqueue(queue, message(key, vec![1; 2_000])));
        }
    }
    shell.restart();
    let received = receive(&mut shell, queue, 12);
    assert_eq!(ids(&received).into_iter().collect::<BTreeSet<_>>(), sent);
}

#[test]
fn a_read_that_fails_ends_the_wait_for_it() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    shell.enqueue(queue, message("a", vec![1; 2_000]));
    shell.restart();
    let call = shell.call(queue, 1, None);
    shell.tell(Command::Drain { consumer: call });
    shell.poll();
    assert_eq!(shell.dismissed, [], "a message is being read for it");
    shell.fail_load();
    shell.run();
    assert_eq!(answer(&mut shell, call), []);
}

#[test]
fn a_lease_of_a_call_lasts_for_the_visibility_timeout_and_then_counts_an_attempt() {
    let mut definition = trying_again_at_once();
    definition.visibility_timeout = 20 * SECOND;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue(queue, message("a", "work"));
    let first = receive(&mut shell, queue, 1).remove(0);
    assert_eq!((first.attempt, first.lease_time), (1, 20 * SECOND));
    // The end of its connection means nothing.
    shell.advance(RECONNECT_GRACE + SECOND);
    shell.advance(20 * SECOND - RECONNECT_GRACE - SECOND - MILLISECOND);
    assert_eq!(receive(&mut shell, queue, 1), []);
    shell.advance(MILLISECOND);
    let second = receive(&mut shell, queue, 1).remove(0);
    assert_eq!((second.message, second.attempt), (first.message, 2));
    assert_eq!(second.lost, 0);
    let late = shell.settle(queue, first.lease, Verdict::Ack);
    assert_eq!(late, Err(SettleError::LeaseNotFound));
    assert_eq!(shell.settle(queue, second.lease, Verdict::Ack), Ok(()));
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn a_call_may_name_the_time_of_its_leases() {
    let (mut shell, queue) = Shell::with_queue(trying_again_at_once());
    shell.enqueue(queue, message("a", "work"));
    let call = shell.call(queue, 1, Some(2 * SECOND));
    shell.run();
    assert_eq!(answer(&mut shell, call)[0].lease_time, 2 * SECOND);
    shell.advance(2 * SECOND - MILLISECOND);
    assert_eq!(receive(&mut shell, queue, 1), []);
    shell.advance(MILLISECOND);
    let again = receive(&mut shell, queue, 1);
    assert_eq!(again[0].attempt, 2);
    assert_eq!(again[0].lease_time, Duration::from_secs(30));
}

#[test]
fn a_call_that_hangs_up_before_its_answer_gives_everything_back_and_counts_no_attempt() {
    let (mut shell, queue) = queue();
    let sent: Vec<MessageId> = (0..3)
        .map(|_| shell.enqueue(queue, message("a", "work")))
        .collect();
    let call = shell.call(queue, 2, None);
    shell.run();
    assert_eq!(shell.stats(queue).leased, 2);
    shell.unsubscribe(call, Departure::Closed);
    shell.deliveries.clear();
    shell.dismissed.clear();
    let again = receive(&mut shell, queue, 3);
    assert_eq!(ids(&again), sent, "at once, and in their order");
    assert!(again.iter().all(|it| (it.attempt, it.lost) == (1, 0)));
}

#[test]
fn a_call_that_hangs_up_while_messages_are_read_for_it_loses_none() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    let id = shell.enqueue(queue, message("a", vec![1; 2_000]));
    shell.restart();
    let call = shell.call(queue, 1, None);
    shell.poll();
    assert_eq!(shell.loads.len(), 1);
    shell.unsubscribe(call, Departure::Closed);
    shell.run();
    assert_eq!(shell.stats(queue).leased, 0);
    assert_eq!(ids(&receive(&mut shell, queue, 1)), [id]);
}

#[test]
fn a_call_that_has_its_answer_gets_no_more() {
    let (mut shell, queue) = queue();
    let first = shell.enqueue(queue, message("a", "work"));
    let call = shell.call(queue, 10, None);
    shell.run();
    let later = shell.enqueue(queue, message("a", "work"));
    assert_eq!(ids(&answer(&mut shell, call)), [first]);
    assert_eq!(ids(&receive(&mut shell, queue, 1)), [later]);
}

#[test]
fn a_purge_and_a_deletion_answer_calls() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "work"));
    let call = shell.call(queue, 1, None);
    shell.poll();
    shell.purge(queue);
    shell.run();
    assert_eq!(shell.dismissed, [(call, Dismissal::Served)]);
    shell.unsubscribe(call, Departure::Answered);
    assert_eq!(shell.stats(queue).depth(), 0);

    shell.dismissed.clear();
    let waiting = shell.call(queue, 1, None);
    shell.run();
    shell.delete(queue);
    assert_eq!(shell.dismissed, [(waiting, Dismissal::QueueGone)]);
}

#[test]
fn a_deletion_of_one_queue_leaves_the_calls_of_others_their_leases() {
    let (mut shell, queue) = queue();
    let other = shell.create("other", QueueSettings::default());
    let id = shell.enqueue(queue, message("a", "work"));
    let call = shell.call(queue, 1, None);
    // The answer of the call and the deletion are in the same effects.
    shell.broker.poll(shell.now);
    shell.delete(other);
    assert_eq!(shell.dismissed, [(call, Dismissal::Served)]);
    shell.unsubscribe(call, Departure::Closed);
    shell.dismissed.clear();
    shell.deliveries.clear();
    assert_eq!(ids(&receive(&mut shell, queue, 1)), [id]);
}

#[test]
fn calls_take_turns_with_streams() {
    let (mut shell, queue) = queue();
    let stream = shell.subscribe(queue, u32::MAX);
    let call = shell.call(queue, 10, None);
    shell.run();
    shell.enqueue_all(queue, vec![message("a", ""); 10]);
    let of = |consumer| {
        shell
            .deliveries
            .iter()
            .filter(move |(to, _)| *to == consumer)
    };
    assert_eq!((of(stream).count(), of(call).count()), (5, 5));
}

#[test]
fn an_ordered_queue_gives_a_call_one_message_of_a_key_until_it_is_settled() {
    let mut definition = trying_again_at_once();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    let first = shell.enqueue(queue, message("a", "1"));
    let second = shell.enqueue(queue, message("a", "2"));
    let held = receive(&mut shell, queue, 10);
    assert_eq!(ids(&held), [first]);
    assert_eq!(receive(&mut shell, queue, 10), []);
    shell
        .settle(queue, held[0].lease, Verdict::Release)
        .unwrap();
    let again = receive(&mut shell, queue, 10);
    assert_eq!((ids(&again), again[0].attempt), (vec![first], 1));
    shell.settle(queue, again[0].lease, Verdict::Ack).unwrap();
    assert_eq!(ids(&receive(&mut shell, queue, 10)), [second]);
}

/// Sends messages of three keys with other weights and sizes.
fn uneven(shell: &mut Shell, queue: QueueId) {
    for (name, weight, bytes, count) in [("a", 1, 100, 60), ("b", 3, 700, 60), ("c", 1, 2_000, 60)]
    {
        let mut sent = message(name, vec![0; bytes]);
        sent.schedule.weight = std::num::NonZeroU32::new(weight).unwrap();
        shell.enqueue_all(queue, vec![sent; count]);
    }
}

#[test]
fn calls_share_out_messages_as_a_stream_does_whether_they_are_in_memory_or_not() {
    let mut definition = QueueSettings::default();
    definition.charge = Charge::Bytes;
    for budget in [1 << 10, 1 << 30] {
        let shell = || {
            let mut settings = fila_core::Settings::default();
            settings.memory_budget = budget;
            let mut shell = Shell::new(settings);
            let queue = shell.create("queue", definition.clone());
            uneven(&mut shell, queue);
            (shell, queue)
        };
        let (mut by_calls, queue) = shell();
        let (mut by_stream, same_queue) = shell();
        let stream = by_stream.subscribe(same_queue, 0);
        by_stream.has_read(stream);
        for size in [1, 7, 2, 10, 1, 30, 3, 10, 10, 20] {
            let more = size;
            by_stream.tell(Command::Credit {
                consumer: stream,
                more,
            });
            by_stream.run();
            let expected = ids(&take(&mut by_stream)).into_iter();
            let received = ids(&receive(&mut by_calls, queue, size)).into_iter();
            assert_eq!(
                received.collect::<BTreeSet<_>>(),
                expected.collect::<BTreeSet<_>>()
            );
        }
    }
}
