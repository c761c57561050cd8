//! Generators: the random trees that the laws of groups are checked in.

use proptest::prelude::*;

use crate::trace::Tenant;

/// The most levels that a tree has, keys included.
pub const DEPTH_MAX: usize = 4;

/// A group of a random tree.
#[derive(Clone, Copy, Debug)]
pub struct Branch {
    /// The group that it is in, which comes before it.
    pub parent: Option<usize>,
    /// Its weight.
    pub weight: u32,
}

/// A key of a random tree.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The group that it is in.
    pub group: Option<usize>,
    /// Its weight and its costs.
    pub tenant: Tenant,
}

/// A random tree: a quantum, groups, the keys in them and beside them, and the seed of all that happens.
///
/// Groups and keys together are its nodes: node `n` is group `n`, and after all groups come the keys.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The quantum of the scheduler.
    pub quantum: u64,
    /// The groups, numbered from zero.
    pub groups: Vec<Branch>,
    /// The keys, numbered from zero.
    pub keys: Vec<Leaf>,
    /// The seed of the run's dice.
    pub seed: u64,
}

impl Tree {
    /// Returns the number of nodes.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.groups.len() + self.keys.len()
    }

    /// Returns the node of a key.
    #[must_use]
    pub const fn node(&self, key: usize) -> usize {
        self.groups.len() + key
    }

    /// Returns the group that a node is in.
    #[must_use]
    pub fn parent(&self, node: usize) -> Option<usize> {
        match self.groups.get(node) {
            Some(branch) => branch.parent,
            None => self.keys[node - self.groups.len()].group,
        }
    }

    /// Returns the weight of a node.
    #[must_use]
    pub fn weight(&self, node: usize) -> f64 {
        f64::from(match self.groups.get(node) {
            Some(branch) => branch.weight,
            None => self.keys[node - self.groups.len()].tenant.weight,
        })
    }

    /// Returns a node and all groups above it, from the node upwards.
    pub fn path(&self, node: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(node), |&node| self.parent(node))
    }

    /// Returns the keys in a node, or the key that it is.
    pub fn keys_in(&self, node: usize) -> impl Iterator<Item = usize> {
        let keys = 0..self.keys.len();
        keys.filter(move |&key| self.path(self.node(key)).any(|above| above == node))
    }

    /// Returns the other nodes in the same group.
    pub fn siblings(&self, node: usize) -> impl Iterator<Item = usize> {
        let nodes = 0..self.nodes();
        nodes.filter(move |&other| other != node && self.parent(other) == self.parent(node))
    }

    /// Returns the dearest cost of all keys in a node.
    #[must_use]
    pub fn cost_max(&self, node: usize) -> u64 {
        let costs = self.keys_in(node).map(|key| self.keys[key].tenant.costs.1);
        costs.max().unwrap_or(0)
    }

    /// Returns how many levels there are above a group, and its own.
    fn level(groups: &[Branch], group: usize) -> usize {
        std::iter::successors(Some(group), |&group| groups[group].parent).count()
    }
}

/// Trees with a path of exactly `depth` parts and none that is longer, with a key or more in every group.
///
/// Weights are from 1 to 100, costs from 1 to 2,000.
pub fn trees(depth: usize) -> impl Strategy<Value = Tree> {
    let weight = prop_oneof![Just(1), 1u32..10, 1u32..=100];
    let cost = prop_oneof![Just(1u64), 1u64..10, 1u64..=2_000];
    let tenant = (weight.clone(), cost.clone(), cost).prop_map(|(weight, a, b)| Tenant {
        weight,
        costs: (a.min(b), a.max(b)),
    });
    let group = (0usize..64, weight, tenant.clone());
    let key = (0usize..64, tenant);
    let quantum = prop_oneof![Just(1u64), 1u64..=2_000];
    (
        quantum,
        prop::collection::vec(group, depth - 1..depth + 3),
        prop::collection::vec(key, 1..5),
        any::<u64>(),
    )
        .prop_map(move |(quantum, groups, keys, seed)| {
            let mut tree = Tree {
                quantum,
                groups: Vec::new(),
                keys: Vec::new(),
                seed,
            };
            for (at, (pick, weight, tenant)) in groups.into_iter().enumerate() {
                let parent = parent(&tree.groups, at, pick, depth);
                tree.groups.push(Branch { parent, weight });
                tree.keys.push(Leaf {
                    group: Some(at),
                    tenant,
                });
            }
            for (pick, tenant) in keys {
                let group = pick % (tree.groups.len() + 1);
                let group = (group < tree.groups.len()).then_some(group);
                tree.keys.push(Leaf { group, tenant });
            }
            tree
        })
}

/// Returns the parent of the next group: the first groups make up the longest path, the others are anywhere.
fn parent(groups: &[Branch], at: usize, pick: usize, depth: usize) -> Option<usize> {
    if at < depth - 1 {
        return at.checked_sub(1);
    }
    let shallow: Vec<usize> = (0..at)
        .filter(|&group| Tree::level(groups, group) < depth - 1)
        .collect();
    shallow.get(pick % (shallow.len() + 1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    #[test]
    fn a_tree_is_as_deep_as_asked_and_no_group_is_empty() {
        let mut runner = TestRunner::deterministic();
        for depth in 2..=DEPTH_MAX {
            for _ in 0..50 {
                let tree = trees(depth).new_tree(&mut runner).unwrap().current();
                let levels = (0..tree.keys.len()).map(|key| tree.path(tree.node(key)).count());
                assert_eq!(levels.max(), Some(depth), "{tree:?}");
                assert!((0..tree.groups.len()).all(|group| tree.keys_in(group).next().is_some()));
            }
        }
    }
}
