//! What an executor does, by subject. Time is paused: it passes when everybody waits, and nothing sleeps.
#![cfg(test)] // helpers may unwrap, as tests do

mod backoff;
mod barriers;
mod batches;
mod cancelling;
mod capacity;
mod configuration;
mod failures;
mod fifo;
mod metrics;
mod status;
mod stopping;
mod support;
