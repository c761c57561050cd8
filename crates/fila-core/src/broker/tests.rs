//! What a delivery costs, counted.

use std::num::NonZeroU32;

use fila_store::{Epoch, FairnessKey, Generation, Payload, ThrottleKey};

use super::*;
use crate::Committed;
use crate::queue::TURNED_AWAY_MAX;
use crate::{Credit, Definition, Delivering, KeySettings, Throttle, Verdict};

const NOW: Timestamp = Timestamp::from_millis(1);

fn key(number: usize) -> FairnessKey {
    FairnessKey::new(number.to_string()).unwrap()
}

fn commit(broker: &mut Broker<()>) {
    while let Some(round) = broker.seal() {
        let fenced = Vec::new();
        broker.committed(NOW, Committed::Stored { round, fenced });
    }
    broker.effects().answers.clear();
}

/// Returns how many keys the engine looked at for a thousand deliveries, with so many keys that have messages and so many that
/// are paused.
fn visits(active: usize, paused: usize) -> u64 {
    let mut definition = Definition::default();
    let settings = KeySettings {
        delivery: Delivering::Paused,
        weight: NonZeroU32::new(3),
        concurrency: None,
    };
    definition.keys = (0..paused).map(|number| (key(number), settings)).collect();
    let mut broker = Broker::new(Settings::default());
    let queue = QueueId::new(1);
    let generation = Generation::new(0);
    let recovery = Recovery::new(queue, Epoch::FIRST, generation, definition);
    broker.open(NOW, recovery);
    let payload = Payload::new(Vec::new(), "").unwrap();
    let messages = (0..paused + active)
        .cycle()
        .take((paused + active).max(2_000))
        .map(|number| NewMessage::new(key(number), payload.clone()));
    let messages = messages.collect();
    broker.handle(
        NOW,
        Command::Enqueue {
            queue,
            messages,
            batch_id: None,
            ticket: (),
        },
    );
    commit(&mut broker);
    let consumer = ConsumerId::new(1);
    let demand = Demand {
        credit: Credit::Limited(0),
        in_flight_max: 1_000,
    };
    broker.handle(
        NOW,
        Command::Subscribe {
            queue,
            consumer,
            demand,
            ticket: (),
        },
    );
    let before = broker.queues[0].queue.work();
    for _ in 0..1_000 {
        broker.handle(NOW, Command::Credit { consumer, more: 1 });
        broker.poll(NOW);
        let (_, delivery) = broker.effects().deliveries.remove(0);
        let results = vec![Settlement {
            lease: delivery.lease,
            message: None,
            verdict: Verdict::Ack,
        }];
        broker.handle(
            NOW,
            Command::Settle {
                queue,
                results,
                ticket: (),
            },
        );
        commit(&mut broker);
    }
    broker.queues[0].queue.work().visits - before.visits
}

#[test]
fn a_delivery_takes_two_steps_with_one_key_and_with_a_hundred_thousand() {
    for (active, paused) in [(1, 0), (1_000, 0), (100_000, 0), (1_000, 100_000)] {
        let visits = visits(active, paused);
        assert!(visits <= 2_000, "{active} and {paused}: {visits}");
    }
}

/// Returns how many keys the engine looked at for a thousand deliveries, and how many were called to a bucket, while so many
/// messages wait for its tokens.
fn beside_parked(parked: usize) -> (u64, u64) {
    let buckets = Buckets::default();
    let name = ThrottleKey::parse("api").unwrap();
    buckets.set(NOW, &name, Throttle::new(0.001, 1.0).unwrap());
    let mut settings = Settings {
        memory_budget: usize::MAX,
        ..Settings::default()
    };
    settings.limits.buffered_bytes = usize::MAX;
    let mut broker = Broker::with_buckets(settings, buckets);
    let queue = QueueId::new(1);
    let generation = Generation::new(0);
    let definition = Definition::default();
    let recovery = Recovery::new(queue, Epoch::FIRST, generation, definition);
    broker.open(NOW, recovery);
    let consumer = ConsumerId::new(1);
    let demand = Demand {
        credit: Credit::Unlimited,
        in_flight_max: 10,
    };
    broker.handle(
        NOW,
        Command::Subscribe {
            queue,
            consumer,
            demand,
            ticket: (),
        },
    );
    let payload = Payload::new(Vec::new(), "").unwrap();
    let free = NewMessage::new(key(0), payload);
    let throttle_keys: Box<[ThrottleKey]> = Box::new([name]);
    let enqueue = |broker: &mut Broker<()>, messages| {
        broker.handle(
            NOW,
            Command::Enqueue {
                queue,
                messages,
                batch_id: None,
                ticket: (),
            },
        );
        commit(broker);
        broker.poll(NOW);
    };
    for from in (0..parked).step_by(10_000) {
        // Half of them of one key, the others of a thousand.
        let of = |number: usize| {
            key(if number.is_multiple_of(2) {
                1
            } else {
                2 + number % 1_000
            })
        };
        let messages = (from..parked.min(from + 10_000)).map(|number| NewMessage {
            fairness_key: of(number),
            throttle_keys: throttle_keys.clone(),
            ..free.clone()
        });
        enqueue(&mut broker, messages.collect());
    }
    // The one token that there was.
    let lucky = broker.effects().deliveries.drain(..).count();
    assert_eq!(lucky, parked.min(1));
    let (before, (_, calls)) = (broker.queues[0].queue.work(), broker.gates.work());
    for _ in 0..1_000 {
        enqueue(&mut broker, vec![free.clone()]);
        let (_, delivery) = broker.effects().deliveries.remove(0);
        let results = vec![Settlement {
            lease: delivery.lease,
            message: None,
            verdict: Verdict::Ack,
        }];
        broker.handle(
            NOW,
            Command::Settle {
                queue,
                results,
                ticket: (),
            },
        );
        commit(&mut broker);
    }
    let stats = broker.queues[0].queue.stats();
    assert_eq!(stats.throttled as usize, parked - lucky);
    let visits = broker.queues[0].queue.work().visits - before.visits;
    (visits, broker.gates.work().1 - calls)
}

