//! A fair scheduler of trees that is not ours, and the ways in which it can be unfair.
//!
//! Start-time fair queueing in levels: each node has a position in virtual time, which its service moves by cost over
//! weight, and the child with the earliest position is next. What returns begins at the present, or later if it owes.

use std::collections::{BTreeSet, HashMap, VecDeque};

use fairness_laws::{BoundDriver, CapDriver, CountingDriver, Dispatched, Driver, TreeDriver};

/// A way to be unfair in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It obeys all laws.
    None,
    /// It knows no groups.
    Flat,
    /// A group that has nothing to run takes its turns all the same.
    ReservesShares,
    /// What joins a group is put far behind all that is there.
    NewcomersLast,
    /// A group is served under the weight with which it was founded.
    KeepsWeights,
    /// A pause of a group does nothing.
    IgnoresPauses,
    /// A pause of a group stops the groups beside it, too.
    PausesNeighbours,
    /// A group that was paused is forgiven what it owes.
    PausesForgive,
    /// A cap of a group holds for each of its members by itself.
    CapsMembers,
    /// A cap of a group stops the groups beside it, too.
    CapsNeighbours,
    /// A group whose last member is forgotten is forgotten with what it owes.
    ForgetsDebt,
    /// Each member that joins brings its group a quantum of credit.
    MembersBringCredit,
    /// The work of a group's own name has a share beside the group's.
    OwnWorkBeside,
    /// True cost is settled for the key alone.
    SettlesKeysOnly,
    /// It walks over all children to find the next.
    Walks,
    /// It adds up waits along a path as if each group were served without a break.
    SaysTooLittle,
}

/// The node of all that has no parent.
const ROOT: usize = 0;

/// Virtual time per cost and weight.
const SCALE: i128 = 1 << 40;

#[derive(Debug, Default)]
struct Node {
    parent: usize,
    weight: i128,
    position: i128,
    /// Its place among the children of its parent that may run.
    place: Option<Place>,
    /// The children that may run, and the position of the one that was served last.
    ready: BTreeSet<(Place, usize)>,
    clock: i128,
    children: u64,
    is_parked: bool,
    cap: Option<u32>,
    running: u32,
    /// The number of a key, its work and how much of it was taken.
    key: Option<u32>,
    queue: VecDeque<u64>,
    taken: u64,
    /// The group whose name a key has.
    owner: Option<usize>,
}

/// Position, whether it was in the ring before, and order of arrival.
type Place = (i128, bool, u64);

#[derive(Debug)]
pub(crate) struct Flawed {
    flaw: Flaw,
    quantum: i128,
    nodes: Vec<Node>,
    keys: HashMap<u32, usize>,
    groups: HashMap<u32, usize>,
    arrivals: u64,
    steps: u64,
}

impl Flawed {
    pub(crate) fn new(flaw: Flaw, quantum: u64) -> Self {
        Self {
            flaw,
            quantum: i128::from(quantum),
            nodes: vec![Node::default()],
            keys: HashMap::new(),
            groups: HashMap::new(),
            arrivals: 0,
            steps: 0,
        }
    }

    fn add(&mut self, parent: usize, weight: u32) -> usize {
        self.nodes[parent].children += 1;
        self.nodes.push(Node {
            parent,
            weight: i128::from(weight),
            ..Node::default()
        });
        self.nodes.len() - 1
    }

    fn add_key(&mut self, key: u32, parent: usize) {
        let node = self.add(parent, 1);
        self.nodes[node].key = Some(key);
        self.keys.insert(key, node);
    }

    fn key(&mut self, key: u32) -> usize {
        if !self.keys.contains_key(&key) {
            self.add_key(key, ROOT);
        }
        self.keys[&key]
    }

    /// Returns the nodes from a key to the top, without the root.
    fn path(&self, node: usize) -> Vec<usize> {
        let above = |&node: &usize| Some(self.nodes[node].parent).filter(|&parent| parent != ROOT);
        std::iter::successors(Some(node), above).collect()
    }

    fn may_run(&self, node: usize) -> bool {
        let Node {
            queue,
            ready,
            is_parked,
            cap,
            running,
            parent,
            key,
            ..
        } = &self.nodes[node];
        let is_reserved = self.flaw == Flaw::ReservesShares && key.is_none();
        let has_work = !queue.is_empty() || !ready.is_empty() || is_reserved;
        let cap = match (self.flaw, key) {
            (Flaw::CapsMembers, Some(_)) => self.nodes[*parent].cap,
            (Flaw::CapsMembers, None) => None,
            _ => *cap,
        };
        has_work && !is_parked && cap.is_none_or(|cap| *running < cap)
    }

