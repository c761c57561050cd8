//! Every law of fairness, on the broker: from commands to deliveries, with a store beneath.
//!
//! The queue charges by bytes, so that a piece of work can cost what the law says. For the laws of settlement it charges by
//! time, and the driver's clock says how long a piece of work took. Keys are paths: the laws of trees put them into groups,
//! and the others leave them flat.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use drr::{Quantum, Weight};
use fairness_laws::{BoundDriver, CapDriver, Dispatched, Driver, Paths, TreeDriver};
use fila_core::{
    Charge, Command, Delivering, Departure, KeySettings, NewMessage, QueueSettings, Settings,
    Verdict,
};
use fila_store::{FairnessKey, Payload, QueueId, Timestamp};

use support::{MILLISECOND, Shell, key};

/// The dearest message that the driver sends. Laws that ask for the largest numbers there are get a dear one
/// instead, and are told so.
const COST_MAX: u64 = 10_000_000;
const DEAR: u64 = 60_000;

/// How the driver takes messages.
#[derive(Clone, Copy)]
enum Taking {
    /// A stream for each of them.
    Streams,
    /// A call for each of them.
    Calls,
}

struct Broker {
    taking: Taking,
    shell: Shell,
    queue: QueueId,
    definition: QueueSettings,
    paths: Paths,
    new: Vec<NewMessage>,
    sequences: HashMap<u32, u64>,
    /// The messages of each key that were enqueued and not dispatched: sequence and cost.
    waiting: HashMap<u32, std::collections::VecDeque<(u64, u64)>>,
    weights: BTreeMap<u32, u32>,
    /// The work that runs: its lease, and when it began.
    running: HashMap<u64, (fila_core::LeaseId, Timestamp)>,
    tickets: u64,
}

impl Broker {
    fn new(taking: Taking, quantum: u64, memory_budget: usize) -> Self {
        Self::charging(Charge::Bytes, taking, quantum, memory_budget)
    }

    /// Returns a broker that charges by time. A law's unit is a millisecond: the broker's clock is no finer.
    fn by_time(quantum: u64) -> Self {
        Self::charging(Charge::Time, Taking::Streams, quantum * 1000, 1 << 30)
    }

    /// Returns a broker that has delivered the dearest message of any tree. What it says of waits holds for messages that
    /// cost no more than those that it has seen.
    fn with_dear_work_done(quantum: u64, memory_budget: usize) -> Self {
        const DEAREST: u64 = 2_000;
        let mut broker = Self::new(Taking::Streams, quantum, memory_budget);
        broker.enqueue(u32::MAX, DEAREST, 1);
        let work = broker.dispatch().expect("the only message");
        broker.finish(work, DEAREST);
        broker
    }

    fn charging(charge: Charge, taking: Taking, quantum: u64, memory_budget: usize) -> Self {
        let mut settings = Settings::default();
        settings.memory_budget = memory_budget;
        settings.quantum = Quantum::new(quantum).unwrap();
        settings.limits.payload_bytes = 16 << 20;
        // Laws enqueue all they have at once.
        settings.limits.buffered_bytes = usize::MAX;
        let mut shell = Shell::new(settings);
        let mut definition = QueueSettings::default();
        definition.charge = charge;
        let queue = shell.create("laws", definition.clone());
        Self {
            taking,
            shell,
            queue,
            definition,
            paths: Paths::default(),
            new: Vec::new(),
            sequences: HashMap::new(),
            waiting: HashMap::new(),
            weights: BTreeMap::new(),
            running: HashMap::new(),
            tickets: 0,
        }
    }

    fn name(&self, number: u32) -> FairnessKey {
        key(&self.paths.key(number))
    }

    fn group(&self, group: u32) -> FairnessKey {
        key(&self.paths.group(group))
    }

    /// Lets the broker know what was enqueued.
    fn send(&mut self) {
        if !self.new.is_empty() {
            let messages = std::mem::take(&mut self.new);
            let results = self.shell.enqueue_all(self.queue, messages);
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        }
    }

    /// Changes the settings of a key or group.
    fn change(&mut self, path: FairnessKey, change: impl FnOnce(&mut KeySettings)) {
        let before = self.definition.keys.get(&path).copied().unwrap_or_default();
        let mut settings = before;
        change(&mut settings);
        if settings == before {
            return;
        }
        self.send();
        if settings.is_default() {
            self.definition.keys.remove(&path);
        } else {
            self.definition.keys.insert(path, settings);
        }
        self.shell.update(self.queue, self.definition.clone());
    }

    /// Sets the weight of a group, if it is not the one that groups have anyway.
    fn weigh_group(&mut self, path: FairnessKey, weight: u32) {
        let weight = weight.min(Weight::MAX.value());
        let fixed = NonZeroU32::new(weight).filter(|weight| weight.get() > 1);
        self.change(path, |settings| settings.weight = fixed);
    }
}

