//! What producers and consumers may rely on, in the simplest words, and random lives to try it on.
//!
//! Messages are told apart by a number in their bodies, which the model gives; their ids it learns from the answers.

mod checks;
mod dead_letters;
mod failures;
mod fate;
mod groups;
mod peeking;
mod producers;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    BatchId, Charge, ConsumerId, ConsumerKind, DeduplicationScope, Delivering, Failure, LeaseId,
    Ordering, QueueSettings, Settings,
};
use fila_store::{DeduplicationId, FairnessKey, MessageId, QueueId, Timestamp};

use self::dead_letters::Cellar;
use self::producers::{Copies, Place, Producer};
use crate::support::{Chance, Shell};

/// A stored message in the model.
#[derive(Clone, Debug)]
struct Known {
    body: u64,
    key: FairnessKey,
    due: Timestamp,
    /// What else the store may say of that, for the same number of attempts.
    dues_before: Vec<Timestamp>,
    expires: Option<Timestamp>,
    /// Deliveries that ended without an acknowledgement.
    attempts: u32,
    /// Of these, how many are confirmed to be durable.
    attempts_confirmed: u32,
    /// How many of its consumers were lost, since a crash.
    lost: u32,
    /// If it was a dead letter: its first id, and the attempts before it came back.
    past: Option<(MessageId, u32)>,
    life: Life,
}

impl Known {
    /// Returns what is known of a message as it was sent.
    fn of(sent: Sent) -> Self {
        Self {
            body: sent.body,
            key: sent.key,
            due: sent.due,
            dues_before: Vec::new(),
            expires: sent.expires,
            attempts: 0,
            attempts_confirmed: 0,
            lost: 0,
            past: None,
            life: Life::Waiting,
        }
    }

    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Waiting,
    Leased(Held),
    /// Has failed, and waits to be judged.
    Failing {
        until: Timestamp,
        /// How long its consumer wants it to wait.
        wish: Option<Duration>,
    },
    /// Acknowledged, and not confirmed yet.
    Leaving,
}

/// A delivery without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    lease: LeaseId,
    /// The number of the delivery.
    number: u64,
    /// The stream that it is with. None if that is gone.
    consumer: Option<ConsumerId>,
    until: Timestamp,
    /// A handler has begun it.
    is_begun: bool,
    /// Its consumer was lost, and no client has extended it since.
    is_lost: bool,
}

#[derive(Debug)]
struct Subscriber {
    /// None for any amount.
    credit: Option<u32>,
    in_flight_max: usize,
    kind: ConsumerKind,
    /// It has extended leases of others.
    took_over: bool,
    is_draining: bool,
}

/// A command that is not answered.
#[derive(Debug)]
enum Pending {
    Enqueue(Vec<Sent>, Option<(BatchId, Copies)>),
    Settle(Vec<Expected>),
    /// The messages that were there.
    Purge(BTreeMap<MessageId, Known>),
    /// Dead letters that are to come back.
    Redrive {
        bodies: Vec<u64>,
        /// The end of their lives, if they do.
        expires: Option<Timestamp>,
        /// A purge came after it.
        is_purged: bool,
    },
    /// Results of the deliveries of dead letters: those that are deleted.
    SettleLetters(Vec<Option<u64>>),
}

#[derive(Clone, Debug)]
struct Sent {
    body: u64,
    key: FairnessKey,
    due: Timestamp,
    expires: Option<Timestamp>,
    fate: Fate,
    /// A purge came after it.
    is_purged: bool,
}

/// The planned fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stored,
    /// Of the message with this body.
    Duplicate(u64),
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Refused,
    Taken,
    Deleted(MessageId),
    Attempted(MessageId, u32),
}

/// A broker, the model of it, and a fate.
pub(crate) struct Simulation {
    shell: Shell,
    chance: Chance,
    queue: QueueId,
    definition: QueueSettings,
    messages: BTreeMap<MessageId, Known>,
    /// Messages that are gone for certain.
    gone: BTreeSet<MessageId>,
    consumers: BTreeMap<ConsumerId, Subscriber>,
    pending: BTreeMap<u64, Pending>,
    /// Deduplication ids, by the key that they count for or the whole queue: the bodies they stand for, until when, and
    /// the key of the message.
    remembered: BTreeMap<(Option<FairnessKey>, DeduplicationId), (u64, Timestamp, FairnessKey)>,
    producers: Vec<Producer>,
    /// Messages of batches, the bodies they stand for, and until when.
    batches: BTreeMap<Place, (u64, Timestamp)>,
    loses_answers: bool,
    /// The ids of bodies, as far as they were told.
    ids: BTreeMap<u64, MessageId>,
    ended: Vec<LeaseId>,
    bodies: u64,
    deliveries: u64,
    /// When a read has failed last.
    read_failed: Option<Timestamp>,
    /// Failures without a judgement.
    to_judge: Vec<Failure>,
    cellar: Cellar,
}

