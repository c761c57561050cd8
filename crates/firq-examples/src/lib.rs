//! Helpers of the examples: tables, percentiles, a verdict, and HTTP over loopback.
//!
//! You need none of it to use Firq. Read the examples in `src/bin` first; each stands on its own.

mod loopback;
mod verdict;

pub use lab::{Latencies, Table, millis};
pub use loopback::{Client, Reply, Server};
pub use verdict::Verdict;

/// Any error, for a `main` that reports it to the user.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The code of the guide and of the README, so that it is tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/firq.md")]
#[doc = include_str!("../../../README.md")]
mod guide {}
