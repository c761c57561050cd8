//! Peeking at messages and keys: their states, without a lease, and how long they have waited.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Command, Delivering, KeySettings, MessageState, Ordering, QueueSettings, Refused, Ttl, Verdict,
};
use fila_store::{Cursor, MessageId, QueueId, Shard, StoredMessage, Timestamp};

use support::{SECOND, Shell, forgetful, key, message, nack, queue};

/// Returns the states of all messages that are shown.
fn states(shell: &mut Shell, queue: QueueId) -> Vec<(MessageId, MessageState)> {
    let peeked = shell.peek(queue).into_iter();
    peeked
        .filter_map(|(id, status)| Some((id, status?.state)))
        .collect()
}

fn scanned(shell: &Shell, queue: QueueId) -> Vec<StoredMessage> {
    let page = shell.shards[&queue].scan(&Cursor::start(), usize::MAX);
    page.unwrap().items
}

#[test]
fn a_peek_shows_every_message_in_its_state() {
    let (mut shell, queue) = queue();
    let leased = shell.enqueue(queue, message("a", "leased"));
    let mut late = message("a", "delayed");
    late.delay = 5 * SECOND;
    let delayed = shell.enqueue(queue, late);
    let ready = shell.enqueue(queue, message("b", "ready"));
    let consumer = shell.subscribe(queue, 0);
    assert_eq!(shell.next(consumer).unwrap().message, leased);
    let due = shell.now.saturating_add(5 * SECOND);
    let end = shell.now.saturating_add(30 * SECOND);
    assert_eq!(
        states(&mut shell, queue),
        [
            (leased, MessageState::Leased { until: end }),
            (delayed, MessageState::Delayed { until: due }),
            (ready, MessageState::Ready),
        ]
    );
}

#[test]
fn attempts_count_what_has_failed_and_the_delivery_under_way() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, 0);
    let attempts = |shell: &mut Shell| shell.peek(queue)[0].1.unwrap().attempts;
    assert_eq!(attempts(&mut shell), 0);
    let first = shell.next(consumer).unwrap();
    assert_eq!(attempts(&mut shell), 1);
    let delay = SECOND;
    shell.settle(queue, first.lease, nack(delay)).unwrap();
    assert_eq!(attempts(&mut shell), 1);
    shell.advance(SECOND);
    let second = shell.next(consumer).unwrap();
    assert_eq!(attempts(&mut shell), 2);
    shell.settle(queue, second.lease, Verdict::Release).unwrap();
    assert_eq!(attempts(&mut shell), 1, "it was not tried");
}

#[test]
fn an_extended_lease_is_shown_with_its_new_end() {
    let (mut shell, queue) = queue();
    let id = shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, 0);
    let lease = shell.next(consumer).unwrap().lease;
    shell.advance(10 * SECOND);
    let by = Some(90 * SECOND);
    shell.settle(queue, lease, Verdict::Extend { by }).unwrap();
    let until = shell.now.saturating_add(90 * SECOND);
    assert_eq!(
        states(&mut shell, queue),
        [(id, MessageState::Leased { until })]
    );
}

#[test]
fn what_is_in_the_store_and_not_confirmed_is_not_shown() {
    let (mut shell, queue) = queue();
    let first = shell.enqueue(queue, message("a", "one"));
    shell.send(queue, vec![message("a", "two"), message("b", "three")]);
    shell.poll();
    shell.seal();
    let round = shell.round.take().unwrap();
    assert_eq!(shell.store(&round), []);
    assert_eq!(scanned(&shell, queue).len(), 3);
    assert_eq!(states(&mut shell, queue), [(first, MessageState::Ready)]);
    shell.round = Some(round);
    shell.commit();
    assert_eq!(states(&mut shell, queue).len(), 3);
}

#[test]
fn a_backlog_in_the_store_is_shown_up_to_what_is_confirmed() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    let ids: Vec<MessageId> = (0..20)
        .map(|_| shell.enqueue(queue, message("a", vec![0; 200])))
        .collect();
    assert!(shell.stats(queue).stored_only > 10);
    shell.send(queue, vec![message("a", "unconfirmed")]);
    shell.poll();
    shell.seal();
    let round = shell.round.take().unwrap();
    shell.store(&round);
    let shown = states(&mut shell, queue);
    let expected: Vec<_> = ids.iter().map(|id| (*id, MessageState::Ready)).collect();
    assert_eq!(shown, expected);
}

#[test]
fn what_was_acknowledged_or_purged_since_it_was_read_is_left_out() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let kept = shell.enqueue(queue, message("a", "two"));
    let consumer = shell.subscribe(queue, 0);
    let lease = shell.next(consumer).unwrap().lease;
    let before = scanned(&shell, queue);
    // The acknowledgement is not stored yet, but no consumer will get the message any more.
    shell.report(queue, lease, Verdict::Ack);
    let shown = shell.peek_at(queue, &before);
    let shown: Vec<_> = shown.into_iter().map(|(_, status)| status).collect();
    assert_eq!(shown.len(), 2);
    assert!(shown[0].is_none());
    assert_eq!(shown[1].unwrap().state, MessageState::Ready);
    shell.purge(queue);
    shell.run();
    let fresh = shell.enqueue(queue, message("a", "three"));
    assert!(fresh > kept);
    let shown = shell.peek_at(queue, &before);
    assert!(shown.iter().all(|(_, status)| status.is_none()));
}

