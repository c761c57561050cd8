//! The table of keys: the one place that says what can be configured.
//!
//! One row declares one key: its sentence, its field, the key's name if it differs from the field's, the type, the
//! default, and the kind that says what it takes. [`keys!`] makes the struct, its `Default` and the rows of [`Key`] from
//! it, so they cannot disagree.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use fila_store::{CONFIG_MAX, ConfigKey, Durability};
use http::Uri;

use super::keys::{Key, Section};
use super::kinds::{self, Kind, millis, size, whole};
use super::values::{ByteSize, ClientCertificates, LogFilter, LogFormat, StorageEngine};

const BYTE: ByteSize = ByteSize::new(1);
const MIB: ByteSize = ByteSize::mib(1);
const TIB: ByteSize = ByteSize::mib(1 << 20);
const MILLION: u64 = 1_000_000;
const HOUR_MS: u64 = 60 * 60 * 1000;

/// How a server is set up. `docs/configuration.md` says when to change each value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The section `[server]`.
    pub server: ServerConfig,
    /// The section `[tls]`.
    pub tls: TlsConfig,
    /// The section `[scheduler]`.
    pub scheduler: SchedulerConfig,
    /// The section `[storage]`.
    pub storage: StorageConfig,
    /// The section `[lua]`.
    pub lua: LuaConfig,
    /// The section `[limits]`.
    pub limits: LimitsConfig,
    /// The section `[telemetry]`.
    pub telemetry: TelemetryConfig,
}

/// All keys in the order in which they are printed, the keys of one section together.
pub(super) static GROUPS: &[&[Key]] = &[
    ServerConfig::KEYS,
    TlsConfig::KEYS,
    SchedulerConfig::KEYS,
    StorageConfig::KEYS,
    LuaConfig::KEYS,
    MessageLimits::KEYS,
    LimitsConfig::KEYS,
    RuntimeConfigLimits::KEYS,
    TelemetryConfig::KEYS,
];

/// Declares a group of keys: a struct with a field for each key (and for each group `with`in it), its defaults, and its
/// rows of the table.
macro_rules! keys {
    (
        $(#[$meta:meta])*
        $group:ident in $section:ident, at $at:expr $(, with $inner:ident: $inner_type:ident)*;
        $(
            $(#[doc = $doc:literal])+
            $field:ident $($name:literal)?: $type:ty = $default:expr, $kind:expr;
        )+
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $group {
            $(
                #[doc = concat!("See [`", stringify!($inner_type), "`].")]
                pub $inner: $inner_type,
            )*
            $(
                $(#[doc = $doc])+
                pub $field: $type,
            )+
        }

        impl Default for $group {
            fn default() -> Self {
                Self {
                    $($inner: $inner_type::default(),)*
                    $($field: $default,)+
                }
            }
        }

        impl $group {
            const AT: fn(&mut Config) -> &mut Self = $at;
            const KEYS: &'static [Key] = &[$(Key {
                section: Section::$section,
                name: keys!(@name $field $($name)?),
                doc: concat!($($doc),+),
                allowed: || {
                    let kind: Kind<$type> = $kind;
                    kind.allowed
                },
                set: |config, given| {
                    let kind: Kind<$type> = $kind;
                    Self::AT(config).$field = kind.read(given)?;
                    Ok(())
                },
                toml: |config| {
                    let kind: Kind<$type> = $kind;
                    kind.toml(&Self::AT(config).$field)
                },
            }),+];
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
}

keys! {
    /// Where the server listens, and how it starts and stops.
    ServerConfig in Server, at |config| &mut config.server;

    /// The address that serves gRPC, metrics and health.
    address: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 5555)), kinds::address();
    /// Number of threads that serve connections; 0 for one per core.
    worker_threads: Option<NonZeroUsize> = None, kinds::whole_or_none(1024);
    /// How long a shutdown waits for commits and streams to finish.
    shutdown_timeout "shutdown_timeout_ms": Duration = Duration::from_secs(10), millis(0..=HOUR_MS);
    /// Whether other machines may reach the address without encryption, or without authentication.
    insecure: bool = false, kinds::switch();
    /// A second address, without TLS, that serves health to probes; empty for none.
    probe_address: Option<SocketAddr> = None, kinds::address_or_none();
    /// Whether the second address serves metrics, too.
    probe_metrics: bool = false, kinds::switch();
}

