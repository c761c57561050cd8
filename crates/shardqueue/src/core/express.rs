//! The express line: keys whose next job is urgent, before the ring.
//!
//! A lane is in the ring or in the express line, never in both: while a lane is listed here, it is parked in the ring.
//! Lanes take turns, by [levels](super::turns): a group of keys has one turn, however many of them are here. While lanes in
//! the ring can run, at most `max` urgent jobs begin in a row, then one from the ring. A lane pays for its urgent jobs in
//! the ring, and so do the groups that it is in. So neither gets more than its share in the long run if it also has other
//! jobs.
//!
//! Urgent jobs are rare, so their queues are kept apart from the lanes, which have no room for a fourth queue.

use std::collections::HashMap;

use super::groups;
use super::lanes::Lanes;
use super::list::List;
use super::node::Node;
use super::slab::Slab;
use super::turns::Turns;

#[derive(Debug, Default)]
pub(crate) struct Express {
    /// Urgent jobs that are queued, by lane.
    queues: HashMap<u32, List>,
    /// Lanes whose next job is urgent. All have one rank.
    turns: Turns,
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

    /// Lists a lane behind the others of its group.
    pub(crate) fn list(&mut self, lanes: &Lanes, lane: u32) {
        self.turns.enter(&groups::around(lanes, lane), lane, 0);
    }

    /// Takes a lane off the list. Returns whether it was on it.
    pub(crate) fn unlist(&mut self, lane: u32) -> bool {
        self.turns.leave(lane)
    }

    /// Puts a listed lane into the groups that it is in now.
    pub(crate) fn move_lane(&mut self, lanes: &Lanes, lane: u32) {
        if self.unlist(lane) {
            self.list(lanes, lane);
        }
    }

    /// Takes the first lane off the list, unless it is the turn of the others, who wait for it.
    pub(crate) fn next_lane(&mut self, others_wait: bool, max: usize) -> Option<u32> {
        if others_wait && self.in_a_row >= max {
            return None;
        }
        let lane = self.turns.first()?;
        self.turns.give_way(lane); // with its groups
        self.turns.leave(lane);
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
        self.turns.has_lane(lane)
    }

    #[cfg(test)]
    pub(crate) fn is_sound(&self) -> bool {
        self.turns.is_sound()
    }
}
