//! Groups, to any depth.

use super::*;
use drr::Group;

/// Returns the share of each key over many dispatches.
fn shares<const N: usize>(engine: &mut Drr, keys: [Key; N]) -> [f64; N] {
    let order = serve(engine, 12_000, 10);
    keys.map(|key| order.iter().filter(|&&other| other == key).count() as f64 / 12_000.0)
}

fn awake_in(engine: &mut Drr, group: Group, value: u64) -> Key {
    let key = engine.register_in(group, weight(value)).unwrap();
    engine.wake(key).unwrap();
    key
}

fn assert_near<const N: usize>(got: [f64; N], ideal: [f64; N]) {
    for (got, ideal) in got.iter().zip(ideal) {
        assert!((got - ideal).abs() < 0.003, "got {got}, ideal {ideal}");
    }
}

#[test]
fn weights_act_at_every_level_of_a_deep_tree() {
    let mut engine = engine(10);
    // org (3) → team (2) → [user 1, user 4]; org (3) → user (1); flat key (1)
    let org = engine.register_group(weight(3));
    let team = engine.register_group_in(org, weight(2)).unwrap();
    let keys = [
        awake_in(&mut engine, team, 1),
        awake_in(&mut engine, team, 4),
        awake_in(&mut engine, org, 1),
        awake(&mut engine, 1),
    ];
    let ideal = [
        0.75 * 2.0 / 3.0 / 5.0,
        0.75 * 2.0 / 3.0 * 0.8,
        0.75 / 3.0,
        0.25,
    ];
    assert_near(shares(&mut engine, keys), ideal);
}

#[test]
fn a_chain_of_a_hundred_groups_works_like_one() {
    let mut engine = engine(10);
    let mut group = engine.register_group(Weight::ONE);
    for _ in 0..100 {
        group = engine.register_group_in(group, weight(7)).unwrap();
    }
    let keys = [awake_in(&mut engine, group, 1), awake(&mut engine, 1)];
    assert_near(shares(&mut engine, keys), [0.5, 0.5]);
}

#[test]
fn parking_a_group_parks_all_that_is_in_it() {
    let mut engine = engine(10);
    let org = engine.register_group(Weight::ONE);
    let team = engine.register_group_in(org, Weight::ONE).unwrap();
    let inside = awake_in(&mut engine, team, 1);
    let outside = awake(&mut engine, 1);
    engine.park(org).unwrap();
    assert_eq!(engine.state(org), Ok(State::Parked));
    assert_eq!(serve(&mut engine, 10, 10), [outside; 10]);
    let late = awake_in(&mut engine, team, 1); // work arrives below a parked group
    assert_eq!(serve(&mut engine, 10, 10), [outside; 10]);
    engine.sleep(inside).unwrap();
    engine.unpark(org).unwrap();
    let order = serve(&mut engine, 100, 10);
    assert!(!order.contains(&inside));
    assert!((48..=52).contains(&order.iter().filter(|&&key| key == late).count()));
    engine.park(org).unwrap();
    engine.sleep(late).unwrap(); // work ends below a parked group
    engine.sleep(outside).unwrap();
    engine.unpark(org).unwrap();
    assert_eq!(engine.next_key(), None);
}

#[test]
fn settlement_reaches_every_level() {
    let mut engine = engine(10);
    let org = engine.register_group(Weight::ONE);
    let inside = awake_in(&mut engine, org, 1);
    let outside = awake(&mut engine, 1);
    serve(&mut engine, 100, 10);
    engine
        .settle(inside, Cost::new(10), Cost::new(1010))
        .unwrap();
    serve(&mut engine, 1, 10);
    assert!(
        engine.debt(org).unwrap() >= 900,
        "the group owes: {:?}",
        engine.debt(org)
    );
    let order = serve(&mut engine, 80, 10);
    assert_eq!(order, [outside; 80]);
    engine
        .settle(inside, Cost::new(1010), Cost::new(10))
        .unwrap();
    let order = serve(&mut engine, 80, 10);
    let own = order.iter().filter(|&&key| key == inside).count();
    assert!(own >= 75, "the group is given back what it overpaid: {own}");
}

#[test]
fn a_group_with_children_is_not_disbanded() {
    let mut engine = engine(1);
    let group = engine.register_group(Weight::ONE);
    let child = awake_in(&mut engine, group, 1);
    assert_eq!(
        engine.disband(group),
        Err(DisbandError::NotEmpty { children: 1 })
    );
    assert_eq!(engine.next_key(), Some(child));
    let _ = engine.forget(child).unwrap();
    let _ = engine.disband(group).unwrap();
    assert!(engine.is_empty());
    assert_eq!(engine.disband(group), Err(DisbandError::Unknown(Unknown)));
    assert_eq!(engine.register_in(group, Weight::ONE), Err(Unknown));
    assert_eq!(engine.register_group_in(group, Weight::ONE), Err(Unknown));
}

#[test]
fn a_standing_leads_back_to_its_group_or_nowhere() {
    let mut engine = engine(1);
    let group = engine.register_group(Weight::ONE);
    let [a, b] = [(); 2].map(|()| awake_in(&mut engine, group, 1));
    serve(&mut engine, 10, 1);
    engine.charge(a, Cost::new(100)).unwrap();
    let standing = engine.forget(a).unwrap().expect("it owes a hundred");
    let back = engine.readmit(standing, Weight::ONE).unwrap();
    engine.wake(back).unwrap();
    assert_eq!(serve(&mut engine, 50, 1), [b; 50], "it owes in its group");
    let standing = engine.forget(back).unwrap().expect("it still owes");
    let _ = engine.forget(b).unwrap();
    let group_standing = engine.disband(group).unwrap();
    assert!(
        engine.is_clear(&standing),
        "nothing is left of a group that is gone"
    );
    assert_eq!(engine.readmit(standing, Weight::ONE), Err(Unknown));
    if let Some(standing) = group_standing {
        let group = engine.readmit_group(standing, Weight::ONE).unwrap();
        assert!(engine.register_in(group, Weight::ONE).is_ok());
    }
}

#[test]
fn a_slot_that_was_in_a_tree_is_used_again_outside_it() {
    let mut engine = engine(10);
    let group = engine.register_group(Weight::ONE);
    let child = awake_in(&mut engine, group, 1);
    let _ = engine.forget(child).unwrap();
    let _ = engine.disband(group).unwrap();
    let keys = [awake(&mut engine, 1), awake(&mut engine, 1)];
    let again = engine.register_group(Weight::ONE);
    let inside = awake_in(&mut engine, again, 1);
    let [first, second, third] = shares(&mut engine, [keys[0], keys[1], inside]);
    assert_near([first, second, third], [1.0 / 3.0; 3]);
}
