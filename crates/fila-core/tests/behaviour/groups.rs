//! Groups of keys: their shares, weights, pauses and caps, and the paths that put keys into them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Charge, Command, Delivering, GroupStats, KeyCursor, KeySeparator, KeySettings, NewMessage,
    Ordering, QueueSettings, Verdict, Waiting,
};
use fila_store::QueueId;

use crate::support::{Shell, forgetful, key, message, nack, queue, trying_again_at_once};

fn weight(weight: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(weight)
}

/// Returns the settings of a queue with settings for these keys or groups.
fn with_keys<const N: usize>(keys: [(&str, KeySettings); N]) -> QueueSettings {
    QueueSettings {
        keys: keys.map(|(name, settings)| (key(name), settings)).into(),
        ..QueueSettings::default()
    }
}

fn separated(by: Option<char>) -> QueueSettings {
    QueueSettings {
        key_separator: by.map(|by| KeySeparator::new(by).unwrap()),
        ..QueueSettings::default()
    }
}

fn weighing(value: u32) -> KeySettings {
    KeySettings {
        weight: weight(value),
        ..KeySettings::default()
    }
}

fn capped(leases: u32) -> KeySettings {
    KeySettings {
        concurrency: NonZeroU32::new(leases),
        ..KeySettings::default()
    }
}

fn paused() -> KeySettings {
    KeySettings {
        delivery: Delivering::Paused,
        ..KeySettings::default()
    }
}

/// Returns a message of this key and weight.
fn weighted(name: &str, weight: u32) -> NewMessage {
    let mut message = message(name, "");
    message.schedule.weight = NonZeroU32::new(weight).unwrap();
    message
}

/// Returns a message for which a hook has named the weights of its groups, from the top down.
fn of_groups(name: &str, weights: &[u32]) -> NewMessage {
    let mut message = message(name, "");
    for (level, weight) in weights.iter().enumerate() {
        if let Some(weight) = NonZeroU32::new(*weight) {
            message.schedule.group_weights.set(level, weight);
        }
    }
    message
}

fn fill(shell: &mut Shell, queue: QueueId, names: &[&str], each: usize) {
    for name in names {
        shell.enqueue_all(queue, vec![message(name, ""); each]);
    }
}

/// Delivers this many messages to a new consumer, and returns how many of them each key got.
fn deliver(shell: &mut Shell, queue: QueueId, messages: u32) -> BTreeMap<String, usize> {
    shell.deliveries.clear();
    shell.subscribe(queue, messages);
    shell.run();
    let mut by_key = BTreeMap::new();
    for (_, delivery) in shell.deliveries.drain(..) {
        let name = String::from_utf8(delivery.fairness_key.as_bytes().to_vec()).unwrap();
        *by_key.entry(name).or_default() += 1;
    }
    by_key
}

/// Returns how many messages of a key and of all keys in its group were delivered.
fn within(delivered: &BTreeMap<String, usize>, group: &str) -> usize {
    let prefix = format!("{group}/");
    let is_within = |name: &str| name == group || name.starts_with(&prefix);
    let of_group = delivered.iter().filter(|(name, _)| is_within(name));
    of_group.map(|(_, count)| count).sum()
}

fn groups(shell: &mut Shell, queue: QueueId) -> BTreeMap<String, GroupStats> {
    let (now, start) = (shell.now, KeyCursor::start());
    let (groups, next) = shell.broker.groups(now, queue, start, usize::MAX).unwrap();
    assert_eq!(next, None);
    let named = groups.into_iter().map(|group| {
        let path = String::from_utf8(group.path.as_bytes().to_vec()).unwrap();
        (path, group)
    });
    named.collect()
}

#[track_caller]
fn assert_near(found: usize, expected: usize) {
    assert!(
        found.abs_diff(expected) <= 2,
        "{found} in place of {expected}"
    );
}

