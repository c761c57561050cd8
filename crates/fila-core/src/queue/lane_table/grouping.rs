//! The groups of lanes: what they count, whether they may run, and their shares.
//!
//! A lane that has changed brings its groups in step, from the lowest to the top. So everything here takes a few steps for
//! each level of the lane's path, and there are three groups above a lane at most.

use drr::{Cost, State as Engine, Weight};
use fila_store::{FairnessKey, GroupWeights, QueueId};
use slab::Slab;

use super::LaneTable;
use crate::queue::blocked::{BlockReason, Blocked};
use crate::queue::groups::{LaneGroup, NodeSettings, Paths, Usage, weight_of};
use crate::queue::lane::Home;
use crate::queue::message::Message;
use crate::queue::pace::LevelTime;
use crate::throttle::{Claim, ClaimGroups};
use crate::{DEPTH_MAX, KeySeparator};

/// The groups that a key is in, from the top down.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::queue) struct GroupsAbove([Option<u32>; DEPTH_MAX - 1]);

impl GroupsAbove {
    pub(in crate::queue) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied().flatten()
    }
}

impl LaneTable {
    pub(in crate::queue) fn group(&self, group: u32) -> &LaneGroup {
        self.lanes.group(group)
    }

    /// Returns the path of a group.
    pub(in crate::queue) fn group_path(&self, group: u32) -> &FairnessKey {
        self.lanes.groups().name(group)
    }

    /// Returns the group of this path, if it has members.
    pub(in crate::queue) fn find_group(&self, path: &FairnessKey) -> Option<u32> {
        self.lanes.groups().find(path)
    }

    /// Returns a group that may have been disbanded.
    pub(in crate::queue) fn try_group(&self, group: u32) -> Option<&LaneGroup> {
        self.lanes.groups().get(group)
    }

    /// Returns how many places there are for groups, some perhaps empty.
    pub(in crate::queue) fn group_places(&self) -> usize {
        self.lanes.groups().extent()
    }

    /// Returns how many groups there are.
    pub(in crate::queue) fn groups_len(&self) -> usize {
        self.lanes.groups().len()
    }

    /// Returns how many keys and groups are directly in a group.
    pub(in crate::queue) fn members(&self, group: u32) -> u32 {
        let handle = self.lanes.groups().handle(group);
        self.lanes.engine().members(handle).unwrap_or(0)
    }

    /// Returns the groups above a lane, from the one that it is in to the top.
    pub(in crate::queue) fn groups_above(&self, number: u32) -> impl Iterator<Item = u32> {
        let first = match self.lanes[number].home {
            Home::Top => None,
            Home::Member | Home::Own => self.lanes.group_of(number),
        };
        std::iter::successors(first, |&group| self.lanes.group_around(group))
    }

    /// Returns the same groups from the top down.
    pub(in crate::queue) fn groups_down_to(&self, number: u32) -> GroupsAbove {
        match self.lanes[number].home {
            Home::Top => GroupsAbove::default(),
            Home::Member | Home::Own => self.groups_down_through(self.lanes.group_of(number)),
        }
    }

    /// Returns the groups above a group and the group itself, from the top down.
    pub(in crate::queue) fn groups_down_through(&self, lowest: Option<u32>) -> GroupsAbove {
        let mut groups = GroupsAbove::default();
        let above = std::iter::successors(lowest, |&group| self.lanes.group_around(group));
        for (place, group) in groups.0.iter_mut().rev().zip(above) {
            *place = Some(group);
        }
        groups
    }

    /// Returns the groups that a key without a lane will be in, as far as there are any.
    pub(in crate::queue) fn groups_of_newcomer(
        &self,
        separator: Option<KeySeparator>,
        key: &FairnessKey,
    ) -> GroupsAbove {
        let mut groups = GroupsAbove::default();
        let known = self.lanes.groups();
        let Some(separator) = separator.filter(|_| !known.is_empty()) else {
            return groups;
        };
        // The last one is there if the key bears the name of a group.
        let names = separator.groups(key.as_bytes()).chain([key.as_bytes()]);
        for (place, name) in groups.0.iter_mut().zip(names) {
            *place = known.find(name);
        }
        groups
    }

    /// Returns the weight in force of a lane's key among its siblings.
    pub(in crate::queue) fn weight_of(&self, number: u32) -> Weight {
        let lane = &self.lanes[number];
        match lane.home {
            Home::Top | Home::Member => lane.weight_in_force(),
            Home::Own => {
                let group = self.groups_above(number).next();
                group.map_or(Weight::ONE, |group| self.group(group).weight_in_force())
            }
        }
    }

