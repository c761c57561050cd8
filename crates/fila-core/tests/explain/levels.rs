//! Keys in groups, and groups: which level makes them wait, the share of each level, and bounds that add up.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Basis, Charge, Delivering, Explanation, KeySettings, LevelExplanation, NewMessage, Ordering,
    Position, QueueSettings, Settings, Subject, Waiting,
};
use fila_store::QueueId;
use proptest::prelude::*;

use crate::support::{Shell, key, message};
use crate::{at_cap, enqueue, position, serve, weigh};

fn with_keys<const N: usize>(keys: [(&str, KeySettings); N]) -> QueueSettings {
    QueueSettings {
        keys: keys.map(|(name, settings)| (key(name), settings)).into(),
        ..QueueSettings::default()
    }
}

fn paused() -> KeySettings {
    KeySettings {
        delivery: Delivering::Paused,
        ..KeySettings::default()
    }
}

fn weighing(weight: u32) -> KeySettings {
    KeySettings {
        weight: NonZeroU32::new(weight),
        ..KeySettings::default()
    }
}

fn capped(leases: u32) -> KeySettings {
    KeySettings {
        concurrency: NonZeroU32::new(leases),
        ..KeySettings::default()
    }
}

fn paused_at(path: &str) -> Waiting {
    Waiting::KeyPaused { path: key(path) }
}

fn late(name: &str) -> NewMessage {
    NewMessage {
        delay: Duration::from_secs(60),
        ..message(name, "")
    }
}

/// Returns the paths of the levels that make a message wait.
fn causes(explanation: &Explanation) -> Vec<String> {
    let causes = explanation.levels.iter().filter(|level| level.holds_up);
    causes.map(path).collect()
}

fn path(level: &LevelExplanation) -> String {
    String::from_utf8(level.path.as_bytes().to_vec()).unwrap()
}

fn paths(explanation: &Explanation) -> Vec<String> {
    explanation.levels.iter().map(path).collect()
}

/// Tells whether a key is this one, or in the group of this path.
fn is_within(name: &str, path: &str) -> bool {
    let rest = name.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[test]
fn a_pause_is_told_of_the_level_that_is_paused() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    shell.subscribe(queue, 0);
    enqueue(&mut shell, queue, "acme/team/alice", 1, 1);
    let alice = "acme/team/alice";
    for (definition, cause) in [
        (with_keys([("acme", paused())]), "acme"),
        (with_keys([("acme/team", paused())]), "acme/team"),
        (with_keys([(alice, paused())]), alice),
        // Of several, the one on top.
        (
            with_keys([("acme/team", paused()), ("acme", paused())]),
            "acme",
        ),
        (
            with_keys([(alice, paused()), ("acme/team", paused())]),
            "acme/team",
        ),
    ] {
        let is_paused = |path: &str| definition.keys.contains_key(&key(path));
        let expected: Vec<bool> = ["acme", "acme/team", alice].map(is_paused).into();
        shell.update(queue, definition);
        shell.run();
        let explained = shell.explain(queue, alice);
        assert_eq!(explained.waiting, paused_at(cause));
        assert_eq!(causes(&explained), [cause]);
        assert_eq!(paths(&explained), ["acme", "acme/team", alice]);
        let levels = explained.levels.iter();
        let told = levels.map(|level| level.delivery == Delivering::Paused);
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!(explained.estimate, None);
    }
    // The siblings of a paused group do not wait for it.
    enqueue(&mut shell, queue, "acmeco", 1, 1);
    let acmeco = shell.explain(queue, "acmeco");
    assert!(causes(&acmeco).is_empty(), "{acmeco:?}");
    assert_eq!(paths(&acmeco), ["acmeco"]);
}

