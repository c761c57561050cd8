//! Single behaviours of keys in groups, exactly.

use std::sync::Arc;

use drr::Weight;
use proptest::prelude::*;

use super::tests::{
    Plain, SPEC, at, back_off, begin, core, flood, run_all, shared, submit, submit_urgent,
};
use super::{Admission, End, Next, Notices, Occupancy, Patience};
use crate::error::FullLevel;

fn try_submit(core: &mut Plain, key: &str) -> Result<(), Occupancy> {
    match core.admit(key, SPEC, (0, 0), Patience::DoesNotWait) {
        Admission::Accepted(_) => Ok(()),
        Admission::Full(_, occupancy) => Err(occupancy),
        other => panic!("{other:?}"),
    }
}

/// Lets this many jobs run and end, and returns how many of them were of keys that begin with this.
fn served(core: &mut Plain, jobs: usize, prefix: &str) -> usize {
    let mut count = 0;
    for _ in 0..jobs {
        let (key, _, place) = begin(core, 0).unwrap();
        core.finish(place, End::Ran, &mut Notices::default());
        count += usize::from(key.starts_with(prefix));
    }
    count
}

/// Submits jobs for new keys of a tenant, which all fail and back off, until one is refused. Returns how many failed.
fn fail_all(core: &mut Plain, tenant: &str) -> usize {
    for key in 0.. {
        if try_submit(core, &format!("{tenant}/{key}")).is_err() {
            return key;
        }
        let (_, job, place) = begin(core, 0).unwrap();
        back_off(core, (place, job), 20_000);
    }
    unreachable!("there is not room for all")
}

#[test]
fn a_tenant_with_a_thousand_keys_gets_the_part_of_one() {
    let mut core = shared(128, 1024);
    let accepted = (0..1000).filter(|key| try_submit(&mut core, &format!("acme/{key}")).is_ok());
    assert_eq!(accepted.count(), 96, "as one key");
    let full = try_submit(&mut core, "acme/another").unwrap_err();
    assert_eq!(full.level, FullLevel::Group { parts: 1 });
    assert_eq!((full.held, full.key_held, full.key_max), (96, 96, 96));
    assert_eq!(flood(&mut core, "globex"), 24);
    core.audit();
}

#[test]
fn a_member_has_a_part_of_what_its_group_may_hold() {
    let mut core = shared(128, 1024);
    assert_eq!(flood(&mut core, "acme/alice"), 89);
    let mut core = shared(128, 1024);
    assert_eq!(flood(&mut core, "acme/team/alice"), 87);
    let full = try_submit(&mut core, "acme/team/alice").unwrap_err();
    assert_eq!(full.level, FullLevel::Key);
    assert!(flood(&mut core, "acme/team/bob") > 0);
    assert!(flood(&mut core, "acme/dora") > 0);
    assert!(flood(&mut core, "globex") > 0);
    core.audit();
}

#[test]
fn a_fixed_part_is_that_of_a_whole_tenant() {
    let mut core = core(100, 40, 10);
    let accepted = (0..100).filter(|key| try_submit(&mut core, &format!("acme/{key}")).is_ok());
    assert_eq!(accepted.count(), 40);
    assert_eq!(
        flood(&mut core, "globex/alice"),
        30,
        "of its tenant's forty"
    );
    assert_eq!(flood(&mut core, "globex/bob"), 8);
    assert_eq!(flood(&mut core, "flat"), 22, "the shard is full");
    core.audit();
}

#[test]
fn refused_keys_of_a_full_tenant_leave_nothing_behind() {
    let mut core = shared(16, 16);
    assert!(flood(&mut core, "acme/a") > 0);
    while try_submit(&mut core, "acme/b").is_ok() {}
    let keys = core.keys();
    for key in 0..10_000 {
        let _ = try_submit(&mut core, &format!("acme/{key}/x"));
    }
    assert!(core.keys() <= keys + 16, "{} keys", core.keys());
    assert!(core.groups() <= 1 + 16, "{} groups", core.groups());
    core.audit();
}

