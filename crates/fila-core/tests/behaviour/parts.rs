//! A key, or a client, that takes all it can get of what it shares with others is refused before they are.

use std::collections::BTreeMap;
use std::time::Duration;

use drr::Pool;
use fila_core::{
    BatchId, Beginnings, ConsumerId, ConsumerKind, Demand, EnqueueError, NewMessage, ProducerId,
    QueueSettings, Sequence, Settings, SharedPool, Source, Verdict,
};
use fila_store::{DeduplicationId, QueueId, Timestamp};

use crate::support::{Answer, Chance, SECOND, Shell, key, message, nack};

/// Of a pool of 40, one key gets 30: then 10 are free, and three times that is 30.
const POOL: usize = 40;
const PART: u64 = 30;

/// Returns the refusal of a message of a key, or of a client if the path is empty.
fn refusal(
    pool: SharedPool,
    path: &str,
    (held, part): (u64, u64),
    retry_after: Duration,
) -> EnqueueError {
    EnqueueError::OverPart {
        pool,
        path: (!path.is_empty()).then(|| key(path)),
        held,
        part,
        retry_after,
    }
}

/// Sends a message, and returns the refusal if there was one.
fn try_one(shell: &mut Shell, queue: QueueId, message: NewMessage) -> Option<EnqueueError> {
    shell.enqueue_all(queue, vec![message]).remove(0).err()
}

/// Sends messages until one is refused; returns how many were not, and the refusal.
fn flood(
    shell: &mut Shell,
    queue: QueueId,
    next: impl Fn(usize) -> NewMessage,
) -> (u64, EnqueueError) {
    for sent in 0..1000 {
        if let Some(error) = try_one(shell, queue, next(sent)) {
            return (sent as u64, error);
        }
    }
    panic!("nothing was refused");
}

fn acknowledge(shell: &mut Shell, queue: QueueId, count: usize) {
    for _ in 0..count {
        let (_, delivery) = shell.deliveries.pop_front().expect("a delivery");
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
}

#[test]
fn a_key_holds_its_part_of_the_depth_and_others_are_admitted() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.depth_per_queue = POOL as u64);
    let (stored, refused) = flood(&mut shell, queue, |_| message("greedy", ""));
    let minute = 60 * SECOND;
    assert_eq!(stored, PART);
    let expected = refusal(SharedPool::Depth, "greedy", (PART, PART), minute);
    assert_eq!(refused, expected, "nothing departs");
    for held in 0..5 {
        let quiet = try_one(&mut shell, queue, message("quiet", ""));
        assert_eq!(quiet, None, "it holds {held}");
    }
    // The part is smaller now. It is so after a restart as well.
    let expected = refusal(SharedPool::Depth, "greedy", (PART, 15), minute);
    for _ in 0..2 {
        let refused = try_one(&mut shell, queue, message("greedy", ""));
        assert_eq!(refused, Some(expected.clone()));
        shell.restart();
    }
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.over_part), (PART + 5, 0));
    // Four that depart: 26 are left, and 27 is three times 9.
    shell.subscribe(queue, 9);
    shell.run();
    shell
        .deliveries
        .retain(|(_, it)| it.fairness_key.as_bytes() == b"greedy");
    acknowledge(&mut shell, queue, 4);
    assert_eq!(try_one(&mut shell, queue, message("greedy", "")), None);
    let refused = try_one(&mut shell, queue, message("greedy", ""));
    assert!(
        matches!(refused, Some(EnqueueError::OverPart { held: 27, .. })),
        "{refused:?}"
    );
    assert_eq!(shell.stats(queue).totals.over_part, 1);
}

#[test]
fn a_refusal_says_when_to_come_back_by_the_pace_of_the_key() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.depth_per_queue = POOL as u64);
    flood(&mut shell, queue, |_| message("greedy", ""));
    let consumer = shell.subscribe(queue, 0);
    for _ in 0..20 {
        shell.advance(SECOND);
        let delivery = shell.next(consumer).unwrap();
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    let (_, refused) = flood(&mut shell, queue, |_| message("greedy", ""));
    let EnqueueError::OverPart { retry_after, .. } = refused else {
        panic!("{refused:?}");
    };
    // It got one message a second.
    let about = SECOND.mul_f64(0.8)..=SECOND.mul_f64(1.2);
    assert!(about.contains(&retry_after), "{retry_after:?}");
}

