//! The queues of the test broker: the broker's own core, over a store in memory and on Tokio's clock.
//!
//! Every call runs the core until it has nothing left to do at this moment, so that its answer is there on return.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use fila_core::{
    Answer, Beginnings, Broker, Command, Committed, ConsumerId, ConsumerKind, Delivering, Demand,
    Departure, Dismissal, LoadRequest, LoadedMessages, NoSeparator, QueueSettings, QueueStats,
    Recovery, Settings,
};
use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use fila_store::{
    Batch, Engine, MemoryDisk, MemoryEngine, OutOfRange, QueueId, QueueName, Shard, Timestamp,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

use super::service::refused;
use super::wire;

type MemoryShard = <MemoryEngine as Engine>::Shard;
type WorkResponses = mpsc::UnboundedSender<Result<v1::WorkResponse, Status>>;

pub(super) struct Queues {
    core: Broker<()>,
    store: MemoryEngine,
    by_name: BTreeMap<String, OpenQueue>,
    /// The queues of the consumers, and the streams to them.
    streams: HashMap<ConsumerId, (QueueId, WorkResponses)>,
    consumers_ever: u64,
    /// The answer to the command that the core executes.
    answer: Option<Answer<()>>,
    begun: Instant,
    begun_at: Timestamp,
}

struct OpenQueue {
    id: QueueId,
    /// The queue whose ids its messages have: for dead letters their queue before.
    first: QueueId,
    shard: MemoryShard,
    definition: QueueSettings,
    info: v1::QueueInfo,
}

impl Default for Queues {
    fn default() -> Self {
        let mut settings = Settings::default();
        settings.limits.delay = Duration::MAX;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            core: Broker::new(settings),
            store: MemoryEngine::open(&MemoryDisk::default()).expect("the store is new"),
            by_name: BTreeMap::new(),
            streams: HashMap::new(),
            consumers_ever: 0,
            answer: None,
            begun: Instant::now(),
            begun_at: Timestamp::from_millis(0).saturating_add(since.unwrap_or_default()),
        }
    }
}

impl Queues {
    fn now(&self) -> Timestamp {
        self.begun_at.saturating_add(self.begun.elapsed())
    }

    /// Creates a queue, and the queue of its dead letters.
    pub(super) fn create(&mut self, name: &str, settings: v1::QueueSettings) -> Result<(), Status> {
        let dead_letters = dead_letters_of(name);
        if self.by_name.contains_key(name) || self.by_name.contains_key(&dead_letters) {
            let text = format!("queue `{name}` exists already");
            return Err(refused(ErrorCode::QueueExists, text));
        }
        let invalid = |error: OutOfRange| refused(ErrorCode::InvalidQueueName, error.to_string());
        let own = QueueName::parse(name).map_err(invalid)?;
        let dead_letters = QueueName::parse(&dead_letters).map_err(invalid)?;
        let odd = |error: NoSeparator| {
            let text = format!("key_separator is not allowed: {error}; empty for none");
            refused(ErrorCode::InvalidArgument, text)
        };
        let definition = wire::definition(&settings).map_err(odd)?;
        let letters = v1::QueueSettings::default();
        let of_letters = wire::definition(&letters).map_err(odd)?;
        let to = self.open(&dead_letters, letters, of_letters, None);
        let first = self.open(&own, settings, definition, Some(to));
        self.find(dead_letters.as_str())?.first = first;
        Ok(())
    }

