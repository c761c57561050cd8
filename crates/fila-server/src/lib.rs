#![doc = include_str!("../README.md")]
//!
//! # Where to look
//! [`config`] reads the configuration of the server and knows where each value comes from. [`telemetry`] sets up logs
//! and traces. [`runtime`] is the running broker, without a network. [`runtime_config`] has the settings that can
//! change while it runs. [`Server`] adds gRPC and HTTP, and [`tls`] encrypts them.

pub mod config;
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod hooks;
mod http;
mod intake;
mod message_id;
mod metrics;
pub mod runtime;
pub mod runtime_config;
mod server;
pub mod telemetry;
pub mod tls;

pub use fila_core::KeySeparator;
pub use hooks::check_paths;
pub use server::{Server, run};
