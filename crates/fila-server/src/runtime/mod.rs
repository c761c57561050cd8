//! The running broker: threads around the pure core, and the [`Handle`] through which calls reach it.
//!
//! ```text
//! Handle ──inbox──▶ scheduler thread ──round──▶ commit thread ──▶ store
//!   ▲ │               │  ▲   └──loads──▶ reader threads ──▶ store
//!   │ └──peeks──▶ store  │
//!   └──answers,───────┘  └──events (committed, loaded)──┘
//!      deliveries
//! ```
//!
//! Each queue is on one scheduler thread, which alone owns a [`Broker`](fila_core::Broker). The thread never waits for
//! the store or for a client: it sends rounds to its commit threads, reads to the reader threads, and answers and
//! deliveries into channels, which credit and open calls bound. While one round is being stored, the thread collects
//! the next one. This module does not know gRPC or HTTP.
//!
//! Messages for a queue with a script pass its hook before they enter the inbox.
//!
//! The runtime configuration is a shared value: any thread reads it, and one writer stores a change and then replaces
//! it.

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

pub use crate::hooks::{HookFigures, HookPartUsed, HookPool, HookState};
pub use calls::consumer::{Consumer, Outgoing};
pub use calls::handle::{Handle, Info};
pub use calls::key_selection::KeySelection;
pub use calls::peek::{PeekQuery, Peeked, PeekedMessage};
pub use calls::redrive::{RedriveQuery, Redriving};
pub use calls::transit::Parcel;
pub use clock::Clock;
pub use error::{CallError, StartError};
pub use queues::names::{NameError, QueueNameRule};
pub use queues::registry::QueueEntry;
pub use start::{Runtime, Stopped};
pub use status::State;

pub(crate) use calls::handle::Frame;
pub(crate) use calls::hooks::HookedFrames;
pub(crate) use calls::transit::{Framed, InTransit};
pub(crate) use threads::ticket::{Replies, Reply, ReplySender};
