//! Several engines that share one server, as shards do.
#![cfg(test)] // helpers may unwrap, as tests do

use drr::{Cost, Drr, Key, Quantum, Weight};

/// Takes the next key of the engine whose turn is earliest.
fn dispatch(shards: &mut [Drr]) -> Option<(usize, Key)> {
    let mut best = None;
    for (number, shard) in shards.iter_mut().enumerate() {
        if let Some(due) = shard.due() {
            match best {
                Some((_, earliest)) if !due.is_before(earliest) => {}
                _ => best = Some((number, due)),
            }
        }
    }
    let (number, due) = best?;
    for shard in shards.iter_mut() {
        shard.catch_up(due);
    }
    let key = shards[number].next_key()?;
    shards[number].charge(key, Cost::new(100)).unwrap();
    Some((number, key))
}

fn shards(count: usize) -> Vec<Drr> {
    (0..count)
        .map(|_| Drr::new(Quantum::new(100).unwrap()))
        .collect()
}

#[test]
fn a_key_alone_in_its_engine_gets_no_more_than_one_among_a_hundred() {
    let mut shards = shards(4);
    for _ in 0..100 {
        let key = shards[0].register(Weight::ONE);
        shards[0].wake(key).unwrap();
    }
    let lonely = shards[3].register(Weight::ONE);
    shards[3].wake(lonely).unwrap();
    let dispatches = 101 * 200;
    let lonely = (0..dispatches)
        .filter(|_| dispatch(&mut shards).unwrap().0 == 3)
        .count();
    assert!(
        (198..=202).contains(&lonely),
        "the lonely key got {lonely} of a fair 200"
    );
}

#[test]
fn an_engine_that_was_idle_does_not_catch_up_on_what_it_missed() {
    let mut shards = shards(2);
    let busy = shards[0].register(Weight::ONE);
    let idle = shards[1].register(Weight::ONE);
    shards[0].wake(busy).unwrap();
    for _ in 0..1000 {
        assert_eq!(dispatch(&mut shards), Some((0, busy)));
    }
    shards[1].wake(idle).unwrap();
    let first: Vec<usize> = (0..100).map(|_| dispatch(&mut shards).unwrap().0).collect();
    let idle = first.iter().filter(|&&shard| shard == 1).count();
    assert!(
        (49..=51).contains(&idle),
        "the key that was idle got {idle} of a fair 50: {first:?}"
    );
}

#[test]
fn an_engine_without_work_has_no_next_turn() {
    let mut engine = Drr::new(Quantum::new(1).unwrap());
    assert_eq!(engine.due(), None);
    let key = engine.register(Weight::ONE);
    assert_eq!(engine.due(), None);
    engine.wake(key).unwrap();
    assert!(engine.due().is_some());
    engine.sleep(key).unwrap();
    assert_eq!(engine.due(), None);
}

#[test]
fn moments_are_ordered_and_survive_an_atomic() {
    let mut engine = Drr::new(Quantum::new(100).unwrap());
    let key = engine.register(Weight::ONE);
    engine.wake(key).unwrap();
    let mut last = engine.due().unwrap();
    for _ in 0..100 {
        assert!(!last.is_before(last));
        assert_eq!(drr::Moment::from_bits(last.to_bits()), last);
        engine.next_key().unwrap();
        engine.charge(key, Cost::new(100)).unwrap();
        let now = engine.due().unwrap();
        assert!(last.is_before(now) && !now.is_before(last));
        last = now;
    }
}
