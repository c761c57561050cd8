//! How a server is set up.
//!
//! A [`Config`] is plain typed data. [`Loader`] makes one from four sources, each stronger than the one before: the
//! defaults, a file in TOML, variables of the environment, and flags of the command line. It refuses what it does not
//! know and what is out of range, and reports everything that is wrong at once, each with its place.
//!
//! Every key is described once, in the table of `table.rs`: what it is called, which field it sets, what it may be and
//! what it is for. File, environment, flags, [`Config::to_toml`] and the test of `docs/configuration.md` all read that
//! table, so none of them can forget a key or disagree about one.

mod byte_size;
mod draft;
mod environment;
mod error;
mod field;
mod file;
mod given;
mod keys;
mod loader;
mod print;
mod sections;
mod table;
mod texts;
mod together;
mod values;

#[doc(hidden)]
pub mod fuzzing;

pub use byte_size::{ByteSize, NotAByteSize};
pub use error::{ConfigError, Place, Problem};
pub use keys::{Key, Section};
pub use loader::Loader;
pub use sections::{
    Config, LimitsConfig, LuaConfig, SchedulerConfig, ServerConfig, StorageConfig, TelemetryConfig,
};
pub use values::{LogFilter, LogFormat, NotALogFilter, StorageEngine};

pub use fila_store::Durability;
