#![cfg(test)] // helpers may unwrap, as tests do
//! Throttles, from outside: who is delivered when, by a clock that is a number.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fila_core::{
    Command, Delivery, Limits, NewMessage, Ordering, QueueSettings, TokenSource, Tokens, Ttl,
    Verdict,
};
use fila_store::{QueueId, ThrottleKey, Timestamp};

use support::{MILLISECOND, START, Shell, key, message, throttle_key, throttled};

/// Goes on millisecond by millisecond; returns what was delivered, with the time since the start.
fn watch(shell: &mut Shell, millis: u64) -> Vec<(u64, Delivery)> {
    let mut seen = Vec::new();
    for _ in 0..millis {
        shell.run();
        let now = shell.now.as_millis() - START;
        seen.extend(shell.deliveries.drain(..).map(|(_, it)| (now, it)));
        shell.advance(MILLISECOND);
    }
    seen
}

fn times(seen: &[(u64, Delivery)]) -> Vec<u64> {
    seen.iter().map(|(time, _)| *time).collect()
}

fn names(seen: &[(u64, Delivery)]) -> Vec<String> {
    let name = |it: &Delivery| String::from_utf8_lossy(it.fairness_key.as_bytes()).into_owned();
    seen.iter().map(|(_, it)| name(it)).collect()
}

fn count_by_name(seen: &[(u64, Delivery)]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for name in names(seen) {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

fn many(shell: &mut Shell, queue: QueueId, count: usize, message: &NewMessage) {
    for chunk in vec![message.clone(); count].chunks(1000) {
        let results = shell.enqueue_all(queue, chunk.to_vec());
        assert!(results.iter().all(Result::is_ok));
    }
}

fn open(definition: QueueSettings) -> (Shell, QueueId) {
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.subscribe(queue, u32::MAX);
    (shell, queue)
}

fn strict() -> QueueSettings {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    definition
}

/// Fails if any window has more deliveries than burst and rate allow.
fn check_windows(times: &[u64], rate: f64, burst: f64) {
    // While messages wait, a bucket holds at least a token and those of 20 ms.
    let burst = burst.max(1.0 + rate * 0.02);
    for (index, from) in times.iter().enumerate() {
        for (count, to) in (1_u64..).zip(&times[index..]) {
            let most = burst + rate * (to - from) as f64 / 1000.0;
            assert!(count as f64 <= most + 1e-6, "{count} from {from} to {to}");
        }
    }
}

#[test]
fn a_burst_goes_at_once_and_the_rest_at_the_rate_to_the_millisecond() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 10.0, 3.0);
    many(&mut shell, queue, 6, &throttled("a", &["api"]));
    let seen = watch(&mut shell, 1_000);
    assert_eq!(times(&seen), [0, 0, 0, 100, 200, 300]);
}

#[test]
fn a_throttle_key_without_a_rate_holds_no_message() {
    let (mut shell, queue) = open(QueueSettings::default());
    many(&mut shell, queue, 100, &throttled("a", &["api", "other"]));
    assert_eq!(watch(&mut shell, 1).len(), 100);
}

#[test]
fn a_message_takes_all_its_tokens_or_none() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("fast", 1_000.0, 10.0);
    shell.throttle("slow", 1.0, 1.0);
    many(&mut shell, queue, 3, &throttled("both", &["fast", "slow"]));
    many(&mut shell, queue, 9, &throttled("fast", &["fast"]));
    let seen = watch(&mut shell, 2_500);
    // Ten tokens at once: one for the first of both, and none is taken for those of it that lack the other.
    let first: Vec<_> = names(&seen)[..10].to_vec();
    assert_eq!(first.iter().filter(|name| *name == "fast").count(), 9);
    let both: Vec<_> = seen
        .iter()
        .filter(|(_, it)| it.fairness_key == key("both"))
        .collect();
    let both: Vec<u64> = both.iter().map(|(time, _)| *time).collect();
    assert_eq!(both, [0, 1_000, 2_000]);
}

