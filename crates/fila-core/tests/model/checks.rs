//! What may be seen, what must be seen, and what a crash may leave.

use std::collections::BTreeMap;
use std::time::Duration;

use fila_core::{
    ConsumerId, ConsumerKind, Delivering, Delivery, Dismissal, EnqueueError, Enqueued, Ordering,
    Refused, SettleError,
};
use fila_store::{Cursor, FairnessKey, MessageId, QueueId, Shard, StoredMessage, Timestamp};

use super::dead_letters::OnTheirWay;
use super::producers::{Copies, Row};
use super::{Expected, Fate, Held, Known, Life, Pending, Sent, Simulation, Subscriber};
use crate::support::Answer;

/// When what could not be read is tried again, at the latest.
const RETRY: Duration = Duration::from_secs(1);

impl Simulation {
    /// Checks what the broker has said since the last look.
    pub(super) fn look(&mut self) {
        let answers = std::mem::take(&mut self.shell.answers);
        for (ticket, answer) in answers {
            let pending = self.pending.remove(&ticket).expect("answered once");
            self.check_answer(pending, answer);
        }
        self.take_failures();
        self.lay_to_rest();
        while let Some((consumer, delivery)) = self.shell.deliveries.pop_front() {
            if self.cellar.consumer == Some(consumer) {
                self.check_letter(&delivery);
            } else {
                self.check_delivery(consumer, &delivery);
            }
        }
        for (consumer, why) in std::mem::take(&mut self.shell.dismissed) {
            let known = self.consumers.get_mut(&consumer);
            match (why, known) {
                (_, None) => {}
                (Dismissal::Served, Some(call)) => {
                    assert!(matches!(call.kind, ConsumerKind::Call { .. }));
                    // From now on it gets nothing.
                    call.credit = Some(0);
                }
                (_, Some(_)) => panic!("{consumer:?} was dismissed too early: {why:?}"),
            }
        }
    }

    fn check_answer(&mut self, pending: Pending, answer: Answer) {
        match (pending, answer) {
            (Pending::Enqueue(sent, batch), Answer::Enqueued(results)) => {
                assert_eq!(sent.len(), results.len());
                for (sent, result) in sent.into_iter().zip(results) {
                    match (sent.fate, result) {
                        (Fate::Stored, Ok(Enqueued::Stored(id))) => self.take_stored(id, sent),
                        (Fate::Duplicate(body), Ok(Enqueued::Duplicate(id))) => {
                            assert_eq!(self.ids.get(&body), Some(&id), "body {body}");
                        }
                        (Fate::Refused, Err(EnqueueError::InvalidWeight { .. })) => {}
                        (expected, got) => panic!("{expected:?}, but {got:?}: {batch:?}"),
                    }
                }
                if let Some((id, _)) = batch {
                    self.deliver_answer(&id);
                }
            }
            (
                Pending::Enqueue(_, Some((_, Copies::Late))),
                Answer::Refused(Refused::BatchAnswered { .. }),
            ) => {}
            (Pending::Settle(expected), Answer::Settled(results)) => {
                assert_eq!(expected.len(), results.len());
                for (expected, result) in expected.into_iter().zip(results) {
                    match expected {
                        Expected::Refused => {
                            assert_eq!(result, Err(SettleError::LeaseNotFound));
                        }
                        Expected::Taken => assert_eq!(result, Ok(())),
                        Expected::Deleted(id) => {
                            assert_eq!(result, Ok(()));
                            self.messages.remove(&id);
                            self.gone.insert(id);
                        }
                        Expected::Attempted(id, attempts) => {
                            assert_eq!(result, Ok(()));
                            if let Some(known) = self.known_mut(id) {
                                known.attempts_confirmed = known.attempts_confirmed.max(attempts);
                            }
                        }
                    }
                }
            }
            (Pending::Purge(purged), Answer::Purged(count)) => {
                assert!(count >= self.certain(&purged), "{count}");
                self.gone.extend(purged.into_keys());
            }
            (
                Pending::Redrive {
                    bodies,
                    expires,
                    is_purged,
                },
                Answer::Redriven { results, stamp },
            ) => self.check_redriven(&bodies, (expires, is_purged), results, stamp),
            (Pending::SettleLetters(deleted), Answer::Settled(results)) => {
                self.check_settled_letters(&deleted, &results);
            }
            (pending, answer) => panic!("{answer:?} to {pending:?}"),
        }
    }