/// Lets messages of ten keys wait for a token that never comes, and has them go again, two hundred times; returns how
/// many still wait for one.
fn waiting_after(mut definition: Definition, goes: impl Fn(&mut Broker<()>, QueueId)) -> usize {
    let buckets = Buckets::default();
    let names = ["api", "other"].map(|name| ThrottleKey::parse(name).unwrap());
    for name in &names {
        buckets.set(NOW, name, Throttle::new(0.0, 1.0).unwrap());
    }
    definition.message_ttl = Some(std::time::Duration::from_millis(1));
    let mut broker = Broker::with_buckets(Settings::default(), buckets);
    let queue = QueueId::new(1);
    let recovery = Recovery::new(queue, Epoch::FIRST, Generation::new(0), definition);
    broker.open(NOW, recovery);
    let demand = Demand {
        credit: Credit::Unlimited,
        in_flight_max: 10,
    };
    let consumer = ConsumerId::new(1);
    broker.handle(
        NOW,
        Command::Subscribe {
            queue,
            consumer,
            demand,
            ticket: (),
        },
    );
    let payload = Payload::new(Vec::new(), "").unwrap();
    for _ in 0..200 {
        let messages = (0..20).map(|number| NewMessage {
            throttle_keys: Box::new([names[number / 10].clone()]),
            ..NewMessage::new(key(number % 10), payload.clone())
        });
        let now = broker.now;
        broker.handle(
            now,
            Command::Enqueue {
                queue,
                messages: messages.collect(),
                batch_id: None,
                ticket: (),
            },
        );
        commit(&mut broker);
        broker.poll(now);
        goes(&mut broker, queue);
        commit(&mut broker);
        broker.poll(now);
    }
    assert!(broker.effects().deliveries.is_empty());
    broker.gates.waiting()
}

#[test]
fn who_is_purged_or_expires_while_he_waits_for_a_token_is_forgotten() {
    let purge = |broker: &mut Broker<()>, queue| {
        broker.handle(NOW, Command::Purge { queue, ticket: () });
    };
    let expire = |broker: &mut Broker<()>, _| {
        let next = broker
            .now
            .saturating_add(std::time::Duration::from_millis(1));
        broker.poll(next);
    };
    let strict = Definition {
        ordering: crate::Ordering::Key,
        ..Definition::default()
    };
    for waiting in [
        waiting_after(Definition::default(), purge),
        waiting_after(Definition::default(), expire),
        waiting_after(strict.clone(), purge),
        waiting_after(strict, expire),
    ] {
        assert!(waiting <= 200, "{waiting}");
    }
}

#[test]
fn a_million_messages_that_wait_for_tokens_cost_nothing_per_delivery() {
    assert_eq!(beside_parked(1_000_000), beside_parked(0));
}

#[test]
fn however_many_keys_lack_a_token_a_poll_turns_away_so_many_and_comes_back() {
    let buckets = Buckets::default();
    let name = ThrottleKey::parse("api").unwrap();
    buckets.set(NOW, &name, Throttle::new(0.0, 1.0).unwrap());
    let mut broker = Broker::with_buckets(Settings::default(), buckets);
    let queue = QueueId::new(1);
    let recovery = Recovery::new(
        queue,
        Epoch::FIRST,
        Generation::new(0),
        Definition::default(),
    );
    broker.open(NOW, recovery);
    let payload = Payload::new(Vec::new(), "").unwrap();
    let keys = 5 * TURNED_AWAY_MAX;
    let throttle_keys: Box<[ThrottleKey]> = Box::new([name]);
    let messages = (0..keys).map(|number| NewMessage {
        throttle_keys: throttle_keys.clone(),
        ..NewMessage::new(key(number), payload.clone())
    });
    broker.handle(
        NOW,
        Command::Enqueue {
            queue,
            messages: messages.collect(),
            batch_id: None,
            ticket: (),
        },
    );
    commit(&mut broker);
    broker.handle(
        NOW,
        Command::Subscribe {
            queue,
            consumer: ConsumerId::new(1),
            demand: Demand {
                credit: Credit::Unlimited,
                in_flight_max: 10,
            },
            ticket: (),
        },
    );
    for polls in 1..=5 {
        assert_eq!(broker.next_timer(), Some(NOW));
        broker.poll(NOW);
        let throttled = broker.queues[0].queue.stats().throttled;
        assert_eq!(throttled as usize, polls * TURNED_AWAY_MAX);
    }
    assert!(broker.effects().deliveries.is_empty());
}
