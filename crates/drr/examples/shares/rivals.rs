//! The three schedulers, each the smallest honest version of itself.

use std::collections::VecDeque;

use drr::{Cost, Drr, Group, Key, Quantum, Weight};

/// A task: whose it is and what it costs.
pub(crate) type Task = (usize, u64);

/// A key as a scene describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) weight: u32,
    /// The tenant that the key belongs to, for schedulers that know tenants.
    pub(crate) tenant: usize,
}

pub(crate) trait Scheduler {
    fn name(&self) -> &'static str;
    fn enqueue(&mut self, task: Task);
    fn dispatch(&mut self) -> Option<Task>;
}

/// Returns the three schedulers for these keys.
pub(crate) fn all(quantum: u64, members: &[Member]) -> Vec<Box<dyn Scheduler>> {
    vec![
        Box::new(Fifo::default()),
        Box::new(OnePerVisit::new(quantum, members)),
        Box::new(Fair::new(quantum, members)),
    ]
}

/// One queue for all tenants.
#[derive(Default)]
struct Fifo(VecDeque<Task>);

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "FIFO"
    }

    fn enqueue(&mut self, task: Task) {
        self.0.push_back(task);
    }

    fn dispatch(&mut self) -> Option<Task> {
        self.0.pop_front()
    }
}

/// A round robin with deficits that serves one task on each visit, whatever deficit is left.
struct OnePerVisit {
    quanta: Vec<u64>,
    deficits: Vec<u64>,
    queues: Vec<VecDeque<u64>>,
    ring: VecDeque<usize>,
}

impl OnePerVisit {
    fn new(quantum: u64, members: &[Member]) -> Self {
        Self {
            quanta: members
                .iter()
                .map(|member| quantum * u64::from(member.weight))
                .collect(),
            deficits: vec![0; members.len()],
            queues: vec![VecDeque::new(); members.len()],
            ring: VecDeque::new(),
        }
    }
}

impl Scheduler for OnePerVisit {
    fn name(&self) -> &'static str {
        "one per visit"
    }

    fn enqueue(&mut self, (key, cost): Task) {
        if self.queues[key].is_empty() {
            self.ring.push_back(key);
        }
        self.queues[key].push_back(cost);
    }

    fn dispatch(&mut self) -> Option<Task> {
        loop {
            let key = self.ring.pop_front()?;
            let cost = *self.queues[key]
                .front()
                .expect("a key in the ring has work");
            if self.deficits[key] < cost {
                self.deficits[key] += self.quanta[key];
                self.ring.push_back(key);
                continue;
            }
            self.deficits[key] -= cost;
            self.queues[key].pop_front();
            if self.queues[key].is_empty() {
                self.deficits[key] = 0;
            } else {
                self.ring.push_back(key);
            }
            return Some((key, cost));
        }
    }
}

/// `drr`, with a group for every tenant that has more than one key.
struct Fair {
    engine: Drr,
    keys: Vec<Key>,
    names: Vec<usize>,
    queues: Vec<VecDeque<u64>>,
}

impl Fair {
    fn new(quantum: u64, members: &[Member]) -> Self {
        let mut engine = Drr::new(Quantum::new(quantum).expect("not zero"));
        let tenants = members
            .iter()
            .map(|member| member.tenant)
            .max()
            .map_or(0, |last| last + 1);
        let mut sizes = vec![0; tenants];
        members.iter().for_each(|member| sizes[member.tenant] += 1);
        let groups: Vec<Option<Group>> = sizes
            .iter()
            .map(|&size| (size > 1).then(|| engine.register_group(Weight::ONE)))
            .collect();
        let mut register = |member: &Member| {
            let weight = Weight::new(u64::from(member.weight)).expect("not zero");
            match groups[member.tenant] {
                Some(group) => engine.register_in(group, weight).expect("just made"),
                None => engine.register(weight),
            }
        };
        let keys: Vec<Key> = members.iter().map(&mut register).collect();
        let mut names = vec![0; keys.iter().map(|key| key.index() + 1).max().unwrap_or(0)];
        for (name, key) in keys.iter().enumerate() {
            names[key.index()] = name;
        }
        Self {
            engine,
            names,
            queues: vec![VecDeque::new(); keys.len()],
            keys,
        }
    }
}

impl Scheduler for Fair {
    fn name(&self) -> &'static str {
        "drr"
    }

    fn enqueue(&mut self, (key, cost): Task) {
        self.queues[key].push_back(cost);
        self.engine.wake(self.keys[key]).expect("live");
    }

    fn dispatch(&mut self) -> Option<Task> {
        let handle = self.engine.next_key()?;
        let key = self.names[handle.index()];
        let cost = self.queues[key]
            .pop_front()
            .expect("a key that is awake has work");
        self.engine.charge(handle, Cost::new(cost)).expect("live");
        if self.queues[key].is_empty() {
            self.engine.sleep(handle).expect("live");
        }
        Some((key, cost))
    }
}