    /// Returns the claim of a lane of this queue to tokens.
    pub(in crate::queue) fn claim(&self, queue: QueueId, number: u32) -> Claim {
        let lane = &self.lanes[number];
        let weight = lane.weight_among_siblings();
        if lane.home == Home::Top {
            return Claim::alone(weight);
        }
        let groups = self.groups_down_to(number);
        let levels = groups.iter().map(|group| {
            let length = self.group_path(group).as_bytes().len();
            (length, self.group(group).weight_in_force())
        });
        let groups = ClaimGroups::new(queue, self.key(number).clone(), levels);
        Claim {
            weight,
            groups: Some(groups),
        }
    }

    /// Notes where in the tree a lane is that was added, and lets new groups above it count the lanes of their names.
    pub(super) fn settle_in(&mut self, number: u32) {
        let Some(group) = self.lanes.group_of(number) else {
            return;
        };
        let is_own = self.group_path(group) == self.key(number);
        let lane = &mut self.lanes[number];
        lane.home = if is_own { Home::Own } else { Home::Member };
        if is_own {
            self.reweigh_own(number);
        }
        let mut next = Some(group);
        while let Some(group) = next {
            if !std::mem::take(&mut self.lanes.group_mut(group).known.is_new) {
                break; // so are those above it
            }
            let own = self.lanes.find(self.group_path(group));
            if let Some(own) = own.filter(|&own| own != number) {
                self.enclosed(own, group);
            }
            next = self.lanes.group_around(group);
        }
        self.follow_ring(group);
    }

    /// Lets a new group go on for the lane of its name, which the engine has moved into it.
    fn enclosed(&mut self, number: u32, group: u32) {
        let around = self.time_within(self.lanes.group_around(group));
        let lane = &mut self.lanes[number];
        if lane.known.is_runnable {
            let weight = lane.weight_among_siblings();
            lane.share.settle(&around, weight);
        }
        lane.home = Home::Own;
        lane.known.used = lane.usage();
        let (share, counts, used) = (lane.share.clone(), lane.counts, lane.known.used);
        let delayed_uncommitted = lane.delayed_uncommitted;
        let delivered = lane.totals.delivered;
        let value = self.lanes.group_mut(group);
        value.share = share;
        value.counts = counts;
        value.delayed_uncommitted = delayed_uncommitted;
        value.use_of_members = used;
        value.delivered = delivered;
        self.active_groups += usize::from(value.is_active());
        self.rejoin(number);
        self.reweigh_own(number);
    }

    /// Begins to count the share of a lane on another level than before.
    fn rejoin(&mut self, number: u32) {
        let time = self.time_around(number);
        let share = &mut self.lanes[number].share;
        share.advance(&time);
        share.restart(&time);
    }

    /// Changes all groups above a lane in something that nothing is derived from at once.
    pub(super) fn change_above(&mut self, number: u32, change: impl Fn(&mut LaneGroup)) {
        let mut next = self.lanes.group_of(number);
        while let Some(group) = next {
            change(self.lanes.group_mut(group));
            next = self.lanes.group_around(group);
        }
    }

    /// Counts a message of a lane that will wait for its time and is not durable yet, or is durable now.
    pub(in crate::queue) fn count_delayed_uncommitted(
        &mut self,
        number: u32,
        more: u32,
        less: u32,
    ) {
        let lane = &mut self.lanes[number];
        lane.delayed_uncommitted = lane.delayed_uncommitted + more - less;
        if lane.home != Home::Top {
            self.change_above(number, |group| {
                group.delayed_uncommitted = group.delayed_uncommitted + more - less;
            });
        }
    }

    /// Puts a lane of a group into the ring, or takes it out.
    pub(super) fn follow_member(&mut self, number: u32) {
        let time = self.time_around(number);
        let lane = &mut self.lanes[number];
        if lane.known.is_runnable {
            lane.share.join(&time);
            self.lanes.wake(number);
        } else {
            let weight = lane.weight_among_siblings();
            lane.share.settle(&time, weight);
            self.lanes.sleep(number);
        }
    }

    /// Brings the groups above a lane in step with it.
    pub(super) fn refresh_above(&mut self, number: u32) {
        let Some(lowest) = self.lanes.group_of(number) else {
            return;
        };
        let lane = &mut self.lanes[number];
        let used = lane.usage();
        let before = std::mem::replace(&mut lane.known.used, used);
        let mut next = Some(lowest);
        while let Some(group) = next {
            let more = self.lanes.group_mut(group).shift(before, used);
            self.active_groups = self.active_groups.saturating_add_signed(more);
            self.park_if_blocked(group);
            next = self.lanes.group_around(group);
        }
        self.follow_ring(lowest);
    }

