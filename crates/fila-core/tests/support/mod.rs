//! A broker on a store in memory, driven by hand: every step of the shell is a call, and time is a number.

#![allow(dead_code, reason = "every test uses a part of it")]

mod chance;

mod buckets;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use buckets::Buckets;
use fila_core::{
    BatchId, Beginnings, Broker, Bucket, Command, Committed, ConsumerId, ConsumerKind, Delivery,
    Demand, Departure, Dismissal, EnqueueResults, Enqueued, Explanation, Failure, FailureToken,
    Judgement, KeyCursor, KeyStats, LeaseId, Load, LoadRequest, LoadedMessages, MessageStatus,
    NewMessage, QueueSettings, QueueStats, Recovery, RedriveError, RedriveResults, RedriveStamp,
    Refused, Round, Settings, SettleError, SettleResults, Settlement, Throttle, Tickets,
    TokenSource, Verdict,
};
use fila_store::{
    Batch, Cursor, Damaged, Engine, FairnessKey, Fault, MemoryDisk, MemoryEngine, MessageId,
    Payload, QueueId, QueueName, Shard, StoredMessage, ThrottleKey, Timestamp,
};

#[allow(unused_imports, reason = "every test uses a part of it")]
pub(crate) use self::chance::Chance;

pub(crate) const START: u64 = 1_700_000_000_000;
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);

type MemoryShard = <MemoryEngine as Engine>::Shard;

/// Tickets are numbers.
#[derive(Debug)]
pub(crate) struct Numbers;

impl Tickets for Numbers {
    type Ticket<A> = u64;
}

/// An answer of the broker to any command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Enqueued(EnqueueResults),
    Settled(SettleResults),
    Purged(u64),
    Redriven {
        results: Vec<Result<MessageId, RedriveError>>,
        stamp: RedriveStamp,
    },
    Refused(Refused),
}

impl Answer {
    fn of(answer: fila_core::Answer<Numbers>) -> (u64, Self) {
        use fila_core::Answer;
        let (ticket, answer) = match answer {
            Answer::Enqueued(ticket, results) => (ticket, results.map(Self::Enqueued)),
            Answer::Settled(ticket, results) => (ticket, results.map(Self::Settled)),
            Answer::Purged(ticket, purged) => (ticket, purged.map(Self::Purged)),
            Answer::Redriven(ticket, redriven) => {
                let redriven = redriven
                    .map(|RedriveResults { results, stamp }| Self::Redriven { results, stamp });
                (ticket, redriven)
            }
        };
        (ticket, answer.unwrap_or_else(Self::Refused))
    }
}

/// What drives a broker, one step at a time.
pub(crate) struct Shell {
    pub(crate) disk: MemoryDisk,
    pub(crate) engine: MemoryEngine,
    pub(crate) shards: BTreeMap<QueueId, MemoryShard>,
    pub(crate) broker: Broker<Numbers>,
    pub(crate) now: Timestamp,
    pub(crate) answers: BTreeMap<u64, Answer>,
    pub(crate) deliveries: VecDeque<(ConsumerId, Delivery)>,
    pub(crate) dismissed: Vec<(ConsumerId, Dismissal)>,
    /// Consumers that do not read, and the bytes that are on their way to them. All others read at once.
    pub(crate) unread: BTreeMap<ConsumerId, usize>,
    /// The messages that could not be read, in tests that expect some.
    pub(crate) damaged: Option<Vec<Damaged>>,
    /// The round under way, the oldest if there are several.
    pub(crate) round: Option<Round>,
    /// The others under way, in their order.
    pub(crate) further: VecDeque<Round>,
    /// How many rounds were taken, and how many of them are stored.
    pub(crate) sealed: u64,
    pub(crate) stored: u64,
    /// Reads that were asked for.
    pub(crate) loads: VecDeque<Load>,
    /// Failures that are to be judged.
    pub(crate) failures: VecDeque<Failure>,
    settings: Settings,
    buckets: Buckets,
    /// Rate and burst of all keys that are throttled.
    throttles: BTreeMap<String, (f64, f64)>,
    tickets: u64,
    consumers: u64,
}