keys! {
    /// How connections are encrypted.
    TlsConfig in Tls, at |config| &mut config.tls;

    /// The file with the server's certificate and those of its issuers, in PEM; empty for no TLS.
    certificate_file: Option<PathBuf> = None, kinds::path_or_none();
    /// The file with the key of the certificate, in PEM.
    key_file: Option<PathBuf> = None, kinds::path_or_none();
    /// The file with the certificates that sign the certificates of clients, in PEM.
    client_ca_file: Option<PathBuf> = None, kinds::path_or_none();
    /// Whether clients show certificates.
    client_certificates: ClientCertificates = ClientCertificates::default(), kinds::client_certificates();
}

keys! {
    /// How scheduling is spread over threads, and how finely fairness keys alternate.
    SchedulerConfig in Scheduler, at |config| &mut config.scheduler;

    /// Number of scheduler threads; queues are spread over them.
    threads: NonZeroUsize = NonZeroUsize::MIN, whole(1..=64);
    /// The grant of a fairness key of weight 1 per visit, in thousandths of a message.
    quantum: NonZeroU64 = nonzero(1000_u64), whole(1..=1000 * MILLION);
}

keys! {
    /// Where messages are stored, and how safely.
    StorageConfig in Storage, at |config| &mut config.storage;

    /// The directory of the database.
    path: PathBuf = PathBuf::from("fila-data"), kinds::path();
    /// The storage engine.
    engine: StorageEngine = StorageEngine::default(), kinds::engine();
    /// Where a message is when the broker confirms it:
    /// on the disk, with the operating system, or in this process.
    durability: Durability = Durability::default(), kinds::durability();
    /// How much of the fresh messages stays in memory; the broker reads the rest back from the store.
    memory_budget: ByteSize = ByteSize::mib(256), size(MIB, TIB);
    /// The size of the database's block cache.
    cache: ByteSize = ByteSize::mib(32), size(MIB, TIB);
    /// How often the broker sweeps the rows of purged and deleted queues.
    sweep_interval "sweep_interval_ms": Duration = Duration::from_secs(1), millis(10..=HOUR_MS);
}

keys! {
    /// How much time and memory hooks may use, and when the broker stops calling a failing hook.
    LuaConfig in Lua, at |config| &mut config.lua;

    /// How long a hook may run for one message, in CPU time of its thread.
    default_timeout "default_timeout_ms": Duration = Duration::from_millis(10), millis(1..=1000);
    /// How much memory a script and its data may use.
    default_memory_limit_bytes: ByteSize = MIB, size(ByteSize::kib(64), ByteSize::mib(32));
    /// Number of failures in a row that open a hook's circuit breaker.
    circuit_breaker_threshold: NonZeroU32 = nonzero(3_u32), whole(1..=MILLION);
    /// How long an open circuit breaker keeps the broker from calling a hook.
    circuit_breaker_cooldown "circuit_breaker_cooldown_ms": Duration
        = Duration::from_secs(10), millis(1..=24 * HOUR_MS);
}

keys! {
    /// The limits of one message.
    MessageLimits in Limits, at |config| &mut config.limits.message;

    /// The size of a message's payload.
    payload_bytes: ByteSize = MIB, size(BYTE, ByteSize::mib(64));
    /// Number of headers of a message.
    headers: usize = 64, whole(0..=1024);
    /// The size of a message's headers, names and values together.
    header_bytes: ByteSize = ByteSize::kib(16), size(ByteSize::new(0), MIB);
    /// The size of a fairness key.
    fairness_key_bytes: ByteSize = ByteSize::new(256), size(BYTE, ByteSize::new(512));
}

