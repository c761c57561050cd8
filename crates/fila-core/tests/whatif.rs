//! A prediction beside what the broker then does.
//!
//! A world is a queue with a backlog that gets no more messages, and consumers that hold every message for the same time. It
//! is played for a while, copied, and played on, with the same settings or with others. The prediction must make the same
//! deliveries: after any number of them, each key and each group has got exactly what it was to get.
//!
//! `FILA_WHATIF_WORLDS` is how many random worlds each property plays.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Beginnings, Cancelled, Charge, Comparison, ConsumerId, ConsumerKind, Delivering, Demand,
    Drained, KeySeparator, KeySettings, LeaseId, NewMessage, Ordering, PaceBasis, PolicyRow,
    QueueSettings, Refused, RowKind, SNAPSHOT_KEYS_MAX, Span, Verdict, WhatIfQuery,
};
use fila_store::{FairnessKey, Payload, QueueId};
use proptest::prelude::*;

use support::{MILLISECOND, SECOND, Shell, key, message};

/// A queue whose consumers hold every message for the same time.
struct World {
    shell: Shell,
    queue: QueueId,
    settings: QueueSettings,
    hold: u64,
    /// The leases under way and when they end, in milliseconds.
    held: VecDeque<(u64, LeaseId)>,
    millis: u64,
    /// Every delivery: its time and its key.
    log: Vec<(u64, FairnessKey)>,
}

impl World {
    fn new(settings: QueueSettings, hold: u64) -> Self {
        let (shell, queue) = Shell::with_queue(settings.clone());
        Self {
            shell,
            queue,
            settings,
            hold,
            held: VecDeque::new(),
            millis: 0,
            log: Vec::new(),
        }
    }

    /// Adds a consumer that holds as many messages at once.
    fn subscribe(&mut self, slots: u32) {
        let demand = Demand {
            credit: u32::MAX,
            in_flight_max: slots,
            kind: ConsumerKind::Stream(Beginnings::Reported),
        };
        let consumer = ConsumerId::new(1);
        self.shell.subscribe_as(self.queue, consumer, demand);
    }

    /// Goes on for this many milliseconds.
    fn play(&mut self, millis: u64) {
        for _ in 0..millis {
            self.shell.advance(MILLISECOND);
            self.millis += 1;
            self.step();
        }
    }

    /// Does what is to be done at this moment.
    fn step(&mut self) {
        while let Some(&(end, lease)) = self.held.front()
            && end <= self.millis
        {
            self.held.pop_front();
            self.shell.report(self.queue, lease, Verdict::Ack);
        }
        self.shell.run();
        self.shell.answers.clear();
        while let Some((_, delivery)) = self.shell.deliveries.pop_front() {
            self.held
                .push_back((self.millis + self.hold, delivery.lease));
            self.log.push((self.millis, delivery.fairness_key));
        }
    }

    fn compare(&mut self, then: &QueueSettings, over: Duration) -> Comparison {
        let snapshot = self.shell.broker.snapshot(self.shell.now, self.queue);
        let query = WhatIfQuery {
            over,
            levels: 4,
            rows: 1_000,
            steps: 400_000,
        };
        let compared = snapshot
            .unwrap()
            .compare(&self.settings, then, &query, &|| true);
        compared.unwrap()
    }

    fn apply(&mut self, settings: QueueSettings) {
        self.shell.update(self.queue, settings.clone());
        self.settings = settings;
    }
}

/// Returns how many deliveries each key is to get.
fn predicted(comparison: &Comparison) -> BTreeMap<FairnessKey, u64> {
    of_rows(comparison, |kind| kind != RowKind::Group)
}

/// Returns how many deliveries each group is to get.
fn predicted_of_groups(comparison: &Comparison) -> BTreeMap<FairnessKey, u64> {
    of_rows(comparison, |kind| kind == RowKind::Group)
}

fn of_rows(comparison: &Comparison, is_asked: fn(RowKind) -> bool) -> BTreeMap<FairnessKey, u64> {
    let rows = comparison.rows.iter().filter(|row| is_asked(row.kind));
    let rows = rows.map(|row| (row.path.clone(), row.then.deliveries));
    rows.collect()
}

