//! The engine as a scheduler: a queue of costs per key, and nothing else.

use std::collections::{HashMap, VecDeque};

use drr::{Cost, Drr, Group, Key, Quantum, Standing, Weight};
use fairness_laws::{CountingDriver, Dispatched, Driver, TreeDriver};

#[derive(Debug)]
pub(crate) struct Bare {
    engine: Drr,
    lanes: HashMap<u32, Lane>,
    names: Vec<u32>,
    groups: HashMap<u32, Group>,
    departed: HashMap<u32, Standing>,
}

#[derive(Debug)]
struct Lane {
    key: Key,
    queue: VecDeque<u64>,
    taken: u64,
}

impl Bare {
    pub(crate) fn new(quantum: u64) -> Self {
        Self {
            engine: Drr::new(Quantum::new(quantum).unwrap()),
            lanes: HashMap::new(),
            names: Vec::new(),
            groups: HashMap::new(),
            departed: HashMap::new(),
        }
    }

    fn lane(&mut self, name: u32) -> &mut Lane {
        if !self.lanes.contains_key(&name) {
            let key = match self.departed.remove(&name) {
                Some(standing) => self.engine.readmit(standing, Weight::ONE).unwrap(),
                None => self.engine.register(Weight::ONE),
            };
            self.admit(name, key, 0);
        }
        self.lanes.get_mut(&name).unwrap()
    }

    fn admit(&mut self, name: u32, key: Key, taken: u64) {
        self.lanes.insert(
            name,
            Lane {
                key,
                queue: VecDeque::new(),
                taken,
            },
        );
        self.names
            .resize(self.names.len().max(key.index() + 1), u32::MAX);
        self.names[key.index()] = name;
    }
}

impl Driver for Bare {
    fn enqueue(&mut self, name: u32, cost: u64, weight: u32) {
        let lane = self.lane(name);
        lane.queue.push_back(cost);
        let key = lane.key;
        let weight = Weight::new(u64::from(weight)).unwrap();
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
        self.engine
            .set_weight(key, Weight::new(u64::from(weight)).unwrap())
            .unwrap();
    }

    fn evict(&mut self, name: u32) {
        let lane = self
            .lanes
            .remove(&name)
            .expect("a key that was enqueued for");
        assert!(lane.queue.is_empty());
        if let Some(standing) = self.engine.forget(lane.key).unwrap() {
            self.departed.insert(name, standing);
        }
        // The order of a key's work is counted on across its absence.
        let taken = lane.taken;
        let key = match self.departed.remove(&name) {
            Some(standing) => self.engine.readmit(standing, Weight::ONE).unwrap(),
            None => self.engine.register(Weight::ONE),
        };
        self.admit(name, key, taken);
    }
}

impl TreeDriver for Bare {
    fn adopt(&mut self, name: u32, group: u32, group_weight: u32) {
        let weight = Weight::new(u64::from(group_weight)).unwrap();
        let engine = &mut self.engine;
        let group = *self
            .groups
            .entry(group)
            .or_insert_with(|| engine.register_group(weight));
        let key = self.engine.register_in(group, Weight::ONE).unwrap();
        self.admit(name, key, 0);
    }
}

impl CountingDriver for Bare {
    fn steps(&self) -> u64 {
        self.engine.work().visits
    }
}
