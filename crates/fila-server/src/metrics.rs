//! The metrics of the server, and their names.
//!
//! Threads count as things happen; a scrape reads the numbers. Figures of queues are those that their scheduler threads
//! published last. The labels are `queue`, whose values `limits.queues` bounds, and `hook`, which has two values.
//! Fairness keys, tenants and messages are never labels. The client library adds `_total` to the names of counters, and
//! the unit to all names.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use fila_core::QueueStats;
use fila_store::{Health, Writes};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::intake::Receiving;
use crate::runtime::{Handle, HookFigures, HookState, Info, QueueEntry, State};
use crate::runtime_config::Entries;
use crate::telemetry::log_lines_dropped;
use crate::tls::Tls;

/// A metric that is read from a `T` at the scrape.
struct Figure<T> {
    kind: MetricType,
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&T) -> Value,
}

enum Value {
    Whole(u64),
    Seconds(Duration),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<Duration> for Value {
    fn from(value: Duration) -> Self {
        Self::Seconds(value)
    }
}

/// Declares metrics, one row each: kind, name, unit if there is one, help text, value.
macro_rules! figures {
    ($($kind:ident $name:literal $($unit:ident)?, $help:literal, |$it:ident| $value:expr;)+) => {
        &[$(Figure {
            kind: MetricType::$kind,
            name: $name,
            unit: figures!(@unit $($unit)?),
            help: $help,
            value: |$it| Value::from($value),
        }),+]
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(Unit::$unit) };
}

/// The server at the moment of a scrape.
struct ServerView {
    info: Info,
    metrics: Arc<Metrics>,
    config: Arc<Entries>,
    sandboxes: usize,
}

const SERVER: &[Figure<ServerView>] = figures! {
    Gauge "fila_ready", "1 if the server can be used, else 0", |s| s.info.state == State::Ready;
    Gauge "fila_store_full", "1 if the disk is full and new messages are refused, else 0", |s| s.info.is_full;
    Gauge "fila_queues", "Queues", |s| s.info.queues;
    Gauge "fila_consumers", "Consumers of all queues", |s| s.info.consumers;
    Gauge "fila_memory_used" Bytes, "Messages in memory", |s| s.info.memory_used;
    Gauge "fila_memory_budget" Bytes, "Most bytes of messages in memory, by storage.memory_budget", |s| s.info.memory_budget;
    Gauge "fila_connections", "Open connections", |s| s.metrics.connections();
    Counter "fila_connections_refused", "Connections turned away because limits.connections was reached",
        |s| s.metrics.counted(|counts| &counts.refused);
    Counter "fila_connections_timed_out", "Connections closed because the client sent or read nothing in time",
        |s| s.metrics.counted(|counts| &counts.timed_out);
    Counter "fila_tls_handshakes_failed", "Connections closed because their TLS handshakes failed, or because they had none",
        |s| s.metrics.counted(|counts| &counts.unencrypted);
    Counter "fila_tls_reload_failures", "Changed files of certificates that could not be used",
        |s| s.metrics.tls(Tls::failures);
    Gauge "fila_tls_certificate_expires" Seconds, "Unix time at which the certificate expires; 0 without TLS",
        |s| s.metrics.tls(Tls::expires);
    Gauge "fila_receiving" Bytes, "Requests that are being received", |s| s.metrics.receiving(Receiving::used);
    Gauge "fila_receiving_budget" Bytes, "Most bytes of requests that are being received, by limits.receiving_bytes",
        |s| s.metrics.receiving(Receiving::budget);
    Counter "fila_receiving_refused", "Calls refused because there was no room for their requests, or they stalled",
        |s| s.metrics.receiving(Receiving::refused);
    Gauge "fila_config_entries", "Entries of the runtime configuration", |s| s.config.len();
    Gauge "fila_config_size" Bytes, "Keys and values of the runtime configuration", |s| s.config.bytes();
    Counter "fila_config_changes", "Entries of the runtime configuration that were set or deleted",
        |s| s.metrics.config_changes.load(Ordering::Relaxed);
    Counter "fila_log_lines_dropped", "Log lines dropped because standard error was not read",
        |_s| log_lines_dropped();
    Gauge "fila_hook_sandboxes", "Sandboxes in which scripts are ready to run", |s| s.sandboxes;
    Counter "fila_store_swept_rows", "Removed rows of purged and deleted messages",
        |s| s.metrics.swept_rows.load(Ordering::Relaxed);
    Counter "fila_store_read_failures", "Times that messages could not be read back from the store",
        |s| s.metrics.read_failures.load(Ordering::Relaxed);
};

/// The store at its last report, and the state of the server.
type StoreView = (Health, State);

const STORE: &[Figure<StoreView>] = figures! {
    Gauge "fila_store_writable", "1 if the store takes writes, else 0",
        |s| s.0.writes != Writes::Poisoned && s.1 != State::Failed;
    Gauge "fila_store_size" Bytes, "Size of the store on the disk", |s| s.0.bytes;
    Gauge "fila_store_journals", "Journals that are not flushed yet; more than a handful means that the disk fills",
        |s| s.0.journals;
    Gauge "fila_store_leftovers", "Purged generations and deleted queues that are not swept yet", |s| s.0.leftovers;
    Gauge "fila_store_commits_dropped", "Commits at the end of the log that could not be read when the server started",
        |s| s.0.torn.as_ref().map_or(0, |torn| torn.commits);
};

/// The figures of each queue. Counters start at zero with the server.
const QUEUE: &[Figure<QueueStats>] = figures! {
    Gauge "fila_queue_ready_messages", "Messages that may be delivered", |s| s.ready;
    Gauge "fila_queue_delayed_messages", "Messages that wait for their time", |s| s.delayed;
    Gauge "fila_queue_throttled_messages", "Ready messages that wait for a token of a throttle", |s| s.throttled;
    Gauge "fila_queue_leased_messages", "Messages that are with a consumer", |s| s.leased;
    Gauge "fila_queue_stored_only_messages", "Ready messages that are in the store only", |s| s.stored_only;
    Gauge "fila_queue_size" Bytes, "Headers and payloads of all messages", |s| s.bytes;
    Gauge "fila_queue_active_keys", "Fairness keys that have messages", |s| s.active_keys;
    Gauge "fila_queue_active_groups", "Groups of fairness keys that have messages", |s| s.active_groups;
    Gauge "fila_queue_consumers", "Consumers", |s| s.consumers;
    Counter "fila_messages_enqueued", "Messages stored", |s| s.totals.enqueued;
    Counter "fila_messages_deduplicated", "Messages not stored again", |s| s.totals.deduplicated;
    Counter "fila_messages_refused", "Messages rejected", |s| s.totals.refused;
    Counter "fila_messages_over_part", "Messages rejected because their key or client held its part of a pool",
        |s| s.totals.over_part;
    Counter "fila_messages_delivered", "Deliveries", |s| s.totals.delivered;
    Counter "fila_messages_first_delivered", "First deliveries of a message", |s| s.totals.first_delivered;
    Counter "fila_messages_acked", "Deliveries that were acknowledged", |s| s.totals.acked;
    Counter "fila_messages_nacked", "Deliveries that failed by a nack", |s| s.totals.nacked;
    Counter "fila_leases_expired", "Deliveries without a result in time", |s| s.totals.lease_expired;
    Counter "fila_leases_released", "Deliveries that were given back", |s| s.totals.released;
    Counter "fila_results_late", "Results that came too late", |s| s.totals.late;
    Counter "fila_messages_expired", "Messages whose time to live passed", |s| s.totals.expired;
    Counter "fila_messages_purged", "Messages purged", |s| s.totals.purged;
    Counter "fila_messages_damaged", "Messages that could not be read back", |s| s.totals.damaged;
    Counter "fila_messages_retried", "Failed deliveries after which the message was to be delivered again",
        |s| s.totals.retried;
    Counter "fila_messages_dead_lettered", "Messages that became dead letters", |s| s.totals.dead_lettered;
    Counter "fila_dead_letters_refused", "Times that a message stayed in its queue because its queue of dead letters was full",
        |s| s.totals.dead_letters_refused;
    Counter "fila_messages_redriven", "Dead letters that returned to their queue", |s| s.totals.redriven;
    Counter "fila_messages_waited" Seconds, "Waits of all messages for their first deliveries, together",
        |s| s.totals.waited;
};

/// The figures of each hook of each queue.
const HOOK: &[Figure<HookFigures>] = figures! {
    Gauge "fila_hook_open", "1 if the broker does not call the hook, because it keeps failing or its script does not load, else 0",
        |hook| matches!(hook.state, HookState::Open { .. } | HookState::Broken);
    Counter "fila_hook_calls", "Calls of hooks", |hook| hook.calls;
    Counter "fila_hook_failures", "Failed calls of hooks", |hook| hook.failures;
    Counter "fila_hook_fallbacks", "Messages that got the fallback in place of a hook's answer", |hook| hook.fallbacks;
    Counter "fila_hook_adjusted", "Answers of hooks with a number that was brought into range", |hook| hook.adjusted;
    Counter "fila_hook_unusable", "Answers of hooks that could not be used, or not all of them", |hook| hook.unusable;
    Counter "fila_hook_busy" Seconds, "Duration of all calls of hooks, together", |hook| hook.busy;
};

/// The connections of one port.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) open: AtomicUsize,
    /// Connections that were turned away, because there were too many.
    pub(crate) refused: AtomicU64,
    /// Connections that were closed because their clients took too long.
    pub(crate) timed_out: AtomicU64,
    /// Connections that were closed because their TLS handshakes failed, or because they had none.
    pub(crate) unencrypted: AtomicU64,
}

