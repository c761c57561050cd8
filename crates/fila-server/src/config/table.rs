//! The table of keys: the one place that says what can be configured.

use fila_store::{CONFIG_MAX, ConfigKey};

use super::byte_size::ByteSize;
use super::field::{Field, Millis, Ratio, Size, Switch, Whole};
use super::keys::{Key, Section};
use super::texts::{
    ADDRESS, DURABILITY, ENGINE, LOG, LOG_FORMAT, OTLP_ENDPOINT, PATH, SERVICE_NAME,
};

const MIB: ByteSize = ByteSize::mib(1);
const TIB: ByteSize = ByteSize::mib(1 << 20);
const MILLION: u64 = 1_000_000;
const HOUR_MS: u64 = 60 * 60 * 1000;

const fn server(name: &'static str, field: &'static dyn Field, doc: &'static str) -> Key {
    key(Section::Server, name, field, doc)
}

const fn scheduler(name: &'static str, field: &'static dyn Field, doc: &'static str) -> Key {
    key(Section::Scheduler, name, field, doc)
}

const fn storage(name: &'static str, field: &'static dyn Field, doc: &'static str) -> Key {
    key(Section::Storage, name, field, doc)
}

const fn lua(name: &'static str, field: &'static dyn Field, doc: &'static str) -> Key {
    key(Section::Lua, name, field, doc)
}

const fn limits(name: &'static str, field: &'static dyn Field, doc: &'static str) -> Key {
    key(Section::Limits, name, field, doc)
}

const fn telemetry(name: &'static str, field: &'static dyn Field, doc: &'static str) -> Key {
    key(Section::Telemetry, name, field, doc)
}

const fn key(
    section: Section,
    name: &'static str,
    field: &'static dyn Field,
    doc: &'static str,
) -> Key {
    Key {
        section,
        name,
        field,
        doc,
    }
}