#[test]
fn a_tenant_with_a_thousand_keys_gets_what_a_tenant_with_one_gets() {
    let (mut shell, queue) = queue();
    let many = (0..4000).map(|n| message(&format!("acme/{}", n % 1000), ""));
    shell.enqueue_all(queue, many.collect());
    fill(&mut shell, queue, &["globex"], 2000);
    let delivered = deliver(&mut shell, queue, 2000);
    assert_near(within(&delivered, "globex"), 1000);
    // Within the tenant each of its keys got the same.
    assert_eq!(delivered.len(), 1001);
    assert!(
        delivered
            .iter()
            .all(|(name, &got)| name == "globex" || got <= 2),
        "{delivered:?}"
    );
}

#[test]
fn every_level_shares_by_its_weights() {
    let definition = with_keys([
        ("acme", weighing(3)),
        ("acme/batch", weighing(1)),
        ("acme/live", weighing(2)),
    ]);
    let (mut shell, queue) = Shell::with_queue(definition);
    let keys = [
        "acme/batch/a",
        "acme/batch/b",
        "acme/live/c",
        "globex/d",
        "globex/e",
    ];
    fill(&mut shell, queue, &keys, 1200);
    shell.enqueue(queue, weighted("globex/e", 4));
    let delivered = deliver(&mut shell, queue, 1200);
    assert_near(within(&delivered, "acme"), 900);
    assert_near(within(&delivered, "acme/live"), 600);
    assert_near(delivered["acme/batch/a"], 150);
    assert_near(delivered["globex/e"], 240);
}

#[test]
fn the_weight_of_a_group_is_the_operators_else_the_hooks_else_that_of_its_own_messages() {
    let (mut shell, queue) = queue();
    let found = |shell: &mut Shell| groups(shell, queue)["acme"].weight;
    shell.enqueue(queue, message("acme/alice", ""));
    assert_eq!(found(&mut shell), 1);
    shell.enqueue(queue, weighted("acme", 2));
    assert_eq!(found(&mut shell), 2);
    shell.enqueue(queue, of_groups("acme/alice", &[5]));
    assert_eq!(found(&mut shell), 5);
    shell.enqueue(queue, weighted("acme", 3));
    assert_eq!(found(&mut shell), 5);
    shell.update(queue, with_keys([("acme", weighing(7))]));
    assert_eq!(found(&mut shell), 7);
    shell.update(queue, QueueSettings::default());
    assert_eq!(found(&mut shell), 5);
    // The key of that name has the weight of the group, and within the group it is one of its members.
    let keys = shell.keys(queue);
    let own = keys.iter().find(|it| it.fairness_key == key("acme"));
    assert_eq!(own.map(|own| own.weight), Some(5));
    fill(&mut shell, queue, &["acme", "acme/alice", "globex"], 1000);
    let delivered = deliver(&mut shell, queue, 600);
    assert_near(within(&delivered, "acme"), 500);
    assert_near(delivered["acme"], 250);
    assert_near(delivered["globex"], 100);
}

#[test]
fn a_hook_names_weights_of_groups_on_every_level() {
    let (mut shell, queue) = queue();
    for name in ["a/x/1", "a/y/1", "b/1"] {
        fill(&mut shell, queue, &[name], 1000);
    }
    shell.enqueue(queue, of_groups("a/x/1", &[3, 2]));
    let delivered = deliver(&mut shell, queue, 400);
    assert_near(within(&delivered, "a"), 300);
    assert_near(within(&delivered, "a/x"), 200);
    assert_near(delivered["b/1"], 100);
}

#[test]
fn weights_of_groups_are_known_after_a_restart_and_the_last_one_counts() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, of_groups("acme/zoe", &[9]));
    shell.enqueue(queue, of_groups("acme/alice", &[4]));
    shell.enqueue(queue, weighted("globex", 2));
    shell.enqueue(queue, message("globex/bob", ""));
    shell.restart();
    let found = groups(&mut shell, queue);
    assert_eq!((found["acme"].weight, found["globex"].weight), (4, 2));
}

