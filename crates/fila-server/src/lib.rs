//! The Fila broker as a server.
//!
//! [`config`] says how it is set up and where each value comes from; [`telemetry`] is what it says of itself.

pub mod config;
pub mod telemetry;
