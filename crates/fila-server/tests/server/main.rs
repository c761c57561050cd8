//! The real server over real gRPC, on a port of its own.
#![cfg(test)] // helpers may unwrap, as tests do

mod abuse;
mod admin;
mod batches;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod common;
mod config;
mod dead_letters;
mod explain;
mod failure;
mod groups;
mod hooks;
mod hostile_headers;
mod leases;
mod messages;
mod observing;
mod parts;
mod paths;
mod peek;
mod receiving;
mod restart;
mod settings;
mod shutdown;
mod streams;
mod throttling;
mod tls;
mod unread;
mod whatif;
mod without_streams;
