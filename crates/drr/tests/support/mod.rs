//! The engine as a scheduler: a queue of costs per key, and nothing else.

mod named;

use std::collections::{HashMap, VecDeque};

use drr::{Cost, Costs, Drr, Group, Key, Quantum, Standing, Weight};
use fairness_laws::{BoundDriver, CountingDriver, Dispatched, Driver, TreeDriver};

pub(crate) use named::Named;

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
    /// The group that it is in.
    group: Option<u32>,
    queue: VecDeque<u64>,
    taken: u64,
}

/// A group that a law has named. It is in the engine while it has members.
#[derive(Debug)]
struct House {
    parent: Option<u32>,
    /// The key of its own name. Without members, the group is this key and nothing else.
    own: Option<u32>,
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
        let group = match self.homes.get(&name) {
            None => None,
            Some(&Home::In(group)) => Some(group),
            Some(&Home::Is(group)) => match self.groups[&group].handle {
                Some(_) => Some(group),
                None => self.groups[&group].parent,
            },
        };
        let home = group.map(|group| self.enter(group));
        let key = self.readmitted(name).unwrap_or_else(|| match home {
            Some(group) => self.engine.register_in(group, Weight::ONE).unwrap(),
            None => self.engine.register(Weight::ONE),
        });
        let lane = Lane {
            key,
            group,
            queue: VecDeque::new(),
            taken: self.taken.remove(&name).unwrap_or(0),
        };
        self.lanes.insert(name, lane);
        self.names
            .resize(self.names.len().max(key.index() + 1), u32::MAX);
        self.names[key.index()] = name;
    }

    /// Registers a key that left in debt, if its home still exists. A key alone owes what the group of its name owed.
    fn readmitted(&mut self, name: u32) -> Option<Key> {
        let mut standing = self.departed.remove(&name);
        if let Some(Home::Is(group)) = self.homes.get(&name) {
            let house = self.groups.get_mut(group).unwrap();
            if house.handle.is_none() {
                standing = house.departed.take().or(standing);
            }
        }
        self.engine.readmit(standing?, Weight::ONE).ok()
    }

    /// Counts one more member of a group, which is made for the first.
    fn enter(&mut self, group: u32) -> Group {
        let house = self.groups.get_mut(&group).unwrap();
        house.members += 1;
        if let Some(handle) = house.handle {
            return handle;
        }
        let (parent, weight, is_parked) = (house.parent, house.weight, house.is_parked);
        let own = house.own;
        let handle = match own.and_then(|own| self.lanes.get_mut(&own)) {
            Some(lane) => {
                lane.group = Some(group);
                house.members += 1;
                let handle = self.engine.enclose(lane.key, weight).unwrap();
                self.engine.set_weight(lane.key, Weight::ONE).unwrap();
                handle
            }
            None => {
                let standing = house.departed.take();
                let standing = standing.or_else(|| self.departed.remove(&own?));
                let parent = parent.map(|parent| self.enter(parent));
                self.found_in(parent, standing, weight)
            }
        };
        if is_parked {
            self.engine.park(handle).unwrap();
        }
        self.groups.get_mut(&group).unwrap().handle = Some(handle);
        handle
    }

    fn found_in(
        &mut self,
        parent: Option<Group>,
        standing: Option<Standing>,
        weight: Weight,
    ) -> Group {
        let engine = &mut self.engine;
        let handle = standing.and_then(|standing| engine.readmit_group(standing, weight).ok());
        handle.unwrap_or_else(|| match parent {
            Some(parent) => engine.register_group_in(parent, weight).unwrap(),
            None => engine.register_group(weight),
        })
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
            if self.groups[&group].handle.is_some() {
                weight = Weight::ONE; // among the members
            }
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
        if let Some(group) = lane.group {
            self.quit(group);
        }
    }
}

impl TreeDriver for Bare {
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32) {
        let house = House {
            parent,
            own: None,
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
        self.groups.get_mut(&group).unwrap().own = Some(name);
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

impl BoundDriver for Bare {
    fn bound(&mut self, name: u32, largest: u64) -> u64 {
        let key = self.lane(name).key;
        let largest = Cost::new(largest);
        self.engine
            .bound_on_path(key, largest, Costs::Mixed)
            .unwrap()
    }
}
