//! How many messages are at which stage: of one lane, or of the whole queue.

use std::ops::{Index, IndexMut};

/// Where a message counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Accepted, and not durable yet.
    Uncommitted,
    /// Moved here from another queue, and not durable here yet. The other queue counts it no longer.
    Moving,
    /// In the store only.
    Stored,
    /// In memory, and may be delivered when its lane is next.
    Ready,
    /// As `Ready`, but it waits for a token.
    Throttled,
    /// Waits for its time, or for a decision after a failed delivery.
    Delayed,
    /// With a consumer.
    Leased,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts([u64; 7]);

impl Counts {
    /// Moves messages from one stage to another; `None` is outside of the queue.
    pub(super) fn shift(&mut self, count: u64, from: Option<Stage>, to: Option<Stage>) {
        if let Some(from) = from {
            self[from] -= count;
        }
        if let Some(to) = to {
            self[to] += count;
        }
    }

    /// Counts the messages of a lane that has joined.
    pub(super) fn add(&mut self, more: &Self) {
        for (count, more) in self.0.iter_mut().zip(more.0) {
            *count += more;
        }
    }

    /// Returns how many are ready, wherever they are and whether or not they lack a token.
    pub(super) fn ready(&self) -> u64 {
        self[Stage::Ready] + self[Stage::Throttled] + self[Stage::Stored]
    }

    /// Returns how many are ready as users see it: with those that move here, which are in no other queue's counts.
    pub(super) fn shown_ready(&self) -> u64 {
        self.ready() + self[Stage::Moving]
    }

    /// Returns how many are accepted or moved here, and not durable here yet.
    pub(super) fn uncommitted(&self) -> u64 {
        self[Stage::Uncommitted] + self[Stage::Moving]
    }

    /// Returns how many are durable.
    pub(super) fn durable(&self) -> u64 {
        self.ready() + self[Stage::Delayed] + self[Stage::Leased]
    }

    pub(super) fn total(&self) -> u64 {
        self.durable() + self.uncommitted()
    }
}

impl Index<Stage> for Counts {
    type Output = u64;

    fn index(&self, stage: Stage) -> &u64 {
        &self.0[stage as usize]
    }
}

impl IndexMut<Stage> for Counts {
    fn index_mut(&mut self, stage: Stage) -> &mut u64 {
        &mut self.0[stage as usize]
    }
}