#[test]
fn a_throttle_key_that_is_named_twice_takes_one_token() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 10.0, 1.0);
    many(&mut shell, queue, 3, &throttled("a", &["api", "api"]));
    assert_eq!(times(&watch(&mut shell, 500)), [0, 100, 200]);
}

#[test]
fn messages_of_the_same_key_with_other_tokens_or_none_go_on() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("stopped", 0.0, 1.0);
    shell.throttle("slow", 100.0, 1.0);
    for _ in 0..3 {
        shell.enqueue(queue, throttled("a", &["stopped"]));
        shell.enqueue(queue, throttled("a", &["slow"]));
        shell.enqueue(queue, message("a", "free"));
    }
    let seen = watch(&mut shell, 100);
    let free = seen
        .iter()
        .filter(|(_, it)| &it.payload.body()[..] == b"free");
    assert_eq!(free.map(|(time, _)| *time).collect::<Vec<_>>(), [0, 0, 0]);
    assert_eq!(seen.len(), 6);
    assert_eq!(shell.stats(queue).throttled, 3);
    shell.unthrottle("stopped");
    assert_eq!(watch(&mut shell, 1).len(), 3);
    assert_eq!(shell.stats(queue).throttled, 0);
}

#[test]
fn a_strict_line_waits_behind_its_head_and_keeps_its_order() {
    let (mut shell, queue) = open(strict());
    shell.throttle("api", 10.0, 1.0);
    for keys in [&["api"][..], &["api"], &[], &["api"]] {
        shell.enqueue(queue, throttled("a", keys));
    }
    shell.enqueue(queue, message("b", "other"));
    let mut order = Vec::new();
    for _ in 0..400 {
        for (time, delivery) in watch(&mut shell, 1) {
            order.push((time, delivery.message.counter()));
            assert_eq!(shell.settle(queue, delivery.lease, Verdict::Ack), Ok(()));
        }
    }
    // The messages behind it go when it is acknowledged, which here takes a millisecond.
    assert_eq!(order, [(0, 0), (0, 4), (100, 1), (101, 2), (200, 3)]);
}

#[test]
fn a_head_that_expires_lets_its_strict_line_go_on() {
    let (mut shell, queue) = open(strict());
    shell.throttle("api", 0.0, 1.0);
    let mut head = throttled("a", &["api"]);
    head.ttl = Ttl::For(Duration::from_millis(50));
    shell.enqueue(queue, head);
    shell.enqueue(queue, message("a", "behind"));
    assert_eq!(times(&watch(&mut shell, 100)), [50]);
    assert_eq!(shell.stats(queue).throttled, 0);
}

#[test]
fn what_expires_while_it_waits_is_gone_and_the_others_are_not() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 10.0, 1.0);
    let mut short = throttled("a", &["api"]);
    short.ttl = Ttl::For(Duration::from_millis(150));
    many(&mut shell, queue, 5, &short);
    many(&mut shell, queue, 2, &throttled("a", &["api"]));
    // At 0 and 100 two of those that live shortly; the others end at 150.
    assert_eq!(times(&watch(&mut shell, 500)), [0, 100, 200, 300]);
    let stats = shell.stats(queue);
    assert_eq!(
        (stats.ready, stats.throttled, stats.totals.expired),
        (0, 0, 3)
    );
}

#[test]
fn raising_a_rate_acts_at_once_on_waiting_messages() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 0.001, 1.0);
    many(&mut shell, queue, 4, &throttled("a", &["api"]));
    assert_eq!(times(&watch(&mut shell, 500)), [0]);
    shell.throttle("api", 1_000.0, 1.0);
    assert_eq!(times(&watch(&mut shell, 5)), [501, 502, 503]);
}