#[test]
fn weights_of_groups_are_known_after_a_planned_stop() {
    let (mut shell, queue) = queue();
    shell.enqueue(queue, message("acme/alice", ""));
    shell.enqueue(queue, of_groups("acme/bob", &[6]));
    shell.subscribe(queue, 2);
    shell.run();
    assert_eq!(shell.stop(), [2]);
    shell.restart();
    let found = groups(&mut shell, queue);
    assert_eq!((found["acme"].weight, found["acme"].leased), (6, 2));
}

#[test]
fn a_paused_group_pauses_its_members_and_no_others() {
    let (mut shell, queue) = Shell::with_queue(with_keys([("acme", paused())]));
    let keys = [
        "acme",
        "acme/alice",
        "acme/team/bob",
        "acmeco",
        "globex/acme",
    ];
    fill(&mut shell, queue, &keys, 10);
    let delivered = deliver(&mut shell, queue, 100);
    assert_eq!(
        delivered.keys().collect::<Vec<_>>(),
        ["acmeco", "globex/acme"]
    );
    assert_eq!(within(&delivered, "acmeco"), 10);
    let waiting = shell.explain(queue, "acme/team/bob").waiting;
    assert_eq!(waiting, Waiting::KeyPaused { path: key("acme") });
    assert!(groups(&mut shell, queue)["acme"].is_paused);
    // A part of it stays paused when the rest is resumed, at once.
    shell.update(queue, with_keys([("acme/team", paused())]));
    shell.run();
    let resumed = shell.deliveries.len();
    assert_eq!(resumed, 20);
    shell.update(queue, QueueSettings::default());
    shell.run();
    assert_eq!(shell.deliveries.len(), 30);
}

#[test]
fn a_group_has_no_more_leases_than_its_cap_whichever_member_has_them() {
    let (mut shell, queue) = Shell::with_queue(with_keys([("acme", capped(3))]));
    let keys = ["acme", "acme/a", "acme/b", "acme/c/d", "globex"];
    fill(&mut shell, queue, &keys, 5);
    let consumer = shell.subscribe(queue, u32::MAX);
    shell.run();
    let leased = groups(&mut shell, queue)["acme"].leased;
    assert_eq!((leased, shell.deliveries.len()), (3, 8));
    let (path, cap) = (key("acme"), 3);
    assert_eq!(
        shell.explain(queue, "acme/c/d").waiting,
        Waiting::AtCap { path, cap }
    );
    // Each result makes room for one more, until all of them are delivered.
    let mut settled = 0;
    while let Some((_, delivery)) = shell.deliveries.pop_front() {
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
        settled += 1;
        let group = groups(&mut shell, queue);
        assert!(group.get("acme").is_none_or(|acme| acme.leased <= 3));
    }
    assert_eq!(settled, 25);
    assert_eq!(shell.stats(queue).leased, 0);
    let _ = consumer;
}

#[test]
fn a_raised_cap_of_a_group_acts_at_once_and_a_lowered_one_takes_nothing_back() {
    let (mut shell, queue) = Shell::with_queue(with_keys([("acme", capped(2))]));
    fill(&mut shell, queue, &["acme/a", "acme/b"], 10);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2);
    shell.update(queue, with_keys([("acme", capped(5))]));
    shell.run();
    assert_eq!(shell.deliveries.len(), 5);
    shell.update(queue, with_keys([("acme", capped(1))]));
    shell.run();
    assert_eq!(shell.deliveries.len(), 5);
    for left in (0..5).rev() {
        let (_, delivery) = shell.deliveries.pop_front().unwrap();
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
        let leased = groups(&mut shell, queue)["acme"].leased;
        assert_eq!(leased, u64::max(left, 1));
    }
}

