//! The laws of fair scheduling, written once and checked against every scheduler we ship.
//!
//! A scheduler is put to the test by implementing [`Driver`], a handful of verbs, and naming the sets of
//! laws it must obey with [`conformance!`]. The laws know nothing of how the scheduler works: they play
//! random worlds on it ([`trace`]), keep a record beside it, and compare it with the bounds
//! and with the fluid reference ([`fluid`]) after every step.
//!
//! | set | law | in short |
//! |---|---|---|
//! | `core` | B1 | shares stay within a constant of each other in every window |
//! | `core` | B2 | a key that becomes runnable is served after a bounded amount of service to others |
//! | `core` | flood | a key that sends a hundred times what it may delays the others no more than a busy one |
//! | `core` | B6 | credit dies with idleness, debt does not |
//! | `core` | conservation | a runnable key means a dispatch; everything comes out once, in order |
//! | `core` | extremes | the largest numbers do no harm |
//! | `settle` | B3 | shares of *true* cost are fair, with many in flight |
//! | `steps` | B5 | constant work per dispatch, counted |
//! | `trees` | B8 | splitting into many keys buys nothing; bounds and waits add per level |
//! | `trees` | own work | a group with work of its own name gets one share, with members and without |
//! | `trees` | pauses | a paused group stops its members and no others, and gains nothing by it |
//! | `trees` | debts | a group cannot shed its debt by new names, and is fresh once, as a group |
//! | `tree_caps` | caps | a capped group runs no more than its cap, and stops no others |
//! | `tree_bounds` | B2 | what a scheduler says of the longest wait holds, on every path |
//! | `tree_settle` | B3 | true cost is paid on every level |
//! | `tree_steps` | B5 | constant work per level and dispatch, counted |
//!
//! The sets of trees are for a [`TreeDriver`]; `tree_caps` needs a [`CapDriver`], `tree_bounds` a [`BoundDriver`].
//!
//! A law fails with the smallest world that breaks it. `PROPTEST_CASES` sets how many worlds are tried, and
//! `FAIRNESS_SEED` which ones; without it they are the same in every run.
#![doc = ""]
#![doc = include_str!("../README.md")]

pub mod fluid;
pub mod laws;
pub mod trace;
pub mod trees;

mod driver;
mod paths;
mod run;
mod tree_run;

pub use driver::{BoundDriver, CapDriver, CountingDriver, Dispatched, Driver, Slack, TreeDriver};
pub use paths::Paths;

/// Makes one test for every law of the named sets, for the scheduler that `$make` returns for a quantum.
#[macro_export]
macro_rules! conformance {
    (core: $make:expr) => {
        $crate::conformance! { @core (1) $make }
    };
    // In a fraction of the worlds, for slow schedulers.
    (core, one world in $n:literal: $make:expr) => {
        $crate::conformance! { @core ($n) $make }
    };
    (@core ($n:literal) $make:expr) => {
        $crate::conformance! { @tests ($n) $make =>
            share: shares_stay_within_the_bound_in_every_window,
            share: shares_stay_within_the_bound_as_keys_come_and_go,
            share: extreme_weights_and_costs_share_exactly,
            share: every_thousand_dispatches_follow_the_weights,
            share: heavy_keys_are_interleaved_with_light_ones,
            share: service_stays_close_to_the_fluid_reference,
            share: modest_keys_get_all_and_the_rest_share_the_rest,
            share: a_new_weight_acts_on_the_backlog,
            wait: a_newcomer_waits_at_most_for_earlier_newcomers,
            wait: a_quiet_key_is_served_ahead_of_the_hot_ones,
            wait: leaving_and_returning_earns_no_second_boost,
            wait: endless_newcomers_do_not_starve_the_ring,
            flood: a_flood_delays_the_others_no_more_than_a_busy_neighbour,
            idleness: credit_dies_with_idleness,
            idleness: debt_survives_leaving_and_returning,
            conservation: the_server_never_idles_while_a_key_may_run,
            conservation: parking_buys_nothing,
            extremes: the_largest_numbers_do_no_harm,
            extremes: the_dearest_work_starves_no_key,
        }
    };
    (settle: $make:expr) => {
        $crate::conformance! { @tests (1) $make =>
            settlement: equal_keys_get_equal_time,
            settlement: overestimates_are_given_back,
        }
    };
    (steps: $make:expr) => {
        $crate::conformance! { @tests (1) $make =>
            steps: a_dispatch_takes_two_steps_at_any_size,
            steps: debt_is_waited_out_not_walked_through,
            steps: parked_keys_cost_nothing,
            steps: settlement_adds_no_walks,
        }
    };
    (trees: $make:expr) => {
        $crate::conformance! { @trees (1) $make }
    };
    (trees, one world in $n:literal: $make:expr) => {
        $crate::conformance! { @trees ($n) $make }
    };
    (@trees ($n:literal) $make:expr) => {
        $crate::conformance! { @tests ($n) $make =>
            tree: splitting_into_many_keys_buys_nothing,
            tree: splitting_in_any_way_buys_nothing,
            tree: bounds_add_per_level,
            tree: service_stays_close_to_the_fluid_tree,
            tree: an_empty_group_leaves_its_share_to_the_others,
            tree: a_new_weight_of_a_group_acts_on_the_backlog,
            tree: a_group_with_work_of_its_own_gets_one_share,
            tree: a_wait_adds_up_along_the_path,
            tree: a_paused_group_stops_its_members_and_no_others,
            tree: parking_a_group_buys_nothing,
            tree: new_names_do_not_shed_the_debt_of_a_group,
            tree: names_that_come_and_go_get_one_share,
            tree: new_names_earn_no_second_boost,
            tree: a_group_that_returns_is_fresh_once,
        }
    };
    (tree_caps: $make:expr) => {
        $crate::conformance! { @tree_caps (1) $make }
    };
    (tree_caps, one world in $n:literal: $make:expr) => {
        $crate::conformance! { @tree_caps ($n) $make }
    };
    (@tree_caps ($n:literal) $make:expr) => {
        $crate::conformance! { @tests ($n) $make =>
            tree: a_capped_group_runs_no_more_than_its_cap_and_stops_no_others,
        }
    };
    (tree_bounds: $make:expr) => {
        $crate::conformance! { @tree_bounds (1) $make }
    };
    (tree_bounds, one world in $n:literal: $make:expr) => {
        $crate::conformance! { @tree_bounds ($n) $make }
    };
    (@tree_bounds ($n:literal) $make:expr) => {
        $crate::conformance! { @tests ($n) $make =>
            tree: no_wait_is_longer_than_the_bound_on_its_path,
        }
    };
    (tree_settle: $make:expr) => {
        $crate::conformance! { @tree_settle (1) $make }
    };
    (tree_settle, one world in $n:literal: $make:expr) => {
        $crate::conformance! { @tree_settle ($n) $make }
    };
    (@tree_settle ($n:literal) $make:expr) => {
        $crate::conformance! { @tests ($n) $make =>
            tree: members_and_groups_get_equal_time,
            tree: overestimates_are_given_back_in_groups,
        }
    };
    (tree_steps: $make:expr) => {
        $crate::conformance! { @tests (1) $make =>
            tree: a_dispatch_takes_two_steps_on_each_level,
            tree: parked_groups_cost_nothing,
            tree: settlement_adds_no_walks_in_groups,
        }
    };
    (@tests ($n:literal) $make:expr => $($module:ident: $law:ident,)*) => {
        $(
            #[test]
            fn $law() {
                $crate::laws::sparingly($n, || $crate::laws::$module::$law($make));
            }
        )*
    };
}