    fn open(
        &mut self,
        name: &QueueName,
        settings: v1::QueueSettings,
        definition: QueueSettings,
        dead_letters: Option<QueueId>,
    ) -> QueueId {
        let created = self.store.create_queue(name, definition.encode());
        let id = created.expect("no queue has the name").id;
        let shard = self.store.claim(id).expect("the queue exists");
        let (epoch, generation) = (shard.epoch(), shard.generation());
        let mut recovery = Recovery::new(id, epoch, generation, definition.clone());
        if let Some(to) = dead_letters {
            recovery.dead_letters(to, name.clone());
        }
        self.core.open(self.now(), recovery);
        let queue = OpenQueue {
            id,
            first: id,
            shard,
            definition,
            info: v1::QueueInfo {
                name: name.to_string(),
                settings: Some(settings),
                version: 1,
                ..v1::QueueInfo::default()
            },
        };
        self.by_name.insert(name.to_string(), queue);
        id
    }

    /// Deletes a queue, and its dead letters.
    pub(super) fn delete(&mut self, name: &str) -> Result<(), Status> {
        self.find(name)?;
        for name in [name, &dead_letters_of(name)] {
            if let Some(OpenQueue { id, .. }) = self.by_name.remove(name) {
                self.tell(Command::Close { queue: id });
                self.store.delete_queue(id).expect("the queue exists");
            }
        }
        Ok(())
    }

    pub(super) fn infos(&mut self, prefix: &str) -> Vec<v1::QueueInfo> {
        let names: Vec<String> = self.by_name.keys().cloned().collect();
        let names = names.iter().filter(|name| name.starts_with(prefix));
        names.filter_map(|name| self.info(name).ok()).collect()
    }

    pub(super) fn info(&mut self, name: &str) -> Result<v1::QueueInfo, Status> {
        let stats = Some(wire::stats(&self.stats(name)?));
        let info = self.find(name)?.info.clone();
        Ok(v1::QueueInfo { stats, ..info })
    }

    pub(super) fn stats(&mut self, name: &str) -> Result<QueueStats, Status> {
        let id = self.find(name)?.id;
        Ok(self.core.stats(id).expect("the core has the queue open"))
    }

    pub(super) fn set_delivery(&mut self, name: &str, delivery: Delivering) -> Result<(), Status> {
        let queue = self.find(name)?;
        queue.info.paused = delivery == Delivering::Paused;
        queue.definition.delivery = delivery;
        let (queue, definition) = (queue.id, Box::new(queue.definition.clone()));
        self.tell(Command::Update { queue, definition });
        Ok(())
    }

    pub(super) fn purge(&mut self, name: &str) -> Result<u64, Status> {
        let queue = self.find(name)?.id;
        match self.tell(Command::Purge { queue, ticket: () }) {
            Some(Answer::Purged((), Ok(purged))) => Ok(purged),
            other => unreachable!("{other:?}"),
        }
    }

    pub(super) fn enqueue(
        &mut self,
        name: &str,
        batch: Option<&v1::BatchId>,
        messages: &[v1::Message],
    ) -> Vec<v1::EnqueueResult> {
        let refuse_all = |code, text: &str| vec![wire::not_enqueued(code, &text); messages.len()];
        let queue = match self.find(name) {
            Ok(queue) => queue.id,
            Err(status) => return refuse_all(ErrorCode::QueueNotFound, status.message()),
        };
        let parsed: Vec<_> = messages.iter().cloned().map(wire::message).collect();
        let answer = self.tell(Command::Enqueue {
            queue,
            messages: parsed.iter().flatten().cloned().collect(),
            batch_id: batch.and_then(wire::batch_id),
            ticket: (),
        });
        let mut results = match answer {
            Some(Answer::Enqueued((), Ok(results))) => results.into_iter(),
            Some(Answer::Enqueued((), Err(error))) => {
                return refuse_all(ErrorCode::InvalidArgument, &error.to_string());
            }
            other => unreachable!("{other:?}"),
        };
        let results = parsed.into_iter().filter_map(|parsed| match parsed {
            Ok(_) => Some(wire::enqueued(queue, results.next()?)),
            Err(error) => Some(wire::not_enqueued(ErrorCode::InvalidArgument, &error)),
        });
        results.collect()
    }

