//! A group holds of every pool what one key may hold, and its members share that as keys share the pool.

use std::collections::BTreeMap;
use std::time::Duration;

use drr::Pool;
use fila_core::{
    Beginnings, ConsumerId, ConsumerKind, Demand, EnqueueError, KeySeparator, KeySettings,
    NewMessage, QueueSettings, Settings, SharedPool, Verdict, Waiting,
};
use fila_store::{DeduplicationId, QueueId, Timestamp};

use crate::support::{Chance, SECOND, Shell, key, message, nack};

/// Of a pool of 40, one key gets 30: then 10 are free, and three times that is 30.
const POOL: u64 = 40;
const PART: u64 = 30;

/// Returns a broker whose queues have this much of a pool.
fn with_pool(pool: SharedPool, size: u64) -> (Shell, QueueId) {
    Shell::with_settings(|it| match pool {
        SharedPool::Depth => it.limits.depth_per_queue = size,
        SharedPool::Delayed => it.limits.delayed_per_queue = size,
        SharedPool::DeduplicationIds => it.limits.deduplication_ids_per_queue = size as usize,
        SharedPool::Keys => panic!("clients share it"),
    })
}

/// Returns a message that takes one of this pool.
fn taking(pool: SharedPool, name: &str, number: usize) -> NewMessage {
    let mut message = message(name, "");
    match pool {
        SharedPool::Depth | SharedPool::Keys => {}
        SharedPool::Delayed => message.delay = 50 * SECOND,
        SharedPool::DeduplicationIds => {
            let id = DeduplicationId::new(format!("{number}")).unwrap();
            message.deduplication_id = Some(id);
        }
    }
    message
}

const POOLS: [SharedPool; 3] = [
    SharedPool::Depth,
    SharedPool::Delayed,
    SharedPool::DeduplicationIds,
];

fn try_one(shell: &mut Shell, queue: QueueId, message: NewMessage) -> Option<EnqueueError> {
    shell.enqueue_all(queue, vec![message]).remove(0).err()
}

/// Sends messages of these keys in turns until all of them are refused; returns how many were not, and the last refusal.
fn flood(
    shell: &mut Shell,
    queue: QueueId,
    pool: SharedPool,
    names: &[String],
) -> (u64, EnqueueError) {
    let (mut stored, mut number) = (0, 0);
    loop {
        let before = stored;
        let mut refused = None;
        for name in names {
            number += 1;
            match try_one(shell, queue, taking(pool, name, number)) {
                None => stored += 1,
                Some(error) => refused = Some(error),
            }
        }
        if let Some(refused) = refused.filter(|_| stored == before) {
            return (stored, refused);
        }
    }
}

/// Returns the path that is over its part, what it holds, and the part.
#[track_caller]
fn over(refused: &EnqueueError) -> (String, u64, u64) {
    match refused {
        EnqueueError::OverPart {
            path: Some(path),
            held,
            part,
            ..
        } => (
            String::from_utf8(path.as_bytes().to_vec()).unwrap(),
            *held,
            *part,
        ),
        other => panic!("{other:?}"),
    }
}

fn with_depth<const N: usize>(limits: [(&str, u64); N]) -> QueueSettings {
    let of = |depth_max| KeySettings {
        depth_max: Some(depth_max),
        ..KeySettings::default()
    };
    QueueSettings {
        keys: limits.map(|(name, max)| (key(name), of(max))).into(),
        ..QueueSettings::default()
    }
}

