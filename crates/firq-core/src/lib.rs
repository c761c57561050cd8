#![doc = include_str!("../README.md")]
//!
//! # How it is built
//!
//! ```text
//! Scheduler ── ring      the order of service: one engine for all tenants    1 lock
//!           ├─ shards    tenants, their tasks, deadlines, statistics         1 lock each
//!           ├─ capacity  the room that is left, and producers waiting for it 1 atomic word
//!           └─ consumers consumers waiting for work
//! ```
//!
//! A task is enqueued under the lock of its tenant's shard; the ring is needed only if the tenant had no
//! work. It is dequeued under both. User code runs under none of them, apart from `Hash`, `Eq` and `Clone` of
//! the tenant's key. With one shard the two locks are one.

mod capacity;
mod clock;
mod config;
mod consumers;
mod effects;
mod expiry;
mod histogram;
mod lane;
mod lengths;
mod log_linear;
mod nesting;
mod node;
mod outcome;
mod parker;
mod path;
#[cfg(feature = "prometheus")]
mod prometheus;
mod quanta;
mod ring;
mod scheduler;
mod shard;
mod share;
mod slab;
mod stats;
mod sync;
mod task;
mod times;
mod topology;
mod tree;
mod tree_lengths;
mod wait_queue;
mod waiter;

pub mod guide;

pub use clock::{Clock, ManualClock, PreciseClock, Precision, SystemClock};
pub use config::{BackpressurePolicy, ConfigError, DropObserver, SchedulerConfig};
pub use nesting::{GroupOf, group_by_first, group_by_slash};
pub use outcome::{
    CancelResult, CloseMode, DequeueResult, DropReason, Dropped, EnqueueRejectReason,
    EnqueueResult, EnqueueWithHandleResult, Rejected,
};
pub use path::{PathError, TenantPath};
pub use quanta::QuantumProvider;
pub use scheduler::Scheduler;
pub use stats::{GroupStats, QueueLevel, QueueTime, SchedulerStats, TopTenant};
pub use task::{Priority, Task, TaskHandle, TenantKey};
pub use waiter::Waiter;
