//! The queue of one tenant, and what the scheduler knows about the tenant: with a key of up to eight bytes,
//! one cache line.

use drr::{Key, Weight};

use crate::node::{Fifo, Node};
use crate::slab::{NIL, Slab, Slot};
use crate::task::Priority;

/// One tenant.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Lane<K> {
    /// `None` while no tenant lives here.
    pub(crate) tenant: Option<K>,
    /// The tenant's key in the ring, from the first time that it has work.
    pub(crate) key: Option<Key>,
    /// Tasks by priority.
    queues: [Fifo; 3],
    /// How many tasks there are; while no tenant lives here, the next free lane.
    pub(crate) len: u32,
    /// How many tasks have been accepted since the tenant was last forgotten, up to four billion.
    pub(crate) accepted: u32,
    pub(crate) weight: Weight,
    flags: u8,
}

/// A yes-or-no fact about a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// The ring knows that there are tasks.
    InRing = 1,
    /// The tenant may not run, whatever it has queued.
    Paused = 2,
    /// A producer waits for room in this lane.
    Awaited = 4,
    /// The tenant had work since the eviction hand last passed.
    Used = 8,
}

const _: () = assert!(size_of::<Lane<u64>>() == 64);

impl<K> Lane<K> {
    /// Moves a tenant in.
    pub(crate) fn occupy(&mut self, tenant: K, weight: Weight) {
        *self = Self {
            tenant: Some(tenant),
            weight,
            ..Self::vacant(0)
        };
    }

    #[inline]
    pub(crate) fn push<T>(&mut self, nodes: &mut Slab<Node<T>>, index: u32, priority: Priority) {
        self.queues[priority.index()].push_back(nodes, index);
        self.len += 1;
        self.note_accepted();
    }

    /// Notes that the tenant had work.
    #[inline]
    pub(crate) const fn note_accepted(&mut self) {
        self.accepted = self.accepted.saturating_add(1);
        self.flags |= Flag::Used as u8;
    }

    #[inline]
    pub(crate) fn unlink<T>(&mut self, nodes: &mut Slab<Node<T>>, index: u32) {
        let priority = nodes[index].priority();
        self.queues[priority.index()].unlink(nodes, index);
        self.len -= 1;
    }

    /// Takes the task that is next out of its list; `next` is the one behind it there.
    #[inline]
    pub(crate) fn pop(&mut self, priority: Priority, next: u32) {
        let queue = &mut self.queues[priority.index()];
        if queue.head == queue.tail {
            *queue = Fifo::EMPTY;
        } else {
            queue.head = next;
        }
        self.len -= 1;
    }

    /// Returns the task that is next, if there is one.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        // Most work has no priority, so that queue is looked at while the others are known to be empty.
        let [high, normal, low] = &self.queues;
        let head = match (high.is_empty(), normal.is_empty()) {
            (true, false) => normal.head,
            (true, true) => low.head,
            (false, _) => high.head,
        };
        (head != NIL).then_some(head)
    }

    /// Returns the task that gives way to one of `priority`: of the least urgent, none more urgent than it.
    pub(crate) fn victim(&self, priority: Priority, age: Age) -> Option<u32> {
        let queues = &self.queues[priority.index()..];
        let queue = queues.iter().rev().find(|queue| !queue.is_empty())?;
        Some(match age {
            Age::Oldest => queue.head,
            Age::Newest => queue.tail,
        })
    }

    /// Returns the newest of the least urgent tasks.
    pub(crate) fn last(&self) -> Option<u32> {
        self.victim(Priority::High, Age::Newest)
    }

    /// Returns whether the lane may be given to another tenant, as far as its own state says.
    pub(crate) const fn is_idle(&self) -> bool {
        self.len == 0 && !self.has(Flag::Paused) && !self.has(Flag::Awaited)
    }

    #[inline]
    pub(crate) const fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u8 != 0
    }

    #[inline]
    pub(crate) const fn set(&mut self, flag: Flag, to: bool) {
        if to {
            self.flags |= flag as u8;
        } else {
            self.flags &= !(flag as u8);
        }
    }
}

/// Which end of a queue a task is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Oldest,
    Newest,
}

impl<K> Slot for Lane<K> {
    fn vacant(_: u64) -> Self {
        Self {
            tenant: None,
            key: None,
            queues: [Fifo::EMPTY; 3],
            len: 0,
            accepted: 0,
            weight: Weight::ONE,
            flags: 0,
        }
    }

    fn generation(&self) -> u64 {
        0
    }

    fn next_free(&self) -> u32 {
        self.len
    }

    fn set_next_free(&mut self, next: u32) {
        self.len = next;
    }
}
