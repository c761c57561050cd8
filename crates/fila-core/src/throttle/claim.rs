//! The claim of a throttle set to tokens: by the weight of its fairness key, within the groups that the key is in.

use drr::{Nesting, Weight};
use fila_store::{FairnessKey, QueueId};

use crate::DEPTH_MAX;

/// How much of the tokens a throttle set may claim.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// The weight of its fairness key, among its siblings.
    pub(crate) weight: Weight,
    /// None if the key is in no group.
    pub(crate) groups: Option<ClaimGroups>,
}

/// The groups that a fairness key is in.
#[derive(Clone, Debug)]
pub(crate) struct ClaimGroups {
    queue: QueueId,
    key: FairnessKey,
    /// From the top down: the length of the group's path, which the key begins with, and its weight in force.
    levels: [Option<(usize, Weight)>; DEPTH_MAX - 1],
}

impl Claim {
    /// Returns the claim of a key that is in no group.
    pub(crate) const fn alone(weight: Weight) -> Self {
        let groups = None;
        Self { weight, groups }
    }
}

impl ClaimGroups {
    /// Takes the groups of a key of a queue, from the top down: the lengths of their paths, and their weights in force.
    pub(crate) fn new(
        queue: QueueId,
        key: FairnessKey,
        groups: impl Iterator<Item = (usize, Weight)>,
    ) -> Self {
        let mut levels = [None; DEPTH_MAX - 1];
        for (level, group) in levels.iter_mut().zip(groups) {
            *level = Some(group);
        }
        Self { queue, key, levels }
    }

    /// Returns the names of the groups among those of all queues.
    pub(super) fn names(&self) -> GroupNames {
        let queue = self.queue.get().to_be_bytes();
        let levels = self.levels.iter().flatten();
        let levels = levels.map(|(length, weight)| (queue.len() + length, *weight));
        let levels: Vec<(usize, Weight)> = levels.collect();
        let lowest = levels.last().map_or(queue.len(), |(end, _)| *end);
        let mut name = [&queue[..], self.key.as_bytes()].concat();
        name.truncate(lowest);
        GroupNames { name, levels }
    }
}

/// The names of the groups of a claim. A name is the number of the queue, and the path of the group.
#[derive(Debug)]
pub(super) struct GroupNames {
    /// That of the lowest group. It begins with those of the groups above.
    name: Vec<u8>,
    /// From the top down: where the name of the group ends, and its weight.
    levels: Vec<(usize, Weight)>,
}

impl GroupNames {
    /// The name of the member that makes the claim. No group has it.
    pub(super) const MEMBER: &'static [u8] = &[];

    /// Returns the weights of the groups, from the lowest to the top.
    pub(super) fn weights_upwards(&self) -> impl Iterator<Item = Weight> {
        self.levels.iter().rev().map(|(_, weight)| *weight)
    }
}

impl Nesting<[u8]> for GroupNames {
    type Name = Box<[u8]>;
    type Value = ();

    fn parent<'n>(&'n self, name: &'n [u8]) -> Option<&'n [u8]> {
        let above = |(end, _): &&(usize, Weight)| name == Self::MEMBER || *end < name.len();
        let (end, _) = self.levels.iter().rev().find(above)?;
        Some(&self.name[..*end])
    }

    fn found(&self, name: &[u8], _own: Option<Weight>) -> (Box<[u8]>, (), Weight) {
        let level = self.levels.iter().find(|(end, _)| *end == name.len());
        let weight = level.map_or(Weight::ONE, |(_, weight)| *weight);
        (name.into(), (), weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_claim_are_those_of_its_queue_from_the_lowest_to_the_top() {
        let weight = |value| Weight::new(value).unwrap();
        let key = FairnessKey::new("acme/team/bob").unwrap();
        let levels = [(4, weight(2)), (9, weight(3))];
        let claim = ClaimGroups::new(QueueId::new(7), key, levels.into_iter());
        let names = claim.names();
        let team = names.parent(GroupNames::MEMBER).unwrap();
        assert_eq!(team, b"\0\0\0\0\0\0\0\x07acme/team");
        assert_eq!(names.found(team, None).2, weight(3));
        let acme = names.parent(team).unwrap();
        assert_eq!(acme, b"\0\0\0\0\0\0\0\x07acme");
        assert_eq!(names.parent(acme), None);
        let upwards: Vec<Weight> = names.weights_upwards().collect();
        assert_eq!(upwards, [weight(3), weight(2)]);
    }
}