#[test]
fn lowering_a_rate_acts_at_once_too() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 10.0, 1.0);
    many(&mut shell, queue, 3, &throttled("a", &["api"]));
    assert_eq!(times(&watch(&mut shell, 50)), [0]);
    shell.throttle("api", 1.0, 1.0);
    // Half a token was there, the other half takes half a second.
    assert_eq!(times(&watch(&mut shell, 600)), [550]);
}

#[test]
fn a_restart_gives_no_second_burst() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 10.0, 20.0);
    many(&mut shell, queue, 60, &throttled("a", &["api"]));
    let mut seen = times(&watch(&mut shell, 500));
    for _ in 0..4 {
        shell.restart();
        shell.subscribe(queue, u32::MAX);
        seen.extend(times(&watch(&mut shell, 150)));
    }
    check_windows(&seen, 10.0, 20.0);
    assert_eq!(seen.len(), 20 + 4 + 4);
}

#[test]
fn a_delivery_that_failed_takes_another_token() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 10.0, 1.0);
    shell.enqueue(queue, throttled("a", &["api"]));
    let mut seen = Vec::new();
    for _ in 0..350 {
        for (time, delivery) in watch(&mut shell, 1) {
            seen.push(time);
            let again = Verdict::Nack {
                delay: Some(Duration::ZERO),
                error: None,
            };
            assert_eq!(shell.settle(queue, delivery.lease, again), Ok(()));
        }
    }
    assert_eq!(seen, [0, 100, 200, 300]);
}

#[test]
fn a_noisy_key_at_a_bucket_does_not_keep_a_quiet_one_out() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 10.0, 1.0);
    many(&mut shell, queue, 5_000, &throttled("noisy", &["api"]));
    watch(&mut shell, 950);
    shell.enqueue(queue, throttled("quiet", &["api"]));
    let seen = watch(&mut shell, 250);
    assert!(
        names(&seen).contains(&"quiet".to_owned()),
        "{:?}",
        names(&seen)
    );
}

#[test]
fn tokens_are_shared_by_weight_in_all_queues() {
    let (mut shell, queue) = open(QueueSettings::default());
    let other = shell.create("other", QueueSettings::default());
    shell.subscribe(other, u32::MAX);
    shell.throttle("api", 100.0, 1.0);
    let mut heavy = throttled("heavy", &["api"]);
    heavy.schedule.weight = 3.try_into().unwrap();
    many(&mut shell, queue, 1_000, &heavy);
    many(&mut shell, queue, 1_000, &throttled("light", &["api"]));
    many(&mut shell, other, 1_000, &throttled("elsewhere", &["api"]));
    let counts = count_by_name(&watch(&mut shell, 10_000));
    let of = |name: &str| counts[name] as f64;
    assert!((of("heavy") / of("light") - 3.0).abs() < 0.05, "{counts:?}");
    assert!(
        (of("elsewhere") / of("light") - 1.0).abs() < 0.05,
        "{counts:?}"
    );
}

#[test]
fn tokens_that_come_together_are_for_all_who_are_called_for_them() {
    let (mut shell, queue) = open(QueueSettings::default());
    let other = shell.create("other", QueueSettings::default());
    shell.subscribe(other, u32::MAX);
    shell.throttle("api", 10.0, 2.0);
    many(&mut shell, queue, 50, &throttled("here", &["api"]));
    many(&mut shell, other, 50, &throttled("there", &["api"]));
    shell.run();
    shell.deliveries.clear();
    for _ in 0..20 {
        // Both at once, whichever queue is looked at first.
        shell.advance(Duration::from_millis(200));
        shell.run();
        let seen: Vec<_> = shell.deliveries.drain(..).map(|it| (0, it.1)).collect();
        let counts = count_by_name(&seen);
        assert_eq!((counts["here"], counts["there"]), (1, 1));
    }
}

