//! Every example runs, ends by itself, and shows its lessons.
//!
//! An example that does not show a lesson fails with its exit status, so these tests check little else.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Examples measure waits, so only one of them runs at a time. Under `cargo nextest run`, where each test is a process, the
/// configuration sees to that.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs an example, and checks that it prints a table and says `phrase` below it.
fn shows(example: &str, phrase: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(example)
        .output()
        .expect("cargo has built the example");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{text}\n{errors}",
        output.status
    );
    let seen = text.split("What was seen:").nth(1).unwrap_or_default();
    assert!(seen.contains(phrase), "`{phrase}` in\n{text}");
}

#[test]
fn worker_pool_shares_processors_by_cost() {
    shows(env!("CARGO_BIN_EXE_worker_pool"), "without any priority");
}

#[test]
fn dispatcher_takes_the_permit_before_the_task() {
    shows(env!("CARGO_BIN_EXE_dispatcher"), "outlived 5 panics");
}

#[test]
fn webhooks_keep_a_dead_endpoint_to_itself() {
    shows(env!("CARGO_BIN_EXE_webhooks"), "`cedar` lost its");
}

#[test]
fn fan_out_cancels_questions_whose_caller_has_left() {
    shows(env!("CARGO_BIN_EXE_fan_out"), "were never asked");
}

#[test]
fn route_gate_keeps_routes_apart() {
    shows(
        env!("CARGO_BIN_EXE_route_gate"),
        "with a queue for each route",
    );
}

#[test]
fn axum_plans_share_by_weight() {
    shows(env!("CARGO_BIN_EXE_axum_plans"), "(3 and 9 are due)");
}

#[test]
fn grpc_refuses_the_noisy_only() {
    shows(env!("CARGO_BIN_EXE_grpc"), "`quiet` was never refused");
}

#[test]
fn users_in_tenants_share_the_share_of_their_tenant() {
    shows(
        env!("CARGO_BIN_EXE_users_in_tenants"),
        "with users in tenants, `acme` gets",
    );
}

#[test]
fn nextest_runs_these_programs_alone() {
    let config = include_str!("../../../.config/nextest.toml");
    let filter = "filter = 'binary_id(firq-examples::examples_run)'";
    let alone = format!("{filter}\nthreads-required = \"num-test-threads\"");
    assert!(config.contains(&alone), "{config}");
}
