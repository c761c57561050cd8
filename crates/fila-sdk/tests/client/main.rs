//! The client against a real server in the same process.
#![cfg(test)] // helpers may unwrap, as tests do

mod admin;
#[path = "../../../fila-server/tests/common/basics.rs"]
mod basics;
mod config;
mod cuts;
mod peeking;
mod proxy;
mod restarts;
mod rig;
mod sending;
mod stopping;
mod syncs;
mod waiting;
