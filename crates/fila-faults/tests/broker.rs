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

fn is_clear(refused: &Status) -> bool {
    matches!(
        common::code(refused),
        "OUTCOME_UNKNOWN" | "STORE_UNAVAILABLE"
    )
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
    drop(deliveries);
    let _ = soon(rig.server.shutdown()).await;

    let mut rig = Rig::with(on_disk(watch.root())).await;
    assert_eq!(get(&rig.server, "/readyz").await.0, 200);
    let left = drain(&mut rig).await;
    let all: Vec<String> = (1..10).map(|n| n.to_string()).collect();
    assert!(left == all || left == all[1..], "{left:?}");
    assert_eq!(rig.stats("orders").await.depth, 0);
}

#[tokio::test]
async fn a_full_disk_is_told_to_producers_and_costs_nothing_that_was_confirmed() {
    let (_place, watch, mut rig) = start().await;
    watch.set_room(Some(200_000));
    let mut confirmed = BTreeSet::new();
    let refused = loop {
        let body = format!("{:05}{}", confirmed.len(), "x".repeat(5_000));
        match rig.send("orders", message("a", &body)).await {
            Ok(_) => assert!(confirmed.insert(body)),
            Err(refused) => break refused,
        }
        assert!(confirmed.len() < 1_000, "the disk is not full");
    };
    assert!(is_clear(&refused), "{refused}");
    assert!(!confirmed.is_empty());
    assert_out_of_service(&mut rig).await;
    let _ = soon(rig.server.shutdown()).await;

    watch.set_room(None);
    let mut rig = Rig::with(on_disk(watch.root())).await;
    let mut left: BTreeSet<String> = drain(&mut rig).await.into_iter().collect();
    left.retain(|body| !confirmed.remove(body));
    assert!(confirmed.is_empty(), "lost: {}", confirmed.len());
    assert!(left.len() <= 1, "at most the unknown one: {}", left.len());
    rig.enqueue("orders", "a", "and it takes more").await;
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
