#![cfg(test)] // helpers may unwrap, as tests do
//! Throttles in random lives: what buckets give is held against buckets that are as simple as can be, after every step.
//!
//! Messages are delayed, expire, fail, die, and are redriven; consumers come and go; keys and queues are paused, capped,
//! purged and deleted. Every message is counted once, and no message waits that could be delivered.
//!
//! `FILA_SIMULATION_SEED=n` replays one life, `FILA_SIMULATION_RUNS=n` makes more of them, and `FILA_SIMULATION_FIRST=n`
//! begins with another seed than 0.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Command, ConsumerId, Delivering, Delivery, Departure, KeySettings, MovedMessage, NewMessage,
    Ordering, QueueSettings, RedriveStamp, Settings, Ttl, Verdict,
};
use fila_store::{Cursor, Engine, Expected, Loaded, MessageId, Payload, QueueId, Shard, Timestamp};
use support::{Answer, Chance, Shell, key, nack, throttled};

const BUCKETS: [&str; 4] = ["w", "x", "y", "z"];
const TENANTS: [&str; 3] = ["tenant 0", "acme/tenant 1", "acme/tenant 2"];
const ATTEMPTS: u32 = 3;
const RATES: [f64; 7] = [0.0, 0.5, 3.0, 10.0, 100.0, 997.0, 20_000.0];

/// A bucket as a child would make one. While messages wait for it, it may hold a token and those of 20 ms.
#[derive(Clone, Copy)]
struct Plain {
    rate: f64,
    burst: f64,
    /// It has at least this, and at most that.
    least: f64,
    most: f64,
    at: u64,
    is_new: bool,
}

impl Plain {
    fn fill(&mut self, now: u64) {
        let filled = self.rate * (now - self.at) as f64 / 1000.0;
        (self.least, self.most) = (self.least + filled, self.most + filled);
        self.at = now;
        self.spill();
    }

    fn spill(&mut self) {
        self.least = self.least.min(self.burst);
        self.most = self.most.min(self.burst.max(1.0 + self.rate * 0.02));
    }

    fn take(&mut self) {
        self.least = (self.least - 1.0).max(0.0);
        self.most -= 1.0;
        self.is_new = false;
    }

    fn set(&mut self, now: u64, rate: f64, burst: f64) {
        self.fill(now);
        (self.rate, self.burst) = (rate, burst);
        if self.is_new {
            (self.least, self.most) = (burst, burst);
        }
        self.spill();
    }
}

/// A queue, and what is to become of its messages.
struct Place {
    name: String,
    queue: QueueId,
    letters: QueueId,
    stamp: RedriveStamp,
    definition: QueueSettings,
    consumer: Option<ConsumerId>,
}

/// A message that is not settled for good.
#[derive(Clone, Debug)]
struct Known {
    /// The id that users see. It stays through death and redrive, where the place in the queue changes.
    id: MessageId,
    body: Vec<u8>,
    place: usize,
    tenant: &'static str,
    keys: Vec<&'static str>,
    due: Timestamp,
    expires: Option<Timestamp>,
    attempts: u32,
}

type Name = (usize, MessageId);

