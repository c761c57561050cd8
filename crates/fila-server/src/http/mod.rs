//! The port of the server: gRPC, metrics and health, over HTTP/2 and HTTP/1.
//!
//! `/healthz` answers while the process runs. `/readyz` answers 503 while the server reads queues from the store, after
//! the store has failed, and during shutdown. `/metrics` is for Prometheus.

mod complaints;
mod connections;
mod io_threads;
mod outbox;
mod places;
mod site;
mod socket;
mod turning_away;

pub(crate) use connections::{ClientAddress, ClientPatience, Connections};
pub(crate) use io_threads::IoThreads;
pub(crate) use outbox::{Outbox, WaitingChunk};
pub(crate) use places::Places;
pub(crate) use site::Site;
