//! `fila key list --tree`: groups with their totals, and their members below them.
//!
//! The server lists groups and keys in no order. Everything here is pure: it puts them together by their paths. A key whose
//! group is not in the list, because it came in between, is at the top.

use std::cmp::Reverse;
use std::collections::HashMap;

use fila_sdk::{GroupInfo, KeyInfo, KeySettings};
use serde::Serialize;

use crate::output::{Align, Table, count};

/// The groups and keys of a queue, or of a part of it.
#[derive(Debug)]
pub(super) struct KeyTree {
    nodes: Vec<TreeNode>,
    /// The members of each node, by their places. Keys have none.
    members: Vec<Vec<usize>>,
    top: Vec<usize>,
}

/// A group or a key, in the same form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TreeNode {
    path: String,
    kind: NodeKind,
    /// How many groups of the tree it is in.
    level: usize,
    weight: u32,
    paused: bool,
    concurrency: Option<u32>,
    depth_max: Option<u64>,
    /// Keys and groups directly in it, if it is a group.
    members: Option<u64>,
    ready: u64,
    throttled: u64,
    delayed: u64,
    leased: u64,
    delivered_total: u64,
    recent_served: u64,
    recent_ideal: u64,
    /// Its part of the deliveries of the last minute to its group, or to all at the top; and the part that it should have
    /// had. None if there were none, or if its siblings are not in the tree.
    share: Option<f64>,
    share_ideal: Option<f64>,
    /// Whether a group that it is in is paused.
    #[serde(skip)]
    is_held: bool,
    /// Its name among its siblings.
    #[serde(skip)]
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum NodeKind {
    Group,
    Key,
    /// The messages of the key that has the path of a group: one member of it.
    OwnMessages,
}

/// A line of the tree.
#[derive(Debug)]
enum TreeLine<'a> {
    Node(&'a TreeNode),
    /// Siblings that are not shown.
    LeftOut {
        level: usize,
        nodes: Vec<&'a TreeNode>,
    },
}

/// Whether the tree has all groups and keys without a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeTop {
    Whole,
    /// The top is one group or key, whose siblings are not known.
    Part,
}

impl KeyTree {
    /// Puts groups and keys together. `settings` are those of keys.
    pub(super) fn new(
        groups: Vec<GroupInfo>,
        keys: Vec<KeyInfo>,
        settings: &[KeySettings],
        separator: Option<&str>,
        top: TreeTop,
    ) -> Self {
        let settings: HashMap<&str, &KeySettings> =
            settings.iter().map(|it| (&*it.key, it)).collect();
        let places: HashMap<String, usize> =
            groups.iter().map(|it| it.path.clone()).zip(0..).collect();
        let above = |path: &str| {
            let (above, _) = path.rsplit_once(separator?)?;
            places.get(above).copied()
        };
        let mut tree = Self {
            nodes: Vec::with_capacity(groups.len() + keys.len()),
            members: vec![Vec::new(); groups.len() + keys.len()],
            top: Vec::new(),
        };
        for group in groups {
            let parent = above(&group.path);
            tree.add(TreeNode::of_group(group), parent);
        }
        for key in keys {
            let settings = settings.get(&*key.key).copied();
            match places.get(&key.key).copied() {
                Some(group) => tree.add(TreeNode::of_own_messages(key), Some(group)),
                None => {
                    let parent = above(&key.key);
                    tree.add(TreeNode::of_key(key, settings), parent);
                }
            }
        }
        let whole = tree.top.iter().map(|&at| tree.nodes[at].recent_served);
        let served = match top {
            TreeTop::Whole => whole.sum(),
            TreeTop::Part => 0,
        };
        let siblings = std::mem::take(&mut tree.top);
        tree.top = tree.arrange(siblings, 0, served, false, None);
        tree
    }

    fn add(&mut self, node: TreeNode, parent: Option<usize>) {
        let place = self.nodes.len();
        self.nodes.push(node);
        match parent {
            Some(parent) => self.members[parent].push(place),
            None => self.top.push(place),
        }
    }

