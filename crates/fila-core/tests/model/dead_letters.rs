//! Where messages are that are not tried any more, and how they come back.
//!
//! A message is in its queue or among the dead letters, and never in both: after a crash, too, in the middle of its
//! move. Here it is known by its body, since its id is another one wherever it goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fila_core::{
    Beginnings, Command, ConsumerId, ConsumerKind, Delivery, Demand, Departure, LeaseId,
    MovedMessage, RedriveError, RedriveStamp, SettleError, Settlement, Verdict,
};
use fila_store::{
    Cursor, DeathReason, FairnessKey, History, MessageId, QueueId, Shard, StoredMessage, Timestamp,
};

use super::{Known, Life, Pending, Simulation};
use crate::support::nack;

/// Dead letters, and whatever happens to them.
#[derive(Debug)]
pub(super) struct Cellar {
    pub(super) queue: QueueId,
    pub(super) consumer: Option<ConsumerId>,
    /// Those whose move is not stored for certain.
    dying: Vec<Letter>,
    dead: BTreeMap<u64, Letter>,
    leased: BTreeMap<LeaseId, (u64, Timestamp)>,
    stamp: RedriveStamp,
    /// The messages that an earlier scan found, and its stamp.
    found: (Vec<StoredMessage>, RedriveStamp),
    /// Failures that the broker has told of.
    pub(super) told: BTreeSet<(MessageId, u32)>,
}

/// A message that is not tried any more.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    /// Its id before the move.
    pub(super) id: MessageId,
    known: Known,
    reason: DeathReason,
    died_at: Timestamp,
    /// The round of its move.
    round: u64,
    /// Whether it holds up a strict line until its move is stored.
    blocks: bool,
}

/// Dead letters that were on their way when everything ended.
#[derive(Debug, Default)]
pub(super) struct OnTheirWay {
    pub(super) acknowledged: BTreeSet<u64>,
    /// With the end of their lives if they come, and whether a purge came behind them.
    pub(super) redriven: BTreeMap<u64, Vec<(Option<Timestamp>, bool)>>,
}

impl Letter {
    /// Returns the id that it was accepted under, and all its attempts.
    fn whole_life(&self) -> (MessageId, u32) {
        let (first, before) = self.known.past.unwrap_or((self.id, 0));
        (first, before + self.known.attempts)
    }

    pub(super) fn come_back(self, expires: Option<Timestamp>) -> Known {
        Known {
            past: Some(self.whole_life()),
            due: Timestamp::from_millis(0),
            dues_before: Vec::new(),
            expires,
            attempts: 0,
            attempts_confirmed: 0,
            lost: 0,
            life: Life::Waiting,
            ..self.known
        }
    }

    pub(super) fn check(&self, history: Option<&History>) {
        let history = history.expect("a dead letter has a history");
        let death = history.death.as_ref().expect("and says how it died");
        assert_eq!(death.reason, self.reason);
        assert_eq!(death.queue.as_str(), "simulated");
        assert_eq!((death.message, death.attempts), self.whole_life());
        assert_eq!(death.died_at, self.died_at);
        assert!(history.first_failed_at <= history.last_failed_at);
    }
}

impl Cellar {
    pub(super) fn new(queue: QueueId) -> Self {
        Self {
            queue,
            consumer: None,
            dying: Vec::new(),
            dead: BTreeMap::new(),
            leased: BTreeMap::new(),
            stamp: RedriveStamp::default(),
            found: (Vec::new(), RedriveStamp::default()),
            told: BTreeSet::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dying.is_empty() && self.dead.is_empty()
    }

    pub(super) fn holds(&self, body: u64) -> bool {
        self.dead.contains_key(&body)
    }

    /// Tells whether a message of this key has died, and that is not stored.
    pub(super) fn blocks(&self, key: &FairnessKey) -> bool {
        let mut dying = self.dying.iter();
        dying.any(|letter| letter.blocks && letter.known.key == *key)
    }

    /// A purge has emptied the queue: nothing is in anybody's way.
    pub(super) fn unblock(&mut self) {
        self.dying
            .iter_mut()
            .for_each(|letter| letter.blocks = false);
    }
}

impl Simulation {
    pub(super) fn die(&mut self, id: MessageId, reason: DeathReason) {
        let known = self.messages.remove(&id).unwrap();
        self.cellar.dying.push(Letter {
            id,
            known,
            reason,
            died_at: self.shell.now,
            round: self.shell.sealed + 1,
            blocks: true,
        });
    }

