//! The handle of a running broker, through which gRPC calls it. It is cheap to clone, and any of its futures may be
//! dropped.
//!
//! A call that is in an inbox is executed even if its caller no longer waits. A call that is not in an inbox yet is
//! not.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fila_core::{
    BatchId, Command, ConsumerId, ConsumerKind, Demand, EnqueueResults, Explanation, GroupStats,
    KeyCursor, KeySeparator, KeyStats, NewMessage, QueueSettings, QueueStats, Refused,
    SettleResults, Settlement,
};
use fila_store::{Durability, FairnessKey, ReadError, Timestamp, Version};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::config::LimitsConfig;
use crate::hooks::Pool;
use crate::intake::Room;
use crate::metrics::Metrics;
use crate::runtime::calls::consumer::{Consumer, ConsumerPermit};
use crate::runtime::calls::peek::{self, PeekQuery, Peeked, StoredPage};
use crate::runtime::config::writer::ConfigWriter;
use crate::runtime::error::CallError;
use crate::runtime::queues::manager::QueueManager;
use crate::runtime::queues::registry::{QueueEntry, Registry};
use crate::runtime::status::{State, Status};
use crate::runtime::threads::inbox::{Inbox, Input, Lane, Query, ServerBroker, Subscription};
use crate::runtime::threads::ticket::{Reply, ReplySender, ServerTickets, Ticket};
use crate::runtime::{Clock, QueueNameRule};
use crate::runtime_config::Entries;

/// About how many bytes the result of a delivery takes in an inbox.
const RESULT_BYTES: usize = 64;

/// A handle of a running broker. Clones share the broker.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<HandleState>);

pub(crate) struct HandleState {
    pub(crate) registry: Arc<Registry>,
    pub(crate) inboxes: Arc<[Inbox]>,
    /// Removed when the server stops, so that the store can close.
    pub(crate) managers: Mutex<Option<Managers>>,
    /// The runtime configuration. Its writer replaces it.
    pub(crate) config: watch::Sender<Arc<Entries>>,
    /// Held while the runtime configuration changes.
    pub(crate) config_turn: Arc<Semaphore>,
    /// Held while a peek reads.
    pub(crate) peeks: Arc<Semaphore>,
    /// Held while a prediction is made.
    pub(crate) predictions: Arc<Semaphore>,
    /// The threads that run hooks.
    pub(crate) pool: Pool,
    pub(crate) status: Arc<Status>,
    pub(crate) clock: Clock,
    pub(crate) limits: LimitsConfig,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) durability: Durability,
    pub(crate) memory_budget: u64,
    pub(crate) consumers: Arc<AtomicUsize>,
    pub(crate) consumer_ids: AtomicU64,
}

/// Messages that are answered together.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The number of the answer.
    pub(crate) number: u64,
    pub(crate) messages: Vec<NewMessage>,
    pub(crate) batch_id: Option<BatchId>,
}

/// The parts of the server that write to the store for callers.
#[derive(Clone)]
pub(crate) struct Managers {
    pub(crate) queues: Arc<QueueManager>,
    pub(crate) config: Arc<ConfigWriter>,
}

/// The state and the figures of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Where a confirmed message is stored.
    pub durability: Durability,
    /// The state of the server.
    pub state: State,
    /// Whether the disk is full, so that the server refuses new messages.
    pub is_full: bool,
    /// The number of queues.
    pub queues: usize,
    /// The number of consumers.
    pub consumers: usize,
    /// How many bytes of messages the server may keep in memory.
    pub memory_budget: u64,
    /// How many bytes of messages are in memory.
    pub memory_used: u64,
    /// When the server was started.
    pub started_at: Timestamp,
}

impl Handle {
    /// Returns the queue of this name.
    ///
    /// # Errors
    /// If there is none, or the server does not accept calls.
    pub fn queue(&self, name: &str) -> Result<Arc<QueueEntry>, CallError> {
        self.accepting()?;
        let queue = self.0.registry.find(name);
        queue.ok_or_else(|| CallError::unknown_queue(name))
    }

