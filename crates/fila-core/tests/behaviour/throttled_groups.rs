//! Tokens of a throttle are shared among groups, and among the members of each.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use fila_core::{KeySeparator, KeySettings, NewMessage, QueueSettings};
use fila_store::QueueId;

use crate::support::{MILLISECOND, Shell, key, throttled};

/// Tokens in a second.
const RATE: f64 = 1000.0;

/// Returns a broker with a bucket, and its queue.
fn with_bucket(definition: QueueSettings) -> (Shell, QueueId) {
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.throttle("api", RATE, 1.0);
    shell.subscribe(queue, u32::MAX);
    (shell, queue)
}

/// Sends this many messages under each of these keys.
fn fill(shell: &mut Shell, queue: QueueId, names: impl Iterator<Item = String>, each: usize) {
    for name in names {
        let results = shell.enqueue_all(queue, vec![throttled(&name, &["api"]); each]);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

fn one(name: &str) -> impl Iterator<Item = String> {
    std::iter::once(name.to_owned())
}

/// Goes on for so many milliseconds, and returns how many messages of each key were delivered.
fn watch(shell: &mut Shell, millis: u64) -> BTreeMap<String, usize> {
    let mut delivered = BTreeMap::new();
    for _ in 0..millis {
        shell.advance(MILLISECOND);
        shell.run();
        for (_, delivery) in shell.deliveries.drain(..) {
            let name = String::from_utf8(delivery.fairness_key.as_bytes().to_vec()).unwrap();
            *delivered.entry(name).or_default() += 1;
        }
    }
    delivered
}

fn within(delivered: &BTreeMap<String, usize>, group: &str) -> usize {
    let prefix = format!("{group}/");
    let is_within = |name: &str| name == group || name.starts_with(&prefix);
    let of_group = delivered.iter().filter(|(name, _)| is_within(name));
    of_group.map(|(_, count)| count).sum()
}

/// Compares with a tolerance of one in a hundred.
#[track_caller]
fn assert_near(found: usize, expected: usize) {
    let error = found.abs_diff(expected);
    assert!(error * 100 <= expected, "{found} in place of {expected}");
}

fn weighing(name: &str, weight: u32) -> QueueSettings {
    let settings = KeySettings {
        weight: NonZeroU32::new(weight),
        ..KeySettings::default()
    };
    QueueSettings {
        keys: [(key(name), settings)].into(),
        ..QueueSettings::default()
    }
}

#[test]
fn a_tenant_with_a_thousand_keys_gets_the_tokens_of_a_tenant_with_one() {
    let (mut shell, queue) = with_bucket(QueueSettings::default());
    fill(&mut shell, queue, (0..1000).map(|n| format!("acme/{n}")), 4);
    fill(&mut shell, queue, one("globex"), 3000);
    watch(&mut shell, 10);
    let delivered = watch(&mut shell, 2000);
    assert_near(within(&delivered, "acme"), 1000);
    assert_near(delivered["globex"], 1000);
    // Each of its keys got its turn.
    let of_key = delivered.iter().filter(|(name, _)| *name != "globex");
    assert!(of_key.clone().count() >= 990, "{}", delivered.len());
    assert!(of_key.into_iter().all(|(_, count)| *count <= 2));
}

#[test]
fn tenants_of_two_queues_share_a_bucket_as_tenants_of_one() {
    let (mut shell, acme) = with_bucket(QueueSettings::default());
    let globex = shell.create("another", QueueSettings::default());
    shell.subscribe(globex, u32::MAX);
    fill(&mut shell, acme, (0..1000).map(|n| format!("acme/{n}")), 4);
    fill(&mut shell, globex, one("globex/only"), 3000);
    watch(&mut shell, 10);
    let delivered = watch(&mut shell, 2000);
    assert_near(within(&delivered, "acme"), 1000);
    assert_near(within(&delivered, "globex"), 1000);
    // A group of the same path in another queue is another group.
    fill(
        &mut shell,
        globex,
        (0..10).map(|n| format!("acme/{n}")),
        300,
    );
    watch(&mut shell, 10);
    let delivered = watch(&mut shell, 1500);
    assert_near(within(&delivered, "acme"), 1000);
    assert_near(within(&delivered, "globex"), 500);
}

#[test]
fn tokens_are_shared_by_the_weights_on_every_level() {
    let mut definition = weighing("acme", 3);
    definition.keys.extend(weighing("acme/live", 2).keys);
    let (mut shell, queue) = with_bucket(definition);
    let names = ["acme/live/a", "acme/batch/b", "acme/batch/c", "globex/d"];
    fill(
        &mut shell,
        queue,
        names.into_iter().map(str::to_owned),
        4000,
    );
    watch(&mut shell, 10);
    let delivered = watch(&mut shell, 2400);
    assert_near(within(&delivered, "acme"), 1800);
    assert_near(within(&delivered, "acme/live"), 1200);
    assert_near(delivered["acme/batch/b"], 300);
    assert_near(delivered["globex/d"], 600);
    // A changed weight counts from the next wait of a member on.
    shell.update(queue, weighing("acme", 1));
    watch(&mut shell, 10);
    let delivered = watch(&mut shell, 2400);
    assert_near(within(&delivered, "acme"), 1200);
    assert_near(within(&delivered, "acme/batch"), 600);
}

#[test]
fn a_key_that_bears_the_name_of_a_group_shares_the_tokens_of_the_group() {
    let (mut shell, queue) = with_bucket(QueueSettings::default());
    fill(&mut shell, queue, one("acme"), 4000);
    fill(&mut shell, queue, one("globex"), 4000);
    let delivered = watch(&mut shell, 1000);
    assert_near(delivered["acme"], 500);
    // It waits as a member from its next wait on.
    fill(&mut shell, queue, one("acme/alice"), 4000);
    watch(&mut shell, 10);
    let delivered = watch(&mut shell, 1000);
    assert_near(within(&delivered, "acme"), 500);
    assert_near(delivered["acme"], 250);
    // With another separator it is a key like any other.
    let colon = QueueSettings {
        key_separator: KeySeparator::new(':').ok(),
        ..QueueSettings::default()
    };
    shell.update(queue, colon);
    watch(&mut shell, 10);
    let delivered = watch(&mut shell, 900);
    assert_near(within(&delivered, "acme"), 600);
    assert_near(delivered["globex"], 300);
}

#[test]
fn members_that_come_and_go_do_not_shed_the_tokens_that_their_group_owes() {
    let (mut shell, queue) = with_bucket(QueueSettings::default());
    fill(&mut shell, queue, one("globex"), 4000);
    let mut of_acme = 0;
    for turn in 0..1000 {
        // A new member with one message each time.
        let new: NewMessage = throttled(&format!("acme/{turn}"), &["api"]);
        shell.enqueue(queue, new);
        of_acme += within(&watch(&mut shell, 1), "acme");
    }
    assert_near(of_acme, 500);
}

#[test]
fn waiters_that_a_purge_leaves_behind_do_not_cost_their_group_tokens() {
    let (mut shell, queue) = with_bucket(QueueSettings::default());
    let other = shell.create("another", QueueSettings::default());
    shell.subscribe(other, u32::MAX);
    fill(&mut shell, other, one("globex"), 4000);
    fill(&mut shell, queue, (0..500).map(|n| format!("acme/{n}")), 2);
    watch(&mut shell, 10);
    shell.purge(queue);
    shell.run();
    watch(&mut shell, 1000);
    fill(&mut shell, queue, (0..2).map(|n| format!("acme/{n}")), 1000);
    watch(&mut shell, 10);
    let delivered = watch(&mut shell, 1000);
    assert_near(within(&delivered, "acme"), 500);
}
