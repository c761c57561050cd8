//! Lanes whose names nest, as a scheduler: the names are paths, and groups come and go with their members.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use drr::{Cost, Costs, Keyed, Nesting, Quantum, Weight};
use fairness_laws::{BoundDriver, CountingDriver, Dispatched, Driver, Paths, TreeDriver};

use super::weighing;

type Lanes = Keyed<String, Backlog, BuildHasherDefault<DefaultHasher>, u32>;

#[derive(Debug, Default)]
struct Backlog {
    key: u32,
    queue: VecDeque<u64>,
    running: u32,
}

#[derive(Debug)]
pub(crate) struct Named {
    lanes: Lanes,
    paths: Paths,
    groups: Known,
    parked: HashSet<u32>,
    parked_groups: HashSet<u32>,
    taken: HashMap<u32, u64>,
}

/// The weights of groups, by name.
#[derive(Debug, Default)]
struct Known(HashMap<String, Weight>);

impl Nesting<str> for Known {
    type Name = String;
    type Value = u32;

    fn parent<'n>(&'n self, name: &'n str) -> Option<&'n str> {
        name.rsplit_once('/').map(|(parent, _)| parent)
    }

    fn found(&self, name: &str, own: Option<Weight>) -> (String, u32, Weight) {
        let weight = self.0.get(name).copied().or(own);
        (name.to_owned(), 0, weight.unwrap_or(Weight::ONE))
    }
}

impl Named {
    pub(crate) fn new(quantum: u64) -> Self {
        let quantum = Quantum::new(quantum).unwrap();
        Self {
            lanes: Keyed::new(quantum, BuildHasherDefault::new()),
            paths: Paths::default(),
            groups: Known::default(),
            parked: HashSet::new(),
            parked_groups: HashSet::new(),
            taken: HashMap::new(),
        }
    }

    /// Returns the lane of a key. What is new is parked again, if it was parked when it was forgotten.
    fn lane(&mut self, key: u32) -> u32 {
        let path = self.paths.key(key);
        let mut is_new = false;
        let new = || {
            is_new = true;
            let backlog = Backlog {
                key,
                ..Backlog::default()
            };
            (path.clone(), backlog)
        };
        let weight = self.groups.0.get(&path).copied().unwrap_or(Weight::ONE);
        let lane = self
            .lanes
            .find_or_insert_within(path.as_str(), weight, &self.groups, new);
        if is_new {
            if self.parked.contains(&key) {
                self.lanes.park(lane);
            }
            for group in self.paths.groups(key).collect::<Vec<_>>() {
                if self.parked_groups.contains(&group) {
                    self.park_found(group);
                }
            }
        }
        lane
    }

    /// Parks a group if it is there. A key alone that bears its name is all there is of it then.
    fn park_found(&mut self, group: u32) {
        let path = self.paths.group(group);
        if let Some(number) = self.lanes.groups().find(path.as_str()) {
            self.lanes.park_group(number);
        }
    }

    /// Lets a lane be forgotten if nothing would be lost with it.
    fn release(&mut self, lane: u32) {
        let backlog = &self.lanes[lane];
        if backlog.queue.is_empty() && backlog.running == 0 {
            self.lanes.set_idle(lane);
        }
    }
}

impl Driver for Named {
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32) {
        let lane = self.lane(key);
        self.lanes[lane].queue.push_back(cost);
        self.lanes.set_busy(lane);
        let weight = weighing(weight);
        if self.paths.is_own(key) {
            self.groups.0.insert(self.paths.key(key), weight);
        }
        if self.lanes.weight(lane) != weight {
            self.lanes.set_weight(lane, weight);
        }
        self.lanes.wake(lane);
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        let lane = self.lanes.next_lane()?;
        let backlog = &mut self.lanes[lane];
        let key = backlog.key;
        let cost = backlog.queue.pop_front().expect("it has work");
        backlog.running += 1;
        let is_empty = backlog.queue.is_empty();
        self.lanes.charge(lane, Cost::new(cost));
        if is_empty {
            self.lanes.sleep(lane);
        }
        let taken = self.taken.entry(key).or_default();
        *taken += 1;
        Some(Dispatched {
            key,
            sequence: *taken - 1,
            cost,
            ticket: u64::from(lane),
        })
    }

    fn finish(&mut self, work: Dispatched, actual: u64) {
        let lane = u32::try_from(work.ticket).unwrap(); // it is busy, so it has kept its number
        self.lanes
            .settle(lane, Cost::new(work.cost), Cost::new(actual));
        self.lanes[lane].running -= 1;
        self.release(lane);
    }

    fn park(&mut self, key: u32) {
        self.parked.insert(key);
        let lane = self.lane(key);
        self.lanes.park(lane);
        self.release(lane);
    }

    fn unpark(&mut self, key: u32) {
        self.parked.remove(&key);
        let lane = self.lane(key);
        self.lanes.unpark(lane);
        self.release(lane);
    }

    fn set_weight(&mut self, key: u32, weight: u32) {
        let lane = self.lane(key);
        self.lanes.set_weight(lane, weighing(weight));
        self.release(lane);
    }

    fn evict(&mut self, key: u32) {
        let lane = self.lanes.find(self.paths.key(key).as_str());
        let idle = lane.filter(|&lane| self.lanes.is_idle(lane));
        if let Some(lane) = idle.filter(|&lane| self.lanes.is_settled(lane)) {
            self.lanes.forget(lane);
        }
        self.lanes.tidy();
    }
}

impl TreeDriver for Named {
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32) {
        self.paths.found(group, parent);
        let path = self.paths.group(group);
        self.groups.0.insert(path, weighing(weight));
    }

    fn adopt(&mut self, key: u32, group: u32) {
        self.paths.adopt(key, group);
    }

    fn own(&mut self, key: u32, group: u32) {
        self.paths.own(key, group);
    }

    fn park_group(&mut self, group: u32) {
        self.parked_groups.insert(group);
        self.park_found(group);
    }

    fn unpark_group(&mut self, group: u32) {
        self.parked_groups.remove(&group);
        let path = self.paths.group(group);
        if let Some(number) = self.lanes.groups().find(path.as_str()) {
            self.lanes.unpark_group(number);
        }
    }

    fn set_group_weight(&mut self, group: u32, weight: u32) {
        let path = self.paths.group(group);
        if let Some(number) = self.lanes.groups().find(path.as_str()) {
            self.lanes.set_group_weight(number, weighing(weight));
        }
        self.groups.0.insert(path, weighing(weight));
    }
}

impl BoundDriver for Named {
    fn bound(&mut self, key: u32, largest: u64) -> u64 {
        let lane = self.lane(key);
        let key = self.lanes.key(lane);
        let engine = self.lanes.engine();
        engine
            .bound_on_path(key, Cost::new(largest), Costs::Mixed)
            .unwrap()
    }
}

impl CountingDriver for Named {
    fn steps(&self) -> u64 {
        self.lanes.engine().work().visits
    }
}
