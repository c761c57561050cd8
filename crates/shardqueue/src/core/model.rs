//! The core against a model that is too simple to be wrong, in random histories.
//!
//! The model keeps, per key, a queue for each priority, one job that has begun, and a line of waiting submissions. It
//! does not know fairness, so it lets the core choose the key, and then knows which job must come. Some histories have
//! [keys in groups](NAMES). What a group holds, the model counts by walking over all keys.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use drr::{Cost, Pool, Quantum};
use foldhash::fast::RandomState;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::audit::show;
use super::{
    Admission, Cancelled, Core, End, JobSlot, KeyLimit, Limits, Next, NoRetry, Notices, Patience,
    Spec, Status, Timestamp,
};
use crate::error::FullLevel;
use crate::options::Priority;
use crate::path::Separator;

/// Names of keys without groups, and with them: a key alone, one with a group of its name, and members on three levels.
const NAMES: [[&str; 6]; 2] = [
    ["0", "1", "2", "3", "4", "5"],
    ["a/b", "a", "c", "a/b/d", "a/e", "f/g/h/i"],
];

fn limits() -> impl Strategy<Value = Limits> {
    let key_max = prop_oneof![Just(KeyLimit::Part), Just(KeyLimit::Fixed(4))];
    (4usize..14, key_max, 1usize..20, 1usize..4, 1usize..3).prop_map(
        |(queue_max, key_max, backoff_max, concurrency, urgent_max)| Limits {
            queue_max,
            key_max,
            backoff_max,
            concurrency,
            urgent_max,
        },
    )
}

#[derive(Clone, Debug)]
enum Verb {
    Submit { key: u8, priority: u8, waits: bool },
    Next,
    Finish { pick: u8, end: u8 },
    Retry { pick: u8, delay: u8 },
    Cancel { pick: u8 },
    Withdraw { pick: u8 },
    Barrier { key: Option<u8> },
    Advance { by: u8 },
    Stop,
    HandBack,
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let key = prop_oneof![2 => Just(0u8), 4 => 1u8..6];
    let verb = prop_oneof![
        8 => (key.clone(), 0u8..4, any::<bool>())
            .prop_map(|(key, priority, waits)| Verb::Submit { key, priority, waits }),
        8 => Just(Verb::Next),
        5 => (any::<u8>(), 0u8..3).prop_map(|(pick, end)| Verb::Finish { pick, end }),
        4 => (any::<u8>(), 0u8..5).prop_map(|(pick, delay)| Verb::Retry { pick, delay }),
        3 => any::<u8>().prop_map(|pick| Verb::Cancel { pick }),
        2 => any::<u8>().prop_map(|pick| Verb::Withdraw { pick }),
        2 => prop::option::of(key).prop_map(|key| Verb::Barrier { key }),
        3 => (0u8..6).prop_map(|by| Verb::Advance { by }),
        1 => Just(Verb::HandBack),
    ];
    let history = prop::collection::vec(verb, 1..120);
    // Most histories stop in the end, and some things happen after that.
    (
        history,
        any::<prop::sample::Index>(),
        prop::bool::weighted(0.7),
    )
        .prop_map(|(mut verbs, at, stops)| {
            if stops {
                verbs.insert(at.index(verbs.len() + 1), Verb::Stop);
            }
            verbs
        })
}

/// The model's record of a key.
#[derive(Debug, Default)]
struct Key {
    queues: [VecDeque<u64>; 4],
    begun: Option<u64>,
    /// How many of the queued jobs use the room for backing off.
    apart: usize,
    line: VecDeque<(u64, usize)>,
}

impl Key {
    fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }
}

