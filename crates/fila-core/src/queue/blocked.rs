//! Why a lane delivers nothing.

/// A reason why a lane delivers nothing, in the order in which [`explain`](super::Queue::explain) prefers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockReason {
    /// It has no durable message that waits.
    Empty,
    /// An operator has paused a group that it is in.
    GroupPaused,
    /// An operator has paused the key.
    Paused,
    /// As many messages of a group that it is in are leased as may be at once.
    GroupAtCap,
    /// As many of its messages are leased as may be at once.
    AtCap,
    /// One of its messages failed while too many of the queue's messages were delayed.
    TooManyDelayed,
    /// Its messages wait for their time; in a strictly ordered lane the first one does.
    NotDue,
    /// Its messages wait for tokens; in a strictly ordered lane the first one does.
    Throttled,
    /// The deletion of a message of its backlog is not durable yet, so a read might still find that message.
    Removing,
    /// Its backlog could not be read.
    ReadFailed,
    /// The deliveries that it owes already are all that it may make.
    Owing,
}

impl BlockReason {
    const ALL: [Self; 11] = [
        Self::Empty,
        Self::GroupPaused,
        Self::Paused,
        Self::GroupAtCap,
        Self::AtCap,
        Self::TooManyDelayed,
        Self::NotDue,
        Self::Throttled,
        Self::Removing,
        Self::ReadFailed,
        Self::Owing,
    ];
}

/// All reasons why a lane delivers nothing. Without a reason, it is in the engine's ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocked(u16);

impl Blocked {
    /// Adds a reason if it applies.
    #[must_use]
    pub(super) const fn with(self, reason: BlockReason, applies: bool) -> Self {
        Self(self.0 | (applies as u16) << reason as u16)
    }

    #[must_use]
    pub(super) const fn without(self, reason: BlockReason) -> Self {
        Self(self.0 & !(1 << reason as u16))
    }

    pub(super) const fn contains(self, reason: BlockReason) -> bool {
        self.0 & 1 << reason as u16 != 0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the reasons in their order.
    pub(super) fn reasons(self) -> impl Iterator<Item = BlockReason> {
        BlockReason::ALL
            .into_iter()
            .filter(move |reason| self.contains(*reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_come_in_the_order_in_which_they_are_declared() {
        let all = BlockReason::ALL
            .into_iter()
            .rev()
            .fold(Blocked::default(), |set, reason| set.with(reason, true));
        assert!(all.reasons().eq(BlockReason::ALL));
        let numbers = BlockReason::ALL.map(|reason| reason as usize);
        assert!(numbers.is_sorted());
        let none = BlockReason::ALL
            .into_iter()
            .fold(all, |set, reason| set.without(reason));
        assert!(none.is_empty());
        assert!(
            Blocked::default()
                .with(BlockReason::Empty, false)
                .is_empty()
        );
    }
}
