#![cfg(test)] // helpers may unwrap, as tests do
//! `fila server` as a supervisor sees it: start and stop.

#[path = "common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fila_sdk::{Client, Error, QueueSettings};
use tempfile::TempDir;

use program::{Running, fila};

/// Starts a server in this directory.
fn server(directory: &Path) -> Running {
    server_at(directory, "127.0.0.1:0")
}

fn server_at(directory: &Path, address: &str) -> Running {
    let arguments = ["server", "--address", address, "--log", "warn"];
    Running::start(fila().current_dir(directory).args(arguments))
}

impl Running {
    fn signal(&self, name: &str) {
        let process = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &process]).status();
        assert!(sent.unwrap().success());
    }

    fn readiness(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = "GET /readyz HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_server_says_where_it_listens_and_ends_in_order_when_it_is_told_to() {
    let directory = TempDir::new().unwrap();
    for signal in ["TERM", "INT"] {
        // The second one finds the directory free: the first has closed its store.
        let mut server = server(directory.path());
        assert!(server.readiness().ends_with("ready\n"));
        server.signal(signal);
        let ended = server.process.wait().unwrap();
        assert_eq!(ended.code(), Some(0), "{signal}");
        assert!(TcpStream::connect(&server.address).is_err());
    }
}

#[test]
fn a_second_server_on_the_same_directory_says_what_to_do() {
    let directory = TempDir::new().unwrap();
    let _first = server(directory.path());
    let second = fila()
        .current_dir(directory.path())
        .args(["server", "--address", "127.0.0.1:0", "--log", "error"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("is in use; stop the other server"), "{said}");
}

/// Returns what becomes of an acknowledgement if the server gets a signal and starts again while a handler works, and how
/// many messages the queue has then.
fn acknowledged_after(signal: &str) -> (Result<(), Error>, u64) {
    let directory = TempDir::new().unwrap();
    let mut running = server(directory.path());
    let address = running.address.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = Client::builder(address.clone());
    let client = client.backoff(Duration::from_millis(1), Duration::from_millis(50));
    let client = runtime.block_on(client.connect()).unwrap();
    let orders = client.queue("orders");
    let (mut consumer, held) = runtime.block_on(async {
        let created = client.admin();
        let created = created.create_queue("orders", QueueSettings::new());
        created.await.unwrap();
        orders.send("x").await.unwrap();
        let mut consumer = orders.consumer().subscribe();
        let held = consumer.next().await.unwrap().unwrap();
        (consumer, held)
    });
    running.signal(signal);
    running.process.wait().unwrap();
    let _second = server_at(directory.path(), &address);
    runtime.block_on(async {
        let acked = held.ack().await;
        if acked.is_err() {
            // It is delivered again.
            consumer
                .next()
                .await
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        let depth = client.admin().queue("orders").await.unwrap().stats.depth;
        (acked, depth)
    })
}

#[test]
fn a_lease_outlives_a_server_that_is_told_to_stop_and_no_server_that_is_killed() {
    let (acked, depth) = acknowledged_after("TERM");
    assert_eq!((acked.unwrap(), depth), ((), 0));
    let (acked, depth) = acknowledged_after("KILL");
    assert!(matches!(acked, Err(Error::LeaseLost)), "{acked:?}");
    assert_eq!(depth, 1);
}
