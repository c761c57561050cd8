//! Throttles: token buckets, and the messages that wait for their tokens.
//!
//! A message may name throttle keys. Each of its deliveries takes a token from the bucket of every one of them, all or
//! none. [`Tokens`] is one bucket as the broker sees it; the shell may share the bucket with other brokers.
//! [`Throttles`] keeps a queue of waiters for each bucket.
//!
//! # What always holds
//! - In any stretch of time `t` of the clock that is passed in, a [`Bucket`] gives at most `most + rate × t` tokens, where
//!   `most` is the burst, or one token and those of 20 ms if that is more. It never holds more, and nothing else puts
//!   tokens into it.
//! - A bucket that no message waits for holds at most its burst.
//! - While messages wait, the whole rate is used, for any burst, as long as the broker comes at most 20 ms late.
//! - The broker polls no bucket. A bucket knows when its next token comes, and the broker looks at its queue then, or when
//!   the throttle changes.
//! - A *throttle set* waits: all messages of one fairness key with the same throttle keys. It waits once, however many
//!   messages it has, and costs nothing until it is offered a token.
//! - `drr` decides which set is offered the next token, by the weights of the fairness keys. A key with a million messages
//!   for a bucket does not keep out a key with one message. A group of keys competes as one key; see `wait_ring.rs`.
//!
//! # Several buckets
//! A set that needs tokens of several buckets waits for one of them, the slowest that has no token. If a faster bucket
//! has none when the set gets its offer, the set *reserves* the token of the slower bucket and becomes the next at the
//! faster one. It is through after one token of each. Without reservations it could wait forever, because other sets
//! could take the tokens of each bucket while the other one is empty. Reservations follow the order of the rates, so sets
//! never wait in a circle. A reservation ends when the awaited token comes, so a set that cannot be delivered for another
//! reason blocks no other set.

mod bucket;
mod bucket_queue;
mod claim;
#[cfg(test)]
#[path = "../../tests/support/buckets.rs"]
pub(crate) mod test_buckets;
mod throttles;
mod tokens;
mod turns;
mod wait_ring;

pub use bucket::{Bucket, Throttle};
pub(crate) use bucket_queue::{WaitSlot, Waiter};
pub(crate) use claim::{Claim, ClaimGroups};
pub(crate) use throttles::{OFFERS_MAX, Offer, Throttles};
pub use tokens::{TokenSource, Tokens};
pub use turns::SharedBucket;