#[test]
fn tokens_for_a_queue_without_consumers_go_to_a_queue_with_some() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let read = shell.create("read", QueueSettings::default());
    let gone = shell.subscribe(queue, u32::MAX);
    shell.subscribe(read, u32::MAX);
    shell.throttle("api", 10.0, 1.0);
    many(&mut shell, queue, 10, &throttled("unread", &["api"]));
    many(&mut shell, read, 10, &throttled("read", &["api"]));
    watch(&mut shell, 150);
    shell.tell(Command::Drain { consumer: gone });
    let seen = watch(&mut shell, 500);
    assert_eq!(times(&seen), [200, 300, 400, 500, 600]);
    assert_eq!(count_by_name(&seen)["read"], 5);
    // And when a consumer comes, it has its share again.
    shell.subscribe(queue, u32::MAX);
    let counts = count_by_name(&watch(&mut shell, 400));
    assert_eq!(counts["unread"], 2, "{counts:?}");
}

#[test]
fn one_that_needs_two_busy_buckets_is_not_kept_waiting_for_ever() {
    let (mut shell, queue) = open(QueueSettings::default());
    // Their tokens never come at the same time.
    shell.throttle("x", 10.0, 1.0);
    many(&mut shell, queue, 300, &throttled("only-x", &["x"]));
    watch(&mut shell, 50);
    shell.throttle("y", 10.0, 1.0);
    many(&mut shell, queue, 300, &throttled("only-y", &["y"]));
    many(&mut shell, queue, 100, &throttled("both", &["y", "x"]));
    let seen = watch(&mut shell, 10_000);
    let counts = count_by_name(&seen);
    assert!(counts["both"] >= 20, "{counts:?}");
    for bucket in ["x", "y"] {
        let only = key(&format!("only-{bucket}"));
        let both = key("both");
        let of = |it: &Delivery| it.fairness_key == only || it.fairness_key == both;
        let times: Vec<u64> = seen
            .iter()
            .filter(|(_, it)| of(it))
            .map(|it| it.0)
            .collect();
        check_windows(&times, 10.0, 1.0);
        // The tokens reserved for messages of the other bucket are lost to this one while it is full, no more.
        assert!(times.len() >= 50, "{bucket}: {} of 100", times.len());
    }
}

#[test]
fn no_waiting_key_is_forgotten_when_others_leave() {
    let (mut shell, queue) = open(QueueSettings::default());
    let gone = shell.create("gone", QueueSettings::default());
    shell.subscribe(gone, u32::MAX);
    shell.throttle("api", 1_000.0, 1.0);
    let of = |number: usize| throttled(&format!("key {number}"), &["api"]);
    for number in 0..300 {
        many(&mut shell, queue, 2, &of(number));
        many(&mut shell, gone, 2, &of(number));
    }
    shell.delete(gone);
    // And a consumer that leaves takes no tokens.
    let left = 600 - shell.stats(queue).leased;
    watch(&mut shell, left + 2);
    assert_eq!(shell.stats(queue).leased, 600);
}

#[test]
fn a_purge_leaves_no_key_waiting() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 10.0, 1.0);
    many(&mut shell, queue, 100, &throttled("a", &["api"]));
    watch(&mut shell, 50);
    shell.purge(queue);
    shell.run();
    assert_eq!(shell.stats(queue).throttled, 0);
    shell.enqueue(queue, throttled("b", &["api"]));
    assert_eq!(times(&watch(&mut shell, 500)), [100]);
}

#[test]
fn a_deleted_queue_leaves_its_tokens_to_others() {
    let (mut shell, queue) = open(QueueSettings::default());
    let other = shell.create("other", QueueSettings::default());
    shell.subscribe(other, u32::MAX);
    shell.throttle("api", 10.0, 1.0);
    many(&mut shell, queue, 10, &throttled("gone", &["api"]));
    many(&mut shell, other, 3, &throttled("left", &["api"]));
    watch(&mut shell, 50);
    shell.delete(queue);
    let seen = watch(&mut shell, 1_000);
    assert_eq!(names(&seen), ["left"; 3]);
}

