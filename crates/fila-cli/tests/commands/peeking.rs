//! `fila peek`.

use insta::assert_snapshot;

use crate::rig::{Server, without_ids, without_times};

#[test]
fn messages_are_shown_and_stay_as_they_are() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "hello", "two\nlines", "--key", "acme"]);
    let long = "ü".repeat(100);
    server.ok(&["enqueue", "orders", &long, "--key", "zeta"]);
    let shown = server.ok(&["peek", "orders"]);
    assert_snapshot!("peek", without_times(&without_ids(&shown)));
    let one = server.ok(&["peek", "orders", "--key", "zeta", "--limit", "1"]);
    assert_eq!(one.lines().count(), 2);
    assert_eq!(server.stat("orders", "ready"), 3);
    assert_eq!(server.stat("orders", "delivered_total"), 0);
}

#[test]
fn json_has_whole_payloads_and_all_times() {
    let server = Server::with_orders();
    let long = "x".repeat(1000);
    server.ok(&[
        "enqueue",
        "orders",
        &long,
        "--delay",
        "1h",
        "--ttl",
        "2h",
        "--deduplication-id",
        "once",
    ]);
    let json = server.ok(&["peek", "orders", "--json"]);
    let mut message: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(message["payload"], long);
    for time in ["enqueued_at_ms", "deliver_after_ms", "expires_at_ms"] {
        assert!(message[time].is_u64(), "{json}");
        message[time] = "[time]".into();
    }
    message["payload"] = "[payload]".into();
    assert_snapshot!(
        "peek_json",
        without_ids(&serde_json::to_string_pretty(&message).unwrap())
    );
}

#[test]
fn a_group_is_shown_with_all_its_keys() {
    let server = Server::with_orders();
    for key in ["acme", "acme/alice", "acme/batch/7", "acme-2", "zeta"] {
        server.ok(&["enqueue", "orders", "x", "--key", key]);
    }
    let json = server.ok(&["peek", "orders", "--within", "acme", "--json"]);
    let keys = json.lines().map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        message["key"].as_str().unwrap().to_owned()
    });
    let keys: Vec<String> = keys.collect();
    assert_eq!(keys, ["acme", "acme/alice", "acme/batch/7"]);
    let refused = server.run(&["peek", "orders", "--within", "a//b"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .stderr
            .contains("part 2 of the fairness key is empty"),
        "{}",
        refused.stderr
    );
    let both = server.run(&["peek", "orders", "--within", "a", "--key", "a"]);
    assert_eq!(both.code, Some(2));
}

#[test]
fn more_than_a_page_is_shown_if_it_is_wanted() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "x", "--count", "250"]);
    let json = server.ok(&["peek", "orders", "--json", "--limit", "230"]);
    assert_eq!(json.lines().count(), 230);
    assert_eq!(server.ok(&["peek", "orders"]).lines().count(), 11);
    let nothing = server.run(&["peek", "orders", "--key", "nobody"]);
    assert_eq!(nothing.stderr, "note: the queue has no messages\n");
}
