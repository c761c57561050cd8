//! The engine as a scheduler: a queue of costs per key, and nothing else.

use std::collections::{HashMap, VecDeque};

use drr::{Cost, Drr, Group, Key, Quantum, Standing, Weight};
use fairness_laws::{CountingDriver, Dispatched, Driver, TreeDriver};

#[derive(Debug)]
pub(crate) struct Bare {
    engine: Drr,
    lanes: HashMap<u32, Lane>,
    names: Vec<u32>,
    groups: HashMap<u32, House>,
    /// Where the law has put a key, if not at the top.
    homes: HashMap<u32, Home>,
    departed: HashMap<u32, Standing>,
    /// How much of each key was taken before it was evicted.
    taken: HashMap<u32, u64>,
}

#[derive(Debug)]
struct Lane {
    key: Key,
    queue: VecDeque<u64>,
    taken: u64,
}

/// A group that a law has named. It is in the engine while it has members.
#[derive(Debug)]
struct House {
    parent: Option<u32>,
    weight: Weight,
    is_parked: bool,
    members: u32,
    handle: Option<Group>,
    departed: Option<Standing>,
}

#[derive(Clone, Copy, Debug)]
enum Home {
    In(u32),
    Is(u32),
}

impl Home {
    const fn group(self) -> u32 {
        match self {
            Self::In(group) | Self::Is(group) => group,
        }
    }
}

impl Bare {
    pub(crate) fn new(quantum: u64) -> Self {
        Self {
            engine: Drr::new(Quantum::new(quantum).unwrap()),
            lanes: HashMap::new(),
            names: Vec::new(),
            groups: HashMap::new(),
            homes: HashMap::new(),
            departed: HashMap::new(),
            taken: HashMap::new(),
        }
    }

    fn lane(&mut self, name: u32) -> &mut Lane {
        if !self.lanes.contains_key(&name) {
            self.admit(name);
        }
        self.lanes.get_mut(&name).unwrap()
    }

    /// Registers a key, in its group and with the debt with which it left.
    fn admit(&mut self, name: u32) {
        let group = self.homes.get(&name).map(|home| home.group());
        let group = group.map(|group| self.enter(group));
        let standing = self.departed.remove(&name);
        let key = standing.and_then(|standing| self.engine.readmit(standing, Weight::ONE).ok());
        let key = key.unwrap_or_else(|| match group {
            Some(group) => self.engine.register_in(group, Weight::ONE).unwrap(),
            None => self.engine.register(Weight::ONE),
        });
        let lane = Lane {
            key,
            queue: VecDeque::new(),
            taken: self.taken.remove(&name).unwrap_or(0),
        };
        self.lanes.insert(name, lane);
        self.names
            .resize(self.names.len().max(key.index() + 1), u32::MAX);
        self.names[key.index()] = name;
    }

    /// Counts one more member of a group, which is made for the first.
    fn enter(&mut self, group: u32) -> Group {
        let house = self.groups.get_mut(&group).unwrap();
        house.members += 1;
        if let Some(handle) = house.handle {
            return handle;
        }
        let (parent, weight, is_parked) = (house.parent, house.weight, house.is_parked);
        let standing = house.departed.take();
        let parent = parent.map(|parent| self.enter(parent));
        let engine = &mut self.engine;
        let handle = standing.and_then(|standing| engine.readmit_group(standing, weight).ok());
        let handle = handle.unwrap_or_else(|| match parent {
            Some(parent) => engine.register_group_in(parent, weight).unwrap(),
            None => engine.register_group(weight),
        });
        if is_parked {
            engine.park(handle).unwrap();
        }
        self.groups.get_mut(&group).unwrap().handle = Some(handle);
        handle
    }

    /// Counts one member of a group less. Without members it is disbanded, and leaves its debt.
    fn quit(&mut self, group: u32) {
        let house = self.groups.get_mut(&group).unwrap();
        house.members -= 1;
        if house.members == 0 {
            let handle = house.handle.take().unwrap();
            house.departed = self.engine.disband(handle).unwrap();
            if let Some(parent) = house.parent {
                self.quit(parent);
            }
        }
    }