#[test]
fn a_cap_is_told_of_the_level_that_is_at_it() {
    let definition = with_keys([("acme", capped(3)), ("acme/alice", capped(2))]);
    let (mut shell, queue) = Shell::with_queue(definition);
    enqueue(&mut shell, queue, "acme/alice", 1, 9);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let alice = shell.explain(queue, "acme/alice");
    assert_eq!(alice.waiting, at_cap("acme/alice", 2));
    assert_eq!(causes(&alice), ["acme/alice"]);
    let caps: Vec<_> = alice.levels.iter().map(|it| (it.cap, it.leased)).collect();
    assert_eq!(caps, [(Some(3), 2), (Some(2), 2)]);

    enqueue(&mut shell, queue, "acme/bob", 1, 9);
    let bob = shell.explain(queue, "acme/bob");
    assert_eq!(bob.waiting, at_cap("acme", 3));
    assert_eq!(causes(&bob), ["acme"]);
    let caps: Vec<_> = bob.levels.iter().map(|it| (it.cap, it.leased)).collect();
    assert_eq!(caps, [(Some(3), 3), (None, 1)]);
    // Both are at their caps: an operator looks at the one on top first.
    let alice = shell.explain(queue, "acme/alice");
    assert_eq!(causes(&alice), ["acme"]);
    let acme = shell.explain(queue, "acme");
    assert_eq!(
        (acme.subject, acme.waiting.clone()),
        (Subject::Group, bob.waiting)
    );
    assert_eq!(causes(&acme), ["acme"]);
    assert_eq!(acme.estimate.unwrap().basis, Basis::KeyPace);
}

#[test]
fn a_reason_of_the_key_itself_is_told_on_its_own_level() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    shell.enqueue(queue, late("acme/alice"));
    let alice = shell.explain(queue, "acme/alice");
    assert!(matches!(alice.waiting, Waiting::BackingOff { .. }));
    assert_eq!(causes(&alice), ["acme/alice"]);
    enqueue(&mut shell, queue, "acme/bob", 1, 1);
    let bob = shell.explain(queue, "acme/bob");
    assert_eq!(bob.waiting, Waiting::NoConsumers);
    assert!(causes(&bob).is_empty(), "no level is the cause");
}

#[test]
fn the_key_of_a_strict_line_has_a_cap_of_one_and_its_group_has_none() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    enqueue(&mut shell, queue, "acme/alice", 1, 2);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    let alice = shell.explain(queue, "acme/alice");
    assert_eq!(alice.waiting, at_cap("acme/alice", 1));
    let caps: Vec<_> = alice.levels.iter().map(|it| it.cap).collect();
    assert_eq!(caps, [None, Some(1)]);
    // The group as a whole waits for nothing but its member.
    let acme = shell.explain(queue, "acme");
    assert_eq!(acme.waiting, Waiting::MembersWait);
}

#[test]
fn the_share_of_a_level_is_a_part_of_what_the_level_above_got() {
    let definition = with_keys([("acme", weighing(3))]);
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, 0);
    for name in ["acme/alice", "acme/bob", "globex"] {
        let weight = if name == "acme/bob" { 2 } else { 1 };
        enqueue(&mut shell, queue, name, weight, 1500);
    }
    for _ in 0..1200 {
        serve(&mut shell, queue, consumer);
    }
    let bob = shell.explain(queue, "acme/bob");
    let part = |level: &LevelExplanation| {
        let recent = level.recent;
        let of = |cost: u64| cost as f64 / recent.total as f64;
        (of(recent.served), of(recent.ideal))
    };
    let near = |found: f64, expected: f64| (found - expected).abs() < 0.01;
    for (level, expected) in bob.levels.iter().zip([0.75, 2.0 / 3.0]) {
        let (share, ideal) = part(level);
        assert!(near(share, expected), "{level:?}");
        assert!(near(ideal, expected), "{level:?}");
    }
    assert_eq!(bob.levels[1].recent.total, bob.levels[0].recent.served);
    let weights: Vec<u32> = bob.levels.iter().map(|level| level.weight).collect();
    assert_eq!((weights, bob.weight), (vec![3, 2], 2));
    // Of the whole queue it is the part of a part.
    let whole = |cost: u64| cost as f64 / bob.recent.total as f64;
    assert!(near(whole(bob.recent.served), 0.5), "{bob:?}");
    assert!(near(whole(bob.recent.ideal), 0.5), "{bob:?}");
    // All fair shares together are all deliveries.
    let names = ["acme/alice", "acme/bob", "globex"];
    let ideals = names.map(|name| shell.explain(queue, name).recent.ideal);
    let sum: u64 = ideals.iter().sum();
    assert!(sum.abs_diff(bob.recent.total) < 100, "{ideals:?}");
}

