//! Lanes whose names nest: which group they are in, what a group gets, and when it is forgotten.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, DefaultHasher};

use allocation_counter::measure;
use drr::{Cost, Costs, Keyed, Nesting, Quantum, Weight};
use proptest::prelude::*;

type Lanes = Keyed<String, u64, BuildHasherDefault<DefaultHasher>, u32>;

/// Names nest at this character.
struct At(char);

impl Nesting<str> for At {
    type Name = String;
    type Value = u32;

    fn parent<'n>(&'n self, name: &'n str) -> Option<&'n str> {
        name.rsplit_once(self.0).map(|(parent, _)| parent)
    }

    fn found(&self, name: &str, own: Option<Weight>) -> (String, u32, Weight) {
        (name.to_owned(), 0, own.unwrap_or(Weight::ONE))
    }
}

fn lanes() -> Lanes {
    Keyed::new(Quantum::new(1).unwrap(), BuildHasherDefault::new())
}

fn add(lanes: &mut Lanes, name: &str) -> u32 {
    let new = || (name.to_owned(), 0);
    lanes.find_or_insert_within(name, Weight::ONE, &At('/'), new)
}

/// Adds lanes with endless work.
fn awake<const N: usize>(lanes: &mut Lanes, names: [&str; N]) -> [u32; N] {
    names.map(|name| {
        let lane = add(lanes, name);
        lanes.wake(lane);
        lane
    })
}

/// Serves so many times, and returns how often a lane was served whose name begins with this.
fn served(lanes: &mut Lanes, times: usize, prefix: &str) -> usize {
    let mut count = 0;
    for _ in 0..times {
        let lane = lanes.next_lane().unwrap();
        lanes.charge(lane, Cost::ONE);
        count += usize::from(lanes.name(lane).starts_with(prefix));
    }
    count
}

fn names_of_groups(lanes: &Lanes) -> BTreeSet<String> {
    let groups = lanes.groups().iter();
    groups.map(|(_, name, _)| name.clone()).collect()
}

#[test]
fn a_lane_is_in_the_group_that_its_name_says_and_groups_have_numbers_names_and_values() {
    let mut lanes = lanes();
    let [alice, deep, globex] = awake(&mut lanes, ["acme/alice", "acme/team/bob", "globex"]);
    assert_eq!((lanes.len(), lanes.groups().len()), (3, 2));
    let (acme, team) = (
        lanes.groups().find("acme").unwrap(),
        lanes.groups().find("acme/team").unwrap(),
    );
    assert_eq!(lanes.group_of(alice), Some(acme));
    assert_eq!(lanes.group_of(deep), Some(team));
    assert_eq!(lanes.group_of(globex), None);
    assert_eq!(lanes.group_around(team), Some(acme));
    assert_eq!(lanes.group_around(acme), None);
    *lanes.group_mut(team) = 7;
    assert_eq!((*lanes.group(team), lanes.groups().get(99)), (7, None));
    assert_eq!(lanes.groups().find("globex"), None);
    let engine = lanes.engine();
    assert_eq!(engine.members(lanes.groups().handle(acme)), Ok(2));
    assert_eq!(
        engine.runnable_weight_in(lanes.groups().handle(acme)),
        Ok(2)
    );
}

#[test]
fn a_group_shares_as_one_and_its_members_share_what_it_gets() {
    let mut lanes = lanes();
    awake(&mut lanes, ["globex", "acme/alice", "acme/bob", "acme/eve"]);
    assert!((299..=301).contains(&served(&mut lanes.clone(), 600, "acme")));
    assert!((99..=101).contains(&served(&mut lanes.clone(), 600, "acme/eve")));
    let acme = lanes.groups().find("acme").unwrap();
    lanes.set_group_weight(acme, Weight::new(3).unwrap());
    assert!((449..=451).contains(&served(&mut lanes, 600, "acme")));
    lanes.park_group(acme);
    assert_eq!(served(&mut lanes, 100, "acme"), 0);
    lanes.unpark_group(acme);
    assert!(served(&mut lanes, 100, "acme") > 70);
}

#[test]
fn a_lane_that_bears_the_name_of_a_group_is_a_member_of_it_and_the_two_have_one_share() {
    let mut lanes = lanes();
    let [acme, _] = awake(&mut lanes, ["acme", "globex"]);
    lanes.set_weight(acme, Weight::new(3).unwrap());
    assert!((299..=301).contains(&served(&mut lanes, 400, "acme")));
    // The key was there first. Its group takes over its weight.
    let [alice] = awake(&mut lanes, ["acme/alice"]);
    let group = lanes.groups().find("acme").unwrap();
    assert_eq!(
        (lanes.group_of(acme), lanes.group_of(alice)),
        (Some(group), Some(group))
    );
    assert_eq!(lanes.weight(acme).value(), 3);
    assert!((298..=302).contains(&served(&mut lanes.clone(), 400, "acme")));
    assert!((148..=152).contains(&served(&mut lanes.clone(), 400, "acme/alice")));
    lanes.set_weight(acme, Weight::ONE);
    assert!((198..=202).contains(&served(&mut lanes.clone(), 400, "acme")));
    // The group is there first.
    let [initech] = awake(&mut lanes, ["initech/a"]);
    let new = || ("initech".to_owned(), 0);
    let own = lanes.find_or_insert_within("initech", Weight::new(2).unwrap(), &At('/'), new);
    assert_eq!(lanes.group_of(own), lanes.group_of(initech));
    lanes.wake(own);
    served(&mut lanes, 10, "");
    assert!((199..=201).contains(&served(&mut lanes.clone(), 400, "initech")));
    assert!((99..=101).contains(&served(&mut lanes, 400, "initech/a")));
}

