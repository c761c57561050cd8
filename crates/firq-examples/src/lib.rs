//! What several examples need and none of them is about: tables, percentiles, a verdict, and HTTP over
//! loopback.
//!
//! Nothing here is needed to use Firq. Read the examples in `src/bin` first; each stands on its own.

mod latencies;
mod loopback;
mod table;
mod verdict;

pub use latencies::{Latencies, millis};
pub use loopback::{Client, Reply, Server};
pub use table::Table;
pub use verdict::Verdict;

/// Whatever went wrong, for a `main` that has nobody to tell but the user.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The code of the guide and of the README, so that it is tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/firq.md")]
#[doc = include_str!("../../../README.md")]
mod guide {}
