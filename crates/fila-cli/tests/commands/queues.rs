//! `fila queue`.

use std::time::Duration;

use fila_sdk::{Client, PeekedState};
use insta::assert_snapshot;

use crate::rig::Server;

#[test]
fn a_queue_is_created_listed_inspected_and_deleted() {
    let server = Server::start();
    assert_eq!(
        server.ok(&["queue", "create", "orders", "--visibility-timeout", "45000"]),
        "created queue `orders`\n"
    );
    server.ok(&["queue", "create", "mails", "--ordering", "key"]);
    server.ok(&["enqueue", "orders", "hello", "--key", "acme"]);
    assert_snapshot!("queue_list", server.ok(&["queue", "list"]));
    assert_snapshot!("queue_list_json", server.ok(&["queue", "list", "--json"]));
    assert_snapshot!("queue_inspect", server.ok(&["queue", "inspect", "orders"]));
    assert_eq!(
        server.ok(&["queue", "delete", "orders", "--yes"]),
        "deleted queue `orders`\n"
    );
    let left = server.ok(&["queue", "list", "--prefix", "ord", "--json"]);
    assert_eq!(left, "");
}

#[tokio::test]
async fn a_queue_leases_its_messages_for_the_visibility_timeout_of_its_flag() {
    let server = Server::start();
    // Not the default, which is 30 s.
    server.ok(&["queue", "create", "orders", "--visibility-timeout", "45000"]);
    server.ok(&["enqueue", "orders", "hello"]);
    let client = Client::connect(server.address()).await.unwrap();
    let taken = client.queue("orders").receive().run().await.unwrap();
    let timeout = Duration::from_secs(45);
    assert_eq!(taken[0].lease_time, timeout);
    // The lease began after the message was stored, and before the peek.
    let page = client.queue("orders").peek().page().await.unwrap();
    let PeekedState::Leased { until } = page.messages[0].state else {
        panic!("{page:?}");
    };
    assert!(until >= taken[0].enqueued_at + timeout, "{page:?}");
    assert!(until <= page.now + timeout, "{page:?}");
}

#[test]
fn a_separator_is_a_character_or_off_and_shown() {
    let server = Server::start();
    let shown = || {
        let text = server.ok(&["queue", "inspect", "orders"]);
        let line = text.lines().find(|line| line.contains("key separator"));
        line.unwrap().split_whitespace().last().unwrap().to_owned()
    };
    let json = || {
        let text = server.ok(&["queue", "inspect", "orders", "--json"]);
        let queue: serde_json::Value = serde_json::from_str(&text).unwrap();
        queue["settings"]["key_separator"].clone()
    };
    server.ok(&["queue", "create", "orders", "--key-separator", "off"]);
    assert_eq!((shown().as_str(), json()), ("off", "".into()));
    server.ok(&["enqueue", "orders", "x", "--key", "a//b"]);
    for separator in ["-", ":"] {
        server.ok(&["queue", "update", "orders", "--key-separator", separator]);
        assert_eq!((shown().as_str(), json()), (separator, separator.into()));
    }
    let refused = server.fails(&["queue", "update", "orders", "--key-separator", "ab"]);
    assert!(
        refused.starts_with("1: error: key_separator \"ab\" is not allowed"),
        "{refused}"
    );
    let refused = server.fails(&["queue", "update", "orders.dlq", "--key-separator", "|"]);
    assert!(
        refused.contains("`key_separator` does nothing for queue `orders.dlq`"),
        "{refused}"
    );
    let refused = server.fails(&["enqueue", "orders", "x", "--key", "a::b"]);
    assert!(
        refused.contains("part 2 of the fairness key is empty"),
        "{refused}"
    );
}

