//! The Fila broker as a server.
//!
//! [`config`] says how it is set up, and where each value comes from.

pub mod config;
mod grpc;
mod metrics;
pub mod runtime;
