//! Counts the steps of a delivery.

use std::num::NonZeroU32;
use std::time::Duration;

use fila_store::{Epoch, FairnessKey, Generation, Payload, ThrottleKey};

use super::*;
use crate::Committed;
use crate::queue::TURNED_AWAY_MAX;
use crate::throttle::test_buckets::Buckets;
use crate::{Beginnings, ConsumerKind, Delivering, KeySettings, QueueSettings, Throttle, Verdict};

const NOW: Timestamp = Timestamp::from_millis(1);
const QUEUE: QueueId = QueueId::new(1);
const CONSUMER: ConsumerId = ConsumerId::new(1);

fn key(number: usize) -> FairnessKey {
    FairnessKey::new(number.to_string()).unwrap()
}

fn message(number: usize) -> NewMessage {
    NewMessage::new(key(number), Payload::new(Vec::new(), "").unwrap())
}

fn throttled(number: usize, throttle: &ThrottleKey) -> NewMessage {
    let mut message = message(number);
    message.schedule.throttle_keys = Box::new([throttle.clone()]);
    message
}

/// Returns buckets of this rate for each of these keys.
fn buckets<const N: usize>(names: [&str; N], rate: f64) -> (Buckets, [ThrottleKey; N]) {
    let buckets = Buckets::default();
    let names = names.map(|name| ThrottleKey::parse(name).unwrap());
    for name in &names {
        buckets.set(NOW, name, Throttle::new(rate, 1.0).unwrap());
    }
    (buckets, names)
}

/// Returns a broker with one queue.
fn open(settings: Settings, buckets: &Buckets, definition: QueueSettings) -> Broker<()> {
    let mut broker = Broker::with_tokens(settings, buckets.source(0));
    let generation = Generation::new(0);
    broker.open(
        NOW,
        Recovery::new(QUEUE, Epoch::FIRST, generation, definition),
    );
    broker
}

fn subscribe(broker: &mut Broker<()>, credit: u32, in_flight_max: u32) {
    let demand = Demand {
        credit,
        in_flight_max,
        kind: ConsumerKind::Stream(Beginnings::Reported),
    };
    broker.subscribe(NOW, QUEUE, CONSUMER, demand).unwrap();
}

fn enqueue(broker: &mut Broker<()>, messages: impl Iterator<Item = NewMessage>) {
    broker.handle(
        broker.now,
        Command::Enqueue {
            queue: QUEUE,
            messages: messages.collect(),
            batch_id: None,
            ticket: (),
        },
    );
    commit(broker);
}

/// Takes and acknowledges the first delivery.
fn acknowledge(broker: &mut Broker<()>) {
    let (consumer, delivery) = broker.effects().deliveries.remove(0);
    let bytes = delivery.bytes();
    broker.handle(NOW, Command::Taken { consumer, bytes });
    let results = vec![Settlement {
        lease: delivery.lease,
        message: None,
        verdict: Verdict::Ack,
    }];
    broker.handle(
        NOW,
        Command::Settle {
            queue: QUEUE,
            results,
            by: None,
            ticket: (),
        },
    );
    commit(broker);
}

fn commit(broker: &mut Broker<()>) {
    while let Some(round) = broker.seal() {
        let fenced = Vec::new();
        broker.committed(NOW, Committed::Stored { round, fenced });
    }
    broker.effects().answers.clear();
}

