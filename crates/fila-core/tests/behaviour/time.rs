//! When messages are due and when they end: delays and times to live.

use std::time::Duration;

use fila_core::{Command, EnqueueError, Enqueued, QueueSettings, Settings, Ttl, Verdict};
use fila_store::{DeduplicationId, QueueId};

use crate::support::{MILLISECOND, SECOND, Shell, key, message, nack, queue};

#[test]
fn delayed_messages_come_at_their_millisecond_and_in_order() {
    let (mut shell, queue) = queue();
    let mut late = message("a", "late");
    late.delay = SECOND;
    let late = shell.enqueue(queue, late);
    let soon = shell.enqueue(queue, message("a", "soon"));
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let (_, first) = shell.deliveries.pop_front().unwrap();
    assert_eq!(first.message, soon);
    assert_eq!(shell.stats(queue).delayed, 1);
    shell.advance(SECOND - MILLISECOND);
    shell.run();
    assert!(shell.deliveries.is_empty());
    shell.advance(MILLISECOND);
    shell.run();
    let (_, second) = shell.deliveries.pop_front().unwrap();
    assert_eq!(
        (second.message, &second.payload.body()[..]),
        (late, &b"late"[..])
    );
}

#[test]
fn messages_are_not_delivered_after_their_time_to_live() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short.clone());
    let mut delayed = short;
    delayed.delay = SECOND - MILLISECOND;
    shell.enqueue(queue, delayed);
    shell.enqueue(queue, message("a", "for ever"));
    shell.advance(SECOND);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (1, 2));
    shell.restart();
    assert_eq!(shell.stats(queue).depth(), 1, "they are deleted");
}

#[test]
fn a_message_that_is_put_off_beyond_its_life_ends_on_time() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short);
    let consumer = shell.subscribe(queue, 0);
    let delivery = shell.next(consumer).unwrap();
    let delay = 2 * SECOND;
    let nacked = shell.settle(queue, delivery.lease, nack(delay));
    nacked.unwrap();
    shell.advance(SECOND);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (0, 1));
}

#[test]
fn a_lease_outlives_its_message_but_not_by_another_delivery() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short.clone());
    shell.enqueue(queue, short);
    let consumer = shell.subscribe(queue, 0);
    let (one, two) = (shell.next(consumer).unwrap(), shell.next(consumer).unwrap());
    shell.advance(2 * SECOND);
    shell.run();
    assert_eq!(shell.settle(queue, one.lease, Verdict::Ack), Ok(()));
    let delay = Duration::ZERO;
    let nacked = shell.settle(queue, two.lease, nack(delay));
    assert_eq!(nacked, Ok(()));
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (0, 1));
}

#[test]
fn what_is_due_while_a_message_is_read_comes_before_it() {
    let (mut shell, queue) = queue();
    let mut short = message("a", "short");
    short.ttl = Ttl::For(SECOND);
    shell.enqueue(queue, short);
    let mut delayed = message("a", "delayed");
    delayed.delay = SECOND;
    let delayed = shell.enqueue(queue, delayed);
    let last = shell.enqueue(queue, message("a", "last"));
    let consumer = shell.subscribe(queue, 2);
    shell.run();
    for (_, delivery) in std::mem::take(&mut shell.deliveries) {
        let released = shell.settle(queue, delivery.lease, Verdict::Release);
        released.unwrap();
    }
    shell.tell(Command::Credit { consumer, more: 2 });
    shell.poll();
    assert_eq!(shell.loads.len(), 1, "payloads have left memory");
    // The driver has not polled since the time came.
    shell.advance(SECOND);
    shell.load();
    shell.run();
    let delivered: Vec<_> = shell.deliveries.iter().map(|(_, it)| it.message).collect();
    assert_eq!(delivered, [delayed, last]);
    assert_eq!(shell.stats(queue).totals.expired, 1);
}

