#![doc = include_str!("../README.md")]
//!
//! # How it is built
//!
//! Whose turn it is, who waits and who is called are decided in [`firq_core`]; its wait lists hold
//! [`Waker`](std::task::Waker)s. The futures here poll it and keep the seat that it gives them. They hold no
//! task and no room between polls, so there is nothing that dropping one could lose; a call that reaches a
//! future that is dropped is passed on to the next who waits. Time comes in where the core has none of its
//! own: as timers for those who wait for room.

mod catch_unwind;
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
    EnqueueRejectReason, Priority, Rejected, Scheduler, SchedulerConfig, SchedulerStats, Task,
    TaskHandle, TenantKey,
};