impl Driver for Broker {
    fn enqueue(&mut self, number: u32, cost: u64, weight: u32) {
        let name = self.name(number);
        let set = self.weights.remove(&number);
        if self.paths.is_own(number) {
            self.weigh_group(name.clone(), weight);
        } else if set.is_some_and(|set| set != weight) {
            self.change(name.clone(), |settings| settings.weight = None);
        }
        let cost = if cost > COST_MAX { DEAR } else { cost.max(1) };
        let body = vec![0; cost as usize * 1024 / 1000];
        let payload = Payload::new(Vec::new(), body).unwrap();
        let mut message = NewMessage::new(name, payload);
        message.schedule.weight = NonZeroU32::new(weight.min(Weight::MAX.value())).unwrap();
        self.new.push(message);
        let sequence = self.sequences.entry(number).or_default();
        let waiting = self.waiting.entry(number).or_default();
        waiting.push_back((*sequence, cost));
        *sequence += 1;
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        self.send();
        // A new consumer for every piece of work, which gets no later one if there is none now.
        match self.taking {
            Taking::Streams => {
                let consumer = self.shell.subscribe(self.queue, 1);
                self.shell.run();
                self.shell.tell(Command::Drain { consumer });
            }
            Taking::Calls => {
                let consumer = self.shell.call(self.queue, 1, None);
                self.shell.tell(Command::Drain { consumer });
                self.shell.run();
                self.shell.unsubscribe(consumer, Departure::Answered);
            }
        }
        let (_, delivery) = self.shell.deliveries.pop_front()?;
        let name = std::str::from_utf8(delivery.fairness_key.as_bytes()).unwrap();
        let number = self.paths.number(name).expect("a law has named it");
        let (sequence, cost) = self.waiting.get_mut(&number)?.pop_front()?;
        self.tickets += 1;
        let began = (delivery.lease, self.shell.now);
        self.running.insert(self.tickets, began);
        Some(Dispatched {
            key: number,
            sequence,
            cost,
            ticket: self.tickets,
        })
    }

    fn finish(&mut self, work: Dispatched, actual: u64) {
        let (lease, began) = self.running.remove(&work.ticket).unwrap();
        if self.definition.charge == Charge::Time {
            let took = MILLISECOND * u32::try_from(actual).unwrap();
            self.shell.now = self.shell.now.max(began.saturating_add(took));
        }
        self.shell.report(self.queue, lease, Verdict::Ack);
    }

    fn park(&mut self, number: u32) {
        self.change(self.name(number), |it| it.delivery = Delivering::Paused);
    }

    fn unpark(&mut self, number: u32) {
        self.change(self.name(number), |it| it.delivery = Delivering::Running);
    }

    fn set_weight(&mut self, number: u32, weight: u32) {
        self.weights.insert(number, weight);
        let weight = weight.min(Weight::MAX.value());
        self.change(self.name(number), |it| it.weight = NonZeroU32::new(weight));
    }

    fn evict(&mut self, _key: u32) {} // lanes that are no longer needed go by themselves
}

impl TreeDriver for Broker {
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32) {
        self.paths.found(group, parent);
        self.weigh_group(self.group(group), weight);
    }

    fn adopt(&mut self, number: u32, group: u32) {
        self.paths.adopt(number, group);
    }

    fn own(&mut self, number: u32, group: u32) {
        self.paths.own(number, group);
    }

    fn park_group(&mut self, group: u32) {
        self.change(self.group(group), |it| it.delivery = Delivering::Paused);
    }

    fn unpark_group(&mut self, group: u32) {
        self.change(self.group(group), |it| it.delivery = Delivering::Running);
    }

    fn set_group_weight(&mut self, group: u32, weight: u32) {
        self.weigh_group(self.group(group), weight);
    }
}

impl CapDriver for Broker {
    fn set_group_cap(&mut self, group: u32, in_flight: Option<u32>) {
        let cap = in_flight.and_then(NonZeroU32::new);
        self.change(self.group(group), |it| it.concurrency = cap);
    }
}

impl BoundDriver for Broker {
    fn bound(&mut self, number: u32, _largest: u64) -> u64 {
        self.send();
        let (now, name) = (self.shell.now, self.name(number));
        let explained = self.shell.broker.explain(now, self.queue, &name).unwrap();
        // It is told in whole messages, rounded down.
        explained.bound.expect("the key has messages") * 1000 + 999
    }
}

mod in_memory {
    fairness_laws::conformance! { core: |quantum| super::Broker::new(super::Taking::Streams, quantum, 1 << 30) }
}

/// With hardly any memory the broker reads every message back from the store, and the shares stay the same.
mod from_the_store {
    fairness_laws::conformance! { core: |quantum| super::Broker::new(super::Taking::Streams, quantum, 2 << 10) }
}

/// Callers without a stream get the same shares.
mod by_calls {
    fairness_laws::conformance! { core: |quantum| super::Broker::new(super::Taking::Calls, quantum, 1 << 30) }
}

/// The same from the store: a call waits for the messages that are read for it.
mod by_calls_from_the_store {
    fairness_laws::conformance! { core: |quantum| super::Broker::new(super::Taking::Calls, quantum, 2 << 10) }
}

/// The laws of groups, on keys that are paths.
mod in_groups {
    fairness_laws::conformance! { trees, one world in 4: |quantum| super::Broker::new(super::Taking::Streams, quantum, 1 << 30) }
    fairness_laws::conformance! { tree_caps, one world in 4: |quantum| super::Broker::new(super::Taking::Streams, quantum, 1 << 30) }
    fairness_laws::conformance! { tree_bounds, one world in 4: |quantum| super::Broker::with_dear_work_done(quantum, 1 << 30) }
    fairness_laws::conformance! { tree_settle, one world in 4: super::Broker::by_time }
}

/// The same from the store. Shares of groups do not depend on where the messages are.
mod in_groups_from_the_store {
    fairness_laws::conformance! { trees, one world in 8: |quantum| super::Broker::new(super::Taking::Streams, quantum, 2 << 10) }
    fairness_laws::conformance! { tree_caps, one world in 8: |quantum| super::Broker::new(super::Taking::Streams, quantum, 2 << 10) }
    fairness_laws::conformance! { tree_bounds, one world in 8: |quantum| super::Broker::with_dear_work_done(quantum, 2 << 10) }
}