/// Returns the number of keys that the engine visited for a thousand deliveries, with `active` keys that have messages and
/// `paused` keys.
fn visits(active: usize, paused: usize) -> u64 {
    let mut definition = QueueSettings::default();
    let settings = KeySettings {
        delivery: Delivering::Paused,
        weight: NonZeroU32::new(3),
        ..KeySettings::default()
    };
    definition.keys = (0..paused).map(|number| (key(number), settings)).collect();
    let mut broker = open(Settings::default(), &Buckets::default(), definition);
    let numbers = (0..paused + active).cycle();
    let numbers = numbers.take((paused + active).max(2_000));
    enqueue(&mut broker, numbers.map(message));
    subscribe(&mut broker, 0, 1_000);
    let before = broker.queues[0].queue.work();
    for _ in 0..1_000 {
        let consumer = CONSUMER;
        broker.handle(NOW, Command::Credit { consumer, more: 1 });
        broker.poll(NOW);
        acknowledge(&mut broker);
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

/// Returns the number of keys that the engine visited for a thousand deliveries, and the number of waiters that a bucket
/// called, while `parked` messages wait for its tokens.
fn beside_parked(parked: usize) -> (u64, u64) {
    let (buckets, [name]) = buckets(["api"], 0.001);
    let mut settings = Settings {
        memory_budget: usize::MAX,
        ..Settings::default()
    };
    settings.limits.buffered_bytes = usize::MAX;
    let mut broker = open(settings, &buckets, QueueSettings::default());
    subscribe(&mut broker, u32::MAX, 10);
    for from in (0..parked).step_by(10_000) {
        // Half of them of one key, the others of a thousand.
        let of = |number: usize| match number % 2 {
            0 => 1,
            _ => 2 + number % 1_000,
        };
        let numbers = from..parked.min(from + 10_000);
        enqueue(
            &mut broker,
            numbers.map(|number| throttled(of(number), &name)),
        );
        broker.poll(NOW);
    }
    // The one token that there was.
    let lucky = broker.effects().deliveries.drain(..).count();
    assert_eq!(lucky, parked.min(1));
    let (before, (_, calls)) = (broker.queues[0].queue.work(), broker.throttles.work());
    for _ in 0..1_000 {
        enqueue(&mut broker, std::iter::once(message(0)));
        broker.poll(NOW);
        acknowledge(&mut broker);
    }
    let stats = broker.queues[0].queue.stats();
    assert_eq!(stats.throttled as usize, parked - lucky);
    let visits = broker.queues[0].queue.work().visits - before.visits;
    (visits, broker.throttles.work().1 - calls)
}

#[test]
fn a_million_messages_that_wait_for_tokens_cost_nothing_per_delivery() {
    assert_eq!(beside_parked(1_000_000), beside_parked(0));
}

/// Makes messages of ten keys wait for a token that never comes, and removes them by `goes`, two hundred times. Returns
/// the number of waiters left.
fn waiting_after(mut definition: QueueSettings, goes: impl Fn(&mut Broker<()>)) -> usize {
    let (buckets, names) = buckets(["api", "other"], 0.0);
    definition.message_ttl = Some(Duration::from_millis(1));
    let mut broker = open(Settings::default(), &buckets, definition);
    subscribe(&mut broker, u32::MAX, 10);
    for _ in 0..200 {
        let messages = (0..20).map(|number| throttled(number % 10, &names[number / 10]));
        let now = broker.now;
        enqueue(&mut broker, messages);
        broker.poll(now);
        goes(&mut broker);
        commit(&mut broker);
        broker.poll(now);
    }
    assert!(broker.effects().deliveries.is_empty());
    broker.throttles.waiting()
}

#[test]
fn a_message_that_is_purged_or_expires_while_it_waits_for_a_token_is_forgotten() {
    let purge = |broker: &mut Broker<()>| {
        let (queue, ticket) = (QUEUE, ());
        broker.handle(NOW, Command::Purge { queue, ticket });
    };
    let expire = |broker: &mut Broker<()>| {
        broker.poll(broker.now.saturating_add(Duration::from_millis(1)));
    };
    let strict = QueueSettings {
        ordering: crate::Ordering::Key,
        ..QueueSettings::default()
    };
    for waiting in [
        waiting_after(QueueSettings::default(), purge),
        waiting_after(QueueSettings::default(), expire),
        waiting_after(strict.clone(), purge),
        waiting_after(strict, expire),
    ] {
        assert!(waiting <= 200, "{waiting}");
    }
}

#[test]
fn a_poll_turns_away_a_bounded_number_of_keys_without_tokens_and_comes_back() {
    let (buckets, [name]) = buckets(["api"], 0.0);
    let mut broker = open(Settings::default(), &buckets, QueueSettings::default());
    let numbers = 0..5 * TURNED_AWAY_MAX;
    enqueue(&mut broker, numbers.map(|number| throttled(number, &name)));
    subscribe(&mut broker, u32::MAX, 10);
    for polls in 1..=5 {
        assert_eq!(broker.next_timer(), Some(NOW));
        broker.poll(NOW);
        let throttled = broker.queues[0].queue.stats().throttled;
        assert_eq!(throttled as usize, polls * TURNED_AWAY_MAX);
    }
    assert!(broker.effects().deliveries.is_empty());
}