#[test]
fn a_member_of_a_group_that_got_nothing_has_no_share_of_it() {
    let (mut shell, queue) = Shell::with_queue(with_keys([("acme", paused())]));
    let consumer = shell.subscribe(queue, 0);
    for name in ["acme/alice", "globex"] {
        enqueue(&mut shell, queue, name, 1, 10);
    }
    serve(&mut shell, queue, consumer);
    let alice = shell.explain(queue, "acme/alice");
    assert_eq!(alice.levels[1].recent.total, 0);
    assert_eq!((alice.recent.served, alice.recent.ideal), (0, 0));
}

#[test]
fn an_unknown_key_has_the_levels_of_its_path_with_their_settings() {
    let definition = with_keys([
        ("acme", weighing(4)),
        ("acme/carol", capped(2)),
        ("initech", paused()),
    ]);
    let (mut shell, queue) = Shell::with_queue(definition);
    enqueue(&mut shell, queue, "acme/alice", 1, 1);
    let carol = shell.explain(queue, "acme/carol");
    assert_eq!(
        (carol.subject, &carol.waiting),
        (Subject::Key, &Waiting::Empty)
    );
    assert_eq!((carol.ready, carol.bound), (0, None));
    assert_eq!(paths(&carol), ["acme", "acme/carol"]);
    assert_eq!(carol.levels[0].weight, 4);
    assert_eq!(carol.levels[1].cap, Some(2));
    assert!(carol.levels.iter().all(|level| level.bound.is_none()));
    let nobody = shell.explain(queue, "initech/x");
    assert_eq!(nobody.levels[0].delivery, Delivering::Paused);
    assert_eq!(
        nobody.waiting,
        Waiting::Empty,
        "it has no message that waits"
    );
    // A name that is no valid path is one level.
    assert_eq!(paths(&shell.explain(queue, "a//b")), ["a//b"]);
}

#[test]
fn a_group_is_explained_as_a_whole_with_the_messages_of_its_own_name() {
    let (mut shell, queue) = Shell::with_queue(with_keys([("acme", weighing(2))]));
    enqueue(&mut shell, queue, "acme", 1, 3);
    assert_eq!(shell.explain(queue, "acme").subject, Subject::Key);
    enqueue(&mut shell, queue, "acme/alice", 1, 4);
    shell.enqueue(queue, late("acme/team/bob"));
    let consumer = shell.subscribe(queue, 0);
    shell.next(consumer).unwrap();
    let acme = shell.explain(queue, "acme");
    assert_eq!(acme.subject, Subject::Group);
    assert_eq!((acme.ready, acme.delayed, acme.leased), (6, 1, 1));
    assert_eq!((acme.weight, paths(&acme)), (2, vec!["acme".to_owned()]));
    assert_eq!(position(&acme), Position::Exactly(0));
    assert_eq!(acme.recent.served, acme.recent.total);
    let team = shell.explain(queue, "acme/team");
    assert_eq!((team.subject, team.delayed), (Subject::Group, 1));
    assert_eq!(paths(&team), ["acme", "acme/team"]);
}