pub(super) static KEYS: [Key; 44] = [
    server(
        "address",
        &ADDRESS,
        "Where gRPC, metrics and health are served.",
    ),
    server(
        "worker_threads",
        &Whole {
            min: 0,
            max: 1024,
            at: |c| &mut c.server.worker_threads,
        },
        "How many threads serve connections; 0 for one per core.",
    ),
    server(
        "shutdown_timeout_ms",
        &Millis {
            min: 0,
            max: HOUR_MS,
            at: |c| &mut c.server.shutdown_timeout,
        },
        "How long a shutdown waits for commits and streams to finish.",
    ),
    server(
        "insecure",
        &Switch {
            at: |c| &mut c.server.insecure,
        },
        "Whether other machines may reach the address, though nobody is authenticated and nothing encrypted.",
    ),
    scheduler(
        "threads",
        &Whole {
            min: 1,
            max: 64,
            at: |c| &mut c.scheduler.threads,
        },
        "How many threads schedule; queues are spread over them.",
    ),
    scheduler(
        "quantum",
        &Whole {
            min: 1,
            max: 1000 * MILLION,
            at: |c| &mut c.scheduler.quantum,
        },
        "What a fairness key of weight 1 is granted per visit, in thousandths of a message.",
    ),
    storage("path", &PATH, "The directory of the database."),
    storage("engine", &ENGINE, "What keeps the messages."),
    storage(
        "durability",
        &DURABILITY,
        "How far a message has got when it is confirmed: on the disk, with the operating system, or in this process.",
    ),
    storage(
        "memory_budget",
        &Size {
            min: MIB,
            max: TIB,
            at: |c| &mut c.storage.memory_budget,
        },
        "How much of fresh messages is kept in memory; what is beyond is read back from the store.",
    ),
    storage(
        "cache",
        &Size {
            min: MIB,
            max: TIB,
            at: |c| &mut c.storage.cache,
        },
        "The size of the database's block cache.",
    ),
    storage(
        "sweep_interval_ms",
        &Millis {
            min: 10,
            max: HOUR_MS,
            at: |c| &mut c.storage.sweep_interval,
        },
        "How often rows of purged and deleted queues are swept.",
    ),
    lua(
        "default_timeout_ms",
        &Millis {
            min: 1,
            max: 1000,
            at: |c| &mut c.lua.default_timeout,
        },
        "How long a hook may run for one message, in time of its thread.",
    ),
    lua(
        "default_memory_limit_bytes",
        &Size {
            min: ByteSize::kib(64),
            max: ByteSize::mib(32),
            at: |c| &mut c.lua.default_memory_limit_bytes,
        },
        "How much memory a script and its data may take.",
    ),
    lua(
        "circuit_breaker_threshold",
        &Whole {
            min: 1,
            max: MILLION,
            at: |c| &mut c.lua.circuit_breaker_threshold,
        },
        "How many failures in a row open a hook's circuit breaker.",
    ),
    lua(
        "circuit_breaker_cooldown_ms",
        &Millis {
            min: 1,
            max: 24 * HOUR_MS,
            at: |c| &mut c.lua.circuit_breaker_cooldown,
        },
        "How long an open circuit breaker keeps a hook from being asked.",
    ),
    limits(
        "payload_bytes",
        &Size {
            min: ByteSize::new(1),
            max: ByteSize::mib(64),
            at: |c| &mut c.limits.payload_bytes,
        },
        "The size of a message's payload.",
    ),
    limits(
        "headers",
        &Whole {
            min: 0,
            max: 1024,
            at: |c| &mut c.limits.headers,
        },
        "How many headers a message has.",
    ),
    limits(
        "header_bytes",
        &Size {
            min: ByteSize::new(0),
            max: MIB,
            at: |c| &mut c.limits.header_bytes,
        },
        "The size of a message's headers, names and values together.",
    ),
    limits(
        "fairness_key_bytes",
        &Size {
            min: ByteSize::new(1),
            max: ByteSize::new(512),
            at: |c| &mut c.limits.fairness_key_bytes,
        },
        "The size of a fairness key.",
    ),
    limits(
        "queues",
        &Whole {
            min: 1,
            max: MILLION,
            at: |c| &mut c.limits.queues,
        },
        "How many queues there are.",
    ),
    limits(
        "keys_per_queue",
        &Whole {
            min: 1,
            max: 100 * MILLION,
            at: |c| &mut c.limits.keys_per_queue,
        },
        "How many fairness keys of a queue have messages.",
    ),
    limits(
        "depth_per_queue",
        &Whole {
            min: 1,
            max: MILLION * MILLION,
            at: |c| &mut c.limits.depth_per_queue,
        },
        "How many messages a queue holds.",
    ),
    limits(
        "depth_per_key",
        &Whole {
            min: 1,
            max: MILLION * MILLION,
            at: |c| &mut c.limits.depth_per_key,
        },
        "How many messages of a queue one fairness key holds.",
    ),
    limits(
        "delayed_per_queue",
        &Whole {
            min: 0,
            max: 100 * MILLION,
            at: |c| &mut c.limits.delayed_per_queue,
        },
        "How many messages of a queue wait for their time.",
    ),
    limits(
        "deduplication_ids_per_queue",
        &Whole {
            min: 0,
            max: 100 * MILLION,
            at: |c| &mut c.limits.deduplication_ids_per_queue,
        },
        "How many deduplication ids a queue remembers.",
    ),
    limits(
        "key_settings_per_queue",
        &Whole {
            min: 0,
            max: MILLION,
            at: |c| &mut c.limits.key_settings_per_queue,
        },
        "How many fairness keys of a queue have settings of their own.",
    ),
    limits(
        "consumers",
        &Whole {
            min: 1,
            max: MILLION,
            at: |c| &mut c.limits.consumers,
        },
        "How many consumers there are.",
    ),
    limits(
        "in_flight_per_consumer",
        &Whole {
            min: 1,
            max: 100_000,
            at: |c| &mut c.limits.in_flight_per_consumer,
        },
        "How many messages are leased to one consumer.",
    ),
    limits(
        "prefetch_default",
        &Whole {
            min: 1,
            max: 100_000,
            at: |c| &mut c.limits.prefetch_default,
        },
        "How many messages are leased to a consumer that names no number.",
    ),
    limits(
        "produce_window",
        &Whole {
            min: 1,
            max: MILLION,
            at: |c| &mut c.limits.produce_window,
        },
        "How many messages of one produce stream are unconfirmed.",
    ),
    limits(
        "batch_messages",
        &Whole {
            // What clients may take for granted, and put into a batch without asking.
            min: 1_000,
            max: 100_000,
            at: |c| &mut c.limits.batch_messages,
        },
        "How many messages, or results, are in one batch.",
    ),
    limits(
        "delay_ms",
        &Millis {
            min: 0,
            max: 100 * 365 * 24 * HOUR_MS,
            at: |c| &mut c.limits.delay,
        },
        "The longest delay of a message, and its longest time to live.",
    ),
    limits(
        "connections",
        &Whole {
            min: 1,
            max: MILLION,
            at: |c| &mut c.limits.connections,
        },
        "How many connections are open.",
    ),
    limits(
        "buffered_bytes",
        &Size {
            min: MIB,
            max: ByteSize::mib(128),
            at: |c| &mut c.limits.buffered_bytes,
        },
        "How many bytes of unconfirmed messages the server holds.",
    ),
    limits(
        "config_entries",
        &Whole {
            min: 0,
            max: 100_000,
            at: |c| &mut c.limits.config_entries,
        },
        "How many entries the runtime configuration has.",
    ),
    limits(
        "config_key_bytes",
        &Size {
            min: ByteSize::new(1),
            max: ByteSize::new(ConfigKey::MAX as u64),
            at: |c| &mut c.limits.config_key_bytes,
        },
        "The size of a key of the runtime configuration.",
    ),
    limits(
        "config_value_bytes",
        &Size {
            min: ByteSize::new(1),
            max: ByteSize::new(CONFIG_MAX as u64),
            at: |c| &mut c.limits.config_value_bytes,
        },
        "The size of a value of the runtime configuration.",
    ),
    limits(
        "config_bytes",
        &Size {
            min: ByteSize::new(0),
            max: ByteSize::mib(1024),
            at: |c| &mut c.limits.config_bytes,
        },
        "The size of the runtime configuration, keys and values together.",
    ),
    telemetry(
        "log",
        &LOG,
        "What is logged: a level, or levels per target.",
    ),
    telemetry("log_format", &LOG_FORMAT, "How log lines look."),
    telemetry(
        "otlp_endpoint",
        &OTLP_ENDPOINT,
        "Where traces are exported to by OTLP over gRPC; empty for nowhere.",
    ),
    telemetry(
        "service_name",
        &SERVICE_NAME,
        "What the server is called in traces.",
    ),
    telemetry(
        "trace_ratio",
        &Ratio {
            at: |c| &mut c.telemetry.trace_ratio,
        },
        "Which part of the traces that start here is exported; a sampled parent is always followed.",
    ),
];
