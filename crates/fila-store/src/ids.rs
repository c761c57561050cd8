//! The ids of queues and messages.
//!
//! No id is ever given twice. The id of a deleted queue is not reused. A message's id contains the epoch of the owner that
//! gave it, so a later owner cannot give the same one.

use std::fmt;

/// Bits of a [`MessageId`] that count within an epoch; the rest is the epoch.
const COUNTER_BITS: u32 = 40;

/// The id of a queue. It is never given again, even if a queue of the same name is created anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(u64);

impl QueueId {
    /// Returns the id with this number, which an engine has given.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of an ownership of a queue. The next claim gets a greater one, and fences all owners before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// The first epoch.
    pub const FIRST: Self = Self(1);

    /// The last epoch that a message id has room for, after sixteen million others.
    pub const LAST: Self = Self((1 << (u64::BITS - COUNTER_BITS)) - 1);

    /// Returns the epoch of this number, unless it is zero or beyond [`LAST`](Self::LAST).
    pub const fn new(number: u32) -> Option<Self> {
        if number >= Self::FIRST.0 && number <= Self::LAST.0 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the epoch after this one, unless this is the last.
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a message in its queue: the owner's epoch and a counter, in one number.
///
/// The owner gives it, not the store, so that the owner can repeat a commit with the same ids. Within a fairness key the
/// order of ids is the order of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(u64);

impl MessageId {
    /// Counters of one epoch: a trillion.
    pub const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;

    /// Returns the id of this epoch and counter, unless the counter is beyond [`COUNTER_MAX`](Self::COUNTER_MAX).
    pub const fn new(epoch: Epoch, counter: u64) -> Option<Self> {
        if counter <= Self::COUNTER_MAX {
            Some(Self((epoch.0 as u64) << COUNTER_BITS | counter))
        } else {
            None
        }
    }

    /// Returns the id from the number that [`get`](Self::get) has returned.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number: the epoch in the upper 24 bits, the counter in the lower 40.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of the epoch in which the owner accepted the message.
    pub const fn epoch(self) -> u32 {
        (self.0 >> COUNTER_BITS) as u32
    }

    /// Returns the counter.
    pub const fn counter(self) -> u64 {
        self.0 & Self::COUNTER_MAX
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch(), self.counter())
    }
}

/// How often a queue has been purged. Only messages of the present generation exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u32);

impl Generation {
    /// Returns the generation of this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the generation that a purge begins, unless there have been four billion of them.
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The version of a queue's definition or of a config entry. An engine gives no version twice, and a later state has a
/// greater version, also after a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Returns the version with this number, which an engine has given.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_later_epoch_is_greater_than_all_of_an_earlier_one() {
        let last = MessageId::new(Epoch::FIRST, MessageId::COUNTER_MAX).unwrap();
        let first = MessageId::new(Epoch::FIRST.next().unwrap(), 0).unwrap();
        assert!(last < first);
        assert_eq!((last.epoch(), last.counter()), (1, MessageId::COUNTER_MAX));
    }

    #[test]
    fn a_counter_that_would_reach_into_the_epoch_is_no_id() {
        assert_eq!(
            MessageId::new(Epoch::FIRST, MessageId::COUNTER_MAX + 1),
            None
        );
    }

    #[test]
    fn epochs_end_where_the_id_has_no_more_room() {
        assert_eq!(Epoch::new(0), None);
        assert_eq!(Epoch::LAST.next(), None);
        let id = MessageId::new(Epoch::LAST, MessageId::COUNTER_MAX).unwrap();
        assert_eq!(id.get(), u64::MAX);
    }
}