#[test]
fn room_goes_to_waiting_tenants_in_turn_however_many_of_their_keys_wait() {
    let mut core = core(1, 100, 10);
    submit(&mut core, "first", 0);
    for job in 0..100 {
        submit(&mut core, &format!("acme/{job}"), job);
    }
    submit(&mut core, "globex", 1000);
    submit(&mut core, "globex", 1001);
    let mut accepted = Vec::new();
    for _ in 0..5 {
        let mut notices = Notices::default();
        let Next::Run(lease) = core.next(at(0), &mut notices) else {
            panic!("something is queued");
        };
        core.finish(lease.place, End::Ran, &mut notices);
        accepted.extend(notices.accepted);
        core.audit();
    }
    assert_eq!(accepted, [0, 1000, 1, 1001, 2]);
}

#[test]
fn a_key_that_waits_for_room_moves_into_the_group_of_its_name() {
    let mut core = core(2, 100, 10);
    submit(&mut core, "first", 0);
    submit(&mut core, "first", 1);
    submit(&mut core, "acme", 10);
    submit(&mut core, "globex", 20);
    for job in 11..14 {
        submit(&mut core, "acme/alice", job);
    }
    core.audit();
    let mut accepted = Vec::new();
    for _ in 0..5 {
        let mut notices = Notices::default();
        let Next::Run(lease) = core.next(at(0), &mut notices) else {
            panic!("something is queued");
        };
        core.finish(lease.place, End::Ran, &mut notices);
        accepted.extend(notices.accepted);
        core.audit();
    }
    accepted.sort_unstable();
    assert_eq!(accepted, [10, 11, 12, 13, 20]);
}

#[test]
fn urgent_jobs_take_turns_by_tenants_then_by_their_keys() {
    let mut core = core(10_000, 10_000, 10);
    for key in 0..1000 {
        submit_urgent(&mut core, &format!("acme/{key}"), key);
    }
    for job in 0..3 {
        submit_urgent(&mut core, "globex", job);
        submit_urgent(&mut core, "initech/a", job);
    }
    core.audit();
    let order = run_all(&mut core, 0);
    let tenants: Vec<&str> = order.iter().map(|key| &key[..4]).collect();
    assert_eq!(
        tenants[..9],
        [
            "acme", "glob", "init", "acme", "glob", "init", "acme", "glob", "init"
        ]
    );
    assert_eq!(order[0], "acme/0");
    assert_eq!(order[3], "acme/1");
    assert_eq!(order.len(), 1006);
    core.audit();
}

#[test]
fn an_urgent_key_moves_into_the_group_of_its_name_and_keeps_its_job() {
    let mut core = core(100, 100, 10);
    submit_urgent(&mut core, "acme", 1);
    submit_urgent(&mut core, "globex", 2);
    submit_urgent(&mut core, "acme/alice", 3);
    core.audit();
    let order = run_all(&mut core, 0);
    assert_eq!(order.len(), 3);
    assert_eq!(order[0], "globex", "the new group is behind it");
    core.audit();
}

#[test]
fn the_failing_keys_of_a_tenant_do_not_use_up_the_room_of_others() {
    let mut core = shared(128, 1024);
    let failed = fail_all(&mut core, "acme");
    assert!(
        (128..=144).contains(&failed),
        "{failed} keys of one tenant back off"
    );
    assert_eq!(core.held(), 0, "they have room of their own");
    let refused = try_submit(&mut core, "acme/another").unwrap_err();
    assert_eq!(refused.level, FullLevel::Group { parts: 1 });
    for tenant in 1..8 {
        assert!(fail_all(&mut core, &format!("tenant {tenant}")) > 100);
        core.audit();
    }
    assert!(flood(&mut core, "healthy") > 0, "after eight such tenants");
    // Without groups, that many keys fill the shard.
    let mut flat = shared(128, 1024);
    for key in 0..1152 {
        submit(&mut flat, &format!("acme {key}"), key);
        let (_, job, place) = begin(&mut flat, 0).unwrap();
        back_off(&mut flat, (place, job), 20_000);
    }
    assert_eq!(flood(&mut flat, "healthy"), 0);
}

