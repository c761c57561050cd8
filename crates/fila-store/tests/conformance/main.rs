//! One suite for every engine: what the traits promise, seen from outside.
#![cfg(test)] // helpers may unwrap, as tests do

mod catalog;
mod commits;
mod deduplication;
mod fencing;
mod model;
mod moving;
mod purging;
mod reading;
mod world;

/// Makes one test for every promise, for the engines of a [`world::Place`].
macro_rules! conformance {
    ($place:ty) => {
        conformance! { @tests $place =>
            catalog: a_queue_is_found_by_its_name_and_listed_in_order_of_creation,
            catalog: a_name_is_taken_once,
            catalog: a_definition_changes_only_from_the_expected_version,
            catalog: an_id_is_not_given_again_after_deletion_and_reopening,
            catalog: versions_do_not_go_back_when_an_entry_is_set_anew,
            catalog: config_changes_only_from_the_expected_state,
            catalog: config_is_listed_by_prefix,
            catalog: what_is_too_large_is_refused_and_nothing_changes,
            catalog: the_catalogue_survives_reopening,
            commits: a_confirmed_message_is_there_after_reopening,
            commits: a_commit_over_several_queues_is_one,
            commits: a_refused_commit_changes_nothing_anywhere,
            commits: an_update_leaves_the_payload_alone,
            commits: a_repeated_commit_changes_nothing,
            commits: a_commit_that_is_repeated_late_is_still_deleted,
            commits: deleting_what_is_not_there_is_fine,
            commits: a_put_and_a_delete_in_one_batch_leave_nothing,
            commits: a_commit_beyond_the_limits_is_refused,
            commits: a_shard_of_another_engine_is_refused,
            commits: the_largest_words_fit,
            commits: an_empty_commit_is_confirmed,
            commits: commits_of_many_threads_are_all_there,
            reading: messages_come_in_the_order_of_key_and_id,
            reading: a_scan_goes_on_where_it_stopped,
            reading: a_cursor_of_a_deleted_message_still_holds_its_place,
            reading: a_scan_beside_commits_misses_nothing_that_stays,
            reading: a_page_is_of_one_moment,
            reading: a_backlog_is_one_keys_messages_after_an_id,
            reading: a_backlog_stops_at_its_bytes,
            reading: payloads_come_in_the_order_asked_for,
            reading: queues_do_not_see_each_other,
            fencing: an_epoch_grows_by_one_per_opening,
            fencing: a_new_owner_fences_the_old_one,
            fencing: a_fenced_queue_keeps_the_others_from_being_committed,
            fencing: a_deleted_queue_takes_and_gives_nothing,
            purging: a_purged_queue_is_empty_at_once_and_after_reopening,
            purging: a_purge_comes_before_the_puts_of_its_batch,
            purging: a_repeated_purge_purges_once,
            purging: a_purge_to_another_generation_than_the_next_is_refused,
            purging: a_queue_created_anew_has_nothing_of_the_old_one,
            purging: a_sweep_removes_leftovers_within_its_budget,
            purging: a_sweep_goes_on_after_reopening,
            purging: a_sweep_touches_nothing_that_lives,
            deduplication: an_id_is_remembered_until_it_expires,
            deduplication: remembered_ids_are_listed_in_pages,
            deduplication: a_sweep_removes_what_has_expired_and_nothing_else,
            deduplication: an_id_remembered_anew_outlives_its_first_expiry,
            deduplication: a_purge_forgets,
            moving: a_moved_message_is_in_the_other_queue_with_all_it_carries,
            moving: a_repeated_move_keeps_what_was_moved,
            moving: a_message_whose_payload_is_gone_moves_and_is_reported,
            moving: a_message_moves_out_of_a_queue_that_is_purged_in_the_same_commit,
            moving: a_move_that_is_refused_moves_nothing,
            moving: an_adopted_message_is_updated_and_deleted_like_any_other,
            moving: queues_are_deleted_together_or_not_at_all,
            model: random_histories_agree_with_a_map,
        }
    };
    (@tests $place:ty => $($module:ident: $promise:ident,)*) => {
        $(
            #[test]
            fn $promise() {
                crate::$module::$promise::<$place>();
            }
        )*
    };
}

mod memory {
    conformance! { crate::world::InMemory }
}

mod lsm {
    conformance! { crate::world::InLsm }
}

mod small_segments {
    conformance! { crate::world::InSmallSegments }
}

#[cfg(feature = "rocksdb")]
mod rocks {
    conformance! { crate::world::InRocks }
}
