//! How a server is set up.
//!
//! A [`Config`] is plain typed data. [`Loader`] makes one from four sources, each stronger than the one before: the
//! defaults, a TOML file, environment variables, and command-line flags. The loader rejects unknown names and values out
//! of range. It reports all mistakes at once, each with its location.
//!
//! `table.rs` declares every key once: its field, its type, its default, what it takes, and its sentence. The file, the
//! environment, the flags, [`Config::to_toml`] and the test of `docs/configuration.md` all read that table.

mod draft;
mod error;
mod file;
mod keys;
mod kinds;
mod loader;
mod table;
mod values;

#[doc(hidden)]
pub mod fuzzing;

pub use error::{ConfigError, Location, Problem};
pub use keys::{Key, Section};
pub use loader::Loader;
pub use table::{
    Config, LimitsConfig, LuaConfig, MessageLimits, RuntimeConfigLimits, SchedulerConfig,
    ServerConfig, StorageConfig, TelemetryConfig, TlsConfig,
};
pub use values::{
    ByteSize, ClientCertificates, LogFilter, LogFormat, NotAByteSize, NotALogFilter, StorageEngine,
};

pub use fila_store::Durability;