/// Returns how many of these deliveries went to the members of a group, and to itself.
fn within(got: &BTreeMap<FairnessKey, u64>, group: &FairnessKey) -> u64 {
    let slash = KeySeparator::default();
    let is_within = |key: &FairnessKey| {
        let mut groups = slash.groups(key.as_bytes());
        key == group || groups.any(|path| path == group.as_bytes())
    };
    let members = got.iter().filter(|(key, _)| is_within(key));
    members.map(|(_, deliveries)| deliveries).sum()
}

/// Returns how many of these deliveries each key got.
fn got(log: &[(u64, FairnessKey)]) -> BTreeMap<FairnessKey, u64> {
    let mut got = BTreeMap::new();
    for (_, key) in log {
        *got.entry(key.clone()).or_default() += 1;
    }
    got
}

#[derive(Clone, Debug)]
struct KeyPlan {
    messages: u64,
    weight: u32,
    settings: KeySettings,
    then: Option<KeySettings>,
    /// The sizes of its messages, where they are charged by that.
    sizes: Vec<usize>,
    /// The weights that its messages name for its groups, from the top down; zero for none.
    group_weights: [u32; 3],
}

/// A key of a tree, as the names of its parts, and what it is like.
type PathPlan = (Vec<u8>, KeyPlan);

fn key_settings() -> impl Strategy<Value = KeySettings> {
    let pause = prop_oneof![9 => Just(Delivering::Running), 1 => Just(Delivering::Paused)];
    let weight = proptest::option::of(1..20_u32);
    let concurrency = proptest::option::weighted(0.3, 1..6_u32);
    (pause, weight, concurrency).prop_map(|(delivery, weight, concurrency)| {
        let mut settings = KeySettings::default();
        settings.delivery = delivery;
        settings.weight = weight.and_then(NonZeroU32::new);
        settings.concurrency = concurrency.and_then(NonZeroU32::new);
        settings
    })
}

fn key_plan() -> impl Strategy<Value = KeyPlan> {
    let sizes = proptest::collection::vec(0..8_000_usize, 1..20);
    let then = proptest::option::of(key_settings());
    let weights = (1..10_u32, prop::array::uniform3(0..4_u32));
    (0..400_u64, weights, key_settings(), then, sizes).prop_map(
        |(messages, (weight, group_weights), settings, then, sizes)| KeyPlan {
            messages,
            weight,
            settings,
            then,
            sizes,
            group_weights,
        },
    )
}

/// Returns keys that are in up to three groups. Few names, so that groups have several members and keys of their name.
fn path_plan() -> impl Strategy<Value = PathPlan> {
    (prop::collection::vec(0..3_u8, 1..=4), key_plan())
}

fn path_name(parts: &[u8]) -> FairnessKey {
    let parts: Vec<String> = parts.iter().map(|part| format!("p{part}")).collect();
    key(&parts.join("/"))
}

/// Returns a world with these keys, and the settings that come later. `others` have settings and no messages.
fn world(
    plans: &[(FairnessKey, KeyPlan)],
    others: &[(FairnessKey, KeySettings, Option<KeySettings>)],
    settings: QueueSettings,
    (slots, hold): (u32, u64),
) -> (World, QueueSettings) {
    let charge = settings.charge;
    let mut settings = settings;
    for (name, plan) in plans {
        settings.keys.insert(name.clone(), plan.settings);
    }
    for (name, before, _) in others {
        settings.keys.insert(name.clone(), *before);
    }
    let mut world = World::new(settings.clone(), hold);
    for (name, plan) in plans {
        let messages = (0..plan.messages).map(|number| {
            let size = match charge {
                Charge::Message | Charge::Time => 1,
                Charge::Bytes => plan.sizes[number as usize % plan.sizes.len()],
            };
            let payload = Payload::new(Vec::new(), vec![0; size]).unwrap();
            let mut message = NewMessage::new(name.clone(), payload);
            message.schedule.weight = NonZeroU32::new(plan.weight).unwrap();
            for (level, weight) in plan.group_weights.iter().enumerate() {
                if let Some(weight) = NonZeroU32::new(*weight) {
                    message.schedule.group_weights.set(level, weight);
                }
            }
            message
        });
        let queue = world.queue;
        world.shell.enqueue_all(queue, messages.collect());
    }
    // The messages have been there for a while, so no more are expected.
    world.shell.advance(120 * SECOND);
    world.subscribe(slots);
    let mut then = settings;
    let of_keys = plans.iter().map(|(name, plan)| (name, plan.then));
    let of_others = others.iter().map(|(name, _, then)| (name, *then));
    for (name, later) in of_keys.chain(of_others) {
        if let Some(later) = later {
            then.keys.insert(name.clone(), later);
        }
    }
    (world, then)
}

