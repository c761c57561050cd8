//! What happens to the broker, by chance, and what that means to the model.

use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    BatchId, Beginnings, Command, ConsumerId, ConsumerKind, DeduplicationScope, Delivering, Demand,
    Departure, LeaseId, Ordering, RECONNECT_GRACE, Settlement, Ttl, Verdict,
};
use fila_store::{Engine, Expected as Version, MessageId, Timestamp};

use super::groups::{KEYS, some_group_weights, some_name, some_separator, some_settings};
use super::producers::{Copies, Shape};
use super::{Expected, Fate, Life, Pending, Sent, Simulation, Subscriber};
use crate::support::{key, message};

impl Simulation {
    pub(super) fn step(&mut self) {
        match self.chance.below(112) {
            100..105 => self.judge(),
            105..112 => self.haunt(),
            0..20 => self.enqueue(),
            20..40 => self.settle(),
            40..46 => self.subscribe(),
            46..54 => self.credit(),
            54..56 => self.unsubscribe(),
            56..58 => self.drain(),
            58..68 => self.poll(),
            68..72 => self.shell.seal(),
            72..76 => self.shell.seal_further(),
            76..84 => self.shell.commit(),
            84..90 => self.load(),
            90..93 => self.let_time_pass(),
            93..96 => self.let_time_pass_unnoticed(),
            96 => self.reconfigure(),
            97 => self.purge(),
            _ => {
                if self.chance.one_in(3) {
                    self.crash();
                }
            }
        }
    }