    /// Returns the separator of a queue's fairness keys. Dead letters have that of the queue that they come from.
    pub fn key_separator(&self, queue: &QueueEntry) -> Option<KeySeparator> {
        let source = queue.dead_letters_of();
        let source = source.and_then(|name| self.0.registry.find(name));
        source.map_or(queue.definition.key_separator, |source| {
            source.definition.key_separator
        })
    }

    /// Returns up to `limit` queues whose names begin with `prefix` and come after `after`, in the order of their
    /// names.
    pub fn queues(&self, prefix: &str, after: &str, limit: usize) -> Vec<Arc<QueueEntry>> {
        self.0.registry.page(prefix, after, limit)
    }

    /// Returns the statistics of these queues at one moment.
    pub fn figures(&self, queues: &[Arc<QueueEntry>]) -> Vec<QueueStats> {
        self.0.metrics.at_one_moment(queues)
    }

    /// Puts messages into a queue, and returns when the accepted ones are durable. If the queue has an `on_enqueue`
    /// hook, it decides on their schedules. Messages of a batch id that the broker remembers are not stored again.
    ///
    /// # Errors
    /// If the broker refuses the whole call.
    pub async fn enqueue(
        &self,
        queue: &QueueEntry,
        messages: Vec<NewMessage>,
        batch_id: Option<BatchId>,
    ) -> Result<EnqueueResults, CallError> {
        self.enqueue_received(queue, messages, batch_id, Room::default())
            .await
    }

    /// Does the same with messages of a request, and gives the room of the request back when they are in the inbox.
    pub(crate) async fn enqueue_received(
        &self,
        queue: &QueueEntry,
        messages: Vec<NewMessage>,
        batch_id: Option<BatchId>,
        room: Room,
    ) -> Result<EnqueueResults, CallError> {
        takes_messages(queue)?;
        let messages = self.schedule(queue, messages).await?;
        let bytes = bytes(&messages);
        let (ticket, reply) = Ticket::call();
        let input = Input::Command(Command::Enqueue {
            queue: queue.id,
            messages,
            batch_id,
            ticket,
        });
        self.put(queue, Lane::Calls, bytes, input).await?;
        drop(room);
        self.result(reply.await.unwrap_or(Reply::Stopped))
    }

    /// Settles deliveries, and returns when the accepted results are durable.
    ///
    /// # Errors
    /// If the broker refuses the whole call.
    pub async fn settle(
        &self,
        queue: &QueueEntry,
        results: Vec<Settlement>,
    ) -> Result<SettleResults, CallError> {
        let (id, bytes) = (queue.id, results.len() * RESULT_BYTES);
        self.call(queue, Lane::Calls, bytes, |ticket| Command::Settle {
            queue: id,
            results,
            by: None,
            ticket,
        })
        .await
    }

    /// Puts frames of one queue into its inbox. Each frame is answered under its number. The caller has already asked
    /// the queue's hook.
    pub(crate) async fn produce(
        &self,
        queue: &QueueEntry,
        frames: Vec<Frame>,
        replies: &ReplySender<EnqueueResults>,
    ) -> Result<(), CallError> {
        takes_messages(queue)?;
        let bytes = frames.iter().map(|frame| bytes(&frame.messages)).sum();
        let commands = frames.into_iter().map(|frame| Command::Enqueue {
            queue: queue.id,
            messages: frame.messages,
            batch_id: frame.batch_id,
            ticket: Ticket::numbered(frame.number, replies),
        });
        let input = Input::Commands(commands.collect());
        self.put(queue, Lane::Bulk, bytes, input).await
    }