#[test]
fn deliveries_that_wait_for_a_read_count_for_the_cap_of_their_group() {
    let (mut shell, queue) = forgetful(with_keys([("acme", capped(2))]));
    fill(&mut shell, queue, &["acme/a", "acme/b", "acme/c"], 4);
    shell.restart();
    shell.subscribe(queue, u32::MAX);
    shell.poll();
    assert_eq!(shell.loads.len(), 2, "the third may not be owed");
    shell.run();
    assert_eq!(shell.deliveries.len(), 2);
    while let Some((_, delivery)) = shell.deliveries.pop_front() {
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
        assert!(shell.stats(queue).leased <= 2);
    }
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn a_group_that_is_paused_while_its_messages_are_read_delivers_none_of_them() {
    let (mut shell, queue) = forgetful(QueueSettings::default());
    fill(&mut shell, queue, &["acme/a", "acme/b"], 3);
    shell.restart();
    shell.subscribe(queue, u32::MAX);
    shell.poll();
    assert_eq!(shell.loads.len(), 2);
    shell.update(queue, with_keys([("acme", paused())]));
    shell.run();
    assert_eq!(shell.deliveries.len(), 0);
    shell.update(queue, QueueSettings::default());
    shell.run();
    assert_eq!(shell.deliveries.len(), 6);
}

#[test]
fn in_strict_order_a_group_may_have_several_leases_and_each_of_its_keys_one() {
    let mut definition = with_keys([("acme", capped(2))]);
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    fill(&mut shell, queue, &["acme/a", "acme/b", "acme/c"], 2);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2);
    // A result counts until it is durable: a crash would bring its message back.
    let (_, first) = shell.deliveries.pop_front().unwrap();
    shell.report(queue, first.lease, Verdict::Ack);
    shell.poll();
    assert_eq!(shell.deliveries.len(), 1);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2);
}

#[test]
fn a_key_that_gets_members_keeps_its_share_its_debt_and_its_counts() {
    let (mut shell, queue) = queue();
    fill(&mut shell, queue, &["acme", "globex"], 1000);
    let before = deliver(&mut shell, queue, 200);
    assert_near(before["acme"], 100);
    let mut delayed = message("acme", "");
    delayed.delay = Duration::from_secs(60);
    shell.enqueue(queue, delayed);
    fill(&mut shell, queue, &["acme/alice"], 1000);
    let acme = groups(&mut shell, queue).remove("acme").unwrap();
    assert_eq!((acme.ready, acme.leased, acme.delayed), (1900, 100, 1));
    assert_eq!((acme.active_keys, acme.recent.served), (2, 100_000));
    let after = deliver(&mut shell, queue, 400);
    assert_near(within(&after, "acme"), 200);
    assert_near(after["acme"], 100);
    let acme = groups(&mut shell, queue).remove("acme").unwrap();
    assert_near(acme.recent.ideal as usize / 1000, 300);
}

#[test]
fn the_fair_share_of_a_member_is_that_of_what_its_group_got() {
    let (mut shell, queue) = Shell::with_queue(with_keys([("acme", weighing(2))]));
    let keys = ["acme/a", "acme/b", "globex/c"];
    fill(&mut shell, queue, &keys, 1000);
    shell.enqueue(queue, weighted("acme/a", 3));
    deliver(&mut shell, queue, 600);
    let found = groups(&mut shell, queue);
    let share = |recent: fila_core::RecentShare| (recent.served / 1000, recent.ideal / 1000);
    let (served, ideal) = share(found["acme"].recent);
    assert_near(served as usize, 400);
    assert_near(ideal as usize, 400);
    for (name, expected) in [("acme/a", 300), ("acme/b", 100), ("globex/c", 200)] {
        let keys = shell.keys(queue);
        let found = keys.iter().find(|it| it.fairness_key == key(name)).unwrap();
        let (served, ideal) = share(found.recent);
        assert_near(served as usize, expected);
        assert_near(ideal as usize, expected);
    }
}

