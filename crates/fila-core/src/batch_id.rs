//! What a producer calls its batches.

use std::fmt;
use std::time::Duration;

/// Names a producer: bytes that it has chosen at random, so that no two are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId([u8; Self::LENGTH]);

impl ProducerId {
    /// How many bytes there are.
    pub const LENGTH: usize = 16;

    /// Takes these bytes.
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

/// Where a batch is in the count of its producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// Takes this number.
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

/// Names a batch, so that one that is sent again is stored once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// Whose batch it is.
    pub producer: ProducerId,
    /// Which one of its producer's, over all queues.
    pub sequence: Sequence,
    /// All batches of the producer below this one have been answered, and will not be sent again: they may be
    /// forgotten.
    pub answered_below: Sequence,
    /// For how long the producer might send it again, if that is shorter than the queue's deduplication window.
    pub remember_max: Option<Duration>,
}

impl BatchId {
    /// Returns the id of a batch before which nothing has been answered, to be remembered for the queue's window.
    pub const fn new(producer: ProducerId, sequence: Sequence) -> Self {
        Self {
            producer,
            sequence,
            answered_below: Sequence::new(0),
            remember_max: None,
        }
    }
}
