//! A bookkeeper for tests: walks the whole engine and checks every invariant the modules state.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::slot::{Flag, NIL, Place};
use crate::{Cost, Drr, Group, Key, Quantum, Standing, State, Weight};

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Register {
        parent: usize,
        weight: u64,
    },
    RegisterGroup {
        parent: usize,
        weight: u64,
    },
    Wake(usize),
    Sleep(usize),
    Park(usize),
    Unpark(usize),
    ParkGroup(usize),
    UnparkGroup(usize),
    Serve {
        cost: u64,
    },
    Settle {
        key: usize,
        charged: u64,
        actual: u64,
    },
    SetWeight {
        key: usize,
        weight: u64,
    },
    SetGroupWeight {
        group: usize,
        weight: u64,
    },
    Forget(usize),
    Disband(usize),
    Readmit(usize),
    Enclose {
        key: usize,
        weight: u64,
    },
    Transfer {
        key: usize,
        to: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Step::*;
    let at = 0usize..1000;
    let weight = prop_oneof![Just(1u64), 1u64..20, 1u64..=65_536];
    let cost = prop_oneof![Just(1u64), 1u64..2000, Just(u64::MAX), any::<u64>()];
    let step = prop_oneof![
        4 => (at.clone(), weight.clone()).prop_map(|(parent, weight)| Register { parent, weight }),
        1 => (at.clone(), weight.clone()).prop_map(|(parent, weight)| RegisterGroup { parent, weight }),
        8 => at.clone().prop_map(Wake),
        4 => at.clone().prop_map(Sleep),
        2 => at.clone().prop_map(Park),
        2 => at.clone().prop_map(Unpark),
        1 => at.clone().prop_map(ParkGroup),
        2 => at.clone().prop_map(UnparkGroup),
        12 => cost.clone().prop_map(|cost| Serve { cost }),
        3 => (at.clone(), cost.clone(), cost)
            .prop_map(|(key, charged, actual)| Settle { key, charged, actual }),
        2 => (at.clone(), weight.clone()).prop_map(|(key, weight)| SetWeight { key, weight }),
        1 => (at.clone(), weight.clone()).prop_map(|(group, weight)| SetGroupWeight { group, weight }),
        1 => (at.clone(), weight).prop_map(|(key, weight)| Enclose { key, weight }),
        1 => (at.clone(), at.clone()).prop_map(|(key, to)| Transfer { key, to }),
        2 => at.clone().prop_map(Forget),
        1 => at.clone().prop_map(Disband),
        1 => at.prop_map(Readmit),
    ];
    prop::collection::vec(step, 1..250)
}

/// An engine and what a simple model knows of it.
#[derive(Debug)]
struct Model {
    engine: Drr,
    keys: Vec<(Key, Option<Group>)>,
    groups: Vec<(Group, Option<Group>)>,
    standings: Vec<Standing>,
    has_work: BTreeSet<Key>,
    parked: BTreeSet<crate::Node>,
}

