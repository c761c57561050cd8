//! Lanes that wait for something, in turns by levels: first the groups and keys at the top, then those in the group whose
//! turn it is. So a group has one turn where a key has one, however many of its members wait.
//!
//! What stands in a group is ordered by rank, and by turn among those of one rank. A group stands here while one of its
//! members does. Without groups there is one level.

use std::collections::{BTreeMap, HashMap};

/// The top level, which no group has the number of.
const TOP: u32 = u32::MAX;

/// A lane or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Member {
    Lane(u32),
    Group(u32),
}

/// The level that a member stands on, its rank, and its turn.
type Place = (u32, u64, u64);

#[derive(Debug, Default)]
pub(crate) struct Turns {
    order: BTreeMap<Place, Member>,
    places: HashMap<Member, Place>,
    next_turn: u64,
}

impl Turns {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn has_lane(&self, lane: u32) -> bool {
        self.places.contains_key(&Member::Lane(lane))
    }

    /// Returns the rank of the first at the top.
    #[inline]
    pub(crate) fn first_rank(&self) -> Option<u64> {
        let (&(_, rank, _), _) = self.first_on(TOP)?;
        Some(rank)
    }

    /// Returns the rank of the first in a group; `None` if nothing in it waits.
    pub(crate) fn first_rank_in(&self, group: u32) -> Option<u64> {
        let (&(_, rank, _), _) = self.first_on(group)?;
        Some(rank)
    }

    /// Returns the lane whose turn it is.
    pub(crate) fn first(&self) -> Option<u32> {
        let mut level = TOP;
        loop {
            match self.first_on(level)? {
                (_, &Member::Lane(lane)) => return Some(lane),
                (_, &Member::Group(group)) => level = group,
            }
        }
    }

    /// Adds a lane behind all others of its group and rank. `groups` are those that it is in, from the top down; those
    /// that are not here are behind all others of the first rank.
    pub(crate) fn enter(&mut self, groups: &[u32], lane: u32, rank: u64) {
        let mut level = TOP;
        for &group in groups {
            if !self.places.contains_key(&Member::Group(group)) {
                self.insert(Member::Group(group), level, 0);
            }
            level = group;
        }
        self.insert(Member::Lane(lane), level, rank);
    }

    /// Removes a lane, and the groups that have nothing here any more. Returns whether it was here.
    pub(crate) fn leave(&mut self, lane: u32) -> bool {
        let Some(mut level) = self.remove(Member::Lane(lane)) else {
            return false;
        };
        while level != TOP && self.first_on(level).is_none() {
            level = self.remove(Member::Group(level)).unwrap_or(TOP);
        }
        true
    }

    /// Puts a lane and the groups that it is in behind all others of their ranks.
    pub(crate) fn give_way(&mut self, lane: u32) {
        let mut member = Member::Lane(lane);
        while let Some(&(level, rank, _)) = self.places.get(&member) {
            self.remove(member);
            self.insert(member, level, rank);
            member = Member::Group(level); // the top is no group, and has no place
        }
    }

    pub(crate) fn set_rank_of_lane(&mut self, lane: u32, rank: u64) {
        self.set_rank(Member::Lane(lane), rank);
    }

    pub(crate) fn set_rank_of_group(&mut self, group: u32, rank: u64) {
        self.set_rank(Member::Group(group), rank);
    }

    /// Changes the rank of a member that is here. It keeps its turn.
    fn set_rank(&mut self, member: Member, rank: u64) {
        if let Some(place) = self.places.get_mut(&member)
            && place.1 != rank
        {
            self.order.remove(place);
            place.1 = rank;
            self.order.insert(*place, member);
        }
    }

    fn first_on(&self, level: u32) -> Option<(&Place, &Member)> {
        self.order
            .range((level, 0, 0)..=(level, u64::MAX, u64::MAX))
            .next()
    }

    fn insert(&mut self, member: Member, level: u32, rank: u64) {
        let place = (level, rank, self.next_turn);
        self.next_turn += 1;
        self.order.insert(place, member);
        self.places.insert(member, place);
    }

    /// Removes a member that is here, and returns its level.
    fn remove(&mut self, member: Member) -> Option<u32> {
        let place = self.places.remove(&member)?;
        self.order.remove(&place);
        Some(place.0)
    }

    /// Returns whether every group that stands here has a member that does, and the other way round.
    #[cfg(test)]
    pub(crate) fn is_sound(&self) -> bool {
        let has_place = |(place, member): (&Place, &Member)| {
            let has_level = place.0 == TOP || self.places.contains_key(&Member::Group(place.0));
            let has_members = match *member {
                Member::Lane(_) => true,
                Member::Group(group) => self.first_on(group).is_some(),
            };
            self.places.get(member) == Some(place) && has_level && has_members
        };
        self.order.len() == self.places.len() && self.order.iter().all(has_place)
    }
}