impl Simulation {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let mut settings = Settings::default();
        // So little that most of the backlog lies in the store, in most runs.
        settings.memory_budget = [2 << 10, 24 << 10, 1 << 20][chance.below(3) as usize];
        let mut definition = QueueSettings::default();
        definition.visibility_timeout = Duration::from_millis(50 + chance.below(500));
        if chance.one_in(3) {
            // Longer than a lost consumer may be away.
            definition.visibility_timeout = Duration::from_millis(5_000 + chance.below(5_000));
        }
        definition.deduplication_window = Duration::from_millis(chance.below(2000));
        if chance.one_in(2) {
            definition.deduplication_scope = DeduplicationScope::Queue;
        }
        let charges = [Charge::Message, Charge::Bytes, Charge::Time];
        definition.charge = charges[chance.below(3) as usize];
        if chance.one_in(4) {
            definition.message_ttl = Some(Duration::from_millis(1 + chance.below(3000)));
        }
        if chance.one_in(2) {
            definition.ordering = Ordering::Key;
        } else if chance.one_in(3) {
            definition.key_concurrency = NonZeroU32::new(1 + chance.below(3) as u32);
        }
        settings.judging_time = Duration::from_millis(20 + chance.below(400));
        definition.retry.attempts_max = NonZeroU32::new(chance.below(5) as u32);
        definition.retry.backoff = Duration::from_millis(chance.below(3) * 30);
        definition.retry.backoff_max = Duration::from_millis(200);
        definition.failure_hook = chance.one_in(3);
        definition.key_separator = groups::some_separator(&mut chance);
        let mut shell = Shell::new(settings);
        let (queue, letters) = shell.create_with_dead_letters("simulated", definition.clone());
        Self {
            shell,
            chance,
            queue,
            definition,
            messages: BTreeMap::new(),
            gone: BTreeSet::new(),
            consumers: BTreeMap::new(),
            pending: BTreeMap::new(),
            remembered: BTreeMap::new(),
            producers: (0..2).map(Producer::new).collect(),
            batches: BTreeMap::new(),
            loses_answers: true,
            ids: BTreeMap::new(),
            ended: Vec::new(),
            bodies: 0,
            deliveries: 0,
            read_failed: None,
            to_judge: Vec::new(),
            cellar: Cellar::new(letters),
        }
    }

    pub(crate) fn play(mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
            self.look();
            if self.chance.one_in(16) {
                self.rest();
            }
        }
        self.finish();
    }

    /// Lets everything go on undisturbed, after which nothing may be left.
    fn finish(&mut self) {
        self.definition.delivery = Delivering::Running;
        self.definition.keys.clear();
        // So that what comes back does not go again.
        self.definition.retry.attempts_max = None;
        self.redefine();
        self.subscribe_with(None, u32::MAX);
        self.loses_answers = false;
        self.send_open_batches_again();
        for _ in 0..10_000 {
            self.rest();
            self.acknowledge_all();
            self.empty_cellar();
            self.rest();
            let now = self.shell.now;
            let is_over = self.messages.values().all(|known| known.is_expired(now));
            if is_over && self.cellar.is_empty() && self.is_all_retried() {
                break;
            }
            self.pass(Duration::from_millis(100));
        }
        assert!(self.cellar.is_empty(), "left: {:?}", self.cellar);
        let now = self.shell.now;
        self.messages.retain(|_, known| !known.is_expired(now));
        assert!(self.messages.is_empty(), "left: {:?}", self.messages);
        let stats = self.shell.stats(self.queue);
        assert_eq!((stats.depth(), stats.bytes), (0, 0), "{stats:?}");
        assert_eq!((stats.active_keys, stats.stored_only), (0, 0), "{stats:?}");
        assert_eq!(self.shell.broker.memory_used(), 0);
        assert_eq!(self.stored(), [], "the store is empty");
        let stats = self.shell.stats(self.cellar.queue);
        assert_eq!((stats.depth(), stats.bytes), (0, 0), "{stats:?}");
        assert_eq!((stats.active_keys, stats.stored_only), (0, 0), "{stats:?}");
    }

    fn holds(&self, consumer: ConsumerId) -> usize {
        self.messages
            .values()
            .filter(
                |known| matches!(known.life, Life::Leased(held) if held.consumer == Some(consumer)),
            )
            .count()
    }

    /// Forgets a consumer that was to finish what it had, once it has.
    fn dismiss_if_done(&mut self, consumer: Option<ConsumerId>) {
        let Some(consumer) = consumer else {
            return;
        };
        let is_draining = self
            .consumers
            .get(&consumer)
            .is_some_and(|known| known.is_draining);
        if is_draining && self.holds(consumer) == 0 {
            self.consumers.remove(&consumer);
        }
    }
}