#[test]
fn the_depth_of_a_key_that_the_queue_sets_replaces_its_part() {
    for key_depth_max in [10, POOL as u64] {
        let mut definition = QueueSettings::default();
        definition.depth_max = Some(POOL as u64);
        definition.key_depth_max = Some(key_depth_max);
        let (mut shell, queue) = Shell::with_queue(definition);
        let (stored, refused) = flood(&mut shell, queue, |_| message("greedy", ""));
        assert_eq!(stored, key_depth_max);
        let max = key_depth_max;
        let full = if max == POOL as u64 {
            EnqueueError::QueueFull { max }
        } else {
            let path = key("greedy");
            EnqueueError::KeyFull { path, max }
        };
        assert_eq!(refused, full);
    }
}

#[test]
fn a_key_holds_its_part_of_the_delayed_messages_and_others_are_admitted() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.delayed_per_queue = POOL as u64);
    let delayed = |name: &str| {
        let mut message = message(name, "");
        message.delay = 5 * SECOND;
        message
    };
    // Those count that come together, before any of them is stored.
    let results = shell.enqueue_all(queue, vec![delayed("greedy"); POOL]);
    let stored = results.iter().filter(|it| it.is_ok()).count();
    assert_eq!(stored as u64, PART);
    let refused = try_one(&mut shell, queue, delayed("greedy"));
    let expected = refusal(SharedPool::Delayed, "greedy", (PART, PART), 5 * SECOND);
    assert_eq!(refused, Some(expected));
    assert_eq!(try_one(&mut shell, queue, delayed("quiet")), None);
    assert_eq!(try_one(&mut shell, queue, message("greedy", "")), None);
    // After a restart they count again as soon as they are read.
    shell.restart();
    shell.subscribe(queue, u32::MAX);
    shell.run();
    shell.run();
    assert_eq!(shell.stats(queue).delayed, PART + 1);
    let refused = try_one(&mut shell, queue, delayed("greedy"));
    let expected = refusal(SharedPool::Delayed, "greedy", (PART, 27), 5 * SECOND);
    assert_eq!(refused, Some(expected));
    assert_eq!(try_one(&mut shell, queue, delayed("quiet")), None);
    shell.advance(5 * SECOND);
    shell.run();
    assert_eq!(try_one(&mut shell, queue, delayed("greedy")), None);
}

#[test]
fn a_backlog_of_delayed_messages_is_read_as_far_as_its_key_may_hold_them() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 1 << 10);
    let delayed = |name: &str| {
        let mut message = message(name, "");
        message.delay = 5 * SECOND;
        message
    };
    shell.enqueue_all(queue, vec![delayed("greedy"); 100]);
    let mut settings = Settings::default();
    settings.limits.delayed_per_queue = POOL as u64;
    shell.reopen_with(settings);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    shell.run();
    assert_eq!(shell.stats(queue).delayed, PART);
    assert_eq!(try_one(&mut shell, queue, delayed("quiet")), None);
    for _ in 0..30 {
        shell.advance(SECOND);
        shell.run();
    }
    assert_eq!(shell.deliveries.len(), 101, "all of them in the end");
}

#[test]
fn a_key_that_fails_all_its_work_leaves_others_room_for_delayed_messages() {
    let mut settings = Settings::default();
    settings.limits.delayed_per_queue = POOL as u64;
    let mut shell = Shell::new(settings);
    let queue = shell.create("queue", QueueSettings::default());
    shell.enqueue_all(queue, vec![message("failing", ""); 200]);
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
    let mut delayed = message("quiet", "");
    delayed.delay = SECOND;
    assert_eq!(try_one(&mut shell, queue, delayed), None);
    // The failing key goes on when its messages are due.
    shell.advance(100 * SECOND);
    shell.run();
    let is_failing = |(_, it): &(_, fila_core::Delivery)| it.fairness_key.as_bytes() == b"failing";
    assert!(shell.deliveries.iter().any(is_failing));
}