impl Shell {
    pub(crate) fn new(settings: Settings) -> Self {
        let disk = MemoryDisk::default();
        let engine = MemoryEngine::open(&disk).unwrap();
        let buckets = Buckets::default();
        Self {
            disk,
            engine,
            shards: BTreeMap::new(),
            broker: Broker::with_tokens(settings.clone(), buckets.source(0)),
            now: Timestamp::from_millis(START),
            answers: BTreeMap::new(),
            deliveries: VecDeque::new(),
            dismissed: Vec::new(),
            unread: BTreeMap::new(),
            damaged: None,
            round: None,
            further: VecDeque::new(),
            sealed: 0,
            stored: 0,
            loads: VecDeque::new(),
            failures: VecDeque::new(),
            settings,
            buckets,
            throttles: BTreeMap::new(),
            tickets: 0,
            consumers: 0,
        }
    }

    /// Returns another shell whose broker takes tokens of the same buckets, as on another thread.
    pub(crate) fn beside(other: &Self) -> Self {
        let mut shell = Self::new(other.settings.clone());
        shell.buckets = other.buckets.clone();
        shell.throttles = other.throttles.clone();
        shell.now = other.now;
        shell.broker = Broker::with_tokens(shell.settings.clone(), shell.buckets.source(1));
        shell
    }

    /// Returns a shell whose broker takes these tokens.
    pub(crate) fn with_tokens(tokens: Box<dyn TokenSource>) -> Self {
        let mut shell = Self::new(Settings::default());
        shell.broker = Broker::with_tokens(shell.settings.clone(), tokens);
        shell
    }

    /// Returns a shell with one queue.
    pub(crate) fn with_queue(definition: QueueSettings) -> (Self, QueueId) {
        let mut shell = Self::new(Settings::default());
        let queue = shell.create("queue", definition);
        (shell, queue)
    }

    /// Returns a shell with one queue and with settings that are not the default ones.
    pub(crate) fn with_settings(change: impl FnOnce(&mut Settings)) -> (Self, QueueId) {
        let mut settings = Settings::default();
        change(&mut settings);
        let mut shell = Self::new(settings);
        let queue = shell.create("queue", QueueSettings::default());
        (shell, queue)
    }

    pub(crate) fn create(&mut self, name: &str, definition: QueueSettings) -> QueueId {
        let name = QueueName::parse(name).unwrap();
        let queue = self.engine.create_queue(&name, definition.encode());
        let id = queue.unwrap().id;
        self.open(id, &name, definition);
        id
    }

    /// Creates a queue and the one of its dead letters, which is found by its name at a restart.
    pub(crate) fn create_with_dead_letters(
        &mut self,
        name: &str,
        definition: QueueSettings,
    ) -> (QueueId, QueueId) {
        let dead_letters = self.create(&format!("{name}.dlq"), QueueSettings::default());
        (self.create(name, definition), dead_letters)
    }

    pub(crate) fn delete(&mut self, queue: QueueId) {
        self.engine.delete_queue(queue).unwrap();
        self.broker.handle(self.now, Command::Close { queue });
        self.take_effects();
    }