    /// Returns how many of these were there for certain.
    fn certain(&self, purged: &BTreeMap<MessageId, Known>) -> u64 {
        let is_certain = |known: &&Known| known.life != Life::Leaving && known.expires.is_none();
        purged.values().filter(is_certain).count() as u64
    }

    fn take_stored(&mut self, id: MessageId, sent: Sent) {
        self.ids.insert(sent.body, id);
        let is_purged = sent.is_purged;
        self.take_known(id, Known::of(sent), is_purged);
    }

    /// Takes note of a message that is there, unless a purge came after it.
    pub(super) fn take_known(&mut self, id: MessageId, known: Known, is_purged: bool) {
        if is_purged {
            // Gone, if the purge comes to pass.
            let purge = self.pending.values_mut().find_map(|pending| match pending {
                Pending::Purge(purged) => Some(purged),
                Pending::Enqueue(..)
                | Pending::Settle(_)
                | Pending::Redrive { .. }
                | Pending::SettleLetters(_) => None,
            });
            purge.expect("it is answered later").insert(id, known);
            return;
        }
        let before = self.messages.insert(id, known);
        assert!(before.is_none(), "{id} was given twice");
    }

    fn cap(&self, key: &FairnessKey) -> usize {
        let own = self.definition.keys.get(key);
        let cap = own
            .and_then(|own| own.concurrency)
            .or(self.definition.key_concurrency);
        match self.definition.ordering {
            Ordering::Key => 1,
            Ordering::None => cap.map_or(usize::MAX, |cap| cap.get() as usize),
        }
    }

    fn is_running(&self, key: &FairnessKey) -> bool {
        self.definition.delivery == Delivering::Running && self.is_path_running(key)
    }

    fn is_willing(&self, consumer: ConsumerId) -> bool {
        let has_room = |known: &Subscriber| self.holds(consumer) < known.in_flight_max;
        self.is_open(consumer) && self.consumers.get(&consumer).is_some_and(has_room)
    }

    /// Tells whether a consumer may get a delivery that was promised to it before it took over leases of others.
    fn is_open(&self, consumer: ConsumerId) -> bool {
        let known = self.consumers.get(&consumer);
        known.is_some_and(|known| !known.is_draining && known.credit != Some(0))
    }

    /// Returns the one message of a key that may be delivered now.
    fn deliverable(&self, key: &FairnessKey) -> Option<MessageId> {
        let now = self.shell.now;
        let of_key = || self.messages.iter().filter(|(_, known)| known.key == *key);
        let leased = of_key().filter(|(_, known)| matches!(known.life, Life::Leased(_)));
        let is_full = leased.count() >= self.cap(key) || !self.has_group_room(key);
        if !self.is_running(key) || is_full {
            return None;
        }
        match self.definition.ordering {
            Ordering::None => {
                let mut ready = of_key().filter(|(_, known)| {
                    known.life == Life::Waiting && known.due <= now && !known.is_expired(now)
                });
                ready.next().map(|(id, _)| *id)
            }
            Ordering::Key => {
                if self.cellar.blocks(key) {
                    return None;
                }
                // Whatever is first stands in the way of the others, unless its life is over.
                let mut line = of_key()
                    .filter(|(_, known)| known.life != Life::Waiting || !known.is_expired(now));
                let (id, first) = line.next()?;
                (first.life == Life::Waiting && first.due <= now).then_some(*id)
            }
        }
    }

    fn check_delivery(&mut self, consumer: ConsumerId, delivery: &Delivery) {
        // A message that has come back has another place, and the id that it had.
        let mut messages = self.messages.iter();
        let back = messages.find(|(_, known)| {
            known
                .past
                .is_some_and(|(first, _)| first == delivery.message)
        });
        let id = back.map_or(delivery.message, |(id, _)| *id);
        assert!(!self.gone.contains(&id), "{id} was gone");
        let took_over = self.consumers.get(&consumer).is_some_and(|it| it.took_over);
        let is_willing = self.is_willing(consumer) || took_over && self.is_open(consumer);
        assert!(is_willing, "{consumer:?} wants nothing");
        let next = self.deliverable(&delivery.fairness_key);
        assert_eq!(
            next,
            Some(id),
            "the next one of {:?}",
            delivery.fairness_key
        );
        let until = self.shell.now.saturating_add(delivery.lease_time);
        assert_eq!(delivery.lease_time, self.definition.visibility_timeout);
        let known = self.messages.get_mut(&id).unwrap();
        assert_eq!(delivery.attempt, known.attempts + 1);
        assert_eq!(delivery.payload.body()[..8], known.body.to_be_bytes());
        assert!(
            !self.ended.contains(&delivery.lease),
            "a lease has come back"
        );
        assert_eq!(delivery.lost, known.lost);
        self.deliveries += 1;
        known.life = Life::Leased(Held {
            lease: delivery.lease,
            number: self.deliveries,
            consumer: Some(consumer),
            until,
            is_begun: false,
            is_lost: false,
        });
        let subscriber = self.consumers.get_mut(&consumer).unwrap();
        subscriber.credit = subscriber.credit.map(|credit| credit - 1);
    }

