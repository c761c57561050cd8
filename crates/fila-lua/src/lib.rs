//! Lua 5.4 policy hooks in a sandbox that ends.
//!
#![doc = include_str!("../README.md")]

mod answer;
mod breaker;
mod error;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod group_weight;
mod hook;
mod library;
mod limits;
mod meter;
mod pattern;
mod sandbox;
mod script;
mod vm;
mod watch;

pub use answer::{AnswerPart, FailureAction, FailureAnswer, Scheduling, Unusable};
pub use breaker::{Breaker, BreakerState};
pub use error::{AnswerError, Fault, HookError, ScriptError};
pub use group_weight::GroupWeight;
pub use hook::{EnqueueInput, FailureInput, Hook};
pub use limits::Limits;
pub use sandbox::{Cost, Sandbox, Settings};
pub use script::{Script, Trial};
pub use watch::Watch;