    pub(super) fn subscribe(
        &mut self,
        first: &v1::WorkRequest,
        responses: &WorkResponses,
    ) -> Result<ConsumerId, Status> {
        let demand = Demand {
            credit: 0,
            in_flight_max: u32::MAX,
            kind: ConsumerKind::Stream(match first.reports_begun {
                true => Beginnings::Reported,
                false => Beginnings::Assumed,
            }),
        };
        self.add_consumer(&first.queue, demand, responses)
    }

    /// Lets a call take messages once. They come as responses of a stream, which ends when the call has all that it gets.
    pub(super) fn receive(
        &mut self,
        request: &v1::ReceiveRequest,
        responses: &WorkResponses,
    ) -> Result<ConsumerId, Status> {
        let lease_time = (request.lease_ms > 0).then(|| Duration::from_millis(request.lease_ms));
        let demand = Demand {
            credit: request.messages_max.max(1),
            in_flight_max: u32::MAX,
            kind: ConsumerKind::Call { lease_time },
        };
        self.add_consumer(&request.queue, demand, responses)
    }

    /// Lets a call wait for its first message no longer.
    pub(super) fn drain(&mut self, consumer: ConsumerId) {
        self.tell(Command::Drain { consumer });
    }

    /// Takes the results of a call, and returns those that were refused.
    pub(super) fn settle(
        &mut self,
        name: &str,
        request: v1::WorkRequest,
    ) -> Result<Vec<v1::LeaseRefusal>, Status> {
        let queue = self.find(name)?.id;
        Ok(self.settle_as(None, queue, request).refused)
    }

    fn settle_as(
        &mut self,
        by: Option<ConsumerId>,
        queue: QueueId,
        request: v1::WorkRequest,
    ) -> v1::WorkResponse {
        let results = wire::settlements(request);
        let leases: Vec<u64> = results.iter().map(|result| result.lease.get()).collect();
        let answer = self.tell(Command::Settle {
            queue,
            results,
            by,
            ticket: (),
        });
        match answer {
            Some(Answer::Settled((), Ok(results))) => {
                wire::settled(leases.into_iter().zip(results))
            }
            _ => v1::WorkResponse::default(),
        }
    }

    fn add_consumer(
        &mut self,
        name: &str,
        demand: Demand,
        responses: &WorkResponses,
    ) -> Result<ConsumerId, Status> {
        let queue = self.find(name)?.id;
        self.consumers_ever += 1;
        let consumer = ConsumerId::new(self.consumers_ever);
        let subscribed = self.core.subscribe(self.now(), queue, consumer, demand);
        subscribed.map_err(|error| refused(ErrorCode::TooManyConsumers, error.to_string()))?;
        self.streams.insert(consumer, (queue, responses.clone()));
        self.run();
        Ok(consumer)
    }

    /// Takes what a consumer says, and tells it what became of that. Ignored if the consumer was dismissed.
    pub(super) fn report(&mut self, consumer: ConsumerId, request: v1::WorkRequest) {
        let Some((queue, responses)) = self.streams.get(&consumer).cloned() else {
            return;
        };
        let (more, drain) = (request.credit, request.drain);
        let settled = self.settle_as(Some(consumer), queue, request);
        let _ = responses.send(Ok(settled));
        if drain {
            self.tell(Command::Drain { consumer });
        }
        self.tell(Command::Credit { consumer, more });
    }

    pub(super) fn unsubscribe(&mut self, consumer: ConsumerId, departure: Departure) {
        self.streams.remove(&consumer);
        self.tell(Command::Unsubscribe {
            consumer,
            departure,
            unsent: Vec::new(),
        });
    }

    /// Returns how long nothing happens by itself.
    pub(super) fn idle_time(&self) -> Option<Duration> {
        let next = self.core.next_timer()?;
        Some(next.since(self.now()))
    }