/// Checks predictions of several lengths against the deliveries that follow: each key and each group gets what was predicted.
fn check(world: &mut World, then: QueueSettings, over: &[u64]) -> Result<(), TestCaseError> {
    let comparisons: Vec<Comparison> = over
        .iter()
        .map(|&millis| world.compare(&then, Duration::from_millis(millis)))
        .collect();
    // Without a pace, caps and time are left out.
    prop_assume!(comparisons[0].basis != PaceBasis::Nothing);
    let from = world.log.len();
    world.apply(then);
    world.step();
    world.play(3 * over.iter().max().unwrap() + 200);
    let log = &world.log[from..];
    for (comparison, millis) in comparisons.iter().zip(over) {
        let predicted = predicted(comparison);
        let total: u64 = predicted.values().sum();
        prop_assert!(total as usize <= log.len(), "{total} of {}", log.len());
        let got = got(&log[..total as usize]);
        for (key, deliveries) in predicted {
            let real = got.get(&key).copied().unwrap_or(0);
            prop_assert_eq!(
                real,
                deliveries,
                "{:?} after {} ms, of {}",
                key,
                millis,
                total
            );
        }
        for (group, deliveries) in predicted_of_groups(comparison) {
            let real = within(&got, &group);
            prop_assert_eq!(
                real,
                deliveries,
                "group {:?} after {} ms, of {}",
                group,
                millis,
                total
            );
        }
    }
    Ok(())
}

fn ordering() -> impl Strategy<Value = Ordering> {
    prop_oneof![4 => Just(Ordering::None), 1 => Just(Ordering::Key)]
}

fn worlds() -> u32 {
    std::env::var("FILA_WHATIF_WORLDS").map_or(96, |worlds| worlds.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(worlds()))]

    #[test]
    fn on_a_static_backlog_the_broker_does_what_was_predicted(
        plans in proptest::collection::vec(key_plan(), 1..12),
        charge in prop_oneof![Just(Charge::Message), Just(Charge::Bytes)],
        ordering in ordering(),
        slots in 1..30_u32,
        hold in 5..60_u64,
        before in 20..400_u64,
        over in proptest::collection::vec(1..600_u64, 6),
    ) {
        let names = (0..plans.len()).map(|number| key(&format!("key-{number}")));
        let plans: Vec<_> = names.zip(plans).collect();
        let settings = QueueSettings { ordering, ..charged(charge) };
        let (mut world, then) = world(&plans, &[], settings, (slots, hold));
        world.step();
        world.play(before);
        check(&mut world, then, &over)?;
    }

    #[test]
    fn on_a_static_backlog_of_a_tree_the_broker_does_what_was_predicted(
        plans in proptest::collection::vec(path_plan(), 2..16),
        groups in proptest::collection::vec((key_settings(), prop::option::of(key_settings())), 39),
        charge in prop_oneof![Just(Charge::Message), Just(Charge::Bytes)],
        ordering in ordering(),
        key_concurrency in prop::option::weighted(0.2, 1..6_u32),
        slots in 1..30_u32,
        hold in 5..60_u64,
        before in 20..400_u64,
        over in proptest::collection::vec(1..600_u64, 6),
    ) {
        let plans: BTreeMap<_, _> =
            plans.into_iter().map(|(parts, plan)| (path_name(&parts), plan)).collect();
        let slash = KeySeparator::default();
        let above = plans.keys().flat_map(|key| slash.groups(key.as_bytes()));
        let above: std::collections::BTreeSet<&[u8]> = above.collect();
        let others = above.into_iter().zip(groups).filter(|(path, _)| !plans.contains_key(*path));
        let others: Vec<_> = others
            .map(|(path, (now, then))| (FairnessKey::new(path.to_vec()).unwrap(), now, then))
            .collect();
        let plans: Vec<_> = plans.into_iter().collect();
        let mut settings = QueueSettings { ordering, ..charged(charge) };
        settings.key_concurrency = key_concurrency.and_then(NonZeroU32::new);
        let (mut world, then) = world(&plans, &others, settings, (slots, hold));
        world.step();
        world.play(before);
        check(&mut world, then, &over)?;
    }
}

