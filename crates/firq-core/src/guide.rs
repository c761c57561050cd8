//! How to use the scheduler well.

#[doc = include_str!("../docs/parameters.md")]
pub mod parameters {}

#[doc = include_str!("../docs/promises.md")]
pub mod promises {}