impl Model {
    fn play(&mut self, step: &Step) {
        let weight = |value: u64| Weight::new(value).unwrap();
        let pick = |length: usize, at: usize| (length > 0).then(|| at % length);
        match *step {
            Step::Register {
                parent,
                weight: value,
            } => {
                // Some are put at the top.
                let parent = pick(self.groups.len() + 1, parent).and_then(|at| self.groups.get(at));
                let key = match parent {
                    Some(&(group, _)) => self.engine.register_in(group, weight(value)).unwrap(),
                    None => self.engine.register(weight(value)),
                };
                self.keys.push((key, parent.map(|&(group, _)| group)));
            }
            Step::RegisterGroup {
                parent,
                weight: value,
            } => {
                let parent = pick(self.groups.len() + 1, parent).and_then(|at| self.groups.get(at));
                let parent = parent.map(|&(group, _)| group);
                let group = match parent {
                    Some(parent) => self
                        .engine
                        .register_group_in(parent, weight(value))
                        .unwrap(),
                    None => self.engine.register_group(weight(value)),
                };
                self.groups.push((group, parent));
            }
            Step::Wake(at) => {
                if let Some(at) = pick(self.keys.len(), at) {
                    self.engine.wake(self.keys[at].0).unwrap();
                    self.has_work.insert(self.keys[at].0);
                }
            }
            Step::Sleep(at) => {
                if let Some(at) = pick(self.keys.len(), at) {
                    self.engine.sleep(self.keys[at].0).unwrap();
                    self.has_work.remove(&self.keys[at].0);
                }
            }
            Step::Park(at) => {
                if let Some(at) = pick(self.keys.len(), at) {
                    self.engine.park(self.keys[at].0).unwrap();
                    self.parked.insert(self.keys[at].0.into());
                }
            }
            Step::Unpark(at) => {
                if let Some(at) = pick(self.keys.len(), at) {
                    self.engine.unpark(self.keys[at].0).unwrap();
                    self.parked.remove(&self.keys[at].0.into());
                }
            }
            Step::ParkGroup(at) => {
                if let Some(at) = pick(self.groups.len(), at) {
                    self.engine.park(self.groups[at].0).unwrap();
                    self.parked.insert(self.groups[at].0.into());
                }
            }
            Step::UnparkGroup(at) => {
                if let Some(at) = pick(self.groups.len(), at) {
                    self.engine.unpark(self.groups[at].0).unwrap();
                    self.parked.remove(&self.groups[at].0.into());
                }
            }
            Step::Serve { cost } => {
                if let Some(key) = self.engine.next_key() {
                    assert!(self.may_run(key), "{key:?} is next but may not run");
                    self.engine.charge(key, Cost::new(cost)).unwrap();
                } else {
                    assert!(
                        !self.keys.iter().any(|&(key, _)| self.may_run(key)),
                        "a key may run"
                    );
                }
            }
            Step::Settle {
                key,
                charged,
                actual,
            } => {
                if let Some(at) = pick(self.keys.len(), key) {
                    let (charged, actual) = (Cost::new(charged), Cost::new(actual));
                    self.engine
                        .settle(self.keys[at].0, charged, actual)
                        .unwrap();
                }
            }
            Step::SetWeight { key, weight: value } => {
                if let Some(at) = pick(self.keys.len(), key) {
                    self.engine
                        .set_weight(self.keys[at].0, weight(value))
                        .unwrap();
                }
            }
            Step::SetGroupWeight {
                group,
                weight: value,
            } => {
                if let Some(at) = pick(self.groups.len(), group) {
                    self.engine
                        .set_weight(self.groups[at].0, weight(value))
                        .unwrap();
                }
            }
            Step::Forget(at) => {
                if let Some(at) = pick(self.keys.len(), at) {
                    let (key, _) = self.keys.swap_remove(at);
                    self.standings.extend(self.engine.forget(key).unwrap());
                    self.has_work.remove(&key);
                    self.parked.remove(&key.into());
                }
            }
            Step::Disband(at) => {
                if let Some(at) = pick(self.groups.len(), at) {
                    let group = self.groups[at].0;
                    let mut parents = self
                        .keys
                        .iter()
                        .map(|key| key.1)
                        .chain(self.groups.iter().map(|group| group.1));
                    let has_children = parents.any(|parent| parent == Some(group));
                    let disbanded = self.engine.disband(group);
                    assert_eq!(disbanded.is_err(), has_children);
                    if !has_children {
                        self.groups.swap_remove(at);
                        self.parked.remove(&group.into());
                    }
                }
            }
            Step::Enclose { key, weight: value } => {
                if let Some(at) = pick(self.keys.len(), key) {
                    let (key, parent) = self.keys[at];
                    let debt = self.engine.debt(key).unwrap();
                    let is_serving = self.engine.state(key) == Ok(State::Serving);
                    let weight = weight(value);
                    let is_same = self.engine.weight(key) == Ok(weight);
                    let group = self.engine.enclose(key, weight).unwrap();
                    if is_same && !is_serving {
                        assert_eq!(self.engine.debt(group), Ok(debt));
                    }
                    assert_eq!(self.engine.debt(key), Ok(0));
                    self.groups.push((group, parent));
                    self.keys[at].1 = Some(group);
                }
            }
            Step::Transfer { key, to } => {
                if let Some(at) = pick(self.keys.len(), key) {
                    let to = pick(self.groups.len() + 1, to).and_then(|at| self.groups.get(at));
                    let to = to.map(|&(group, _)| group);
                    self.engine.transfer(self.keys[at].0, to).unwrap();
                    self.keys[at].1 = to;
                }
            }
            Step::Readmit(at) => {
                if let Some(at) = pick(self.standings.len(), at) {
                    let standing = self.standings.swap_remove(at);
                    let home_is_there = standing
                        .home
                        .is_none_or(|home| self.groups.iter().any(|g| g.0 == home));
                    let key = self.engine.readmit(standing, Weight::ONE);
                    assert_eq!(key.is_ok(), home_is_there);
                    self.keys.extend(key.ok().map(|key| (key, standing.home)));
                }
            }
        }
    }

