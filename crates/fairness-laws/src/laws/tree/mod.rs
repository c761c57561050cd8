//! Groups: keys that compete as one, in levels.
//!
//! A group is a key among its siblings, and what holds among keys holds among the members of each group. So a law of
//! trees is a law of keys on every level at once, or it says that a level above does not notice what goes on below.

mod bounds;
mod caps;
mod debts;
mod own;
mod settlement;
mod shares;
mod steps;
mod stopping;
mod waits;

pub use bounds::no_wait_is_longer_than_the_bound_on_its_path;
pub use caps::a_capped_group_runs_no_more_than_its_cap_and_stops_no_others;
pub use debts::{
    a_group_that_returns_is_fresh_once, names_that_come_and_go_get_one_share,
    new_names_do_not_shed_the_debt_of_a_group, new_names_earn_no_second_boost,
};
pub use own::a_group_with_work_of_its_own_gets_one_share;
pub use settlement::{members_and_groups_get_equal_time, overestimates_are_given_back_in_groups};
pub use shares::{
    a_new_weight_of_a_group_acts_on_the_backlog, an_empty_group_leaves_its_share_to_the_others,
    bounds_add_per_level, service_stays_close_to_the_fluid_tree, splitting_in_any_way_buys_nothing,
    splitting_into_many_keys_buys_nothing,
};
pub use steps::{
    a_dispatch_takes_two_steps_on_each_level, parked_groups_cost_nothing,
    settlement_adds_no_walks_in_groups,
};
pub use stopping::{a_paused_group_stops_its_members_and_no_others, parking_a_group_buys_nothing};
pub use waits::a_wait_adds_up_along_the_path;
