//! The lane of one key: its queued jobs by priority, and the one that has begun. One cache line.

use super::list::{List, NIL};
use super::node::Node;
use super::slab::Slab;

#[derive(Debug)]
pub(crate) struct Lane {
    queues: [List; 3],
    /// Jobs queued, in all queues and in the express line.
    pub(crate) len: u32,
    /// How many of them use the room for backing off: see the [module documentation](super).
    pub(crate) apart: u32,
    /// The job that has begun, or [`NIL`](super::list::NIL): it runs or backs off, and nothing else of the key
    /// runs meanwhile.
    pub(crate) active: u32,
    /// Whether submissions for this key wait for room.
    pub(crate) is_awaited: bool,
    /// Whether urgent jobs of this key are queued, in the [express line](super::express).
    pub(crate) is_urgent: bool,
}

const _: () = assert!(
    size_of::<Lane>() <= 40,
    "with its name it fits a cache line"
);

impl Lane {
    pub(crate) const fn new() -> Self {
        Self {
            queues: [List::EMPTY; 3],
            len: 0,
            apart: 0,
            active: NIL,
            is_awaited: false,
            is_urgent: false,
        }
    }

    #[inline]
    pub(crate) const fn has_active(&self) -> bool {
        self.active != NIL
    }

    /// Returns whether the key has a job that has been accepted.
    #[inline]
    pub(crate) const fn has_work(&self) -> bool {
        self.len > 0 || self.has_active()
    }

    /// Returns whether the key has nothing at all, so that its lane can be given up.
    pub(crate) const fn is_idle(&self) -> bool {
        !self.has_work() && !self.is_awaited
    }

    #[inline]
    pub(crate) fn push<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>, slot: u32, queue: usize) {
        self.queues[queue].push_back(nodes, slot);
        self.len += 1;
    }

    /// Takes the job that is next out of the queues.
    #[inline]
    pub(crate) fn pop<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>) -> Option<u32> {
        let queue = self.queues.iter_mut().find(|queue| !queue.is_empty())?;
        self.len -= 1;
        queue.pop_front(nodes)
    }

    pub(crate) fn unlink<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>, slot: u32, queue: usize) {
        self.queues[queue].remove(nodes, slot);
        self.len -= 1;
    }

    /// Corrects `apart` after a job has left the queue. Returns by how much it falls.
    #[inline]
    pub(crate) const fn trim_apart(&mut self) -> u32 {
        let surplus = self.apart.saturating_sub(self.len);
        self.apart -= surplus;
        surplus
    }

    /// Returns how many jobs are queued in the queues before one of them.
    pub(crate) fn len_before<J, T>(&self, nodes: &mut Slab<Node<J, T>>, queue: usize) -> usize {
        self.queues[..queue]
            .iter()
            .map(|queue| queue.len(nodes))
            .sum()
    }
}
