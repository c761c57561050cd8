//! Rounds: which changes a round collects, which are stored together, when the broker answers, and the state after a
//! failed store.

use fila_core::{
    Beginnings, Command, Committed, ConsumerId, ConsumerKind, Demand, Departure, Dismissal,
    QueueSettings, Refused, Settings, Ttl, Verdict,
};
use fila_store::Engine;

use crate::support::{Answer, SECOND, Shell, forgetful, message, queue, trying_again_at_once};

#[test]
fn nothing_is_answered_or_delivered_before_it_is_durable() {
    let (mut shell, queue) = queue();
    shell.subscribe(queue, u32::MAX);
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
    let consumer = shell.subscribe(queue, u32::MAX);
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
fn after_a_failed_write_everybody_is_told_and_nothing_more_is_taken() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "kept"));
    let consumer = shell.subscribe(queue, 0);
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
    // A delivery could not be settled, and silence would pass for an empty queue.
    assert_eq!(shell.dismissed, [(consumer, Dismissal::StoreFailed)]);
    let demand = Demand {
        credit: u32::MAX,
        in_flight_max: u32::MAX,
        kind: ConsumerKind::Stream(Beginnings::Assumed),
    };
    let another = ConsumerId::new(99);
    let refused = shell.broker.subscribe(shell.now, queue, another, demand);
    assert_eq!(refused, Err(Refused::StoreFailed));
    shell.run();
    assert!(shell.deliveries.is_empty());
    let ticket = shell.purge(queue);
    assert_eq!(shell.answers.remove(&ticket), Some(failed));
    shell.restart();
    assert!(shell.stats(queue).depth() >= 1);
}

#[test]
fn only_results_that_are_stored_wait_for_a_round() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short);
    let consumer = shell.subscribe(queue, 0);
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
fn a_round_that_another_owner_has_fenced_off_is_not_confirmed() {
    let (mut shell, queue) = queue();
    shell.subscribe(queue, u32::MAX);
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
fn a_broker_whose_store_has_failed_has_nothing_more_to_store() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    shell.enqueue(queue, message("a", "leased"));
    shell.enqueue_all(queue, vec![message("b", vec![1; 2000]); 2]);
    let consumer = shell.subscribe(queue, 2);
    shell.poll();
    assert_eq!((shell.deliveries.len(), shell.loads.len()), (1, 1));
    shell.send(queue, vec![message("a", "")]);
    shell.seal();
    shell.round = None;
    shell.broker.committed(shell.now, Committed::Failed);
    shell.load();
    assert_eq!(shell.deliveries.len(), 1, "its result could not be stored");
    shell.unsubscribe(consumer, Departure::Closed);
    shell.seal();
    assert!(shell.round.is_none());
    assert!(!shell.broker.is_writing(), "no call waits for it to end");
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
    let consumer = shell.subscribe(queue, u32::MAX);
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
    shell.subscribe(queue, u32::MAX);
    shell.run();
    shell.advance(30 * SECOND);
    shell.poll();
    shell.seal();
    shell.poll();
    // Both rounds are full: the driver has to wait for the first, not to ask again and again.
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