    /// Puts the results that a consumer reports into its queue's inbox. They are answered under this number.
    pub(crate) async fn report(
        &self,
        consumer: &Consumer,
        number: u64,
        results: Vec<Settlement>,
        replies: &ReplySender<SettleResults>,
    ) -> Result<(), CallError> {
        let queue = consumer.queue();
        let bytes = results.len() * RESULT_BYTES;
        let command = Command::Settle {
            queue: queue.id,
            results,
            by: Some(consumer.id()),
            ticket: Ticket::numbered(number, replies),
        };
        let input = Input::Command(command);
        self.put(queue, Lane::Calls, bytes, input).await
    }

    /// Adds a consumer. A stream begins without [credit](Consumer::credit).
    ///
    /// # Errors
    /// If the limit on consumers is reached, or the queue was deleted.
    pub async fn subscribe(
        &self,
        queue: &Arc<QueueEntry>,
        in_flight_max: u32,
        kind: ConsumerKind,
    ) -> Result<Consumer, CallError> {
        self.accepting()?;
        let max = self.0.limits.consumers.get();
        let permit = ConsumerPermit::take(&self.0.consumers, max)
            .ok_or(CallError::TooManyConsumers { max })?;
        let id = ConsumerId::new(self.0.consumer_ids.fetch_add(1, Ordering::Relaxed));
        let (outlet, outgoing) = mpsc::unbounded_channel();
        let (reply, subscribed) = oneshot::channel();
        let subscription = Subscription {
            queue: queue.id,
            consumer: id,
            demand: Demand {
                credit: match kind {
                    ConsumerKind::Stream(_) => 0,
                    ConsumerKind::Call { .. } => in_flight_max,
                },
                in_flight_max,
                kind,
            },
            outlet,
            reply,
        };
        let inbox = self.0.inboxes[queue.thread].clone();
        let subscribe = Input::Subscribe(subscription);
        let separator = queue.definition.key_separator;
        inbox.put_for(separator, Lane::Calls, 0, subscribe).await?;
        // From here on, dropping the consumer unsubscribes it.
        let consumer = Consumer::new((id, kind), queue.clone(), inbox, outgoing, permit);
        subscribed.await.map_err(|_| self.stopped())??;
        Ok(consumer)
    }

    /// Deletes all messages of a queue, and returns how many there were.
    ///
    /// # Errors
    /// If the queue was deleted, or the store fails.
    pub async fn purge(&self, queue: &QueueEntry) -> Result<u64, CallError> {
        let queue_id = queue.id;
        self.call(queue, Lane::Calls, 0, |ticket| Command::Purge {
            queue: queue_id,
            ticket,
        })
        .await
    }

    /// Returns the statistics of a queue. They include all calls that were put into its inbox before.
    ///
    /// # Errors
    /// If the queue was deleted.
    pub async fn inspect(&self, queue: &QueueEntry) -> Result<QueueStats, CallError> {
        let id = queue.id;
        self.query(queue, 1, move |broker, _| broker.stats(id))
            .await
    }

    /// Returns a page of a queue's fairness keys, and the cursor of the next page, if there is one.
    ///
    /// # Errors
    /// If the queue was deleted.
    pub async fn keys(
        &self,
        queue: &QueueEntry,
        after: KeyCursor,
        limit: usize,
    ) -> Result<(Vec<KeyStats>, Option<KeyCursor>), CallError> {
        let id = queue.id;
        self.query(queue, 1, move |broker, now| {
            broker.keys(now, id, after, limit)
        })
        .await
    }

    /// Returns a page of the groups of a queue's fairness keys, and the cursor of the next page, if there is one.
    ///
    /// # Errors
    /// If the queue was deleted.
    pub async fn groups(
        &self,
        queue: &QueueEntry,
        after: KeyCursor,
        limit: usize,
    ) -> Result<(Vec<GroupStats>, Option<KeyCursor>), CallError> {
        let id = queue.id;
        self.query(queue, 1, move |broker, now| {
            broker.groups(now, id, after, limit)
        })
        .await
    }