fn charged(charge: Charge) -> QueueSettings {
    let mut settings = QueueSettings::default();
    settings.charge = charge;
    settings
}

/// Returns a world in which these keys have this many messages each, and a consumer holds 10 of them for 100 ms.
fn busy_world(keys: &[(&str, u64)]) -> World {
    let mut world = World::new(QueueSettings::default(), 100);
    for (name, messages) in keys {
        let messages = (0..*messages).map(|_| message(name, "x"));
        let queue = world.queue;
        world.shell.enqueue_all(queue, messages.collect());
    }
    world.shell.advance(120 * SECOND);
    world.subscribe(10);
    world.step();
    world.play(5_000);
    world
}

fn row<'c>(comparison: &'c Comparison, name: &str) -> &'c PolicyRow {
    let mut rows = comparison.rows.iter();
    rows.find(|row| row.path == key(name)).unwrap()
}

fn with(settings: &QueueSettings, name: &str, change: impl Fn(&mut KeySettings)) -> QueueSettings {
    let mut then = settings.clone();
    change(then.keys.entry(key(name)).or_default());
    then
}

fn weighing(settings: &QueueSettings, name: &str, weight: u32) -> QueueSettings {
    with(settings, name, |key| key.weight = NonZeroU32::new(weight))
}

/// Returns after how many seconds a backlog is gone.
fn seconds(drained: Option<Drained>) -> f64 {
    match drained.unwrap().after {
        Span::Time(time) => time.as_secs_f64(),
        Span::Deliveries(deliveries) => panic!("{deliveries} deliveries"),
    }
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    let error = (found - expected).abs() / expected.abs().max(1e-9);
    assert!(error < 0.03, "{found} is not {expected}");
}

#[test]
fn weights_set_shares_and_the_time_until_a_backlog_is_gone() {
    let mut world = busy_world(&[("acme", 3_000), ("globex", 3_000)]);
    let then = weighing(&world.settings, "acme", 3);
    let compared = world.compare(&then, 10 * SECOND);
    assert_eq!(compared.basis, PaceBasis::Measured);
    assert_near(compared.pace.unwrap(), 100.0);
    assert_eq!(compared.over, Span::Time(10 * SECOND));
    let (acme, globex) = (row(&compared, "acme"), row(&compared, "globex"));
    assert!(acme.is_changed && !globex.is_changed);
    assert_eq!((acme.now.weight, acme.then.weight), (1, 3));
    assert_near(acme.now.share, 0.5);
    assert_near(acme.then.share, 0.75);
    assert_near(globex.then.share, 0.25);
    assert_near(acme.then.rate.unwrap(), 75.0);
    // 500 are delivered; 2,750 of each are left, or with the consumer.
    assert_near(seconds(acme.now.drained), 54.9);
    assert_near(seconds(acme.then.drained), 2_750.0 / 75.0);
    assert_near(seconds(globex.then.drained), 54.9);
    // The change is made, and the broker needs as long.
    let before = world.millis;
    world.apply(then);
    world.play(60_000);
    let mut log = world.log.iter().rev();
    let (last, _) = log.find(|(_, name)| *name == key("acme")).unwrap();
    let took = (last - before) as f64 / 1_000.0;
    assert_near(seconds(acme.then.drained), took);
}

