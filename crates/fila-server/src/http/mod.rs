//! The one port: gRPC, metrics and health, over HTTP/2 and HTTP/1.
//!
//! `/healthz` says that the process lives. `/readyz` says whether to send clients: 503 while queues are read from the
//! store, after the store has failed, and during shutdown. `/metrics` is for Prometheus.

mod connections;
mod site;

pub(crate) use connections::{ClientAddress, Connections};
pub(crate) use site::Site;