    /// Lets the broker finish what it can at this moment. After that no consumer may wait for a message that is ready.
    pub(super) fn rest(&mut self) {
        self.end_overdue_leases();
        self.shell.run();
        self.look();
        assert!(self.pending.is_empty(), "unanswered: {:?}", self.pending);
        let now = self.shell.now;
        let live = self.messages.values();
        let live = live.filter(|known| !known.is_expired(now) || known.life != Life::Waiting);
        let (leased, live) = (self.leases().count() as u64, live.count() as u64);
        let stats = self.shell.stats(self.queue);
        assert_eq!(stats.leased, leased);
        // Lives that have ended in the store are noticed when they are read.
        let all = self.messages.len() as u64;
        assert!(
            (live..=all).contains(&stats.depth()),
            "{live}..={all}: {stats:?}"
        );
        let consumers = self.consumers.len() as u64;
        assert_eq!(stats.consumers, consumers);
        self.check_peeked();
        self.check_cellar();
        self.check_groups(self.queue);
        self.check_groups(self.cellar.queue);
        if self.is_all_retried()
            && let Some(willing) = self.consumers.keys().find(|&&id| self.is_willing(id))
        {
            for known in self.messages.values() {
                let next = self.deliverable(&known.key);
                assert_eq!(next, None, "{willing:?} waits, and so does {:?}", known.key);
            }
        }
    }

    /// Tells whether whatever could not be read has been tried again.
    pub(super) fn is_all_retried(&self) -> bool {
        let now = self.shell.now;
        self.read_failed
            .is_none_or(|failed| failed.saturating_add(RETRY) <= now)
    }

    /// Returns what is stored.
    pub(super) fn stored(&self) -> Vec<StoredMessage> {
        let shard = &self.shell.shards[&self.queue];
        let page = shard.scan(&Cursor::start(), usize::MAX).unwrap();
        assert!(page.damaged.is_empty());
        page.items
    }

    /// Ends the broker where it stands, and starts another one on what is stored.
    pub(super) fn crash(&mut self) {
        let further = std::mem::take(&mut self.shell.further);
        let may_have_happened = self.shell.round.take().into_iter().chain(further);
        // One that has not happened has kept those after it from happening.
        for round in may_have_happened.take_while(|_| self.chance.one_in(2)) {
            self.shell.store(&round);
        }
        self.shell.restart();
        self.read_failed = None;
        let leases: Vec<_> = self.leases().map(|(lease, _)| lease).collect();
        self.ended.extend(leases);
        self.consumers.clear();
        self.to_judge.clear();
        self.learn_from_store();
        let stats = self.shell.stats(self.queue);
        assert_eq!(stats.depth(), self.messages.len() as u64);
    }

