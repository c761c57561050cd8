//! Single behaviours of the core, exactly.

use std::time::Duration;

use drr::{Cost, Quantum, Weight};
use foldhash::fast::RandomState;

use super::{Admission, Core, End, JobSlot, Limits, Next, Notices, Patience, Spec, Timestamp};
use crate::options::Priority;

type Plain = Core<u64, u64, ()>;

const SPEC: Spec = Spec {
    priority: Priority::Normal,
    cost: Cost::ONE,
    weight: Weight::ONE,
};

fn core(queue_max: usize, key_max: usize, backoff_max: usize) -> Plain {
    let limits = Limits {
        queue_max,
        key_max,
        backoff_max,
    };
    Core::new(limits, Quantum::new(1).unwrap(), RandomState::default())
}

fn submit(core: &mut Plain, key: &str, job: u64) -> JobSlot {
    match core.admit(key, SPEC, (job, job), Patience::Waits) {
        Admission::Accepted(place) | Admission::Waiting(place) => place,
        other => panic!("{other:?}"),
    }
}

/// Takes the next job and returns its key, its number and its place.
fn begin(core: &mut Plain, now: u64) -> Option<(String, u64, JobSlot)> {
    match core.next(at(now), &mut Notices::default()) {
        Next::Run(lease) => Some((lease.key.to_string(), lease.job, lease.place)),
        Next::Idle(_) => None,
        other => panic!("{other:?}"),
    }
}

fn at(millis: u64) -> Timestamp {
    Timestamp::since_start(Duration::from_millis(millis))
}

/// Runs everything that may run now, and returns the keys in order.
fn run_all(core: &mut Plain, now: u64) -> Vec<String> {
    let mut order = Vec::new();
    while let Some((key, _, place)) = begin(core, now) {
        core.finish(place, End::Ran, &mut Notices::default());
        order.push(key);
    }
    order
}

#[test]
fn a_key_that_backs_off_changes_nothing_for_the_others() {
    // The same thousand healthy keys, with and without one that always fails.
    let healthy = |core: &mut Plain| {
        for round in 0..3 {
            for key in 0..1000 {
                submit(core, &format!("healthy {key}"), round);
            }
        }
        run_all(core, 100)
    };
    let mut alone = core(1 << 20, 1 << 20, 10);
    let mut beside = core(1 << 20, 1 << 20, 10);
    for job in 0..100 {
        submit(&mut beside, "failing", job);
    }
    let (key, job, place) = begin(&mut beside, 0).unwrap();
    assert_eq!((key.as_str(), job), ("failing", 0));
    beside.retry(place, job, at(20_000)).unwrap();
    assert_eq!(healthy(&mut beside), healthy(&mut alone));
    assert_eq!(begin(&mut beside, 19_999), None);
    assert_eq!(
        begin(&mut beside, 20_000).unwrap().1,
        0,
        "the same job again, and no other"
    );
}

#[test]
fn a_key_with_ten_thousand_jobs_does_not_starve_one_with_a_single_job() {
    let mut core = core(1 << 20, 1 << 20, 10);
    for job in 0..10_000 {
        submit(&mut core, "greedy", job);
    }
    for _ in 0..10 {
        let (_, _, place) = begin(&mut core, 0).unwrap();
        core.finish(place, End::Ran, &mut Notices::default());
    }
    submit(&mut core, "modest", 0);
    let order: Vec<String> = (0..2)
        .map(|_| {
            let (key, _, place) = begin(&mut core, 0).unwrap();
            core.finish(place, End::Ran, &mut Notices::default());
            key
        })
        .collect();
    assert!(order.contains(&"modest".to_owned()), "{order:?}");
}

