//! Consumers that are lost: what they can still settle, what is charged, and when others get their messages.

use std::num::NonZeroU32;

use fila_core::{
    Beginnings, Command, ConsumerId, ConsumerKind, Delivery, Demand, Departure, Judgement, LeaseId,
    QueueSettings, RECONNECT_GRACE, Settings, SettleError, Settlement, Verdict,
};
use fila_store::{Cursor, DeathReason, MessageId, QueueId, Shard};

use crate::support::{Answer, MILLISECOND, SECOND, Shell, message, nack, trying_again_at_once};

const PREFETCH: u32 = 64;

/// Returns a shell with a queue of 64 messages that die after three attempts, and the queue of its dead letters.
fn full(definition: QueueSettings) -> (Shell, QueueId, QueueId) {
    let mut definition = definition;
    definition.retry.attempts_max = NonZeroU32::new(3);
    let mut shell = Shell::new(Settings::default());
    let (queue, letters) = shell.create_with_dead_letters("orders", definition);
    shell.enqueue_all(queue, vec![message("a", ""); PREFETCH as usize]);
    (shell, queue, letters)
}

fn subscribe(shell: &mut Shell, queue: QueueId, beginnings: Beginnings) -> ConsumerId {
    let consumer = ConsumerId::new(1_000 + shell.ticket());
    let demand = Demand {
        credit: PREFETCH,
        in_flight_max: u32::MAX,
        kind: ConsumerKind::Stream(beginnings),
    };
    shell.subscribe_as(queue, consumer, demand);
    consumer
}

/// Lets a consumer take all messages, and returns them in their order.
fn take_all(shell: &mut Shell) -> Vec<Delivery> {
    shell.run();
    let taken = std::mem::take(&mut shell.deliveries);
    taken.into_iter().map(|(_, delivery)| delivery).collect()
}

/// Loses a consumer for good.
fn lose(shell: &mut Shell, consumer: ConsumerId) {
    shell.unsubscribe(consumer, Departure::Lost);
    shell.advance(RECONNECT_GRACE);
    shell.run();
}

fn extend(shell: &mut Shell, queue: QueueId, lease: LeaseId, by: ConsumerId) {
    let ticket = shell.ticket();
    shell.tell(Command::Settle {
        queue,
        results: vec![Settlement {
            lease,
            message: None,
            verdict: Verdict::Extend { by: None },
        }],
        by: Some(by),
        ticket,
    });
    let taken = Answer::Settled(vec![Ok(())]);
    assert_eq!(shell.answers.remove(&ticket), Some(taken));
}

/// Returns the ids that dead letters had, and why they died.
fn dead(shell: &Shell, letters: QueueId) -> Vec<(MessageId, DeathReason)> {
    let page = shell.shards[&letters].scan(&Cursor::start(), 1_000);
    let deaths = page.unwrap().items.into_iter().map(|entry| {
        let history = entry.meta.history.unwrap();
        assert_eq!(&*history.last_error, "consumer disconnected");
        let death = history.death.clone().unwrap();
        (death.message, death.reason)
    });
    deaths.collect()
}

#[test]
fn ten_lost_consumers_cost_nothing_that_no_handler_began() {
    let (mut shell, queue, letters) = full(trying_again_at_once());
    for life in 0..10 {
        let consumer = subscribe(&mut shell, queue, Beginnings::Reported);
        let taken = take_all(&mut shell);
        assert_eq!(taken.len(), PREFETCH as usize);
        for delivery in taken {
            assert_eq!((delivery.attempt, delivery.lost), (1, life));
            assert_eq!(delivery.history, None);
        }
        lose(&mut shell, consumer);
    }
    assert_eq!(shell.stats(queue).ready, u64::from(PREFETCH));
    assert_eq!(shell.stats(letters).depth(), 0);
}

#[test]
fn a_message_that_ends_its_consumers_becomes_a_dead_letter_by_the_policy() {
    for parallel in [1, 16] {
        let (mut shell, queue, letters) = full(trying_again_at_once());
        let mut begun = Vec::new();
        for attempt in 1..=3 {
            let consumer = subscribe(&mut shell, queue, Beginnings::Reported);
            let taken = take_all(&mut shell);
            begun = taken[..parallel].iter().map(|it| it.message).collect();
            for delivery in &taken[..parallel] {
                assert_eq!(delivery.attempt, attempt);
                shell.settle(queue, delivery.lease, Verdict::Begin).unwrap();
            }
            lose(&mut shell, consumer);
        }
        let exhausted = DeathReason::AttemptsExhausted;
        let expected: Vec<_> = begun.into_iter().map(|id| (id, exhausted)).collect();
        assert_eq!(dead(&shell, letters), expected);
        subscribe(&mut shell, queue, Beginnings::Reported);
        let rest = take_all(&mut shell);
        assert_eq!(rest.len(), PREFETCH as usize - parallel);
        assert!(rest.iter().all(|it| it.attempt == 1), "they never began");
    }
}