struct World {
    limits: Limits,
    names: [&'static str; 6],
    core: Core<u64, u64, u64>,
    keys: BTreeMap<u8, Key>,
    now: Timestamp,
    /// Jobs are named by the number of their submission.
    submissions: u64,
    places: BTreeMap<u64, JobSlot>,
    running: Vec<(u64, JobSlot)>,
    ready_at: BTreeMap<u64, Timestamp>,
    /// Jobs that were told to stop while they ran.
    told: Vec<u64>,
    barriers: BTreeMap<u64, Vec<u64>>,
    stops: bool,
    ended: usize,
    urgent: Vec<u64>,
    /// How many urgent jobs have begun in a row while others waited.
    urgent_row: usize,
}

impl World {
    fn new(limits: Limits, has_groups: bool) -> Self {
        let quantum = Quantum::new(1).unwrap();
        let separator = Separator::new('/');
        Self {
            limits,
            names: NAMES[usize::from(has_groups)],
            core: Core::new(limits, separator, quantum, RandomState::default()),
            keys: BTreeMap::new(),
            now: Timestamp::default(),
            submissions: 0,
            places: BTreeMap::new(),
            running: Vec::new(),
            ready_at: BTreeMap::new(),
            told: Vec::new(),
            barriers: BTreeMap::new(),
            stops: false,
            ended: 0,
            urgent: Vec::new(),
            urgent_row: 0,
        }
    }

    fn held(&self) -> usize {
        let in_queue: usize = self.keys.values().map(|key| key.len() - key.apart).sum();
        in_queue + self.beside().saturating_sub(self.limits.backoff_max)
    }

    /// Returns how many jobs back off or are counted with those that do.
    fn beside(&self) -> usize {
        let apart: usize = self.keys.values().map(|key| key.apart).sum();
        apart + self.ready_at.len()
    }

    /// Returns how many jobs of one key or group at the top may be queued.
    fn key_max(&self) -> usize {
        match self.limits.key_max {
            KeyLimit::Fixed(max) => max,
            KeyLimit::Part => {
                let free = self.limits.queue_max.saturating_sub(self.held());
                (3 * free).min(self.limits.queue_max)
            }
        }
    }

    /// Returns the groups of a key from the top down. The key is in the group of its own name if there is one.
    fn groups(&self, key: u8) -> Vec<&'static str> {
        let name = self.names[usize::from(key)];
        let ends = name.match_indices('/').map(|(end, _)| &name[..end]);
        let own = self.core.lanes.groups().find(name).map(|_| name);
        ends.chain(own).collect()
    }

