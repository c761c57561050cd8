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

/// A queue whose tenant `acme` has a group, keys and messages of its own.
fn with_groups() -> Server {
    let server = Server::with_orders();
    for (key, count) in [
        ("acme", "2"),
        ("acme/alice", "3"),
        ("acme/batch/{n}", "30"),
        ("zeta", "5"),
    ] {
        server.ok(&["enqueue", "orders", "x", "--key", key, "--count", count]);
    }
    server.ok(&["key", "weight", "orders", "acme", "3"]);
    server.ok(&["key", "depth-max", "orders", "acme", "1000"]);
    server.ok(&["key", "pause", "orders", "acme/batch"]);
    server.ok(&["key", "concurrency", "orders", "zeta", "2"]);
    server
}

#[test]
fn groups_are_listed_as_a_tree_with_their_members() {
    let server = with_groups();
    let cut = server.run(&["key", "list", "orders", "--tree", "--limit", "3"]);
    assert_snapshot!("key_tree", cut.stdout);
    assert_eq!(
        cut.stderr,
        "note: 27 keys and groups are left out; show more with a larger --limit, or a part with --within\n"
    );
    let by_default = server.run(&["key", "list", "orders", "--tree"]);
    assert!(
        by_default.stdout.contains("    … 10 more"),
        "{}",
        by_default.stdout
    );
    let part = server.ok(&[
        "key",
        "list",
        "orders",
        "--tree",
        "--within",
        "acme/batch",
        "--limit",
        "100",
    ]);
    assert_eq!(part.lines().count(), 1 + 1 + 30, "{part}");
    assert!(
        part.lines().nth(1).unwrap().starts_with("acme/batch "),
        "{part}"
    );
    let flat = server.ok(&["key", "list", "orders", "--within", "acme/alice"]);
    assert_eq!(flat.lines().count(), 2, "{flat}");
    let none = server.run(&["key", "list", "orders", "--tree", "--within", "globex"]);
    assert_eq!(
        (none.stdout.as_str(), none.stderr.as_str()),
        (
            "",
            "note: no fairness key in `globex` of queue `orders` has messages\n"
        )
    );
    let refused = server.fails(&["key", "list", "orders", "--tree", "--within", "acme/"]);
    assert!(
        refused.starts_with("1: error: part 2 of the fairness key is empty"),
        "{refused}"
    );
}

#[test]
fn a_tree_as_json_has_groups_and_keys_in_one_form() {
    let server = with_groups();
    let json = server.ok(&["key", "list", "orders", "--tree", "--json"]);
    let nodes: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // Two groups, and 33 keys.
    assert_eq!(nodes.len(), 35);
    let shown: Vec<&str> = json
        .lines()
        .filter(|line| !line.contains("acme/batch/"))
        .collect();
    assert_snapshot!("key_tree_json", shown.join("\n"));
    let cut = server.run(&["key", "list", "orders", "--tree", "--json", "--limit", "1"]);
    assert_eq!(cut.stdout.lines().count(), 3, "{}", cut.stdout);
    assert!(
        cut.stderr
            .starts_with("note: 32 keys and groups are left out"),
        "{}",
        cut.stderr
    );
}

#[test]
fn a_group_is_changed_as_a_key_is_and_its_settings_are_inspected() {
    let server = with_groups();
    let mut session = String::new();
    for arguments in [
        &["key", "weight", "orders", "acme/alice", "2"][..],
        &["key", "resume", "orders", "acme/batch"],
        &["key", "depth-max", "orders", "acme/batch", "500", "--json"],
        &["key", "depth-max", "orders", "acme", "0"],
        &["key", "concurrency", "orders", "acme", "4"],
    ] {
        session += &format!("$ fila {}\n{}", arguments.join(" "), server.ok(arguments));
    }
    let inspected = server.ok(&["queue", "inspect", "orders"]);
    let (_, settings) = inspected.split_once("keys and groups").unwrap();
    session += &format!("keys and groups{settings}");
    assert_snapshot!("group_session", session);
    assert!(
        inspected.contains("active groups         2\n"),
        "{inspected}"
    );
    for (path, sentence) in [
        ("acme/", "part 2 of the fairness key is empty"),
        ("a/b/c/d/e", "the fairness key has 5 parts between `/`"),
    ] {
        let refused = server.fails(&["key", "pause", "orders", path]);
        assert!(
            refused.starts_with(&format!("1: error: {sentence}")),
            "{refused}"
        );
    }
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
