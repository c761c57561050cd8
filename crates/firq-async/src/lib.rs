#![doc = include_str!("../README.md")]
//!
//! # How it is built
//!
//! [`firq_core`] decides which task is next and which caller is woken; its wait queues hold
//! [`Waker`](std::task::Waker)s. The futures here poll it and keep their seat. They hold neither a task nor room
//! between polls, so dropping one loses nothing; a dropped future that was woken already wakes the next one.
//! This crate adds time, which the core does not have: timers for futures that wait for room.

mod clock;
mod dequeue;
mod dispatcher;
mod enqueue;
mod scheduler;
mod spent;
mod stream;

pub use clock::TokioClock;
pub use dequeue::{Dequeue, DequeueBatch};
pub use dispatcher::{Dispatcher, Report};
pub use enqueue::Enqueue;
pub use scheduler::AsyncScheduler;
pub use spent::{IntoSpent, Spent, cost_of_time};
pub use stream::Tasks;

pub use firq_core;
pub use firq_core::{
    BackpressurePolicy, CancelResult, CloseMode, ConfigError, DequeueResult, DropReason, Dropped,
    EnqueueRejectReason, EnqueueResult, GroupOf, PathError, Priority, Rejected, Scheduler,
    SchedulerConfig, SchedulerStats, Task, TaskHandle, TenantKey, TenantPath, group_by_first,
    group_by_slash,
};
