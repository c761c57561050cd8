//! What the server counts, and under which names it shows it.
//!
//! Numbers are counted as things happen and read when somebody scrapes. Figures of queues are those that their
//! scheduler threads have published last. The only labels are the queue's name, of which `limits.queues` bounds how many
//! there are, and which of the two hooks it is; fairness keys, tenants and messages are never labels. The client library adds `_total` to the names of
//! counters and the unit to the names of all.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fila_core::QueueStats;
use fila_store::{Health, Writes};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::runtime::{Handle, HookFigures, HookState, QueueEntry, State};

/// A metric's name, and its help text.
type Metric = (&'static str, &'static str);

const COMMIT_DURATION: Metric = ("fila_commit_duration", "How long storing a round took");
const COMMIT_OPERATIONS: Metric = (
    "fila_commit_operations",
    "Changes of messages that were stored in one round",
);
const SWEPT_ROWS: Metric = (
    "fila_store_swept_rows",
    "Rows of purged and deleted messages that were removed",
);
const CONNECTIONS: Metric = ("fila_connections", "Connections that are open");
const CONNECTIONS_REFUSED: Metric = (
    "fila_connections_refused",
    "Connections closed at once because limits.connections was reached",
);
const CONSUMERS: Metric = ("fila_consumers", "Consumers of all queues");
const QUEUES: Metric = ("fila_queues", "Queues");
const CONFIG_ENTRIES: Metric = (
    "fila_config_entries",
    "Entries of the runtime configuration",
);
const CONFIG_SIZE: Metric = (
    "fila_config_size",
    "Keys and values of the runtime configuration",
);
const CONFIG_CHANGES: Metric = (
    "fila_config_changes",
    "Entries of the runtime configuration that were set or deleted",
);
const MEMORY_USED: Metric = ("fila_memory_used", "Messages that are kept in memory");
const MEMORY_BUDGET: Metric = (
    "fila_memory_budget",
    "Messages that may be kept in memory, by storage.memory_budget",
);
const READY: Metric = ("fila_ready", "1 if the server can be used, else 0");
const STORE_WRITABLE: Metric = ("fila_store_writable", "1 if the store takes writes, else 0");
const STORE_SIZE: Metric = ("fila_store_size", "What the store takes on the disk");
const STORE_JOURNALS: Metric = (
    "fila_store_journals",
    "Journals whose contents are not flushed yet; more than a handful means that the disk fills",
);
const STORE_LEFTOVERS: Metric = (
    "fila_store_leftovers",
    "Purged generations and deleted queues that are not swept yet",
);

const WAITED: Metric = (
    "fila_messages_waited",
    "How long messages have waited for their first deliveries, together",
);

const HOOK_SANDBOXES: Metric = (
    "fila_hook_sandboxes",
    "Sandboxes in which scripts are ready to run",
);
const HOOK_BUSY: Metric = ("fila_hook_busy", "How long calls of hooks took, together");

type HookFigure = (Metric, MetricType, fn(&HookFigures) -> u64);

/// What is shown of each hook of each queue.
const HOOK_FIGURES: [HookFigure; 4] = [
    (
        (
            "fila_hook_open",
            "1 if the hook is not asked, because it keeps failing or its script does not load, else 0",
        ),
        MetricType::Gauge,
        |hook| {
            u64::from(matches!(
                hook.state,
                HookState::Open { .. } | HookState::Broken
            ))
        },
    ),
    (
        ("fila_hook_calls", "Calls of hooks"),
        MetricType::Counter,
        |hook| hook.calls,
    ),
    (
        ("fila_hook_failures", "Calls of hooks that gave no answer"),
        MetricType::Counter,
        |hook| hook.failures,
    ),
    (
        (
            "fila_hook_fallbacks",
            "Messages that got what stands in for a hook's answer",
        ),
        MetricType::Counter,
        |hook| hook.fallbacks,
    ),
];

