//! Messages that fail too often, and `fila redrive`.

use insta::assert_snapshot;
use serde_json::Value;

use crate::rig::{Server, without_ids, without_times};

/// Starts a server whose queue `orders` has this many dead letters, of the keys `acme` and `zeta` in turns.
fn with_dead_letters(messages: usize) -> Server {
    let server = Server::start();
    let create = [
        "queue",
        "create",
        "orders",
        "--retry-attempts-max",
        "1",
        "--retry-backoff",
        "0",
    ];
    server.ok(&create);
    for number in 0..messages {
        let (key, region) = [("acme", "region=eu"), ("zeta", "region=us")][number % 2];
        let body = format!("order {number}");
        server.ok(&["enqueue", "orders", &body, "--key", key, "--header", region]);
    }
    let exec = "echo 'no such address' >&2; exit 1";
    let consume = ["consume", "orders", "--exec", exec, "--idle", "100ms"];
    let failed = server.run(&consume);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert_eq!(server.stat("orders.dlq", "depth"), messages as u64);
    server
}

#[test]
fn the_words_of_the_concepts_are_these() {
    let server = with_dead_letters(12);
    let inspected = server.ok(&["queue", "inspect", "orders.dlq"]);
    assert!(
        inspected.starts_with("queue      orders.dlq\n"),
        "{inspected}"
    );
    assert!(
        inspected.contains("depth                 12\n"),
        "{inspected}"
    );
    assert_eq!(
        server.ok(&["redrive", "orders.dlq", "--count", "10"]),
        "redrove 10 messages to `orders`\n"
    );
    assert_eq!(server.stat("orders", "ready"), 10);
    assert_eq!(server.stat("orders.dlq", "depth"), 2);
    assert_eq!(server.stat("orders.dlq", "redriven_total"), 10);
    assert_eq!(server.stat("orders", "dead_lettered_total"), 12);
}

#[test]
fn a_peek_shows_people_and_programs_why_a_message_died() {
    let server = with_dead_letters(2);
    let shown = server.ok(&["peek", "orders.dlq"]);
    assert_snapshot!("peek_dead_letters", without_times(&without_ids(&shown)));
    let json = server.ok(&["peek", "orders.dlq", "--key", "zeta", "--json"]);
    let message: Value = serde_json::from_str(&json).unwrap();
    let history = &message["history"];
    assert_eq!(history["reason"], "attempts_exhausted");
    assert_eq!(
        (&history["queue"], &history["attempts"]),
        (&"orders".into(), &1.into())
    );
    assert_eq!(history["last_error"], "no such address");
    for time in [
        "first_failed_at_ms",
        "last_failed_at_ms",
        "died_at_ms",
        "enqueued_at_ms",
    ] {
        assert!(history[time].is_u64(), "{json}");
    }
    assert_eq!(history["id"], message["id"], "it keeps its id");
    // A consumer gets the history too, and can send the message elsewhere unchanged.
    let consumed = server.ok(&["consume", "orders.dlq", "--json", "--ack", "--limit", "1"]);
    let message: Value = serde_json::from_str(&consumed).unwrap();
    assert_eq!(message["history"]["queue"], "orders");
    let again = server.run_with(&["enqueue", "orders", "--json-lines"], consumed.as_bytes());
    assert_eq!(again.code, Some(0), "{}", again.stderr);
}

#[test]
fn dead_letters_are_chosen_by_key_and_header() {
    let server = with_dead_letters(6);
    let nobody = [
        "redrive",
        "orders.dlq",
        "--all",
        "--key",
        "acme",
        "--header",
        "region=us",
    ];
    assert_eq!(server.ok(&nobody), "redrove 0 messages to `orders`\n");
    let by_key = ["redrive", "orders.dlq", "--all", "--key", "acme", "--json"];
    assert_eq!(
        server.ok(&by_key),
        "{\"queue\":\"orders.dlq\",\"redriven\":3,\"skipped_leased\":0,\"seen\":3,\"total\":6}\n"
    );
    let rest = [
        "redrive",
        "orders.dlq",
        "--all",
        "--header",
        "region=us",
        "--rate",
        "1000",
    ];
    assert_eq!(server.ok(&rest), "redrove 3 messages to `orders`\n");
    assert_eq!(server.stat("orders.dlq", "depth"), 0);
}

#[test]
fn what_makes_no_sense_is_refused_with_what_does() {
    let server = Server::with_orders();
    assert_snapshot!(
        "redrive_another_queue",
        server.fails(&["redrive", "orders", "--all"])
    );
    assert_snapshot!(
        "redrive_nowhere",
        server.fails(&["redrive", "nobody.dlq", "--all"])
    );
    assert_snapshot!(
        "enqueue_dead_letter",
        server.fails(&["enqueue", "orders.dlq", "hello"])
    );
    assert_snapshot!(
        "delete_dead_letters",
        server.fails(&["queue", "delete", "orders.dlq", "--yes"])
    );
    for arguments in [
        &["redrive", "orders.dlq"] as &[&str],
        &["redrive", "orders.dlq", "--all", "--limit", "1"],
        &["redrive", "orders.dlq", "--limit", "0"],
        &["redrive", "orders.dlq", "--all", "--rate", "0"],
    ] {
        assert_eq!(server.run(arguments).code, Some(2), "{arguments:?}");
    }
}

#[test]
fn a_group_is_redriven_with_all_its_keys() {
    let server = Server::start();
    let once = ["--retry-attempts-max", "1", "--retry-backoff", "0"];
    server.ok(&[&["queue", "create", "orders"][..], &once].concat());
    for key in ["acme", "acme/alice", "acme/batch/7", "acme-2", "zeta"] {
        server.ok(&["enqueue", "orders", "x", "--key", key]);
    }
    let consume = ["consume", "orders", "--exec", "exit 1", "--idle", "100ms"];
    assert_eq!(server.run(&consume).code, Some(1));
    assert_eq!(server.stat("orders.dlq", "depth"), 5);
    assert_eq!(
        server.ok(&["redrive", "orders.dlq", "--all", "--within", "acme"]),
        "redrove 3 messages to `orders`\n"
    );
    assert_eq!(server.stat("orders", "ready"), 3);
    assert_eq!(server.stat("orders.dlq", "depth"), 2);
}