#[test]
fn a_group_of_any_number_of_keys_holds_no_more_of_a_pool_than_one_key() {
    for pool in POOLS {
        for members in [2, 50] {
            let (mut shell, queue) = with_pool(pool, POOL);
            let names: Vec<String> = (0..members).map(|n| format!("acme/{n}")).collect();
            let (stored, refused) = flood(&mut shell, queue, pool, &names);
            assert!(
                (PART - 2..=PART).contains(&stored),
                "{pool:?}, {members} members: {stored}"
            );
            if members == 50 {
                assert_eq!(over(&refused), ("acme".to_owned(), PART, PART));
                // A new member is refused as well, also after a restart.
                let newcomer = |n| taking(pool, "acme/new", n);
                let refused = try_one(&mut shell, queue, newcomer(0)).unwrap();
                assert_eq!(over(&refused).0, "acme", "{pool:?}");
                if pool != SharedPool::Delayed {
                    shell.restart();
                }
                let refused = try_one(&mut shell, queue, newcomer(1)).unwrap();
                assert_eq!(over(&refused), ("acme".to_owned(), PART, PART));
            }
            let others = ["globex", "acmeco/x", "acmeco"];
            for (n, name) in others.into_iter().enumerate() {
                let refused = try_one(&mut shell, queue, taking(pool, name, 10_000 + n));
                assert_eq!(refused, None, "{pool:?}, {name}");
            }
        }
    }
}

#[test]
fn a_member_that_floods_leaves_room_to_the_others_of_its_group() {
    for pool in POOLS {
        let (mut shell, queue) = with_pool(pool, 400);
        let (stored, refused) = flood(&mut shell, queue, pool, &["acme/alice".to_owned()]);
        // The part of the group is 3 * 123 = 369 then, and 92 of it are free.
        assert_eq!(stored, 277, "{pool:?}");
        assert_eq!(over(&refused), ("acme/alice".to_owned(), 277, 3 * 92));
        for (n, name) in ["acme/bob", "acme", "acme/team/carol"].iter().enumerate() {
            let refused = try_one(&mut shell, queue, taking(pool, name, 1_000 + n));
            assert_eq!(refused, None, "{pool:?}, {name}");
        }
    }
}

#[test]
fn parts_are_divided_on_every_level_of_a_path() {
    for pool in POOLS {
        let (mut shell, queue) = with_pool(pool, 4000);
        let (_, refused) = flood(&mut shell, queue, pool, &["a/b/c/d".to_owned()]);
        assert_eq!(over(&refused).0, "a/b/c/d");
        for (n, name) in ["a/b/c/e", "a/b/f", "a/g", "a", "h"].iter().enumerate() {
            let refused = try_one(&mut shell, queue, taking(pool, name, 1_000 + n));
            assert_eq!(refused, None, "{pool:?}, {name}");
        }
    }
}

#[test]
fn a_key_that_bears_the_name_of_a_group_is_one_of_its_members() {
    for pool in POOLS {
        let (mut shell, queue) = with_pool(pool, POOL);
        let (stored, refused) = flood(&mut shell, queue, pool, &["acme".to_owned()]);
        assert_eq!((stored, over(&refused).0), (PART, "acme".to_owned()));
        // It has all of the group's part already.
        let refused = try_one(&mut shell, queue, taking(pool, "acme/alice", 1_000));
        let expected = match pool {
            // The group is not there yet, and what it would hold is.
            SharedPool::Depth | SharedPool::Delayed => None,
            SharedPool::DeduplicationIds | SharedPool::Keys => Some("acme".to_owned()),
        };
        assert_eq!(refused.map(|it| over(&it).0), expected, "{pool:?}");
        let refused = try_one(&mut shell, queue, taking(pool, "acme/bob", 1_001)).unwrap();
        assert_eq!(over(&refused).0, "acme", "{pool:?}");
    }
}