type Figure = (Metric, Option<Unit>, fn(&QueueStats) -> u64);

/// What is so now, for each queue.
const QUEUE_GAUGES: [Figure; 8] = [
    (
        (
            "fila_queue_ready_messages",
            "Messages that may be delivered",
        ),
        None,
        |s| s.ready,
    ),
    (
        (
            "fila_queue_delayed_messages",
            "Messages that wait for their time",
        ),
        None,
        |s| s.delayed,
    ),
    (
        (
            "fila_queue_throttled_messages",
            "Ready messages that wait for a token of a throttle",
        ),
        None,
        |s| s.throttled,
    ),
    (
        (
            "fila_queue_leased_messages",
            "Messages that are with a consumer",
        ),
        None,
        |s| s.leased,
    ),
    (
        (
            "fila_queue_stored_only_messages",
            "Ready messages that are in the store only",
        ),
        None,
        |s| s.stored_only,
    ),
    (
        ("fila_queue_size", "Headers and payloads of all messages"),
        Some(Unit::Bytes),
        |s| s.bytes,
    ),
    (
        ("fila_queue_active_keys", "Fairness keys that have messages"),
        None,
        |s| s.active_keys,
    ),
    (("fila_queue_consumers", "Consumers"), None, |s| s.consumers),
];

/// What has happened since the server was started, for each queue.
const QUEUE_COUNTERS: [Figure; 17] = [
    (("fila_messages_enqueued", "Messages stored"), None, |s| {
        s.totals.enqueued
    }),
    (
        ("fila_messages_deduplicated", "Messages not stored again"),
        None,
        |s| s.totals.deduplicated,
    ),
    (("fila_messages_refused", "Messages refused"), None, |s| {
        s.totals.refused
    }),
    (("fila_messages_delivered", "Deliveries"), None, |s| {
        s.totals.delivered
    }),
    (
        (
            "fila_messages_first_delivered",
            "Deliveries that were a message's first",
        ),
        None,
        |s| s.totals.first_delivered,
    ),
    (
        ("fila_messages_acked", "Deliveries that ended well"),
        None,
        |s| s.totals.acked,
    ),
    (
        ("fila_messages_nacked", "Deliveries that ended badly"),
        None,
        |s| s.totals.nacked,
    ),
    (
        ("fila_leases_expired", "Deliveries without a result in time"),
        None,
        |s| s.totals.lease_expired,
    ),
    (
        ("fila_leases_released", "Deliveries that were given back"),
        None,
        |s| s.totals.released,
    ),
    (
        ("fila_results_late", "Results that came too late"),
        None,
        |s| s.totals.late,
    ),
    (
        (
            "fila_messages_expired",
            "Messages whose time to live passed",
        ),
        None,
        |s| s.totals.expired,
    ),
    (("fila_messages_purged", "Messages purged"), None, |s| {
        s.totals.purged
    }),
    (
        (
            "fila_messages_damaged",
            "Messages that could not be read back",
        ),
        None,
        |s| s.totals.damaged,
    ),
    (
        (
            "fila_messages_retried",
            "Deliveries that ended badly, after which the message was to be delivered again",
        ),
        None,
        |s| s.totals.retried,
    ),
    (
        (
            "fila_messages_dead_lettered",
            "Messages that became dead letters",
        ),
        None,
        |s| s.totals.dead_lettered,
    ),
    (
        (
            "fila_dead_letters_refused",
            "Times that a message was kept, and tried again, because there was no room for one more dead letter",
        ),
        None,
        |s| s.totals.dead_letters_refused,
    ),
    (
        (
            "fila_messages_redriven",
            "Dead letters that went back to the queue that they had come from",
        ),
        None,
        |s| s.totals.redriven,
    ),
];

/// The connections of one port.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) open: AtomicUsize,
    /// Closed at once, because there were too many.
    pub(crate) refused: AtomicU64,
}