#[test]
fn room_goes_to_waiting_keys_in_turn() {
    let mut core = core(1, 100, 10);
    submit(&mut core, "greedy", 0);
    for job in 1..100 {
        submit(&mut core, "greedy", job);
    }
    submit(&mut core, "modest", 1000);
    let mut accepted = Vec::new();
    for _ in 0..2 {
        let mut notices = Notices::default();
        let Next::Run(lease) = core.next(at(0), &mut notices) else {
            panic!("something is queued");
        };
        core.finish(lease.place, End::Ran, &mut notices);
        accepted.extend(notices.accepted);
    }
    assert_eq!(
        accepted,
        [1, 1000],
        "one of the greedy key's, then the modest one's"
    );
}

#[test]
fn a_key_at_its_limit_leaves_room_to_others() {
    let mut core = core(10, 2, 10);
    let is_accepted = |admission| matches!(admission, Admission::Accepted(_));
    for job in 0..2 {
        assert!(is_accepted(core.admit(
            "greedy",
            SPEC,
            (job, job),
            Patience::Waits
        )));
    }
    assert!(!is_accepted(core.admit(
        "greedy",
        SPEC,
        (2, 2),
        Patience::Waits
    )));
    assert!(is_accepted(core.admit(
        "modest",
        SPEC,
        (3, 3),
        Patience::DoesNotWait
    )));
    let overtakes = core.admit("greedy", SPEC, (4, 4), Patience::DoesNotWait);
    assert!(matches!(overtakes, Admission::Full(4)));
    core.audit();
}

#[test]
fn jobs_that_back_off_use_up_the_queue_only_beyond_their_own_room() {
    let mut core = core(2, 2, 3);
    let fail_one = |core: &mut Plain, key: u64| {
        submit(core, &format!("key {key}"), key);
        let (_, job, place) = begin(core, 0).unwrap();
        core.retry(place, job, at(1000)).unwrap();
        core.held()
    };
    let held: Vec<usize> = (0..5).map(|key| fail_one(&mut core, key)).collect();
    assert_eq!(held, [0, 0, 0, 1, 2]);
    let refused = core.admit("another", SPEC, (9, 9), Patience::DoesNotWait);
    assert!(matches!(refused, Admission::Full(9)));
    core.audit();
}

#[test]
fn a_barrier_that_is_taken_down_is_forgotten() {
    let mut core = core(10, 10, 10);
    submit(&mut core, "key", 0);
    let barriers: Vec<_> = [Some("key"), None, Some("key")]
        .into_iter()
        .map(|key| core.barrier(key, ()).unwrap())
        .collect();
    assert_eq!(core.barriers.len(), 3);
    for barrier in barriers {
        core.take_down(barrier);
        core.take_down(barrier);
    }
    assert_eq!(core.barriers.len(), 0);
    assert!(core.barrier(Some("another"), ()).is_err());
}

#[test]
fn lanes_of_keys_that_come_once_are_given_up() {
    let mut core = core(1 << 20, 1 << 20, 10);
    for key in 0..100_000 {
        submit(&mut core, &format!("key {key}"), key);
        assert_eq!(run_all(&mut core, 0).len(), 1);
    }
    assert!(core.keys() <= 4096 + 64, "{} keys are kept", core.keys());
}

#[test]
fn lanes_of_refused_submissions_are_given_up() {
    let mut core = core(1, 1, 10);
    submit(&mut core, "first", 0);
    for key in 0..100_000 {
        let place = submit(&mut core, &format!("key {key}"), key);
        assert_eq!(core.withdraw(place), Some(key));
    }
    assert!(core.keys() <= 4096 + 64, "{} keys are kept", core.keys());
}

#[test]
fn memory_of_a_crowd_is_given_back_when_it_has_left() {
    let mut core = core(1 << 20, 1 << 20, 10);
    for key in 0..100_000 {
        submit(&mut core, &format!("key {key}"), key);
    }
    assert_eq!(core.keys(), 100_000);
    assert_eq!(run_all(&mut core, 0).len(), 100_000);
    assert_eq!((core.keys(), core.nodes.len()), (0, 0));
}
