//! The examples of the documentation do what the documentation says.

use std::time::Duration;

use fila_lua::{FailureAction, Scheduling};

use crate::{RETRY, SCHEDULE, enqueue, failure, returning, text};

#[test]
fn the_example_for_enqueueing_schedules_by_headers() {
    let all = enqueue(
        SCHEDULE,
        &[("tenant", "acme"), ("priority", "7"), ("endpoint", "api")],
    )
    .unwrap();
    assert_eq!(text(&all), "acme");
    assert_eq!(all.weight, 7);
    assert_eq!(all.throttle_keys, ["api"]);
}

#[test]
fn the_example_for_enqueueing_does_without_headers() {
    assert_eq!(enqueue(SCHEDULE, &[]).unwrap(), Scheduling::default());
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let default = Scheduling::default();
    assert_eq!(text(&default), "default");
    assert_eq!(default.weight, 1);
    assert!(default.throttle_keys.is_empty());
    for nothing in [
        "{}",
        "{ fairness_key = nil, weight = nil, throttle_keys = nil }",
        "{ throttle_keys = { nil } }",
    ] {
        assert_eq!(enqueue(&returning(nothing), &[]).unwrap(), default);
    }
}

#[test]
fn the_example_for_throttling_works() {
    let source = r#"
        function on_enqueue(msg)
          return {
            fairness_key = msg.headers["tenant"],
            throttle_keys = { msg.headers["api_endpoint"] }
          }
        end"#;
    let found = enqueue(source, &[("tenant", "acme"), ("api_endpoint", "/v1")]).unwrap();
    assert_eq!(
        (text(&found), found.throttle_keys.as_slice()),
        ("acme", &["/v1".to_owned()][..])
    );
}

#[test]
fn the_example_for_failures_retries_and_gives_up() {
    let delay = Duration::from_millis(1000);
    assert_eq!(
        failure(RETRY, 1).unwrap().action,
        FailureAction::Retry { delay }
    );
    assert_eq!(
        failure(RETRY, 2).unwrap().action,
        FailureAction::Retry { delay: 2 * delay }
    );
    assert_eq!(failure(RETRY, 3).unwrap().action, FailureAction::DeadLetter);
}