    /// Changes a group that a law has named, and tells the engine if it is there.
    fn change(&mut self, group: u32, change: impl FnOnce(&mut House)) {
        let house = self.groups.get_mut(&group).unwrap();
        change(house);
        if let Some(handle) = house.handle {
            if self.engine.weight(handle) != Ok(house.weight) {
                self.engine.set_weight(handle, house.weight).unwrap();
            }
            if house.is_parked {
                self.engine.park(handle).unwrap();
            } else {
                self.engine.unpark(handle).unwrap();
            }
        }
    }
}

fn weighing(weight: u32) -> Weight {
    Weight::new(u64::from(weight)).unwrap()
}

impl Driver for Bare {
    fn enqueue(&mut self, name: u32, cost: u64, weight: u32) {
        let lane = self.lane(name);
        lane.queue.push_back(cost);
        let key = lane.key;
        let mut weight = weighing(weight);
        if let Some(&Home::Is(group)) = self.homes.get(&name) {
            self.change(group, |house| house.weight = weight);
            weight = Weight::ONE; // among the members
        }
        if self.engine.weight(key) != Ok(weight) {
            self.engine.set_weight(key, weight).unwrap();
        }
        self.engine.wake(key).unwrap();
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        let key = self.engine.next_key()?;
        let name = self.names[key.index()];
        let lane = self.lanes.get_mut(&name).unwrap();
        assert_eq!(lane.key, key);
        let cost = lane.queue.pop_front().expect("a key in the ring has work");
        let sequence = lane.taken;
        lane.taken += 1;
        self.engine.charge(key, Cost::new(cost)).unwrap();
        if lane.queue.is_empty() {
            self.engine.sleep(key).unwrap();
        }
        Some(Dispatched {
            key: name,
            sequence,
            cost,
            ticket: 0,
        })
    }

    fn finish(&mut self, work: Dispatched, actual: u64) {
        if let Some(lane) = self.lanes.get(&work.key) {
            self.engine
                .settle(lane.key, Cost::new(work.cost), Cost::new(actual))
                .unwrap();
        }
    }

    fn park(&mut self, name: u32) {
        let key = self.lane(name).key;
        self.engine.park(key).unwrap();
    }

    fn unpark(&mut self, name: u32) {
        let key = self.lane(name).key;
        self.engine.unpark(key).unwrap();
    }

    fn set_weight(&mut self, name: u32, weight: u32) {
        let key = self.lane(name).key;
        self.engine.set_weight(key, weighing(weight)).unwrap();
    }

    fn evict(&mut self, name: u32) {
        let Some(lane) = self.lanes.remove(&name) else {
            return; // it was never there
        };
        assert!(lane.queue.is_empty());
        if let Some(standing) = self.engine.forget(lane.key).unwrap() {
            self.departed.insert(name, standing);
        }
        // The order of a key's work is counted on across its absence.
        self.taken.insert(name, lane.taken);
        if let Some(home) = self.homes.get(&name) {
            self.quit(home.group());
        }
    }
}

impl TreeDriver for Bare {
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32) {
        let house = House {
            parent,
            weight: weighing(weight),
            is_parked: false,
            members: 0,
            handle: None,
            departed: None,
        };
        self.groups.insert(group, house);
    }

    fn adopt(&mut self, name: u32, group: u32) {
        self.homes.insert(name, Home::In(group));
    }

    fn own(&mut self, name: u32, group: u32) {
        self.homes.insert(name, Home::Is(group));
    }

    fn park_group(&mut self, group: u32) {
        self.change(group, |house| house.is_parked = true);
    }

    fn unpark_group(&mut self, group: u32) {
        self.change(group, |house| house.is_parked = false);
    }

    fn set_group_weight(&mut self, group: u32, weight: u32) {
        self.change(group, |house| house.weight = weighing(weight));
    }
}

impl CountingDriver for Bare {
    fn steps(&self) -> u64 {
        self.engine.work().visits
    }
}
