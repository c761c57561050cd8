//! `fila explain`.

use std::path::Path;
use std::process::{Child, Stdio};

use insta::assert_snapshot;

use crate::rig::{Server, eventually};

/// Types commands, and returns what was typed and what came back.
fn session(server: &Server, commands: &[&[&str]]) -> String {
    let mut session = String::new();
    for arguments in commands {
        let said = server.ok(arguments);
        session += &format!("$ fila {}\n{said}\n", arguments.join(" "));
    }
    session
}

/// Returns lines with `[time]` for times: theirs differ.
fn without_moments(text: &str) -> String {
    let lines = text.lines().map(|line| {
        for before in ["in the last ", "the first ends in ", "next        in "] {
            if let Some((start, rest)) = line.split_once(before) {
                let end = rest.find([',', ';']).map_or("", |end| &rest[end..]);
                return format!("{start}{before}[time]{end}");
            }
        }
        line.to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Starts a consumer that is busy until the directory is gone, and has what it can take.
fn busy_consumer(server: &Server, directory: &Path) -> Child {
    let busy = format!(
        "while [ -e '{}' ]; do sleep 0.02; done",
        directory.display()
    );
    server
        .command(&["consume", "orders", "--exec", &busy])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn every_state_that_a_shell_can_make_is_explained() {
    let server = Server::with_orders();
    server.ok(&[
        "enqueue", "orders", "a", "b", "--key", "acme", "--weight", "3",
    ]);
    server.ok(&["enqueue", "orders", "c", "--key", "late", "--delay", "1h"]);
    let mut said = session(
        &server,
        &[
            &["explain", "orders", "nobody"],
            &["explain", "orders", "acme"],
            &["explain", "orders", "late"],
        ],
    );
    server.ok(&["key", "pause", "orders", "acme"]);
    said += &session(&server, &[&["explain", "orders", "acme"]]);
    server.ok(&["queue", "pause", "orders"]);
    said += &session(&server, &[&["explain", "orders", "acme"]]);
    assert_snapshot!("explain", without_moments(&said));
}

#[test]
fn a_key_in_groups_is_explained_by_the_level_that_makes_it_wait() {
    let server = Server::with_orders();
    for key in ["acme", "acme/team/alice", "acme/team/bob", "globex"] {
        server.ok(&["enqueue", "orders", "a", "b", "--key", key]);
    }
    server.ok(&["key", "weight", "orders", "acme", "3"]);
    let alice: &[&str] = &["explain", "orders", "acme/team/alice"];
    let mut said = session(&server, &[alice, &["explain", "orders", "acme"]]);
    let pause = |path: &str, verb: &str| server.ok(&["key", verb, "orders", path]);
    pause("acme", "pause");
    said += &session(&server, &[alice, &["explain", "orders", "acme"]]);
    pause("acme", "resume");
    for path in ["acme/team/alice", "acme/team/bob"] {
        pause(path, "pause");
    }
    said += &session(&server, &[alice, &["explain", "orders", "acme/team"]]);
    assert_snapshot!("explain_groups", without_moments(&said));
}

#[test]
fn the_cap_of_a_group_is_explained_as_its_own() {
    let server = Server::with_orders();
    for key in ["acme/alice", "acme/bob"] {
        server.ok(&["enqueue", "orders", "a", "b", "--key", key]);
    }
    server.ok(&["key", "concurrency", "orders", "acme", "1"]);
    let directory = tempfile::tempdir().unwrap();
    let mut consumer = busy_consumer(&server, directory.path());
    eventually(|| server.stat("orders", "leased") == 1);
    let said = server.ok(&["explain", "orders", "acme/bob"]);
    let first = "key `acme/bob` of queue `orders` waits for a result of group `acme`: \
                 consumers hold 1 message of it, the most that the group may have at once\n";
    assert!(said.starts_with(first), "{said}");
    assert!(said.contains(" 1 of 1  at its cap"), "{said}");
    let said = server.ok(&["explain", "orders", "acme"]);
    let first = "group `acme` of queue `orders` waits for a result: \
                 consumers hold 1 message, the most that the group may have at once\n";
    assert!(said.starts_with(first), "{said}");
    consumer.kill().unwrap();
    consumer.wait().unwrap();
}

#[test]
fn json_has_every_level() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "a", "--key", "acme/alice"]);
    server.ok(&["key", "pause", "orders", "acme"]);
    let json = server.ok(&["explain", "orders", "acme/alice", "--json"]);
    let alice: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&alice["group"], &alice["reason"]),
        (&false.into(), &"key_paused".into())
    );
    let levels = serde_json::to_string_pretty(&alice["levels"]).unwrap();
    assert_snapshot!("explain_levels_json", levels);
    let json = server.ok(&["explain", "orders", "acme", "--json"]);
    let acme: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&acme["group"], &acme["ready"]), (&true.into(), &1.into()));
}

#[test]
fn json_has_every_figure() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "c", "--key", "late", "--delay", "1h"]);
    let json = server.ok(&["explain", "orders", "late", "--json"]);
    assert_eq!(json.lines().count(), 1);
    let mut late: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(late["estimate_ms"], late["until_ms"]);
    for time in ["now_ms", "until_ms", "estimate_ms", "recent_ms"] {
        assert!(late[time].is_u64(), "{json}");
        late[time] = "[time]".into();
    }
    assert_snapshot!("explain_json", serde_json::to_string_pretty(&late).unwrap());
}

#[test]
fn a_key_that_waits_for_its_turn_is_told_its_place_and_its_share() {
    let server = Server::with_orders();
    for key in ["a", "b", "c"] {
        server.ok(&["enqueue", "orders", "x", "--count", "2000", "--key", key]);
    }
    let directory = tempfile::tempdir().unwrap();
    let mut consumer = busy_consumer(&server, directory.path());
    let mut leased = 0;
    eventually(|| {
        let before = std::mem::replace(&mut leased, server.stat("orders", "leased"));
        leased > 0 && leased == before
    });
    let mut places = Vec::new();
    for key in ["a", "b", "c"] {
        let json = server.ok(&["explain", "orders", key, "--json"]);
        let explained: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(explained["reason"], "runnable", "{json}");
        assert_eq!(explained["position_exact"], true);
        let ideal = explained["ideal_share"].as_f64().unwrap();
        assert!((ideal - 1.0 / 3.0).abs() < 0.01, "{json}");
        let position = explained["position"].as_u64().unwrap();
        assert!(position <= explained["bound"].as_u64().unwrap(), "{json}");
        let said = server.ok(&["explain", "orders", key]);
        let place = match position {
            0 => "is next",
            1 => "waits for its turn: 1 delivery to other keys comes before it",
            2 => "waits for its turn: 2 deliveries to other keys come before it",
            more => panic!("{more} of three keys"),
        };
        let first = format!("key `{key}` of queue `orders` {place}\n");
        assert!(said.starts_with(&first), "{said}");
        assert!(said.contains("at the pace of the queue"), "{said}");
        places.push(position);
    }
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2]);
    consumer.kill().unwrap();
    consumer.wait().unwrap();
}