/// What is counted by the threads and tasks of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    commit_duration: Histogram,
    commit_operations: Histogram,
    swept_rows: AtomicU64,
    config_changes: AtomicU64,
    /// There are none in a runtime without a port.
    connections: OnceLock<Arc<ConnectionCounts>>,
    /// By scheduler thread.
    memory: OnceLock<Box<[AtomicUsize]>>,
    health: Mutex<Option<Health>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            // 50 µs to 1.6 s.
            commit_duration: Histogram::new(exponential_buckets(50e-6, 2.0, 16)),
            commit_operations: Histogram::new(exponential_buckets(1.0, 2.0, 16)),
            swept_rows: AtomicU64::new(0),
            config_changes: AtomicU64::new(0),
            connections: OnceLock::new(),
            memory: OnceLock::new(),
            health: Mutex::new(None),
        }
    }

    /// Takes over the counts of a port, which is open before there is anything else.
    pub(crate) fn count_connections(&self, counts: Arc<ConnectionCounts>) {
        let _ = self.connections.set(counts);
    }

    /// Returns how many connections are open.
    pub(crate) fn connections(&self) -> u64 {
        let counts = self.connections.get();
        counts.map_or(0, |counts| counts.open.load(Ordering::Relaxed) as u64)
    }

    fn connections_refused(&self) -> u64 {
        let counts = self.connections.get();
        counts.map_or(0, |counts| counts.refused.load(Ordering::Relaxed))
    }

    /// Says how many scheduler threads there are.
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

    pub(crate) fn memory_used_now(&self) -> u64 {
        let memory = self.memory.get().into_iter().flatten();
        memory.map(|used| used.load(Ordering::Relaxed) as u64).sum()
    }

    fn health(&self) -> Option<Health> {
        let health = self.health.lock();
        health.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns a registry of everything that a server shows.
pub(crate) fn registry(handle: Handle) -> Registry {
    let mut registry = Registry::default();
    let metrics = handle.metrics();
    let (name, help) = COMMIT_DURATION;
    let histogram = metrics.commit_duration.clone();
    registry.register_with_unit(name, help, Unit::Seconds, histogram);
    let (name, help) = COMMIT_OPERATIONS;
    registry.register(name, help, metrics.commit_operations.clone());
    registry.register_collector(Box::new(ServerCollector(handle)));
    registry
}

/// Reads what the server is and what its queues are, at the moment of the scrape.
#[derive(Debug)]
struct ServerCollector(Handle);

impl Collector for ServerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_server(&mut encoder)?;
        self.encode_store(&mut encoder)?;
        let queues = self.0.queues("", "", usize::MAX);
        let queues: Vec<(Arc<QueueEntry>, QueueStats)> = queues
            .into_iter()
            .map(|queue| (queue.clone(), queue.stats()))
            .collect();
        for figure in QUEUE_GAUGES {
            encode_queues(&mut encoder, figure, MetricType::Gauge, &queues)?;
        }
        for figure in QUEUE_COUNTERS {
            encode_queues(&mut encoder, figure, MetricType::Counter, &queues)?;
        }
        encode_waited(&mut encoder, &queues)?;
        encode_hooks(&mut encoder, &queues)
    }
}

impl ServerCollector {
    fn encode_server(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (info, metrics) = (self.0.info(), self.0.metrics());
        let bytes = Some(&Unit::Bytes);
        let ready = u64::from(info.state == State::Ready);
        gauge(encoder, READY, None, ready)?;
        gauge(encoder, QUEUES, None, info.queues as u64)?;
        gauge(encoder, CONSUMERS, None, info.consumers as u64)?;
        gauge(encoder, MEMORY_USED, bytes, info.memory_used)?;
        gauge(encoder, MEMORY_BUDGET, bytes, info.memory_budget)?;
        gauge(encoder, CONNECTIONS, None, metrics.connections())?;
        let refused = metrics.connections_refused();
        counter(encoder, CONNECTIONS_REFUSED, refused)?;
        let config = self.0.config();
        gauge(encoder, CONFIG_ENTRIES, None, config.len() as u64)?;
        gauge(encoder, CONFIG_SIZE, bytes, config.bytes() as u64)?;
        let changes = metrics.config_changes.load(Ordering::Relaxed);
        counter(encoder, CONFIG_CHANGES, changes)?;
        gauge(encoder, HOOK_SANDBOXES, None, self.0.sandboxes() as u64)?;
        let swept = metrics.swept_rows.load(Ordering::Relaxed);
        counter(encoder, SWEPT_ROWS, swept)
    }

    fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(health) = self.0.metrics().health() else {
            return Ok(());
        };
        let writable = match (health.writes, self.0.info().state) {
            (Writes::Poisoned, _) | (Writes::Taken, State::Failed) => 0,
            (Writes::Taken, _) => 1,
        };
        gauge(encoder, STORE_WRITABLE, None, writable)?;
        gauge(encoder, STORE_SIZE, Some(&Unit::Bytes), health.bytes)?;
        gauge(encoder, STORE_JOURNALS, None, health.journals as u64)?;
        gauge(encoder, STORE_LEFTOVERS, None, health.leftovers as u64)
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): Metric,
    unit: Option<&Unit>,
    value: u64,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    prometheus_client::metrics::gauge::ConstGauge::new(value).encode(metric)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, (name, help): Metric, value: u64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    prometheus_client::metrics::counter::ConstCounter::new(value).encode(metric)
}

fn encode_waited(
    encoder: &mut DescriptorEncoder<'_>,
    queues: &[(Arc<QueueEntry>, QueueStats)],
) -> fmt::Result {
    let (name, help) = WAITED;
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
    for (queue, stats) in queues {
        let labels = [("queue", queue.name.as_str())];
        let waited = stats.totals.waited.as_secs_f64();
        let mut metric = family.encode_family(&labels)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&waited, None)?;
    }
    Ok(())
}

fn encode_hooks(
    encoder: &mut DescriptorEncoder<'_>,
    queues: &[(Arc<QueueEntry>, QueueStats)],
) -> fmt::Result {
    let hooks: Vec<(&str, HookFigures)> = queues
        .iter()
        .flat_map(|(queue, _)| {
            let hooks = queue.hooks().into_iter();
            hooks.map(|hook| (queue.name.as_str(), hook))
        })
        .collect();
    for ((name, help), kind, value) in HOOK_FIGURES {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (queue, hook) in &hooks {
            let labels = [("queue", *queue), ("hook", hook.name)];
            let mut metric = family.encode_family(&labels)?;
            match kind {
                MetricType::Counter => {
                    metric.encode_counter::<NoLabelSet, _, u64>(&value(hook), None)?;
                }
                _ => metric.encode_gauge(&i64::try_from(value(hook)).unwrap_or(i64::MAX))?,
            }
        }
    }
    let (name, help) = HOOK_BUSY;
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
    for (queue, hook) in &hooks {
        let labels = [("queue", *queue), ("hook", hook.name)];
        let mut metric = family.encode_family(&labels)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&hook.busy.as_secs_f64(), None)?;
    }
    Ok(())
}

fn encode_queues(
    encoder: &mut DescriptorEncoder<'_>,
    ((name, help), unit, value): Figure,
    kind: MetricType,
    queues: &[(Arc<QueueEntry>, QueueStats)],
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
    for (queue, stats) in queues {
        let labels = [("queue", queue.name.as_str())];
        let mut metric = family.encode_family(&labels)?;
        match kind {
            MetricType::Counter => {
                metric.encode_counter::<NoLabelSet, _, u64>(&value(stats), None)?;
            }
            _ => {
                let value = i64::try_from(value(stats)).unwrap_or(i64::MAX);
                metric.encode_gauge(&value)?;
            }
        }
    }
    Ok(())
}
