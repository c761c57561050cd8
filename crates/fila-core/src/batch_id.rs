//! The ids of batches.

use std::fmt;
use std::time::Duration;

/// Identifies a producer: bytes that it has chosen at random, so that no two producers have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId([u8; Self::LENGTH]);

impl ProducerId {
    /// The number of bytes.
    pub const LENGTH: usize = 16;

    /// Makes an id of these bytes.
    pub const fn new(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl fmt::Debug for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProducerId({:032x})", u128::from_be_bytes(self.0))
    }
}

/// The number of a batch, counted by its producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// Makes a sequence of a number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a batch, so that the queue stores a batch that is sent again only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// The producer.
    pub producer: ProducerId,
    /// Its number among the producer's batches, over all queues.
    pub sequence: Sequence,
    /// The producer has the answers of all its batches below this one, and will not send them again. The queue may forget
    /// them.
    pub answered_below: Sequence,
    /// How long the producer may send it again, if that is shorter than the queue's deduplication window.
    pub remember_max: Option<Duration>,
}

impl BatchId {
    /// Returns the id of a batch without earlier answers, which the queue remembers for its whole window.
    pub const fn new(producer: ProducerId, sequence: Sequence) -> Self {
        Self {
            producer,
            sequence,
            answered_below: Sequence::new(0),
            remember_max: None,
        }
    }
}
