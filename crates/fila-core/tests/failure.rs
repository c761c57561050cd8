//! Deliveries that fail: when they are tried again, what decides that, and which messages are affected.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Beginnings, Command, ConsumerId, ConsumerKind, Demand, Departure, Judgement, MessageState,
    Ordering, QueueSettings, RECONNECT_GRACE, RetryPolicy, Settings, Verdict,
};
use fila_store::{DeathReason, ErrorText, MessageId, QueueId, Timestamp};

use support::{Answer, MILLISECOND, SECOND, Shell, message, nack, trying_again_at_once};

/// Returns a policy without surprises: 1 s, 2 s, 4 s, and then 5 s.
fn exact() -> QueueSettings {
    let mut definition = QueueSettings::default();
    definition.retry.jitter_percent = 0;
    definition.retry.backoff_max = 5 * SECOND;
    definition
}

fn judged() -> QueueSettings {
    let mut definition = exact();
    definition.failure_hook = true;
    definition
}

fn failed(text: &str) -> Verdict {
    Verdict::Nack {
        delay: None,
        error: Some(ErrorText::new(text)),
    }
}

/// Returns a shell with a queue whose only message is with a consumer.
fn delivered(definition: QueueSettings) -> (Shell, QueueId) {
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue(queue, message("a", "one"));
    shell.subscribe(queue, u32::MAX);
    shell.run();
    (shell, queue)
}

/// Reports the result of the first delivery that has none.
fn settle_next(shell: &mut Shell, queue: QueueId, verdict: Verdict) {
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    shell.settle(queue, delivery.lease, verdict).unwrap();
}

/// Tells for how long nothing is delivered from now on.
fn silence(shell: &mut Shell) -> Duration {
    let began = shell.now;
    for _ in 0..100_000 {
        shell.run();
        if !shell.deliveries.is_empty() {
            return shell.now.since(began);
        }
        let next = shell.broker.next_timer().expect("something is to come");
        shell.now = next.max(shell.now);
    }
    panic!("nothing comes");
}

fn stored_deliver_after(shell: &Shell, queue: QueueId) -> Vec<Option<Timestamp>> {
    use fila_store::{Cursor, Shard};
    let page = shell.shards[&queue].scan(&Cursor::start(), 100).unwrap();
    page.items.iter().map(|it| it.meta.deliver_after).collect()
}

#[test]
fn a_failed_message_waits_twice_as_long_every_time_up_to_the_cap_and_to_the_millisecond() {
    let (mut shell, queue) = delivered(exact());
    for (attempt, wait) in (1..).zip([1, 2, 4, 5, 5, 5]) {
        let (_, delivery) = shell.deliveries.pop_front().unwrap();
        assert_eq!(delivery.attempt, attempt);
        shell.settle(queue, delivery.lease, failed("no")).unwrap();
        assert_eq!(silence(&mut shell), wait * SECOND, "attempt {attempt}");
    }
    assert_eq!(shell.stats(queue).totals.retried, 6);
}

#[test]
fn jitter_keeps_what_failed_together_from_coming_back_together() {
    let mut definition = exact();
    definition.retry.jitter_percent = 20;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue_all(queue, vec![message("a", ""); 100]);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let began = shell.now;
    for (_, delivery) in std::mem::take(&mut shell.deliveries) {
        shell.report(queue, delivery.lease, failed("no"));
    }
    let mut waits = Vec::new();
    while waits.len() < 100 {
        silence(&mut shell);
        let came = std::mem::take(&mut shell.deliveries);
        waits.extend(came.iter().map(|_| shell.now.since(began)));
    }
    assert!(waits[0] >= 800 * MILLISECOND && waits[99] <= 1200 * MILLISECOND);
    waits.dedup();
    assert!(waits.len() > 50, "{} moments", waits.len());
}

#[test]
fn a_consumers_own_delay_comes_before_the_policy() {
    let (mut shell, queue) = delivered(exact());
    for wait in [Duration::ZERO, 7 * MILLISECOND, 3600 * SECOND] {
        settle_next(&mut shell, queue, nack(wait));
        assert_eq!(silence(&mut shell), wait);
    }
}

#[test]
fn a_lease_that_runs_out_has_waited_long_enough_and_says_why() {
    let (mut shell, _) = delivered(exact());
    shell.deliveries.clear();
    assert_eq!(silence(&mut shell), 30 * SECOND, "leased, and no more");
    let history = shell.deliveries[0].1.history.clone().unwrap();
    assert_eq!(&*history.last_error, "visibility timeout expired");
}

