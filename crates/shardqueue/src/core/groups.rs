//! The groups of a shard: what the members of each hold together, and what a name says about groups and weights.
//!
//! A group is in a shard while a key of its own is in memory there. The counts of a group are those of its members, on all
//! levels below it; they change where those of a lane do, and only if there are groups at all.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use drr::{Nesting, Pool, Weight};

use super::Core;
use super::lanes::Lanes;
use super::node::Stage;
use crate::path::{PARTS_MAX, Separator};

/// The failing keys of a group at the top use an eighth of the room for backing off for free, those of a group inside it
/// half of that, and so on. The shift of a group at the top is this one.
const SPARE_BITS: u32 = 3;

/// How many queued jobs a failing one counts as that is not spare.
const PER_EXCESS: u64 = 8;

/// What the members of a group hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupLoad {
    /// Jobs queued.
    pub(crate) queued: u32,
    /// How many of them use the room for backing off.
    pub(crate) apart: u32,
    pub(crate) backing_off: u32,
    /// How many jobs may back off without counting as queued.
    pub(crate) spare: u32,
    /// Whether it was made just now, so that the key of its name is not counted yet.
    is_new: bool,
}

impl GroupLoad {
    /// Returns how much of the room of its level the group uses.
    ///
    /// A running job that fails must be let back off, whatever room there is. So that a tenant with a thousand failing
    /// keys does not use up the room of all others, those beyond its spare ones count against its part of the queue, so
    /// much that it soon gets no new jobs in. Eight such tenants, one after another, leave room to a ninth.
    pub(crate) const fn held(&self) -> u64 {
        let excess = self.backing_off.saturating_sub(self.spare);
        self.queued as u64 + PER_EXCESS * excess as u64
    }

    /// Returns the smallest part that the group must have on its level for a member to get one more job in that needs
    /// this much of the group: the member's part is three times what is left of the group's, and never more than that.
    pub(crate) fn need(&self, of_member: u64) -> u64 {
        let beside = of_member.div_ceil(Pool::PART_PER_FREE);
        of_member.max(self.held().saturating_add(beside))
    }
}

/// The groups that a lane is in, from the top down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    groups: [u32; PARTS_MAX - 1],
    len: usize,
}

impl Deref for Around {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.groups[..self.len]
    }
}

/// Returns the groups that a lane is in, from the top down.
pub(crate) fn around(lanes: &Lanes, lane: u32) -> Around {
    let mut around = Around {
        groups: [0; PARTS_MAX - 1],
        len: 0,
    };
    let mut next = lanes.group_of(lane);
    while let Some(group) = next {
        around.groups[around.len] = group;
        around.len += 1;
        next = lanes.group_around(group);
    }
    around.groups[..around.len].reverse();
    around
}

/// What names say: which groups a key is in, and which weights were set.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) separator: Option<Separator>,
    /// Weights other than one, of keys and groups.
    weights: HashMap<Arc<str>, Weight>,
    backoff_max: usize,
}

impl Names {
    pub(crate) fn new(separator: Option<Separator>, backoff_max: usize) -> Self {
        Self {
            separator,
            weights: HashMap::new(),
            backoff_max,
        }
    }

    #[inline]
    pub(crate) fn has_weights(&self) -> bool {
        !self.weights.is_empty()
    }

    /// Returns the weight of a key or group.
    pub(crate) fn weight(&self, name: &str) -> Weight {
        self.weights.get(name).copied().unwrap_or_default()
    }

    fn set_weight(&mut self, name: &Arc<str>, weight: Weight) {
        if weight == Weight::ONE {
            self.weights.remove(&**name);
        } else {
            self.weights.insert(Arc::clone(name), weight);
        }
    }

    /// Returns a group without members.
    pub(crate) fn empty(&self, name: &str) -> GroupLoad {
        let above = self.separator.map_or(0, |sep| sep.groups(name).count());
        let spare = self.backoff_max >> (SPARE_BITS + above as u32);
        GroupLoad {
            spare: u32::try_from(spare).unwrap_or(u32::MAX),
            is_new: true,
            ..GroupLoad::default()
        }
    }
}

impl Nesting<str> for Names {
    type Name = Arc<str>;
    type Value = GroupLoad;

    fn parent<'n>(&'n self, name: &'n str) -> Option<&'n str> {
        self.separator?.parent(name)
    }

    fn found(&self, name: &str, _own: Option<Weight>) -> (Arc<str>, GroupLoad, Weight) {
        (Arc::from(name), self.empty(name), self.weight(name))
    }
}

impl<J, T: Clone, B> Core<J, T, B> {
    /// Changes the counts of all groups that a lane is in.
    #[inline]
    pub(super) fn count(&mut self, lane: u32, change: impl Fn(&mut GroupLoad)) {
        if !self.lanes.groups().is_empty() {
            self.count_in_groups(lane, change);
        }
    }

    fn count_in_groups(&mut self, lane: u32, change: impl Fn(&mut GroupLoad)) {
        for &group in around(&self.lanes, lane).iter() {
            change(self.lanes.group_mut(group));
        }
    }

    /// Completes the groups that were made for a new lane: the key that bears the name of such a group has moved into it.
    pub(super) fn complete_groups(&mut self, lane: u32) {
        for &group in around(&self.lanes, lane).iter() {
            if !self.lanes.group(group).is_new {
                continue;
            }
            let own = self.lanes.find(&**self.lanes.groups().name(group));
            let load = self.load_of_lane(own, *self.lanes.group(group));
            *self.lanes.group_mut(group) = GroupLoad {
                is_new: false,
                ..load
            };
            if let Some(own) = own {
                self.line.move_lane(&self.lanes, own);
                self.express.move_lane(&self.lanes, own);
            }
        }
    }

    /// Returns what a new group holds whose only member is this lane.
    pub(super) fn load_of_lane(&self, lane: Option<u32>, empty: GroupLoad) -> GroupLoad {
        let Some(lane) = lane.and_then(|lane| self.lanes.get(lane)) else {
            return empty;
        };
        let active = lane.has_active().then(|| self.nodes[lane.active].stage);
        GroupLoad {
            queued: lane.len,
            apart: lane.apart,
            backing_off: u32::from(active.is_some_and(Stage::backs_off)),
            ..empty
        }
    }

    /// Sets the share of a key or a group among its siblings, now and when it comes back.
    pub(crate) fn set_weight(&mut self, name: &Arc<str>, weight: Weight) {
        self.names.set_weight(name, weight);
        if let Some(group) = self.lanes.groups().find(&**name) {
            self.lanes.set_group_weight(group, weight);
        } else if let Some(lane) = self.lanes.find(&**name) {
            self.lanes.set_weight(lane, weight);
        }
    }

    /// Returns how many groups are in memory.
    pub(crate) fn groups(&self) -> usize {
        self.lanes.groups().len()
    }
}