    /// Sorts siblings by their backlog, and tells them and all below where they are. There are four levels at most.
    fn arrange(
        &mut self,
        mut siblings: Vec<usize>,
        level: usize,
        served: u64,
        is_held: bool,
        above: Option<usize>,
    ) -> Vec<usize> {
        siblings.sort_by(|&one, &other| {
            let [one, other] = [one, other].map(|at| &self.nodes[at]);
            let by_backlog = Reverse(one.backlog()).cmp(&Reverse(other.backlog()));
            by_backlog.then_with(|| one.path.cmp(&other.path))
        });
        // The separator is one byte.
        let cut = above.map_or(0, |above| self.nodes[above].path.len() + 1);
        for &at in &siblings {
            let node = &mut self.nodes[at];
            (node.level, node.is_held) = (level, is_held);
            node.name = match node.kind {
                NodeKind::OwnMessages => "(own messages)".to_owned(),
                NodeKind::Group | NodeKind::Key => node.path[cut..].to_owned(),
            };
            let part = |cost: u64| (served > 0).then(|| cost as f64 / served as f64);
            (node.share, node.share_ideal) = (part(node.recent_served), part(node.recent_ideal));
            let (served, is_held) = (node.recent_served, is_held || node.paused);
            let members = std::mem::take(&mut self.members[at]);
            self.members[at] = self.arrange(members, level + 1, served, is_held, Some(at));
        }
        siblings
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the groups and keys with at most `limit` siblings in each place, and how many are left out.
    pub(super) fn shown(&self, limit: usize) -> (Vec<&TreeNode>, usize) {
        let mut shown = Vec::new();
        for line in self.lines(limit) {
            if let TreeLine::Node(node) = line {
                shown.push(node);
            }
        }
        let left_out = self.nodes.len() - shown.len();
        (shown, left_out)
    }

    fn lines(&self, limit: usize) -> Vec<TreeLine<'_>> {
        let mut lines = Vec::new();
        self.write(&self.top, limit, &mut lines);
        lines
    }

    fn write<'a>(&'a self, siblings: &[usize], limit: usize, lines: &mut Vec<TreeLine<'a>>) {
        let (shown, rest) = siblings.split_at(limit.min(siblings.len()));
        for &at in shown {
            lines.push(TreeLine::Node(&self.nodes[at]));
            self.write(&self.members[at], limit, lines);
        }
        if let Some(&first) = rest.first() {
            lines.push(TreeLine::LeftOut {
                level: self.nodes[first].level,
                nodes: rest.iter().map(|&at| &self.nodes[at]).collect(),
            });
        }
    }

    /// Returns the tree as a table, with at most `limit` siblings in each place.
    pub(super) fn table(&self, limit: usize) -> Table {
        let mut table = Table::new([
            ("KEY", Align::Name),
            ("WEIGHT", Align::Right),
            ("SHARE", Align::Right),
            ("IDEAL", Align::Right),
            ("READY", Align::Right),
            ("THROTTLED", Align::Right),
            ("DELAYED", Align::Right),
            ("LEASED", Align::Right),
            ("CAP", Align::Right),
            ("DEPTH MAX", Align::Right),
            ("STATE", Align::Left),
        ])
        .spare(&["DEPTH MAX", "THROTTLED", "DELAYED"]);
        for line in self.lines(limit) {
            table.row(match line {
                TreeLine::Node(node) => node.cells(),
                TreeLine::LeftOut { level, nodes } => cells_left_out(level, &nodes),
            });
        }
        table
    }
}

impl TreeNode {
    fn of_group(group: GroupInfo) -> Self {
        Self {
            kind: NodeKind::Group,
            level: 0,
            weight: group.weight,
            paused: group.paused,
            concurrency: group.concurrency,
            depth_max: group.depth_max,
            members: Some(group.members),
            ready: group.ready,
            throttled: group.throttled,
            delayed: group.delayed,
            leased: group.leased,
            delivered_total: group.delivered_total,
            recent_served: group.recent_served,
            recent_ideal: group.recent_ideal,
            share: None,
            share_ideal: None,
            is_held: false,
            name: String::new(),
            path: group.path,
        }
    }

    fn of_key(key: KeyInfo, settings: Option<&KeySettings>) -> Self {
        Self {
            kind: NodeKind::Key,
            level: 0,
            weight: key.weight,
            paused: key.paused,
            concurrency: settings.and_then(|it| it.concurrency),
            depth_max: settings.and_then(|it| it.depth_max),
            members: None,
            ready: key.ready,
            throttled: key.throttled,
            delayed: key.delayed,
            leased: key.leased,
            delivered_total: key.delivered_total,
            recent_served: key.recent_served,
            recent_ideal: key.recent_ideal,
            share: None,
            share_ideal: None,
            is_held: false,
            name: String::new(),
            path: key.key,
        }
    }

    /// The settings of the path, and the weight that the server tells, are those of the group.
    fn of_own_messages(key: KeyInfo) -> Self {
        Self {
            kind: NodeKind::OwnMessages,
            weight: 1,
            paused: false,
            ..Self::of_key(key, None)
        }
    }

    fn backlog(&self) -> u64 {
        self.ready + self.delayed
    }

    fn cells(&self) -> [String; 11] {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), count);
        [
            indented(self.level, &self.name),
            count(self.weight.into()),
            part(self.share),
            part(self.share_ideal),
            count(self.ready),
            count(self.throttled),
            count(self.delayed),
            count(self.leased),
            number(self.concurrency.map(u64::from)),
            number(self.depth_max),
            match (self.paused, self.is_held) {
                (true, _) => "paused",
                (false, true) => "group paused",
                (false, false) => "active",
            }
            .to_owned(),
        ]
    }
}