#[test]
fn members_that_come_under_new_names_cannot_shed_the_debt_of_their_group() {
    let mut lanes = lanes().keep_idle(0);
    awake(&mut lanes, ["globex"]);
    let mut acme = 0;
    for number in 0..1000 {
        let [member] = awake(&mut lanes, [&format!("acme/{number}")]);
        for _ in 0..4 {
            acme += served(&mut lanes, 1, "acme");
        }
        lanes.sleep(member);
        lanes.set_idle(member);
    }
    assert!((1998..=2002).contains(&acme), "{acme} of 4000");
    assert!(lanes.len() < 10, "{} lanes are kept", lanes.len());
}

#[test]
fn an_empty_group_is_forgotten_when_it_owes_nothing() {
    let mut lanes = lanes();
    let [globex] = awake(&mut lanes, ["globex"]);
    let [member] = awake(&mut lanes, ["acme/team/alice"]);
    while lanes.next_lane() != Some(member) {
        lanes.charge(globex, Cost::ONE);
    }
    lanes.charge(member, Cost::new(50));
    lanes.sleep(member);
    lanes.forget(member);
    assert_eq!(lanes.groups().len(), 2, "it owes fifty rounds");
    for _ in 0..49 {
        assert_eq!(lanes.next_lane(), Some(globex));
        lanes.charge(globex, Cost::ONE);
        lanes.tidy();
    }
    assert_eq!(lanes.groups().len(), 2);
    for _ in 0..10 {
        assert_eq!(lanes.next_lane(), Some(globex));
        lanes.charge(globex, Cost::ONE);
        lanes.tidy();
    }
    assert_eq!(lanes.groups().len(), 0);
    assert_eq!(lanes.engine().len(), 1);
}

#[test]
fn another_nesting_puts_all_lanes_into_other_groups() {
    let mut lanes = lanes();
    awake(&mut lanes, ["a/b", "a/b:c", "a/d", "e:f/g", "a:b", "a"]);
    assert_eq!(
        names_of_groups(&lanes),
        ["a", "e:f"].map(str::to_owned).into()
    );
    lanes.renest(&At(':'));
    assert_eq!(
        names_of_groups(&lanes),
        ["a", "a/b", "e"].map(str::to_owned).into()
    );
    let own = lanes.find("a/b").unwrap();
    assert_eq!(lanes.group_of(own), lanes.groups().find("a/b"));
    assert_eq!(lanes.group_of(lanes.find("a/d").unwrap()), None);
    // a, a/b, a/d and e share alike.
    assert!((99..=101).contains(&served(&mut lanes.clone(), 400, "e")));
    assert!((99..=101).contains(&served(&mut lanes.clone(), 400, "a/b")));
    lanes.renest(&At('\0'));
    assert!(lanes.groups().is_empty());
    assert!((99..=101).contains(&served(&mut lanes, 600, "a/d")));
}

#[test]
fn the_bound_adds_up_along_the_path() {
    let mut lanes = lanes();
    let [key, _, _, _] = awake(&mut lanes, ["a/b/c/d", "a/b/c/x", "a/b/y", "z"]);
    for _ in 0..20 {
        let lane = lanes.next_lane().unwrap();
        lanes.charge(lane, Cost::ONE);
    }
    let bound = |lanes: &Lanes| {
        let engine = lanes.engine();
        let known = engine.bound_on_path(lanes.key(key), Cost::ONE, Costs::Equal);
        known.unwrap()
    };
    for _ in 0..100 {
        let bound = bound(&lanes);
        let mut others = 0;
        let mut ahead = lanes.clone();
        while let Some(lane) = ahead.next_lane().filter(|&lane| lane != key) {
            ahead.charge(lane, Cost::ONE);
            others += 1;
        }
        assert!(others <= bound, "{others} before it, at most {bound}");
        assert!(bound <= 150, "{bound} says little");
        let lane = lanes.next_lane().unwrap();
        lanes.charge(lane, Cost::ONE);
    }
}

