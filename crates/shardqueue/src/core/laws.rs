//! Every law of fairness, on the core: what runs, runs to its end at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use drr::{Cost, Costs, Quantum, Weight};
use fairness_laws::{BoundDriver, CountingDriver, Dispatched, Driver, Paths, TreeDriver};
use foldhash::fast::RandomState;

use super::{Core, End, KeyLimit, Limits, Next, Notices, Patience, Spec, Timestamp};
use crate::options::Priority;
use crate::path::Separator;

/// A job is its sequence and its cost. Keys are paths.
struct Dispatcher {
    core: Core<(u64, u64), (), ()>,
    paths: Paths,
    sequences: HashMap<u32, u64>,
    /// Groups that are kept from running, also before they have a member.
    parked: HashSet<u32>,
}

impl Dispatcher {
    fn new(quantum: u64) -> Self {
        let limits = Limits {
            queue_max: usize::MAX,
            key_max: KeyLimit::Fixed(usize::MAX),
            backoff_max: usize::MAX,
            concurrency: 1,
            urgent_max: 1,
        };
        let quantum = Quantum::new(quantum).unwrap();
        let separator = Separator::new('/');
        Self {
            core: Core::new(limits, separator, quantum, RandomState::default()),
            paths: Paths::default(),
            sequences: HashMap::new(),
            parked: HashSet::new(),
        }
    }

    fn lane(&mut self, key: u32) -> u32 {
        let (lane, is_new) = self.core.find_or_add(&self.paths.key(key));
        if is_new {
            self.park_groups(key);
        }
        lane
    }

    /// Parks the groups of a key that may have been made just now.
    fn park_groups(&mut self, key: u32) {
        if !self.parked.is_empty() {
            for group in self.paths.groups(key) {
                if self.parked.contains(&group)
                    && let Some(number) = self.number(group)
                {
                    self.core.lanes.park_group(number);
                }
            }
        }
    }

    fn number(&self, group: u32) -> Option<u32> {
        let name = self.paths.group(group);
        self.core.lanes.groups().find(name.as_str())
    }

    fn weigh(&mut self, name: &str, weight: u32) {
        let weight = Weight::new(u64::from(weight)).unwrap();
        if self.core.names.weight(name) != weight {
            self.core.set_weight(&Arc::from(name), weight);
        }
    }
}

impl Driver for Dispatcher {
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32) {
        let name = self.paths.key(key);
        self.weigh(&name, weight);
        let sequence = self.sequences.entry(key).or_default();
        let spec = Spec {
            priority: Priority::Normal,
            cost: Cost::new(cost),
            role: super::Role::Single,
        };
        let job = ((*sequence, cost), ());
        *sequence += 1;
        self.core.admit(&name, spec, job, Patience::DoesNotWait);
        self.park_groups(key);
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        let mut notices = Notices::default();
        match self.core.next(Timestamp::default(), &mut notices) {
            Next::Run(lease) => {
                let (_, lane) = self.core.finish(lease.place, End::Ran, &mut notices);
                let (sequence, cost) = lease.job;
                Some(Dispatched {
                    key: self.paths.number(self.core.lane_name(lane)).unwrap(),
                    sequence,
                    cost,
                    ticket: 0,
                })
            }
            Next::Idle(None) => None,
            other => panic!("nothing backs off and nothing stops: {other:?}"),
        }
    }

    fn finish(&mut self, _work: Dispatched, _actual: u64) {}

    fn park(&mut self, key: u32) {
        let lane = self.lane(key);
        self.core.lanes.park(lane);
    }

    fn unpark(&mut self, key: u32) {
        let lane = self.lane(key);
        self.core.lanes.unpark(lane);
    }

    fn set_weight(&mut self, key: u32, weight: u32) {
        self.weigh(&self.paths.key(key), weight);
    }

    fn evict(&mut self, key: u32) {
        let lane = self.lane(key);
        let lanes = &mut self.core.lanes;
        if lanes[lane].is_idle() && lanes.is_settled(lane) {
            lanes.forget(lane);
        }
    }
}

impl TreeDriver for Dispatcher {
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32) {
        self.paths.found(group, parent);
        self.set_group_weight(group, weight);
    }

    fn adopt(&mut self, key: u32, group: u32) {
        self.paths.adopt(key, group);
    }

    fn own(&mut self, key: u32, group: u32) {
        self.paths.own(key, group);
    }

    fn park_group(&mut self, group: u32) {
        self.parked.insert(group);
        if let Some(number) = self.number(group) {
            self.core.lanes.park_group(number);
        }
    }

    fn unpark_group(&mut self, group: u32) {
        self.parked.remove(&group);
        if let Some(number) = self.number(group) {
            self.core.lanes.unpark_group(number);
        }
    }

    fn set_group_weight(&mut self, group: u32, weight: u32) {
        self.weigh(&self.paths.group(group), weight);
    }
}

impl BoundDriver for Dispatcher {
    fn bound(&mut self, key: u32, largest: u64) -> u64 {
        let lane = self.lane(key);
        let lanes = &self.core.lanes;
        let bound = lanes
            .engine()
            .bound_on_path(lanes.key(lane), Cost::new(largest), Costs::Mixed);
        bound.unwrap()
    }
}

impl CountingDriver for Dispatcher {
    fn steps(&self) -> u64 {
        self.core.lanes.engine().work().visits
    }
}

mod core_laws {
    fairness_laws::conformance! { core: super::Dispatcher::new }
}

mod steps {
    use fairness_laws::laws::{steps, tree};

    #[test]
    fn a_dispatch_takes_two_steps_at_any_size() {
        steps::a_dispatch_takes_two_steps_at_any_size(super::Dispatcher::new);
    }

    #[test]
    fn debt_is_waited_out_not_walked_through() {
        steps::debt_is_waited_out_not_walked_through(super::Dispatcher::new);
    }

    #[test]
    fn parked_keys_cost_nothing() {
        steps::parked_keys_cost_nothing(super::Dispatcher::new);
    }

    #[test]
    fn a_dispatch_takes_two_steps_on_each_level() {
        tree::a_dispatch_takes_two_steps_on_each_level(super::Dispatcher::new);
    }

    #[test]
    fn parked_groups_cost_nothing() {
        tree::parked_groups_cost_nothing(super::Dispatcher::new);
    }
}

mod trees {
    fairness_laws::conformance! { trees: super::Dispatcher::new }
}

mod tree_bounds {
    fairness_laws::conformance! { tree_bounds: super::Dispatcher::new }
}
