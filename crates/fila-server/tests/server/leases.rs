//! Leases: who has a message, for how long, and what happens when it is lost.

use std::collections::BTreeSet;

use fila_proto::v1::{AckBatchRequest, ExtendRequest, QueueSettings, WorkRequest};
use tonic::Code;

use crate::common::pipes::Worker;
use crate::common::{Rig, assert_refused, consume, soon};

fn timeout(millis: u64) -> QueueSettings {
    QueueSettings {
        visibility_timeout_ms: Some(millis),
        ..QueueSettings::default()
    }
}

#[tokio::test]
async fn a_late_ack_is_refused_and_the_other_delivery_stays() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", timeout(50)).await;
    let id = rig.enqueue("orders", "a", "x").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let first = deliveries.next().await;
    // The lease runs out, and the message is delivered again.
    let second = deliveries.next().await;
    assert_eq!((&second.message_id, second.attempt), (&id, 2));
    assert_ne!(first.lease_id, second.lease_id);
    let late = rig.ack("orders", &first).await;
    assert_refused(late, Code::FailedPrecondition, "LEASE_NOT_FOUND");
    rig.ack("orders", &second).await.unwrap();
    let stats = rig.stats("orders").await;
    assert_eq!((stats.depth, stats.lease_expired_total), (0, 1));
    let again = rig.ack("orders", &second).await;
    assert_refused(again, Code::FailedPrecondition, "LEASE_NOT_FOUND");
}

#[tokio::test]
async fn a_client_cannot_guess_the_lease_of_another() {
    let mut rig = Rig::start().await;
    for queue in ["orders", "own"] {
        rig.create(queue).await;
        for _ in 0..100 {
            rig.enqueue(queue, "a", "x").await;
        }
    }
    let mut deliveries = rig.consume("orders", 100).await;
    let mut leases = BTreeSet::new();
    while leases.len() < 100 {
        leases.insert(deliveries.next().await.lease_id);
    }
    // The guesses: the neighbours of a lease that the client knows, and the leases of a queue of its own.
    let known = *leases.first().unwrap();
    let mut guesses: Vec<u64> = (1..400).map(|step| known.wrapping_add(step)).collect();
    guesses.extend((1..400).map(|step| known.wrapping_sub(step)));
    guesses.extend((1..100).map(|number| 1 << 40 | number));
    let mut own = rig.consume("own", 100).await;
    for _ in 0..100 {
        guesses.push(own.next().await.lease_id);
    }
    let request = AckBatchRequest {
        queue: "orders".to_owned(),
        lease_ids: guesses.clone(),
    };
    let answer = soon(rig.messages.ack_batch(request)).await.unwrap();
    assert_eq!(answer.into_inner().refused.len(), guesses.len());
    let stats = rig.stats("orders").await;
    assert_eq!((stats.leased, stats.acked_total), (100, 0));
}

#[tokio::test]
async fn an_extended_lease_lasts_longer() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", timeout(100)).await;
    for _ in 0..2 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut deliveries = rig.consume("orders", 2).await;
    let delivery = deliveries.next().await;
    let other = deliveries.next().await;
    let extend = |lease_ms| ExtendRequest {
        queue: "orders".to_owned(),
        message_id: delivery.message_id.clone(),
        lease_id: delivery.lease_id,
        lease_ms,
    };
    soon(rig.messages.extend(extend(60_000))).await.unwrap();
    // The one that began later and was not extended runs out, and the other has not.
    let again = deliveries.next().await;
    assert_eq!((&again.message_id, again.attempt), (&other.message_id, 2));
    assert_eq!(rig.stats("orders").await.leased, 2);
    rig.ack("orders", &delivery).await.unwrap();
    let gone = soon(rig.messages.extend(extend(0))).await;
    assert_refused(gone, Code::FailedPrecondition, "LEASE_NOT_FOUND");
}

#[tokio::test]
async fn an_extension_that_is_too_long_is_refused() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "x").await;
    let delivery = rig.consume("orders", 1).await.next().await;
    let request = ExtendRequest {
        queue: "orders".to_owned(),
        message_id: String::new(),
        lease_id: delivery.lease_id,
        lease_ms: u64::MAX,
    };
    let refused = soon(rig.messages.extend(request)).await.unwrap_err();
    // Whether its stream, which is closed by now, was noticed first or the time.
    let known = ["DELAY_TOO_LONG", "LEASE_NOT_FOUND"];
    assert!(known.contains(&crate::common::code(&refused)), "{refused}");
}

/// Waits until the server has noticed that all consumers of a queue are gone.
async fn no_consumers(rig: &mut Rig, queue: &str) {
    soon(async {
        while rig.stats(queue).await.consumers > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
}

fn reporting(queue: &str, credit: u32) -> WorkRequest {
    WorkRequest {
        queue: queue.to_owned(),
        credit,
        reports_begun: true,
        ..WorkRequest::default()
    }
}

#[tokio::test]
async fn a_consumer_that_hangs_up_can_still_settle_what_it_has() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "x").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    drop(deliveries);
    no_consumers(&mut rig, "orders").await;
    rig.ack("orders", &delivery).await.unwrap();
    assert_eq!(rig.stats("orders").await.depth, 0);
}

