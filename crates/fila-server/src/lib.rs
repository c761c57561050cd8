#![doc = include_str!("../README.md")]
//!
//! # Where to look
//! [`config`] says how it is set up, and where each value comes from. [`telemetry`] is what it says of itself.
//! [`runtime`] is the broker at work, without a network; [`runtime_config`] is what can change while it is. [`Server`] puts gRPC and HTTP around it.

pub mod config;
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod hooks;
mod http;
mod message_id;
mod metrics;
pub mod runtime;
pub mod runtime_config;
mod server;
pub mod telemetry;

pub use server::{Server, run};