    fn find(&mut self, name: &str) -> Result<&mut OpenQueue, Status> {
        let queue = self.by_name.get_mut(name);
        queue.ok_or_else(|| {
            let text = format!("queue `{name}` does not exist; create it in the test");
            refused(ErrorCode::QueueNotFound, text)
        })
    }

    fn shard(&self, id: QueueId) -> Option<&MemoryShard> {
        let mut queues = self.by_name.values();
        Some(&queues.find(|queue| queue.id == id)?.shard)
    }

    fn first(&self, id: QueueId) -> QueueId {
        let mut queues = self.by_name.values();
        queues
            .find(|queue| queue.id == id)
            .map_or(id, |queue| queue.first)
    }

    /// Executes a command, and returns the answer if it has one.
    fn tell(&mut self, command: Command<()>) -> Option<Answer<()>> {
        self.core.handle(self.now(), command);
        self.run();
        self.answer.take()
    }

    /// Lets the core do all that it can do at this moment.
    pub(super) fn run(&mut self) {
        let now = self.now();
        loop {
            self.core.poll(now);
            let is_busy = self.commit(now) | self.load(now);
            self.take_effects();
            if !is_busy && self.core.next_timer().is_none_or(|next| next > now) {
                return;
            }
        }
    }

    fn commit(&mut self, now: Timestamp) -> bool {
        let Some(round) = self.core.seal() else {
            return false;
        };
        let batches = round.batches.iter();
        let batches: Vec<(&MemoryShard, &Batch)> = batches
            .filter_map(|(queue, batch)| Some((self.shard(*queue)?, batch)))
            .collect();
        self.store.commit(&batches).expect("memory takes it");
        let fenced = Vec::new();
        self.core
            .committed(now, Committed::Stored { round, fenced });
        true
    }

    fn load(&mut self, now: Timestamp) -> bool {
        let loads = std::mem::take(&mut self.core.effects().loads);
        let is_busy = !loads.is_empty();
        for load in loads {
            let Some(shard) = self.shard(load.queue) else {
                continue;
            };
            let found = match load.request {
                LoadRequest::Backlog { key, after, limit } => shard
                    .backlog(&key, after, limit)
                    .map(LoadedMessages::Backlog),
                LoadRequest::Payloads(messages) => {
                    shard.load(&messages).map(LoadedMessages::Payloads)
                }
            };
            let found = found.unwrap_or_else(LoadedMessages::Failed);
            self.core.loaded(now, load.queue, load.token, found);
        }
        is_busy
    }

    fn take_effects(&mut self) {
        let now = self.now();
        let effects = self.core.effects();
        effects.garbage.clear();
        self.answer = effects.answers.pop().or_else(|| self.answer.take());
        let deliveries = std::mem::take(&mut effects.deliveries);
        let dismissed = std::mem::take(&mut effects.dismissed);
        for (consumer, delivery) in deliveries {
            let bytes = delivery.bytes();
            self.core.handle(now, Command::Taken { consumer, bytes });
            if let Some((queue, responses)) = self.streams.get(&consumer) {
                // If the client is gone, the end of its stream is on the way and gives the message back.
                let _ = responses.send(Ok(v1::WorkResponse {
                    deliveries: vec![wire::delivery(self.first(*queue), delivery)],
                    ..v1::WorkResponse::default()
                }));
            }
        }
        // A stream ends when its sender is dropped.
        for (consumer, dismissal) in dismissed {
            let Some((_, responses)) = self.streams.remove(&consumer) else {
                continue;
            };
            let (code, text) = match dismissal {
                Dismissal::Drained | Dismissal::Served => continue,
                Dismissal::QueueGone => (ErrorCode::QueueDeleted, "the queue was deleted"),
                Dismissal::StoreFailed => (ErrorCode::StoreUnavailable, "the store has failed"),
            };
            let _ = responses.send(Err(refused(code, text.to_owned())));
        }
    }
}

fn dead_letters_of(name: &str) -> String {
    format!("{name}.dlq")
}
