//! Hooks: scripts of queues, and the threads that run them.
//!
//! ```text
//! Handle ──job──▶ line of its queue ─┐                      ┌─▶ Book: breaker, figures
//!    ▲            line of another   ─┼─ in turns ─▶ worker ──┤
//!    │                               │             sandboxes └─▶ LastGood
//!    └──────────── answers ◀─────────┴──── rest of a long job
//! ```
//!
//! A script runs neither on a scheduler thread nor on a thread that serves connections. The messages of one call, or of
//! the frames that came together, are one job; jobs wait in a line for each queue, and workers take from the lines in
//! turns, a few milliseconds each. So whatever a script does, others wait for a few milliseconds of it at most, and a queue
//! whose script is slow is slow alone. A queue never has all workers.
//!
//! What always holds:
//! - A job is answered once, with one answer for each message, unless the server stops. A call that does not end is
//!   answered for, and its worker is replaced ([`watchdog`]).
//! - Nothing a script does is taken unchecked: `fila-lua` does that.
//! - What is kept for a queue is bounded, and goes with it: its line with its last job, its sandboxes with its script.
//!
//! Nothing here knows the store, the core's queues, gRPC or HTTP.

mod book;
mod desk;
mod last_good;
mod lines;
mod pool;
mod queue_hooks;
mod watchdog;

pub use book::{HookFigures, HookState};
pub(crate) use pool::{Answer, Job, Pool, Questions};
pub(crate) use queue_hooks::{About, Failed, HookSettings, Program, QueueHooks, Verdict};