#[test]
fn the_bounds_on_a_path_begin_with_that_of_the_key_and_end_with_that_of_the_path() {
    let mut lanes = lanes();
    let [key, _, _, _] = awake(&mut lanes, ["a/b/c/d", "a/b/c/x", "a/b/y", "z"]);
    for _ in 0..50 {
        let engine = lanes.engine();
        let known = engine.bounds_on_path(lanes.key(key), Cost::ONE, Costs::Equal);
        let bounds: Vec<u64> = known.unwrap().collect();
        assert_eq!(bounds.len(), 4);
        assert_eq!(bounds[0], lanes.bound(key, Cost::ONE, Costs::Equal));
        let whole = engine.bound_on_path(lanes.key(key), Cost::ONE, Costs::Equal);
        assert_eq!(Ok(bounds[3]), whole);
        assert!(bounds.is_sorted(), "{bounds:?}");
        assert_eq!(bounds[1], bounds[2], "a/b has no siblings");
        let lane = lanes.next_lane().unwrap();
        lanes.charge(lane, Cost::ONE);
    }
}

#[test]
fn the_bound_of_a_group_is_on_the_next_service_of_any_member() {
    let mut lanes = lanes();
    let mut names: Vec<String> = (0..9).map(|number| format!("flat{number}")).collect();
    names.extend(["a/b/c", "a/b/d", "a/e"].map(String::from));
    for name in &names {
        awake(&mut lanes, [name.as_str()]);
    }
    let group = lanes.groups().find("a/b").unwrap();
    for _ in 0..100 {
        let handle = lanes.groups().handle(group);
        let known = lanes
            .engine()
            .bounds_on_path(handle, Cost::ONE, Costs::Equal);
        let bound = known.unwrap().last().unwrap();
        let mut ahead = lanes.clone();
        let mut others = 0;
        while let Some(lane) = ahead.next_lane() {
            if ahead.group_of(lane) == Some(group) {
                break;
            }
            ahead.charge(lane, Cost::ONE);
            others += 1;
        }
        assert!(others <= bound, "{others} before it, at most {bound}");
        let lane = lanes.next_lane().unwrap();
        lanes.charge(lane, Cost::ONE);
    }
}

#[test]
fn a_group_of_one_takes_little_memory_and_a_dispatch_in_groups_allocates_nothing() {
    const COUNT: usize = 10_000;
    let fill = |depth: usize| {
        let mut lanes = lanes();
        let used = measure(|| {
            for number in 0..COUNT {
                let name = match depth {
                    1 => format!("{number:06}"),
                    _ => format!("{number:06}/a"),
                };
                let [lane] = awake(&mut lanes, [&name]);
                lanes.charge(lane, Cost::ONE);
            }
        });
        (lanes, used.bytes_max as usize / COUNT)
    };
    let (_, flat) = fill(1);
    let (mut lanes, grouped) = fill(2);
    println!("{flat} bytes per flat key, {grouped} per key in a group of its own");
    assert!(grouped - flat < 700, "{grouped} and {flat}");
    served(&mut lanes, 3 * COUNT, "");
    let used = measure(|| {
        served(&mut lanes, 3 * COUNT, "");
    });
    assert_eq!(used.count_total, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn groups_are_those_of_the_names_however_they_come_and_go(
        steps in prop::collection::vec((0u8..4, "[ab](/[ab]){0,3}", 1u64..20), 1..200),
    ) {
        let mut lanes = lanes();
        let mut names = BTreeSet::new();
        for (step, name, amount) in steps {
            match (step, lanes.find(&*name)) {
                (0 | 1, _) => {
                    awake(&mut lanes, [&name]);
                    names.insert(name);
                }
                (2, Some(lane)) => {
                    lanes.sleep(lane);
                    lanes.forget(lane);
                    names.remove(&name);
                }
                _ => {
                    for _ in 0..amount {
                        let Some(lane) = lanes.next_lane() else { break };
                        lanes.charge(lane, Cost::new(amount));
                    }
                }
            }
            let parents = |name: &str| {
                let all = name.match_indices('/').map(|(at, _)| name[..at].to_owned());
                all.collect::<Vec<_>>()
            };
            let expected: BTreeSet<String> = names.iter().flat_map(|name| parents(name)).collect();
            let found = names_of_groups(&lanes);
            prop_assert!(found.is_superset(&expected), "{:?} {:?}", found, expected);
            for name in found.difference(&expected) {
                let group = lanes.groups().handle(lanes.groups().find(&**name).unwrap());
                let members = lanes.engine().members(group).unwrap();
                let is_owing = lanes.engine().is_settled(group) == Ok(false);
                prop_assert!(members > 0 || is_owing || lanes.groups().len() > expected.len());
            }
            for name in &names {
                let lane = lanes.find(&**name).unwrap();
                let home = lanes.groups().find(&**name).or_else(|| {
                    let (parent, _) = name.rsplit_once('/')?;
                    lanes.groups().find(parent)
                });
                prop_assert_eq!(lanes.group_of(lane), home);
            }
        }
    }
}