#[test]
fn a_backlog_in_the_store_is_throttled_as_exactly_and_lets_others_of_its_key_by() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 0);
    shell.throttle("api", 100.0, 5.0);
    many(&mut shell, queue, 200, &throttled("a", &["api"]));
    many(&mut shell, queue, 50, &message("b", "free"));
    shell.subscribe(queue, 10_000);
    let seen = watch(&mut shell, 1_950);
    let a: Vec<u64> = seen
        .iter()
        .filter(|it| it.1.fairness_key == key("a"))
        .map(|it| it.0)
        .collect();
    check_windows(&a, 100.0, 5.0);
    assert_eq!(a.len(), 199, "{a:?}");
    let b = seen.iter().filter(|it| it.1.fairness_key == key("b"));
    assert!(b.map(|it| it.0).all(|time| time == 0));

    // With room in memory, what is behind them is found, too.
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    shell.throttle("api", 100.0, 5.0);
    many(&mut shell, queue, 2_000, &throttled("a", &["api"]));
    many(&mut shell, queue, 3, &message("a", "free"));
    shell.restart();
    shell.subscribe(queue, 10_000);
    let seen = watch(&mut shell, 10);
    assert_eq!(
        seen.iter()
            .filter(|it| &it.1.payload.body()[..] == b"free")
            .count(),
        3
    );
}

#[test]
fn a_backlog_in_the_store_gets_the_whole_rate_however_little_of_it_is_in_memory() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 64 << 10);
    shell.subscribe(queue, u32::MAX);
    shell.throttle("api", 1_000.0, 1.0);
    many(&mut shell, queue, 3_000, &throttled("a", &["api"]));
    assert!(shell.stats(queue).stored_only > 2_500);
    // First those that are delivered stay where they are, and then they are settled at once.
    let mut leased = watch(&mut shell, 1_000);
    assert!((990..=1_001).contains(&leased.len()), "{}", leased.len());
    for _ in 0..1_000 {
        for (_, delivery) in leased.split_off(leased.len().min(990)) {
            shell.report(queue, delivery.lease, Verdict::Ack);
        }
        leased.extend(watch(&mut shell, 1));
    }
    let acked = shell.stats(queue).totals.acked;
    assert!((980..=1_011).contains(&acked), "{acked}");
}

#[test]
fn what_is_behind_those_that_wait_is_found_as_soon_as_there_is_room_for_them() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 256 << 10);
    let unread = shell.create("unread", QueueSettings::default());
    shell.subscribe(queue, u32::MAX);
    shell.throttle("api", 0.0, 1.0);
    many(&mut shell, unread, 500, &message("b", "in the way"));
    many(&mut shell, queue, 100, &throttled("a", &["api"]));
    many(&mut shell, queue, 3, &message("a", "free"));
    for _ in 0..5 {
        shell.run();
        shell.advance(Duration::from_secs(1));
    }
    let stats = shell.stats(queue);
    assert_eq!((stats.leased, stats.stored_only), (0, 102), "{stats:?}");
    shell.purge(unread);
    shell.run();
    shell.advance(Duration::from_secs(1));
    shell.run();
    let stats = shell.stats(queue);
    assert_eq!((stats.leased, stats.throttled), (3, 100), "{stats:?}");
}