    /// Returns why a fairness key waits. Changes nothing, and costs the key no turn.
    ///
    /// # Errors
    /// If the queue was deleted, or the store takes no more writes.
    pub async fn explain(
        &self,
        queue: &QueueEntry,
        fairness_key: FairnessKey,
    ) -> Result<Explanation, CallError> {
        let id = queue.id;
        self.query(queue, 1, move |broker, now| {
            broker.explain(now, id, &fairness_key)
        })
        .await
    }

    /// Returns a page of a queue's messages without leasing them. Changes nothing, and costs no key a turn.
    ///
    /// # Errors
    /// If the queue was deleted, or the store cannot be read.
    pub async fn peek(&self, queue: &QueueEntry, query: PeekQuery) -> Result<Peeked, CallError> {
        let id = queue.id;
        let found = self.browse(queue, query).await?;
        let count = found.messages.len();
        let ask = move |broker: &mut ServerBroker, now| {
            let statuses = broker.peek(now, id, found.entries())?;
            Ok((found, statuses))
        };
        let (found, statuses) = self.query(queue, count, ask).await?;
        Ok(found.with(id, statuses))
    }

    /// Reads a page of the stored messages of a queue.
    pub(crate) async fn browse(
        &self,
        queue: &QueueEntry,
        query: PeekQuery,
    ) -> Result<StoredPage, CallError> {
        self.accepting()?;
        let turn = self.0.peeks.clone().acquire_owned().await;
        let shard = self.0.registry.shard(queue.id);
        let shard = shard.ok_or(Refused::QueueGone)?;
        // The read keeps its turn until it is done, even if the caller no longer waits.
        let read = move || (peek::read(&*shard, &query), turn);
        let read = tokio::task::spawn_blocking(read).await;
        let (found, _turn) = read.map_err(|_| self.stopped())?;
        found.map_err(|failure| match failure {
            ReadError::Fenced { .. } => CallError::Refused(Refused::QueueGone),
            failure => {
                tracing::error!(queue = %queue.name, error = %failure, "the messages for a peek could not be read");
                CallError::ReadFailed
            }
        })
    }

    /// Creates a queue.
    ///
    /// # Errors
    /// If the name is invalid or taken, the limit on queues is reached, or the store fails.
    pub async fn create_queue(
        &self,
        name: &str,
        definition: QueueSettings,
    ) -> Result<Arc<QueueEntry>, CallError> {
        let name = QueueNameRule::parse(name)?;
        self.manage(move |queues| queues.create(&name, definition))
            .await
    }

    /// Changes the settings of a queue, if `expected` is its version or `None`.
    ///
    /// # Errors
    /// If there is no such queue, it has another version, `change` fails, or the store fails.
    pub async fn update_queue(
        &self,
        name: String,
        expected: Option<Version>,
        change: impl FnOnce(&mut QueueSettings) -> Result<(), CallError> + Send + 'static,
    ) -> Result<Arc<QueueEntry>, CallError> {
        self.manage(move |queues| queues.update(&name, expected, change))
            .await
    }

    /// Deletes a queue and its messages. This cannot be undone.
    ///
    /// # Errors
    /// If there is no such queue, or the store fails.
    pub async fn delete_queue(&self, name: String) -> Result<(), CallError> {
        self.manage(move |queues| queues.delete(&name)).await
    }

    /// Returns the limits on requests.
    pub fn limits(&self) -> &LimitsConfig {
        &self.0.limits
    }

    /// Returns the clock of leases and delays.
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// Returns the state and the figures of the server.
    pub fn info(&self) -> Info {
        Info {
            durability: self.0.durability,
            state: self.0.status.state(),
            is_full: self.0.status.is_full(),
            queues: self.0.registry.len(),
            consumers: self.0.consumers.load(Ordering::Acquire),
            memory_budget: self.0.memory_budget,
            memory_used: self.0.metrics.memory_used_now(),
            started_at: self.0.clock.started_at(),
        }
    }