    /// Puts a node where it belongs, and the groups above it.
    fn refresh(&mut self, node: usize) {
        if node == ROOT {
            return;
        }
        let may_run = self.may_run(node);
        let parent = self.nodes[node].parent;
        match self.nodes[node].place {
            None if may_run => self.join(node),
            Some(place) if !may_run => {
                self.nodes[node].place = None;
                self.nodes[parent].ready.remove(&(place, node));
            }
            _ => {}
        }
        self.refresh(parent);
    }

    fn join(&mut self, node: usize) {
        let parent = self.nodes[node].parent;
        if self.flaw == Flaw::MembersBringCredit && parent != ROOT {
            let credit = self.quantum * SCALE / self.nodes[parent].weight;
            self.move_by(parent, -credit);
        }
        let clock = self.nodes[parent].clock;
        let joining = &mut self.nodes[node];
        if self.flaw == Flaw::NewcomersLast && parent != ROOT {
            joining.position = joining.position.max(clock) + 20_000 * SCALE;
        }
        let is_late = joining.position > clock;
        joining.position = joining.position.max(clock);
        self.arrivals += 1;
        let place = (joining.position, is_late, self.arrivals);
        joining.place = Some(place);
        self.nodes[parent].ready.insert((place, node));
    }

    /// Moves a node in time.
    fn move_by(&mut self, node: usize, by: i128) {
        let parent = self.nodes[node].parent;
        let moved = &mut self.nodes[node];
        moved.position += by;
        if let Some(place) = moved.place {
            self.arrivals += 1;
            let next = (moved.position, true, self.arrivals);
            moved.place = Some(next);
            self.nodes[parent].ready.remove(&(place, node));
            self.nodes[parent].ready.insert((next, node));
        }
    }

    /// Gives a node another weight, at which it pays what it owes.
    fn reweigh(&mut self, node: usize, weight: u32) {
        let weight = i128::from(weight);
        let Node {
            parent,
            weight: before,
            position,
            ..
        } = self.nodes[node];
        if weight != before {
            let ahead = (position - self.nodes[parent].clock).max(0);
            self.nodes[node].weight = weight;
            self.move_by(node, ahead * before / weight - ahead);
        }
    }

    /// Lets all on a path pay for what a key has got, or gives it back.
    fn charge(&mut self, path: &[usize], cost: i128) {
        for &node in path {
            let by = cost * SCALE / self.nodes[node].weight;
            self.move_by(node, by);
        }
    }

    fn next(&mut self) -> Option<usize> {
        let mut node = ROOT;
        loop {
            let &(place, child) = self.nodes[node].ready.first()?;
            self.steps += match self.flaw {
                Flaw::Walks => self.nodes[node].children,
                _ => 1,
            };
            let clock = &mut self.nodes[node].clock;
            *clock = place.0.max(*clock);
            node = child;
            if !self.nodes[node].queue.is_empty() {
                return Some(node);
            }
        }
    }

    fn set_parked(&mut self, node: usize, is_parked: bool) {
        self.nodes[node].is_parked = is_parked;
        self.refresh(node);
    }

    fn neighbours(&self, group: usize) -> Vec<usize> {
        let parent = self.nodes[group].parent;
        let groups = self.groups.values().copied();
        groups
            .filter(|&other| self.nodes[other].parent == parent)
            .collect()
    }
}

