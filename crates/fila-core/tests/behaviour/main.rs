//! The behaviour of the broker with messages, leases, limits and failures, one sentence each.

#![cfg(test)] // helpers may unwrap, as tests do

mod calls;
mod consumers;
mod deduplication;
mod groups;
mod leases;
mod limits;
mod lost;
mod memory;
mod ordering;
mod parts;
mod parts_of_groups;
mod paths;
mod queues;
mod reading;
mod rounds;
mod shares;
mod stopping;
#[path = "../support/mod.rs"]
mod support;
mod throttled_groups;
mod time;
mod transit;
