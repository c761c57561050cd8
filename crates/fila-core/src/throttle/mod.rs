//! Throttles: token buckets, and who waits for their tokens.
//!
//! A message may name throttle keys. Each of its deliveries takes a token from the bucket of every one of them, all or
//! none. [`Tokens`] is one bucket as the broker sees it; the shell may share it with other brokers. [`Gates`] keeps who waits
//! for tokens.
//!
//! # What always holds
//! - In any stretch of time `t` of the clock that is passed in, a bucket gives at most `burst + rate × t` tokens: it never
//!   holds more than its burst, and nothing else puts tokens into it.
//! - Nobody polls a bucket. It knows when its next token comes, and the gate is looked at then, or when its throttle is
//!   changed.
//! - Who waits is a *throttle set*: all messages of one fairness key with the same throttle keys. However many messages wait in
//!   it, it waits once, and costs nothing until it is called.
//! - Who is called first is decided by `drr`, by the weights of the fairness keys: one that has a million messages for a
//!   bucket does not keep one out that has a single one.
//!
//! # Several buckets
//! A message that needs tokens of several buckets waits at one of them, the slowest that has none. When it is called there
//! and a faster one has none, it keeps its token of the slower one apart, and is the next to be called at the faster one:
//! it is through after one token of each. Without this it could wait for ever, if others take the tokens of either
//! whenever the other has none. Tokens are kept apart in the order of the rates only, so nobody waits in a circle; and for
//! the time until that token comes only, so that a message which cannot be delivered for another reason holds nobody.

mod bucket;
mod gates;
#[cfg(test)]
#[path = "../../tests/support/buckets.rs"]
pub(crate) mod test_buckets;
mod tokens;
mod turns;

pub use bucket::{Bucket, Throttle};
pub(crate) use gates::{Call, Gates, Seat, Waiter};
pub use tokens::{TokenSource, Tokens};
pub use turns::SharedBucket;