#[test]
fn a_key_whose_messages_wait_for_their_time_beyond_the_limit_holds_up_itself_alone() {
    let (mut shell, queue) = Shell::with_settings(|it| {
        it.memory_budget = 1 << 10;
        it.limits.delayed_per_queue = 1;
    });
    let mut first = message("patient", "first");
    first.delay = 2 * SECOND;
    shell.enqueue(queue, first);
    // Behind a message that has no room in memory, a second one that waits for its time.
    shell.enqueue(queue, message("patient", vec![1; 2000]));
    let ticket = shell.ticket();
    let mut second = message("patient", "second");
    second.delay = 3 * SECOND;
    let mut shell = {
        let mut raised = Settings::default();
        raised.memory_budget = 1 << 10;
        shell.reopen_with(raised);
        shell.tell(Command::Enqueue {
            queue,
            messages: vec![second, message("patient", "third")],
            batch_id: None,
            ticket,
        });
        shell.run();
        let mut lowered = Settings::default();
        lowered.memory_budget = 1 << 10;
        lowered.limits.delayed_per_queue = 1;
        shell.reopen_with(lowered);
        shell
    };
    shell.enqueue(queue, message("other", vec![1; 2000]));
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let keys = |shell: &Shell| -> Vec<_> {
        let deliveries = shell.deliveries.iter();
        deliveries.map(|(_, it)| it.fairness_key.clone()).collect()
    };
    let mut seen = keys(&shell);
    seen.sort();
    assert_eq!(
        seen,
        [key("other"), key("patient")],
        "the third waits behind the second"
    );
    assert_eq!(shell.stats(queue).delayed, 1, "no more than the limit");
    for _ in 0..4 {
        shell.advance(SECOND);
        shell.run();
    }
    assert_eq!(shell.deliveries.len(), 5);
}

#[test]
fn a_message_without_a_time_to_live_has_its_queues() {
    let mut definition = QueueSettings::default();
    definition.message_ttl = Some(SECOND);
    let (mut shell, queue) = Shell::with_queue(definition);
    let mut lasting = message("a", "lasting");
    lasting.ttl = Ttl::Forever;
    shell.enqueue_all(queue, vec![message("a", "short"), lasting]);
    shell.advance(SECOND);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (1, 1));
}

#[test]
fn a_message_that_would_expire_before_its_delay_is_over_is_refused() {
    let mut definition = QueueSettings::default();
    definition.message_ttl = Some(2 * SECOND);
    let (mut shell, queue) = Shell::with_queue(definition);
    let delayed = |delay, ttl| {
        let mut message = message("a", "late");
        (message.delay, message.ttl) = (delay, ttl);
        message
    };
    let results = shell.enqueue_all(
        queue,
        vec![
            delayed(SECOND, Ttl::For(SECOND)),
            delayed(2 * SECOND, Ttl::Queue),
            delayed(SECOND, Ttl::For(SECOND + MILLISECOND)),
            delayed(SECOND, Ttl::Queue),
            delayed(3 * SECOND, Ttl::Forever),
        ],
    );
    let refused = |ttl, delay| Err(EnqueueError::ExpiresTooEarly { ttl, delay });
    assert_eq!(results[0], refused(SECOND, SECOND));
    assert_eq!(results[1], refused(2 * SECOND, 2 * SECOND));
    assert!(results[2..].iter().all(Result::is_ok), "{results:?}");
    // A message that is stored already is a duplicate, whatever the queue says by now.
    let mut known = delayed(SECOND, Ttl::Queue);
    known.deduplication_id = Some(DeduplicationId::new("once").unwrap());
    shell.enqueue(queue, known.clone());
    definition_with_ttl(&mut shell, queue, SECOND);
    let again = shell.enqueue_all(queue, vec![known]);
    assert!(matches!(again[0], Ok(Enqueued::Duplicate(_))), "{again:?}");
    shell.subscribe(queue, 100);
    for _ in 0..4 {
        shell.run();
        shell.advance(SECOND);
    }
    assert_eq!(shell.deliveries.len(), 4, "none expired before its time");
}

fn definition_with_ttl(shell: &mut Shell, queue: QueueId, ttl: Duration) {
    let mut definition = QueueSettings::default();
    definition.message_ttl = Some(ttl);
    shell.update(queue, definition);
}
