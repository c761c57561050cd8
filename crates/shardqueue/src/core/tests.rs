//! Single behaviours of the core, exactly.

use std::time::Duration;

use drr::{Cost, Quantum};
use foldhash::fast::RandomState;

use super::{
    Admission, Core, End, JobSlot, KeyLimit, Limits, Next, Notices, Patience, Spec, Timestamp,
};
use crate::options::Priority;
use crate::path::Separator;

pub(super) type Plain = Core<u64, u64, ()>;

pub(super) const SPEC: Spec = Spec {
    priority: Priority::Normal,
    cost: Cost::ONE,
    role: super::Role::Single,
};

pub(super) fn core(queue_max: usize, key_max: usize, backoff_max: usize) -> Plain {
    limited(Limits {
        queue_max,
        key_max: KeyLimit::Fixed(key_max),
        backoff_max,
        concurrency: 1,
        urgent_max: 2,
    })
}

/// Returns a core with the default rule for keys.
pub(super) fn shared(queue_max: usize, backoff_max: usize) -> Plain {
    limited(Limits {
        queue_max,
        key_max: KeyLimit::Part,
        backoff_max,
        concurrency: 1,
        urgent_max: 2,
    })
}

fn limited(limits: Limits) -> Plain {
    let quantum = Quantum::new(1).unwrap();
    let separator = Separator::new('/');
    Core::new(limits, separator, quantum, RandomState::default())
}

pub(super) fn submit(core: &mut Plain, key: &str, job: u64) -> JobSlot {
    match core.admit(key, SPEC, (job, job), Patience::Waits) {
        Admission::Accepted(place) | Admission::Waiting(place) => place,
        other => panic!("{other:?}"),
    }
}

/// Takes the next job and returns its key, its number and its place.
pub(super) fn begin(core: &mut Plain, now: u64) -> Option<(String, u64, JobSlot)> {
    match core.next(at(now), &mut Notices::default()) {
        Next::Run(lease) => {
            let key = core.key_of(lease.place).unwrap().to_string();
            Some((key, lease.job, lease.place))
        }
        Next::Idle(_) => None,
        other => panic!("{other:?}"),
    }
}

pub(super) fn back_off(core: &mut Plain, (place, job): (JobSlot, u64), until: u64) {
    core.retry(place, job, at(until), &mut Notices::default())
        .unwrap();
}

/// Submits jobs for a key until one is refused. Returns how many were accepted.
pub(super) fn flood(core: &mut Plain, key: &str) -> usize {
    let mut enters = || {
        let admission = core.admit(key, SPEC, (0, 0), Patience::DoesNotWait);
        matches!(admission, Admission::Accepted(_))
    };
    (0..).take_while(|_| enters()).count()
}

pub(super) fn at(millis: u64) -> Timestamp {
    Timestamp::since_start(Duration::from_millis(millis))
}

/// Runs everything that may run now, and returns the keys in order.
pub(super) fn run_all(core: &mut Plain, now: u64) -> Vec<String> {
    let mut order = Vec::new();
    while let Some((key, _, place)) = begin(core, now) {
        core.finish(place, End::Ran, &mut Notices::default());
        order.push(key);
    }
    order
}

pub(super) fn submit_urgent(core: &mut Plain, key: &str, job: u64) -> JobSlot {
    let spec = Spec {
        priority: Priority::Urgent,
        ..SPEC
    };
    match core.admit(key, spec, (job, job), Patience::Waits) {
        Admission::Accepted(place) => place,
        other => panic!("{other:?}"),
    }
}

#[test]
fn urgent_jobs_of_any_key_go_first_and_leave_every_third_turn_to_the_ring() {
    let mut core = core(100, 100, 10);
    for job in 0..3 {
        submit(&mut core, "a", job);
        submit(&mut core, "b", job);
        submit(&mut core, "u", job); // behind the urgent ones of its key
    }
    for job in 0..4 {
        submit_urgent(&mut core, "u", job);
    }
    for job in 0..2 {
        submit_urgent(&mut core, "v", job);
    }
    core.audit();
    let order = run_all(&mut core, 0);
    let turns = ["u", "v", "a", "u", "v", "b", "u", "u"];
    assert_eq!(order[..8], turns, "two urgent ones, then one of the ring");
    assert_eq!(order.len(), 15);
    // Their key has had four turns before the others had two, and pays for them now.
    assert_eq!(order[8..], ["a", "b", "a", "b", "u", "u", "u"]);
}

#[test]
fn urgent_jobs_in_a_row_are_not_counted_while_no_other_job_waits() {
    let mut core = core(100, 100, 10);
    for job in 0..6 {
        submit_urgent(&mut core, "u", job);
    }
    let first: Vec<u64> = (0..3)
        .map(|_| {
            let (_, job, place) = begin(&mut core, 0).unwrap();
            core.finish(place, End::Ran, &mut Notices::default());
            job
        })
        .collect();
    assert_eq!(first, [0, 1, 2]);
    submit(&mut core, "late", 9);
    assert_eq!(run_all(&mut core, 0), ["u", "u", "late", "u"]);
}