#[test]
fn a_group_tells_what_its_members_have_in_common_and_else_that_they_wait() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    shell.send(queue, vec![message("acme/alice", "")]);
    assert_eq!(shell.explain(queue, "acme").waiting, Waiting::Storing);
    shell.run();
    assert_eq!(shell.explain(queue, "acme").waiting, Waiting::NoConsumers);
    let consumer = shell.subscribe(queue, 0);
    assert_eq!(shell.explain(queue, "acme").waiting, Waiting::NoCredit);
    shell.next(consumer).unwrap();
    let leased = shell.explain(queue, "acme");
    assert_eq!((&leased.waiting, leased.leased), (&Waiting::Empty, 1));

    shell.enqueue(queue, late("acme/alice"));
    enqueue(&mut shell, queue, "acme/bob", 1, 1);
    let mut definition = with_keys([("acme/bob", paused())]);
    shell.update(queue, definition.clone());
    shell.run();
    let each_its_own = shell.explain(queue, "acme");
    assert_eq!(each_its_own.waiting, Waiting::MembersWait);
    assert!(causes(&each_its_own).is_empty());
    assert_eq!(each_its_own.estimate, None);
    definition.keys.insert(key("acme"), paused());
    shell.update(queue, definition.clone());
    shell.run();
    assert_eq!(shell.explain(queue, "acme").waiting, paused_at("acme"));
    definition.delivery = Delivering::Paused;
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.explain(queue, "acme").waiting, Waiting::QueuePaused);
}

#[test]
fn the_parts_of_a_bound_add_up_to_it_and_a_flat_key_has_one() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let consumer = shell.subscribe(queue, 0);
    for name in ["a/b/c/d", "a/b/c/x", "a/b/y", "z"] {
        enqueue(&mut shell, queue, name, 1, 30);
    }
    for _ in 0..40 {
        serve(&mut shell, queue, consumer);
        let deep = shell.explain(queue, "a/b/c/d");
        let parts = deep.levels.iter().map(|level| level.bound.unwrap());
        assert_eq!(parts.sum::<u64>(), deep.bound.unwrap());
        assert_eq!(deep.levels[1].bound, Some(0), "a/b has no siblings");
        let flat = shell.explain(queue, "z");
        assert_eq!(flat.levels.len(), 1);
        assert_eq!(flat.levels[0].bound, flat.bound);
    }
}

/// How a random tree is filled: by whom, with which weight, how many messages of which size, and the deliveries after it.
#[derive(Clone, Debug)]
struct Arrival {
    path: usize,
    weight: u32,
    messages: usize,
    bytes: usize,
    deliveries: usize,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (0..8_usize, 1..9_u32, 1..8_usize, 0..4000_usize, 0..10_usize);
    let arrival = arrival.prop_map(|(path, weight, messages, bytes, deliveries)| Arrival {
        path,
        weight,
        messages,
        bytes,
        deliveries,
    });
    prop::collection::vec(arrival, 1..25)
}

/// Up to eight keys in up to four levels. Some bear the name of a group.
fn trees() -> impl Strategy<Value = Vec<String>> {
    let part = prop::sample::select(&["a", "b", "c"][..]);
    let path = prop::collection::vec(part, 1..=4).prop_map(|parts| parts.join("/"));
    prop::collection::vec(path, 8)
}

/// Returns all keys and all groups that they are in.
fn nodes(keys: &[String]) -> BTreeSet<&str> {
    let above = |key: &'_ str| -> Vec<usize> { key.match_indices('/').map(|(at, _)| at).collect() };
    let nodes = keys.iter().flat_map(|key| {
        let ends = above(key).into_iter().chain([key.len()]);
        ends.map(|end| &key[..end]).collect::<Vec<_>>()
    });
    nodes.collect()
}