keys! {
    /// The most that clients may ask for. The server rejects a request beyond a limit and names the limit.
    LimitsConfig in Limits, at |config| &mut config.limits,
        with message: MessageLimits, with runtime_config: RuntimeConfigLimits;

    /// Number of queues.
    queues: NonZeroUsize = nonzero(10_000_usize), whole(1..=MILLION);
    /// Number of fairness keys of a queue that have messages.
    keys_per_queue: NonZeroUsize = nonzero(1_000_000_usize), whole(1..=100 * MILLION);
    /// Number of messages in a queue.
    depth_per_queue: NonZeroU64 = nonzero(100_000_000_u64), whole(1..=MILLION * MILLION);
    /// Number of messages of one fairness key in a queue.
    depth_per_key: NonZeroU64 = nonzero(100_000_000_u64), whole(1..=MILLION * MILLION);
    /// Number of messages of a queue that wait for their time.
    delayed_per_queue: usize = 1_000_000, whole(0..=100 * MILLION);
    /// Number of deduplication ids that a queue remembers.
    deduplication_ids_per_queue: usize = 1_000_000, whole(0..=100 * MILLION);
    /// Number of fairness keys of a queue that have settings of their own.
    key_settings_per_queue: usize = 10_000, whole(0..=MILLION);
    /// Number of consumers.
    consumers: NonZeroUsize = nonzero(10_000_usize), whole(1..=MILLION);
    /// Number of messages that one consumer has leased.
    in_flight_per_consumer: NonZeroU32 = nonzero(10_000_u32), whole(1..=100_000);
    /// Number of messages that a consumer gets leased if it names no number.
    prefetch_default: NonZeroU32 = nonzero(64_u32), whole(1..=100_000);
    /// Number of unconfirmed messages of one produce stream.
    produce_window: NonZeroU32 = nonzero(16_384_u32), whole(1..=MILLION);
    // Clients put 1,000 messages into a batch without asking, so the limit cannot be lower.
    /// Number of messages, or results, in one batch.
    batch_messages: NonZeroUsize = nonzero(10_000_usize), whole(1_000..=100_000);
    /// The longest delay of a message, and its longest time to live.
    delay "delay_ms": Duration
        = Duration::from_secs(365 * 24 * 60 * 60), millis(0..=100 * 365 * 24 * HOUR_MS);
    /// Number of open connections.
    connections: NonZeroUsize = nonzero(10_000_usize), whole(1..=MILLION);
    /// How many bytes of unconfirmed messages the server holds.
    buffered_bytes: ByteSize = ByteSize::mib(64), size(MIB, ByteSize::mib(128));
    /// How many bytes of requests the server receives at once.
    receiving_bytes: ByteSize = ByteSize::mib(64), size(ByteSize::mib(32), ByteSize::mib(4096));
}

keys! {
    /// The limits of the runtime configuration.
    RuntimeConfigLimits in Limits, at |config| &mut config.limits.runtime_config;

    /// Number of entries in the runtime configuration.
    entries "config_entries": usize = 10_000, whole(0..=100_000);
    /// The size of a key of the runtime configuration.
    key_bytes "config_key_bytes": ByteSize
        = ByteSize::new(256), size(BYTE, ByteSize::new(ConfigKey::MAX as u64));
    /// The size of a value of the runtime configuration.
    value_bytes "config_value_bytes": ByteSize
        = ByteSize::kib(64), size(BYTE, ByteSize::new(CONFIG_MAX as u64));
    /// The size of the runtime configuration, keys and values together.
    bytes "config_bytes": ByteSize
        = ByteSize::mib(16), size(ByteSize::new(0), ByteSize::mib(1024));
}

keys! {
    /// Logs and traces of the server.
    TelemetryConfig in Telemetry, at |config| &mut config.telemetry;

    /// The log level, or levels per target.
    log: LogFilter = LogFilter::default(), kinds::log_filter();
    /// How log lines look.
    log_format: LogFormat = LogFormat::default(), kinds::log_format();
    /// Where the server exports traces to by OTLP over gRPC; empty for nowhere.
    otlp_endpoint: Option<Uri> = None, kinds::endpoint();
    /// The name of the server in traces.
    service_name: String = "fila".to_owned(), kinds::name();
    /// The share of traces that start here and are exported; a sampled parent is always followed.
    trace_ratio: f64 = 1.0, kinds::ratio();
}

impl TlsConfig {
    /// Returns whether the server speaks TLS.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.certificate_file.is_some()
    }
}

fn nonzero<N, T: TryFrom<N>>(value: N) -> T {
    let value = T::try_from(value).ok();
    value.expect("a default above is not zero")
}