impl Driver for Flawed {
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32) {
        let node = self.key(key);
        self.nodes[node].queue.push_back(cost);
        let weighed = self.nodes[node].owner.unwrap_or(node);
        self.reweigh(weighed, weight);
        self.refresh(node);
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        let node = self.next()?;
        let path = self.path(node);
        let taken = &mut self.nodes[node];
        let cost = taken.queue.pop_front().unwrap();
        taken.taken += 1;
        let work = Dispatched {
            key: taken.key.unwrap(),
            sequence: taken.taken - 1,
            cost,
            ticket: 0,
        };
        path.iter().for_each(|&node| self.nodes[node].running += 1);
        self.charge(&path, i128::from(cost));
        self.refresh(node);
        path.iter().for_each(|&node| self.refresh(node));
        Some(work)
    }

    fn finish(&mut self, work: Dispatched, actual: u64) {
        let node = self.keys[&work.key];
        let path = self.path(node);
        path.iter().for_each(|&node| self.nodes[node].running -= 1);
        let settled = match self.flaw {
            Flaw::SettlesKeysOnly => &path[..1],
            _ => &path[..],
        };
        self.charge(settled, i128::from(actual) - i128::from(work.cost));
        path.iter().for_each(|&node| self.refresh(node));
    }

    fn park(&mut self, key: u32) {
        let node = self.key(key);
        self.set_parked(node, true);
    }

    fn unpark(&mut self, key: u32) {
        let node = self.key(key);
        self.set_parked(node, false);
    }

    fn set_weight(&mut self, key: u32, weight: u32) {
        let node = self.key(key);
        self.reweigh(node, weight);
    }

    fn evict(&mut self, key: u32) {
        let mut node = self.key(key);
        while self.flaw == Flaw::ForgetsDebt && self.nodes[node].parent != ROOT {
            node = self.nodes[node].parent;
            if self.nodes[node].ready.is_empty() {
                self.nodes[node].position = 0;
            }
        }
    }
}

impl TreeDriver for Flawed {
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32) {
        let parent = parent.map_or(ROOT, |parent| self.groups[&parent]);
        let node = self.add(parent, weight);
        self.groups.insert(group, node);
    }

    fn adopt(&mut self, key: u32, group: u32) {
        let parent = match self.flaw {
            Flaw::Flat => ROOT,
            _ => self.groups[&group],
        };
        self.add_key(key, parent);
    }

    fn own(&mut self, key: u32, group: u32) {
        let group = self.groups[&group];
        let parent = match self.flaw {
            Flaw::Flat => ROOT,
            Flaw::OwnWorkBeside => self.nodes[group].parent,
            _ => group,
        };
        self.add_key(key, parent);
        if parent == group {
            let node = self.keys[&key];
            self.nodes[node].owner = Some(group);
        }
    }

    fn park_group(&mut self, group: u32) {
        let group = self.groups[&group];
        match self.flaw {
            Flaw::IgnoresPauses => {}
            Flaw::PausesNeighbours => {
                for group in self.neighbours(group) {
                    self.set_parked(group, true);
                }
            }
            _ => self.set_parked(group, true),
        }
    }

    fn unpark_group(&mut self, group: u32) {
        let group = self.groups[&group];
        if self.flaw == Flaw::PausesForgive && self.nodes[group].place.is_none() {
            self.nodes[group].position = 0;
        }
        self.set_parked(group, false);
    }

    fn set_group_weight(&mut self, group: u32, weight: u32) {
        let group = self.groups[&group];
        if self.flaw != Flaw::KeepsWeights {
            self.reweigh(group, weight);
        }
    }
}

impl CapDriver for Flawed {
    fn set_group_cap(&mut self, group: u32, in_flight: Option<u32>) {
        let group = self.groups[&group];
        let groups = match self.flaw {
            Flaw::CapsNeighbours => self.neighbours(group),
            _ => vec![group],
        };
        for group in groups {
            self.nodes[group].cap = in_flight;
            self.refresh(group);
        }
    }
}

impl BoundDriver for Flawed {
    /// A sibling is served until it is past the key, at most one piece further. While a group hands out what its members
    /// wait for, it moves, and its siblings move as far.
    fn bound(&mut self, key: u32, largest: u64) -> u64 {
        let mut needed = 0;
        for node in self.path(self.keys[&key]) {
            let Node {
                parent,
                weight,
                position,
                ..
            } = self.nodes[node];
            let moved = match self.flaw {
                Flaw::SaysTooLittle => 0,
                _ => needed * SCALE / weight + 1,
            };
            let ready = self.nodes[parent].ready.iter();
            let others = ready.filter(|(_, other)| *other != node).map(|(_, other)| {
                let other = &self.nodes[*other];
                let behind = (position + moved - other.position).max(0);
                behind * other.weight / SCALE + 1 + i128::from(largest)
            });
            needed += others.sum::<i128>();
        }
        u64::try_from(needed).unwrap()
    }
}

impl CountingDriver for Flawed {
    fn steps(&self) -> u64 {
        self.steps
    }
}
