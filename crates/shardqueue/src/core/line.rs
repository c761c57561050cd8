//! The line of submissions that wait for room: by key, and in order of arrival within a key.
//!
//! Room goes to the key that has the fewest jobs queued, and to keys with equally many in turn. So if the first key may
//! have no more jobs, no other may. The line is kept apart from the lanes, because submissions hardly ever wait.
//!
//! # Groups
//! Room goes to the group or key at the top that needs the least, then to what needs the least in that group. The need is
//! the smallest part of the level above with which one more job gets in: for a key one more than it has queued, for a
//! group what [`GroupLoad::need`] says. It is one number for all that waits in a group, so that the sentence above holds
//! on every level.

use std::collections::HashMap;

use super::groups::{self, GroupLoad};
use super::lanes::Lanes;
use super::list::List;
use super::node::Node;
use super::slab::Slab;
use super::turns::Turns;

#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Submissions that wait, by lane.
    waiting: HashMap<u32, List>,
    turns: Turns,
}

impl Line {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns how much the first key or group at the top needs.
    #[inline]
    pub(crate) fn least_need(&self) -> Option<u64> {
        self.turns.first_rank()
    }

    /// Adds a submission behind the others of its lane.
    pub(crate) fn push<J, T>(
        &mut self,
        nodes: &mut Slab<Node<J, T>>,
        lanes: &Lanes,
        (lane, slot): (u32, u32),
    ) {
        let list = self.waiting.entry(lane).or_insert(List::EMPTY);
        list.push_back(nodes, slot);
        if !self.turns.has_lane(lane) {
            self.enter(lanes, lane);
        }
    }

    /// Takes a submission out. Returns whether it was the last of its lane.
    pub(crate) fn remove<J, T>(
        &mut self,
        nodes: &mut Slab<Node<J, T>>,
        lanes: &Lanes,
        (lane, slot): (u32, u32),
    ) -> bool {
        let Some(list) = self.waiting.get_mut(&lane) else {
            return false;
        };
        list.remove(nodes, slot);
        let is_last = list.is_empty();
        if is_last {
            self.waiting.remove(&lane);
            self.turns.leave(lane);
            self.refresh(lanes, lane);
        }
        is_last
    }

    /// Takes out the first submission of the first key, which then is behind all others of its need. Returns it with its
    /// lane, and whether it was the last of that. The caller accepts it, and thereby [refreshes](Self::refresh) the line.
    pub(crate) fn pop<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>) -> Option<(u32, u32, bool)> {
        let lane = self.turns.first()?;
        let list = self.waiting.get_mut(&lane)?;
        let slot = list.pop_front(nodes)?;
        let is_last = list.is_empty();
        self.turns.give_way(lane);
        if is_last {
            self.waiting.remove(&lane);
            self.turns.leave(lane);
        }
        Some((lane, slot, is_last))
    }

    /// Notes how much a lane and the groups that it is in hold now. They keep their turns.
    pub(crate) fn refresh(&mut self, lanes: &Lanes, lane: u32) {
        let need = u64::from(lanes[lane].len) + 1;
        self.turns.set_rank_of_lane(lane, need);
        for &group in groups::around(lanes, lane).iter().rev() {
            if let Some(need) = self.turns.first_rank_in(group) {
                let load: &GroupLoad = lanes.group(group);
                self.turns.set_rank_of_group(group, load.need(need));
            }
        }
    }

    /// Puts a lane that waits into the groups that it is in now.
    pub(crate) fn move_lane(&mut self, lanes: &Lanes, lane: u32) {
        if self.turns.leave(lane) {
            self.enter(lanes, lane);
        }
    }

    fn enter(&mut self, lanes: &Lanes, lane: u32) {
        self.turns.enter(&groups::around(lanes, lane), lane, 0);
        self.refresh(lanes, lane);
    }

    #[cfg(test)]
    pub(crate) fn is_sound(&self) -> bool {
        self.turns.is_sound() && self.waiting.keys().all(|&lane| self.turns.has_lane(lane))
    }
}
