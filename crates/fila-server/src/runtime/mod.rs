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

mod clock;
mod commit;
mod config_calls;
mod config_writer;
mod consumer;
mod credit;
mod error;
mod failure_hooks;
mod handle;
mod hook_calls;
mod inbox;
mod manager;
mod name;
mod opening;
mod peek;
mod reader;
mod recovery;
mod redrive;
mod registry;
mod scheduler;
mod settings;
mod start;
mod status;
mod store;
mod sweeper;
mod throttles;
mod ticket;

pub use crate::hooks::{HookFigures, HookState};
pub use clock::Clock;
pub use consumer::{Consumer, Outgoing};
pub use error::{CallError, StartError};
pub use handle::{Handle, Info};
pub use name::{NameError, QueueNameRule};
pub use peek::{PeekQuery, Peeked, PeekedMessage};
pub use redrive::{RedriveQuery, Redriving};
pub use registry::QueueEntry;
pub use start::{Runtime, Stopped};
pub use status::State;

pub(crate) use handle::Frame;
pub(crate) use hook_calls::HookedFrames;
pub(crate) use ticket::{Replies, Reply, ReplySender};
