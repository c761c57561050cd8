//! The behaviour of an executor, by subject. Time is paused: it passes when all tasks wait.
#![cfg(test)] // helpers may unwrap, as tests do

mod across;
mod backoff;
mod barriers;
mod batches;
mod cancelling;
mod capacity;
mod concurrency;
mod configuration;
mod failures;
mod fifo;
mod flood;
mod metrics;
mod paths;
mod status;
mod stopping;
mod support;
