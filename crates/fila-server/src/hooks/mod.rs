//! Hooks: the scripts of queues, and the threads that run them.
//!
//! ```text
//! Handle ──job──▶ jobs of its queue ─┐                      ┌─▶ HookStats: breaker, figures
//!    ▲            jobs of another   ─┼─ in turns ─▶ worker ──┤
//!    │                               │             sandboxes └─▶ LastGood
//!    └──────────── answers ◀─────────┴──── rest of a long job
//! ```
//!
//! A script runs neither on a scheduler thread nor on a thread that serves connections. The messages of one call, or of
//! the frames that arrived together, are one job. Jobs wait in a fair scheduler of `firq-core`, with a tenant for each
//! queue: queues take turns of a few milliseconds. So a slow script delays its own queue, and other queues by a few
//! milliseconds at most. A queue never has all workers. Within a queue, producers take turns ([`call_line`]).
//!
//! What always holds:
//! - A job is answered once, with one answer for each message, unless the server stops. The watchdog answers for a call
//!   that does not end, and replaces its worker ([`pool`]).
//! - `fila-lua` checks every answer of a script.
//! - All that is kept for a queue is bounded and goes with it: its jobs, and its sandboxes with its script.
//!
//! Nothing here knows the store, the core's queues, gRPC or HTTP.

mod answer_paths;
mod call_line;
mod deciding;
mod job;
mod last_good;
mod pool;
mod queue_hooks;
mod sandbox_cache;
mod stats;
mod thread_priority;
mod verdict;

pub use answer_paths::check_paths;
pub use call_line::{HookPartUsed, HookPool};
pub(crate) use job::{Answer, Job, Questions};
pub(crate) use pool::Pool;
pub(crate) use queue_hooks::{HookSettings, Program, QueueHooks, top_of};
pub use stats::{HookFigures, HookState};
pub(crate) use verdict::{About, Failed, Verdict};