fn cells_left_out(level: usize, nodes: &[&TreeNode]) -> [String; 11] {
    let sum = |of: fn(&TreeNode) -> u64| count(nodes.iter().map(|node| of(node)).sum());
    let parts = |of: fn(&TreeNode) -> Option<f64>| part(nodes.iter().map(|node| of(node)).sum());
    [
        indented(level, &format!("… {} more", count(nodes.len() as u64))),
        String::new(),
        parts(|node| node.share),
        parts(|node| node.share_ideal),
        sum(|node| node.ready),
        sum(|node| node.throttled),
        sum(|node| node.delayed),
        sum(|node| node.leased),
        String::new(),
        String::new(),
        String::new(),
    ]
}

fn indented(level: usize, name: &str) -> String {
    format!("{}{name}", "  ".repeat(level))
}

fn part(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1}%", 100.0 * part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(path: &str, weight: u32, ready: u64, [served, ideal]: [u64; 2]) -> GroupInfo {
        let mut group = GroupInfo::default();
        group.path = path.to_owned();
        (group.weight, group.ready, group.leased) = (weight, ready, 2);
        (group.recent_served, group.recent_ideal) = (served, ideal);
        group.members = 3;
        group
    }

    fn key(path: &str, ready: u64, [served, ideal]: [u64; 2]) -> KeyInfo {
        let mut key = KeyInfo::default();
        key.key = path.to_owned();
        (key.weight, key.ready, key.leased) = (1, ready, 1);
        (key.recent_served, key.recent_ideal) = (served, ideal);
        key
    }

    /// A tenant with two groups and many keys, and one with a single key. The lists have no order.
    fn tree() -> KeyTree {
        let mut batch = group("acme/batch", 1, 900_012, [0, 5_000]);
        batch.paused = true;
        batch.concurrency = Some(8);
        let mut acme = group("acme", 3, 1_234_567, [30_000, 30_000]);
        acme.depth_max = Some(2_000_000);
        let groups = vec![batch, acme];
        let mut keys = vec![
            key("zeta", 5, [10_000, 10_000]),
            key(
                "acme/batch/nightly-export-of-the-whole-archive",
                900_000,
                [0, 2_500],
            ),
            key("acme", 40, [10_000, 10_000]),
            key("no//path", 1, [0, 0]),
            key("acme/batch/b", 12, [0, 2_500]),
        ];
        keys.extend(
            (0..30).map(|number| key(&format!("acme/user-{number:02}"), 30 - number, [1_000; 2])),
        );
        let mut settings = KeySettings::default();
        settings.key = "zeta".to_owned();
        settings.concurrency = Some(4);
        KeyTree::new(groups, keys, &[settings], Some("/"), TreeTop::Whole)
    }

    #[test]
    fn members_are_below_their_group_and_the_largest_come_first_at_every_width() {
        for window in [80, 120, 200] {
            let text = tree().table(4).plain(window);
            insta::assert_snapshot!(format!("key_tree_{window}"), text);
        }
    }

    #[test]
    fn no_node_is_lost_and_those_left_out_are_counted() {
        let tree = tree();
        let (all, none) = tree.shown(usize::MAX);
        assert_eq!((all.len(), none), (37, 0));
        let (some, left_out) = tree.shown(2);
        let paths: Vec<_> = some.iter().map(|it| (it.level, it.path.as_str())).collect();
        let archive = "acme/batch/nightly-export-of-the-whole-archive";
        assert_eq!(
            paths,
            [
                (0, "acme"),
                (1, "acme/batch"),
                (2, archive),
                (2, "acme/batch/b"),
                (1, "acme"),
                (0, "zeta"),
            ]
        );
        assert_eq!(left_out, 31);
        assert_eq!(tree.shown(0), (Vec::new(), 37));
    }

    #[test]
    fn the_shares_of_siblings_are_parts_of_what_their_group_got() {
        let tree = tree();
        let (nodes, _) = tree.shown(usize::MAX);
        let of = |path: &str, kind| {
            let is_it = |it: &&&TreeNode| it.path == path && it.kind == kind;
            let node = nodes.iter().find(is_it).unwrap();
            (node.share, node.share_ideal)
        };
        assert_eq!(of("acme", NodeKind::Group), (Some(0.75), Some(0.75)));
        let third = Some(1.0 / 3.0);
        assert_eq!(of("acme", NodeKind::OwnMessages), (third, third));
        // Its group got nothing.
        assert_eq!(of("acme/batch/b", NodeKind::Key), (None, None));
    }

    #[test]
    fn without_a_separator_or_without_its_group_a_key_is_at_the_top() {
        let keys = || vec![key("acme/a", 1, [0, 0]), key("acme", 2, [0, 0])];
        for separator in [None, Some("/")] {
            let tree = KeyTree::new(Vec::new(), keys(), &[], separator, TreeTop::Part);
            let (nodes, _) = tree.shown(usize::MAX);
            let shown: Vec<_> = nodes
                .iter()
                .map(|it| (it.level, it.name.as_str()))
                .collect();
            assert_eq!(shown, [(0, "acme"), (0, "acme/a")]);
            assert!(nodes.iter().all(|it| it.share.is_none()));
        }
    }
}
