//! placeholder
#![no_std]

extern crate alloc;

mod calendar;
mod engine;
mod handle;
mod slot;
mod units;

pub use calendar::Work;
pub use engine::Drr;
pub use handle::{DisbandError, Group, Key, Moment, Node, Standing, State, Unknown};
pub use units::{Cost, Quantum, Weight};
