//! How much of the backlog is in memory.

use fila_store::Sizes;

use crate::transit::Transit;

/// Bytes that a message takes in memory beside its headers and body: the message itself, its places in tables that are
/// half full, and the allocator's overhead.
const OVERHEAD: usize = 512;

/// How many bytes the messages of all queues of a broker take, and may take.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Bytes of messages that are not with a consumer.
    pub(crate) used: usize,
    /// Bytes that reads under way may bring.
    pub(crate) reserved: usize,
    pub(crate) budget: usize,
    /// Deliveries that no socket has taken yet.
    pub(crate) transit: Transit,
}

impl Memory {
    pub(crate) fn new(budget: usize) -> Self {
        Self {
            used: 0,
            reserved: 0,
            budget,
            transit: Transit::new(budget),
        }
    }

    /// Returns the bytes of all messages in memory, with those on their way to consumers.
    pub(crate) const fn held(&self) -> usize {
        self.used + self.transit.bytes
    }

    /// Returns the bytes of a message whose payload is in memory.
    pub(crate) const fn whole(sizes: Sizes) -> usize {
        OVERHEAD + sizes.headers as usize + sizes.body as usize
    }

    /// Returns the bytes of a message whose payload is in the store only.
    pub(crate) const fn bare() -> usize {
        OVERHEAD
    }

    /// Tells whether a message that was just stored may stay in memory.
    ///
    /// Such messages get half of the budget, so that a producer that is faster than the consumers leaves room to read
    /// backlogs. A key without other messages may use all of it: a quiet key is served from memory beside a noisy one.
    pub(crate) const fn has_room_for_fresh(&self, size: usize, is_first: bool) -> bool {
        let room = if is_first {
            self.budget
        } else {
            self.budget / 2
        };
        self.held() + size <= room
    }

    /// Tells whether to read ahead of demand: up to five eighths, which leaves room for reads on demand.
    pub(crate) const fn has_room_ahead(&self) -> bool {
        self.held() + self.reserved < self.budget / 8 * 5
    }

    /// Tells whether to read on past messages that wait for tokens: up to a quarter, which leaves room for other keys.
    pub(crate) const fn has_room_to_park(&self) -> bool {
        self.held() + self.reserved < self.budget / 4
    }

    /// Returns how many bytes to read at once. Even without room, a lane whose turn has come reads a handful of messages,
    /// or each message would take a read of its own.
    pub(crate) fn chunk(&self) -> usize {
        const LEAST: usize = 4 * OVERHEAD;
        const MOST: usize = 1 << 20;
        let room = self.budget.saturating_sub(self.held() + self.reserved);
        (room / 8).clamp(LEAST, MOST)
    }

    /// Returns how many messages without headers and body take this many bytes.
    pub(crate) const fn messages(bytes: usize) -> usize {
        bytes / OVERHEAD
    }
}