#[test]
fn the_cost_that_is_known_later_is_settled_on_every_level() {
    let mut definition = QueueSettings::default();
    definition.charge = Charge::Time;
    let (mut shell, queue) = Shell::with_queue(definition);
    for name in ["acme/slow", "acme/fast", "globex"] {
        fill(&mut shell, queue, &[name], 3000);
    }
    let consumer = shell.subscribe(queue, 0);
    let mut spent = BTreeMap::new();
    for _ in 0..3000 {
        let delivery = shell.next(consumer).unwrap();
        let millis = match delivery.fairness_key.as_bytes() {
            b"acme/slow" => 20,
            b"acme/fast" => 2,
            _ => 5,
        };
        shell.advance(Duration::from_millis(millis));
        *spent.entry(delivery.fairness_key).or_insert(0) += millis;
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    let total: u64 = spent.values().sum();
    let share = |name: &str| spent[&key(name)] as f64 / total as f64;
    assert!((share("globex") - 0.5).abs() < 0.02, "{spent:?}");
    assert!((share("acme/slow") - 0.25).abs() < 0.02, "{spent:?}");
}

#[test]
fn a_changed_separator_acts_at_once_on_messages_that_wait() {
    let (mut shell, queue) = Shell::with_queue(separated(None));
    fill(
        &mut shell,
        queue,
        &["acme:a", "acme:b", "acme/c", "globex"],
        1000,
    );
    assert!(groups(&mut shell, queue).is_empty());
    let flat = deliver(&mut shell, queue, 400);
    assert!(flat.values().all(|&got| got.abs_diff(100) <= 2), "{flat:?}");
    shell.update(queue, separated(Some(':')));
    let nested = groups(&mut shell, queue);
    assert_eq!(nested.keys().collect::<Vec<_>>(), ["acme"]);
    assert_eq!((nested["acme"].ready, nested["acme"].leased), (1800, 200));
    let delivered = deliver(&mut shell, queue, 300);
    assert_near(delivered["acme:a"] + delivered["acme:b"], 100);
    assert_near(delivered["globex"], 100);
    shell.update(queue, separated(None));
    assert!(groups(&mut shell, queue).is_empty());
    let flat = deliver(&mut shell, queue, 400);
    assert!(flat.values().all(|&got| got.abs_diff(100) <= 2), "{flat:?}");
}

#[test]
fn a_pause_and_a_cap_of_a_group_act_when_a_changed_separator_makes_it_a_group() {
    let mut definition = with_keys([("acme", capped(2)), ("globex", paused())]);
    definition.key_separator = None;
    let (mut shell, queue) = Shell::with_queue(definition.clone());
    fill(&mut shell, queue, &["acme/a", "acme/b", "globex/c"], 10);
    definition.key_separator = Some(KeySeparator::default());
    shell.update(queue, definition.clone());
    shell.subscribe(queue, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2);
    definition.key_separator = None;
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.deliveries.len(), 30);
}

#[test]
fn dead_letters_follow_the_separator_of_their_queue() {
    let mut shell = Shell::new(fila_core::Settings::default());
    let mut definition = trying_again_at_once();
    definition.retry.attempts_max = NonZeroU32::new(1);
    definition.key_separator = KeySeparator::new(':').ok();
    let (queue, letters) = shell.create_with_dead_letters("orders", definition.clone());
    fill(&mut shell, queue, &["acme:a", "acme:b", "globex"], 30);
    let consumer = shell.subscribe(queue, 0);
    for _ in 0..90 {
        let delivery = shell.next(consumer).unwrap();
        shell
            .settle(queue, delivery.lease, nack(Duration::ZERO))
            .unwrap();
    }
    let found = groups(&mut shell, letters);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["acme"]);
    assert_eq!(found["acme"].ready, 60);
    // Settings of its own do not change it.
    shell.update(letters, with_keys([("acme", weighing(2))]));
    let delivered = deliver(&mut shell, letters, 30);
    assert_near(delivered["acme:a"] + delivered["acme:b"], 20);
    definition.key_separator = None;
    shell.update(queue, definition.clone());
    assert!(groups(&mut shell, letters).is_empty());
    shell.restart();
    // The store has the first definition.
    assert_eq!(groups(&mut shell, letters).len(), 1);
}

