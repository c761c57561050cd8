//! `fila top` without a terminal: one look at a real server.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;

use std::process::Output;

use fila_sdk::{Client, Message, QueueSettings};
use serde_json::Value;
use tempfile::TempDir;

use program::{Running, fila};

/// A server of its own process, with a queue of two keys.
struct Server {
    running: Running,
    _directory: TempDir,
}

impl Server {
    async fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let running = Running::start(fila().current_dir(directory.path()).args([
            "server",
            "--address",
            "127.0.0.1:0",
            "--log",
            "warn",
        ]));
        let server = Self {
            running,
            _directory: directory,
        };
        server.fill().await;
        server
    }

    async fn fill(&self) {
        let client = Client::connect(&self.running.address).await.unwrap();
        let settings = QueueSettings::new();
        client
            .admin()
            .create_queue("orders", settings)
            .await
            .unwrap();
        let queue = client.queue("orders");
        for (key, weight, count) in [("gold", 3, 5), ("basic", 1, 7)] {
            for _ in 0..count {
                queue
                    .send(Message::new("x").key(key).weight(weight))
                    .await
                    .unwrap();
            }
        }
    }
}

fn top(address: &str, arguments: &[&str]) -> Output {
    fila()
        .env("FILA_ADDR", address)
        .args(["top", "--interval", "100ms"])
        .args(arguments)
        .output()
        .unwrap()
}

fn text(output: Output) -> String {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the words of the line that begins with this one.
fn words<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let mut lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.first() == Some(&first));
    line.unwrap_or_else(|| panic!("no line of `{first}`:\n{text}"))
}

#[tokio::test]
async fn one_look_shows_queues_and_the_keys_of_one() {
    let server = Server::start().await;
    // There is no terminal: it is one look, with and without the flag.
    for arguments in [&["--once", "--queue", "orders"] as &[&str], &[]] {
        let text = text(top(&server.running.address, arguments));
        assert!(text.starts_with("fila "), "{text}");
        assert!(text.contains("fsync"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(words(&text, "orders")[1..5], ["12", "12", "0", "0"]);
        assert_eq!(words(&text, "gold")[1..3], ["3", "5"]);
        assert_eq!(words(&text, "gold")[9], "75.0%");
        assert_eq!(words(&text, "basic")[9], "25.0%");
    }

    let json = text(top(
        &server.running.address,
        &["--once", "--json", "--queue", "orders"],
    ));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["queues"][0]["depth"], 12);
    assert_eq!(json["queues"][0]["enqueued_per_second"], 0.0);
    assert_eq!(json["keys_of"]["keys"][0]["key"], "basic");
    assert!(
        json["keys_of"]["keys"][0]["head_waiting_ms"]
            .as_u64()
            .is_some()
    );
}

#[tokio::test]
async fn a_queue_that_does_not_exist_is_named() {
    let server = Server::start().await;
    let ended = top(&server.running.address, &["--once", "--queue", "nowhere"]);
    assert_eq!(ended.status.code(), Some(4));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("`nowhere`"), "{said}");
}

#[test]
fn without_a_server_it_says_what_to_do() {
    // Nothing listens on this port: it is one of those that need a privilege.
    let ended = top("http://127.0.0.1:1", &["--once"]);
    assert_eq!(ended.status.code(), Some(3));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("fila server"), "{said}");
}
