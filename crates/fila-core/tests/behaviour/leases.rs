//! Leases: how long they last, what ends them, what comes back, and how attempts are counted.

use std::time::Duration;

use fila_core::{Command, SettleError, Settlement, Verdict};
use fila_store::MessageId;

use crate::support::{
    Answer, MILLISECOND, SECOND, START, Shell, message, nack, queue, trying_again_at_once,
};

#[test]
fn a_lease_that_runs_out_gives_the_message_to_another_consumer_at_that_millisecond() {
    let (mut shell, queue) = Shell::with_queue(trying_again_at_once());
    let id = shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, 0);
    let first = shell.next(consumer).unwrap();
    let other = shell.subscribe(queue, u32::MAX);
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
    let consumer = shell.subscribe(queue, 0);
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
    let consumer = shell.subscribe(queue, 0);
    let delivery = shell.next(consumer).unwrap();
    let ticket = shell.ticket();
    shell.tell(Command::Settle {
        queue,
        results: vec![Settlement {
            lease: delivery.lease,
            message: Some(MessageId::from_number(delivery.message.get() + 1)),
            verdict: Verdict::Ack,
        }],
        by: None,
        ticket,
    });
    let refused = Answer::Settled(vec![Err(SettleError::AnotherMessage)]);
    assert_eq!(shell.answers.remove(&ticket), Some(refused));
    assert_eq!(shell.stats(queue).leased, 1);
}

#[test]
fn a_delivery_that_is_given_back_untouched_is_no_attempt() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, 0);
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
        let consumer = shell.subscribe(queue, 0);
        let delivery = shell.next(consumer).unwrap();
        assert_eq!(delivery.attempt, attempt);
        let delay = Duration::ZERO;
        let settled = shell.settle(queue, delivery.lease, nack(delay));
        settled.unwrap();
        shell.restart();
    }
}

#[test]
fn no_result_puts_a_message_off_for_longer_than_the_limit() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.delay = SECOND);
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, 0);
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
fn a_lease_with_a_result_needs_no_timer() {
    let (mut shell, queue) = queue();
    shell.enqueue_all(queue, vec![message("a", ""); 2]);
    let consumer = shell.subscribe(queue, 0);
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
    let consumer = shell.subscribe(queue, 0);
    let lease = shell.next(consumer).unwrap().lease;
    let late = shell.now;
    shell.now = fila_store::Timestamp::from_millis(START);
    let extended = shell.settle(queue, lease, Verdict::Extend { by: None });
    extended.unwrap();
    shell.now = late.saturating_add(30 * SECOND - MILLISECOND);
    shell.run();
    assert_eq!(shell.stats(queue).leased, 1);
}