#[test]
fn members_that_come_and_go_do_not_shed_the_debt_of_their_group() {
    let (mut shell, queue) = queue();
    fill(&mut shell, queue, &["globex"], 2000);
    let consumer = shell.subscribe(queue, 0);
    let mut of_acme = 0;
    for turn in 0..600 {
        // A new member each time, as soon as the last one is gone.
        if !groups(&mut shell, queue).contains_key("acme") {
            shell.enqueue(queue, message(&format!("acme/{turn}"), ""));
        }
        let delivery = shell.next(consumer).unwrap();
        of_acme += usize::from(delivery.fairness_key != key("globex"));
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    assert!(of_acme <= 302, "{of_acme} of 600");
}

#[test]
fn groups_that_came_and_went_leave_nothing() {
    let (mut shell, queue) = queue();
    let consumer = shell.subscribe(queue, 0);
    for round in 0..20 {
        let batch = (0..500).map(|n| message(&format!("{round}-{n}/a/b"), ""));
        shell.enqueue_all(queue, batch.collect());
        shell.tell(Command::Credit {
            consumer,
            more: 500,
        });
        shell.run();
        while let Some((_, delivery)) = shell.deliveries.pop_front() {
            shell.report(queue, delivery.lease, Verdict::Ack);
        }
        shell.run();
        let (now, after) = (shell.now, KeyCursor::from_number(3000));
        let (_, next) = shell.broker.groups(now, queue, after, usize::MAX).unwrap();
        assert_eq!(next, None, "places are used again");
    }
    let stats = shell.stats(queue);
    assert_eq!((stats.active_keys, stats.active_groups), (0, 0));
    assert!(groups(&mut shell, queue).is_empty());
}

#[test]
fn the_number_of_groups_with_messages_follows_every_change() {
    let (mut shell, queue) = queue();
    let expect = |shell: &mut Shell, count: u64, why: &str| {
        let listed = groups(shell, queue).len() as u64;
        assert_eq!(
            (shell.stats(queue).active_groups, listed),
            (count, count),
            "{why}"
        );
    };
    fill(&mut shell, queue, &["acme", "globex"], 1);
    expect(&mut shell, 0, "flat keys");
    fill(&mut shell, queue, &["acme/a", "acme/team/b"], 2);
    expect(&mut shell, 2, "a key with messages got members");
    fill(&mut shell, queue, &["x:y", "x:z:w", "globex/c/d/e"], 1);
    expect(&mut shell, 5, "three levels more");
    shell.update(queue, separated(Some(':')));
    expect(&mut shell, 2, "another separator");
    shell.update(queue, separated(None));
    expect(&mut shell, 0, "no separator");
    shell.update(queue, QueueSettings::default());
    expect(&mut shell, 5, "as before");
    shell.restart();
    expect(&mut shell, 5, "after a restart");
    shell.purge(queue);
    shell.run();
    expect(&mut shell, 0, "after a purge");
}

#[test]
fn a_purge_leaves_no_groups_and_new_ones_follow_the_settings() {
    let (mut shell, queue) = Shell::with_queue(with_keys([("acme", capped(1))]));
    fill(&mut shell, queue, &["acme/a", "acme/b"], 5);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
    shell.purge(queue);
    shell.run();
    assert!(groups(&mut shell, queue).is_empty());
    fill(&mut shell, queue, &["acme/a", "acme/b"], 5);
    assert_eq!(shell.deliveries.len(), 2);
    assert_eq!(groups(&mut shell, queue)["acme"].leased, 1);
}

#[test]
fn the_counts_of_groups_are_those_of_their_keys_after_a_restart() {
    let (mut shell, queue) = queue();
    let keys = ["acme", "acme/a", "acme/team/b", "globex/c/d/e"];
    fill(&mut shell, queue, &keys, 7);
    shell.restart();
    let found = groups(&mut shell, queue);
    let ready = found.iter().map(|(name, it)| (name.as_str(), it.ready));
    let expected = [
        ("acme", 21),
        ("acme/team", 7),
        ("globex", 7),
        ("globex/c", 7),
        ("globex/c/d", 7),
    ];
    assert_eq!(ready.collect::<Vec<_>>(), expected);
    assert_eq!(found["acme"].active_keys, 3);
}
