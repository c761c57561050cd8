//! Tells what other settings would change, before they are applied.
//!
//! ```text
//! scheduler thread                     any other thread
//! Broker::snapshot ──▶ Snapshot ──▶ Snapshot::compare ──▶ Comparison: now beside then, by key and by group
//!                                     │ play (now)
//!                                     └ play (then)
//! ```
//!
//! A [`Snapshot`] has a copy of the queue's [engine](drr::Drr), with its debts, and a few numbers for each lane. It holds no
//! message. [`Snapshot::compare`] is a pure function: it [plays](play) the coming deliveries on a copy of that copy, twice,
//! with the present settings and with the others.
//!
//! # What the play takes for granted
//! - Consumers hold as many messages at once as they can now, and each for as long as the messages of its key were held of
//!   late. So a slow key that gets more turns slows the queue down, as it would in truth.
//! - Messages arrive as in the last minute, evenly.
//! - Every delivery succeeds. Messages that wait for their time or for a token stay where they are.
//!
//! Where nothing was delivered of late, there is no pace. The play then counts deliveries in place of time, and leaves out
//! arrivals and caps.
//!
//! # How exact it is
//! On a backlog that gets no more messages, whose messages are in memory and are all held for the same time, each key and
//! each group gets exactly what the broker then gives it, if the queue charges by message or by size. `tests/whatif`
//! checks it on random queues, with and without groups, caps and strict order.

mod comparison;
mod play;
mod prediction;
#[cfg(test)]
mod tests;

use std::time::Duration;

use drr::{Cost, Drr, Group, Key, Weight};
use fila_store::FairnessKey;

pub use self::comparison::{
    Comparison, Drained, Outlook, PaceBasis, PolicyRow, RowKind, Span, WhatIfQuery,
};
pub use self::play::Cancelled;

/// The most lanes and groups of a queue that is copied. Taking one of as many holds its scheduler thread up for 25 to 35 ms.
pub const SNAPSHOT_KEYS_MAX: usize = 100_000;

/// A copy of what decides about a queue's coming deliveries. It holds no message.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) engine: Drr,
    /// Those that have messages, or got some of late.
    pub(crate) lanes: Vec<LaneSnapshot>,
    /// Parents come before their members.
    pub(crate) groups: Vec<GroupSnapshot>,
    pub(crate) supply: Supply,
}

/// A lane in a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct LaneSnapshot {
    pub(crate) path: FairnessKey,
    pub(crate) key: Key,
    /// The place of its group in the snapshot.
    pub(crate) group: Option<u32>,
    /// Its weight if no operator sets one.
    pub(crate) named: Weight,
    /// Messages that wait only for their turn.
    pub(crate) ready: u64,
    pub(crate) leased: u64,
    /// Messages that wait for their time or for a token.
    pub(crate) held_back: u64,
    /// Messages that arrive in a second.
    pub(crate) arrivals: f64,
    /// How long its messages are with a consumer, if that is known.
    pub(crate) hold: Option<Duration>,
    pub(crate) costs: UpcomingCosts,
}

/// The costs of a lane's next deliveries.
#[derive(Clone, Debug)]
pub(crate) struct UpcomingCosts {
    /// Those of the first ones, if they are known one by one.
    pub(crate) first: Box<[Cost]>,
    pub(crate) mean: Cost,
}

/// A group in a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct GroupSnapshot {
    pub(crate) path: FairnessKey,
    pub(crate) group: Group,
    /// The place of the group that it is in.
    pub(crate) parent: Option<u32>,
    /// Its weight if no operator sets one.
    pub(crate) named: Weight,
}

/// What the consumers of a queue take.
#[derive(Clone, Debug)]
pub(crate) struct Supply {
    /// Deliveries in a second, of late.
    pub(crate) pace: Option<f64>,
    /// How many messages consumers could take at once beside those that they hold.
    pub(crate) spare: u64,
    /// How long a message is with a consumer, if that is known.
    pub(crate) hold: Option<Duration>,
    /// The messages that are with consumers: the place of their lane, and for how long already.
    pub(crate) leases: Vec<(u32, Duration)>,
}
