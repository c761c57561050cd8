//! Every law of fairness, on the core: what runs, runs to its end at once.

use std::collections::HashMap;

use drr::{Cost, Quantum, Weight};
use fairness_laws::{CountingDriver, Dispatched, Driver};
use foldhash::fast::RandomState;

use super::{Core, End, KeyLimit, Limits, Next, Notices, Patience, Spec, Timestamp, lanes};
use crate::options::Priority;

/// A job is its sequence and its cost.
struct Dispatcher {
    core: Core<(u64, u64), (), ()>,
    sequences: HashMap<u32, u64>,
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
        Self {
            core: Core::new(limits, quantum, RandomState::default()),
            sequences: HashMap::new(),
        }
    }

    fn lane(&mut self, key: u32) -> u32 {
        lanes::find_or_add(&mut self.core.lanes, &key.to_string(), Weight::ONE)
    }
}

impl Driver for Dispatcher {
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32) {
        self.set_weight(key, weight);
        let sequence = self.sequences.entry(key).or_default();
        let spec = Spec {
            priority: Priority::Normal,
            cost: Cost::new(cost),
            weight: Weight::ONE,
            role: super::Role::Single,
        };
        let job = ((*sequence, cost), ());
        *sequence += 1;
        self.core
            .admit(&key.to_string(), spec, job, Patience::DoesNotWait);
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        let mut notices = Notices::default();
        match self.core.next(Timestamp::default(), &mut notices) {
            Next::Run(lease) => {
                self.core.finish(lease.place, End::Ran, &mut notices);
                let (sequence, cost) = lease.job;
                Some(Dispatched {
                    key: lease.key.parse().unwrap(),
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
        let number = self.lane(key);
        let weight = Weight::new(u64::from(weight)).unwrap();
        if self.core.lanes.weight(number) != weight {
            self.core.lanes.set_weight(number, weight);
        }
    }

    fn evict(&mut self, key: u32) {
        let lane = self.lane(key);
        let lanes = &mut self.core.lanes;
        if lanes[lane].is_idle() && lanes.is_settled(lane) {
            lanes.forget(lane);
        }
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
    use fairness_laws::laws::steps;

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
}
