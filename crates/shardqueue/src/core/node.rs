//! One job in a shard, from its submission to its end.

use std::fmt;

use drr::Cost;

use super::list::{Linked, Links};
use super::time::Timestamp;
use crate::options::Priority;

/// A slot, and the serial number of what lives in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobSlot {
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

/// Where a job is in its life; see the [module documentation](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is not accepted yet: it waits for room.
    Waiting,
    Queued,
    /// It is of a job across keys, and holds its key. It counts as queued.
    Holding {
        /// All keys are held, and it is the home: it is the next of its lane, which is not parked any more.
        is_ready: bool,
    },
    Running {
        /// It has been told to stop, and must not be attempted again.
        is_cancelled: bool,
        /// It waits for something, and its lane is parked.
        is_aside: bool,
    },
    /// Its lane is parked until then; afterwards it is the next of its lane.
    BackingOff {
        until: Timestamp,
    },
}

/// What a node is to its job; see [`Joint`](crate::joint::Joint).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The only node of its job.
    Single,
    /// The node that runs a job across keys.
    Home,
    /// A node that holds another key for a job across keys, and never runs.
    Part,
}

impl Stage {
    pub(crate) const fn backs_off(self) -> bool {
        matches!(self, Self::BackingOff { .. })
    }
}

pub(crate) struct Node<J, T> {
    pub(crate) serial: u64,
    /// Its place among all that the shard has accepted.
    pub(crate) order: u64,
    pub(crate) lane: u32,
    links: Links,
    pub(crate) stage: Stage,
    pub(crate) priority: Priority,
    pub(crate) role: Role,
    /// Attempts that have begun.
    pub(crate) attempts: u32,
    pub(crate) cost: Cost,
    /// The job itself; `None` while it runs.
    pub(crate) job: Option<J>,
    /// What its owner is told by.
    pub(crate) ticket: T,
}

impl<J, T> Node<J, T> {
    pub(crate) const fn new(
        serial: u64,
        lane: u32,
        (priority, cost, role): (Priority, Cost, Role),
        job: J,
        ticket: T,
    ) -> Self {
        Self {
            serial,
            order: 0,
            lane,
            links: Links::NONE,
            stage: Stage::Waiting,
            priority,
            role,
            attempts: 0,
            cost,
            job: Some(job),
            ticket,
        }
    }
}

impl<J, T> Linked for Node<J, T> {
    #[inline]
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl<J, T> fmt::Debug for Node<J, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("serial", &self.serial)
            .field("stage", &self.stage)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