#[test]
fn a_pause_is_for_ever_and_others_get_its_share() {
    let mut world = busy_world(&[("acme", 3_000), ("globex", 3_000)]);
    let then = with(&world.settings, "acme", |key| {
        key.delivery = Delivering::Paused;
    });
    let compared = world.compare(&then, SECOND);
    let (acme, globex) = (row(&compared, "acme"), row(&compared, "globex"));
    assert!(acme.then.is_paused && !acme.now.is_paused);
    assert_eq!((acme.then.deliveries, acme.then.drained), (0, None));
    assert_near(globex.then.share, 1.0);
    assert_near(seconds(globex.then.drained), 27.4);
}

#[test]
fn a_cap_limits_a_key_to_what_results_allow() {
    let mut world = busy_world(&[("acme", 3_000), ("globex", 3_000)]);
    let then = with(&world.settings, "acme", |key| {
        key.concurrency = NonZeroU32::new(2);
    });
    let compared = world.compare(&then, 10 * SECOND);
    let acme = row(&compared, "acme");
    assert_eq!((acme.now.cap, acme.then.cap), (None, Some(2)));
    // Two messages at once, each for 100 ms.
    assert_near(acme.then.rate.unwrap(), 20.0);
    assert_near(row(&compared, "globex").then.rate.unwrap(), 80.0);
}

#[test]
fn a_key_that_gets_more_than_it_may_have_is_never_done() {
    let mut world = busy_world(&[("acme", 3_000), ("globex", 500)]);
    let queue = world.queue;
    for _ in 0..60_000 {
        // 60 in a second, where its share is 50. The other one gets its share.
        for (name, every) in [("globex", 50), ("acme", 60)] {
            let new = u64::from(world.millis.is_multiple_of(every)) * 3;
            let new = (0..new).map(|_| message(name, "x"));
            world.shell.send(queue, new.collect());
        }
        world.play(1);
    }
    let then = weighing(&world.settings, "globex", 2);
    let compared = world.compare(&then, 10 * SECOND);
    let globex = row(&compared, "globex");
    assert_near(globex.arrivals, 60.0);
    assert_eq!(globex.now.drained, None);
    assert!(globex.now.ready > globex.ready);
    assert!(globex.then.ready < globex.ready);
    assert!(seconds(globex.then.drained) > 1.0);
    assert_eq!(row(&compared, "acme").then.drained, None);
}

#[test]
fn consumers_with_room_take_as_much_as_their_credit_allows() {
    let mut world = busy_world(&[("acme", 100_000), ("globex", 100_000)]);
    let paused = with(&world.settings, "acme", |key| {
        key.delivery = Delivering::Paused;
    });
    let capped = with(&paused, "globex", |key| {
        key.concurrency = NonZeroU32::new(4)
    });
    world.apply(capped.clone());
    world.play(30_000);
    let then = with(&capped, "acme", |key| key.delivery = Delivering::Running);
    let compared = world.compare(&then, 10 * SECOND);
    assert_eq!(compared.basis, PaceBasis::Credit);
    let (acme, globex) = (row(&compared, "acme"), row(&compared, "globex"));
    assert_near(globex.now.rate.unwrap(), 40.0);
    assert_near(globex.then.rate.unwrap(), 40.0);
    assert_near(acme.then.rate.unwrap(), 60.0);
}

#[test]
fn without_a_pace_deliveries_are_counted_and_nothing_is_said_of_time() {
    let mut world = World::new(QueueSettings::default(), 100);
    for (name, messages) in [("acme", 300), ("globex", 300)] {
        let messages = (0..messages).map(|_| message(name, "x"));
        world.shell.enqueue_all(world.queue, messages.collect());
    }
    let then = weighing(&world.settings, "acme", 2);
    let compared = world.compare(&then, SECOND);
    assert_eq!((compared.basis, compared.pace), (PaceBasis::Nothing, None));
    let (acme, globex) = (row(&compared, "acme"), row(&compared, "globex"));
    assert_eq!((acme.then.rate, acme.then.deliveries), (None, 300));
    let after = |drained: Option<Drained>| match drained.unwrap().after {
        Span::Deliveries(deliveries) => deliveries,
        Span::Time(time) => panic!("{time:?}"),
    };
    assert!(after(acme.now.drained).abs_diff(600) <= 2);
    assert!(after(acme.then.drained).abs_diff(450) <= 2);
    assert_eq!(after(globex.then.drained), 600);
}

