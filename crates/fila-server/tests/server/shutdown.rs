//! Graceful shutdown: the server answers every accepted request, and no call hangs.

use std::time::{Duration, Instant};

use fila_server::runtime::Stopped;
use tonic::Code;

use crate::common::pipes::{Producer, Worker};
use crate::common::{Rig, assert_refused, get, in_memory, message, on_disk, soon};

#[tokio::test]
async fn everything_that_was_accepted_is_answered_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    for frame in 0..200 {
        producer
            .send(frame, "orders", vec![message("a", "x"); 10])
            .await;
    }
    // Some are answered, the rest is under way.
    let mut stored = producer.answer().await.results.len();
    let handle = rig.server.handle();
    let shutdown = tokio::spawn(rig.server.shutdown());
    let ended = loop {
        match soon(producer.answers.message()).await {
            Ok(Some(answer)) => {
                let results = answer.results.iter();
                for result in results {
                    match &result.error {
                        None => stored += 1,
                        Some(error) => assert_eq!(error.code().name(), "SHUTTING_DOWN"),
                    }
                }
            }
            Ok(None) => panic!("a stream that the server ends says why"),
            Err(status) => break status,
        }
    };
    assert_refused::<()>(Err(ended), Code::Unavailable, "SHUTTING_DOWN");
    assert_eq!(soon(shutdown).await.unwrap(), Stopped::Complete);
    assert!(handle.queue("orders").is_err());

    let mut rig = Rig::with(on_disk(directory.path())).await;
    assert_eq!(rig.stats("orders").await.depth, stored as u64);
}

#[tokio::test]
async fn consumers_are_told_and_their_streams_end() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for _ in 0..2 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut deliveries = rig.consume("orders", 1).await;
    deliveries.next().await;
    let mut worker = Worker::open(&rig, "orders", 1).await;
    worker.frame().await;
    let shutdown = tokio::spawn(rig.server.shutdown());
    let ended = soon(deliveries.try_next()).await;
    assert_refused(ended, Code::Unavailable, "SHUTTING_DOWN");
    assert_refused(worker.end().await, Code::Unavailable, "SHUTTING_DOWN");
    assert_eq!(soon(shutdown).await.unwrap(), Stopped::Complete);
}

#[tokio::test]
async fn a_client_that_does_nothing_cannot_hold_a_shutdown_up() {
    let mut config = in_memory();
    config.server.shutdown_timeout = Duration::from_millis(500);
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    // A stream that the client does not read, with more messages than any buffer holds, and a silent connection.
    let mut producer = Producer::open(&rig).await;
    let large = "x".repeat(100_000);
    for frame in 0..100 {
        producer
            .send(frame, "orders", vec![message("a", &large)])
            .await;
        producer.answer().await;
    }
    let _unread = Worker::open(&rig, "orders", 1_000).await;
    let _silent = tokio::net::TcpStream::connect(rig.server.address())
        .await
        .unwrap();
    let began = Instant::now();
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_server_that_has_shut_down_listens_no_more() {
    let rig = Rig::start().await;
    let address = rig.server.address();
    assert_eq!(get(&rig.server, "/readyz").await.0, 200);
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
