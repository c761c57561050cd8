#![doc = include_str!("../README.md")]
//!
//! # How it is built
//! A job is a message: its key is the fairness key, its name a header, its arguments the payload, as JSON. The queue
//! has the ordering `key`, so the broker keeps the order of each key, also across retries, and leases one job of a key at a
//! time. Durability, retries, dead letters and survival of a killed process are the broker's.

mod error;
mod queue;
mod registry;

pub use error::{DurableError, JobRejection};
pub use queue::{DurableQueue, DurableWorker};
pub use registry::{DurableContext, JobRegistry};

/// A job that can be stored: a name, and arguments that serde can write and read.
pub trait DurableJob: serde::Serialize + serde::de::DeserializeOwned + Send + 'static {
    /// The name by which workers find the handler. It must not change while jobs of this type are stored.
    const NAME: &'static str;
}