#[test]
fn a_backlog_that_is_too_long_to_be_played_is_drawn_out() {
    let mut world = busy_world(&[("acme", 60_000), ("globex", 20_000)]);
    let then = weighing(&world.settings, "globex", 3);
    let exact = world.compare(&then, SECOND);
    let snapshot = world.shell.broker.snapshot(world.shell.now, world.queue);
    let query = WhatIfQuery {
        over: SECOND,
        steps: 4_000,
        ..WhatIfQuery::default()
    };
    let snapshot = snapshot.unwrap();
    let rough = snapshot.compare(&world.settings, &then, &query, &|| true);
    let rough = rough.unwrap();
    for name in ["acme", "globex"] {
        let (exact, rough) = (row(&exact, name), row(&rough, name));
        for (exact, rough) in [(exact.now, rough.now), (exact.then, rough.then)] {
            let (exact, rough) = (exact.drained, rough.drained);
            assert!(!exact.unwrap().is_extrapolated && rough.unwrap().is_extrapolated);
            let (exact, rough) = (seconds(exact), seconds(rough));
            assert!(
                (rough - exact).abs() < 0.05 * exact,
                "{rough} is not {exact}"
            );
        }
    }
}

#[test]
fn a_prediction_that_nobody_waits_for_is_given_up() {
    let mut world = busy_world(&[("acme", 20_000)]);
    let snapshot = world.shell.broker.snapshot(world.shell.now, world.queue);
    let (settings, query) = (&world.settings, WhatIfQuery::default());
    let given_up = snapshot
        .unwrap()
        .compare(settings, settings, &query, &|| false);
    assert_eq!(given_up.unwrap_err(), Cancelled);
}

#[test]
fn a_path_without_messages_has_a_row_if_its_settings_would_change() {
    let mut world = busy_world(&[("acme", 2_000)]);
    let then = weighing(&world.settings, "initech", 7);
    let compared = world.compare(&then, SECOND);
    let initech = row(&compared, "initech");
    assert_eq!((initech.now.weight, initech.then.weight), (1, 7));
    assert_eq!((initech.ready, initech.then.deliveries), (0, 0));
    assert!(initech.is_changed);
}

#[test]
fn rows_beyond_the_limit_are_counted_and_changed_ones_come_first() {
    let mut world = busy_world(&[("a", 900), ("b", 900), ("c", 900), ("d", 900)]);
    let then = with(&world.settings, "d", |key| {
        key.delivery = Delivering::Paused;
    });
    let snapshot = world.shell.broker.snapshot(world.shell.now, world.queue);
    let query = WhatIfQuery {
        rows: 2,
        ..WhatIfQuery::default()
    };
    let snapshot = snapshot.unwrap();
    let compared = snapshot.compare(&world.settings, &then, &query, &|| true);
    let compared = compared.unwrap();
    assert_eq!((compared.rows.len(), compared.left_out), (2, 2));
    assert_eq!(compared.rows[0].path, key("d"));
}

#[test]
fn a_queue_with_too_many_keys_is_not_copied() {
    let (mut shell, queue) = support::queue();
    let max = SNAPSHOT_KEYS_MAX;
    let messages = (0..=max).map(|number| message(&number.to_string(), ""));
    shell.enqueue_all(queue, messages.collect());
    let refused = shell.broker.snapshot(shell.now, queue).unwrap_err();
    let found = max + 1;
    assert_eq!(refused, Refused::TooManyKeysToCopy { found, max });
}

/// Returns a world in which `acme` has two users and messages of its own, beside the key `globex`.
fn companies() -> World {
    busy_world(&[
        ("acme/alice", 3_000),
        ("acme/bob", 3_000),
        ("acme", 3_000),
        ("globex", 9_000),
    ])
}

fn row_of<'c>(comparison: &'c Comparison, name: &str, kind: RowKind) -> &'c PolicyRow {
    let mut rows = comparison.rows.iter();
    let is_asked = |row: &&PolicyRow| row.path == key(name) && row.kind == kind;
    rows.find(is_asked).unwrap()
}

