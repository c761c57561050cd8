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
//! A driver passes events to [`Broker::handle`], [`Broker::loaded`] and [`Broker::committed`], calls [`Broker::poll`] once,
//! performs the [`Effects`], stores the [`Round`] of [`Broker::seal`], and sleeps until the next event or
//! [`Broker::next_timer`].
//!
//! # What always holds
//! - Every ticket comes back exactly once with an answer, unless the broker is dropped.
//! - The time of a call does not grow with the number of queues, keys or messages. Exceptions: the broker drops expired and
//!   answered entries of a producer one by one, each once; opening a queue visits its keys; a consumer that leaves parts
//!   from its leases one by one, up to its limit; a purge visits the queue's consumers.
//! - Time does not go back: a `now` before the last one counts as the last one.
//! - The same calls give the same effects: the broker never iterates over a hash table.
//!
//! # Not in this crate
//! The driver has the names of queues, the catalogue, connections, the wire, and hooks. Where a hook decides on a failure,
//! the broker asks its driver, waits for a while, and then decides by itself.

#[cfg(test)]
extern crate self as fila_core; // the unit tests share a file with the integration tests

mod answer;
mod batch_id;
mod broker;
mod command;
mod effects;
mod explanation;
mod ids;
mod key_path;
mod lease_ids;
mod limits;
mod memory;
mod queue;
mod recovery;
mod retry;
mod settings;
mod stats;
mod status;
mod throttle;
mod transit;
mod whatif;
mod wheel;

pub use fila_store::{GroupWeights, Schedule};

pub use answer::{
    Answer, EnqueueError, EnqueueResults, Enqueued, RedriveError, RedriveResults, RedriveStamp,
    Refused, SettleError, SettleResults, SharedPool,
};
pub use batch_id::{BatchId, ProducerId, Sequence};
pub use broker::{Broker, ROUNDS_MAX};
pub use command::{
    Beginnings, Command, ConsumerKind, Demand, Departure, Judgement, MovedMessage, NewMessage,
    RECONNECT_GRACE, Settlement, Tickets, Ttl, Verdict,
};
pub use effects::{
    Committed, Delivery, Dismissal, Effects, Failure, FailureToken, Garbage, Load, LoadRequest,
    LoadToken, LoadedMessages, Round,
};
pub use explanation::{
    Basis, Estimate, Explanation, LevelExplanation, Position, Recent, Subject, Waiting,
};
pub use ids::{ConsumerId, LeaseId, Source};
pub use key_path::{DEPTH_MAX, KeyPathError, KeySeparator, NoSeparator};
pub use lease_ids::LeaseKey;
pub use limits::{Limits, Settings};
pub use recovery::Recovery;
pub use retry::RetryPolicy;
pub use settings::{
    Charge, DeduplicationScope, Delivering, HookFallback, KeySettings, Ordering, QueueSettings,
    QueueSettingsError,
};
pub use stats::{GroupStats, KeyCursor, KeyStats, QueueStats, RecentShare, Totals};
pub use status::{MessageState, MessageStatus};
pub use throttle::{Bucket, SharedBucket, Throttle, TokenSource, Tokens};
pub use whatif::{
    Cancelled, Comparison, Drained, Outlook, PaceBasis, PolicyRow, RowKind, SNAPSHOT_KEYS_MAX,
    Snapshot, Span, WhatIfQuery,
};
