//! Jobs in order per key, in parallel across keys, with retries.
//!
//! x

mod bell;
mod config;
mod contain;
mod context;
mod core;
mod duration;
mod env;
mod error;
mod executor;
mod failure;
mod handle;
mod hash;
mod hooks;
mod job;
#[cfg(all(test, loom))]
mod loom;
mod metrics;
mod options;
mod outcome;
mod retry;
mod shard;
mod stats;
mod sync;
mod ticket;
mod worker;

pub use config::Config;
pub use context::JobContext;
pub use error::{ConfigError, QueueFullError, Refusal, SubmitError};
pub use executor::{ReturnedJob, RunningJob, ShardExecutor, StopReport};
pub use failure::{FailureReason, JobError, JobFailure, JobPanic, Permanent, is_permanent};
pub use handle::{CancelOnDrop, JobHandle};
pub use hooks::{DeadJob, DeadJobHook, ErrorHandler};
pub use job::{BoxJob, IntoResult, Job};
pub use options::{JobOptions, Priority};
pub use outcome::{CancelResult, JobId, JobStatus, Outcome};
pub use retry::{ExponentialBackoff, FailedAttempt, RetryPolicy};
pub use stats::Stats;
