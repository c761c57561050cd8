//! Queues that are purged, deleted and paused, and queues that are not there.

use fila_core::{
    Command, Committed, Delivering, Dismissal, KeyCursor, KeySettings, QueueSettings, Refused,
    Settings, SettleError, Verdict,
};

use crate::support::{Answer, SECOND, Shell, key, message, queue};

#[test]
fn a_purged_queue_is_empty_now_and_after_a_restart() {
    let (mut shell, queue) = queue();
    for _ in 0..20 {
        shell.enqueue(queue, message("a", "work"));
    }
    let consumer = shell.subscribe(queue, 0);
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
    let consumer = shell.subscribe(queue, 0);
    let delivery = shell.next(consumer).unwrap();
    assert_eq!(&delivery.payload.body()[..], b"after");
    assert_eq!(shell.next(consumer), None);
}

#[test]
fn a_deleted_queue_dismisses_its_consumers_and_refuses_what_is_under_way() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, u32::MAX);
    let ticket = shell.send(queue, vec![message("a", "two")]);
    shell.seal();
    shell.delete(queue);
    assert_eq!(shell.dismissed, [(consumer, Dismissal::QueueGone)]);
    shell.commit();
    let gone = Some(Answer::Refused(Refused::QueueGone));
    assert_eq!(shell.answers.remove(&ticket), gone);
    let again = shell.create("queue", QueueSettings::default());
    assert_eq!(shell.stats(again).depth(), 0);
    shell.restart();
    assert_eq!(shell.stats(again).depth(), 0);
}

#[test]
fn paused_queues_and_keys_deliver_nothing_until_they_are_resumed() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    shell.enqueue(queue, message("b", "one"));
    let mut definition = QueueSettings::default();
    definition.delivery = Delivering::Paused;
    shell.update(queue, definition.clone());
    let consumer = shell.subscribe(queue, 0);
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
fn commands_for_a_queue_that_is_not_there_are_refused() {
    let (mut shell, queue) = queue();
    shell.delete(queue);
    assert_eq!(shell.broker.stats(queue), Err(Refused::QueueGone));
    let keys = shell.broker.keys(shell.now, queue, KeyCursor::start(), 10);
    assert_eq!(keys, Err(Refused::QueueGone));
    shell.tell(Command::Close { queue });
    shell.tell(Command::Credit {
        consumer: fila_core::ConsumerId::new(7),
        more: 1,
    });
    shell.run();
}

#[test]
fn nothing_of_a_deleted_queue_is_taken_for_the_one_that_gets_its_place() {
    let mut settings = Settings::default();
    settings.limits.consumers = 1;
    let mut shell = Shell::new(settings);
    let old = shell.create("old", QueueSettings::default());
    shell.enqueue(old, message("a", "leased"));
    shell.subscribe(old, u32::MAX);
    shell.run();
    let ticket = shell.send(old, vec![message("a", "under way")]);
    // It is stored, and deleted before the broker hears of it.
    shell.seal();
    let round = shell.round.take().unwrap();
    let fenced = shell.store(&round);
    assert!(fenced.is_empty());
    shell.delete(old);
    assert_eq!(shell.broker.memory_used(), 0);
    let new = shell.create("new", QueueSettings::default());
    shell.deliveries.clear();
    shell.subscribe(new, u32::MAX);
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