#[test]
fn the_room_for_backing_off_is_divided_by_tenants() {
    let mut core = shared(128, 1024);
    for key in 0..100 {
        let name = format!("acme/{key}");
        if flood(&mut core, &name) == 0 {
            break;
        }
        let (failed, job, place) = begin(&mut core, 0).unwrap();
        assert_eq!(failed, name);
        back_off(&mut core, (place, job), 20_000);
        core.audit();
    }
    let used = core.apart + core.gauges().2;
    assert!(used <= 1024 * 3 / 4 + 1, "{used} of 1024 are one tenant's");
    // Another tenant that backs off finds room there.
    assert!(flood(&mut core, "globex/a") > 0);
    let before = core.apart;
    let (_, job, place) = begin(&mut core, 0).unwrap();
    back_off(&mut core, (place, job), 20_000);
    assert!(core.apart > before);
    core.audit();
}

#[test]
fn a_name_has_one_weight_whether_it_is_a_key_a_group_or_both() {
    let mut core = core(1 << 20, 1 << 20, 10);
    let three = Weight::new(3).unwrap();
    core.set_weight(&Arc::from("acme"), three);
    let fill = |core: &mut Plain, key: &str| {
        (0..1000).for_each(|job| {
            submit(core, key, job);
        })
    };
    fill(&mut core, "globex");
    fill(&mut core, "acme");
    assert!((299..=301).contains(&served(&mut core, 400, "acme")));
    fill(&mut core, "acme/alice"); // the key becomes a member of a group
    core.audit();
    assert!((298..=302).contains(&served(&mut core, 400, "acme")));
    core.set_weight(&Arc::from("acme"), Weight::ONE);
    core.set_weight(&Arc::from("acme/alice"), three);
    served(&mut core, 10, "");
    assert!((99..=101).contains(&served(&mut core, 200, "acme")));
    assert!((74..=76).contains(&served(&mut core, 200, "acme/alice")));
}

#[test]
fn groups_of_keys_that_come_once_are_given_up() {
    let mut core = core(1 << 20, 1 << 20, 10);
    for key in 0..50_000 {
        submit(&mut core, &format!("tenant {key}/user/{key}"), key);
        assert_eq!(run_all(&mut core, 0).len(), 1);
    }
    assert!(core.keys() <= 4096 + 64, "{} keys are kept", core.keys());
    assert!(
        core.groups() <= 2 * (4096 + 64),
        "{} groups are kept",
        core.groups()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The answer for many keys is the one that they get one after another.
    #[test]
    fn room_for_many_keys_is_room_for_each_after_the_others(
        queue_max in 1usize..40,
        is_fixed in any::<bool>(),
        before in prop::collection::vec("[ab](/[ab]){0,3}", 0..40),
        failing in 0usize..10,
        keys in prop::collection::btree_set("[ab](/[ab]){0,3}", 1..8),
    ) {
        let mut core = if is_fixed {
            core(queue_max, queue_max / 2 + 1, 9)
        } else {
            shared(queue_max, 9)
        };
        for key in before {
            let _ = try_submit(&mut core, &key);
        }
        for _ in 0..failing {
            if let Some((_, job, place)) = begin(&mut core, 0) {
                back_off(&mut core, (place, job), 1000);
            }
        }
        core.audit();
        let keys: Vec<String> = keys.into_iter().collect();
        let all_fit = core.has_room_for_all(&keys).is_ok();
        let accepted = keys.iter().all(|key| try_submit(&mut core, key).is_ok());
        prop_assert!(accepted || !all_fit);
        prop_assert!(failing > 0 || accepted == all_fit);
        core.audit();
    }
}