    /// Takes note of moves that are stored.
    pub(super) fn lay_to_rest(&mut self) {
        let stored = self.shell.stored;
        let (dead, dying) = std::mem::take(&mut self.cellar.dying)
            .into_iter()
            .partition(|letter| letter.round <= stored);
        self.cellar.dying = dying;
        let dead: Vec<Letter> = dead;
        for letter in dead {
            self.gone.insert(letter.id);
            let before = self.cellar.dead.insert(letter.known.body, letter);
            assert!(before.is_none(), "it died twice: {before:?}");
        }
    }

    pub(super) fn known_mut(&mut self, id: MessageId) -> Option<&mut Known> {
        let mut dying = self.cellar.dying.iter_mut();
        let dying = dying.find(|letter| letter.id == id);
        dying
            .map(|letter| &mut letter.known)
            .or_else(|| self.messages.get_mut(&id))
    }

    /// Something happens among the dead letters.
    pub(super) fn haunt(&mut self) {
        match self.chance.below(8) {
            0 => match self.cellar.consumer {
                None => {
                    let ticket = self.shell.ticket();
                    let consumer = ConsumerId::new(ticket);
                    let demand = Demand {
                        credit: 1 + self.chance.below(3) as u32,
                        in_flight_max: u32::MAX,
                        kind: ConsumerKind::Stream(Beginnings::Reported),
                    };
                    self.shell.subscribe_as(self.cellar.queue, consumer, demand);
                    self.cellar.consumer = Some(consumer);
                }
                Some(consumer) => self.shell.tell(Command::Credit { consumer, more: 2 }),
            },
            1 => self.leave_cellar(),
            2..4 => self.settle_letters(),
            _ => self.redrive_some(),
        }
    }

    fn leave_cellar(&mut self) {
        if let Some(consumer) = self.cellar.consumer.take() {
            self.cellar.leased.clear();
            self.shell.unsubscribe(consumer, Departure::Closed);
        }
    }

    pub(super) fn check_letter(&mut self, delivery: &Delivery) {
        let now = self.shell.now;
        let body = u64::from_be_bytes(delivery.payload.body()[..8].try_into().unwrap());
        let letter = self.cellar.dead.get(&body);
        let letter = letter.unwrap_or_else(|| panic!("{body} is no dead letter"));
        letter.check(delivery.history.as_deref());
        assert_eq!(delivery.message, letter.whole_life().0, "it keeps its id");
        self.cellar.leased.retain(|_, (_, until)| *until > now);
        let mut leased = self.cellar.leased.values();
        assert!(leased.all(|(other, _)| *other != body), "it is leased");
        let until = now.saturating_add(delivery.lease_time);
        self.cellar.leased.insert(delivery.lease, (body, until));
    }

    fn settle_letters(&mut self) {
        let (mut results, mut deleted) = (Vec::new(), Vec::new());
        for (lease, (body, _)) in std::mem::take(&mut self.cellar.leased) {
            let (verdict, gone) = match self.chance.below(4) {
                0 => (Verdict::Ack, Some(body)),
                1 => (nack(Duration::ZERO), None),
                _ => (Verdict::Release, None),
            };
            deleted.push(gone);
            results.push(Settlement {
                lease,
                message: None,
                verdict,
            });
        }
        let ticket = self.shell.ticket();
        self.pending.insert(ticket, Pending::SettleLetters(deleted));
        self.shell.tell(Command::Settle {
            queue: self.cellar.queue,
            results,
            by: None,
            ticket,
        });
    }

    pub(super) fn check_settled_letters(
        &mut self,
        deleted: &[Option<u64>],
        results: &[Result<(), SettleError>],
    ) {
        for (deleted, result) in deleted.iter().zip(results) {
            if let (Some(body), Ok(())) = (deleted, result) {
                let known = self.cellar.dead.remove(body);
                assert!(known.is_some(), "{body} was deleted twice");
            }
        }
    }

    fn look_into_cellar(&self) -> Vec<StoredMessage> {
        let shard = &self.shell.shards[&self.cellar.queue];
        let page = shard.scan(&Cursor::start(), usize::MAX).unwrap();
        assert!(page.damaged.is_empty());
        page.items
    }

    fn redrive_some(&mut self) {
        // Now and then by what was found long ago.
        if !self.chance.one_in(4) {
            self.cellar.found = (self.look_into_cellar(), self.cellar.stamp);
        }
        let (mut entries, stamp) = self.cellar.found.clone();
        let keep = 1 + self.chance.below(4);
        entries.retain(|_| self.chance.below(4) < keep);
        self.redrive(entries, stamp);
    }

    /// Lets all dead letters come back.
    pub(super) fn empty_cellar(&mut self) {
        self.leave_cellar();
        let entries = self.look_into_cellar();
        self.redrive(entries, self.cellar.stamp);
    }