#[test]
fn a_group_of_the_broker_has_one_share_and_its_settings_bind_its_members() {
    let mut world = companies();
    let then = weighing(&world.settings, "acme", 3);
    let compared = world.compare(&then, 10 * SECOND);
    let acme = row_of(&compared, "acme", RowKind::Group);
    assert!(acme.is_changed);
    assert_near(acme.now.share, 0.5);
    assert_near(acme.then.share, 0.75);
    assert_eq!((acme.now.weight, acme.then.weight), (1, 3));
    let own = row_of(&compared, "acme", RowKind::OwnMessages);
    assert_eq!((own.level, own.is_changed, own.then.weight), (1, false, 1));
    assert_near(own.then.share, 0.25);
    assert_eq!(acme.ready, own.ready * 3);

    let then = with(&world.settings, "acme", |acme| {
        acme.concurrency = NonZeroU32::new(3);
    });
    let compared = world.compare(&then, 10 * SECOND);
    let acme = row_of(&compared, "acme", RowKind::Group);
    // Three messages at once, each for 100 ms.
    assert_near(acme.then.rate.unwrap(), 30.0);
    assert_near(row(&compared, "globex").then.rate.unwrap(), 70.0);

    let then = with(&world.settings, "acme", |acme| {
        acme.delivery = Delivering::Paused;
    });
    let compared = world.compare(&then, 10 * SECOND);
    for name in ["acme", "acme/alice", "acme/bob"] {
        let then = row(&compared, name).then;
        assert_eq!((then.deliveries, then.drained), (0, None), "{name}");
    }
    assert_near(row(&compared, "globex").then.share, 1.0);
}

#[test]
fn a_weight_that_is_taken_back_leaves_a_group_the_one_that_its_own_messages_name() {
    let mut world = World::new(QueueSettings::default(), 100);
    let fixed = weighing(&world.settings, "acme", 5);
    world.apply(fixed.clone());
    let mut own = message("acme", "x");
    own.schedule.weight = NonZeroU32::new(3).unwrap();
    let queue = world.queue;
    world.shell.enqueue_all(queue, vec![own; 3_000]);
    for name in ["acme/alice", "globex"] {
        let messages = vec![message(name, "x"); 3_000];
        world.shell.enqueue_all(queue, messages);
    }
    world.shell.advance(120 * SECOND);
    world.subscribe(10);
    world.step();
    world.play(5_000);
    let then = with(&fixed, "acme", |acme| acme.weight = None);
    let compared = world.compare(&then, 10 * SECOND);
    let acme = row_of(&compared, "acme", RowKind::Group);
    assert_eq!((acme.now.weight, acme.then.weight), (5, 3));
    assert_near(acme.then.share, 0.75);
    // Its own messages have weight 1 among its members.
    let own = row_of(&compared, "acme", RowKind::OwnMessages);
    assert_near(own.then.share, 0.375);
}

#[test]
fn a_changed_member_is_shown_below_the_levels_that_were_asked_for() {
    let mut world = companies();
    let then = weighing(&world.settings, "acme/bob", 2);
    let snapshot = world.shell.broker.snapshot(world.shell.now, world.queue);
    let query = WhatIfQuery::default();
    let snapshot = snapshot.unwrap();
    let compared = snapshot.compare(&world.settings, &then, &query, &|| true);
    let compared = compared.unwrap();
    let shown = compared
        .rows
        .iter()
        .map(|row| (row.path.clone(), row.level));
    let expected = [("acme", 0), ("acme/bob", 1), ("globex", 0)];
    let expected = expected.map(|(name, level)| (key(name), level));
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert_eq!(compared.left_out, 0);
}

#[test]
fn groups_count_among_the_keys_that_a_copy_may_have() {
    let (mut shell, queue) = support::queue();
    let max = SNAPSHOT_KEYS_MAX;
    // As many groups as keys.
    let messages = (0..=max / 2).map(|number| message(&format!("{number}/a"), ""));
    shell.enqueue_all(queue, messages.collect());
    let refused = shell.broker.snapshot(shell.now, queue).unwrap_err();
    let found = max + 2;
    assert_eq!(refused, Refused::TooManyKeysToCopy { found, max });
}
