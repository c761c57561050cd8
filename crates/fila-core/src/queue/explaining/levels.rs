//! The levels of an explanation: the groups that a key is in, from the top down, and the key itself.

use std::num::NonZeroU32;

use drr::{Cost, Costs, Node};
use fila_store::FairnessKey;

use crate::queue::Queue;
use crate::queue::counts::{Counts, Stage};
use crate::queue::dispatch::MESSAGE;
use crate::queue::lane_table::LaneTable;
use crate::{Charge, LevelExplanation, Ordering, Recent, Subject};

/// A key or a group on the way from a message to the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathNode {
    /// The number of a lane.
    Key(u32),
    /// The number of a group.
    Group(u32),
}

impl PathNode {
    /// Returns the group of this path, or else the key. A key that bears the name of a group is a part of the group.
    pub(super) fn find(lanes: &LaneTable, path: &FairnessKey) -> Option<Self> {
        let group = lanes.find_group(path).map(Self::Group);
        group.or_else(|| lanes.find(path).map(Self::Key))
    }

    /// Returns its messages.
    pub(super) fn counts(self, lanes: &LaneTable) -> Counts {
        match self {
            Self::Key(number) => lanes.get(number).counts,
            Self::Group(group) => lanes.group(group).counts,
        }
    }

    /// Returns the group that it is in.
    pub(super) fn around(self, lanes: &LaneTable) -> Option<u32> {
        match self {
            Self::Key(number) => lanes.groups_above(number).next(),
            Self::Group(group) => lanes.refreshed().group_around(group),
        }
    }

    /// Returns its handle in the engine.
    pub(super) fn in_engine(self, lanes: &LaneTable) -> Node {
        match self {
            Self::Key(number) => lanes.refreshed().key(number).into(),
            Self::Group(group) => lanes.refreshed().groups().handle(group).into(),
        }
    }

    /// Returns the weight in force, among the keys and groups beside it.
    pub(super) fn weight(self, lanes: &LaneTable) -> u32 {
        match self {
            Self::Key(number) => lanes.weight_of(number).value(),
            Self::Group(group) => lanes.group(group).weight_in_force().value(),
        }
    }

    /// Returns the cost delivered to it in the last minute, and its fair share of what the level above got.
    fn recent(self, lanes: &mut LaneTable) -> (u64, u64) {
        match self {
            Self::Key(number) => lanes.recent(number),
            Self::Group(group) => lanes.recent_of_group(group),
        }
    }
}

impl Queue {
    /// Returns the levels above a path, from the top down, and its own. All deliveries of the last minute are `all`.
    ///
    /// It is left to the caller to mark the level that holds the path up.
    pub(super) fn levels(
        &mut self,
        path: &FairnessKey,
        node: Option<PathNode>,
        all: Recent,
    ) -> (Vec<LevelExplanation>, LevelExplanation) {
        let mut recent = all;
        let mut above = Vec::new();
        for group in self.groups_of(path) {
            let found = self.index.lanes.find_group(&group).map(PathNode::Group);
            let level = self.level(group, Subject::Group, found, recent);
            recent.total = level.recent.served;
            above.push(level);
        }
        let mut last = self.level(path.clone(), subject(node), node, recent);
        if let Some(node) = node {
            let upwards = std::iter::once(&mut last).chain(above.iter_mut().rev());
            for (level, bound) in upwards.zip(self.bounds(node)) {
                level.bound = Some(bound);
            }
        }
        (above, last)
    }

    /// Returns the paths of the groups that a key or group is in, from the top down.
    fn groups_of(&self, path: &FairnessKey) -> Vec<FairnessKey> {
        let separator = self.definition.key_separator;
        let Some(separator) = separator.filter(|_| !self.index.lanes.fifo.is_on()) else {
            return Vec::new();
        };
        let groups = separator.groups(path.as_bytes());
        // A part of a key is short enough for a key.
        let groups = groups.filter_map(|group| FairnessKey::new(group.to_vec()).ok());
        groups.collect()
    }

    /// Returns one level, below one that got `above`. An unknown key or group has nothing but settings.
    fn level(
        &mut self,
        path: FairnessKey,
        subject: Subject,
        node: Option<PathNode>,
        above: Recent,
    ) -> LevelExplanation {
        let settings = self.settings_of(&path);
        let cap = match subject {
            Subject::Group => settings.concurrency,
            Subject::Key => match self.definition.ordering {
                Ordering::None => settings.concurrency.or(self.definition.key_concurrency),
                Ordering::Key => Some(NonZeroU32::MIN),
            },
        };
        let unknown = LevelExplanation {
            path,
            weight: settings.weight.map_or(1, NonZeroU32::get),
            delivery: settings.delivery,
            cap: cap.map(NonZeroU32::get),
            leased: 0,
            recent: Recent {
                served: 0,
                ideal: 0,
                ..above
            },
            debt: 0,
            bound: None,
            holds_up: false,
        };
        let Some(node) = node else {
            return unknown;
        };
        let lanes = &mut self.index.lanes;
        let (served, ideal) = node.recent(lanes);
        let debt = lanes.refreshed().engine().debt(node.in_engine(lanes));
        LevelExplanation {
            weight: node.weight(lanes),
            leased: node.counts(lanes)[Stage::Leased],
            recent: Recent {
                served,
                ideal,
                ..above
            },
            debt: debt.unwrap_or(0),
            ..unknown
        }
    }

    /// Returns the most that the keys and groups beside each level get first, in messages or in their cost: from a key or
    /// group upwards. The sum is the bound on its path, rounded down once.
    fn bounds(&self, node: PathNode) -> Vec<u64> {
        let lanes = &self.index.lanes;
        let largest = lanes.pace.largest().max(Cost::new(MESSAGE));
        let (largest, costs) = match (self.definition.charge, node) {
            (Charge::Message, _) => (Cost::new(MESSAGE), Costs::Equal),
            (Charge::Time, PathNode::Key(number)) => {
                (largest.max(lanes.get(number).expected), Costs::Mixed)
            }
            (Charge::Bytes, _) | (Charge::Time, PathNode::Group(_)) => (largest, Costs::Mixed),
        };
        let engine = lanes.refreshed().engine();
        let Ok(up_to) = engine.bounds_on_path(node.in_engine(lanes), largest, costs) else {
            return Vec::new();
        };
        let mut before = 0;
        let added = up_to.map(|bound| {
            let bound = bound / MESSAGE;
            bound - std::mem::replace(&mut before, bound)
        });
        added.collect()
    }
}

/// Returns whether this is a group; an unknown one is a key.
pub(super) const fn subject(node: Option<PathNode>) -> Subject {
    match node {
        Some(PathNode::Group(_)) => Subject::Group,
        Some(PathNode::Key(_)) | None => Subject::Key,
    }
}

/// Returns the deliveries of the last minute for a whole path: what its last level got of `all`, and the fair share of a
/// fair share, level by level.
pub(super) fn along<'a>(levels: impl Iterator<Item = &'a LevelExplanation>, all: Recent) -> Recent {
    levels.fold(all, |path, LevelExplanation { recent, .. }| {
        let of_share = u128::from(path.ideal) * u128::from(recent.ideal);
        let ideal = of_share.checked_div(recent.total.into()).unwrap_or(0);
        Recent {
            served: recent.served,
            ideal: u64::try_from(ideal).unwrap_or(u64::MAX),
            ..path
        }
    })
}