    /// Parks a group in the engine that may not run, or unparks it.
    fn park_if_blocked(&mut self, group: u32) {
        let value = self.lanes.group_mut(group);
        let is_blocked = value.is_blocked();
        let was_parked = std::mem::replace(&mut value.known.is_parked, is_blocked);
        match (was_parked, is_blocked) {
            (false, true) => self.lanes.park_group(group),
            (true, false) => self.lanes.unpark_group(group),
            (false, false) | (true, true) => {}
        }
    }

    /// Counts the shares of a group and of those above it, if they have joined or left the ring.
    fn follow_ring(&mut self, lowest: u32) {
        let mut next = Some(lowest);
        while let Some(group) = next {
            next = self.lanes.group_around(group);
            let handle = self.lanes.groups().handle(group);
            let is_runnable = matches!(
                self.lanes.engine().state(handle),
                Ok(Engine::Fresh | Engine::Serving | Engine::Waiting)
            );
            if self.group(group).known.is_runnable == is_runnable {
                continue;
            }
            let time = self.time_within(next);
            let value = self.lanes.group_mut(group);
            value.known.is_runnable = is_runnable;
            if is_runnable {
                value.share.join(&time);
            } else {
                let weight = value.weight_in_force();
                value.share.settle(&time, weight);
            }
        }
    }

    /// Lets a group follow the weight that a message of the lane of its name has named.
    pub(super) fn reweigh_own(&mut self, number: u32) {
        let named = self.lanes[number].weight;
        if let Some(group) = self.lanes.group_of(number) {
            self.change_group(group, |group| group.own = Some(named));
        }
    }

    /// Lets the groups above a lane follow the weights that a hook names for them.
    pub(in crate::queue) fn name_weights(&mut self, number: u32, weights: &GroupWeights) {
        if weights.is_empty() || self.lanes[number].home == Home::Top {
            return;
        }
        let is_own = usize::from(self.lanes[number].home == Home::Own);
        let above: Vec<u32> = self.groups_above(number).skip(is_own).collect();
        for (level, &group) in above.iter().rev().enumerate() {
            if let Some(weight) = weights.get(level) {
                self.change_group(group, |group| group.named = Some(weight_of(weight)));
            }
        }
    }

    /// Lets a group follow its changed settings, if there is a group of this path.
    pub(in crate::queue) fn follow_group_settings(
        &mut self,
        path: &FairnessKey,
        settings: NodeSettings,
    ) {
        if let Some(group) = self.find_group(path) {
            self.change_group(group, |group| group.settings = settings);
            self.park_if_blocked(group);
            self.follow_ring(group);
        }
    }

    /// Lets a group deliver nothing until fewer messages are delayed, or go on; tells whether it was so before.
    pub(in crate::queue) fn set_group_suspended(&mut self, group: u32, is_suspended: bool) -> bool {
        let value = self.lanes.group_mut(group);
        let before = std::mem::replace(&mut value.is_suspended, is_suspended);
        self.park_if_blocked(group);
        self.follow_ring(group);
        before
    }

    /// Changes a group, and the weight that the engine goes by.
    fn change_group(&mut self, group: u32, change: impl FnOnce(&mut LaneGroup)) {
        let around = self.lanes.group_around(group);
        let value = self.lanes.group_mut(group);
        let before = value.weight_in_force();
        change(value);
        let after = value.weight_in_force();
        if before != after {
            let is_runnable = value.known.is_runnable;
            let time = self.time_within(around);
            if is_runnable {
                self.lanes.group_mut(group).share.settle(&time, before);
            }
        }
        // A new lane of its name may have given the engine its weight.
        self.lanes.set_group_weight(group, after);
    }

    /// Returns every reason why a lane that owes `owed` deliveries delivers nothing more, those of its groups too.
    pub(in crate::queue) fn blocked(
        &mut self,
        number: u32,
        messages: &Slab<Message>,
        owed: u64,
    ) -> Blocked {
        let lane = &mut self.lanes[number];
        let blocked = lane.blocked(self.key_concurrency, messages, owed);
        if lane.home == Home::Top {
            return blocked;
        }
        self.refresh(messages);
        let counted = u64::from(self.lanes[number].known.used.owed);
        self.groups_above(number).fold(blocked, |blocked, group| {
            let group = self.group(group);
            let others = u64::from(group.use_of_members.owed) - counted;
            blocked
                .with(BlockReason::GroupPaused, group.is_paused())
                .with(BlockReason::TooManyDelayed, group.is_suspended)
                .with(BlockReason::GroupAtCap, group.is_at_cap(others + owed))
        })
    }

