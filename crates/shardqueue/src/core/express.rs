//! The express line: keys whose next job is urgent, before the ring.
//!
//! A lane is in the ring or in the express line, never in both: while a lane is listed here, it is parked in the ring.
//! Lanes take turns. While lanes in the ring can run, at most `max` urgent jobs begin in a row, then one from the ring.
//! A lane pays for its urgent jobs in the ring, so a key gets no more than its share in the long run if it also has
//! other jobs.
//!
//! Urgent jobs are rare, so their queues are kept apart from the lanes, which have no room for a fourth queue.

use std::collections::{BTreeMap, HashMap};

use super::list::List;
use super::node::Node;
use super::slab::Slab;

#[derive(Debug, Default)]
pub(crate) struct Express {
    /// Urgent jobs that are queued, by lane.
    queues: HashMap<u32, List>,
    /// Lanes whose next job is urgent, by their turn.
    turns: BTreeMap<u64, u32>,
    /// The turns of these lanes.
    listed: HashMap<u32, u64>,
    next_turn: u64,
    /// How many urgent jobs have begun in a row while others waited.
    in_a_row: usize,
}

impl Express {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(crate) fn push<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>, lane: u32, slot: u32) {
        let queue = self.queues.entry(lane).or_insert(List::EMPTY);
        queue.push_back(nodes, slot);
    }

    /// Takes the first urgent job of a lane. Returns it, and whether it was the last.
    pub(crate) fn pop<J, T>(
        &mut self,
        nodes: &mut Slab<Node<J, T>>,
        lane: u32,
    ) -> Option<(u32, bool)> {
        let slot = self.queues.get(&lane)?.front()?;
        Some((slot, self.remove(nodes, lane, slot)))
    }

    /// Takes an urgent job out of its queue. Returns whether it was the last of its lane.
    pub(crate) fn remove<J, T>(
        &mut self,
        nodes: &mut Slab<Node<J, T>>,
        lane: u32,
        slot: u32,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(&lane) else {
            return false;
        };
        queue.remove(nodes, slot);
        let is_last = queue.is_empty();
        if is_last {
            self.queues.remove(&lane);
        }
        is_last
    }

    /// Returns how many urgent jobs of a lane are queued, by counting them.
    pub(crate) fn len<J, T>(&self, nodes: &mut Slab<Node<J, T>>, lane: u32) -> usize {
        self.queues.get(&lane).map_or(0, |queue| queue.len(nodes))
    }

    /// Lists a lane behind the others.
    pub(crate) fn list(&mut self, lane: u32) {
        self.turns.insert(self.next_turn, lane);
        self.listed.insert(lane, self.next_turn);
        self.next_turn += 1;
    }

    /// Takes a lane off the list. Returns whether it was on it.
    pub(crate) fn unlist(&mut self, lane: u32) -> bool {
        let turn = self.listed.remove(&lane);
        turn.is_some_and(|turn| self.turns.remove(&turn).is_some())
    }

    /// Takes the first lane off the list, unless it is the turn of the others, who wait for it.
    pub(crate) fn next_lane(&mut self, others_wait: bool, max: usize) -> Option<u32> {
        if others_wait && self.in_a_row >= max {
            return None;
        }
        let (_, lane) = self.turns.pop_first()?;
        self.listed.remove(&lane);
        self.in_a_row = if others_wait { self.in_a_row + 1 } else { 0 };
        Some(lane)
    }

    /// Notes that a job of the ring begins.
    #[inline]
    pub(crate) const fn interrupt(&mut self) {
        self.in_a_row = 0;
    }

    #[cfg(test)]
    pub(crate) fn is_listed(&self, lane: u32) -> bool {
        self.listed.contains_key(&lane)
    }
}