    fn open(&mut self, id: QueueId, name: &QueueName, definition: QueueSettings) {
        let shard = self.engine.claim(id).unwrap();
        let mut recovery = Recovery::new(id, shard.epoch(), shard.generation(), definition);
        let dead_letters = QueueName::parse(&format!("{name}.dlq")).unwrap();
        if let Some(queue) = self.engine.queue(&dead_letters).unwrap() {
            recovery.dead_letters(queue.id, name.clone());
        }
        let mut after = None;
        loop {
            let page = shard.remembered(after.as_ref(), 7).unwrap();
            page.items
                .into_iter()
                .for_each(|known| recovery.remembered(&known));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut cursor = Some(Cursor::start());
        while let Some(after) = cursor {
            let page = shard.scan(&after, 7).unwrap();
            page.items.iter().for_each(|entry| recovery.message(entry));
            cursor = page.next;
        }
        self.shards.insert(id, shard);
        self.broker.open(self.now, recovery);
    }

    /// Stops in order after this much work, and returns how many leases each of the last rounds has kept. A
    /// [restart](Self::restart) follows.
    pub(crate) fn stop(&mut self) -> Vec<usize> {
        self.run();
        let mut rounds = Vec::new();
        loop {
            let kept = self.broker.keep_leases(self.now);
            if kept == 0 {
                return rounds;
            }
            rounds.push(kept);
            self.seal();
            self.commit();
        }
    }

    /// Starts again from the store, as after a crash. Rounds in flight are lost.
    pub(crate) fn restart(&mut self) {
        self.stored = self.sealed;
        self.shards.clear();
        self.round = None;
        self.further.clear();
        self.loads.clear();
        self.failures.clear();
        self.answers.clear();
        self.deliveries.clear();
        self.dismissed.clear();
        self.unread.clear();
        self.engine = MemoryEngine::open(&self.disk).unwrap();
        self.buckets = Buckets::default();
        for (key, &(rate, burst)) in &self.throttles {
            let throttle = Throttle::new(rate, burst).unwrap();
            let bucket = Bucket::empty(self.now, throttle);
            self.buckets.insert(self.now, &throttle_key(key), bucket);
        }
        self.broker = Broker::with_tokens(self.settings.clone(), self.buckets.source(0));
        for queue in self.engine.queues().unwrap() {
            let definition = QueueSettings::decode(&queue.definition).unwrap();
            self.open(queue.id, &queue.name, definition);
        }
    }

    /// Sets the rate and the burst of a throttle key, for all who wait.
    pub(crate) fn throttle(&mut self, key: &str, rate: f64, burst: f64) {
        let throttle = Throttle::new(rate, burst).unwrap();
        self.throttles.insert(key.to_owned(), (rate, burst));
        self.buckets.set(self.now, &throttle_key(key), throttle);
        self.rethrottle(key);
    }

    pub(crate) fn unthrottle(&mut self, key: &str) {
        self.throttles.remove(key);
        self.buckets.remove(&throttle_key(key));
        self.rethrottle(key);
    }

    pub(crate) fn rethrottle(&mut self, key: &str) {
        let keys = vec![throttle_key(key)];
        self.tell(Command::Rethrottle { keys });
    }

    /// Starts again with other settings.
    pub(crate) fn reopen_with(&mut self, settings: Settings) {
        self.settings = settings;
        self.restart();
    }

    pub(crate) fn judging_time(&self) -> Duration {
        self.settings.judging_time
    }

    pub(crate) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub(crate) fn tell(&mut self, command: Command<Numbers>) {
        self.broker.handle(self.now, command);
        self.take_effects();
    }

    pub(crate) fn poll(&mut self) {
        self.broker.poll(self.now);
        self.take_effects();
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        self.now = self.now.saturating_add(time);
    }

    /// Takes the next round, if none is under way.
    pub(crate) fn seal(&mut self) {
        if self.round.is_none() {
            self.round = self.broker.seal();
            self.sealed += u64::from(self.round.is_some());
            self.take_effects();
        }
    }

    /// Takes the next round, also if others are under way.
    pub(crate) fn seal_further(&mut self) {
        if self.round.is_none() {
            return self.seal();
        }
        let further = self.broker.seal();
        self.sealed += u64::from(further.is_some());
        self.further.extend(further);
        self.take_effects();
    }

    /// Stores the round under way, the oldest if there are several.
    pub(crate) fn commit(&mut self) {
        let Some(round) = self.round.take() else {
            return;
        };
        let fenced = self.store(&round);
        self.stored += 1;
        self.round = self.further.pop_front();
        let committed = Committed::Stored { round, fenced };
        self.broker.committed(self.now, committed);
        self.take_effects();
    }

    /// Stores the batches of a round that it can, and returns the queues of the others.
    pub(crate) fn store(&mut self, round: &Round) -> Vec<QueueId> {
        let mut fenced = Vec::new();
        loop {
            let batches: Vec<(&MemoryShard, &Batch)> = round
                .batches
                .iter()
                .filter(|(queue, _)| !fenced.contains(queue))
                .map(|(queue, batch)| (&self.shards[queue], batch))
                .collect();
            match self.engine.commit(&batches) {
                Ok(()) => return fenced,
                Err(fila_store::CommitError::Fenced { queue }) => fenced.push(queue),
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Makes the read that was asked for first.
    pub(crate) fn load(&mut self) {
        let Some(load) = self.loads.pop_front() else {
            return;
        };
        let shard = &self.shards[&load.queue];
        let found = match load.request {
            LoadRequest::Backlog { key, after, limit } => shard
                .backlog(&key, after, limit)
                .map_or_else(LoadedMessages::Failed, LoadedMessages::Backlog),
            LoadRequest::Payloads(messages) => shard
                .load(&messages)
                .map_or_else(LoadedMessages::Failed, LoadedMessages::Payloads),
        };
        self.broker.loaded(self.now, load.queue, load.token, found);
        self.take_effects();
    }

    /// Fails the read that was asked for first.
    pub(crate) fn fail_load(&mut self) {
        let Some(load) = self.loads.pop_front() else {
            return;
        };
        let fault = Fault::new(std::io::Error::other("the disk is away"));
        let found = LoadedMessages::Failed(fault.into());
        self.broker.loaded(self.now, load.queue, load.token, found);
        self.take_effects();
    }

    /// Goes on until there is nothing to do at this moment.
    pub(crate) fn run(&mut self) {
        loop {
            self.poll();
            self.seal();
            if self.round.is_some() {
                self.commit();
            } else if !self.loads.is_empty() {
                self.load();
            } else if self.broker.next_timer().is_none_or(|next| next > self.now) {
                return;
            }
        }
    }

    fn take_effects(&mut self) {
        let effects = self.broker.effects();
        let answers = effects.answers.drain(..).map(Answer::of);
        self.answers.extend(answers);
        let deliveries = std::mem::take(&mut effects.deliveries);
        self.dismissed.append(&mut effects.dismissed);
        self.loads.extend(effects.loads.drain(..));
        self.failures.extend(effects.failures.drain(..));
        effects.garbage.clear();
        let damaged = effects.damaged.drain(..).map(|(_, damaged)| damaged);
        match &mut self.damaged {
            Some(expected) => expected.extend(damaged),
            None => assert_eq!(damaged.collect::<Vec<_>>(), []),
        }
        for (consumer, delivery) in deliveries {
            let bytes = delivery.bytes();
            self.deliveries.push_back((consumer, delivery));
            match self.unread.get_mut(&consumer) {
                Some(unread) => *unread += bytes,
                None => {
                    let taken = Command::Taken { consumer, bytes };
                    self.broker.handle(self.now, taken);
                }
            }
        }
    }

    /// Makes a consumer one that has read before.
    pub(crate) fn has_read(&mut self, consumer: ConsumerId) {
        self.tell(Command::Taken { consumer, bytes: 0 });
    }

    /// Lets a consumer read nothing from now on.
    pub(crate) fn stop_reading(&mut self, consumer: ConsumerId) {
        self.unread.insert(consumer, 0);
    }

    /// Lets a consumer take `bytes` of what is on its way to it.
    pub(crate) fn read(&mut self, consumer: ConsumerId, bytes: usize) {
        let unread = self.unread.get_mut(&consumer).unwrap();
        *unread -= bytes;
        self.tell(Command::Taken { consumer, bytes });
    }

    // What tests say most.

    /// Tells the broker of messages, and returns the ticket under which it answers.
    pub(crate) fn send(&mut self, queue: QueueId, messages: Vec<NewMessage>) -> u64 {
        self.send_as(queue, None, messages)
    }

    /// Tells the broker of messages that may be a batch with an id.
    pub(crate) fn send_as(
        &mut self,
        queue: QueueId,
        batch_id: Option<BatchId>,
        messages: Vec<NewMessage>,
    ) -> u64 {
        let ticket = self.ticket();
        self.tell(Command::Enqueue {
            queue,
            messages,
            batch_id,
            ticket,
        });
        ticket
    }

    /// Tells the broker of a result, and returns the ticket under which it answers.
    pub(crate) fn report(&mut self, queue: QueueId, lease: LeaseId, verdict: Verdict) -> u64 {
        let ticket = self.ticket();
        self.tell(Command::Settle {
            queue,
            results: vec![Settlement {
                lease,
                message: None,
                verdict,
            }],
            by: None,
            ticket,
        });
        ticket
    }

    /// Ends a consumer whose stream broke, or which has ended it.
    pub(crate) fn unsubscribe(&mut self, consumer: ConsumerId, departure: Departure) {
        self.tell(Command::Unsubscribe {
            consumer,
            departure,
            unsent: Vec::new(),
        });
    }

    /// Gives a queue another definition.
    pub(crate) fn update(&mut self, queue: QueueId, definition: QueueSettings) {
        self.tell(Command::Update {
            queue,
            definition: Box::new(definition),
        });
    }

    /// Says what becomes of a delivery that has failed.
    pub(crate) fn judge(&mut self, queue: QueueId, token: FailureToken, judgement: Judgement) {
        self.broker.judge(self.now, queue, token, judgement);
        self.take_effects();
    }

    /// Asks for a purge, and returns the ticket under which the broker answers.
    pub(crate) fn purge(&mut self, queue: QueueId) -> u64 {
        let ticket = self.ticket();
        self.tell(Command::Purge { queue, ticket });
        ticket
    }

    pub(crate) fn enqueue_all(
        &mut self,
        queue: QueueId,
        messages: Vec<NewMessage>,
    ) -> Vec<Result<Enqueued, fila_core::EnqueueError>> {
        let ticket = self.send(queue, messages);
        self.run();
        match self.answers.remove(&ticket) {
            Some(Answer::Enqueued(results)) => results,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a batch with an id, and returns what is answered.
    pub(crate) fn enqueue_batch(
        &mut self,
        queue: QueueId,
        id: BatchId,
        messages: Vec<NewMessage>,
    ) -> Answer {
        let ticket = self.send_as(queue, Some(id), messages);
        self.run();
        self.answers.remove(&ticket).expect("an answer")
    }

    pub(crate) fn enqueue(&mut self, queue: QueueId, message: NewMessage) -> MessageId {
        match self.enqueue_all(queue, vec![message]).remove(0) {
            Ok(Enqueued::Stored(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn subscribe(&mut self, queue: QueueId, credit: u32) -> ConsumerId {
        self.consumers += 1;
        let consumer = ConsumerId::new(self.consumers);
        let demand = Demand {
            credit,
            in_flight_max: u32::MAX,
            kind: ConsumerKind::Stream(Beginnings::Reported),
        };
        self.subscribe_as(queue, consumer, demand);
        consumer
    }

    /// Adds a call that takes messages once.
    pub(crate) fn call(
        &mut self,
        queue: QueueId,
        messages: u32,
        lease_time: Option<Duration>,
    ) -> ConsumerId {
        self.consumers += 1;
        let call = ConsumerId::new(self.consumers);
        let demand = Demand {
            credit: messages,
            in_flight_max: messages,
            kind: ConsumerKind::Call { lease_time },
        };
        self.subscribe_as(queue, call, demand);
        call
    }

    pub(crate) fn subscribe_as(&mut self, queue: QueueId, consumer: ConsumerId, demand: Demand) {
        let subscribed = self.broker.subscribe(self.now, queue, consumer, demand);
        assert_eq!(subscribed, Ok(()));
    }

    pub(crate) fn settle(
        &mut self,
        queue: QueueId,
        lease: LeaseId,
        verdict: Verdict,
    ) -> Result<(), SettleError> {
        let ticket = self.report(queue, lease, verdict);
        self.run();
        match self.answers.remove(&ticket) {
            Some(Answer::Settled(mut results)) => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// Lets a consumer have one more message, and returns it.
    pub(crate) fn next(&mut self, consumer: ConsumerId) -> Option<Delivery> {
        self.tell(Command::Credit { consumer, more: 1 });
        self.run();
        self.deliveries.pop_front().map(|(_, delivery)| delivery)
    }

    /// Asks how everything is that is in the store of a queue, in its order.
    pub(crate) fn peek(&mut self, queue: QueueId) -> Vec<(MessageId, Option<MessageStatus>)> {
        let page = self.shards[&queue].scan(&Cursor::start(), usize::MAX);
        self.peek_at(queue, &page.unwrap().items)
    }

    /// Asks how these messages are.
    pub(crate) fn peek_at(
        &mut self,
        queue: QueueId,
        messages: &[StoredMessage],
    ) -> Vec<(MessageId, Option<MessageStatus>)> {
        let ids: Vec<MessageId> = messages.iter().map(|entry| entry.id).collect();
        let peeked = self.broker.peek(self.now, queue, messages).unwrap();
        assert_eq!(peeked.len(), ids.len());
        ids.into_iter().zip(peeked).collect()
    }

    pub(crate) fn keys(&mut self, queue: QueueId) -> Vec<KeyStats> {
        let (now, start) = (self.now, KeyCursor::start());
        let (keys, next) = self.broker.keys(now, queue, start, 1000).unwrap();
        assert_eq!(next, None);
        keys
    }

    /// Asks why a key waits.
    pub(crate) fn explain(&mut self, queue: QueueId, name: &str) -> Explanation {
        self.broker.explain(self.now, queue, &key(name)).unwrap()
    }

    pub(crate) fn stats(&mut self, queue: QueueId) -> QueueStats {
        self.broker.stats(queue).unwrap()
    }
}

/// Returns a shell with a queue with default settings.
pub(crate) fn queue() -> (Shell, QueueId) {
    Shell::with_queue(QueueSettings::default())
}

/// Returns a shell whose queue keeps next to nothing in memory.
pub(crate) fn forgetful(definition: QueueSettings) -> (Shell, QueueId) {
    let mut settings = Settings::default();
    settings.memory_budget = 1 << 10;
    let mut shell = Shell::new(settings);
    let queue = shell.create("queue", definition);
    (shell, queue)
}

pub(crate) fn key(name: &str) -> FairnessKey {
    FairnessKey::new(name.to_owned()).unwrap()
}

pub(crate) fn throttle_key(name: &str) -> ThrottleKey {
    ThrottleKey::parse(name).unwrap()
}

/// Returns a message that takes tokens of these keys.
pub(crate) fn throttled(name: &str, keys: &[&str]) -> NewMessage {
    let mut message = message(name, "throttled");
    message.schedule.throttle_keys = keys.iter().map(|key| throttle_key(key)).collect();
    message
}

pub(crate) fn message(name: &str, body: impl Into<bytes::Bytes>) -> NewMessage {
    NewMessage::new(key(name), Payload::new(Vec::new(), body).unwrap())
}

/// Returns the result of a delivery that is to be repeated after this delay, whatever its queue would do.
pub(crate) fn nack(delay: Duration) -> Verdict {
    Verdict::Nack {
        delay: Some(delay),
        error: None,
    }
}

/// Returns the definition of a queue whose retries do not wait.
pub(crate) fn trying_again_at_once() -> QueueSettings {
    let mut definition = QueueSettings::default();
    definition.retry.backoff = Duration::ZERO;
    definition
}