    /// Checks that what is stored is what was confirmed, and takes over what it says of the rest.
    fn learn_from_store(&mut self) {
        let now = self.shell.now;
        let mut doubtful: BTreeMap<u64, Sent> = BTreeMap::new();
        let mut before = std::mem::take(&mut self.messages);
        let mut on_their_way = OnTheirWay::default();
        for (_, pending) in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Enqueue(sent, _) => {
                    let sent = sent.into_iter().filter(|sent| sent.fate == Fate::Stored);
                    doubtful.extend(sent.map(|sent| (sent.body, sent)));
                }
                Pending::Purge(purged) => {
                    // All of it may have come to pass, or none.
                    let purged = purged.into_iter().map(|(id, mut known)| {
                        known.life = Life::Leaving;
                        (id, known)
                    });
                    before.extend(purged);
                }
                Pending::Settle(_) => {}
                Pending::SettleLetters(deleted) => {
                    on_their_way
                        .acknowledged
                        .extend(deleted.into_iter().flatten());
                }
                Pending::Redrive {
                    bodies,
                    expires,
                    is_purged,
                } => {
                    for body in bodies {
                        let way = on_their_way.redriven.entry(body).or_default();
                        way.push((expires, is_purged));
                    }
                }
            }
        }
        let mut letters = self.learn_of_letters(&mut before, &on_their_way);
        let stored = self.stored();
        for entry in &stored {
            let (id, meta) = (entry.id, &entry.meta);
            assert!(!self.gone.contains(&id), "{id} is back");
            let body = self.body_in(self.queue, entry);
            assert!(!self.cellar.holds(body), "{body} is in both queues");
            if let Some(letter) = letters.remove(&body)
                && letter.id != id
            {
                // It has come back, although the answer was lost.
                let ways = &on_their_way.redriven[&body];
                let is_way = |way: &(Option<Timestamp>, bool)| way.0 == meta.expires_at;
                assert!(ways.iter().any(is_way), "{meta:?}");
                assert_eq!(meta.attempts, 0);
                letter.check(meta.history.as_deref());
                let known = letter.come_back(meta.expires_at);
                self.messages.insert(id, known);
                continue;
            }
            let known = before.remove(&id).unwrap_or_else(|| {
                let sent = doubtful.remove(&body).expect("a producer has sent it");
                self.ids.insert(body, id);
                Known::of(sent)
            });
            assert_eq!(
                (body, &meta.schedule.fairness_key),
                (known.body, &known.key)
            );
            assert_eq!(meta.expires_at, known.expires);
            let attempts = known.attempts_confirmed..=known.attempts;
            assert!(attempts.contains(&meta.attempts), "{attempts:?}: {meta:?}");
            let due = meta.deliver_after.unwrap_or(Timestamp::from_millis(0));
            if meta.attempts == known.attempts {
                let is_known = due == known.due || known.dues_before.contains(&due);
                assert!(is_known, "{id}: {due:?} of {known:?}");
            }
            self.messages.insert(
                id,
                Known {
                    due,
                    dues_before: Vec::new(),
                    attempts: meta.attempts,
                    attempts_confirmed: meta.attempts,
                    lost: 0,
                    life: Life::Waiting,
                    ..known
                },
            );
        }
        letters.retain(|body, _| {
            let ways = on_their_way.redriven.get(body);
            !ways.is_some_and(|ways| ways.iter().any(|way| way.1))
        });
        assert!(letters.is_empty(), "lost: {letters:?}");
        for (id, known) in before {
            let may_be_gone = known.life == Life::Leaving || known.is_expired(now);
            assert!(may_be_gone, "{id} is lost: {known:?}");
            self.gone.insert(id);
        }
        self.learn_what_is_remembered();
    }

    pub(super) fn body_in(&self, queue: QueueId, entry: &StoredMessage) -> u64 {
        let shard = &self.shell.shards[&queue];
        let loaded = shard.load(&[entry.locator()]).unwrap().remove(0);
        let fila_store::Loaded::Found(payload) = loaded else {
            panic!("{loaded:?}");
        };
        u64::from_be_bytes(payload.body()[..8].try_into().unwrap())
    }

    fn learn_what_is_remembered(&mut self) {
        let now = self.shell.now;
        let shard = &self.shell.shards[&self.queue];
        let stored = shard.remembered(None, usize::MAX).unwrap().items;
        let bodies: BTreeMap<MessageId, u64> =
            self.ids.iter().map(|(body, id)| (*id, *body)).collect();
        // A message can be gone before anybody was told its id, but for crashes that does not happen here.
        let body_of = |id: u64| {
            let body = bodies.get(&MessageId::from_number(id)).copied();
            body.expect("its message was stored with it")
        };
        let (mut remembered, mut batches) = (BTreeMap::new(), BTreeMap::new());
        for known in stored.into_iter().filter(|known| known.expires_at > now) {
            let (first, until) = (known.id.get(), known.expires_at);
            match Row::read(&known.name) {
                Row::Batch(places) => {
                    let places = (first..).zip(places);
                    batches.extend(places.map(|(id, place)| (place, (body_of(id), until))));
                }
                Row::Id { scope, key, id } => {
                    remembered.insert((scope, id), (body_of(first), until, key));
                }
            }
        }
        for (id, known) in &self.remembered {
            let is_confirmed = self.ids.contains_key(&known.0);
            if is_confirmed && known.1 > now {
                assert_eq!(remembered.get(id), Some(known), "{id:?}");
            }
        }
        for (place, (body, until)) in &self.batches {
            let is_confirmed = self.ids.contains_key(body);
            if is_confirmed && *until > now {
                assert_eq!(batches.get(place), Some(&(*body, *until)), "{place:?}");
            }
        }
        self.remembered = remembered;
        self.batches = batches;
    }
}
