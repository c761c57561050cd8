//! The room on the disk: how much the store keeps free, and whether that much is there.
//!
//! A disk that is full to the last byte is hard to leave: acknowledging a message writes to the log, the flush that follows
//! writes tables, and the merge that finally removes the message writes larger ones. So the store counts as *full* while
//! there is still room for this, and the caller refuses new messages from then on. Commits that are under way, and those
//! that remove messages, go on.
//!
//! # What always holds
//! - A write to the log never meets a full disk: blocks are allocated before.
//! - If another program takes the last room, allocations, flushes and merges are tried again until they succeed. Commits
//!   wait for the log's next segment; none is lost, and none has an unknown outcome because of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Segments that the store keeps free, or as spare files: for the commits that are under way when it becomes full, for the
/// acknowledgements after it, and for flushing both.
const NEEDED_SEGMENTS: u64 = 8;

/// On a small disk, a smaller part is enough, but never less than this many segments.
const NEEDED_MIN: u64 = 2;

/// The part of a small disk.
const DISK_PARTS: u64 = 8;

/// Spare files that the store allocates when room becomes scarce. No other program can take them.
pub(super) const RESERVE: usize = 4;

/// Spare files that the log keeps for itself, so that the store can be opened again. It gives up those beyond to make room
/// for a flush.
pub(super) const RESERVE_LOG: usize = 1;

/// How often the store looks for room, and tries again what has failed.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 500 });

/// Whether the disk counts as full. The flush thread decides, all threads read it.
#[derive(Debug, Default)]
pub(super) struct Room {
    is_low: AtomicBool,
}

impl Room {
    pub(super) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    pub(super) fn set_low(&self, is_low: bool) {
        self.is_low.store(is_low, Ordering::Relaxed);
    }
}

/// The room at one moment, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomFigures {
    /// Free on the disk.
    pub(super) free: u64,
    /// The whole disk.
    pub(super) total: u64,
    /// Spare files of the log.
    pub(super) spare: u64,
    /// A segment of the log.
    pub(super) segment: u64,
    /// The largest merge of the database.
    pub(super) merge: u64,
}

impl RoomFigures {
    fn has(&self) -> u64 {
        self.free.saturating_add(self.spare)
    }

    fn needed(&self) -> u64 {
        let most = NEEDED_SEGMENTS * self.segment;
        let part = (self.total / DISK_PARTS).max(NEEDED_MIN * self.segment);
        most.min(part).saturating_add(self.merge)
    }

    /// Returns whether there is too little. Leaving that state takes a quarter more, so that it does not change with each
    /// segment.
    pub(super) fn is_low(&self, was_low: bool) -> bool {
        let needed = self.needed();
        let margin = if was_low { needed / 4 } else { 0 };
        self.has() < needed.saturating_add(margin)
    }

    /// Returns whether a spare file should be allocated while that is still possible. Another program can take the room
    /// that is left as free.
    pub(super) fn is_scarce(&self) -> bool {
        let leaves_room = self.free >= 2 * self.segment;
        self.has() < self.needed().saturating_mul(4) && leaves_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn figures(free: u64, total: u64) -> RoomFigures {
        RoomFigures {
            free: free * MIB,
            total: total * MIB,
            spare: 0,
            segment: 16 * MIB,
            merge: 0,
        }
    }

    #[test]
    fn a_disk_counts_as_full_before_it_is_and_as_free_a_little_later() {
        assert!(!figures(128, 100_000).is_low(false));
        assert!(figures(127, 100_000).is_low(false));
        assert!(figures(159, 100_000).is_low(true));
        assert!(!figures(160, 100_000).is_low(true));
    }

    #[test]
    fn spare_files_count_as_room_and_a_merge_needs_some() {
        let with = RoomFigures {
            spare: 64 * MIB,
            ..figures(64, 100_000)
        };
        assert!(!with.is_low(false));
        let with = RoomFigures {
            merge: MIB,
            ..figures(128, 100_000)
        };
        assert!(with.is_low(false));
    }

    #[test]
    fn a_small_disk_keeps_a_smaller_part_free() {
        assert!(!figures(64, 512).is_low(false));
        assert!(figures(63, 512).is_low(false));
        assert!(!figures(32, 100).is_low(false), "two segments at least");
        assert!(figures(31, 100).is_low(false));
    }

    #[test]
    fn spare_files_are_allocated_when_room_becomes_scarce_and_not_from_the_last_of_it() {
        assert!(!figures(10_000, 100_000).is_scarce());
        assert!(figures(500, 100_000).is_scarce());
        assert!(figures(32, 100_000).is_scarce());
        assert!(!figures(31, 100_000).is_scarce());
    }
}