    /// Returns a receiver of the server's state and of its changes.
    pub fn state(&self) -> watch::Receiver<State> {
        self.0.status.watch()
    }

    /// Returns how many inputs calls, streams and consumers have put into all inboxes.
    pub(crate) fn puts(&self) -> u64 {
        self.0.inboxes.iter().map(Inbox::puts).sum()
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    pub(super) fn accepting(&self) -> Result<(), CallError> {
        match self.0.status.state() {
            // A failed server still executes calls that do not write; the core refuses the others.
            State::Ready | State::Failed => Ok(()),
            State::Starting | State::Stopping => Err(CallError::ShuttingDown),
        }
    }

    pub(crate) fn managers(&self) -> Result<Managers, CallError> {
        self.accepting()?;
        let managers = self.0.managers.lock();
        let managers = managers.unwrap_or_else(PoisonError::into_inner).clone();
        managers.ok_or(CallError::ShuttingDown)
    }

    /// Sends a command to the queue's scheduler thread, and waits for the answer.
    pub(crate) async fn call<A>(
        &self,
        queue: &QueueEntry,
        lane: Lane,
        bytes: usize,
        command: impl FnOnce(Ticket<A>) -> Command<ServerTickets>,
    ) -> Result<A, CallError> {
        let (ticket, reply) = Ticket::call();
        let input = Input::Command(command(ticket));
        self.put(queue, lane, bytes, input).await?;
        self.result(reply.await.unwrap_or(Reply::Stopped))
    }

    /// Runs a query on the queue's scheduler thread. `cost` is its amount of work, in messages.
    pub(super) async fn query<A: Send + 'static>(
        &self,
        queue: &QueueEntry,
        cost: usize,
        ask: impl FnOnce(&mut ServerBroker, Timestamp) -> Result<A, Refused> + Send + 'static,
    ) -> Result<A, CallError> {
        let (reply, answer) = oneshot::channel();
        let run = Box::new(move |broker: &mut ServerBroker, now| {
            let _ = reply.send(ask(broker, now));
        });
        let input = Input::Query(Query { cost, run });
        self.put(queue, Lane::Calls, cost * RESULT_BYTES, input)
            .await?;
        Ok(answer.await.map_err(|_| self.stopped())??)
    }

    async fn put(
        &self,
        queue: &QueueEntry,
        lane: Lane,
        bytes: usize,
        input: Input,
    ) -> Result<(), CallError> {
        self.accepting()?;
        let separator = queue.definition.key_separator;
        let inbox = &self.0.inboxes[queue.thread];
        inbox.put_for(separator, lane, bytes, input).await
    }

    /// Returns the result in a reply.
    pub(crate) fn result<A>(&self, reply: Reply<A>) -> Result<A, CallError> {
        match reply {
            Reply::Done(result) => result,
            Reply::Stopped => Err(self.stopped()),
        }
    }

    /// Returns why a command was dropped.
    pub(crate) fn stopped(&self) -> CallError {
        match self.0.status.state() {
            State::Failed => CallError::StoreUnavailable,
            State::Starting | State::Ready | State::Stopping => CallError::ShuttingDown,
        }
    }

    async fn manage<T: Send + 'static>(
        &self,
        change: impl FnOnce(&QueueManager) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        let queues = self.managers()?.queues;
        let changed = tokio::task::spawn_blocking(move || change(&queues)).await;
        changed.map_err(|_| self.stopped())?
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("info", &self.info())
            .finish_non_exhaustive()
    }
}

/// Refuses producers' messages for a dead letter queue.
pub(crate) fn takes_messages(queue: &QueueEntry) -> Result<(), CallError> {
    match queue.dead_letters_of() {
        None => Ok(()),
        Some(of) => Err(CallError::TakesDeadLetters {
            name: queue.name.clone(),
            of: of.to_owned(),
        }),
    }
}

fn bytes(messages: &[NewMessage]) -> usize {
    messages.iter().map(NewMessage::buffered_bytes).sum()
}
