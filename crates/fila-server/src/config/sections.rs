//! The configuration as typed data, with its defaults.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use fila_store::Durability;
use http::Uri;

use super::byte_size::ByteSize;
use super::values::{LogFilter, LogFormat, StorageEngine};

/// How a server is set up. `docs/configuration.md` says of every field when to change it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Where the server listens, and how it starts and stops.
    pub server: ServerConfig,
    /// Who decides whose turn it is, and in what grain.
    pub scheduler: SchedulerConfig,
    /// Where messages are kept, and how safely.
    pub storage: StorageConfig,
    /// What hooks may take, and when they are no longer asked.
    pub lua: LuaConfig,
    /// What a client may at most ask for.
    pub limits: LimitsConfig,
    /// What the server says of itself.
    pub telemetry: TelemetryConfig,
}

/// Where the server listens, and how it starts and stops.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Where gRPC, metrics and health are served.
    pub address: SocketAddr,
    /// How many threads serve connections; one per core if absent.
    pub worker_threads: Option<NonZeroUsize>,
    /// How long a shutdown waits for commits and streams to finish.
    pub shutdown_timeout: Duration,
    /// Whether an address that others can reach is allowed, though nobody is authenticated and nothing encrypted.
    pub insecure: bool,
}

/// Who decides whose turn it is, and in what grain.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SchedulerConfig {
    /// How many threads schedule; queues are spread over them.
    pub threads: NonZeroUsize,
    /// What a fairness key of weight one is granted per visit, in thousandths of a message.
    pub quantum: NonZeroU64,
}

/// Where messages are kept, and how safely.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StorageConfig {
    /// The directory of the database.
    pub path: PathBuf,
    /// What keeps the messages.
    pub engine: StorageEngine,
    /// How far a message has got when it is confirmed.
    pub durability: Durability,
    /// How much of fresh messages is kept in memory; what is beyond is read back from the store.
    pub memory_budget: ByteSize,
    /// The size of the database's block cache.
    pub cache: ByteSize,
    /// How often rows of purged and deleted queues are swept.
    pub sweep_interval: Duration,
}

/// What hooks may take, and when they are no longer asked.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LuaConfig {
    /// How long a hook may run for one message.
    pub default_timeout: Duration,
    /// How much memory a script may take.
    pub default_memory_limit_bytes: ByteSize,
    /// How many failures in a row open a hook's circuit breaker.
    pub circuit_breaker_threshold: NonZeroU32,
    /// How long an open circuit breaker keeps a hook from being asked.
    pub circuit_breaker_cooldown: Duration,
}

/// What a client may at most ask for. Beyond it the answer is a refusal that names the limit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitsConfig {
    /// The size of a payload.
    pub payload_bytes: ByteSize,
    /// How many headers a message has.
    pub headers: usize,
    /// The size of a message's headers, names and values together.
    pub header_bytes: ByteSize,
    /// The size of a fairness key.
    pub fairness_key_bytes: ByteSize,
    /// How many queues there are.
    pub queues: NonZeroUsize,
    /// How many fairness keys of a queue have messages.
    pub keys_per_queue: NonZeroUsize,
    /// How many messages a queue holds.
    pub depth_per_queue: NonZeroU64,
    /// How many messages of a queue one fairness key holds.
    pub depth_per_key: NonZeroU64,
    /// How many messages of a queue wait for their time.
    pub delayed_per_queue: usize,
    /// How many deduplication ids a queue remembers.
    pub deduplication_ids_per_queue: usize,
    /// How many fairness keys of a queue have settings of their own.
    pub key_settings_per_queue: usize,
    /// How many consumers there are.
    pub consumers: NonZeroUsize,
    /// How many messages are leased to one consumer.
    pub in_flight_per_consumer: NonZeroU32,
    /// How many messages are leased to a consumer that names no number.
    pub prefetch_default: NonZeroU32,
    /// How many messages of one produce stream are unconfirmed.
    pub produce_window: NonZeroU32,
    /// How many messages, or results, are in one batch.
    pub batch_messages: NonZeroUsize,
    /// The longest delay and the longest time to live.
    pub delay: Duration,
    /// How many connections are open.
    pub connections: NonZeroUsize,
    /// How many bytes of unconfirmed messages the server holds.
    pub buffered_bytes: ByteSize,
    /// How many entries the runtime configuration has.
    pub config_entries: usize,
    /// The size of a key of the runtime configuration.
    pub config_key_bytes: ByteSize,
    /// The size of a value of the runtime configuration.
    pub config_value_bytes: ByteSize,
    /// The size of the runtime configuration, keys and values together.
    pub config_bytes: ByteSize,
}

/// What the server says of itself.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TelemetryConfig {
    /// What is logged.
    pub log: LogFilter,
    /// How it is logged.
    pub log_format: LogFormat,
    /// Where traces are exported to by OTLP over gRPC; nowhere if absent.
    pub otlp_endpoint: Option<Uri>,
    /// What the server is called in traces.
    pub service_name: String,
    /// Which part of the traces that start here is exported, from 0 to 1.
    pub trace_ratio: f64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 5555)),
            worker_threads: None,
            shutdown_timeout: Duration::from_secs(10),
            insecure: false,
        }
    }
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            threads: NonZeroUsize::MIN,
            quantum: nonzero_u64(1000),
        }
    }
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::from("fila-data"),
            engine: StorageEngine::default(),
            durability: Durability::default(),
            memory_budget: ByteSize::mib(256),
            cache: ByteSize::mib(32),
            sweep_interval: Duration::from_secs(1),
        }
    }
}

impl Default for LuaConfig {
    fn default() -> Self {
        Self {
            default_timeout: Duration::from_millis(10),
            default_memory_limit_bytes: ByteSize::mib(1),
            circuit_breaker_threshold: nonzero_u32(3),
            circuit_breaker_cooldown: Duration::from_secs(10),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            payload_bytes: ByteSize::mib(1),
            headers: 64,
            header_bytes: ByteSize::kib(16),
            fairness_key_bytes: ByteSize::new(256),
            queues: nonzero_usize(10_000),
            keys_per_queue: nonzero_usize(1_000_000),
            depth_per_queue: nonzero_u64(100_000_000),
            depth_per_key: nonzero_u64(100_000_000),
            delayed_per_queue: 1_000_000,
            deduplication_ids_per_queue: 1_000_000,
            key_settings_per_queue: 10_000,
            consumers: nonzero_usize(10_000),
            in_flight_per_consumer: nonzero_u32(10_000),
            prefetch_default: nonzero_u32(64),
            produce_window: nonzero_u32(16_384),
            batch_messages: nonzero_usize(10_000),
            delay: Duration::from_secs(365 * 24 * 60 * 60),
            connections: nonzero_usize(10_000),
            buffered_bytes: ByteSize::mib(64),
            config_entries: 10_000,
            config_key_bytes: ByteSize::new(256),
            config_value_bytes: ByteSize::kib(64),
            config_bytes: ByteSize::mib(16),
        }
    }
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log: LogFilter::default(),
            log_format: LogFormat::default(),
            otlp_endpoint: None,
            service_name: "fila".to_owned(),
            trace_ratio: 1.0,
        }
    }
}

const fn nonzero_u32(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("a default above is not zero")
}

const fn nonzero_u64(value: u64) -> NonZeroU64 {
    NonZeroU64::new(value).expect("a default above is not zero")
}

const fn nonzero_usize(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).expect("a default above is not zero")
}
