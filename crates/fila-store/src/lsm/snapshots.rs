//! The snapshots that are read, so that compaction keeps their versions of rows.

use std::collections::BTreeMap;
use std::sync::Mutex;

use lsm_tree::{SeqNo, SequenceNumberCounter};

use crate::sync;

#[derive(Debug)]
pub(super) struct Snapshots {
    /// The next snapshot sees every sequence number below this one.
    visible: SequenceNumberCounter,
    /// Open snapshots by their number.
    open: Mutex<BTreeMap<SeqNo, usize>>,
}

impl Snapshots {
    pub(super) fn new(visible: SequenceNumberCounter) -> Self {
        Self {
            visible,
            open: Mutex::default(),
        }
    }

    pub(super) fn open(&self) -> SeqNo {
        let mut open = sync::lock(&self.open);
        // Read under the lock, so that no watermark passes a snapshot that is being opened.
        let sequence = self.visible.get();
        *open.entry(sequence).or_default() += 1;
        sequence
    }

    pub(super) fn close(&self, sequence: SeqNo) {
        let mut open = sync::lock(&self.open);
        if let Some(count) = open.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                open.remove(&sequence);
            }
        }
    }

    /// Returns the number of the next snapshot.
    pub(super) fn next(&self) -> SeqNo {
        self.visible.get()
    }

    /// Returns whether a snapshot before this one is open.
    pub(super) fn has_before(&self, sequence: SeqNo) -> bool {
        let open = sync::lock(&self.open);
        open.first_key_value()
            .is_some_and(|(&oldest, _)| oldest < sequence)
    }

    /// Returns the sequence number below which only the newest version of a row is needed.
    pub(super) fn watermark(&self) -> SeqNo {
        let open = sync::lock(&self.open);
        let oldest = open.first_key_value().map(|(&sequence, _)| sequence);
        oldest
            .unwrap_or_else(|| self.visible.get())
            .saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_stays_below_the_oldest_open_snapshot() {
        let visible = SequenceNumberCounter::new(5);
        let snapshots = Snapshots::new(visible.clone());
        let first = snapshots.open();
        let again = snapshots.open();
        visible.set(9);
        let second = snapshots.open();
        assert_eq!((first, again, second), (5, 5, 9));
        snapshots.close(first);
        assert_eq!(snapshots.watermark(), 4);
        snapshots.close(again);
        assert_eq!(snapshots.watermark(), 8);
        assert!(snapshots.has_before(10) && !snapshots.has_before(9));
        visible.set(20);
        snapshots.close(second);
        assert_eq!(snapshots.watermark(), 19);
    }
}