    fn some_key(&mut self) -> &'static str {
        KEYS[self.chance.below(KEYS.len() as u64) as usize]
    }

    fn enqueue(&mut self) {
        match self.chance.below(8) {
            0..3 => {
                let shapes = Shape::some(&mut self.chance);
                self.send(None, &shapes);
            }
            3..5 => self.send_batch(),
            5..7 => self.send_batch_again(),
            _ => self.send_late_copy(),
        }
    }

    /// Sends messages of these shapes, which may be a batch with an id.
    pub(super) fn send(&mut self, batch: Option<(BatchId, Copies)>, shapes: &[Shape]) {
        let now = self.shell.now;
        let mut messages = Vec::new();
        let mut sent = Vec::new();
        for (place, shape) in (0..).zip(shapes) {
            let name = self.some_key();
            self.bodies += 1;
            let mut body = vec![0; 8 + self.chance.below(1500) as usize];
            body[..8].copy_from_slice(&self.bodies.to_be_bytes());
            let mut new = message(name, body);
            let weight = 1 + self.chance.below(5) as u32;
            let weight = if shape.is_invalid { u32::MAX } else { weight };
            new.schedule.weight = NonZeroU32::new(weight).unwrap();
            if self.chance.one_in(8) {
                new.schedule.group_weights = some_group_weights(&mut self.chance);
            }
            if self.chance.one_in(6) {
                new.delay = Duration::from_millis(self.chance.below(400));
            }
            new.ttl = match self.chance.below(12) {
                0..2 => Ttl::For(Duration::from_millis(1 + self.chance.below(2000))),
                2..4 => Ttl::Forever,
                _ => Ttl::Queue,
            };
            let ttl = match new.ttl {
                Ttl::For(time) => Some(time),
                Ttl::Queue => self.definition.message_ttl,
                Ttl::Forever => None,
            };
            if ttl.is_some_and(|ttl| ttl <= new.delay) {
                // The broker refuses it otherwise.
                new.delay = Duration::ZERO;
            }
            new.deduplication_id.clone_from(&shape.deduplication_id);
            sent.push(Sent {
                body: self.bodies,
                key: key(name),
                due: due(now, new.delay),
                expires: ttl.map(|time| now.saturating_add(time)),
                fate: self.decide(name, batch.map(|(id, _)| (id, place)), shape),
                is_purged: false,
            });
            messages.push(new);
        }
        let ticket = self.shell.ticket();
        self.pending.insert(ticket, Pending::Enqueue(sent, batch));
        self.shell.tell(Command::Enqueue {
            queue: self.queue,
            messages,
            batch_id: batch.map(|(id, _)| id),
            ticket,
        });
    }

    /// Says what is to become of a message, and remembers it if it is stored.
    fn decide(&mut self, name: &str, place: Option<(BatchId, u32)>, shape: &Shape) -> Fate {
        let (now, body) = (self.shell.now, self.bodies);
        let place = place.map(|(id, place)| (id, (id.producer, id.sequence, place)));
        let of_batch = place.and_then(|(_, place)| self.batches.get(&place));
        if let Some((first, _)) = of_batch.filter(|(_, until)| *until > now) {
            return Fate::Duplicate(*first);
        }
        if shape.is_invalid {
            return Fate::Refused;
        }
        let window = self.definition.deduplication_window;
        if let Some(id) = &shape.deduplication_id {
            let (key, scope) = (key(name), self.definition.deduplication_scope);
            let is_shared = scope == DeduplicationScope::Queue;
            let of_key = self.remembered.get(&(Some(key.clone()), id.clone()));
            let of_queue = self.remembered.get(&(None, id.clone()));
            let of_queue = of_queue.filter(|(.., owner)| is_shared || *owner == key);
            let mut known = of_key.into_iter().chain(of_queue);
            if let Some((first, ..)) = known.find(|(_, until, _)| *until > now) {
                return Fate::Duplicate(*first);
            }
            let until = now.saturating_add(window);
            let scope = (!is_shared).then(|| key.clone());
            self.remembered
                .insert((scope, id.clone()), (body, until, key));
        }
        if let Some((id, place)) = place {
            let time = id.remember_max.map_or(window, |max| max.min(window));
            let until = now.saturating_add(time);
            self.batches.insert(place, (body, until));
        }
        Fate::Stored
    }

    fn settle(&mut self) {
        let live: Vec<LeaseId> = self.leases().map(|(lease, _)| lease).collect();
        let mut results = Vec::new();
        for _ in 0..=self.chance.below(4) {
            let is_late = live.is_empty() || self.chance.one_in(6);
            let leases = if is_late { &self.ended } else { &live };
            if leases.is_empty() {
                continue;
            }
            let lease = leases[self.chance.below(leases.len() as u64) as usize];
            let verdict = match self.chance.below(12) {
                0..6 => Verdict::Ack,
                6 => self.some_nack(),
                7 => Verdict::Release,
                8..10 => Verdict::Begin,
                _ => Verdict::Extend { by: None },
            };
            results.push((lease, verdict));
        }
        let by = self.some_consumer().filter(|_| self.chance.one_in(2));
        self.tell_results(results, by);
    }

    pub(super) fn acknowledge_all(&mut self) {
        let results = self.leases().map(|(lease, _)| (lease, Verdict::Ack));
        let results = results.collect();
        self.tell_results(results, None);
    }

    fn tell_results(&mut self, results: Vec<(LeaseId, Verdict)>, by: Option<ConsumerId>) {
        let mut expected = Vec::new();
        let mut settlements = Vec::new();
        for (lease, verdict) in results {
            expected.push(self.take_result(lease, &verdict, by));
            settlements.push(Settlement {
                lease,
                message: None,
                verdict,
            });
        }
        let ticket = self.shell.ticket();
        self.pending.insert(ticket, Pending::Settle(expected));
        self.shell.tell(Command::Settle {
            queue: self.queue,
            results: settlements,
            by,
            ticket,
        });
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = (LeaseId, MessageId)> {
        self.messages
            .iter()
            .filter_map(|(id, known)| match known.life {
                Life::Leased(held) => Some((held.lease, *id)),
                Life::Waiting | Life::Failing { .. } | Life::Leaving => None,
            })
    }

    /// Does to the model what a result does, and returns what has to come of it.
    fn take_result(
        &mut self,
        lease: LeaseId,
        verdict: &Verdict,
        by: Option<ConsumerId>,
    ) -> Expected {
        let now = self.shell.now;
        let Some((_, id)) = self.leases().find(|(held, _)| *held == lease) else {
            return Expected::Refused;
        };
        let timeout = self.definition.visibility_timeout;
        let known = self.messages.get_mut(&id).unwrap();
        let Life::Leased(held) = &mut known.life else {
            unreachable!("it was found by its lease");
        };
        let consumer = held.consumer;
        let expected = match verdict {
            Verdict::Begin => {
                held.is_begun = true;
                return Expected::Taken;
            }
            Verdict::Extend { .. } => {
                held.until = now.saturating_add(timeout);
                held.is_lost = false;
                // A consumer that was dismissed since cannot take it over.
                if let Some(by) = by
                    && let Some(subscriber) = self.consumers.get_mut(&by)
                {
                    subscriber.took_over |= held.consumer != Some(by);
                    held.consumer = Some(by);
                }
                self.dismiss_if_done(consumer);
                return Expected::Taken;
            }
            Verdict::Ack => {
                known.life = Life::Leaving;
                Expected::Deleted(id)
            }
            Verdict::Nack { delay, .. } => {
                let attempts = known.attempts + 1;
                self.fail(id, *delay);
                Expected::Attempted(id, attempts)
            }
            Verdict::Release => {
                known.life = Life::Waiting;
                Expected::Taken
            }
        };
        self.ended.push(lease);
        self.dismiss_if_done(consumer);
        expected
    }

    fn subscribe(&mut self) {
        if self.consumers.len() < 4 {
            let credit = self.chance.below(6) as u32;
            let credit = self.chance.one_in(2).then_some(credit);
            let in_flight_max = 1 + self.chance.below(8) as u32;
            if self.chance.one_in(3) {
                let lease_time = None;
                let call = ConsumerKind::Call { lease_time };
                self.subscribe_as(call, Some(in_flight_max), in_flight_max);
            } else {
                self.subscribe_with(credit, in_flight_max);
            }
        }
    }

    pub(super) fn subscribe_with(&mut self, credit: Option<u32>, in_flight_max: u32) {
        let beginnings = match self.chance.one_in(2) {
            true => Beginnings::Reported,
            false => Beginnings::Assumed,
        };
        self.subscribe_as(ConsumerKind::Stream(beginnings), credit, in_flight_max);
    }

    fn subscribe_as(&mut self, kind: ConsumerKind, credit: Option<u32>, in_flight_max: u32) {
        let ticket = self.shell.ticket();
        let consumer = ConsumerId::new(ticket);
        let demand = Demand {
            credit: credit.unwrap_or(u32::MAX),
            in_flight_max,
            kind,
        };
        self.shell.subscribe_as(self.queue, consumer, demand);
        let subscriber = Subscriber {
            credit,
            in_flight_max: in_flight_max as usize,
            kind,
            took_over: false,
            is_draining: false,
        };
        self.consumers.insert(consumer, subscriber);
    }

    fn some_consumer(&mut self) -> Option<ConsumerId> {
        let count = self.consumers.len() as u64;
        let nth = self.chance.below(count.max(1)) as usize;
        self.consumers.keys().nth(nth).copied()
    }

    fn credit(&mut self) {
        if let Some(consumer) = self.some_consumer()
            && let ConsumerKind::Stream(_) = self.consumers[&consumer].kind
        {
            let more = self.chance.below(5) as u32;
            let known = self.consumers.get_mut(&consumer).unwrap();
            known.credit = known.credit.map(|credit| credit + more);
            self.shell.tell(Command::Credit { consumer, more });
        }
    }

    fn drain(&mut self) {
        if let Some(consumer) = self.some_consumer() {
            let known = self.consumers.get_mut(&consumer).unwrap();
            // A call waits no longer, and stays until it is answered.
            known.is_draining = matches!(known.kind, ConsumerKind::Stream(_));
            self.dismiss_if_done(Some(consumer));
            self.shell.tell(Command::Drain { consumer });
        }
    }

    fn unsubscribe(&mut self) {
        let Some(consumer) = self.some_consumer() else {
            return;
        };
        let subscriber = self.consumers.remove(&consumer).unwrap();
        let departure = match (subscriber.kind, self.chance.one_in(3)) {
            (_, true) => Departure::Closed,
            (ConsumerKind::Stream(_), false) => Departure::Lost,
            (ConsumerKind::Call { .. }, false) => Departure::Answered,
        };
        let now = self.shell.now;
        let (mut unsent, mut oldest) = (Vec::new(), None);
        for (id, known) in &mut self.messages {
            let Life::Leased(held) = known.life else {
                continue;
            };
            if held.consumer != Some(consumer) {
                continue;
            }
            if self.chance.one_in(8) {
                unsent.push(held.lease);
                self.ended.push(held.lease);
                known.life = Life::Waiting;
            } else if oldest.is_none_or(|(number, _)| held.number < number) {
                oldest = Some((held.number, *id));
            }
        }
        let assumes = ConsumerKind::Stream(Beginnings::Assumed);
        let assumed = oldest.filter(|_| subscriber.kind == assumes);
        for (id, known) in &mut self.messages {
            let Life::Leased(held) = &mut known.life else {
                continue;
            };
            if held.consumer != Some(consumer) {
                continue;
            }
            held.is_begun |= assumed.is_some_and(|(_, oldest)| oldest == *id);
            if departure == Departure::Closed && !held.is_begun {
                self.ended.push(held.lease);
                known.life = Life::Waiting;
            } else if departure == Departure::Answered {
                held.consumer = None;
            } else {
                held.consumer = None;
                held.is_lost = true;
                held.until = held.until.min(now.saturating_add(RECONNECT_GRACE));
            }
        }
        self.shell.tell(Command::Unsubscribe {
            consumer,
            departure,
            unsent,
        });
    }

    /// Ends leases whose time is over. The deliveries count as attempts, unless a consumer was lost that had not begun them.
    fn end_leases(&mut self, now: Timestamp) {
        let mut ended = Vec::new();
        for (id, known) in &mut self.messages {
            if let Life::Leased(held) = known.life
                && held.until <= now
            {
                self.ended.push(held.lease);
                known.lost += u32::from(held.is_lost);
                ended.push((*id, held));
            }
        }
        for (id, held) in ended {
            if held.is_lost && !held.is_begun {
                self.messages.get_mut(&id).unwrap().life = Life::Waiting;
            } else {
                self.fail(id, Some(Duration::ZERO));
            }
            self.dismiss_if_done(held.consumer);
        }
    }

    fn let_time_pass(&mut self) {
        let time = match self.chance.below(10) {
            0 => 3_600_000,
            1..4 => self.chance.below(1000),
            _ => self.chance.below(60),
        };
        self.pass(Duration::from_millis(time));
    }

    /// Lets time pass without a poll at its end: whatever comes next finds timers that are due.
    fn let_time_pass_unnoticed(&mut self) {
        let time = self.chance.below(200);
        self.shell.advance(Duration::from_millis(time));
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.shell.advance(time);
        self.poll();
        self.look();
    }

    fn poll(&mut self) {
        self.end_overdue_leases();
        self.shell.poll();
    }

    /// Makes a read, which fails now and then.
    fn load(&mut self) {
        let Some(load) = self.shell.loads.front() else {
            return;
        };
        // Due messages come before messages that have to be read.
        if load.queue == self.queue {
            self.end_overdue_leases();
        }
        if self.chance.one_in(8) {
            self.shell.fail_load();
            self.read_failed = Some(self.shell.now);
        } else {
            self.shell.load();
        }
    }

    pub(super) fn end_overdue_leases(&mut self) {
        let now = self.shell.now;
        self.judge_overdue();
        self.end_leases(now);
    }

    fn reconfigure(&mut self) {
        match self.chance.below(12) {
            10 => self.definition.key_separator = some_separator(&mut self.chance),
            9 => {
                self.definition.ordering = match self.definition.ordering {
                    Ordering::None => Ordering::Key,
                    Ordering::Key => Ordering::None,
                };
            }
            8 => {
                self.definition.deduplication_scope = match self.definition.deduplication_scope {
                    DeduplicationScope::Key => DeduplicationScope::Queue,
                    DeduplicationScope::Queue => DeduplicationScope::Key,
                };
            }
            6 => {
                self.definition.retry.attempts_max = NonZeroU32::new(self.chance.below(4) as u32);
            }
            7 => self.definition.failure_hook = self.chance.one_in(2),
            0 => {
                self.definition.delivery = match self.definition.delivery {
                    Delivering::Running => Delivering::Paused,
                    Delivering::Paused => Delivering::Running,
                };
            }
            1 => {
                let cap = self.chance.below(4) as u32;
                self.definition.key_concurrency = NonZeroU32::new(cap);
            }
            2 => {
                let window = Duration::from_millis(self.chance.below(2000));
                self.definition.deduplication_window = window;
            }
            3 => {
                let timeout = Duration::from_millis(50 + self.chance.below(500));
                self.definition.visibility_timeout = timeout;
            }
            _ => {
                let settings = some_settings(&mut self.chance);
                let name = some_name(&mut self.chance);
                self.definition.keys.insert(name, settings);
            }
        }
        self.redefine();
    }

    pub(super) fn redefine(&mut self) {
        let definition = self.definition.clone();
        let (engine, any) = (&self.shell.engine, Version::Any);
        let updated = engine.update_queue(self.queue, any, definition.encode());
        updated.unwrap();
        self.shell.update(self.queue, definition);
    }

    fn purge(&mut self) {
        // Dead letters do not block any more.
        self.cellar.unblock();
        let purged = std::mem::take(&mut self.messages);
        for known in purged.values() {
            if let Life::Leased(held) = known.life {
                self.ended.push(held.lease);
            }
        }
        for pending in self.pending.values_mut() {
            match pending {
                Pending::Enqueue(sent, _) => {
                    sent.iter_mut().for_each(|sent| sent.is_purged = true);
                }
                Pending::Redrive { is_purged, .. } => *is_purged = true,
                Pending::Settle(_) | Pending::SettleLetters(_) | Pending::Purge(_) => {}
            }
        }
        self.remembered.clear();
        self.batches.clear();
        let consumers: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        for consumer in consumers {
            self.dismiss_if_done(Some(consumer));
        }
        let ticket = self.shell.ticket();
        self.pending.insert(ticket, Pending::Purge(purged));
        self.shell.tell(Command::Purge {
            queue: self.queue,
            ticket,
        });
    }
}

/// Returns when a message may be delivered that is put off by so much.
pub(super) fn due(now: Timestamp, delay: Duration) -> Timestamp {
    if delay.is_zero() {
        Timestamp::from_millis(0)
    } else {
        now.saturating_add(delay)
    }
}