/// Fills a queue as told, and makes one delivery more, if there is a message left.
fn fill(shell: &mut Shell, queue: QueueId, keys: &[String], arrivals: &[Arrival]) {
    let consumer = shell.subscribe(queue, 0);
    for arrival in arrivals {
        let mut new = message(&keys[arrival.path], vec![0; arrival.bytes]);
        new.schedule.weight = NonZeroU32::new(arrival.weight).unwrap();
        shell.enqueue_all(queue, vec![new; arrival.messages]);
        for _ in 0..arrival.deliveries {
            if shell.stats(queue).ready > 0 {
                serve(shell, queue, consumer);
            }
        }
    }
    if shell.stats(queue).ready > 0 {
        serve(shell, queue, consumer);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// No more messages come, so each position in a tree is exact, and no wait is longer than its bound.
    #[test]
    fn in_a_tree_at_rest_a_position_is_how_many_come_before_and_none_is_beyond_the_bound(
        keys in trees(),
        arrivals in arrivals(),
        weights in prop::collection::vec(1..6_u32, 3),
        quantum in prop::sample::select(&[1000_u64, 4000, 300][..]),
        charge in prop::sample::select(&[Charge::Message, Charge::Message, Charge::Bytes][..]),
    ) {
        let mut settings = Settings::default();
        settings.quantum = drr::Quantum::new(quantum).unwrap();
        let mut shell = Shell::new(settings);
        let mut definition = with_keys([
            ("a", weighing(weights[0])),
            ("a/b", weighing(weights[1])),
            ("b", weighing(weights[2])),
        ]);
        definition.charge = charge;
        let queue = shell.create("queue", definition);
        fill(&mut shell, queue, &keys, &arrivals);
        let mut foreseen = BTreeMap::new();
        for node in nodes(&keys) {
            let explained = shell.explain(queue, node);
            prop_assert_eq!(explained.levels.len(), node.split('/').count());
            if explained.ready > 0 {
                let parts = explained.levels.iter().map(|level| level.bound.unwrap());
                prop_assert_eq!(parts.sum::<u64>(), explained.bound.unwrap());
                foreseen.insert(node, (position(&explained), explained.bound.unwrap()));
            }
        }
        let consumer = shell.subscribe(queue, 0);
        let mut deliveries = 0;
        while !foreseen.is_empty() {
            let served = serve(&mut shell, queue, consumer);
            for (node, (position, bound)) in foreseen.extract_if(.., |node, _| is_within(&served, node)) {
                prop_assert_eq!(position, Position::Exactly(deliveries), "{}", node);
                prop_assert!(charge != Charge::Message || deliveries <= bound, "{} by {}", node, bound);
            }
            deliveries += 1;
        }
    }
}

/// Delivers until each of these keys was served, and returns how many deliveries came before each.
fn first_turns(
    shell: &mut Shell,
    queue: QueueId,
    keys: &BTreeSet<String>,
) -> BTreeMap<String, u64> {
    let consumer = shell.subscribe(queue, 0);
    let mut turns = BTreeMap::new();
    let mut deliveries = 0;
    while turns.len() < keys.len() {
        let served = serve(shell, queue, consumer);
        if keys.contains(&served) {
            turns.entry(served).or_insert(deliveries);
        }
        deliveries += 1;
    }
    turns
}

#[test]
fn a_place_far_behind_in_a_group_is_told_within_a_tenth() {
    // Groups of different sizes and weights: a place in a large one is further away than the whole of a small one.
    let definition = with_keys([("large", weighing(3)), ("small/team", weighing(2))]);
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, 0);
    let names = (0..2400).map(|number| match number % 4 {
        0 => format!("small/team/{number}"),
        _ => format!("large/{number}"),
    });
    let names: Vec<String> = names.chain(["small/alone".to_owned()]).collect();
    for name in &names {
        shell.send(queue, vec![weigh(name, 1); 6]);
    }
    enqueue(&mut shell, queue, "flat", 1, 4000);
    shell.run();
    for _ in 0..6000 {
        serve(&mut shell, queue, consumer);
    }
    let mut about = BTreeMap::new();
    for name in names.iter().step_by(37) {
        if let Position::About(said) = position(&shell.explain(queue, name)) {
            about.insert(name.clone(), said);
        }
    }
    let told = |prefix: &str| about.keys().filter(|name| name.starts_with(prefix)).count();
    assert!(told("large/") > 20 && told("small/team/") > 4, "{about:?}");
    let turns = first_turns(&mut shell, queue, &about.keys().cloned().collect());
    for (name, said) in about {
        let others = turns[&name];
        assert!(
            said.abs_diff(others) <= others / 10,
            "{name}: {said} and {others}"
        );
    }
}
