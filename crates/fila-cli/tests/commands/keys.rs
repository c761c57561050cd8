//! `fila key`.

use insta::assert_snapshot;

use crate::rig::{Server, without_times};

#[test]
fn keys_are_listed_with_what_they_have() {
    let server = Server::with_orders();
    server.ok(&[
        "enqueue", "orders", "a", "b", "--key", "acme", "--weight", "3",
    ]);
    server.ok(&["enqueue", "orders", "c", "--key", "zeta", "--delay", "1h"]);
    server.ok(&["key", "pause", "orders", "acme"]);
    let listed = server.ok(&["key", "list", "orders"]);
    assert_snapshot!("key_list", without_times(&listed));
    let json = server.ok(&["key", "list", "orders", "--json"]);
    let mut keys: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(keys[0]["head_waiting_ms"].is_u64());
    keys[0]["head_waiting_ms"] = "[time]".into();
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    assert_snapshot!("key_list_json", keys.join("\n"));
}

#[test]
fn a_list_that_is_cut_says_so() {
    let server = Server::with_orders();
    server.ok(&[
        "enqueue",
        "orders",
        "x",
        "--count",
        "5",
        "--key",
        "tenant-{n}",
    ]);
    let said = server.run(&["key", "list", "orders", "--limit", "2"]);
    assert_eq!(said.stdout.lines().count(), 3);
    assert_snapshot!("key_list_cut", said.stderr);
    let said = server.run(&["key", "list", "orders", "--limit", "5"]);
    assert_eq!((said.stdout.lines().count(), said.stderr.as_str()), (6, ""));
}

#[test]
fn a_key_is_paused_resumed_weighted_and_capped() {
    let server = Server::with_orders();
    let mut session = String::new();
    for arguments in [
        &["key", "pause", "orders", "acme"][..],
        &["key", "weight", "orders", "acme", "3"],
        &["key", "concurrency", "orders", "acme", "2"],
        &["key", "pause", "orders", "acme", "--json"],
        &["key", "resume", "orders", "acme"],
        &["key", "weight", "orders", "acme", "0"],
        &["key", "concurrency", "orders", "acme", "0", "--json"],
    ] {
        session += &format!("$ fila {}\n{}", arguments.join(" "), server.ok(arguments));
    }
    assert_snapshot!("key_session", session);
}