#[test]
fn a_message_that_ends_its_consumers_becomes_a_dead_letter_by_the_hook() {
    for parallel in [1, 16] {
        let mut definition = trying_again_at_once();
        definition.failure_hook = true;
        let (mut shell, queue, letters) = full(definition);
        for attempt in 1..=2 {
            let consumer = subscribe(&mut shell, queue, Beginnings::Reported);
            let taken = take_all(&mut shell);
            for delivery in &taken[..parallel] {
                shell.settle(queue, delivery.lease, Verdict::Begin).unwrap();
            }
            lose(&mut shell, consumer);
            assert_eq!(
                shell.failures.len(),
                parallel,
                "and nothing else is asked about"
            );
            for failure in std::mem::take(&mut shell.failures) {
                let error = &*failure.error;
                assert_eq!(
                    (failure.attempts, error),
                    (attempt, "consumer disconnected")
                );
                let judgement = match failure.attempts {
                    2 => Judgement::DeadLetter {
                        reason: DeathReason::Hook,
                    },
                    _ => Judgement::Retry {
                        delay: std::time::Duration::ZERO,
                    },
                };
                shell.judge(queue, failure.token, judgement);
            }
            shell.run();
        }
        let dead = dead(&shell, letters);
        assert_eq!(dead.len(), parallel);
        assert!(dead.iter().all(|(_, reason)| *reason == DeathReason::Hook));
    }
}

#[test]
fn a_consumer_that_reports_no_beginnings_is_assumed_to_have_begun_its_oldest_delivery() {
    let (mut shell, queue, letters) = full(trying_again_at_once());
    let mut killer = None;
    for attempt in 1..=3 {
        let consumer = subscribe(&mut shell, queue, Beginnings::Assumed);
        let taken = take_all(&mut shell);
        let attempts: Vec<u32> = taken.iter().map(|it| it.attempt).collect();
        // It finishes two of the others first: the third is not the oldest.
        let oldest = &taken[0];
        assert_eq!(*killer.get_or_insert(oldest.message), oldest.message);
        assert_eq!(attempts[0], attempt);
        assert!(attempts[1..].iter().all(|attempt| *attempt == 1));
        for delivery in &taken[1..3] {
            shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
        }
        lose(&mut shell, consumer);
    }
    let exhausted = DeathReason::AttemptsExhausted;
    assert_eq!(dead(&shell, letters), [(killer.unwrap(), exhausted)]);
}

#[test]
fn the_messages_of_a_lost_consumer_reach_others_after_the_grace_and_not_a_millisecond_before() {
    let (mut shell, queue, _) = full(trying_again_at_once());
    let lost = subscribe(&mut shell, queue, Beginnings::Reported);
    let before: Vec<MessageId> = take_all(&mut shell).iter().map(|it| it.message).collect();
    shell.unsubscribe(lost, Departure::Lost);
    subscribe(&mut shell, queue, Beginnings::Reported);
    shell.advance(RECONNECT_GRACE - MILLISECOND);
    assert!(take_all(&mut shell).is_empty());
    shell.advance(MILLISECOND);
    let after: Vec<MessageId> = take_all(&mut shell).iter().map(|it| it.message).collect();
    assert_eq!(after, before, "in their order");
    assert_eq!(shell.stats(queue).totals.released, u64::from(PREFETCH));
}

#[test]
fn a_lease_that_ends_before_the_grace_ends_when_it_would_have() {
    let mut definition = trying_again_at_once();
    definition.visibility_timeout = 2 * SECOND;
    let (mut shell, queue, _) = full(definition);
    let lost = subscribe(&mut shell, queue, Beginnings::Reported);
    take_all(&mut shell);
    shell.advance(SECOND);
    shell.unsubscribe(lost, Departure::Lost);
    subscribe(&mut shell, queue, Beginnings::Reported);
    shell.advance(SECOND);
    let taken = take_all(&mut shell);
    assert_eq!(taken.len(), PREFETCH as usize);
    assert!(taken.iter().all(|it| it.attempt == 1), "no handler began");
}

#[test]
fn a_client_that_is_back_in_time_settles_what_it_holds() {
    let (mut shell, queue, _) = full(trying_again_at_once());
    let lost = subscribe(&mut shell, queue, Beginnings::Reported);
    let taken = take_all(&mut shell);
    shell.unsubscribe(lost, Departure::Lost);
    shell.advance(RECONNECT_GRACE - MILLISECOND);
    shell.run();
    let verdicts = [Verdict::Ack, nack(SECOND), Verdict::Release];
    for (delivery, verdict) in taken.iter().zip(verdicts) {
        assert_eq!(shell.settle(queue, delivery.lease, verdict), Ok(()));
    }
    let stats = shell.stats(queue);
    assert_eq!((stats.totals.acked, stats.totals.nacked), (1, 1));
    shell.advance(MILLISECOND);
    shell.run();
    let late = shell.settle(queue, taken[9].lease, Verdict::Ack);
    assert_eq!(late, Err(SettleError::LeaseNotFound));
}