#[test]
fn a_lost_consumer_costs_what_it_had_begun_an_attempt_and_the_grace() {
    let (mut shell, queue) = Shell::with_queue(exact());
    shell.enqueue(queue, message("a", "one"));
    let consumer = shell.subscribe(queue, u32::MAX);
    shell.run();
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    shell.settle(queue, delivery.lease, Verdict::Begin).unwrap();
    shell.unsubscribe(consumer, Departure::Lost);
    shell.subscribe(queue, u32::MAX);
    assert_eq!(silence(&mut shell), RECONNECT_GRACE);
    let delivery = &shell.deliveries[0].1;
    assert_eq!(delivery.attempt, 2);
    let history = delivery.history.clone().unwrap();
    assert_eq!(&*history.last_error, "consumer disconnected");
}

#[test]
fn a_release_counts_nothing_and_leaves_no_history() {
    let (mut shell, queue) = delivered(exact());
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    shell
        .settle(queue, delivery.lease, Verdict::Release)
        .unwrap();
    assert_eq!(silence(&mut shell), Duration::ZERO);
    let delivery = &shell.deliveries[0].1;
    assert_eq!((delivery.attempt, &delivery.history), (1, &None));
}

#[test]
fn the_history_has_the_last_error_and_the_first_and_last_times_and_survives_a_restart() {
    let (mut shell, queue) = delivered(exact());
    let mut times = Vec::new();
    for error in ["first", "second"] {
        let (_, delivery) = shell.deliveries.pop_front().unwrap();
        times.push(shell.now);
        shell.settle(queue, delivery.lease, failed(error)).unwrap();
        silence(&mut shell);
    }
    shell.restart();
    shell.subscribe(queue, u32::MAX);
    silence(&mut shell);
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    assert_eq!(delivery.attempt, 3);
    let history = delivery.history.unwrap();
    assert_eq!(&*history.last_error, "second");
    let found = (history.first_failed_at, history.last_failed_at);
    assert_eq!(found, (times[0], times[1]));
    assert_eq!(history.death, None);
}

#[test]
fn a_wait_goes_on_after_a_restart_and_is_not_begun_anew() {
    let (mut shell, queue) = delivered(exact());
    settle_next(&mut shell, queue, failed("no"));
    shell.advance(600 * MILLISECOND);
    shell.restart();
    shell.subscribe(queue, u32::MAX);
    assert_eq!(silence(&mut shell), 400 * MILLISECOND);
}

// Judged by a hook.

#[test]
fn a_judge_is_told_what_failed_and_his_word_holds_to_the_millisecond() {
    let (mut shell, queue) = Shell::with_queue(judged());
    let id = shell.enqueue(queue, message("a", "one"));
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let (_, delivery) = shell.deliveries.pop_front().unwrap();
    let settled = shell.settle(queue, delivery.lease, failed("on fire"));
    assert_eq!(settled, Ok(()), "the attempt is stored before it is judged");
    let failure = shell.failures.pop_front().unwrap();
    assert_eq!((failure.queue, failure.locator.id), (queue, id));
    assert_eq!((failure.attempts, &*failure.error), (1, "on fire"));
    let until = shell.now.saturating_add(shell.judging_time());
    let waiting = shell.peek(queue)[0].1.unwrap();
    assert_eq!(waiting.state, MessageState::Delayed { until });
    let delay = 1234 * MILLISECOND;
    shell.judge(queue, failure.token, Judgement::Retry { delay });
    assert_eq!(silence(&mut shell), delay);
    // A second judgement has no effect.
    shell.judge(queue, failure.token, Judgement::Retry { delay: 9 * SECOND });
    assert_eq!(shell.stats(queue).leased, 1);
}

#[test]
fn a_judge_who_never_answers_leaves_it_to_the_policy() {
    let (mut shell, queue) = delivered(judged());
    settle_next(&mut shell, queue, failed("no"));
    let wait = shell.judging_time() + SECOND;
    assert_eq!(silence(&mut shell), wait);
}

#[test]
fn a_crash_before_the_judgement_is_as_good_as_the_policys_own() {
    let (mut shell, queue) = delivered(judged());
    settle_next(&mut shell, queue, failed("no"));
    let due = shell.now.saturating_add(SECOND);
    assert_eq!(stored_deliver_after(&shell, queue), [Some(due)]);
    shell.restart();
    shell.subscribe(queue, u32::MAX);
    assert_eq!(silence(&mut shell), SECOND);
    assert_eq!(shell.deliveries[0].1.attempt, 2);
}

#[test]
fn a_consumers_delay_is_a_wish_that_the_judge_may_leave_as_it_is() {
    let (mut shell, queue) = delivered(judged());
    let wish = 77 * MILLISECOND;
    settle_next(&mut shell, queue, nack(wish));
    let token = shell.failures.pop_front().unwrap().token;
    shell.judge(queue, token, Judgement::Default);
    assert_eq!(silence(&mut shell), wish);
}