#[test]
fn a_key_holds_its_part_of_the_deduplication_ids_and_others_are_admitted() {
    let limit = |it: &mut Settings| it.limits.deduplication_ids_per_queue = POOL;
    let (mut shell, queue) = Shell::with_settings(limit);
    let named = |name: &str, number: usize| {
        let mut message = message(name, "");
        message.deduplication_id = Some(DeduplicationId::new(format!("id {number}")).unwrap());
        message
    };
    let (stored, refused) = flood(&mut shell, queue, |n| named("greedy", n));
    assert_eq!(stored, PART);
    // The window of 300 seconds lasts for 30 of them.
    let ids = SharedPool::DeduplicationIds;
    let expected = |part| refusal(ids, "greedy", (PART, part), 10 * SECOND);
    assert_eq!(refused, expected(PART));
    assert_eq!(try_one(&mut shell, queue, named("quiet", 1)), None);
    let plain = try_one(&mut shell, queue, message("greedy", ""));
    assert_eq!(plain, None, "without an id");
    shell.restart();
    let refused = try_one(&mut shell, queue, named("greedy", 99));
    assert_eq!(refused, Some(expected(27)));
    assert_eq!(try_one(&mut shell, queue, named("quiet", 2)), None);
    shell.advance(300 * SECOND);
    assert_eq!(try_one(&mut shell, queue, named("greedy", 99)), None);
}

#[test]
fn batches_count_for_the_key_of_their_first_message_also_after_a_restart() {
    let limit = |it: &mut Settings| it.limits.deduplication_ids_per_queue = POOL;
    let (mut shell, queue) = Shell::with_settings(limit);
    // Each batch of a producer of its own, which counts as well.
    let send = |shell: &mut Shell, name, producer: u8| {
        let id = BatchId::new(ProducerId::new([producer; 16]), Sequence::new(1));
        match shell.enqueue_batch(queue, id, vec![message(name, "")]) {
            Answer::Enqueued(mut results) => results.remove(0).err(),
            answer => panic!("{answer:?}"),
        }
    };
    let stored = (0..).take_while(|n| send(&mut shell, "greedy", *n).is_none());
    assert_eq!(stored.count() as u64, PART / 2);
    shell.restart();
    let refused = send(&mut shell, "greedy", 100);
    let Some(EnqueueError::OverPart { pool, held, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((pool, held), (SharedPool::DeduplicationIds, PART));
    assert_eq!(send(&mut shell, "quiet", 101), None);
}

#[test]
fn a_client_holds_its_part_of_the_keys_and_others_are_admitted() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.keys_per_queue = POOL);
    let from = |source: u64, name: &str| {
        let mut message = message(name, "");
        message.source = Some(Source::new(source));
        message
    };
    let invented = |n: usize| format!("invented {n}");
    let (stored, refused) = flood(&mut shell, queue, |n| from(1, &invented(n)));
    assert_eq!(stored, PART);
    let minute = 60 * SECOND;
    assert_eq!(refused, refusal(SharedPool::Keys, "", (PART, PART), minute));
    // Others are admitted, and so is everyone to a key that has messages.
    assert_eq!(try_one(&mut shell, queue, from(2, "quiet")), None);
    assert_eq!(try_one(&mut shell, queue, message("unknown", "")), None);
    for source in [1, 2] {
        let known = from(source, &invented(7));
        assert_eq!(try_one(&mut shell, queue, known), None);
    }
    // Keys that are done make room.
    shell.subscribe(queue, u32::MAX);
    shell.run();
    shell
        .deliveries
        .retain(|(_, it)| it.fairness_key.as_bytes().starts_with(b"invented 1"));
    acknowledge(&mut shell, queue, 5);
    assert_eq!(try_one(&mut shell, queue, from(1, "another")), None);
    // Clients of another time are not known. Their keys take room, and belong to none.
    shell.restart();
    let (stored, refused) = flood(&mut shell, queue, |n| from(1, &format!("new {n}")));
    assert_eq!(stored, 9, "three quarters of the 12 that are free");
    let is_over = matches!(refused, EnqueueError::OverPart { held, .. } if held == stored);
    assert!(is_over, "{refused:?}");
    assert_eq!(try_one(&mut shell, queue, from(2, "again")), None);
}

