//! The laws of trees have teeth: a scheduler that obeys them all breaks those that it should, with one flaw at a time.
#![cfg(test)] // helpers may unwrap, as tests do

mod flawed;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fairness_laws::laws::tree;

use flawed::{Flaw, Flawed};

fn honest(quantum: u64) -> Flawed {
    Flawed::new(Flaw::None, quantum)
}

mod without_a_flaw {
    fairness_laws::conformance! { trees: super::honest }
    fairness_laws::conformance! { tree_caps: super::honest }
    fairness_laws::conformance! { tree_bounds: super::honest }
    fairness_laws::conformance! { tree_settle: super::honest }
    fairness_laws::conformance! { tree_steps: super::honest }
}

type Law = fn(&dyn Fn(u64) -> Flawed);

/// Asserts that a scheduler with this flaw breaks all of these laws.
fn breaks(flaw: Flaw, laws: &[Law]) {
    let make = |quantum| Flawed::new(flaw, quantum);
    for (at, law) in laws.iter().enumerate() {
        let verdict = catch_unwind(AssertUnwindSafe(|| law(&make)));
        assert!(verdict.is_err(), "{flaw:?} got away with law {at}");
    }
}

#[test]
fn a_share_for_every_key_is_noticed() {
    breaks(
        Flaw::Flat,
        &[
            |make| tree::splitting_into_many_keys_buys_nothing(make),
            |make| tree::splitting_in_any_way_buys_nothing(make),
            |make| tree::bounds_add_per_level(make),
            |make| tree::service_stays_close_to_the_fluid_tree(make),
            |make| tree::names_that_come_and_go_get_one_share(make),
            |make| tree::a_group_with_work_of_its_own_gets_one_share(make),
            |make| tree::a_group_that_returns_is_fresh_once(make),
            |make| tree::members_and_groups_get_equal_time(make),
        ],
    );
}

#[test]
fn a_share_kept_for_an_empty_group_is_noticed() {
    breaks(
        Flaw::ReservesShares,
        &[|make| tree::an_empty_group_leaves_its_share_to_the_others(make)],
    );
}

#[test]
fn a_newcomer_at_the_end_of_its_group_waits_too_long() {
    breaks(
        Flaw::NewcomersLast,
        &[|make| tree::a_wait_adds_up_along_the_path(make)],
    );
}

#[test]
fn a_weight_that_does_not_change_is_noticed() {
    breaks(
        Flaw::KeepsWeights,
        &[|make| tree::a_new_weight_of_a_group_acts_on_the_backlog(make)],
    );
}

#[test]
fn a_pause_that_stops_too_little_or_too_much_is_noticed() {
    for flaw in [Flaw::IgnoresPauses, Flaw::PausesNeighbours] {
        breaks(
            flaw,
            &[|make| tree::a_paused_group_stops_its_members_and_no_others(make)],
        );
    }
    breaks(
        Flaw::PausesForgive,
        &[|make| tree::parking_a_group_buys_nothing(make)],
    );
}

#[test]
fn a_cap_that_stops_too_little_or_too_much_is_noticed() {
    for flaw in [Flaw::CapsMembers, Flaw::CapsNeighbours] {
        breaks(
            flaw,
            &[|make| tree::a_capped_group_runs_no_more_than_its_cap_and_stops_no_others(make)],
        );
    }
}

#[test]
fn a_debt_that_goes_with_its_member_is_noticed() {
    breaks(
        Flaw::ForgetsDebt,
        &[|make| tree::new_names_do_not_shed_the_debt_of_a_group(make)],
    );
}

#[test]
fn members_that_make_their_group_new_are_noticed() {
    breaks(
        Flaw::MembersBringCredit,
        &[
            |make| tree::a_group_that_returns_is_fresh_once(make),
            |make| tree::new_names_earn_no_second_boost(make),
            |make| tree::names_that_come_and_go_get_one_share(make),
        ],
    );
}

#[test]
fn two_shares_for_one_name_are_noticed() {
    breaks(
        Flaw::OwnWorkBeside,
        &[|make| tree::a_group_with_work_of_its_own_gets_one_share(make)],
    );
}

#[test]
fn settling_for_the_key_alone_is_noticed() {
    breaks(
        Flaw::SettlesKeysOnly,
        &[
            |make| tree::members_and_groups_get_equal_time(make),
            |make| tree::overestimates_are_given_back_in_groups(make),
        ],
    );
}

#[test]
fn walking_over_the_children_is_counted() {
    breaks(
        Flaw::Walks,
        &[
            |make| tree::a_dispatch_takes_two_steps_on_each_level(make),
            |make| tree::parked_groups_cost_nothing(make),
            |make| tree::settlement_adds_no_walks_in_groups(make),
        ],
    );
}

#[test]
fn a_bound_that_leaves_out_the_levels_above_is_noticed() {
    breaks(
        Flaw::SaysTooLittle,
        &[|make| tree::no_wait_is_longer_than_the_bound_on_its_path(make)],
    );
}