#[test]
fn what_was_acknowledged_in_front_of_a_backlog_is_left_out_before_that_is_stored() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    for _ in 0..10 {
        shell.enqueue(queue, message("a", vec![0; 5000]));
    }
    shell.restart();
    let consumer = shell.subscribe(queue, 0);
    let first = shell.next(consumer).unwrap();
    shell.report(queue, first.lease, Verdict::Ack);
    assert!(shell.stats(queue).stored_only > 0);
    let shown = shell.peek(queue);
    assert_eq!(shown.len(), 10, "nothing is deleted yet");
    assert_eq!(shown[0], (first.message, None));
    assert!(shown[1..].iter().all(|(_, status)| status.is_some()));
}

#[test]
fn what_has_outlived_its_time_is_left_out_in_memory_and_in_the_store() {
    for (mut shell, queue) in [queue(), forgetful(QueueSettings::default())] {
        let mut ids = Vec::new();
        for n in 0..12 {
            let mut mortal = message("a", vec![0; 200]);
            mortal.ttl = Ttl::For(Duration::from_secs(1 + n));
            ids.push(shell.enqueue(queue, mortal));
        }
        shell.advance(10 * SECOND);
        let shown = states(&mut shell, queue);
        let left: Vec<_> = ids[10..]
            .iter()
            .map(|id| (*id, MessageState::Ready))
            .collect();
        assert_eq!(shown, left);
    }
}

#[test]
fn a_delayed_message_that_is_in_the_store_only_is_shown_as_delayed() {
    let (mut shell, queue) = queue();
    let mut late = message("a", "late");
    late.delay = 60 * SECOND;
    let id = shell.enqueue(queue, late);
    let until = shell.now.saturating_add(60 * SECOND);
    shell.restart();
    assert_eq!(shell.stats(queue).stored_only, 1);
    assert_eq!(
        states(&mut shell, queue),
        [(id, MessageState::Delayed { until })]
    );
    shell.advance(60 * SECOND);
    assert_eq!(states(&mut shell, queue), [(id, MessageState::Ready)]);
}

#[test]
fn a_strict_line_is_shown_with_those_that_hold_it_up() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    let mut late = message("a", "late");
    late.delay = SECOND;
    let first = shell.enqueue(queue, late);
    let second = shell.enqueue(queue, message("a", "second"));
    let until = shell.now.saturating_add(SECOND);
    let expected = [
        (first, MessageState::Delayed { until }),
        (second, MessageState::Ready),
    ];
    assert_eq!(states(&mut shell, queue), expected);
    assert_eq!(shell.keys(queue)[0].head_waiting, None);
    shell.advance(2 * SECOND);
    shell.run();
    assert_eq!(shell.keys(queue)[0].head_waiting, Some(SECOND));
}

#[test]
fn a_peek_takes_no_turn_writes_nothing_and_wakes_no_consumer() {
    let mut definition = QueueSettings::default();
    definition.delivery = Delivering::Paused;
    let (mut shell, queue) = Shell::with_queue(definition);
    for name in ["a", "b"] {
        shell.enqueue(queue, message(name, "one"));
    }
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let before = shell.stats(queue);
    assert_eq!(
        states(&mut shell, queue).len(),
        2,
        "paused queues are shown"
    );
    let is_idle = shell
        .broker
        .next_timer()
        .is_none_or(|next| next > shell.now);
    assert!(is_idle, "nothing has happened to the queue");
    assert!(!shell.broker.is_writing());
    assert!(shell.deliveries.is_empty() && shell.loads.is_empty());
    assert_eq!(shell.stats(queue), before);
}

#[test]
fn the_weight_that_is_shown_is_the_one_in_force() {
    let mut definition = QueueSettings::default();
    let settings = KeySettings {
        weight: NonZeroU32::new(7),
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue(queue, message("a", "one"));
    let mut heavy = message("b", "two");
    heavy.schedule.weight = NonZeroU32::new(3).unwrap();
    shell.enqueue(queue, heavy);
    let weights: Vec<u32> = shell
        .peek(queue)
        .iter()
        .map(|(_, status)| status.unwrap().weight)
        .collect();
    assert_eq!(weights, [7, 3]);
}

#[test]
fn a_queue_that_is_gone_shows_nothing() {
    let (mut shell, queue) = queue();
    shell.delete(queue);
    let shown = shell.broker.peek(shell.now, queue, &[]);
    assert_eq!(shown, Err(Refused::QueueGone));
}

#[test]
fn waits_are_added_up_from_when_a_message_could_first_be_delivered() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "at once"));
    let mut late = message("b", "late");
    late.delay = 3 * SECOND;
    shell.enqueue(queue, late);
    shell.advance(5 * SECOND);
    let consumer = shell.subscribe(queue, 0);
    shell.next(consumer).unwrap();
    shell.next(consumer).unwrap();
    let totals = shell.stats(queue).totals;
    assert_eq!((totals.first_delivered, totals.waited), (2, 7 * SECOND));
    let waits: Vec<_> = shell
        .keys(queue)
        .iter()
        .map(|key| (key.first_delivered, key.waited))
        .collect();
    assert_eq!(waits, [(1, 5 * SECOND), (1, 2 * SECOND)]);
}