#[test]
fn more_throttle_keys_than_allowed_are_refused() {
    let (mut shell, queue) = open(QueueSettings::default());
    let most = Limits::default().throttle_keys;
    let names: Vec<String> = (0..=most).map(|n| format!("k{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    shell.enqueue(queue, throttled("a", &names[..most]));
    let refused = shell.enqueue_all(queue, vec![throttled("a", &names)]);
    let refused = refused[0].as_ref().unwrap_err().to_string();
    assert_eq!(
        refused,
        "the message names 17 throttle keys, 16 are allowed"
    );
}

#[test]
fn under_a_backlog_the_whole_rate_is_achieved_and_never_more() {
    for rate in [1.0, 3.0, 10.0, 70.0, 999.0, 1_000.0, 5_000.0] {
        let (mut shell, queue) =
            Shell::with_settings(|it| it.limits.in_flight_per_consumer = u32::MAX);
        shell.subscribe(queue, u32::MAX);
        let burst = f64::max(rate, 1.0);
        shell.throttle("api", rate, burst);
        let wanted = (rate * 10.0) as usize;
        many(&mut shell, queue, wanted + 6_000, &throttled("a", &["api"]));
        let seen = times(&watch(&mut shell, 10_001));
        let most = burst + rate * 10.0;
        assert!(seen.len() as f64 <= most, "{rate}: {}", seen.len());
        assert!(
            seen.len() as f64 >= most * 0.99 - 1.0,
            "{rate}: {}",
            seen.len()
        );
    }
}

#[test]
fn ten_a_second_with_a_burst_of_twenty_begins_with_twenty_if_the_rate_is_set_first() {
    let (mut shell, queue) = open(QueueSettings::default());
    // A rate alone has a burst of a second's tokens.
    shell.throttle("api", 10.0, 10.0);
    shell.advance(MILLISECOND);
    shell.throttle("api", 10.0, 20.0);
    many(&mut shell, queue, 30, &throttled("a", &["api"]));
    let seen = times(&watch(&mut shell, 2_000));
    let rest = (1..=10).map(|token| 1 + token * 100);
    assert_eq!(seen, [1; 20].into_iter().chain(rest).collect::<Vec<_>>());
}

#[test]
fn a_burst_of_one_slows_no_rate_down() {
    for (tenants, rate) in [(1, 5_000.0), (7, 5_000.0), (1, 1_000.0), (3, 333.0)] {
        let (mut shell, queue) = Shell::with_settings(|it| {
            it.limits.in_flight_per_consumer = u32::MAX;
        });
        shell.subscribe(queue, u32::MAX);
        shell.throttle("api", rate, 1.0);
        for tenant in 0..tenants {
            let message = throttled(&tenant.to_string(), &["api"]);
            many(&mut shell, queue, rate as usize + 10, &message);
        }
        let seen = times(&watch(&mut shell, 1_001));
        assert_eq!(seen.len(), 1 + rate as usize, "{rate}");
        assert!(seen[1] > 0, "one goes at once");
        let in_a_tick = seen.chunk_by(|one, next| one == next).map(<[u64]>::len);
        assert_eq!(in_a_tick.max(), Some((rate / 1000.0).ceil() as usize));
    }
}

#[test]
fn a_broker_that_comes_20_ms_late_catches_up_and_one_that_comes_later_does_not() {
    for (late, expected) in [(20, 1_000), (50, 20 * 21)] {
        let (mut shell, queue) = open(QueueSettings::default());
        shell.throttle("api", 1_000.0, 1.0);
        many(&mut shell, queue, 2_000, &throttled("a", &["api"]));
        shell.run();
        assert_eq!(shell.deliveries.len(), 1);
        for _ in 0..1_000 / late {
            shell.advance(late * MILLISECOND);
            shell.run();
        }
        assert_eq!(shell.deliveries.len(), 1 + expected);
    }
}

#[test]
fn a_bucket_that_no_message_waits_for_saves_no_more_than_its_burst() {
    let (mut shell, queue) = open(QueueSettings::default());
    shell.throttle("api", 1_000.0, 2.0);
    for _ in 0..20 {
        // Four use up what there is and more; the next come when the bucket was idle for a while.
        many(&mut shell, queue, 4, &throttled("a", &["api"]));
        let start = shell.now.as_millis() - START;
        let seen = times(&watch(&mut shell, 19));
        assert_eq!(seen, [start, start, start + 1, start + 2]);
    }
}

#[test]
fn brokers_that_share_a_bucket_get_what_it_gives_together_and_never_more() {
    let (mut one, queue) = open(QueueSettings::default());
    one.throttle("api", 100.0, 10.0);
    one.throttle("slow", 30.0, 1.0);
    let mut other = Shell::beside(&one);
    let elsewhere = other.create("elsewhere", QueueSettings::default());
    other.subscribe(elsewhere, u32::MAX);
    for (shell, queue) in [(&mut one, queue), (&mut other, elsewhere)] {
        many(shell, queue, 2_000, &throttled("api", &["api"]));
        many(shell, queue, 2_000, &throttled("both", &["api", "slow"]));
    }
    let (mut api, mut slow, mut shares) = (Vec::new(), Vec::new(), [0; 2]);
    for now in 0..10_000 {
        // The same is always first, and has no more of it.
        for (number, shell) in [(0, &mut one), (1, &mut other)] {
            shell.run();
            for (_, delivery) in shell.deliveries.drain(..) {
                api.push(now);
                shares[number] += 1;
                if delivery.fairness_key == key("both") {
                    slow.push(now);
                }
            }
            shell.advance(Duration::from_millis(1));
        }
    }
    check_windows(&api, 100.0, 10.0);
    check_windows(&slow, 30.0, 1.0);
    assert!(api.len() >= 990, "{} of 1010", api.len());
    assert!(slow.len() >= 240, "{} of 301", slow.len());
    assert!(shares.iter().all(|share| *share >= 450), "{shares:?}");
}

/// Tokens that only another process grants: the key `granted`.
#[derive(Clone, Debug, Default)]
struct Granted(Arc<AtomicU64>);

impl Granted {
    fn grant(&self, shell: &mut Shell, tokens: u64) {
        self.0.fetch_add(tokens, Relaxed);
        shell.rethrottle("granted");
    }
}

impl TokenSource for Granted {
    fn find(&mut self, key: &ThrottleKey) -> Option<Box<dyn Tokens>> {
        (*key == throttle_key("granted")).then(|| Box::new(self.clone()) as Box<dyn Tokens>)
    }
}

impl Tokens for Granted {
    fn available(&mut self, _: Timestamp) -> u64 {
        self.0.load(Relaxed)
    }

    fn take(&mut self, _: Timestamp) -> bool {
        let less = |tokens: u64| tokens.checked_sub(1);
        self.0.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    fn give_back(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn when(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        (tokens <= self.available(now)).then_some(now)
    }

    fn arrival(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        self.when(now, tokens)
    }

    fn rate(&self) -> u128 {
        1 // Any number will do, as it is the only bucket.
    }

    fn set_waiting(&mut self, _: Timestamp, _: bool) {}
}

#[test]
fn a_bucket_that_is_fed_by_grants_gives_what_was_granted_and_a_grant_wakes_the_waiters() {
    let granted = Granted::default();
    let mut shell = Shell::with_tokens(Box::new(granted.clone()));
    let queue = shell.create("queue", QueueSettings::default());
    shell.subscribe(queue, u32::MAX);
    many(&mut shell, queue, 6, &throttled("a", &["granted"]));
    many(&mut shell, queue, 6, &throttled("b", &["granted"]));
    assert!(watch(&mut shell, 1_000).is_empty(), "none was granted");
    assert_eq!(shell.broker.next_timer(), None, "time brings no token");
    granted.grant(&mut shell, 3);
    assert_eq!(times(&watch(&mut shell, 1_000)), [1_000; 3]);
    granted.grant(&mut shell, 5);
    let seen = watch(&mut shell, 1_000);
    assert_eq!(times(&seen), [2_000; 5]);
    assert_eq!(granted.0.load(Relaxed), 0);
    granted.grant(&mut shell, 100);
    let seen = watch(&mut shell, 10);
    assert_eq!(
        count_by_name(&seen),
        [("a".to_owned(), 2), ("b".to_owned(), 2)].into()
    );
    // The tokens that are left need no grant.
    many(&mut shell, queue, 1, &throttled("a", &["granted"]));
    assert_eq!(watch(&mut shell, 1).len(), 1);
    assert_eq!(granted.0.load(Relaxed), 95);
}
