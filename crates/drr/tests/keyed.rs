//! Lanes by name, checked against a model: which are found, which are kept and which are forgotten.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use allocation_counter::measure;
use drr::{Cost, Keyed, Quantum, State, Weight};
use proptest::prelude::*;

type Lanes = Keyed<String, u64, BuildHasherDefault<DefaultHasher>>;

fn lanes() -> Lanes {
    Keyed::new(Quantum::new(1).unwrap(), BuildHasherDefault::new())
}

fn add(lanes: &mut Lanes, name: &str) -> u32 {
    lanes.find_or_insert_with(name, Weight::ONE, || (name.to_owned(), 0))
}

/// Gives a lane one piece of work, and serves until it was served.
fn serve_once(lanes: &mut Lanes, lane: u32, cost: u64) {
    lanes.set_busy(lane);
    lanes.wake(lane);
    while let Some(next) = lanes.next_lane() {
        lanes.charge(next, Cost::new(cost));
        if next == lane {
            break;
        }
    }
    lanes.sleep(lane);
    lanes.set_idle(lane);
}

#[test]
fn a_lane_is_found_by_name_and_by_number_and_has_a_value() {
    let mut lanes = lanes();
    let (acme, bolt) = (add(&mut lanes, "acme"), add(&mut lanes, "bolt"));
    lanes[acme] = 7;
    assert_eq!(
        (lanes.find("acme"), lanes.find("bolt"), lanes.find("corp")),
        (Some(acme), Some(bolt), None)
    );
    assert_eq!(add(&mut lanes, "acme"), acme);
    assert_eq!((lanes[acme], lanes[bolt]), (7, 0));
    assert_eq!(lanes.name(bolt), "bolt");
    assert_eq!((lanes.get(acme), lanes.get(99)), (Some(&7), None));
    assert_eq!((lanes.len(), lanes.busy(), lanes.idle()), (2, 2, 0));
    assert_eq!(lanes.key(bolt).index(), bolt as usize);
    assert_eq!(format!("{lanes:?}"), r#"{"acme": 7, "bolt": 0}"#);
}

#[test]
fn verbs_reach_the_engine() {
    let mut lanes = lanes();
    let (acme, bolt) = (add(&mut lanes, "acme"), add(&mut lanes, "bolt"));
    lanes.wake(acme);
    lanes.wake(bolt);
    lanes.park(acme);
    assert_eq!(lanes.state(acme), State::Parked);
    assert_eq!(lanes.next_lane(), Some(bolt));
    lanes.charge(bolt, Cost::new(10));
    assert!(lanes.debt(bolt) > 0);
    lanes.settle(bolt, Cost::new(10), Cost::ONE);
    assert_eq!(lanes.debt(bolt), 0);
    lanes.unpark(acme);
    assert_eq!(lanes.state(acme), State::Fresh);
    lanes.set_weight(acme, Weight::new(3).unwrap());
    assert_eq!(lanes.weight(acme).value(), 3);
    assert_eq!(lanes.engine().runnable_weight(), 4);
    lanes.sleep(acme);
    assert_eq!(lanes.state(acme), State::Idle);
}

#[test]
fn names_that_come_once_leave_nothing_behind() {
    let mut lanes = lanes();
    for name in 0..10_000 {
        let lane = add(&mut lanes, &name.to_string());
        serve_once(&mut lanes, lane, 1);
        assert!(lanes.len() <= 8, "{} lanes after {name}", lanes.len());
    }
}

#[test]
fn idle_lanes_are_kept_up_to_a_number() {
    let mut lanes = lanes().keep_idle(100);
    for name in 0..10_000 {
        let lane = add(&mut lanes, &name.to_string());
        serve_once(&mut lanes, lane, 1);
        assert!(lanes.len() > name.min(100), "{} lanes", lanes.len());
        assert!(lanes.len() <= 108, "{} lanes", lanes.len());
    }
}

#[test]
fn a_lane_that_is_used_again_and_again_outlives_those_that_come_once() {
    let mut lanes = lanes().keep_idle(100);
    let regular = add(&mut lanes, "regular");
    lanes[regular] = 7;
    for name in 0..10_000 {
        if name % 40 == 0 {
            serve_once(&mut lanes, regular, 1);
        }
        let lane = add(&mut lanes, &name.to_string());
        serve_once(&mut lanes, lane, 1);
        assert_eq!(lanes.find("regular"), Some(regular));
    }
    assert_eq!(lanes[regular], 7);
}

#[test]
fn a_debt_is_remembered_until_there_are_too_many() {
    let mut lanes = lanes().keep_debts(100);
    let rich = add(&mut lanes, "someone who always has work");
    lanes.wake(rich);
    for name in 0..100 {
        let lane = add(&mut lanes, &name.to_string());
        serve_once(&mut lanes, lane, 1 << 40);
    }
    assert_eq!(lanes.idle(), 100);
    for name in 100..200 {
        let lane = add(&mut lanes, &name.to_string());
        serve_once(&mut lanes, lane, 1 << 40);
    }
    assert!((100..=104).contains(&lanes.idle()), "{}", lanes.idle());
}

#[test]
fn the_lane_that_has_been_idle_for_longest_makes_room() {
    let mut lanes = lanes();
    let numbers = ["a", "b", "c"].map(|name| add(&mut lanes, name));
    assert_eq!(lanes.forget_oldest(), None);
    for lane in [numbers[1], numbers[2], numbers[0]] {
        lanes.set_idle(lane);
    }
    lanes.set_busy(numbers[1]);
    assert_eq!(lanes.forget_oldest(), Some(("c".to_owned(), 0)));
    assert_eq!(lanes.forget_oldest(), Some(("a".to_owned(), 0)));
    assert_eq!(lanes.forget_oldest(), None);
    assert_eq!((lanes.len(), lanes.find("b")), (1, Some(numbers[1])));
}

#[test]
#[should_panic(expected = "there is no lane 0")]
fn a_number_without_a_lane_panics() {
    let mut lanes = lanes();
    let lane = add(&mut lanes, "gone");
    lanes.forget(lane);
    lanes.wake(lane);
}

#[test]
fn clearing_gives_everything_back() {
    let mut lanes = lanes();
    for name in 0..1000 {
        add(&mut lanes, &name.to_string());
    }
    assert_eq!(lanes.extent(), 1000);
    lanes.clear();
    assert_eq!((lanes.len(), lanes.busy(), lanes.extent()), (0, 0, 0));
    assert_eq!(lanes.next_lane(), None);
    let lane = add(&mut lanes, "7");
    assert_eq!((lane, lanes.find("7")), (0, Some(0)));
}

#[test]
fn only_insertion_allocates() {
    let mut lanes = lanes();
    let numbers: Vec<u32> = (0..1000)
        .map(|name| add(&mut lanes, &name.to_string()))
        .collect();
    let used = measure(|| {
        for round in 0..10 {
            for &lane in &numbers {
                serve_once(&mut lanes, lane, round);
                assert!(lanes.find("7").is_some());
            }
        }
    });
    assert_eq!(used.count_total, 0);
    let forgetting = measure(|| (0..1000).for_each(|_| lanes.tidy()));
    assert!(lanes.len() < 10);
    assert!(forgetting.count_total <= 3, "only to shrink a table");
}

/// One step of a random history. Names are few, so that they come back.
#[derive(Clone, Debug)]
enum Step {
    Insert { name: u8 },
    Serve { name: u8, cost: u64 },
    Hold { name: u8 },
    Release { name: u8 },
    Tidy,
    ForgetOldest,
    Forget { name: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0_u8..24;
    prop_oneof![
        6 => name.clone().prop_map(|name| Step::Insert { name }),
        6 => (name.clone(), 0_u64..200).prop_map(|(name, cost)| Step::Serve { name, cost }),
        3 => name.clone().prop_map(|name| Step::Hold { name }),
        3 => name.clone().prop_map(|name| Step::Release { name }),
        2 => Just(Step::Tidy),
        1 => Just(Step::ForgetOldest),
        1 => name.prop_map(|name| Step::Forget { name }),
    ]
}

/// A lane in the model.
#[derive(Clone, Copy, Debug)]
struct Known {
    lane: u32,
    value: u64,
    is_busy: bool,
}

fn play(mut lanes: Lanes, steps: Vec<Step>) {
    let mut model: HashMap<String, Known> = HashMap::new();
    let mut next_value = 0;
    for step in steps {
        // Which idle lanes the step may forget, and which of them without clearing a debt.
        let settled: Vec<String> = model
            .iter()
            .filter(|(_, known)| !known.is_busy && lanes.is_settled(known.lane))
            .map(|(name, _)| name.clone())
            .collect();
        let before = model.clone();
        let (mut must_stay, mut may_clear_debt) = (false, false);
        match step {
            Step::Insert { name } => {
                let name = name.to_string();
                let lane = lanes.find_or_insert_with(&name[..], Weight::ONE, || {
                    next_value += 1;
                    (name.clone(), next_value)
                });
                model.entry(name).or_insert(Known {
                    lane,
                    value: next_value,
                    is_busy: true,
                });
            }
            Step::Serve { name, cost } => {
                must_stay = true;
                if let Some(known) = model.get_mut(&name.to_string()) {
                    serve_once(&mut lanes, known.lane, cost);
                    known.is_busy = false;
                }
            }
            Step::Hold { name } => {
                must_stay = true;
                if let Some(known) = model.get_mut(&name.to_string()) {
                    lanes.set_busy(known.lane);
                    known.is_busy = true;
                }
            }
            Step::Release { name } => {
                must_stay = true;
                if let Some(known) = model.get_mut(&name.to_string()) {
                    lanes.set_idle(known.lane);
                    known.is_busy = false;
                }
            }
            Step::Tidy => lanes.tidy(),
            Step::ForgetOldest => {
                may_clear_debt = true;
                let has_idle = model.values().any(|known| !known.is_busy);
                assert_eq!(lanes.forget_oldest().is_some(), has_idle);
            }
            Step::Forget { name } => {
                must_stay = true;
                let name = name.to_string();
                if let Some(known) = model.remove(&name) {
                    assert_eq!(lanes.forget(known.lane), (name, known.value));
                }
            }
        }
        model.retain(|name, known| {
            if lanes.find(name.as_str()).is_some() {
                return true;
            }
            assert!(
                !must_stay,
                "{name} was forgotten by a step that forgets none"
            );
            assert!(!known.is_busy, "{name} was forgotten while it was busy");
            assert!(
                may_clear_debt || settled.contains(name),
                "{name} was forgotten with its debt, of {before:?}"
            );
            false
        });
        agree(&lanes, &model);
    }
}

/// Panics if the lanes are not those of the model.
fn agree(lanes: &Lanes, model: &HashMap<String, Known>) {
    assert_eq!(lanes.len(), model.len());
    let busy = model.values().filter(|known| known.is_busy).count();
    assert_eq!((lanes.busy(), lanes.idle()), (busy, model.len() - busy));
    for (lane, name, &value) in lanes.iter() {
        let known = model[name];
        assert_eq!((known.lane, known.value), (lane, value), "{name}");
        assert_eq!(lanes.find(name.as_str()), Some(lane));
        assert_eq!(lanes.is_idle(lane), !known.is_busy, "{name}");
    }
}

proptest! {
    #[test]
    fn lanes_are_those_of_the_model(
        steps in prop::collection::vec(step(), 1..200),
        kept in 0_usize..8,
    ) {
        play(lanes().keep_idle(kept), steps);
    }
}