/// The counts of the threads and tasks of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    commit_duration: Histogram,
    commit_operations: Histogram,
    swept_rows: AtomicU64,
    read_failures: AtomicU64,
    config_changes: AtomicU64,
    /// Absent in a runtime without a port.
    connections: OnceLock<Arc<ConnectionCounts>>,
    /// Absent in a server without TLS.
    tls: OnceLock<Tls>,
    /// Absent in a runtime without a port.
    receiving: OnceLock<Arc<Receiving>>,
    /// By scheduler thread.
    memory: OnceLock<Box<[AtomicUsize]>>,
    /// How many scheduler threads have consumers that wait for room.
    crowded: AtomicUsize,
    health: Mutex<Option<Health>>,
    /// Scheduler threads share it while they publish the figures of their queues.
    publishing: RwLock<()>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            // 50 µs to 1.6 s.
            commit_duration: Histogram::new(exponential_buckets(50e-6, 2.0, 16)),
            commit_operations: Histogram::new(exponential_buckets(1.0, 2.0, 16)),
            swept_rows: AtomicU64::new(0),
            read_failures: AtomicU64::new(0),
            config_changes: AtomicU64::new(0),
            connections: OnceLock::new(),
            tls: OnceLock::new(),
            receiving: OnceLock::new(),
            memory: OnceLock::new(),
            crowded: AtomicUsize::new(0),
            health: Mutex::new(None),
            publishing: RwLock::new(()),
        }
    }

    /// Lets a scheduler thread publish the figures of several queues at one moment. It waits for as long as a list is
    /// copied.
    pub(crate) fn publishing(&self) -> RwLockReadGuard<'_, ()> {
        let publishing = self.publishing.read();
        publishing.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the figures of queues at one moment: a message that moves between two of them is in those of one.
    pub(crate) fn at_one_moment(&self, queues: &[Arc<QueueEntry>]) -> Vec<QueueStats> {
        let publishing = self.publishing.write();
        let _alone = publishing.unwrap_or_else(PoisonError::into_inner);
        queues.iter().map(|queue| queue.stats()).collect()
    }

    /// Takes over the counts of a port, which opens before the runtime starts.
    pub(crate) fn count_connections(&self, counts: Arc<ConnectionCounts>) {
        let _ = self.connections.set(counts);
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> u64 {
        let counts = self.connections.get();
        counts.map_or(0, |counts| counts.open.load(Ordering::Relaxed) as u64)
    }

    fn counted(&self, count: impl FnOnce(&ConnectionCounts) -> &AtomicU64) -> u64 {
        let counts = self.connections.get();
        counts.map_or(0, |counts| count(counts).load(Ordering::Relaxed))
    }

    /// Takes over the certificates of a port.
    pub(crate) fn count_tls(&self, tls: Tls) {
        let _ = self.tls.set(tls);
    }

    fn tls<T: Default>(&self, figure: impl FnOnce(&Tls) -> T) -> T {
        self.tls.get().map(figure).unwrap_or_default()
    }

    /// Takes over the budget of a port.
    pub(crate) fn count_receiving(&self, receiving: Arc<Receiving>) {
        let _ = self.receiving.set(receiving);
    }

    fn receiving(&self, figure: fn(&Receiving) -> u64) -> u64 {
        self.receiving
            .get()
            .map_or(0, |receiving| figure(receiving))
    }

    /// Sets the number of scheduler threads.
    pub(crate) fn schedulers(&self, count: usize) {
        let _ = self
            .memory
            .set((0..count).map(|_| AtomicUsize::new(0)).collect());
    }

    pub(crate) fn committed(&self, took: Duration, operations: usize) {
        self.commit_duration.observe(took.as_secs_f64());
        self.commit_operations.observe(operations as f64);
    }

    pub(crate) fn swept(&self, rows: usize) {
        self.swept_rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub(crate) fn read_failed(&self) {
        self.read_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn config_changed(&self) {
        self.config_changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn store_health(&self, health: &Health) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = Some(health.clone());
    }

    pub(crate) fn memory_used(&self, thread: usize, bytes: usize) {
        if let Some(used) = self.memory.get().and_then(|memory| memory.get(thread)) {
            used.store(bytes, Ordering::Relaxed);
        }
    }

    /// Notes that consumers of one more scheduler thread wait for room, or of one less.
    pub(crate) fn crowd(&self, is_crowded: bool) {
        if is_crowded {
            self.crowded.fetch_add(1, Ordering::Relaxed);
        } else {
            self.crowded.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Tells whether consumers wait for room that the deliveries of others take.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn memory_used_now(&self) -> u64 {
        let memory = self.memory.get().into_iter().flatten();
        memory.map(|used| used.load(Ordering::Relaxed) as u64).sum()
    }

    fn health(&self) -> Option<Health> {
        let health = self.health.lock();
        health.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns a registry of all metrics of a server.
pub(crate) fn registry(handle: Handle) -> Registry {
    let mut registry = Registry::default();
    let metrics = handle.metrics();
    registry.register_with_unit(
        "fila_commit_duration",
        "How long storing a round took",
        Unit::Seconds,
        metrics.commit_duration.clone(),
    );
    registry.register(
        "fila_commit_operations",
        "Changes of messages stored in one round",
        metrics.commit_operations.clone(),
    );
    registry.register_collector(Box::new(ServerCollector(handle)));
    registry
}

/// Reads the server and its queues at the moment of the scrape.
#[derive(Debug)]
struct ServerCollector(Handle);

impl Collector for ServerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let server = ServerView {
            info: self.0.info(),
            metrics: self.0.metrics().clone(),
            config: self.0.config(),
            sandboxes: self.0.sandboxes(),
        };
        for figure in SERVER {
            figure.encode_alone(&mut encoder, &server)?;
        }
        if let Some(health) = server.metrics.health() {
            let store = (health, server.info.state);
            for figure in STORE {
                figure.encode_alone(&mut encoder, &store)?;
            }
        }
        let queues = self.0.queues("", "", usize::MAX);
        let stats = server.metrics.at_one_moment(&queues);
        let labels = queues.iter().map(|queue| [label(queue)]);
        let stats: Vec<_> = labels.zip(stats).collect();
        for figure in QUEUE {
            figure.encode_each(&mut encoder, &stats)?;
        }
        let hooks: Vec<_> = queues
            .iter()
            .flat_map(|queue| queue.hooks().into_iter().map(move |hook| (queue, hook)))
            .map(|(queue, hook)| ([label(queue), ("hook", hook.name)], hook))
            .collect();
        for figure in HOOK {
            figure.encode_each(&mut encoder, &hooks)?;
        }
        Ok(())
    }
}

fn label(queue: &QueueEntry) -> (&'static str, &str) {
    ("queue", queue.name.as_str())
}

impl<T> Figure<T> {
    /// Encodes the metric of an item that there is one of.
    fn encode_alone(&self, encoder: &mut DescriptorEncoder<'_>, item: &T) -> fmt::Result {
        let (name, help, unit) = (self.name, self.help, self.unit.as_ref());
        let metric = encoder.encode_descriptor(name, help, unit, self.kind)?;
        self.encode_value(metric, item)
    }

    /// Encodes the metric of each item, with its labels.
    fn encode_each<const N: usize>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        items: &[([(&str, &str); N], T)],
    ) -> fmt::Result {
        let (name, help, unit) = (self.name, self.help, self.unit.as_ref());
        let mut family = encoder.encode_descriptor(name, help, unit, self.kind)?;
        for (labels, item) in items {
            self.encode_value(family.encode_family(labels)?, item)?;
        }
        Ok(())
    }

    fn encode_value(&self, mut metric: MetricEncoder<'_>, item: &T) -> fmt::Result {
        let value = (self.value)(item);
        match (self.kind, value) {
            (MetricType::Counter, Value::Whole(value)) => {
                metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
            }
            (MetricType::Counter, Value::Seconds(value)) => {
                metric.encode_counter::<NoLabelSet, _, u64>(&value.as_secs_f64(), None)
            }
            (_, Value::Whole(value)) => {
                metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
            }
            (_, Value::Seconds(value)) => metric.encode_gauge(&value.as_secs_f64()),
        }
    }
}
