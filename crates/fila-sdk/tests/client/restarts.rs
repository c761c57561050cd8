//! A server that is stopped and started again under running clients.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila_sdk::{ErrorCode, Failure, Received};
use fila_server::Server;
use fila_server::runtime::Stopped;

use crate::rig::{Rig, eventually, on_disk, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_and_workers_outlast_restarts_and_nothing_is_lost_or_doubled() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = on_disk(directory.path());
    let mut rig = Rig::with(config.clone(), |client| {
        client.backoff(Duration::from_millis(1), Duration::from_millis(50))
    })
    .await;
    config.server.address = rig.server.address();
    let orders = rig.queue("orders").await;

    let is_over = Arc::new(AtomicBool::new(false));
    let producing = tokio::spawn({
        let (orders, is_over) = (orders.clone(), is_over.clone());
        async move {
            let mut sent = HashSet::new();
            while !is_over.load(Ordering::SeqCst) {
                let batch = (0..20).map(|_| "x");
                for one in orders.send_all(batch).await {
                    let one = one.unwrap();
                    assert!(sent.insert(one.id.to_string()), "one id for two messages");
                }
            }
            sent
        }
    });
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let handler = {
        let seen = seen.clone();
        move |order: Received| {
            seen.lock().unwrap().insert(order.id.to_string());
            async { Ok::<(), Failure>(()) }
        }
    };
    let working = tokio::spawn(orders.worker().run_until(stopped, handler));

    for _ in 0..3 {
        let before = seen.lock().unwrap().len();
        eventually(|| async { seen.lock().unwrap().len() > before + 100 }).await;
        assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
        rig.server = soon(Server::start(config.clone())).await.unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    let sent = soon(producing).await.unwrap();
    eventually(|| async { rig.stats("orders").await.depth == 0 }).await;
    stop.send(()).unwrap();
    soon(working).await.unwrap().unwrap();
    assert_eq!(*seen.lock().unwrap(), sent);
}

#[tokio::test]
async fn a_queue_that_is_deleted_ends_its_consumers() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let mut consumer = orders.consumer().subscribe();
    orders.send("x").await.unwrap();
    let held = soon(consumer.next()).await.unwrap().unwrap();
    soon(rig.client.admin().delete_queue("orders"))
        .await
        .unwrap();
    let error = soon(consumer.next()).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueDeleted), "{error}");
    assert!(soon(held.ack()).await.is_err());
    assert!(soon(consumer.next()).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_runs_across_a_planned_restart_is_acknowledged_and_runs_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = on_disk(directory.path());
    let mut rig = Rig::with(config.clone(), |client| {
        client.backoff(Duration::from_millis(1), Duration::from_millis(50))
    })
    .await;
    config.server.address = rig.server.address();
    let orders = rig.queue("orders").await;
    for _ in 0..10 {
        orders.send("x").await.unwrap();
    }
    let begun = Arc::new(Mutex::new(Vec::new()));
    let (finish, finished) = tokio::sync::watch::channel(false);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let handler = {
        let begun = begun.clone();
        move |order: Received| {
            begun.lock().unwrap().push(order.id.to_string());
            let mut finished = finished.clone();
            async move {
                finished.wait_for(|is_over| *is_over).await.unwrap();
                Ok::<(), Failure>(())
            }
        }
    };
    let worker = orders.worker().concurrency(4).prefetch(6);
    let working = tokio::spawn(worker.run_until(stopped, handler));
    for round in 0..3 {
        eventually(|| async { begun.lock().unwrap().len() == 4 }).await;
        assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
        rig.server = soon(Server::start(config.clone())).await.unwrap();
        let stats = rig.stats("orders").await;
        assert_eq!((stats.depth, stats.leased), (10, 6), "round {round}");
    }
    finish.send(true).unwrap();
    eventually(|| async { rig.stats("orders").await.depth == 0 }).await;
    stop.send(()).unwrap();
    let report = soon(working).await.unwrap().unwrap();
    let mut begun = begun.lock().unwrap().clone();
    begun.sort();
    let runs = begun.len();
    begun.dedup();
    assert_eq!((runs, begun.len()), (10, 10), "no message runs twice");
    assert_eq!((report.acked, report.lost), (10, 0), "{report:?}");
}
