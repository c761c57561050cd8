#![doc = include_str!("../README.md")]
//!
//! # How it is driven
//!
//! ```text
//! Command ─▶ handle ─┐                        ┌─▶ effects: answers, deliveries, loads, dismissals
//! read    ─▶ loaded ─┼─▶ Broker ─▶ poll ──────┤
//! stored  ─▶ committed                        └─▶ seal: a Round, to be stored in one go
//! ```
//!
//! A driver takes what has come in, hands it to [`Broker::handle`], [`Broker::loaded`] and [`Broker::committed`], calls
//! [`Broker::poll`] once, does what the [`Effects`] say, gives the [`Round`] of [`Broker::seal`] to whoever stores it, and
//! sleeps until something comes in or [`Broker::next_timer`] is there.
//!
//! # What always holds
//! - Every ticket comes back exactly once with an answer, unless the broker is dropped.
//! - Nothing a call does takes time in proportion to the number of queues, keys or messages. (What is remembered of a
//!   producer and has expired, or has been answered, is dropped one by one, each thing once. Opening a queue goes through
//!   its keys; a consumer that leaves gives back its leases one by one, which are bounded; a purge goes through the
//!   queue's consumers.)
//! - Time does not go back: a `now` before the last one counts as the last one.
//! - The same calls give the same effects, whatever the seeds of its hash tables: those are never walked.
//!
//! # What is left out on purpose
//! Names of queues, the catalogue, connections, the wire: its driver's. So are hooks: where one is to judge a failure, the
//! broker asks its driver, waits for a while, and then decides by itself.

#[cfg(test)]
extern crate self as fila_core; // the unit tests share a file with the integration tests

mod answer;
mod batch_id;
mod broker;
mod command;
mod effects;
mod explanation;
mod ids;
mod limits;
mod memory;
mod queue;
mod recovery;
mod retry;
mod settings;
mod stats;
mod status;
mod throttle;
mod wheel;

pub use fila_store::Schedule;

pub use answer::{
    Answer, EnqueueError, EnqueueResults, Enqueued, RedriveError, RedriveResults, RedriveStamp,
    Refused, SettleError, SettleResults,
};
pub use batch_id::{BatchId, ProducerId, Sequence};
pub use broker::{Broker, ROUNDS_MAX};
pub use command::{
    Command, Demand, Judgement, MovedMessage, NewMessage, Settlement, Tickets, Ttl, Verdict,
};
pub use effects::{
    Committed, Delivery, Dismissal, Effects, Failure, FailureToken, Garbage, Load, LoadRequest,
    LoadToken, LoadedMessages, Round,
};
pub use explanation::{Basis, Estimate, Explanation, Position, Recent, Waiting};
pub use ids::{ConsumerId, LeaseId};
pub use limits::{Limits, Settings};
pub use recovery::Recovery;
pub use retry::RetryPolicy;
pub use settings::{
    Charge, Delivering, HookFallback, KeySettings, Ordering, QueueSettings, QueueSettingsError,
};
pub use stats::{KeyCursor, KeyStats, QueueStats, Totals};
pub use status::{MessageState, MessageStatus};
pub use throttle::{Bucket, SharedBucket, Throttle, TokenSource, Tokens};
