#![doc = include_str!("../README.md")]
//!
//! # How it is built
//!
//! ```text
//! ShardExecutor ── Shard × n    a core behind a lock, and the sleeping worker's waker      1 lock each
//!               │    └─ core     lanes, ring, timers, room, barriers, counters: pure, time is an argument
//!               └─ Worker × n   a Tokio task per shard: runs what its core says, and goes on while jobs wait
//! JobHandle ── Ticket           what submitter, handle, attempt and worker share of one job
//! ```
//!
//! A job is submitted under its shard's lock. The worker takes the lock once per job: to report the end of one and take
//! the next. The user's code (jobs, policies, handlers) runs under no lock, and its panics are contained. There is no
//! store; jobs are accepted and ended in one function each, where a store would be called.

mod attempts;
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
mod joint;
#[cfg(all(test, loom))]
mod loom;
mod metrics;
mod options;
mod outcome;
mod path;
mod retry;
mod shard;
mod stats;
mod sync;
mod ticket;
mod worker;

pub use config::Config;
pub use context::JobContext;
pub use error::{ConfigError, FullLevel, KeyError, QueueFullError, Refusal, SubmitError};
pub use executor::{ReturnedJob, RunningJob, ShardExecutor, StopReport};
pub use failure::{
    FailureReason, JobError, JobFailure, JobPanic, NeverBegan, Permanent, is_permanent,
};
pub use handle::{CancelOnDrop, JobHandle};
pub use hooks::{DeadJob, DeadJobHook, ErrorHandler};
pub use job::{BoxJob, IntoResult, Job};
pub use options::{JobOptions, Priority};
pub use outcome::{CancelResult, JobId, JobStatus, Outcome};
pub use retry::{ExponentialBackoff, FailedAttempt, RetryPolicy};
pub use stats::Stats;

/// The guide in `docs/`, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/shardqueue.md")]
mod guide {}
