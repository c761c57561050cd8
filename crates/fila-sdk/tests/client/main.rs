//! The client against a real server in the same process.
#![cfg(test)] // helpers may unwrap, as tests do

mod admin;
mod cuts;
mod proxy;
mod restarts;
mod rig;
mod sending;
mod syncs;
