//! The broker on a disk that fails: clear refusals, not ready, nothing confirmed that is not stored, and all of it there
//! after a restart.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../../fila-server/tests/common/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "shared with the tests of the server"
)]
mod common;

use std::collections::BTreeSet;

use common::{Rig, assert_refused, get, message, on_disk, soon};
use fila_faults::Watch;
use fila_server::runtime::State;
use tempfile::{TempDir, tempdir};
use tonic::{Code, Status};

async fn start() -> (TempDir, Watch, Rig) {
    let place = tempdir().unwrap();
    let watch = Watch::new(place.path()).unwrap();
    let mut rig = Rig::with(on_disk(watch.root())).await;
    rig.create("orders").await;
    (place, watch, rig)
}

/// Checks that a server whose store has failed says so to everybody.
async fn assert_out_of_service(rig: &mut Rig) {
    let refused = rig.send("orders", message("a", "after")).await;
    assert_refused(refused, Code::Unavailable, "STORE_UNAVAILABLE");
    assert_eq!(rig.server.handle().info().state, State::Failed);
    assert_eq!(get(&rig.server, "/readyz").await.0, 503);
    assert_eq!(get(&rig.server, "/healthz").await.0, 200);
}

/// Takes everything out of the queue, confirms it, and returns what it was.
async fn drain(rig: &mut Rig) -> Vec<String> {
    let depth = rig.stats("orders").await.depth;
    let mut deliveries = rig.consume("orders", 100).await;
    let mut bodies = Vec::new();
    for _ in 0..depth {
        let delivery = deliveries.next().await;
        rig.ack("orders", &delivery).await.unwrap();
        bodies.push(String::from_utf8(delivery.payload.to_vec()).unwrap());
    }
    bodies
}

#[tokio::test]
async fn a_failed_sync_is_told_to_producers_and_consumers_and_a_restart_has_all_that_was_confirmed()
{
    let (_place, watch, mut rig) = start().await;
    for n in 0..10 {
        rig.enqueue("orders", "a", &format!("{n}")).await;
    }
    let mut deliveries = rig.consume("orders", 3).await;
    let acked = deliveries.next().await;
    rig.ack("orders", &acked).await.unwrap();
    let unsure = deliveries.next().await;
    watch.fail_sync_after(0);
    let refused = rig.ack("orders", &unsure).await;
    assert_refused(refused, Code::Unknown, "OUTCOME_UNKNOWN");
    assert_out_of_service(&mut rig).await;
    let ended = loop {
        match soon(deliveries.try_next()).await {
            Ok(Some(_)) => {} // sent before
            ended => break ended,
        }
    };
    assert_refused(ended, Code::Unavailable, "STORE_UNAVAILABLE");
    drop(deliveries);
    let _ = soon(rig.server.shutdown()).await;

    let mut rig = Rig::with(on_disk(watch.root())).await;
    assert_eq!(get(&rig.server, "/readyz").await.0, 200);
    let left = drain(&mut rig).await;
    let all: Vec<String> = (1..10).map(|n| n.to_string()).collect();
    assert!(left == all || left == all[1..], "{left:?}");
    assert_eq!(rig.stats("orders").await.depth, 0);
}

/// Sends messages until one is refused, and returns the refusal.
async fn fill(rig: &mut Rig, confirmed: &mut BTreeSet<String>) -> Status {
    loop {
        let body = format!("{:05}{}", confirmed.len(), "x".repeat(200_000));
        match rig.send("orders", message("a", &body)).await {
            Ok(_) => assert!(confirmed.insert(body)),
            Err(refused) => return refused,
        }
        assert!(confirmed.len() < 5_000, "the disk is not full");
    }
}

/// Sends a message as soon as the server takes one.
async fn send_once_there_is_room(rig: &mut Rig) {
    let sent = async {
        while let Err(refused) = rig.send("orders", message("a", "after")).await {
            assert_refused(
                Err::<(), _>(refused),
                Code::ResourceExhausted,
                "STORAGE_FULL",
            );
            tokio::task::yield_now().await;
        }
    };
    soon(sent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_messages_is_drained_by_consumers_and_goes_on_without_a_restart() {
    let (_place, watch, mut rig) = start().await;
    // A segment of the log has 16 MiB, and eight of them are kept free.
    watch.set_room(Some(200 << 20));
    let mut confirmed = BTreeSet::new();
    let refused = fill(&mut rig, &mut confirmed).await;
    assert_refused(
        Err::<(), _>(refused),
        Code::ResourceExhausted,
        "STORAGE_FULL",
    );
    assert!(confirmed.len() > 50, "{}", confirmed.len());
    assert_eq!(rig.server.handle().info().state, State::Ready);
    let (code, text) = get(&rig.server, "/readyz").await;
    assert!(
        code == 200 && text.contains("disk is full"),
        "{code} {text}"
    );
    let drained: BTreeSet<String> = drain(&mut rig).await.into_iter().collect();
    assert!(
        drained == confirmed,
        "{} of {}",
        drained.len(),
        confirmed.len()
    );
    send_once_there_is_room(&mut rig).await;
    assert_eq!(drain(&mut rig).await, ["after"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_starts_on_a_full_disk_delivers_what_is_there_and_goes_on() {
    let (_place, watch, mut rig) = start().await;
    // Eight segments of 16 MiB are kept free, and another program takes them. What the messages give back is enough.
    watch.set_room(Some(400 << 20));
    let mut confirmed = BTreeSet::new();
    fill(&mut rig, &mut confirmed).await;
    watch.set_room(Some(0));
    let _ = soon(rig.server.shutdown()).await;

    let mut rig = Rig::with(on_disk(watch.root())).await;
    let refused = rig.send("orders", message("a", "x")).await;
    assert_refused(refused, Code::ResourceExhausted, "STORAGE_FULL");
    let drained: BTreeSet<String> = drain(&mut rig).await.into_iter().collect();
    assert!(
        drained == confirmed,
        "{} of {}",
        drained.len(),
        confirmed.len()
    );
    send_once_there_is_room(&mut rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_confirmed_or_delivered_before_a_slow_sync_has_returned() {
    let (_place, watch, mut rig) = start().await;
    rig.enqueue("orders", "a", "before").await;
    let mut deliveries = rig.consume("orders", 10).await;
    deliveries.next().await;
    let held = watch.hold_syncs();
    let mut producer = rig.another().await;
    let request = fila_proto::v1::EnqueueRequest {
        queue: "orders".to_owned(),
        message: Some(message("a", "slow")),
    };
    let mut sending = tokio::spawn(async move { producer.enqueue(request).await });
    let held = tokio::task::spawn_blocking(move || {
        assert!(held.await_waiting(1, common::PATIENCE));
        held
    });
    let held = soon(held).await.unwrap();
    // The server answers meanwhile, and by then would have answered the other, too.
    assert_eq!(get(&rig.server, "/healthz").await.0, 200);
    assert!(deliveries.is_silent(), "not delivered before it is stored");
    assert!(!sending.is_finished(), "nor confirmed");
    drop(held);
    soon(&mut sending).await.unwrap().unwrap();
    let delivery = deliveries.next().await;
    assert_eq!(delivery.payload, "slow");
}
