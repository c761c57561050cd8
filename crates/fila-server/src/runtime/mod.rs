//! The broker at work: threads around the pure core, and a handle for whoever serves clients.
//!
//! ```text
//! Handle ──inbox──▶ scheduler thread ──round──▶ commit thread ──▶ store
//!   ▲ │               │  ▲   └──loads──▶ reader threads ──▶ store
//!   │ └──peeks──▶ store  │
//!   └──answers,───────┘  └──events (committed, loaded)──┘
//!      deliveries
//! ```
//!
//! A queue lives on one scheduler thread, which owns a [`Broker`](fila_core::Broker) and shares it with nobody. It
//! never waits for the store nor for a client: rounds go to its commit thread, reads to the readers, answers and
//! deliveries into channels that are bounded by what was asked for. While one round is being stored the next is
//! collected. Nothing here knows gRPC or HTTP.
//!
//! Messages of a queue with a script pass the hooks before they come to its inbox.
//!
//! The runtime configuration is beside all that: a state that anybody reads and one writer replaces, after the store.

mod calls;
mod clock;
mod config;
mod error;
mod queues;
mod settings;
mod start;
mod status;
mod store;
mod threads;

pub use crate::hooks::{HookFigures, HookState};
pub use calls::consumer::{Consumer, Outgoing};
pub use calls::handle::{Handle, Info};
pub use calls::peek::{PeekQuery, Peeked, PeekedMessage};
pub use calls::redrive::{RedriveQuery, Redriving};
pub use clock::Clock;
pub use error::{CallError, StartError};
pub use queues::names::{NameError, QueueNameRule};
pub use queues::registry::QueueEntry;
pub use start::{Runtime, Stopped};
pub use status::State;

pub(crate) use calls::handle::Frame;
pub(crate) use calls::hooks::HookedFrames;
pub(crate) use threads::ticket::{Replies, Reply, ReplySender};