    fn may_run(&self, key: Key) -> bool {
        let (_, mut parent) = *self
            .keys
            .iter()
            .find(|(other, _)| *other == key)
            .expect("a live key");
        if !self.has_work.contains(&key) || self.parked.contains(&key.into()) {
            return false;
        }
        while let Some(group) = parent {
            if self.parked.contains(&group.into()) {
                return false;
            }
            parent = self
                .groups
                .iter()
                .find(|(other, _)| *other == group)
                .expect("a live group")
                .1;
        }
        true
    }

    fn audit(&self) {
        let engine = &self.engine;
        assert_eq!(engine.len(), self.keys.len() + self.groups.len());
        engine
            .calendars
            .top
            .audit(&engine.slots, &self.children(None));
        for &(key, parent) in &self.keys {
            assert_eq!(engine.parent(key), Ok(parent));
        }
        for &(group, parent) in &self.groups {
            assert_eq!(engine.parent(group), Ok(parent));
            let calendar = engine.kin[group.index()].calendar;
            let children = self.children(Some(group));
            let calendar = engine.calendars.view(calendar, &engine.slots);
            calendar.audit(&engine.slots, &children);
            let slot = &engine.slots[group.index()];
            assert_eq!(slot.has(Flag::HasWork), calendar.runnable() > 0);
            assert_eq!(calendar.children as usize, children.len());
        }
        let nodes = self
            .keys
            .iter()
            .map(|key| key.0.index())
            .chain(self.groups.iter().map(|group| group.0.index()));
        for index in nodes {
            let slot = &engine.slots[index];
            let in_ring = slot.has(Flag::HasWork) && !slot.has(Flag::Parked);
            assert_eq!(in_ring, slot.place != Place::AWAY, "slot {index}: {slot:?}");
        }
    }

    fn children(&self, parent: Option<Group>) -> Vec<u32> {
        let keys = self
            .keys
            .iter()
            .filter(|key| key.1 == parent)
            .map(|key| key.0.index() as u32);
        let groups = self
            .groups
            .iter()
            .filter(|group| group.1 == parent)
            .map(|group| group.0.index() as u32);
        keys.chain(groups).collect()
    }
}

/// Checks that `list` holds what `expected` says, linked both ways.
pub(crate) fn members(list: &crate::slot::List, slots: &[crate::slot::Slot]) -> Vec<u32> {
    let mut found = Vec::new();
    let mut at = list.head();
    while at != NIL {
        assert!(found.len() < slots.len(), "a list without an end");
        if let Some(&previous) = found.last() {
            assert_eq!(slots[at as usize].prev, previous, "links fit both ways");
        }
        found.push(at);
        at = if at == list.tail() {
            NIL
        } else {
            slots[at as usize].next
        };
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_every_invariant(quantum in prop_oneof![1u64..2000, any::<u64>()], steps in steps()) {
        let quantum = Quantum::new(quantum.max(1)).unwrap();
        let mut model = Model {
            engine: Drr::new(quantum),
            keys: Vec::new(),
            groups: Vec::new(),
            standings: Vec::new(),
            has_work: BTreeSet::new(),
            parked: BTreeSet::new(),
        };
        for step in &steps {
            model.play(step);
            model.audit();
        }
    }

    #[test]
    fn what_a_forecast_says_is_what_then_happens(
        steps in steps(),
        ahead in prop::collection::vec((prop_oneof![1u64..2000, any::<u64>()], 0u8..4), 1..100),
    ) {
        let mut model = Model {
            engine: Drr::new(Quantum::new(1000).unwrap()),
            keys: Vec::new(),
            groups: Vec::new(),
            standings: Vec::new(),
            has_work: BTreeSet::new(),
            parked: BTreeSet::new(),
        };
        for step in &steps {
            model.play(step);
        }
        let foreseen = std::format!("{:?}", model.engine);
        let mut engine = model.engine.clone();
        let mut forecast = model.engine.forecast();
        for (cost, chance) in ahead {
            let next = forecast.next_key();
            prop_assert_eq!(next, engine.next_key());
            prop_assert_eq!(forecast.work(), engine.work());
            let Some(key) = next else { break };
            forecast.charge(key, Cost::new(cost)).unwrap();
            engine.charge(key, Cost::new(cost)).unwrap();
            if chance == 0 {
                let tired = model.keys[cost as usize % model.keys.len()].0;
                for key in [key, tired] {
                    forecast.sleep(key).unwrap();
                    engine.sleep(key).unwrap();
                }
            }
        }
        prop_assert_eq!(foreseen, std::format!("{:?}", model.engine));
    }
}