#[test]
fn a_refusal_names_the_level_and_when_to_come_back_by_its_pace() {
    let (mut shell, queue) = with_pool(SharedPool::Depth, POOL);
    let names: Vec<String> = (0..20).map(|n| format!("acme/{n}")).collect();
    flood(&mut shell, queue, SharedPool::Depth, &names);
    let consumer = shell.subscribe(queue, 0);
    for _ in 0..20 {
        shell.advance(SECOND);
        let delivery = shell.next(consumer).unwrap();
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    let (_, refused) = flood(&mut shell, queue, SharedPool::Depth, &names);
    let EnqueueError::OverPart { retry_after, .. } = refused else {
        panic!("{refused:?}");
    };
    // The group got one message a second.
    let about = SECOND.mul_f64(0.8)..=SECOND.mul_f64(1.2);
    assert!(about.contains(&retry_after), "{retry_after:?}");
    let text = refused.to_string();
    let expected = "`acme` holds 30 of the queue's messages, and its part is 30 now; try again in ";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_depth_that_is_set_for_a_group_limits_all_its_members_together() {
    let (mut shell, queue) = Shell::with_queue(with_depth([("acme", 10), ("acme/vip", 6)]));
    let names: Vec<String> = (0..5).map(|n| format!("acme/{n}")).collect();
    let (stored, refused) = flood(&mut shell, queue, SharedPool::Depth, &names);
    assert_eq!(stored, 10);
    let full = |path, max| EnqueueError::KeyFull {
        path: key(path),
        max,
    };
    assert_eq!(refused, full("acme", 10));
    assert_eq!(
        refused.to_string(),
        "`acme` holds 10 messages, its limit; consume some, or raise it"
    );
    for name in ["acme", "acme/new", "acme/team/new", "acme/vip"] {
        let refused = try_one(&mut shell, queue, message(name, ""));
        assert_eq!(refused, Some(full("acme", 10)), "{name}");
    }
    assert_eq!(try_one(&mut shell, queue, message("globex", "")), None);
    // A raised limit counts at once, and after a restart. Its members share it by their parts.
    shell.update(queue, with_depth([("acme", 20), ("acme/vip", 6)]));
    let (stored, refused) = flood(&mut shell, queue, SharedPool::Depth, &names[..1]);
    assert_eq!(over(&refused), ("acme/0".to_owned(), 2 + stored, 9));
    assert_eq!(stored, 7);
    let vip = "acme/vip".to_owned();
    let (stored, refused) = flood(&mut shell, queue, SharedPool::Depth, &[vip]);
    assert_eq!((stored, refused), (3, full("acme", 20)));
    shell.update(queue, with_depth([("acme", 100), ("acme/vip", 6)]));
    let vip = "acme/vip".to_owned();
    let (stored, refused) = flood(&mut shell, queue, SharedPool::Depth, &[vip]);
    assert_eq!((stored, refused), (3, full("acme/vip", 6)));
}

#[test]
fn the_depth_of_a_key_is_in_place_of_that_of_all_keys() {
    let mut definition = with_depth([("more", 5), ("acme/less", 1), ("group", 4)]);
    definition.key_depth_max = Some(3);
    let (mut shell, queue) = Shell::with_queue(definition);
    for (name, max) in [("more", 5), ("acme/less", 1), ("other", 3), ("acme/x", 3)] {
        let flooded = flood(&mut shell, queue, SharedPool::Depth, &[name.to_owned()]);
        let path = key(name);
        assert_eq!(flooded, (max, EnqueueError::KeyFull { path, max }));
    }
    // That of all keys does not limit a group.
    let names = ["group/a", "group/b", "group/c"].map(str::to_owned);
    let (stored, refused) = flood(&mut shell, queue, SharedPool::Depth, &names);
    let path = key("group");
    assert_eq!(
        (stored, refused),
        (4, EnqueueError::KeyFull { path, max: 4 })
    );
}

#[test]
fn a_group_that_fails_all_its_work_leaves_others_room_for_delayed_messages() {
    let mut settings = Settings::default();
    settings.limits.delayed_per_queue = POOL;
    let mut shell = Shell::new(settings);
    let queue = shell.create("queue", QueueSettings::default());
    let failing = (0..400).map(|n| message(&format!("failing/{}", n % 100), ""));
    shell.enqueue_all(queue, failing.collect());
    let demand = Demand {
        credit: u32::MAX,
        in_flight_max: 4,
        kind: ConsumerKind::Stream(Beginnings::Reported),
    };
    shell.subscribe_as(queue, ConsumerId::new(1), demand);
    shell.run();
    while let Some((_, delivery)) = shell.deliveries.pop_front() {
        let failed = nack(100 * SECOND);
        shell.settle(queue, delivery.lease, failed).unwrap();
        shell.run();
    }
    let stats = shell.stats(queue);
    let leased_max = 4;
    let waiting = PART..=PART + leased_max;
    assert!(waiting.contains(&stats.delayed), "{stats:?}");
    let why = shell.explain(queue, "failing/7").waiting;
    assert_eq!(why, Waiting::TooManyDelayed);
    let mut delayed = message("quiet", "");
    delayed.delay = SECOND;
    assert_eq!(try_one(&mut shell, queue, delayed), None);
    // The failing group goes on when its messages are due.
    shell.advance(100 * SECOND);
    shell.run();
    assert!(!shell.deliveries.is_empty());
}

#[test]
fn ids_are_counted_for_other_groups_after_the_separator_has_changed() {
    let pool = SharedPool::DeduplicationIds;
    let (mut shell, queue) = with_pool(pool, POOL);
    let colon = QueueSettings {
        key_separator: KeySeparator::new(':').ok(),
        ..QueueSettings::default()
    };
    let names: Vec<String> = (0..50).map(|n| format!("acme/x{}:y", n % 5)).collect();
    let (stored, refused) = flood(&mut shell, queue, pool, &names);
    assert_eq!((stored, over(&refused).0), (PART, "acme".to_owned()));
    // Five groups of 6 each: 10 are free, so each may have 30.
    shell.update(queue, colon.clone());
    let (stored, refused) = flood(&mut shell, queue, pool, &names[..1]);
    assert!(stored > 0, "{refused:?}");
    assert!(over(&refused).0.starts_with("acme/x0"), "{refused:?}");
    // A purge forgets the ids, and keeps the separator.
    shell.purge(queue);
    let many: Vec<String> = (0..50).map(|n| format!("acme:{n}")).collect();
    let (stored, refused) = flood(&mut shell, queue, pool, &many);
    assert_eq!((stored, over(&refused).0), (PART, "acme".to_owned()));
    shell.update(
        queue,
        QueueSettings {
            key_separator: None,
            ..colon
        },
    );
    let refused = try_one(&mut shell, queue, taking(pool, "acme:new", 10_000));
    assert_eq!(refused, None, "now it is one name");
}

/// The counts that the rule goes by, for each key.
#[derive(Default)]
struct Model {
    depth: BTreeMap<&'static str, u64>,
    ids: Vec<(&'static str, Timestamp)>,
}

/// Returns the levels of a key, and whether another key counts for each of them.
fn levels(key: &'static str) -> Vec<(String, bool)> {
    let parts: Vec<&str> = key.split('/').collect();
    let mut levels: Vec<(String, bool)> = (1..=parts.len())
        .map(|end| (parts[..end].join("/"), true))
        .collect();
    levels.push((key.to_owned(), false));
    levels
}

impl Model {
    /// Returns the pool, the level and what it holds, if the rule refuses a message of this key.
    fn refusal(&self, now: Timestamp, key: &'static str, has_id: bool) -> Option<EnqueueError> {
        let ids = self.ids.iter().filter(|(_, until)| *until > now);
        let ids: Vec<(&str, u64)> = ids.map(|(owner, _)| (*owner, 1)).collect();
        let depth: Vec<(&str, u64)> = self.depth.iter().map(|(key, held)| (*key, *held)).collect();
        let of_ids = has_id.then_some((SharedPool::DeduplicationIds, ids));
        let pools = of_ids.into_iter().chain([(SharedPool::Depth, depth)]);
        pools
            .into_iter()
            .find_map(|(pool, held)| refusal_of(pool, &held, key))
    }
}

fn refusal_of(
    pool: SharedPool,
    held: &[(&str, u64)],
    key_of: &'static str,
) -> Option<EnqueueError> {
    let sum = |counts: &dyn Fn(&str) -> bool| -> u64 {
        let counted = held.iter().filter(|(key, _)| counts(key));
        counted.map(|(_, held)| held).sum()
    };
    let mut state = Pool {
        capacity: POOL,
        used: sum(&|_| true),
    };
    if state.free() == 0 {
        return Some(match pool {
            SharedPool::Depth => EnqueueError::QueueFull { max: POOL },
            _ => EnqueueError::TooManyDeduplicationIds { max: POOL as usize },
        });
    }
    for (level, has_members) in levels(key_of) {
        let within = format!("{level}/");
        let own = sum(&|key| key == level);
        let all = sum(&|key| key == level || key.starts_with(&within));
        // A key without members is no group.
        if has_members && level == key_of && all == own {
            continue;
        }
        let held = if has_members { all } else { own };
        if !state.admits(held, 1) {
            return Some(EnqueueError::OverPart {
                pool,
                path: Some(key(&level)),
                held,
                part: state.part(),
                retry_after: Duration::ZERO,
            });
        }
        state = Pool {
            capacity: state.part(),
            used: held,
        };
    }
    None
}

#[test]
fn what_is_refused_is_what_the_rule_says_on_every_level_in_any_order_of_events() {
    const KEYS: [&str; 10] = [
        "a/x", "a/x", "a/x", "a/y", "a/t/u", "a/t/v", "a/t/v", "a", "b", "c/d",
    ];
    let mut seen = [0; 4];
    for seed in 0..8 {
        let mut chance = Chance(seed);
        let mut settings = Settings::default();
        settings.limits.depth_per_queue = POOL;
        settings.limits.deduplication_ids_per_queue = POOL as usize;
        let mut shell = Shell::new(settings);
        let mut definition = QueueSettings::default();
        definition.deduplication_window = 30 * SECOND;
        let queue = shell.create("queue", definition);
        let mut consumer = shell.subscribe(queue, 0);
        let mut model = Model::default();
        for step in 0..800 {
            match chance.below(100) {
                0..70 => {
                    let name = KEYS[chance.below(KEYS.len() as u64) as usize];
                    let mut new = message(name, "");
                    let has_id = chance.one_in(2);
                    let id = DeduplicationId::new(format!("{step}")).unwrap();
                    new.deduplication_id = has_id.then_some(id);
                    let expected = model.refusal(shell.now, name, has_id);
                    let mut refused = try_one(&mut shell, queue, new);
                    if let Some(EnqueueError::OverPart {
                        retry_after, path, ..
                    }) = &mut refused
                    {
                        assert!((SECOND / 10..=60 * SECOND).contains(retry_after));
                        *retry_after = Duration::ZERO;
                        seen[0] += 1;
                        seen[3] += usize::from(*path != Some(key(name)));
                    }
                    assert_eq!(refused, expected, "seed {seed}, step {step}, {name}");
                    seen[1] += usize::from(refused.is_some());
                    if refused.is_none() {
                        *model.depth.entry(name).or_default() += 1;
                        let until = shell.now.saturating_add(30 * SECOND);
                        model.ids.extend(has_id.then_some((name, until)));
                        seen[2] += 1;
                    }
                }
                70..92 if model.depth.values().any(|held| *held > 0) => {
                    let delivery = shell.next(consumer).unwrap();
                    shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
                    let name = String::from_utf8(delivery.fairness_key.as_bytes().to_vec());
                    *model.depth.get_mut(name.unwrap().as_str()).unwrap() -= 1;
                }
                92..98 => shell.advance(2 * SECOND),
                98 => {
                    shell.restart();
                    consumer = shell.subscribe(queue, 0);
                }
                _ => {}
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}