#[test]
fn a_judge_cannot_ask_for_longer_than_anybody_may() {
    let mut settings = Settings::default();
    settings.limits.delay = 3 * SECOND;
    let mut shell = Shell::new(settings);
    let queue = shell.create("q", judged());
    shell.enqueue(queue, message("a", "one"));
    shell.subscribe(queue, u32::MAX);
    shell.run();
    settle_next(&mut shell, queue, failed("no"));
    let token = shell.failures.pop_front().unwrap().token;
    let delay = Duration::MAX;
    shell.judge(queue, token, Judgement::Retry { delay });
    assert_eq!(silence(&mut shell), 3 * SECOND);
}

#[test]
fn what_waits_for_its_judge_holds_up_a_strict_line_and_no_other() {
    for ordering in [Ordering::Key, Ordering::None] {
        let mut definition = judged();
        definition.ordering = ordering;
        let (mut shell, queue) = Shell::with_queue(definition);
        shell.enqueue_all(queue, vec![message("a", "one"), message("a", "two")]);
        shell.subscribe(queue, 1);
        shell.run();
        let (consumer, delivery) = shell.deliveries.pop_front().unwrap();
        shell.settle(queue, delivery.lease, failed("no")).unwrap();
        shell.tell(Command::Credit { consumer, more: 9 });
        shell.run();
        let others = usize::from(ordering == Ordering::None);
        assert_eq!(shell.deliveries.len(), others, "{ordering:?}");
        let token = shell.failures.pop_front().unwrap().token;
        let judgement = Judgement::Retry {
            delay: Duration::ZERO,
        };
        shell.judge(queue, token, judgement);
        shell.run();
        let (_, again) = shell.deliveries.pop_back().unwrap();
        assert_eq!((again.message, again.attempt), (delivery.message, 2));
    }
}

#[test]
fn a_life_that_ends_before_the_judgement_has_ended() {
    let mut definition = judged();
    definition.message_ttl = Some(2 * SECOND);
    let (mut shell, queue) = delivered(definition);
    settle_next(&mut shell, queue, failed("no"));
    let token = shell.failures.pop_front().unwrap().token;
    shell.advance(2 * SECOND);
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.expired), (0, 1));
    shell.judge(queue, token, Judgement::Default);
    shell.run();
    assert_eq!(shell.stats(queue).depth(), 0);
    assert_eq!(shell.broker.memory_used(), 0);
}

#[test]
fn a_purge_and_a_deletion_take_what_is_failing_with_them() {
    let (mut shell, queue) = delivered(judged());
    settle_next(&mut shell, queue, failed("no"));
    let token = shell.failures.pop_front().unwrap().token;
    let ticket = shell.purge(queue);
    let dies = Judgement::DeadLetter {
        reason: DeathReason::Hook,
    };
    shell.judge(queue, token, dies);
    shell.run();
    assert_eq!(shell.answers.remove(&ticket), Some(Answer::Purged(1)));
    assert_eq!(shell.stats(queue).depth(), 0);
    shell.delete(queue);
    shell.judge(queue, token, dies);
    shell.run();
    assert_eq!(shell.broker.memory_used(), 0);
}

// What failures may take of others.

#[test]
fn where_as_many_wait_as_may_a_failing_key_is_held_and_the_others_go_on() {
    let mut settings = Settings::default();
    settings.limits.delayed_per_queue = 10;
    let mut shell = Shell::new(settings);
    let queue = shell.create("q", exact());
    let messages = (0..200).map(|n| message(if n % 2 == 0 { "bad" } else { "good" }, ""));
    shell.enqueue_all(queue, messages.collect());
    let demand = Demand {
        credit: u32::MAX,
        in_flight_max: 4,
        kind: ConsumerKind::Stream(Beginnings::Reported),
    };
    shell.subscribe_as(queue, ConsumerId::new(1), demand);
    let work = |shell: &mut Shell| {
        let (mut good, mut waiting) = (0, 0);
        loop {
            shell.run();
            let Some((_, delivery)) = shell.deliveries.pop_front() else {
                return (good, waiting);
            };
            let is_good = delivery.fairness_key.as_bytes() == b"good";
            good += usize::from(is_good);
            let verdict = if is_good { Verdict::Ack } else { failed("no") };
            shell.settle(queue, delivery.lease, verdict).unwrap();
            waiting = waiting.max(shell.stats(queue).delayed);
        }
    };
    let (good, waiting) = work(&mut shell);
    assert_eq!(good, 100, "the good ones do not notice");
    assert!((10..=14).contains(&waiting), "{waiting}");
    // As time passes the bad ones have their turns, too, and still no more of them wait.
    for _ in 0..50 {
        shell.advance(SECOND);
        let (_, waiting) = work(&mut shell);
        assert!(waiting <= 14, "{waiting}");
    }
    assert!(shell.stats(queue).totals.delivered > 150);
}