    fn redrive(&mut self, entries: Vec<StoredMessage>, stamp: RedriveStamp) {
        let now = self.shell.now;
        let bodies = entries.iter().map(|entry| {
            // The body of a deleted message is not known any more.
            let shard = &self.shell.shards[&self.cellar.queue];
            match shard.load(&[entry.locator()]).unwrap().remove(0) {
                fila_store::Loaded::Found(payload) => {
                    u64::from_be_bytes(payload.body()[..8].try_into().unwrap())
                }
                _ => 0,
            }
        });
        let bodies = bodies.collect();
        let ttl = self.definition.message_ttl;
        let expires = ttl.map(|ttl| now.saturating_add(ttl));
        let ticket = self.shell.ticket();
        let pending = Pending::Redrive {
            bodies,
            expires,
            is_purged: false,
        };
        self.pending.insert(ticket, pending);
        self.shell.tell(Command::Redrive {
            queue: self.cellar.queue,
            to: self.queue,
            stamp,
            messages: entries.into_iter().map(MovedMessage::from).collect(),
            ticket,
        });
    }

    pub(super) fn check_redriven(
        &mut self,
        bodies: &[u64],
        (expires, is_purged): (Option<Timestamp>, bool),
        results: Vec<Result<MessageId, RedriveError>>,
        stamp: RedriveStamp,
    ) {
        self.cellar.stamp = stamp;
        assert_eq!(bodies.len(), results.len());
        for (body, result) in bodies.iter().zip(results) {
            match result {
                Ok(id) => {
                    let letter = self.cellar.dead.remove(body);
                    let letter = letter.expect("it was among the dead letters");
                    self.take_known(id, letter.come_back(expires), is_purged);
                }
                Err(RedriveError::Refused(refused)) => panic!("{refused}"),
                Err(_) => {}
            }
        }
    }

    /// Checks that in a quiet moment exactly those are among the dead letters that should be.
    pub(super) fn check_cellar(&mut self) {
        assert!(self.cellar.dying.is_empty(), "{:?}", self.cellar.dying);
        let mut bodies = BTreeSet::new();
        for entry in self.look_into_cellar() {
            let body = self.body_in(self.cellar.queue, &entry);
            let letter = self.cellar.dead.get(&body);
            let letter = letter.unwrap_or_else(|| panic!("{body} should not be there"));
            letter.check(entry.meta.history.as_deref());
            assert_eq!(entry.meta.schedule.fairness_key, letter.known.key);
            assert!(bodies.insert(body), "{body} is there twice");
        }
        assert!(bodies.iter().eq(self.cellar.dead.keys()), "one is missing");
        let stats = self.shell.stats(self.cellar.queue);
        assert_eq!(stats.depth(), self.cellar.dead.len() as u64, "{stats:?}");
        for (id, known) in &self.messages {
            let is_told = self.cellar.told.contains(&(*id, known.attempts));
            let is_failing = matches!(known.life, Life::Failing { .. });
            assert!(is_told || !is_failing, "no answer: {known:?}");
        }
    }

    /// Checks after a crash that every dead letter is among the dead letters or may be elsewhere. Those whose move had
    /// not happened are put back to `before`; returned are those that may have come back.
    pub(super) fn learn_of_letters(
        &mut self,
        before: &mut BTreeMap<MessageId, Known>,
        on_their_way: &OnTheirWay,
    ) -> BTreeMap<u64, Letter> {
        self.cellar.consumer = None;
        self.cellar.leased.clear();
        self.cellar.stamp = RedriveStamp::default();
        self.cellar.found.0.clear();
        let mut letters = std::mem::take(&mut self.cellar.dead);
        let mut dying: BTreeMap<u64, Letter> = std::mem::take(&mut self.cellar.dying)
            .into_iter()
            .map(|letter| (letter.known.body, letter))
            .collect();
        for entry in self.look_into_cellar() {
            let body = self.body_in(self.cellar.queue, &entry);
            // One that was on its way back may have died anew, and both may be stored or not; the last word counts.
            let letter = match (dying.remove(&body), letters.remove(&body)) {
                (Some(letter), _) | (None, Some(letter)) => letter,
                (None, None) => panic!("{body} should not be there"),
            };
            letter.check(entry.meta.history.as_deref());
            self.gone.insert(letter.id);
            let before = self.cellar.dead.insert(body, letter);
            assert!(before.is_none(), "{body} is there twice");
        }
        for (_, letter) in dying {
            let life = if letter.blocks {
                Life::Waiting
            } else {
                Life::Leaving // purged, perhaps
            };
            let known = Known {
                life,
                ..letter.known
            };
            before.insert(letter.id, known);
        }
        letters.retain(|body, _| !on_their_way.acknowledged.contains(body));
        letters
    }
}
