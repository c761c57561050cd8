//! `fila enqueue`.

use insta::assert_snapshot;
use tempfile::TempDir;

use crate::rig::{Server, without_ids};

fn take_all(server: &Server) -> String {
    server.ok(&["consume", "orders", "--ack", "--idle", "200ms"])
}

#[test]
fn payloads_files_and_lines_are_messages_in_their_order() {
    let server = Server::with_orders();
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("order");
    std::fs::write(&file, "from\na file").unwrap();
    let file = file.to_str().unwrap();
    let ids = server.ok(&["enqueue", "orders", "one", "two", "--file", file]);
    assert_eq!(without_ids(&ids), "[id]\n[id]\n[id]\n");
    let said = server.run_with(
        &["enqueue", "orders", "--lines", "--ids"],
        b"three\r\n\nfour",
    );
    assert_eq!(without_ids(&said.stdout), "[id]\n[id]\n[id]\n");
    let said = server.run_with(&["enqueue", "orders", "-", "--json"], b"five\n");
    assert_snapshot!("enqueue_lines_json", said.stdout);
    let said = server.run_with(&["enqueue", "orders", "--file", "-"], b"six\n");
    assert_eq!(without_ids(&said.stdout), "[id]\n");
    assert_eq!(
        take_all(&server),
        "one\ntwo\nfrom\na file\nthree\n\nfour\nfive\nsix\n\n"
    );
}

#[test]
fn many_are_counted_and_all_arrive() {
    let server = Server::with_orders();
    let lines: String = (0..5000).map(|number| format!("{number}\n")).collect();
    let said = server.run_with(
        &["enqueue", "orders", "--lines", "--key", "acme"],
        lines.as_bytes(),
    );
    assert_eq!((said.stderr.as_str(), said.code), ("", Some(0)));
    assert!(
        said.stdout
            .starts_with("enqueued 5,000 messages to queue `orders` in ")
    );
    assert_eq!(take_all(&server), lines);
}

#[test]
fn what_is_repeated_may_have_keys_of_its_own() {
    let server = Server::with_orders();
    let said = server.ok(&[
        "enqueue",
        "orders",
        "x",
        "--count",
        "3",
        "--key",
        "tenant-{n}",
        "--json",
    ]);
    assert_snapshot!("enqueue_count_json", said);
    let keys = server.ok(&["key", "list", "orders", "--json"]);
    for key in ["tenant-1", "tenant-2", "tenant-3"] {
        assert!(keys.contains(&format!("\"key\":\"{key}\"")), "{keys}");
    }
}

#[test]
fn a_deduplication_id_is_stored_once() {
    let server = Server::with_orders();
    let send = [
        "enqueue",
        "orders",
        "x",
        "--deduplication-id",
        "order-7",
        "--json",
    ];
    let first = server.ok(&send);
    let second = server.ok(&send);
    assert_eq!(
        without_ids(&first),
        "{\"id\":\"[id]\",\"deduplicated\":false}\n"
    );
    assert_eq!(second, first.replace("false", "true"));
}

#[test]
fn lines_of_json_say_everything_and_wrong_ones_are_left_out() {
    let server = Server::with_orders();
    let lines = br#"{"key":"acme","weight":2,"headers":{"tenant":"acme"},"payload":"text"}
{"payload":{"order":7}}
{"payload_base64":"/wA="}
{"payload":"x","kye":"acme"}
"#;
    let said = server.run_with(
        &["enqueue", "orders", "--json-lines", "--header", "via=cli"],
        lines,
    );
    assert_eq!(said.code, Some(1));
    assert!(
        said.stdout
            .starts_with("enqueued 3 messages to queue `orders` in ")
    );
    assert_snapshot!("enqueue_json_lines_wrong", said.stderr);
    let json = server.ok(&["peek", "orders", "--json"]);
    assert!(
        json.contains(
            r#""headers":{"tenant":"acme","via":"cli"},"payload_bytes":4,"payload":"text""#
        ),
        "{json}"
    );
    assert!(json.contains(r#""payload":"{\"order\":7}""#), "{json}");
    assert!(json.contains(r#""payload_base64":"/wA=""#), "{json}");
}

#[test]
fn what_is_refused_is_explained_and_the_rest_is_sent() {
    let server = Server::with_orders();
    let large = format!(
        "small\n{}\nsmall too\n{}\n",
        "x".repeat(2 << 20),
        "x".repeat(2 << 20)
    );
    let said = server.run_with(&["enqueue", "orders", "--lines"], large.as_bytes());
    assert_eq!(said.code, Some(1));
    assert_snapshot!("enqueue_refused", said.stderr);
    assert_eq!(take_all(&server), "small\nsmall too\n");
}

#[test]
fn a_key_above_its_part_is_told_so_in_one_sentence() {
    let server = Server::start();
    server.ok(&["queue", "create", "small", "--depth-max", "8"]);
    let flood = ["enqueue", "small", "x", "--key", "greedy", "--count", "9"];
    let said = server.run(&flood);
    assert_eq!(said.code, Some(1));
    assert_snapshot!("enqueue_over_part", said.stderr);
    let one = server.fails(&["enqueue", "small", "x", "--key", "greedy"]);
    assert!(one.contains("holds"), "{one}");
    assert!(one.contains("part"), "{one}");
    server.ok(&["enqueue", "small", "x", "--key", "quiet"]);
    assert_eq!(server.stat("small", "depth"), 7);
}

#[test]
fn messages_move_from_queue_to_queue_through_a_pipe() {
    let server = Server::with_orders();
    server.ok(&["queue", "create", "other"]);
    server.ok(&[
        "enqueue",
        "other",
        "a",
        "--key",
        "acme",
        "--header",
        "tenant=acme",
    ]);
    let taken = server.ok(&["consume", "other", "--ack", "--json", "--limit", "1"]);
    let said = server.run_with(
        &["enqueue", "orders", "--json-lines", "--json"],
        taken.as_bytes(),
    );
    assert_eq!((said.stderr.as_str(), said.code), ("", Some(0)));
    let moved = server.ok(&["consume", "orders", "--json", "--limit", "1"]);
    let without_id = |text: &str| {
        let mut message: serde_json::Value = serde_json::from_str(text).unwrap();
        message["id"].take();
        message["enqueued_at_ms"].take();
        message
    };
    assert_eq!(without_id(&moved), without_id(&taken));
}

#[test]
fn a_command_that_says_nothing_to_send_is_wrong() {
    let server = Server::with_orders();
    assert_snapshot!("enqueue_nothing", server.fails(&["enqueue", "orders"]));
    assert_snapshot!(
        "enqueue_twice_stdin",
        server.fails(&["enqueue", "orders", "-", "--file", "-"])
    );
    let missing = server.fails(&["enqueue", "orders", "--file", "no-such-file"]);
    assert!(
        missing.starts_with("1: error: cannot read no-such-file: "),
        "{missing}"
    );
}