/// The messages of a consumer, and since when they have waited.
struct Waits(BTreeMap<MessageId, Timestamp>);

/// Plays two minutes of one consumer that works on ten messages at once for 10 ms each. Eight keys send as much as
/// they may; with a ninth and last one, whose messages are half of all, and fail if `fails`. Returns the 99th percentile of
/// how long messages of the eight have waited.
fn p99_beside(fails: bool) -> Duration {
    let mut definition = trying_again_at_once();
    definition.retry = RetryPolicy::default();
    definition.retry.attempts_max = None;
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, 10);
    let mut sent = Waits(BTreeMap::new());
    let mut working: Vec<(Timestamp, fila_core::LeaseId, bool)> = Vec::new();
    let mut waits = Vec::new();
    let settle = |shell: &mut Shell, consumer: ConsumerId, lease, is_bad: bool| {
        let verdict = if is_bad && fails {
            failed("no")
        } else {
            Verdict::Ack
        };
        shell.report(queue, lease, verdict);
        shell.tell(Command::Credit { consumer, more: 1 });
    };
    for tick in 0..120_000_u64 {
        shell.advance(MILLISECOND);
        let now = shell.now;
        // 800 in a second where 1,000 can be done: half of them by one key.
        if tick % 20 == 0 {
            let mut messages: Vec<_> = (0..8).map(|n| message(&format!("k{n}"), "")).collect();
            messages.extend(vec![message("busy", ""); 8]);
            let results = shell.enqueue_all(queue, messages);
            for result in &results[..8] {
                if let Ok(fila_core::Enqueued::Stored(id)) = result {
                    sent.0.insert(*id, now);
                }
            }
        }
        while let Some(done) = working.iter().position(|(end, ..)| *end <= now) {
            let (_, lease, is_bad) = working.swap_remove(done);
            settle(&mut shell, consumer, lease, is_bad);
        }
        shell.run();
        shell.answers.clear();
        for (_, delivery) in std::mem::take(&mut shell.deliveries) {
            if let Some(since) = sent.0.remove(&delivery.message) {
                waits.push(now.since(since));
            }
            let is_bad = delivery.fairness_key.as_bytes() == b"busy";
            working.push((now.saturating_add(10 * MILLISECOND), delivery.lease, is_bad));
        }
    }
    waits.sort_unstable();
    assert!(waits.len() > 47_000, "{}", waits.len());
    waits[waits.len() * 99 / 100]
}

#[test]
fn a_key_that_always_fails_at_half_of_the_load_slows_no_other_key() {
    let (calm, failing) = (p99_beside(false), p99_beside(true));
    assert!(failing <= calm.mul_f64(1.05), "{calm:?} and {failing:?}");
}

#[test]
fn where_nothing_may_wait_what_fails_waits_all_the_same_and_its_keys_go_on_afterwards() {
    let mut settings = Settings::default();
    settings.limits.delayed_per_queue = 0;
    let mut shell = Shell::new(settings);
    let queue = shell.create("queue", exact());
    let keys = ["a", "b", "c"];
    let messages = keys.map(|name| [message(name, "first"), message(name, "second")]);
    shell.enqueue_all(queue, messages.into_iter().flatten().collect());
    let consumer = shell.subscribe(queue, 3);
    shell.run();
    assert_eq!(shell.deliveries.len(), 3);
    for (_, delivery) in std::mem::take(&mut shell.deliveries) {
        shell.report(queue, delivery.lease, nack(SECOND));
    }
    shell.tell(Command::Credit { consumer, more: 6 });
    shell.run();
    assert!(shell.deliveries.is_empty(), "all three are held");
    assert_eq!(silence(&mut shell), SECOND);
    assert_eq!(shell.deliveries.len(), 6);
}

#[test]
fn attempts_are_not_limited_where_there_are_no_dead_letters() {
    let mut definition = trying_again_at_once();
    definition.retry.attempts_max = NonZeroU32::new(2);
    let (mut shell, queue) = delivered(definition);
    for attempt in 1..=20 {
        let (_, delivery) = shell.deliveries.pop_front().unwrap();
        assert_eq!(delivery.attempt, attempt);
        shell.settle(queue, delivery.lease, failed("no")).unwrap();
    }
}
