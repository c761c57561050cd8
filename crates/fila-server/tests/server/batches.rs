//! Batches with ids that are sent again: by calls, on streams, after a restart.

use fila_proto::v1::{BatchId, Message, QueueSettings};
use fila_server::runtime::Stopped;
use tonic::Code;

use crate::common::pipes::Producer;
use crate::common::{Rig, again, assert_refused, batch, message, on_disk, outcomes, soon};

fn messages(count: u64) -> Vec<Message> {
    let numbered = |number: u64| message("a", &number.to_string());
    (0..count).map(numbered).collect()
}

#[tokio::test]
async fn a_batch_that_is_sent_again_is_stored_once() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let first = rig
        .enqueue_batch(batch(u64::MAX), "orders", messages(3))
        .await;
    let first = first.unwrap();
    let first = outcomes(&first);
    assert!(first.iter().all(|(outcome, _)| *outcome == "stored"));
    // Another connection is nothing to go by.
    rig.messages = rig.another().await;
    let second = rig
        .enqueue_batch(batch(u64::MAX), "orders", messages(3))
        .await;
    assert_eq!(outcomes(&second.unwrap()), again(&first));
    let stats = rig.stats("orders").await;
    assert_eq!((stats.depth, stats.deduplicated_total), (3, 3));
    let changed = rig
        .enqueue_batch(batch(u64::MAX), "orders", messages(4))
        .await;
    assert_refused(changed, Code::InvalidArgument, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn a_frame_that_is_sent_again_is_stored_once_by_whatever_call() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let refused = Message {
        weight: Some(0),
        ..message("a", "x")
    };
    let frame = || [vec![refused.clone()], messages(2)].concat();
    let mut producer = Producer::open(&rig).await;
    producer.send_as(Some(batch(5)), 1, "orders", frame()).await;
    let first = producer.answer().await;
    let first = outcomes(&first.results);
    assert_eq!(first[0].0, "INVALID_WEIGHT");
    assert_eq!((first[1].0, first[2].0), ("stored", "stored"));
    let mut other = Producer::open(&rig).await;
    other.send_as(Some(batch(5)), 9, "orders", frame()).await;
    let second = other.answer().await;
    assert_eq!(second.frame_id, 9);
    assert_eq!(outcomes(&second.results), again(&first));
    let third = rig.enqueue_batch(batch(5), "orders", frame()).await;
    assert_eq!(outcomes(&third.unwrap()), again(&first));
    assert_eq!(rig.stats("orders").await.depth, 2);
    // A copy that arrives after the producer has its answer is refused and not stored.
    let next = BatchId {
        answered_below: 6,
        ..batch(6)
    };
    other.send_as(Some(next), 10, "orders", frame()).await;
    other.answer().await;
    producer.send_as(Some(batch(5)), 1, "orders", frame()).await;
    let late = producer.answer().await;
    let late = outcomes(&late.results);
    assert_eq!(
        (late[1].0, late[2].0),
        ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    );
    assert_eq!(rig.stats("orders").await.depth, 4);
}

#[tokio::test]
async fn what_a_full_queue_has_refused_of_a_batch_is_tried_again() {
    let mut rig = Rig::start().await;
    let settings = QueueSettings {
        depth_max: Some(2),
        ..QueueSettings::default()
    };
    rig.create_with("orders", settings).await;
    let first = rig.enqueue_batch(batch(1), "orders", messages(3)).await;
    let first = first.unwrap();
    let first = outcomes(&first);
    assert_eq!(first[2].0, "QUEUE_FULL");
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    rig.ack("orders", &delivery).await.unwrap();
    let second = rig.enqueue_batch(batch(1), "orders", messages(3)).await;
    let second = second.unwrap();
    let second = outcomes(&second);
    assert_eq!(second[..2], again(&first)[..2]);
    assert_eq!(second[2].0, "stored");
    assert_eq!(rig.stats("orders").await.depth, 2);
}

#[tokio::test]
async fn a_batch_is_forgotten_when_its_producer_says_how_long() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let short = || BatchId {
        remember_ms: 1,
        ..batch(1)
    };
    let first = rig.enqueue_batch(short(), "orders", messages(1)).await;
    let first = first.unwrap();
    let clock = rig.server.handle().clock();
    let stored = clock.now();
    crate::common::eventually(|| async { clock.now().as_millis() > stored.as_millis() + 1 }).await;
    let second = rig.enqueue_batch(short(), "orders", messages(1)).await;
    let second = second.unwrap();
    assert_eq!(outcomes(&second)[0].0, "stored");
    assert_ne!(first, second);
}

#[tokio::test]
async fn a_batch_that_is_sent_again_after_a_restart_is_stored_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    producer
        .send_as(Some(batch(1)), 1, "orders", messages(100))
        .await;
    let framed = producer.answer().await.results;
    let called = rig.enqueue_batch(batch(2), "orders", messages(2)).await;
    let called = called.unwrap();
    drop(producer);
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);

    let mut rig = Rig::with(on_disk(directory.path())).await;
    for (sequence, before, count) in [(1, framed, 100), (2, called, 2)] {
        let results = rig.enqueue_batch(batch(sequence), "orders", messages(count));
        let results = results.await.unwrap();
        assert_eq!(outcomes(&results), again(&outcomes(&before)));
    }
    assert_eq!(rig.stats("orders").await.depth, 102);
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
}

#[tokio::test]
async fn a_producer_that_is_not_sixteen_bytes_is_refused_and_its_neighbours_are_not() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    for length in [0, 15, 17, 1000] {
        let malformed = || BatchId {
            producer: vec![1; length].into(),
            ..batch(1)
        };
        let refused = rig.enqueue_batch(malformed(), "orders", messages(2)).await;
        let text = refused.as_ref().unwrap_err().message().to_owned();
        assert!(
            text.contains(&length.to_string()) && text.contains("16"),
            "{text}"
        );
        assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
        producer
            .send_as(Some(malformed()), 1, "orders", messages(2))
            .await;
        let refused = producer.answer().await.results;
        assert_eq!(outcomes(&refused), [("INVALID_ARGUMENT", ""); 2]);
    }
    producer
        .send_as(Some(batch(1)), 2, "orders", messages(1))
        .await;
    assert_eq!(outcomes(&producer.answer().await.results)[0].0, "stored");
    // That a batch is itself answered cannot be.
    let odd = BatchId {
        answered_below: 3,
        ..batch(2)
    };
    let refused = rig.enqueue_batch(odd, "orders", messages(1)).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    assert_eq!(rig.stats("orders").await.depth, 1);
}