struct Life {
    chance: Chance,
    shell: Shell,
    places: Vec<Place>,
    plain: BTreeMap<&'static str, Plain>,
    /// By their queue and their place in it.
    leased: BTreeMap<Name, (Known, Delivery)>,
    waiting: BTreeMap<Name, Known>,
    /// By what they carry.
    dead: BTreeMap<Vec<u8>, Known>,
    sent: u64,
    /// Messages that are gone, for any reason.
    gone: u64,
    /// Whether all that waits is in memory, so that nothing is overlooked.
    is_roomy: bool,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let mut settings = Settings::default();
        let is_roomy = chance.one_in(2);
        if !is_roomy {
            settings.memory_budget = chance.below(200_000) as usize;
        }
        let mut life = Self {
            chance,
            shell: Shell::new(settings),
            places: Vec::new(),
            plain: BTreeMap::new(),
            leased: BTreeMap::new(),
            waiting: BTreeMap::new(),
            dead: BTreeMap::new(),
            sent: 0,
            gone: 0,
            is_roomy,
        };
        for ordering in [Ordering::None, Ordering::None, Ordering::Key] {
            let place = life.create(ordering);
            life.places.push(place);
        }
        life
    }

    fn create(&mut self, ordering: Ordering) -> Place {
        let mut definition = QueueSettings::default();
        definition.ordering = ordering;
        definition.visibility_timeout = Duration::from_secs(36_000);
        definition.retry.attempts_max = NonZeroU32::new(ATTEMPTS);
        let name = format!("queue-{}", self.shell.ticket());
        let (queue, letters) = self
            .shell
            .create_with_dead_letters(&name, definition.clone());
        Place {
            name,
            queue,
            letters,
            stamp: RedriveStamp::default(),
            definition,
            consumer: None,
        }
    }

    fn play(mut self, steps: usize) {
        self.subscribe_all();
        for _ in 0..steps {
            self.step();
            self.look();
        }
        self.finish();
    }

    /// In the end all come through.
    fn finish(&mut self) {
        for bucket in BUCKETS {
            self.plain.remove(bucket);
            self.shell.unthrottle(bucket);
        }
        for place in 0..self.places.len() {
            let definition = &mut self.places[place].definition;
            definition.delivery = Delivering::Running;
            definition.keys.clear();
            self.redefine(place);
        }
        if self.chance.one_in(2) {
            self.restart();
        }
        self.subscribe_all();
        for _ in 0..self.sent + 10 {
            self.look();
            while let Some((id, _)) = self.leased.first_key_value() {
                self.ack(*id);
                self.look();
            }
            self.shell.advance(Duration::from_secs(1));
            if self.gone + self.dead.len() as u64 == self.sent {
                break;
            }
        }
        assert!(self.waiting.is_empty(), "left: {:?}", self.waiting);
        self.read_letters();
        assert!(self.dead.is_empty(), "lost: {:?}", self.dead);
        assert_eq!(self.gone, self.sent);
        for place in &self.places {
            for queue in [place.queue, place.letters] {
                let stats = self.shell.stats(queue);
                assert_eq!((stats.depth(), stats.throttled), (0, 0), "{stats:?}");
            }
        }
        assert_eq!(self.shell.broker.memory_used(), 0);
    }

    /// Reads all dead letters, which take no tokens.
    fn read_letters(&mut self) {
        for place in 0..self.places.len() {
            let letters = self.places[place].letters;
            self.shell.subscribe(letters, u32::MAX);
            self.shell.run();
            while let Some((_, delivery)) = self.shell.deliveries.pop_front() {
                let known = self.dead.remove(&delivery.payload.body()[..]);
                assert_eq!(known.expect("it has died once").place, place);
                let acked = self.shell.settle(letters, delivery.lease, Verdict::Ack);
                assert_eq!(acked, Ok(()));
                self.gone += 1;
            }
        }
    }

    fn subscribe_all(&mut self) {
        for place in &mut self.places {
            if place.consumer.is_none() {
                let consumer = self.shell.subscribe(place.queue, u32::MAX);
                place.consumer = Some(consumer);
            }
        }
    }

    fn any_place(&mut self) -> usize {
        self.chance.below(self.places.len() as u64) as usize
    }

    fn step(&mut self) {
        match self.chance.below(22) {
            0..8 => self.send(),
            8..13 => {
                let time = match self.chance.below(4) {
                    0 => 1,
                    1 => self.chance.below(20),
                    2 => self.chance.below(400),
                    _ => self.chance.below(5_000),
                };
                self.shell.advance(Duration::from_millis(time));
            }
            13..15 => self.set_throttle(),
            15..19 => self.settle(),
            19 => self.come_or_go(),
            20 => self.change(),
            _ => match self.chance.below(8) {
                0 => self.restart(),
                1 => self.purge(),
                2 => self.delete(),
                3..6 => self.redrive(),
                _ => {}
            },
        }
    }

    fn send(&mut self) {
        let place = self.any_place();
        for _ in 0..1 + self.chance.below(6) {
            let mut keys = Vec::new();
            for bucket in BUCKETS {
                if self.chance.one_in(3) {
                    keys.push(bucket);
                }
            }
            let tenant = TENANTS[self.chance.below(3) as usize];
            let body = format!("{}", self.sent).into_bytes();
            let mut message = NewMessage {
                payload: Payload::new(Vec::new(), body.clone()).unwrap(),
                ..throttled(tenant, &keys)
            };
            if self.chance.one_in(6) {
                message.delay = Duration::from_millis(self.chance.below(2_000));
            }
            let now = self.shell.now;
            let mut expires = None;
            if self.chance.one_in(6) {
                // The broker refuses a message that would expire before its time.
                let time = Duration::from_millis(1 + self.chance.below(4_000)) + message.delay;
                message.ttl = Ttl::For(time);
                expires = Some(now.saturating_add(time));
            }
            let due = now.saturating_add(message.delay);
            let id = self.shell.enqueue(self.places[place].queue, message);
            let known = Known {
                id,
                body,
                place,
                tenant,
                keys,
                due,
                expires,
                attempts: 0,
            };
            self.waiting.insert((place, id), known);
            self.sent += 1;
        }
    }

    /// Lets a consumer come where there is none, or go with all that it has.
    fn come_or_go(&mut self) {
        let place = self.any_place();
        let Some(consumer) = self.places[place].consumer.take() else {
            return self.subscribe_all();
        };
        self.shell.unsubscribe(consumer, Departure::Closed);
        let (gone, kept) = std::mem::take(&mut self.leased)
            .into_iter()
            .partition(|(_, (known, _))| known.place == place);
        self.leased = kept;
        let now = self.shell.now;
        for (id, (known, _)) in gone {
            if known.expires.is_some_and(|end| end <= now) {
                self.gone += 1;
            } else {
                self.waiting.insert(id, known);
            }
        }
    }

    /// Takes note that a delivery has failed.
    fn fail(&mut self, id: Name, mut known: Known, wait: Duration) {
        let now = self.shell.now;
        known.attempts += 1;
        known.due = now.saturating_add(wait);
        if known.expires.is_some_and(|end| end <= now) {
            self.gone += 1;
        } else if known.attempts >= ATTEMPTS {
            self.dead.insert(known.body.clone(), known);
        } else {
            self.waiting.insert(id, known);
        }
    }

    /// Pauses or caps something, or no longer.
    fn change(&mut self) {
        let place = self.any_place();
        let chance = &mut self.chance;
        let delivery = |chance: &mut Chance| match chance.one_in(2) {
            true => Delivering::Paused,
            false => Delivering::Running,
        };
        let definition = &mut self.places[place].definition;
        match chance.below(5) {
            4 => {
                definition.ordering = match definition.ordering {
                    Ordering::None => Ordering::Key,
                    Ordering::Key => Ordering::None,
                };
            }
            0 => definition.delivery = delivery(chance),
            1 => {
                let settings = KeySettings {
                    delivery: delivery(chance),
                    weight: NonZeroU32::new(chance.below(4) as u32),
                    concurrency: NonZeroU32::new(chance.below(3) as u32),
                    depth_max: None,
                };
                let tenant = TENANTS[chance.below(3) as usize];
                definition.keys = [(key(tenant), settings)].into_iter().collect();
            }
            2 => definition.keys.clear(),
            _ => definition.key_concurrency = NonZeroU32::new(chance.below(4) as u32),
        }
        self.redefine(place);
    }

    fn redefine(&mut self, place: usize) {
        let Place {
            queue, definition, ..
        } = &self.places[place];
        let encoded = definition.encode();
        let updated = self
            .shell
            .engine
            .update_queue(*queue, Expected::Any, encoded);
        updated.unwrap();
        self.shell.update(*queue, definition.clone());
    }

    fn purge(&mut self) {
        let place = self.any_place();
        let queue = self.places[place].queue;
        let ticket = self.shell.purge(queue);
        self.forget_all_of(place);
        self.shell.run();
        self.shell.answers.remove(&ticket).expect("an answer");
    }

    fn delete(&mut self) {
        let place = self.any_place();
        let Place { queue, letters, .. } = self.places[place];
        self.shell.delete(queue);
        self.shell.delete(letters);
        self.forget_all_of(place);
        let before = self.dead.len();
        self.dead.retain(|_, known| known.place != place);
        self.gone += (before - self.dead.len()) as u64;
        self.places[place] = self.create(self.places[place].definition.ordering);
        self.subscribe_all();
    }

    fn forget_all_of(&mut self, place: usize) {
        let before = self.waiting.len() + self.leased.len();
        self.waiting.retain(|_, known| known.place != place);
        self.leased.retain(|_, (known, _)| known.place != place);
        self.gone += (before - self.waiting.len() - self.leased.len()) as u64;
    }

    /// Brings some dead letters back.
    fn redrive(&mut self) {
        let place = self.any_place();
        let Place {
            queue: to,
            letters: queue,
            stamp,
            ..
        } = self.places[place];
        let shard = &self.shell.shards[&queue];
        let count = 1 + self.chance.below(5) as usize;
        let found = shard.scan(&Cursor::start(), count).unwrap().items;
        let bodies: Vec<Vec<u8>> = found
            .iter()
            .map(
                |entry| match shard.load(&[entry.locator()]).unwrap().remove(0) {
                    Loaded::Found(payload) => payload.body().to_vec(),
                    lost => panic!("{lost:?}"),
                },
            )
            .collect();
        let ticket = self.shell.ticket();
        self.shell.tell(Command::Redrive {
            queue,
            to,
            stamp,
            messages: found.into_iter().map(MovedMessage::from).collect(),
            ticket,
        });
        self.shell.run();
        let Some(Answer::Redriven { results, stamp }) = self.shell.answers.remove(&ticket) else {
            panic!("an answer");
        };
        self.places[place].stamp = stamp;
        for (body, result) in bodies.into_iter().zip(results) {
            if let Ok(id) = result {
                let mut known = self.dead.remove(&body).expect("it has died once");
                known.attempts = 0;
                known.expires = None;
                known.due = self.shell.now;
                self.waiting.insert((place, id), known);
            }
        }
    }

    fn set_throttle(&mut self) {
        let bucket = BUCKETS[self.chance.below(4) as usize];
        let now = self.shell.now.as_millis();
        if self.chance.one_in(5) {
            self.shell.unthrottle(bucket);
            self.plain.remove(bucket);
            return;
        }
        let rate = RATES[self.chance.below(RATES.len() as u64) as usize];
        let burst = 1.0 + self.chance.below(30) as f64 / 2.0;
        self.shell.throttle(bucket, rate, burst);
        let new = Plain {
            rate,
            burst,
            least: burst,
            most: burst,
            at: now,
            is_new: true,
        };
        let plain = self.plain.entry(bucket).or_insert(new);
        plain.set(now, rate, burst);
    }

    fn settle(&mut self) {
        for _ in 0..self.chance.below(5) {
            if self.leased.is_empty() {
                return;
            }
            let which = self.chance.below(self.leased.len() as u64) as usize;
            let id = *self.leased.keys().nth(which).unwrap();
            if self.chance.one_in(2) {
                self.ack(id);
            } else {
                let (known, delivery) = self.leased.remove(&id).unwrap();
                let queue = self.places[known.place].queue;
                if self.chance.one_in(2) {
                    let wait = Duration::from_millis(self.chance.below(3) * 200);
                    self.fail(id, known, wait);
                    let settled = self.shell.settle(queue, delivery.lease, nack(wait));
                    assert_eq!(settled, Ok(()));
                } else {
                    let again = Verdict::Release;
                    assert_eq!(self.shell.settle(queue, delivery.lease, again), Ok(()));
                    self.waiting.insert(id, known);
                }
            }
            self.look();
        }
    }

    fn ack(&mut self, id: Name) {
        let (known, delivery) = self.leased.remove(&id).unwrap();
        let queue = self.places[known.place].queue;
        let acked = self.shell.settle(queue, delivery.lease, Verdict::Ack);
        assert_eq!(acked, Ok(()));
        self.gone += 1;
    }

    /// All buckets are empty after a restart, and nothing is leased.
    fn restart(&mut self) {
        self.shell.run();
        self.look();
        self.shell.restart();
        for (id, (known, _)) in std::mem::take(&mut self.leased) {
            self.waiting.insert(id, known);
        }
        for plain in self.plain.values_mut() {
            (plain.least, plain.most, plain.is_new) = (0.0, 0.0, false);
            plain.at = self.shell.now.as_millis();
        }
        for place in &mut self.places {
            place.stamp = RedriveStamp::default();
            place.consumer = None;
        }
        self.subscribe_all();
    }

    /// Takes what is delivered, and holds it against the plain buckets.
    fn look(&mut self) {
        self.shell.run();
        let now = self.shell.now;
        let before = self.waiting.len();
        let is_live = |known: &Known| known.expires.is_none_or(|end| end > now);
        self.waiting.retain(|_, known| is_live(known));
        self.gone += (before - self.waiting.len()) as u64;
        self.plain
            .values_mut()
            .for_each(|plain| plain.fill(now.as_millis()));
        while let Some((consumer, delivery)) = self.shell.deliveries.pop_front() {
            let place = self
                .places
                .iter()
                .position(|it| it.consumer == Some(consumer));
            let place = place.expect("the consumer is there");
            let id = self.name_of(place, delivery.payload.body());
            self.check_order(id);
            let known = self.waiting.remove(&id).expect("it waits");
            assert_eq!(known.id, delivery.message);
            assert_eq!(delivery.attempt, known.attempts + 1);
            for bucket in &known.keys {
                if let Some(plain) = self.plain.get_mut(bucket) {
                    plain.take();
                    assert!(plain.most > -1e-6, "{bucket} gave a token it had not");
                    assert!(plain.rate > 0.0, "{bucket} is closed");
                }
            }
            self.leased.insert(id, (known, delivery));
        }
        if self.is_roomy {
            self.check_figures();
            self.check_no_key_is_forgotten();
        }
    }

    /// Returns the name of a waiting message by its body, which no other has.
    fn name_of(&self, place: usize, body: &[u8]) -> Name {
        let mut waiting = self.waiting.iter();
        let found = waiting.find(|(name, known)| name.0 == place && known.body == body);
        *found.expect("it waits").0
    }

    /// Fails if another message should have been delivered before this one.
    fn check_order(&self, id: Name) {
        let known = &self.waiting[&id];
        let now = self.shell.now;
        assert!(known.due <= now, "{id:?} is not due");
        let definition = &self.places[known.place].definition;
        let is_in_front = |(other, it): &(&Name, &Known)| {
            let is_beside = match definition.ordering {
                Ordering::None => it.keys == known.keys && it.due <= now,
                Ordering::Key => true,
            };
            **other < id && is_beside && (it.place, it.tenant) == (known.place, known.tenant)
        };
        let first = self.waiting.iter().find(is_in_front);
        assert!(first.is_none(), "{first:?} comes before {known:?}");
        let (leased, cap) = self.leased_and_cap(known);
        assert!(leased < cap, "{known:?} is beyond its cap");
        assert!(self.is_running(known), "{known:?} is paused");
    }

    fn is_running(&self, known: &Known) -> bool {
        let definition = &self.places[known.place].definition;
        let settings = definition.keys.get(&key(known.tenant));
        definition.delivery == Delivering::Running
            && settings.is_none_or(|it| it.delivery == Delivering::Running)
    }

    /// Returns how many messages of the same key are leased, and may be.
    fn leased_and_cap(&self, known: &Known) -> (usize, usize) {
        let beside = |it: &Known| (it.place, it.tenant) == (known.place, known.tenant);
        let leased = self.leased.values().filter(|(it, _)| beside(it)).count();
        let definition = &self.places[known.place].definition;
        let own = definition.keys.get(&key(known.tenant));
        let own = own.and_then(|settings| settings.concurrency);
        let cap = match definition.ordering {
            Ordering::Key => NonZeroU32::new(1),
            Ordering::None => own.or(definition.key_concurrency),
        };
        (leased, cap.map_or(usize::MAX, |cap| cap.get() as usize))
    }

    fn check_figures(&mut self) {
        for (number, place) in self.places.iter().enumerate() {
            let stats = self.shell.stats(place.queue);
            let waiting = self.waiting.values().filter(|it| it.place == number);
            let leased = self.leased.values().filter(|(it, _)| it.place == number);
            let (known, waiting) = (stats.ready + stats.delayed, waiting.count() as u64);
            // Lives that have ended in the store are noticed when they are read.
            assert!(known == waiting || known > waiting && stats.stored_only > 0);
            assert_eq!(stats.leased, leased.count() as u64);
            assert!(stats.throttled <= stats.ready, "{stats:?}");
            let dead = self.dead.values().filter(|it| it.place == number);
            let letters = self.shell.stats(place.letters);
            assert_eq!(letters.depth(), dead.count() as u64, "of {}", place.name);
            assert_eq!(letters.throttled, 0);
        }
    }

    /// Fails if a message waits that could be delivered.
    fn check_no_key_is_forgotten(&self) {
        // Each aisle that takes of several buckets may keep a token of this one apart.
        let mut aisles = BTreeSet::new();
        for known in self.waiting.values().filter(|known| known.keys.len() > 1) {
            aisles.insert((known.place, known.tenant, &known.keys));
        }
        let is_open = |bucket: &&'static str| match self.plain.get(bucket) {
            Some(plain) => {
                let keep = aisles.iter().filter(|(.., keys)| keys.contains(bucket));
                plain.rate > 0.0 && plain.least >= 1.0 + keep.count() as f64 + 1e-6
            }
            None => true,
        };
        let now = self.shell.now;
        let mut strict = BTreeSet::new();
        for (id, known) in &self.waiting {
            let place = &self.places[known.place];
            let is_first = place.definition.ordering == Ordering::None
                || strict.insert((known.place, known.tenant));
            let (leased, cap) = self.leased_and_cap(known);
            let is_free = known.due <= now && known.keys.iter().all(is_open);
            if is_first && is_free && place.consumer.is_some() && self.is_running(known) {
                assert!(
                    leased >= cap,
                    "{id:?} waits, and could be delivered: {known:?}"
                );
            }
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn buckets_give_what_plain_buckets_would_and_no_key_is_forgotten() {
    let (first, runs) = match number("FILA_SIMULATION_SEED") {
        Some(seed) => (seed, 1),
        None => (
            number("FILA_SIMULATION_FIRST").unwrap_or(0),
            number("FILA_SIMULATION_RUNS").unwrap_or(600),
        ),
    };
    for seed in first..first.saturating_add(runs) {
        let outcome = std::panic::catch_unwind(|| Life::new(seed).play(150));
        if let Err(panic) = outcome {
            eprintln!("replay with FILA_SIMULATION_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
