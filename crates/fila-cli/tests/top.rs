//! `fila top` without a terminal: one look at a real server.
#![cfg(test)] // helpers may unwrap, as tests do

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use fila_sdk::{Client, Message, QueueSettings};
use serde_json::Value;
use tempfile::TempDir;

/// A server of its own process, with a queue of two keys.
struct Running {
    process: Child,
    address: String,
    _directory: TempDir,
}

impl Running {
    async fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_fila"))
            .env_clear()
            .current_dir(directory.path())
            .args(["server", "--address", "127.0.0.1:0", "--log", "warn"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.strip_prefix("fila is listening on ").unwrap();
        let running = Self {
            address: address.trim().to_owned(),
            process,
            _directory: directory,
        };
        running.fill().await;
        running
    }

    async fn fill(&self) {
        let client = Client::connect(&self.address).await.unwrap();
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

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn top(address: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fila"))
        .env_clear()
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
    let server = Running::start().await;
    // There is no terminal: it is one look, with and without the flag.
    for arguments in [&["--once", "--queue", "orders"] as &[&str], &[]] {
        let text = text(top(&server.address, arguments));
        assert!(text.starts_with("fila "), "{text}");
        assert!(text.contains("fsync"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(words(&text, "orders")[1..5], ["12", "12", "0", "0"]);
        assert_eq!(words(&text, "gold")[1..3], ["3", "5"]);
        assert_eq!(words(&text, "gold")[8], "75.0%");
        assert_eq!(words(&text, "basic")[8], "25.0%");
    }

    let json = text(top(
        &server.address,
        &["--once", "--json", "--queue", "orders"],
    ));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["queues"][0]["depth"], 12);
    assert_eq!(json["queues"][0]["enqueued_per_second"], 0.0);
    assert_eq!(json["keys_of"]["keys"][0]["fairness_key"], "basic");
    assert!(
        json["keys_of"]["keys"][0]["head_waiting_ms"]
            .as_u64()
            .is_some()
    );
}

#[tokio::test]
async fn a_queue_that_does_not_exist_is_named() {
    let server = Running::start().await;
    let ended = top(&server.address, &["--once", "--queue", "nowhere"]);
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