#[test]
fn every_setting_has_a_flag() {
    let server = Server::start();
    let created = server.ok(&[
        "queue",
        "create",
        "mails",
        "--visibility-timeout=5m",
        "--ordering=key",
        "--key-concurrency=2",
        "--key-separator=:",
        "--charge=bytes",
        "--deduplication-window=1h",
        "--deduplication-scope=queue",
        "--depth-max=1000",
        "--key-depth-max=100",
        "--message-ttl=1d",
        "--retry-attempts-max=5",
        "--retry-backoff=10s",
        "--retry-backoff-max=1h",
        "--retry-jitter-percent=25",
        "--json",
    ]);
    assert_snapshot!("queue_create_json", created);
    let updated = server.ok(&["queue", "update", "mails", "--charge", "time"]);
    assert_snapshot!("queue_update", updated);
    assert_snapshot!(
        "queue_inspect_settings",
        server.ok(&["queue", "inspect", "mails"])
    );
}

#[test]
fn an_update_with_a_version_is_refused_after_another_one() {
    let server = Server::with_orders();
    let queue = server.ok(&["queue", "inspect", "orders", "--json"]);
    let queue: serde_json::Value = serde_json::from_str(&queue).unwrap();
    let version = queue["version"].to_string();
    let update = [
        "queue",
        "update",
        "orders",
        "--depth-max",
        "7",
        "--version",
        &version,
    ];
    server.ok(&update);
    assert_snapshot!("queue_update_changed", server.fails(&update));
}

#[test]
fn a_paused_queue_gives_nothing_until_it_is_resumed() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "hello"]);
    assert_eq!(
        server.ok(&["queue", "pause", "orders"]),
        "paused queue `orders`\n"
    );
    let said = server.run(&["consume", "orders", "--ack", "--idle", "50ms"]);
    assert_eq!((said.stdout.as_str(), said.code), ("", Some(0)));
    assert_snapshot!("consume_paused", said.stderr);
    assert_eq!(
        server.ok(&["queue", "resume", "orders", "--json"]),
        "{\"name\":\"orders\",\"done\":\"resumed\"}\n"
    );
    assert_eq!(
        server.ok(&["consume", "orders", "--ack", "--limit", "1"]),
        "hello\n"
    );
}

#[test]
fn what_cannot_be_undone_needs_a_yes() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "a", "b", "c"]);
    assert_snapshot!(
        "queue_purge_unasked",
        server.fails(&["queue", "purge", "orders"])
    );
    server.fails(&["queue", "delete", "orders"]);
    assert_eq!(server.stat("orders", "depth"), 3);
    assert_eq!(
        server.ok(&["queue", "purge", "orders", "--yes"]),
        "purged 3 messages of queue `orders`\n"
    );
    assert_eq!(
        server.ok(&["queue", "purge", "orders", "-y", "--json"]),
        "{\"name\":\"orders\",\"done\":\"purged\",\"purged\":0}\n"
    );
}

#[test]
fn an_empty_list_says_what_to_do_to_people_and_nothing_to_programs() {
    let server = Server::start();
    let said = server.run(&["queue", "list"]);
    assert_eq!((said.stdout.as_str(), said.code), ("", Some(0)));
    assert_snapshot!("queue_list_empty", said.stderr);
    assert_eq!(server.ok(&["queue", "list", "--json"]), "");
}

#[test]
fn colours_are_for_terminals_unless_they_are_asked_for() {
    let server = Server::with_orders();
    assert!(!server.ok(&["queue", "list"]).contains('\u{1b}'));
    assert!(
        server
            .ok(&["queue", "list", "--color", "always"])
            .contains('\u{1b}')
    );
}

#[test]
fn a_list_ends_well_when_its_pipe_is_closed() {
    let server = Server::start();
    for number in 0..50 {
        server.ok(&["queue", "create", &format!("queue-{number:040}")]);
    }
    let script = format!(
        "'{}' queue list --addr {} | head -1; echo done",
        env!("CARGO_BIN_EXE_fila"),
        server.address()
    );
    let mut shell = std::process::Command::new("sh");
    let said = crate::rig::run(shell.args(["-c", &script]), b"");
    assert!(said.stdout.starts_with("QUEUE") && said.stdout.ends_with("\ndone\n"));
    assert_eq!(said.stderr, "");
}