#[test]
fn only_the_first_delivery_of_a_message_counts_as_a_wait() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, 0);
    shell.advance(SECOND);
    let untouched = shell.next(consumer).unwrap().lease;
    shell.settle(queue, untouched, Verdict::Release).unwrap();
    shell.advance(10 * SECOND);
    let failed = shell.next(consumer).unwrap().lease;
    let delay = Duration::ZERO;
    let verdict = nack(delay);
    shell.settle(queue, failed, verdict).unwrap();
    shell.advance(10 * SECOND);
    shell.next(consumer).unwrap();
    let totals = shell.stats(queue).totals;
    assert_eq!((totals.delivered, totals.first_delivered), (3, 1));
    assert_eq!(totals.waited, SECOND);
    let stats = shell.keys(queue).remove(0);
    assert_eq!((stats.acked, stats.nacked), (0, 1));
}

#[test]
fn a_key_counts_its_own_results() {
    let (mut shell, queue) = queue();
    for name in ["a", "a", "b"] {
        shell.enqueue(queue, message(name, "one"));
    }
    let consumer = shell.subscribe(queue, 0);
    let lease = shell.next(consumer).unwrap().lease;
    shell.settle(queue, lease, Verdict::Ack).unwrap();
    let counted: Vec<_> = shell
        .keys(queue)
        .iter()
        .map(|key| (key.acked, key.nacked))
        .collect();
    assert_eq!(counted, [(1, 0), (0, 0)]);
}

#[test]
fn the_head_of_a_key_waits_since_it_became_ready() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    shell.advance(SECOND);
    shell.enqueue(queue, message("a", "two"));
    shell.advance(2 * SECOND);
    let waiting = |shell: &mut Shell| shell.keys(queue)[0].head_waiting;
    assert_eq!(waiting(&mut shell), Some(3 * SECOND));
    let consumer = shell.subscribe(queue, 0);
    let lease = shell.next(consumer).unwrap().lease;
    assert_eq!(waiting(&mut shell), Some(2 * SECOND), "the second is first");
    let delay = Duration::ZERO;
    shell.settle(queue, lease, nack(delay)).unwrap();
    shell.advance(SECOND);
    assert_eq!(waiting(&mut shell), Some(SECOND), "since it came back");
    for _ in 0..2 {
        shell.next(consumer).unwrap();
    }
    assert_eq!(waiting(&mut shell), None, "nothing is ready");
}

#[test]
fn a_head_that_is_in_the_store_only_is_as_old_as_the_store_says() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    shell.advance(4 * SECOND);
    shell.enqueue(queue, message("a", "two"));
    shell.restart();
    shell.advance(SECOND);
    assert_eq!(shell.stats(queue).stored_only, 2);
    assert_eq!(shell.keys(queue)[0].head_waiting, Some(5 * SECOND));
}

#[test]
fn a_head_that_is_read_back_is_not_younger_than_it_is_nor_older_than_the_one_before() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    let mut accepted = Vec::new();
    for _ in 0..40 {
        shell.enqueue(queue, message("a", vec![0; 5000]));
        accepted.push(shell.now);
        shell.advance(SECOND);
    }
    let consumer = shell.subscribe(queue, 0);
    let mut were_in_store = 0;
    for next in 1..40 {
        shell.tell(Command::Credit { consumer, more: 1 });
        shell.poll();
        while shell.deliveries.pop_front().is_none() {
            shell.load();
        }
        let (least, most) = (accepted[next], accepted[next - 1]);
        let (least, most) = (shell.now.since(least), shell.now.since(most));
        let shown = shell.keys(queue).remove(0);
        were_in_store += u32::from(shell.stats(queue).stored_only == shown.ready);
        let waiting = shown.head_waiting.unwrap();
        assert!((least..=most).contains(&waiting), "{next}: {waiting:?}");
    }
    assert!(were_in_store > 0);
}

#[test]
fn a_clock_that_was_set_back_makes_no_wait_of_it() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("a", "one"));
    shell.now = Timestamp::from_millis(1_000);
    shell.restart();
    let consumer = shell.subscribe(queue, 0);
    shell.next(consumer).unwrap();
    let totals = shell.stats(queue).totals;
    assert_eq!((totals.first_delivered, totals.waited), (1, Duration::ZERO));
}