#[test]
fn a_key_without_messages_counts_for_the_client_that_brings_the_next_one() {
    let (mut shell, queue) = Shell::with_settings(|it| it.limits.keys_per_queue = POOL);
    let from = |source: u64, n: usize| {
        let mut message = message(&format!("key {n}"), "");
        message.source = Some(Source::new(source));
        message
    };
    shell.subscribe(queue, u32::MAX);
    for n in 0..POOL {
        shell.enqueue(queue, from(1, n));
        shell.run();
        acknowledge(&mut shell, queue, 1);
    }
    // All lanes are there, and idle. Client 2 takes them over, and its part is what client 1 would have got.
    let consumer = shell.deliveries.front().map(|(consumer, _)| *consumer);
    assert_eq!(consumer, None);
    let mut definition = QueueSettings::default();
    definition.delivery = fila_core::Delivering::Paused;
    shell.update(queue, definition);
    let (stored, _) = flood(&mut shell, queue, |n| from(2, n));
    assert_eq!(stored, PART);
    assert_eq!(try_one(&mut shell, queue, from(1, POOL - 1)), None);
}

/// The counts that the rule goes by.
#[derive(Default)]
struct Model {
    depth: BTreeMap<&'static str, u64>,
    ids: Vec<(&'static str, Timestamp)>,
}

impl Model {
    /// Returns the pool, and how much a key holds, if the rule refuses its message.
    fn refusal(&self, now: Timestamp, key: &'static str, has_id: bool) -> Option<EnqueueError> {
        let ids = self.ids.iter().filter(|(_, until)| *until > now);
        let of_key = ids.clone().filter(|(owner, _)| *owner == key).count();
        let ids = (SharedPool::DeduplicationIds, ids.count(), of_key);
        let depth: u64 = self.depth.values().sum();
        let of_key = self.depth.get(key).copied().unwrap_or(0);
        let depth = (SharedPool::Depth, depth as usize, of_key as usize);
        let pools = if has_id {
            vec![ids, depth]
        } else {
            vec![depth]
        };
        pools.into_iter().find_map(|(pool, used, held)| {
            let state = Pool {
                capacity: POOL as u64,
                used: used as u64,
            };
            let held = held as u64;
            let max = POOL as u64;
            match (state.admits(held, 1), state.free(), pool) {
                (true, ..) => None,
                (_, 0, SharedPool::Depth) => Some(EnqueueError::QueueFull { max }),
                (_, 0, _) => Some(EnqueueError::TooManyDeduplicationIds { max: POOL }),
                _ => Some(refusal(pool, key, (held, state.part()), Duration::ZERO)),
            }
        })
    }
}

#[test]
fn what_is_refused_is_what_the_rule_says_in_any_order_of_events() {
    const KEYS: [&str; 5] = ["a", "a", "a", "b", "c"];
    let mut seen = [0; 3];
    for seed in 0..8 {
        let mut chance = Chance(seed);
        let mut settings = Settings::default();
        settings.limits.depth_per_queue = POOL as u64;
        settings.limits.deduplication_ids_per_queue = POOL;
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
                    if let Some(EnqueueError::OverPart { retry_after, .. }) = &mut refused {
                        assert!((SECOND / 10..=60 * SECOND).contains(retry_after));
                        *retry_after = Duration::ZERO;
                        seen[0] += 1;
                    }
                    assert_eq!(refused, expected, "seed {seed}, step {step}");
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
    assert!(seen.iter().all(|count| *count > 200), "{seen:?}");
}
