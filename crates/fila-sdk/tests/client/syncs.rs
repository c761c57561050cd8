//! Counts the rounds that sends cost the server. Each round is one sync.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{Rig, on_disk, soon};

/// Reads how many rounds the server has stored.
async fn rounds(rig: &Rig) -> u64 {
    let mut wire = TcpStream::connect(rig.server.address()).await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n";
    wire.write_all(request.as_bytes()).await.unwrap();
    let mut metrics = String::new();
    soon(wire.read_to_string(&mut metrics)).await.unwrap();
    let mut lines = metrics.lines();
    let count = lines.find_map(|line| line.strip_prefix("fila_commit_duration_seconds_count"));
    let count = count.unwrap_or_else(|| panic!("no count in {metrics}"));
    count.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn one_task_in_a_loop_waits_for_one_sync_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::with(on_disk(directory.path()), |client| client).await;
    let orders = rig.queue("orders").await;
    let before = rounds(&rig).await;
    for _ in 0..50 {
        soon(orders.send("x")).await.unwrap();
    }
    assert_eq!(rounds(&rig).await - before, 50);
}

#[tokio::test]
async fn a_thousand_tasks_at_once_share_their_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::with(on_disk(directory.path()), |client| {
        client.deadline(Duration::from_secs(60))
    })
    .await;
    let orders = rig.queue("orders").await;
    let before = rounds(&rig).await;
    let tasks: Vec<_> = (0..1000)
        .map(|_| {
            let orders = orders.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    orders.send("x").await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    let rounds = rounds(&rig).await - before;
    // Five rounds of a thousand, and some of their beginnings and ends: far from five thousand.
    assert!(rounds <= 100, "{rounds} rounds for 5,000 messages");
    println!("{rounds} rounds for 5,000 messages");
}
