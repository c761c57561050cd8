//! A tree being played on a scheduler, with the books of keys and groups kept beside it.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::driver::{Dispatched, TreeDriver};
use crate::run::Run;
use crate::trace::World;
use crate::trees::Tree;

/// A scheduler in a tree. The run beneath keeps the books of the keys.
#[derive(Debug)]
pub(crate) struct TreeRun<D> {
    pub(crate) run: Run<D>,
    pub(crate) tree: Tree,
    /// Service that each node has got, groups first.
    pub(crate) served: Vec<u64>,
    /// The most each node gets in one turn, and the keys in it.
    turns: Vec<f64>,
    keys: Vec<Vec<usize>>,
}

impl<D: TreeDriver> TreeRun<D> {
    pub(crate) fn new(make: &impl Fn(u64) -> D, tree: Tree) -> Self {
        let world = World {
            quantum: tree.quantum,
            tenants: tree.keys.iter().map(|leaf| leaf.tenant).collect(),
            seed: tree.seed,
        };
        let mut run = Run::new(make, world);
        for (group, branch) in tree.groups.iter().enumerate() {
            let parent = branch.parent.map(|parent| parent as u32);
            run.driver.found(group as u32, parent, branch.weight);
        }
        for (key, leaf) in tree.keys.iter().enumerate() {
            if let Some(group) = leaf.group {
                run.driver.adopt(key as u32, group as u32);
            }
        }
        let slack = run.driver.slack().quanta * tree.quantum;
        let nodes = 0..tree.nodes();
        let turn = |node| (tree.quantum + tree.cost_max(node) + slack) as f64;
        Self {
            served: vec![0; tree.nodes()],
            turns: nodes.clone().map(turn).collect(),
            keys: nodes.map(|node| tree.keys_in(node).collect()).collect(),
            run,
            tree,
        }
    }

    /// Dispatches one piece of work and finishes it at its declared cost.
    pub(crate) fn dispatch(&mut self) -> Option<Dispatched> {
        let work = self.run.dispatch()?;
        self.note(work);
        Some(work)
    }

    /// Dispatches one piece of work with every key backlogged before and after.
    pub(crate) fn dispatch_backlogged(&mut self) -> Dispatched {
        let work = self.run.dispatch_backlogged();
        self.note(work);
        work
    }

    fn note(&mut self, work: Dispatched) {
        for node in self.tree.path(self.tree.node(work.key as usize)) {
            self.served[node] += work.cost;
        }
    }

    /// Returns whether a node has work that waits.
    pub(crate) fn has_work(&self, node: usize) -> bool {
        let mut keys = self.keys[node].iter();
        keys.any(|&key| self.run.waiting[key] > 0)
    }

    /// Returns the most a node gets in one turn: a quantum, and one piece of work that overshoots it.
    pub(crate) fn turn_max(&self, node: usize) -> f64 {
        self.turns[node]
    }

    /// Returns the service that a node has got, by its weight.
    fn level(&self, node: usize) -> f64 {
        self.served[node] as f64 / self.tree.weight(node)
    }
}

/// The range that `Wi/wi − Wj/wj` has taken for every pair of siblings.
#[derive(Debug)]
pub(crate) struct Spread {
    nodes: usize,
    seen: Vec<Option<(f64, f64)>>,
    /// Turns of both by which the bound is wider.
    pub(crate) extra_turns: u32,
}

impl Spread {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            seen: vec![None; nodes * nodes],
            extra_turns: 0,
        }
    }

    /// Checks all pairs of siblings that `counts` names now and has named since they were first seen, against
    /// `8/7 · (Ti/wi + Tj/wj)` and `extra` quanta.
    pub(crate) fn check<D: TreeDriver>(
        &mut self,
        run: &TreeRun<D>,
        extra: u64,
        counts: impl Fn(usize) -> bool,
    ) -> Result<(), TestCaseError> {
        let tree = &run.tree;
        let counts: Vec<bool> = (0..self.nodes).map(counts).collect();
        for i in 0..self.nodes {
            for j in (0..i).filter(|&j| tree.parent(i) == tree.parent(j)) {
                let seen = &mut self.seen[i * self.nodes + j];
                if !counts[i] || !counts[j] {
                    *seen = None;
                    continue;
                }
                let now = run.level(i) - run.level(j);
                let (low, high) = seen.get_or_insert((now, now));
                (*low, *high) = (low.min(now), high.max(now));
                let turns = run.turn_max(i) / tree.weight(i) + run.turn_max(j) / tree.weight(j);
                let turns = turns * f64::from(1 + self.extra_turns);
                let bound = 8.0 / 7.0 * turns + (extra * tree.quantum) as f64;
                prop_assert!(
                    *high - *low <= bound * (1.0 + 1e-9) + 1e-6,
                    "nodes {i} and {j} are {} apart in some window, allowed {bound}",
                    *high - *low
                );
            }
        }
        Ok(())
    }
}
