//! Ids that exist only while the broker runs.

use std::fmt;

/// Identifies one delivery of one message. A queue never uses one twice between two starts, and a client cannot guess one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u64);

impl LeaseId {
    /// Converts the number of a lease id back.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a consumer. The driver chooses it, and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(u64);

impl ConsumerId {
    /// Makes an id of a number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Identifies a client, by an address that it cannot choose. A client may name any number of fairness keys, so the keys of
/// a queue are divided among clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(u64);

impl Source {
    /// Makes an id of a number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}