#[test]
fn an_urgent_job_waits_for_its_key_and_a_retry_of_it_is_urgent_again() {
    let mut core = core(100, 100, 10);
    submit_urgent(&mut core, "u", 0);
    let (_, job, place) = begin(&mut core, 0).unwrap();
    submit_urgent(&mut core, "u", 1);
    back_off(&mut core, (place, job), 10);
    submit(&mut core, "a", 0);
    submit(&mut core, "b", 0);
    core.audit();
    let (key, _, place) = begin(&mut core, 0).unwrap();
    assert_eq!(key, "a", "the urgent key backs off");
    core.finish(place, End::Ran, &mut Notices::default());
    let (key, job, place) = begin(&mut core, 10).unwrap();
    assert_eq!((key.as_str(), job), ("u", 0), "it is due, before b");
    core.finish(place, End::Ran, &mut Notices::default());
    core.audit();
    assert_eq!(run_all(&mut core, 10), ["u", "b"]);
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
    back_off(&mut beside, (place, job), 20_000);
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
    assert!(matches!(overtakes, Admission::Full(4, _)));
    core.audit();
}

#[test]
fn a_key_alone_gets_three_quarters_of_the_queue() {
    let mut core = shared(128, 1024);
    assert_eq!(flood(&mut core, "greedy"), 96);
    let Admission::Full(_, occupancy) = core.admit("greedy", SPEC, (0, 0), Patience::DoesNotWait)
    else {
        panic!("a flood ends with a refusal");
    };
    assert_eq!(
        (occupancy.held, occupancy.key_held, occupancy.key_max),
        (96, 96, 96)
    );
    assert_eq!(flood(&mut core, "another"), 24);
}

#[test]
fn a_crowd_of_greedy_keys_leaves_its_part_to_a_newcomer() {
    for keys in [1, 2, 3, 10] {
        let mut core = shared(1240, 1);
        let mut before = None;
        while before != Some(core.held()) {
            before = Some(core.held());
            for key in 0..keys {
                core.admit(
                    &format!("greedy {key}"),
                    SPEC,
                    (0, 0),
                    Patience::DoesNotWait,
                );
            }
        }
        let free = 1240 / (3 * keys + 1);
        let left = 1240 - core.held();
        assert!(left.abs_diff(free) <= 3 * keys, "{keys} keys leave {left}");
        assert!(flood(&mut core, "newcomer") > 0, "{keys} keys");
        core.audit();
    }
}

#[test]
fn keys_that_back_off_one_after_another_leave_the_queue_to_others() {
    let mut core = shared(128, 1024);
    for key in 0..8 {
        let name = format!("failing {key}");
        assert!(flood(&mut core, &name) >= 96, "{name}");
        let (failed, job, place) = begin(&mut core, 0).unwrap();
        assert_eq!(failed, name);
        back_off(&mut core, (place, job), 20_000);
        core.audit();
    }
    assert_eq!(core.held(), 0, "the room for backing off has taken all");
    assert_eq!(flood(&mut core, "healthy"), 96);
    // Later keys, too, leave room, until there are too many of them for both rooms.
    assert!(core.gauges().0 <= 128 + 1024);
}

#[test]
fn jobs_set_apart_are_counted_there_until_they_begin() {
    let mut core = shared(8, 8);
    assert_eq!(flood(&mut core, "key"), 6);
    let (_, job, place) = begin(&mut core, 0).unwrap();
    back_off(&mut core, (place, job), 1000);
    assert_eq!((core.held(), core.apart), (0, 5));
    assert_eq!(flood(&mut core, "key"), 3, "eight in all");
    assert_eq!(
        (core.held(), core.apart),
        (2, 6),
        "two of eight places are left there"
    );
    // It runs again, and gives back the queue's room first.
    let used: Vec<(usize, usize)> = (0..4)
        .map(|_| {
            let (_, _, place) = begin(&mut core, 1000).unwrap();
            core.finish(place, End::Ran, &mut Notices::default());
            core.audit();
            (core.held(), core.apart)
        })
        .collect();
    assert_eq!(used, [(2, 6), (1, 6), (0, 6), (0, 5)]);
    assert_eq!(run_all(&mut core, 1000).len(), 5);
    assert_eq!((core.held(), core.apart), (0, 0));
}

#[test]
fn room_that_a_key_gives_up_by_backing_off_goes_to_waiting_keys() {
    let mut core = shared(4, 8);
    for job in 0..10 {
        submit(&mut core, "greedy", job);
    }
    let (_, job, place) = begin(&mut core, 0).unwrap();
    submit(&mut core, "modest", 100);
    for job in 101..110 {
        submit(&mut core, "modest", job);
    }
    let mut notices = Notices::default();
    core.retry(place, job, at(1000), &mut notices).unwrap();
    assert_eq!(notices.accepted.first(), Some(&101), "{notices:?}");
    core.audit();
}

#[test]
fn jobs_that_back_off_use_up_the_queue_only_beyond_their_own_room() {
    let mut core = core(2, 2, 3);
    let fail_one = |core: &mut Plain, key: u64| {
        submit(core, &format!("key {key}"), key);
        let (_, job, place) = begin(core, 0).unwrap();
        back_off(core, (place, job), 1000);
        core.held()
    };
    let held: Vec<usize> = (0..5).map(|key| fail_one(&mut core, key)).collect();
    assert_eq!(held, [0, 0, 0, 1, 2]);
    let refused = core.admit("another", SPEC, (9, 9), Patience::DoesNotWait);
    assert!(matches!(refused, Admission::Full(9, _)));
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
