//! A raw FIFO in place of the engine: the baseline that the cost of fairness is measured against.
//!
//! It exists in builds with the feature `fifo` only, which are for benches. A queue then has one lane, whatever key a
//! message names, and no engine chooses, charges or shares. Benches send messages of one key: the store has rows by key, and
//! reads back those of the lane's key alone.

use std::collections::VecDeque;

/// The lanes with work, in the order in which they got it, if the queue is a FIFO.
#[derive(Debug, Default)]
pub(super) struct Fifo {
    #[cfg(feature = "fifo")]
    lanes: Option<VecDeque<u32>>,
}

#[cfg(feature = "fifo")]
impl Fifo {
    pub(super) fn new(is_fifo: bool) -> Self {
        Self {
            lanes: is_fifo.then(VecDeque::new),
        }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.lanes.is_some()
    }

    pub(super) const fn lanes(&mut self) -> Option<&mut VecDeque<u32>> {
        self.lanes.as_mut()
    }
}

#[cfg(not(feature = "fifo"))]
impl Fifo {
    pub(super) const fn is_on(&self) -> bool {
        false
    }

    pub(super) const fn lanes(&mut self) -> Option<&mut VecDeque<u32>> {
        None
    }
}