    /// Returns the virtual time of the members of a group, or of those that are in none.
    pub(in crate::queue) fn time_within(&mut self, group: Option<u32>) -> LevelTime {
        match group {
            None => self.pace.time,
            Some(group) => {
                let slot = self.pace.slot();
                let time = &mut self.lanes.group_mut(group).time;
                time.advance(slot);
                *time
            }
        }
    }

    /// Returns the virtual time of a lane and its siblings.
    pub(in crate::queue) fn time_around(&mut self, number: u32) -> LevelTime {
        let group = self.groups_above(number).next();
        self.time_within(group)
    }

    /// Counts the fair share, up to now, of a lane in the ring that has this weight among its siblings.
    pub(super) fn settle_share(&mut self, number: u32, weight: Weight) {
        let time = self.time_around(number);
        self.lanes[number].share.settle(&time, weight);
    }

    /// Counts a delivery to a lane for its share and for those of the groups above it.
    pub(super) fn charge_shares(&mut self, number: u32, cost: Cost) {
        let mut below = None;
        let mut next = self.lanes.group_of(number);
        loop {
            let mut time = self.time_within(next);
            if let Some(group) = next {
                let handle = self.lanes.groups().handle(group);
                let weight = self.lanes.engine().runnable_weight_in(handle);
                time.charge(cost, weight.unwrap_or(1));
                self.lanes.group_mut(group).time = time;
            }
            let share = match below {
                None => &mut self.lanes[number].share,
                Some(group) => &mut self.lanes.group_mut(group).share,
            };
            share.charge(&time, cost);
            let Some(group) = next else {
                return;
            };
            (below, next) = (next, self.lanes.group_around(group));
        }
    }

    /// Returns the cost delivered to a group in the last minute, and its fair share of what its parent got.
    pub(in crate::queue) fn recent_of_group(&mut self, group: u32) -> (u64, u64) {
        let time = self.time_within(self.lanes.group_around(group));
        let value = self.lanes.group_mut(group);
        if value.known.is_runnable {
            let weight = value.weight_in_force();
            value.share.settle(&time, weight);
        } else {
            value.share.advance(&time);
        }
        (value.share.served(), value.share.ideal())
    }

    /// Puts all lanes into the groups that other paths say. Takes time in proportion to the lanes.
    pub(in crate::queue) fn renest(&mut self, paths: Paths<'_>) {
        if self.fifo.is_on() {
            return;
        }
        let numbers: Vec<u32> = self.lanes.iter().map(|(number, ..)| number).collect();
        for &number in &numbers {
            let lane = &self.lanes[number];
            if lane.known.is_runnable {
                self.settle_share(number, lane.weight_among_siblings());
            }
        }
        self.lanes.renest::<[u8]>(&paths);
        self.active_groups = 0;
        for &number in &numbers {
            self.renested(number);
        }
        for &number in &numbers {
            for group in self.groups_above(number).collect::<Vec<_>>() {
                self.park_if_blocked(group);
            }
            if let Some(group) = self.lanes.group_of(number) {
                self.follow_ring(group);
            }
        }
    }

    /// Lets the groups count a lane in which it is now.
    fn renested(&mut self, number: u32) {
        let group = self.lanes.group_of(number);
        let home = match group {
            None => Home::Top,
            Some(group) if self.group_path(group) == self.key(number) => Home::Own,
            Some(_) => Home::Member,
        };
        let lane = &mut self.lanes[number];
        lane.home = home;
        lane.known.used = lane.usage();
        let (counts, used) = (lane.counts, lane.known.used);
        let (delayed_uncommitted, weight) = (lane.delayed_uncommitted, lane.weight_in_force());
        let delivered = lane.totals.delivered;
        match home {
            Home::Top | Home::Member => self.lanes.set_weight(number, weight),
            Home::Own => self.reweigh_own(number),
        }
        self.rejoin(number);
        let mut next = group;
        while let Some(group) = next {
            let value = self.lanes.group_mut(group);
            value.known.is_new = false;
            value.counts.add(&counts);
            value.delayed_uncommitted += delayed_uncommitted;
            let more = value.shift(Usage::default(), used);
            value.delivered += delivered;
            self.active_groups = self.active_groups.saturating_add_signed(more);
            next = self.lanes.group_around(group);
        }
    }
}
