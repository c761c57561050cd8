//! The tokens of throttle keys, as a broker sees them.

use std::fmt;

use fila_store::{ThrottleKey, Timestamp};

/// The tokens of one throttle key, as one broker sees them.
///
/// The shell implements this trait. Its tokens may come from a bucket that several brokers share
/// ([`SharedBucket`](crate::SharedBucket)), or another process may grant them. When tokens come earlier than
/// [`when`](Self::when) said, the shell sends [`Command::Rethrottle`](crate::Command::Rethrottle).
pub trait Tokens: fmt::Debug + Send {
    /// Returns how many tokens the broker may take now.
    fn available(&mut self, now: Timestamp) -> u64;

    /// Takes a token, if there is one.
    fn take(&mut self, now: Timestamp) -> bool;

    /// Puts back a token that was taken and not used.
    fn give_back(&mut self);

    /// Returns when there will be `tokens` tokens if none is taken; none if there will never be that many.
    fn when(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp>;

    /// Returns when the token comes that is `tokens` places away, if all before it are taken; none if it never comes.
    fn arrival(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp>;

    /// Returns a number that orders the buckets of a broker by their speed.
    fn rate(&self) -> u128;

    /// Notes whether messages of the broker wait for tokens.
    fn set_waiting(&mut self, now: Timestamp, is_waiting: bool);
}

/// Finds the tokens of throttle keys for one broker.
pub trait TokenSource: fmt::Debug + Send {
    /// Returns the tokens of a key; none if the key is not throttled.
    fn find(&mut self, key: &ThrottleKey) -> Option<Box<dyn Tokens>>;
}

/// The source of a broker without throttles.
impl TokenSource for () {
    fn find(&mut self, _: &ThrottleKey) -> Option<Box<dyn Tokens>> {
        None
    }
}
