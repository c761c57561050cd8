//! The real server over real gRPC, on a port of its own.
#![cfg(test)] // helpers may unwrap, as tests do

mod abuse;
mod admin;
mod failure;
mod leases;
mod messages;
mod observing;
mod restart;
mod shutdown;
mod streams;
mod support;
mod timing;