#[test]
fn an_extension_by_a_call_gives_a_lost_lease_a_normal_end() {
    let (mut shell, queue, _) = full(trying_again_at_once());
    let lost = subscribe(&mut shell, queue, Beginnings::Reported);
    let taken = take_all(&mut shell);
    shell.unsubscribe(lost, Departure::Lost);
    let lease = taken[0].lease;
    let extended = shell.settle(queue, lease, Verdict::Extend { by: None });
    assert_eq!(extended, Ok(()));
    shell.advance(30 * SECOND - MILLISECOND);
    shell.run();
    assert_eq!(shell.stats(queue).leased, 1);
    shell.advance(MILLISECOND);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.leased, stats.totals.lease_expired), (0, 1));
}

#[test]
fn a_stream_that_extends_a_lost_lease_holds_it_from_then_on() {
    let (mut shell, queue, _) = full(trying_again_at_once());
    let first = subscribe(&mut shell, queue, Beginnings::Reported);
    let taken = take_all(&mut shell);
    shell.unsubscribe(first, Departure::Lost);
    let second = shell.subscribe(queue, 0);
    for delivery in &taken {
        extend(&mut shell, queue, delivery.lease, second);
    }
    shell.advance(RECONNECT_GRACE * 2);
    shell.run();
    assert_eq!(shell.stats(queue).leased, u64::from(PREFETCH));
    // It is lost as well, and they are lost with it. Only the begun one counts.
    let begun = shell.settle(queue, taken[0].lease, Verdict::Begin);
    assert_eq!(begun, Ok(()));
    lose(&mut shell, second);
    subscribe(&mut shell, queue, Beginnings::Reported);
    let attempts: Vec<u32> = take_all(&mut shell).iter().map(|it| it.attempt).collect();
    assert_eq!(attempts[0], 2);
    assert_eq!(attempts[1..], [1; PREFETCH as usize - 1]);
}

#[test]
fn a_client_may_be_back_before_the_loss_is_noticed() {
    let (mut shell, queue, _) = full(trying_again_at_once());
    let first = subscribe(&mut shell, queue, Beginnings::Reported);
    let taken = take_all(&mut shell);
    let second = shell.subscribe(queue, 0);
    extend(&mut shell, queue, taken[0].lease, second);
    lose(&mut shell, first);
    assert_eq!(shell.stats(queue).leased, 1, "the one that has moved");
    assert_eq!(shell.settle(queue, taken[0].lease, Verdict::Ack), Ok(()));
}

#[test]
fn deliveries_that_were_not_sent_go_back_at_once() {
    let (mut shell, queue, _) = full(trying_again_at_once());
    let consumer = subscribe(&mut shell, queue, Beginnings::Assumed);
    let unsent = take_all(&mut shell).iter().map(|it| it.lease).collect();
    shell.tell(Command::Unsubscribe {
        consumer,
        departure: Departure::Lost,
        unsent,
    });
    subscribe(&mut shell, queue, Beginnings::Assumed);
    let taken = take_all(&mut shell);
    assert_eq!(taken.len(), PREFETCH as usize);
    assert!(taken.iter().all(|it| (it.attempt, it.lost) == (1, 0)));
}

#[test]
fn a_consumer_that_ends_its_stream_keeps_what_it_has_begun_for_the_grace() {
    let (mut shell, queue, _) = full(trying_again_at_once());
    let consumer = subscribe(&mut shell, queue, Beginnings::Reported);
    let taken = take_all(&mut shell);
    for delivery in &taken[..2] {
        shell.settle(queue, delivery.lease, Verdict::Begin).unwrap();
    }
    shell.unsubscribe(consumer, Departure::Closed);
    subscribe(&mut shell, queue, Beginnings::Reported);
    let others = take_all(&mut shell);
    assert_eq!(others.len(), PREFETCH as usize - 2);
    assert!(others.iter().all(|it| (it.attempt, it.lost) == (1, 0)));
    assert_eq!(shell.settle(queue, taken[0].lease, Verdict::Ack), Ok(()));
    shell.advance(RECONNECT_GRACE);
    let again = take_all(&mut shell);
    assert_eq!(again.len(), 1);
    let again = &again[0];
    assert_eq!((again.message, again.attempt), (taken[1].message, 2));
}

#[test]
fn a_lease_does_not_move_to_a_consumer_that_the_same_command_dismisses() {
    let (mut shell, queue, _) = full(trying_again_at_once());
    let other = subscribe(&mut shell, queue, Beginnings::Reported);
    let theirs = take_all(&mut shell).remove(0);
    shell.enqueue(queue, message("a", "own"));
    let consumer = shell.subscribe(queue, 1);
    let own = take_all(&mut shell).remove(0);
    shell.tell(Command::Drain { consumer });
    let ticket = shell.ticket();
    let settlement = |lease, verdict| Settlement {
        lease,
        message: None,
        verdict,
    };
    shell.tell(Command::Settle {
        queue,
        results: vec![
            settlement(own.lease, Verdict::Ack),
            settlement(theirs.lease, Verdict::Extend { by: None }),
        ],
        by: Some(consumer),
        ticket,
    });
    shell.run();
    let taken = Answer::Settled(vec![Ok(()); 2]);
    assert_eq!(shell.answers.remove(&ticket), Some(taken));
    lose(&mut shell, other);
    assert_eq!(shell.stats(queue).leased, 0);
}
