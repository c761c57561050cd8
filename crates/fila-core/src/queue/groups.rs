//! What a queue keeps for a group of fairness keys.
//!
//! A group is there while it has members, or owes something in the engine. Everything here is kept up to date by the
//! [table](super::lane_table) when a member changes, so that a list or an explanation walks over no members.
//!
//! # One node, one weight
//! `acme` may be a key with messages, and a group with members. Its own messages are then one more member of the group, of
//! weight 1, and the weight of `acme` is the group's: the operator's; else the last one that a hook has named for the
//! group; else the last one that a message of exactly `acme` has named; else 1. [`LaneGroup::weight_in_force`] is the
//! only place that decides it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use drr::{Nesting, Weight};
use fila_store::FairnessKey;

use super::counts::{Counts, Stage};
use super::pace::{LevelTime, Share};
use crate::{Delivering, KeySeparator, KeySettings};

/// A group of fairness keys.
#[derive(Debug)]
pub(super) struct LaneGroup {
    /// The operator's, under the path of the group.
    pub(super) settings: NodeSettings,
    /// The weight that a hook has named last.
    pub(super) named: Option<Weight>,
    /// The weight that a message of the key with the name of the group has named last.
    pub(super) own: Option<Weight>,
    /// The messages of all members, at any depth.
    pub(super) counts: Counts,
    /// How many of those that are not durable yet will wait for their time.
    pub(super) delayed_uncommitted: u32,
    /// A message of it failed when as many of its messages were delayed as may be. Its members deliver nothing until there
    /// is room.
    pub(super) is_suspended: bool,
    /// Of the members, at any depth.
    pub(super) use_of_members: Usage,
    /// Deliveries since it came into memory.
    pub(super) delivered: u64,
    /// Its deliveries of the last minute.
    pub(super) share: Share,
    /// The virtual time of its members.
    pub(super) time: LevelTime,
    pub(super) known: KnownGroup,
}

/// What a lane adds to its groups besides the counts of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Deliveries that are owed.
    pub(super) owed: u32,
    /// Deletions in strict order that are not durable yet.
    pub(super) settling: u32,
    /// Keys that cannot be forgotten, and those of them that have durable messages.
    pub(super) busy: u32,
    pub(super) active: u32,
}

/// The values that the [table](super::lane_table) derives from a group.
#[derive(Debug)]
pub(super) struct KnownGroup {
    /// No lane has been looked for that bears its name.
    pub(super) is_new: bool,
    /// The engine has it in its ring.
    pub(super) is_runnable: bool,
    /// The engine has it parked.
    pub(super) is_parked: bool,
}

impl LaneGroup {
    fn new(settings: NodeSettings, own: Option<Weight>) -> Self {
        Self {
            settings,
            named: None,
            own,
            counts: Counts::default(),
            delayed_uncommitted: 0,
            is_suspended: false,
            use_of_members: Usage::default(),
            delivered: 0,
            share: Share::default(),
            time: LevelTime::default(),
            known: KnownGroup {
                is_new: true,
                is_runnable: false,
                is_parked: false,
            },
        }
    }

    /// Returns the weight in force among its siblings.
    pub(super) fn weight_in_force(&self) -> Weight {
        let fixed = self.settings.weight.map(weight_of);
        fixed.unwrap_or_else(|| self.weight_without_operator())
    }

    /// Returns the weight that it has where no operator sets one.
    pub(super) fn weight_without_operator(&self) -> Weight {
        self.named.or(self.own).unwrap_or(Weight::ONE)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.settings.delivery == Delivering::Paused
    }

    /// Returns how many messages of its members may be leased at once, if that is limited.
    pub(super) fn cap(&self) -> Option<NonZeroU32> {
        self.settings.concurrency
    }

    /// Tells whether as many messages of its members are leased as may be, if `owed` deliveries are still to come.
    pub(super) fn is_at_cap(&self, owed: u64) -> bool {
        self.cap().is_some_and(|cap| {
            let in_use = self.counts[Stage::Leased] + u64::from(self.use_of_members.settling);
            in_use + owed >= u64::from(cap.get())
        })
    }

    /// Tells whether its members deliver nothing for now.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_paused() || self.is_suspended || self.is_at_cap(u64::from(self.use_of_members.owed))
    }

    /// Follows a member whose use has changed.
    ///
    /// Returns by how much the number of groups with messages grows.
    pub(super) fn shift(&mut self, from: Usage, to: Usage) -> isize {
        let was_active = self.is_active();
        let used = &mut self.use_of_members;
        used.owed = used.owed - from.owed + to.owed;
        used.settling = used.settling - from.settling + to.settling;
        used.busy = used.busy - from.busy + to.busy;
        used.active = used.active - from.active + to.active;
        isize::from(self.is_active()) - isize::from(was_active)
    }

    /// Tells whether a key in it has durable messages.
    pub(super) fn is_active(&self) -> bool {
        self.use_of_members.active > 0
    }
}

/// Returns the engine's weight for this one, or the largest there is.
pub(super) fn weight_of(weight: NonZeroU32) -> Weight {
    Weight::new(u64::from(weight.get())).unwrap_or(Weight::MAX)
}

/// The operator's settings of a key or group, but for its limit on messages: almost no key has one, so the queue's
/// definition is asked for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSettings {
    pub(super) weight: Option<NonZeroU32>,
    pub(super) concurrency: Option<NonZeroU32>,
    pub(super) delivery: Delivering,
    pub(super) has_depth_max: bool,
}

impl From<KeySettings> for NodeSettings {
    fn from(settings: KeySettings) -> Self {
        let KeySettings {
            delivery,
            weight,
            concurrency,
            depth_max,
        } = settings;
        Self {
            weight,
            concurrency,
            delivery,
            has_depth_max: depth_max.is_some(),
        }
    }
}

/// How the fairness keys of a queue nest, and what a new group is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paths<'a> {
    pub(super) separator: Option<KeySeparator>,
    /// The settings of keys and groups.
    pub(super) keys: &'a BTreeMap<FairnessKey, KeySettings>,
}

impl Paths<'_> {
    /// Returns the settings of a key or group.
    pub(super) fn settings_of(&self, name: &[u8]) -> NodeSettings {
        let settings = self.keys.get(name).copied();
        settings.unwrap_or_default().into()
    }
}

impl Nesting<[u8]> for Paths<'_> {
    type Name = FairnessKey;
    type Value = LaneGroup;

    fn parent<'n>(&'n self, name: &'n [u8]) -> Option<&'n [u8]> {
        self.separator?.parent(name)
    }

    fn found(&self, name: &[u8], own: Option<Weight>) -> (FairnessKey, LaneGroup, Weight) {
        let group = LaneGroup::new(self.settings_of(name), own);
        let weight = group.weight_in_force();
        let name = FairnessKey::new(name.to_vec());
        let name = name.expect("it is shorter than the key that it is a part of");
        (name, group, weight)
    }
}

const _: () = assert!(
    size_of::<LaneGroup>() <= 264,
    "there may be a million of them"
);
