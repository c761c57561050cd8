//! A job across keys: its places in the lanes of all its keys.
//!
//! The job has a node in the lane of each key: its *home*, in the lane of the first key, which runs it, and *parts* in the
//! others. All of them are put into their lanes under the locks of all shards concerned, so any two such jobs
//! stand in the same order in every lane that they share, and no circle of jobs can wait for each other. A node that comes
//! to the head of its lane *arrives*: it holds the key, takes no worker's time, and waits. When all have arrived, the
//! home is ready for its turn. The keys are held until the job has ended, also while it backs off; then the parts leave.
//!
//! # Locks
//! The lock of its own is taken last, and never held while a shard's is taken.

use std::sync::Arc;

use crate::core::{End, JobSlot};
use crate::shard::Shard;
use crate::sync::{Mutex, lock};

/// A node of a job across keys: its shard, and its place there.
pub(crate) type JointNode = (Arc<Shard>, JobSlot);

#[derive(Debug)]
pub(crate) struct Joint(Mutex<JointState>);

#[derive(Debug)]
struct JointState {
    /// How many nodes have not arrived.
    missing: usize,
    /// `None` before the nodes are in their lanes, and after the job has ended.
    home: Option<JointNode>,
    parts: Vec<JointNode>,
}

impl Joint {
    pub(crate) fn new(missing: usize) -> Self {
        Self(Mutex::new(JointState {
            missing,
            home: None,
            parts: Vec::new(),
        }))
    }

    /// Says where the nodes are. Called under the locks of all shards concerned.
    pub(crate) fn place(&self, home: JointNode, parts: Vec<JointNode>) {
        let mut state = lock(&self.0);
        state.home = Some(home);
        state.parts = parts;
    }

    /// Notes that a node has arrived, and readies the home if it was the last.
    pub(crate) fn arrive(&self) {
        let home = {
            let mut state = lock(&self.0);
            state.missing -= 1;
            if state.missing > 0 {
                return;
            }
            state.home.clone()
        };
        if let Some((shard, place)) = home {
            shard.ready(place);
        }
    }

    /// Lets the parts leave their lanes, because the job has ended.
    pub(crate) fn release(&self, end: End) {
        let parts = {
            let mut state = lock(&self.0);
            state.home = None;
            std::mem::take(&mut state.parts)
        };
        for (shard, place) in parts {
            shard.release(place, end);
        }
    }
}
