//! A server and its clients under disturbances: processes that stop for a while and go on, a wall clock that jumps by an
//! hour, two servers on one directory. No message is lost, no acknowledged message comes again, rates hold, and the
//! other clients do not notice.
#![cfg(test)] // helpers may unwrap, as tests do

#[cfg(target_os = "linux")]
mod clock;
mod consumer;
#[path = "../common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;
mod stopped_consumer;
mod stopped_server;
mod twice;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fila_sdk::{Client, Consumer, QueueInfo};

use program::{Running, fila};

const QUEUE: &str = "orders";

/// Longer than anything takes that works, and shorter than an hour by far.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the command that runs a server on this directory.
fn server_on(directory: &Path) -> Command {
    let mut command = fila();
    command.args(["server", "--address", "127.0.0.1:0", "--log", "error"]);
    command.arg("--data").arg(directory);
    command
}

fn signal(process: u32, name: &str) {
    let process = process.to_string();
    let sent = Command::new("kill").args(["-s", name, &process]).status();
    assert!(sent.unwrap().success());
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.expect("it happens within patience")
}

async fn client_of(server: &Running) -> Client {
    soon(Client::connect(&server.address)).await.unwrap()
}

async fn inspect(client: &Client, queue: &str) -> QueueInfo {
    soon(client.admin().queue(queue)).await.unwrap()
}

/// Takes and acknowledges `count` messages, none of them twice, and returns the attempt of each.
async fn take(consumer: &mut Consumer, count: usize) -> BTreeMap<String, u32> {
    let (mut taken, mut acks) = (BTreeMap::new(), Vec::new());
    while taken.len() < count {
        let delivery = soon(consumer.next()).await.unwrap().unwrap();
        let text = String::from_utf8(delivery.payload.to_vec()).unwrap();
        let before = taken.insert(text, delivery.attempt);
        assert_eq!(before, None, "{delivery:?} comes once");
        acks.push(delivery.ack());
    }
    for ack in acks {
        soon(ack).await.unwrap();
    }
    taken
}