    /// Adds something up over all keys of a group.
    fn sum(&self, group: &str, of: impl Fn(&Key) -> usize) -> usize {
        let is_member = |key: &u8| {
            let rest = self.names[usize::from(*key)].strip_prefix(group);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let keys = self.keys.iter().filter(|(key, _)| is_member(key));
        keys.map(|(_, key)| of(key)).sum()
    }

    fn backs_off(&self, key: &Key) -> bool {
        key.begun
            .is_some_and(|job| self.ready_at.contains_key(&job))
    }

    /// Returns whether a key may have one more job queued, on every level of its path.
    fn has_room_for(&self, key: u8) -> bool {
        let mut max = self.key_max();
        for (above, group) in self.groups(key).into_iter().enumerate() {
            let spare = self.limits.backoff_max / (8 << above);
            let backing_off = self.sum(group, |key| usize::from(self.backs_off(key)));
            let held = self.sum(group, Key::len) + 8 * backing_off.saturating_sub(spare);
            if held >= max {
                return false;
            }
            max = max.min(3 * (max - held));
        }
        let own = self.keys.get(&key).map_or(0, Key::len);
        self.held() < self.limits.queue_max && own < max
    }

    /// Compares the room in use; no submission waits that could be accepted.
    fn compare_room(&self) {
        assert_eq!(self.core.held(), self.held());
        let mut waiting = self.keys.iter().filter(|(_, key)| !key.line.is_empty());
        let could_enter = waiting.any(|(&key, _)| self.has_room_for(key));
        assert!(!could_enter, "no submission waits while there is room");
    }

    /// Compares what the core said with what the model expects to be told.
    fn hear(&mut self, notices: Notices<u64, u64>) {
        for job in notices.accepted {
            let mut lines = self.keys.values_mut();
            let key = lines
                .find(|key| key.line.front().is_some_and(|&(first, _)| first == job))
                .expect("the first of a line is let in");
            let (_, priority) = key.line.pop_front().unwrap();
            key.queues[priority].push_back(job);
            self.set_apart(job);
        }
        for barrier in notices.rung {
            let left = self.barriers.remove(&barrier).expect("it rings once");
            assert_eq!(left, [], "it rings when nothing is left before it");
        }
    }

    fn end(&mut self, job: u64) {
        self.ended += 1;
        self.places.remove(&job);
        self.ready_at.remove(&job);
        for left in self.barriers.values_mut() {
            left.retain(|&before| before != job);
        }
    }

    fn key_of(&mut self, job: u64) -> &mut Key {
        let mut keys = self.keys.values_mut();
        let has = |key: &&mut Key| {
            key.begun == Some(job) || key.queues.iter().any(|queue| queue.contains(&job))
        };
        keys.find(has).expect("the job is alive")
    }

    fn play(&mut self, verb: &Verb) {
        let mut notices = Notices::default();
        match *verb {
            Verb::Submit {
                key,
                priority,
                waits,
            } => self.submit(key, priority, waits),
            Verb::Next => self.next(&mut notices),
            Verb::Finish { pick, end } => {
                if let Some(at) = self.pick_running(pick) {
                    let (job, place) = self.running.remove(at);
                    self.key_of(job).begun = None;
                    self.end(job);
                    let end = [End::Ran, End::Failed, End::Cancelled][usize::from(end)];
                    assert_eq!(self.core.finish(place, end, &mut notices).0, job);
                }
            }
            Verb::Retry { pick, delay } => self.retry(pick, delay, &mut notices),
            Verb::Cancel { pick } => self.cancel(pick, &mut notices),
            Verb::Withdraw { pick } => self.withdraw(pick),
            Verb::Barrier { key } => self.barrier(key),
            Verb::Advance { by } => self.now = self.now.after(Duration::from_nanos(by.into())),
            Verb::Stop => {
                self.stops = true;
                let refused: Vec<u64> = self.core.stop().into_iter().map(|(job, _)| job).collect();
                let mut waiting: Vec<u64> = Vec::new();
                for key in self.keys.values_mut() {
                    waiting.extend(key.line.drain(..).map(|(job, _)| job));
                }
                waiting.sort_unstable();
                assert_eq!(refused, waiting);
                self.places.retain(|job, _| !waiting.contains(job));
            }
            Verb::HandBack => self.hand_back(&mut notices),
        }
        for key in self.keys.values_mut() {
            key.apart = key.apart.min(key.len()); // before the room goes to others
        }
        self.hear(notices);
        self.core.audit();
        self.compare_room();
    }

    fn submit(&mut self, key: u8, priority: u8, waits: bool) {
        let job = self.submissions;
        self.submissions += 1;
        self.urgent.extend((priority == 0).then_some(job));
        let priorities = [
            Priority::Urgent,
            Priority::High,
            Priority::Normal,
            Priority::Low,
        ];
        let spec = Spec {
            priority: priorities[usize::from(priority)],
            cost: Cost::new(1 + u64::from(priority)),
            role: super::Role::Single,
        };
        let patience = if waits {
            Patience::Waits
        } else {
            Patience::DoesNotWait
        };
        let has_room = self.held() < self.limits.queue_max;
        let has_room_for_key = self.has_room_for(key);
        let name = self.names[usize::from(key)];
        let admission = self.core.admit(name, spec, (job, job), patience);
        let key = self.keys.entry(key).or_default();
        let enters = has_room_for_key && key.line.is_empty();
        match admission {
            Admission::Closed(_) => assert!(self.stops),
            Admission::Accepted(place) => {
                assert!(enters && !self.stops);
                key.queues[usize::from(priority)].push_back(job);
                self.places.insert(job, place);
                self.set_apart(job);
            }
            Admission::Waiting(place) => {
                assert!(waits && !enters && !self.stops);
                key.line.push_back((job, priority.into()));
                self.places.insert(job, place);
            }
            Admission::Full(_, occupancy) => {
                assert!(!waits && !enters && !self.stops);
                let is_of_group = matches!(occupancy.level, FullLevel::Group { .. });
                assert!(is_of_group || occupancy.key_held == key.len());
                assert_eq!(has_room, occupancy.level != FullLevel::Shard);
                assert!(!has_room || occupancy.key_held >= occupancy.key_max);
            }
        }
    }

    fn next(&mut self, notices: &mut Notices<u64, u64>) {
        if let Some(&(_, place)) = self.running.last() {
            self.core.set_aside(place);
        }
        let next = self.core.next(self.now, notices);
        let answer = show(&next);
        let lease = match next {
            Next::Run(lease) | Next::GiveUp(lease) => lease,
            Next::Idle(until) if self.running.len() == self.limits.concurrency => {
                assert_eq!(until, None);
                return;
            }
            Next::Idle(until) => {
                let earliest = self.ready_at.values().min().copied();
                assert_eq!(until, earliest);
                assert!(earliest.is_none_or(|earliest| earliest > self.now));
                let may_run = |key: &Key| key.begun.is_none() && key.len() > 0;
                assert!(!self.stops || !self.running.is_empty());
                assert!(!self.keys.values().any(may_run));
                return;
            }
            Next::Ended => {
                assert!(self.stops && self.places.is_empty());
                return;
            }
        };
        let others_wait = self.others_wait();
        let name = self.core.key_of(lease.place).unwrap();
        let number = self.names.iter().position(|known| **known == **name);
        let key = self.keys.get_mut(&(number.unwrap() as u8)).unwrap();
        let first = key.queues.iter().find_map(|queue| queue.front().copied());
        match key.begun {
            Some(job) => {
                assert_eq!(
                    lease.job, job,
                    "a job that has begun comes before its key's others"
                );
                let ready_at = self.ready_at.remove(&job).unwrap();
                assert!(self.stops || ready_at <= self.now, "nothing begins early");
                assert_eq!(answer.starts_with("GiveUp"), self.stops, "{answer}");
            }
            None => {
                assert_eq!(Some(lease.job), first, "in order, the urgent ones first");
                assert!(answer.starts_with("Run"), "{answer}");
                let mut queues = key.queues.iter_mut();
                queues.find(|queue| !queue.is_empty()).unwrap().pop_front();
            }
        }
        key.begun = Some(lease.job);
        let counts = self.urgent.contains(&lease.job) && others_wait;
        self.urgent_row = if counts { self.urgent_row + 1 } else { 0 };
        assert!(self.urgent_row <= self.limits.urgent_max, "others wait");
        self.running.push((lease.job, lease.place));
    }

    /// Returns whether a job that is not urgent could begin.
    fn others_wait(&self) -> bool {
        let waits = |key: &Key| key.begun.is_none() && key.queues[0].is_empty() && key.len() > 0;
        self.keys.values().any(waits)
    }

    fn pick_running(&self, pick: u8) -> Option<usize> {
        usize::from(pick).checked_rem(self.running.len())
    }

    fn retry(&mut self, pick: u8, delay: u8, notices: &mut Notices<u64, u64>) {
        let Some(at) = self.pick_running(pick) else {
            return;
        };
        let (job, place) = self.running[at];
        let until = self.now.after(Duration::from_nanos(delay.into()));
        match self.core.retry(place, job, until, notices) {
            Ok(()) => {
                assert!(!self.stops && !self.told.contains(&job));
                self.ready_at.insert(job, until);
                self.running.remove(at);
                self.set_apart(job);
            }
            Err((_, NoRetry::Cancelled)) => assert!(self.told.contains(&job)),
            Err((_, NoRetry::Stopping)) => assert!(self.stops),
        }
    }

    /// Counts queued jobs of a key that backs off with those that back off, while it may have more there.
    fn set_apart(&mut self, job: u64) {
        let number = self.number_of(job);
        while self.backs_off(&self.keys[&number]) && self.may_set_apart(number) {
            self.key_of(job).apart += 1;
        }
    }

    fn may_set_apart(&self, number: u8) -> bool {
        let key = &self.keys[&number];
        let mut room = Pool {
            capacity: self.limits.backoff_max as u64,
            used: self.beside() as u64,
        };
        for group in self.groups(number) {
            let held = self.sum(group, |key| key.apart) as u64;
            if !room.admits(held, 1) {
                return false;
            }
            room = Pool {
                capacity: room.part(),
                used: held,
            };
        }
        key.apart < key.len() && room.admits(key.apart as u64, 1)
    }

    fn number_of(&self, job: u64) -> u8 {
        let has = |key: &Key| {
            key.begun == Some(job) || key.queues.iter().flatten().any(|&other| other == job)
        };
        let mut keys = self.keys.iter();
        let found = keys.find(|(_, key)| has(key));
        *found.expect("the job is alive").0
    }

    fn cancel(&mut self, pick: u8, notices: &mut Notices<u64, u64>) {
        let Some((&job, &place)) = self.places.iter().nth(usize::from(pick) % 8) else {
            return;
        };
        match self.core.cancel(place, notices) {
            Cancelled::Removed(_) => {
                let key = self.key_of(job);
                key.begun = key.begun.filter(|&begun| begun != job);
                key.queues
                    .iter_mut()
                    .for_each(|queue| queue.retain(|&other| other != job));
                self.end(job);
            }
            Cancelled::IsRunning => {
                assert!(self.running.contains(&(job, place)));
                self.told.push(job);
            }
            Cancelled::Gone => assert!(self.waits(job), "only a submission is not there yet"),
        }
    }

    fn waits(&self, job: u64) -> bool {
        let mut keys = self.keys.values();
        keys.any(|key| key.line.iter().any(|&(waiting, _)| waiting == job))
    }

    fn withdraw(&mut self, pick: u8) {
        let Some((&job, &place)) = self.places.iter().nth(usize::from(pick) % 8) else {
            return;
        };
        let waited = self.waits(job);
        assert_eq!(self.core.withdraw(place), waited.then_some(job));
        if waited {
            let lines = self.keys.values_mut().map(|key| &mut key.line);
            lines.for_each(|line| line.retain(|&(other, _)| other != job));
            self.places.remove(&job);
        }
    }

    fn barrier(&mut self, key: Option<u8>) {
        let bell = self.submissions;
        self.submissions += 1;
        let name = key.map(|key| self.names[usize::from(key)]);
        let mut before = Vec::new();
        for (number, state) in &self.keys {
            if key.is_none_or(|key| key == *number) {
                before.extend(state.queues.iter().flatten().chain(&state.begun));
            }
        }
        match self.core.barrier(name, bell) {
            Ok(_) => {
                assert_ne!(before, []);
                self.barriers.insert(bell, before);
            }
            Err(_) => assert_eq!(before, []),
        }
    }

    fn hand_back(&mut self, notices: &mut Notices<u64, u64>) {
        if !self.stops {
            return;
        }
        let handed_back = self.core.hand_back(notices);
        let jobs = |leavers: &[super::RemovedJob<u64, u64>]| -> Vec<u64> {
            leavers.iter().map(|leaver| leaver.job).collect()
        };
        let mut returned = jobs(&handed_back.queued);
        let failed = jobs(&handed_back.backing_off);
        let mut queued = Vec::new();
        for key in self.keys.values_mut() {
            key.queues
                .iter_mut()
                .for_each(|queue| queued.extend(queue.drain(..)));
            key.begun = key.begun.filter(|begun| !failed.contains(begun));
        }
        queued.sort_unstable();
        returned.sort_unstable();
        assert_eq!(returned, queued);
        assert_eq!(failed.len(), self.ready_at.len());
        returned
            .into_iter()
            .chain(failed)
            .for_each(|job| self.end(job));
    }

    /// Asks about every job, and compares.
    fn ask(&mut self) {
        for (&job, &place) in &self.places {
            assert_eq!(self.core.find(place.serial), Some(place));
            let status = self.core.status(place);
            let mut keys = self.keys.values();
            let key = keys.find(|key| {
                key.begun == Some(job) || key.queues.iter().flatten().any(|&other| other == job)
            });
            let expected = match key {
                None => None,
                Some(key) if key.begun == Some(job) => {
                    assert!(matches!(
                        (status, self.ready_at.get(&job)),
                        (Some(Status::Running { .. }), None)
                            | (Some(Status::BackingOff { .. }), Some(_))
                    ));
                    continue;
                }
                Some(key) => {
                    let queued = key.queues.iter().flatten();
                    let ahead = queued.take_while(|&&other| other != job).count();
                    let position = ahead + usize::from(key.begun.is_some());
                    Some(Status::Queued { position })
                }
            };
            assert_eq!(status, expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_core_does_what_the_model_expects(
        limits in limits(),
        has_groups in any::<bool>(),
        verbs in verbs(),
    ) {
        let mut world = World::new(limits, has_groups);
        for verb in &verbs {
            world.play(verb);
            world.ask();
        }
    }
}