#[tokio::test]
async fn after_a_connection_broke_another_one_settles_and_extends_its_leases() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for _ in 0..4 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut other = rig.another().await;
    let mut broken = consume(&mut other, "orders", 4).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(broken.next().await);
    }
    drop((broken, other));
    no_consumers(&mut rig, "orders").await;
    // By calls, and by a stream.
    rig.ack("orders", &held[0]).await.unwrap();
    let extension = ExtendRequest {
        queue: "orders".to_owned(),
        message_id: held[1].message_id.clone(),
        lease_id: held[1].lease_id,
        lease_ms: 60_000,
    };
    soon(rig.messages.extend(extension)).await.unwrap();
    let request = WorkRequest {
        acks: vec![held[2].lease_id],
        releases: vec![held[3].lease_id],
        ..reporting("orders", 1)
    };
    let mut worker = Worker::over(rig.messages.clone(), request).await;
    let (mut confirmed, mut again) = (BTreeSet::new(), Vec::new());
    while confirmed.len() < 2 || again.is_empty() {
        let frame = worker.frame().await;
        assert_eq!(frame.refused, []);
        confirmed.extend(frame.confirmed);
        again.extend(frame.deliveries);
    }
    assert_eq!(again[0].message_id, held[3].message_id);
    assert_eq!((again[0].attempt, again[0].lost), (1, 0));
    let stats = rig.stats("orders").await;
    assert_eq!((stats.acked_total, stats.leased), (2, 2));
}

#[tokio::test]
async fn the_messages_of_a_consumer_that_vanished_reach_another_and_the_oldest_has_failed() {
    let mut rig = Rig::start().await;
    // Far longer than the grace.
    rig.create_with("orders", timeout(3_600_000)).await;
    for payload in ["1", "2", "3"] {
        rig.enqueue("orders", "a", payload).await;
    }
    let mut other = rig.another().await;
    let mut broken = consume(&mut other, "orders", 3).await;
    for _ in 0..3 {
        broken.next().await;
    }
    let mut second = rig.consume("orders", 3).await;
    drop((broken, other));
    for expected in [("1", 2), ("2", 1), ("3", 1)] {
        let again = second.next().await;
        let payload = std::str::from_utf8(&again.payload).unwrap();
        assert_eq!((payload, again.attempt), expected);
        assert_eq!(again.lost, 1);
    }
}

#[tokio::test]
async fn a_worker_that_reports_beginnings_is_charged_for_those_only() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for payload in ["1", "2", "3"] {
        rig.enqueue("orders", "a", payload).await;
    }
    let other = rig.another().await;
    let mut broken = Worker::over(other, reporting("orders", 3)).await;
    let held = broken.take(3).await;
    let begun = held[1].lease_id;
    broken
        .send(WorkRequest {
            begun: vec![begun],
            ..WorkRequest::default()
        })
        .await;
    assert_eq!(broken.frame().await.confirmed, [begun]);
    drop(broken);
    no_consumers(&mut rig, "orders").await;
    let mut second = rig.consume("orders", 3).await;
    let mut attempts = BTreeSet::new();
    for _ in 0..3 {
        let again = second.next().await;
        attempts.insert((again.payload, again.attempt));
    }
    let expected = [("1", 1), ("2", 2), ("3", 1)];
    let expected = expected.map(|(payload, attempt)| (payload.into(), attempt));
    assert_eq!(attempts, BTreeSet::from(expected));
}

#[tokio::test]
async fn a_worker_that_stops_talking_gives_back_at_once_what_it_has_not_begun() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "x").await;
    let mut worker = Worker::over(rig.messages.clone(), reporting("orders", 1)).await;
    assert_eq!(worker.frame().await.deliveries.len(), 1);
    let mut second = rig.consume("orders", 1).await;
    let Worker {
        requests,
        mut frames,
    } = worker;
    drop(requests);
    let again = second.next().await;
    assert_eq!((again.attempt, again.lost), (1, 0));
    assert!(soon(frames.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn no_more_is_leased_to_a_consumer_than_its_prefetch() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for _ in 0..10 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut deliveries = rig.consume("orders", 3).await;
    let first = deliveries.next().await;
    deliveries.next().await;
    deliveries.next().await;
    assert_eq!(rig.stats("orders").await.leased, 3);
    assert!(deliveries.is_silent());
    rig.ack("orders", &first).await.unwrap();
    deliveries.next().await;
    assert_eq!(rig.stats("orders").await.leased, 3);
}

#[tokio::test]
async fn an_ordered_queue_leases_one_message_of_a_key_at_a_time() {
    let mut rig = Rig::start().await;
    let settings = QueueSettings {
        ordering: Some(fila_proto::v1::Ordering::Key.into()),
        ..QueueSettings::default()
    };
    rig.create_with("orders", settings).await;
    for payload in ["1", "2"] {
        rig.enqueue("orders", "a", payload).await;
    }
    let mut deliveries = rig.consume("orders", 10).await;
    let first = deliveries.next().await;
    assert_eq!(rig.stats("orders").await.leased, 1);
    rig.nack("orders", &first).await.unwrap();
    let again = deliveries.next().await;
    assert_eq!((&again.payload[..], again.attempt), (&b"1"[..], 2));
    rig.ack("orders", &again).await.unwrap();
    assert_eq!(deliveries.next().await.payload, "2");
}

#[tokio::test]
async fn a_result_under_a_lease_of_another_stream_is_taken() {
    // A lease is what counts, not the stream it was delivered on.
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "x").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    let mut worker = Worker::open(&rig, "orders", 0).await;
    worker
        .send(WorkRequest {
            acks: vec![delivery.lease_id],
            ..WorkRequest::default()
        })
        .await;
    assert_eq!(worker.frame().await.confirmed, [delivery.lease_id]);
}
