//! How much of the backlog is in memory.

use fila_store::Sizes;

/// What a message takes in memory on top of what it carries: itself, its places in tables that are half full, what
/// the allocator needs.
const OVERHEAD: usize = 512;

/// What all queues of a broker hold in memory, and may hold.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) used: usize,
    /// What reads that are under way may bring.
    pub(crate) reserved: usize,
    pub(crate) budget: usize,
}

impl Memory {
    /// Returns what a message takes whose payload is in memory.
    pub(crate) const fn whole(sizes: Sizes) -> usize {
        OVERHEAD + sizes.headers as usize + sizes.body as usize
    }

    /// Returns what a message takes whose payload is in the store only.
    pub(crate) const fn bare() -> usize {
        OVERHEAD
    }

    /// Tells whether a message that was just stored may stay in memory.
    ///
    /// Half of the budget is for them, so that a producer who is ahead of his consumers does not take the room in
    /// which backlogs are read back. A key that has nothing else may use all of it: a quiet key is served from memory
    /// beside a noisy one.
    pub(crate) const fn has_room_for_fresh(&self, size: usize, is_first: bool) -> bool {
        let room = if is_first {
            self.budget
        } else {
            self.budget / 2
        };
        self.used + size <= room
    }

    /// Tells whether to read ahead of demand: up to five eighths, so that there is always room for what is demanded.
    pub(crate) const fn has_room_ahead(&self) -> bool {
        self.used + self.reserved < self.budget / 8 * 5
    }

    /// Tells whether to read on past messages that wait for tokens: up to a quarter, so that they keep nobody else's out.
    pub(crate) const fn has_room_to_park(&self) -> bool {
        self.used + self.reserved < self.budget / 4
    }

    /// Returns how many bytes to read at once. However little room there is, a lane whose turn has come gets a handful of
    /// messages, or every one of them would be a read of its own.
    pub(crate) fn chunk(&self) -> usize {
        const LEAST: usize = 4 * OVERHEAD;
        const MOST: usize = 1 << 20;
        let room = self.budget.saturating_sub(self.used + self.reserved);
        (room / 8).clamp(LEAST, MOST)
    }

    /// Returns how many messages take this much, if they carry nothing.
    pub(crate) const fn messages(bytes: usize) -> usize {
        bytes / OVERHEAD
    }
}
