#![cfg(test)] // helpers may unwrap, as tests do
//! Throttles in random lives: what buckets give is held against buckets that are as simple as can be, after every step.
//!
//! `FILA_SIMULATION_SEED=n` replays one life, `FILA_SIMULATION_RUNS=n` makes more of them, and `FILA_SIMULATION_FIRST=n`
//! begins with another seed than 0.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Duration;

use fila_core::{
    ConsumerId, Credit, Definition, Delivery, NewMessage, Ordering, Settings, Verdict,
};
use fila_store::QueueId;
use support::{Chance, Shell, throttled};

const BUCKETS: [&str; 4] = ["w", "x", "y", "z"];
const RATES: [f64; 7] = [0.0, 0.5, 3.0, 10.0, 100.0, 997.0, 20_000.0];

/// A bucket as a child would make one.
#[derive(Clone, Copy)]
struct Plain {
    rate: f64,
    burst: f64,
    level: f64,
    at: u64,
}

impl Plain {
    fn fill(&mut self, now: u64) {
        let filled = self.level + self.rate * (now - self.at) as f64 / 1000.0;
        self.level = filled.min(self.burst);
        self.at = now;
    }
}

struct Life {
    chance: Chance,
    shell: Shell,
    queues: Vec<(QueueId, Ordering)>,
    consumers: Vec<ConsumerId>,
    plain: BTreeMap<&'static str, Plain>,
    leased: Vec<(QueueId, Delivery)>,
    keys_of: BTreeMap<Vec<u8>, Vec<&'static str>>,
    waiting: BTreeMap<Vec<u8>, usize>,
    sent: u64,
    acked: u64,
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
        let mut shell = Shell::new(settings);
        let queues = [Ordering::None, Ordering::None, Ordering::Key].map(|ordering| {
            let mut definition = Definition::default();
            definition.ordering = ordering;
            definition.visibility_timeout = Duration::from_secs(3600);
            ordering_of(&mut shell, definition)
        });
        Self {
            chance,
            shell,
            queues: queues.to_vec(),
            consumers: Vec::new(),
            plain: BTreeMap::new(),
            leased: Vec::new(),
            keys_of: BTreeMap::new(),
            waiting: BTreeMap::new(),
            sent: 0,
            acked: 0,
            is_roomy,
        }
    }

    fn play(mut self, steps: usize) {
        self.subscribe();
        for _ in 0..steps {
            self.step();
            self.look();
        }
        // In the end all come through.
        for bucket in BUCKETS {
            self.plain.remove(bucket);
            self.shell.unthrottle(bucket);
        }
        self.restart();
        for _ in 0..self.sent {
            self.look();
            while let Some((queue, delivery)) = self.leased.pop() {
                self.ack(queue, &delivery);
            }
            self.shell.advance(Duration::from_secs(1));
            if self.acked == self.sent {
                return;
            }
        }
        panic!("{} of {} came through", self.acked, self.sent);
    }

    fn subscribe(&mut self) {
        self.consumers = self
            .queues
            .iter()
            .map(|(queue, _)| self.shell.subscribe(*queue, Credit::Unlimited))
            .collect();
    }

    fn step(&mut self) {
        match self.chance.below(20) {
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
            _ if self.chance.one_in(4) => self.restart(),
            _ => {}
        }
    }

    fn send(&mut self) {
        let place = self.chance.below(self.queues.len() as u64) as usize;
        let queue = self.queues[place].0;
        for _ in 0..1 + self.chance.below(6) {
            let mut keys = Vec::new();
            for bucket in BUCKETS {
                if self.chance.one_in(3) {
                    keys.push(bucket);
                }
            }
            let name = format!("tenant {}", self.chance.below(3));
            let body = format!("{place} {name} {}", self.sent);
            let payload = fila_store::Payload::new(Vec::new(), body.clone()).unwrap();
            let message = NewMessage {
                payload,
                ..throttled(&name, &keys)
            };
            self.shell.enqueue(queue, message);
            self.keys_of.insert(body.clone().into_bytes(), keys);
            self.waiting.insert(body.into_bytes(), place);
            self.sent += 1;
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
        match self.plain.get_mut(bucket) {
            Some(plain) => {
                plain.fill(now);
                (plain.rate, plain.burst) = (rate, burst);
                plain.level = plain.level.min(burst);
            }
            None => {
                let level = burst;
                let at = now;
                self.plain.insert(
                    bucket,
                    Plain {
                        rate,
                        burst,
                        level,
                        at,
                    },
                );
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..self.chance.below(5) {
            if self.leased.is_empty() {
                return;
            }
            let which = self.chance.below(self.leased.len() as u64) as usize;
            let (queue, delivery) = self.leased.swap_remove(which);
            if self.chance.one_in(3) {
                let again = Verdict::Release;
                assert_eq!(self.shell.settle(queue, delivery.lease, again), Ok(()));
                let body = delivery.payload.body().to_vec();
                let place = self.queues.iter().position(|(it, _)| *it == queue);
                self.waiting.insert(body, place.unwrap());
            } else {
                self.ack(queue, &delivery);
            }
            self.look();
        }
    }

    fn ack(&mut self, queue: QueueId, delivery: &Delivery) {
        assert_eq!(
            self.shell.settle(queue, delivery.lease, Verdict::Ack),
            Ok(())
        );
        self.acked += 1;
    }

    /// All buckets are empty after a restart, and nothing is leased.
    fn restart(&mut self) {
        self.shell.restart();
        for (queue, delivery) in self.leased.drain(..) {
            let place = self.queues.iter().position(|(it, _)| *it == queue);
            let body = delivery.payload.body().to_vec();
            self.waiting.insert(body, place.unwrap());
        }
        for plain in self.plain.values_mut() {
            plain.level = 0.0;
            plain.at = self.shell.now.as_millis();
        }
        self.subscribe();
    }

    /// Takes what is delivered, and holds it against the plain buckets.
    fn look(&mut self) {
        self.shell.run();
        let now = self.shell.now.as_millis();
        self.plain.values_mut().for_each(|plain| plain.fill(now));
        while let Some((consumer, delivery)) = self.shell.deliveries.pop_front() {
            let body = delivery.payload.body().to_vec();
            for bucket in &self.keys_of[&body] {
                if let Some(plain) = self.plain.get_mut(bucket) {
                    plain.level -= 1.0;
                    assert!(plain.level > -1e-6, "{bucket} gave a token it had not");
                    assert!(plain.rate > 0.0, "{bucket} is closed");
                }
            }
            assert!(self.waiting.remove(&body).is_some(), "delivered twice");
            let place = self.consumers.iter().position(|it| *it == consumer);
            self.leased.push((self.queues[place.unwrap()].0, delivery));
        }
        if self.is_roomy {
            self.check_nobody_is_forgotten();
        }
    }

    /// Fails if a message waits that could be delivered.
    fn check_nobody_is_forgotten(&self) {
        // Each aisle that takes of several buckets may keep a token of this one apart.
        let mut aisles = BTreeSet::new();
        for (body, place) in &self.waiting {
            let keys = &self.keys_of[body];
            let text = String::from_utf8_lossy(body);
            let tenant = text.rsplit_once(' ').unwrap().0.to_owned();
            if keys.len() > 1 {
                aisles.insert((*place, tenant, keys));
            }
        }
        let is_open = |bucket: &&'static str| match self.plain.get(bucket) {
            Some(plain) => {
                let keep = aisles.iter().filter(|(.., keys)| keys.contains(bucket));
                plain.rate > 0.0 && plain.level >= 1.0 + keep.count() as f64 + 1e-6
            }
            None => true,
        };
        for (body, place) in &self.waiting {
            let (_, ordering) = self.queues[*place];
            let is_free = self.keys_of[body].iter().all(is_open);
            if ordering == Ordering::None && is_free {
                let text = String::from_utf8_lossy(body);
                panic!("{text} waits, and could be delivered");
            }
        }
    }
}

fn ordering_of(shell: &mut Shell, definition: Definition) -> (QueueId, Ordering) {
    let ordering = definition.ordering;
    let name = format!("queue {}", shell.ticket());
    (shell.create(&name, definition), ordering)
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn buckets_give_what_plain_buckets_would_and_nobody_is_forgotten() {
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
