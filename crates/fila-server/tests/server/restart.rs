//! The state of a server after a restart.

use fila_proto::v1::{
    DeleteQueueRequest, EnqueueRequest, LeaseExtension, Message, PauseQueueRequest, QueueSettings,
    ResumeQueueRequest, UpdateKeyRequest, WorkRequest,
};
use fila_server::Server;
use fila_server::runtime::{StartError, Stopped};
use fila_store::{MemoryDisk, MemoryEngine, OpenError};
use tonic::Code;

use crate::common::pipes::{Producer, Worker};
use crate::common::{Rig, assert_refused, in_memory, message, on_disk, soon};

async fn stop(rig: Rig) {
    let Rig { server, .. } = rig;
    assert_eq!(soon(server.shutdown()).await, Stopped::Complete);
}

#[tokio::test]
async fn messages_attempts_settings_and_pauses_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    let settings = QueueSettings {
        visibility_timeout_ms: Some(77_000),
        ..QueueSettings::default()
    };
    rig.create_with("orders", settings).await;
    let failed = rig.enqueue("orders", "a", "failed").await;
    rig.enqueue("orders", "a", "waiting").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    assert_eq!(delivery.message_id, failed);
    rig.nack("orders", &delivery).await.unwrap();
    drop(deliveries);
    let request = EnqueueRequest {
        queue: "orders".to_owned(),
        message: Some(Message {
            deduplication_id: "once".to_owned(),
            ..message("b", "deduplicated")
        }),
    };
    let first = soon(rig.messages.enqueue(request.clone())).await.unwrap();
    let key = UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: "b".to_owned(),
        paused: Some(true),
        weight: Some(3),
        concurrency: None,
        ..UpdateKeyRequest::default()
    };
    soon(rig.admin.update_key(key)).await.unwrap();
    let name = || "orders".to_owned();
    soon(rig.admin.pause_queue(PauseQueueRequest { name: name() }))
        .await
        .unwrap();
    let before = rig.inspect("orders").await;
    stop(rig).await;

    let mut rig = Rig::with(on_disk(directory.path())).await;
    let after = rig.inspect("orders").await;
    assert_eq!(after.settings, before.settings);
    assert_eq!(after.keys, before.keys);
    assert_eq!((after.paused, after.version), (true, before.version));
    assert_eq!(after.stats.unwrap().depth, 3);
    let second = soon(rig.messages.enqueue(request))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(second.message_id, first.into_inner().message_id);
    assert!(second.deduplicated);
    soon(rig.admin.resume_queue(ResumeQueueRequest { name: name() }))
        .await
        .unwrap();
    let mut deliveries = rig.consume("orders", 10).await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let delivery = deliveries.next().await;
        seen.push((delivery.payload.clone(), delivery.attempt > 1));
        rig.ack("orders", &delivery).await.unwrap();
    }
    seen.sort();
    assert_eq!(seen, [("failed".into(), true), ("waiting".into(), false)]);
    stop(rig).await;

    // The acknowledged message stays away, and the paused key keeps its message.
    let mut rig = Rig::with(on_disk(directory.path())).await;
    assert_eq!(rig.stats("orders").await.depth, 1);
    let new = rig.enqueue("orders", "a", "new").await;
    assert!(new > failed);
    stop(rig).await;
}

#[tokio::test]
async fn a_deleted_queue_stays_gone_after_re_creation_and_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create("orders").await;
    for _ in 0..100 {
        rig.enqueue("orders", "a", "old").await;
    }
    let name = "orders".to_owned();
    soon(rig.admin.delete_queue(DeleteQueueRequest { name }))
        .await
        .unwrap();
    rig.create("orders").await;
    rig.enqueue("orders", "a", "new").await;
    stop(rig).await;
    let mut rig = Rig::with(on_disk(directory.path())).await;
    assert_eq!(rig.stats("orders").await.depth, 1);
    assert_eq!(rig.consume("orders", 9).await.next().await.payload, "new");
    stop(rig).await;
}

#[tokio::test]
async fn a_second_server_on_the_same_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = Rig::with(on_disk(directory.path())).await;
    let second = soon(Server::start(on_disk(directory.path()))).await;
    let refused = second.unwrap_err();
    assert!(
        matches!(refused, StartError::Open(OpenError::Locked(_))),
        "{refused:?}"
    );
    stop(first).await;
    stop(Rig::with(on_disk(directory.path())).await).await;
}

#[tokio::test]
async fn a_backlog_that_does_not_fit_into_memory_comes_back_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = on_disk(directory.path());
    config.storage.memory_budget = "1 MiB".parse().unwrap();
    config.storage.durability = fila_store::Durability::Os;
    let mut rig = Rig::with(config.clone()).await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    let payload = "x".repeat(1_000);
    for frame in 0..40_u64 {
        let numbered = |number: u64| message("a", &format!("{number:05}{payload}"));
        let messages = (0..100)
            .map(|place| numbered(frame * 100 + place))
            .collect();
        producer.send(frame, "orders", messages).await;
        producer.answer().await;
    }
    let stats = rig.stats("orders").await;
    assert!(stats.stored_only > 1_000, "{stats:?}");
    let memory = rig.server.handle().info().memory_used;
    assert!(memory < 3 << 20, "{memory}");
    stop(rig).await;

    let mut rig = Rig::with(config).await;
    let mut deliveries = rig.consume("orders", 100).await;
    for number in 0..4_000 {
        let delivery = deliveries.next().await;
        assert_eq!(&delivery.payload[..5], format!("{number:05}").as_bytes());
        rig.ack("orders", &delivery).await.unwrap();
    }
    assert_eq!(rig.stats("orders").await.depth, 0);
    stop(rig).await;
}

#[tokio::test]
async fn leases_outlive_a_planned_stop_and_are_settled_over_new_connections() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create("orders").await;
    for _ in 0..4 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut deliveries = rig.consume("orders", 2).await;
    let (acked, failed) = (deliveries.next().await, deliveries.next().await);
    let mut worker = Worker::open(&rig, "orders", 1).await;
    let extended = worker.take(1).await.remove(0);
    stop(rig).await;

    let mut rig = Rig::with(on_disk(directory.path())).await;
    assert_eq!(rig.stats("orders").await.leased, 3);
    let mut others = rig.consume("orders", 10).await;
    let last = others.next().await;
    assert!(others.is_silent(), "the others are leased");
    rig.ack("orders", &acked).await.unwrap();
    let again = rig.ack("orders", &acked).await;
    assert_refused(again, Code::FailedPrecondition, "LEASE_NOT_FOUND");
    let first = WorkRequest {
        queue: "orders".to_owned(),
        extensions: vec![LeaseExtension {
            lease_id: extended.lease_id,
            lease_ms: 60_000,
        }],
        ..WorkRequest::default()
    };
    let mut worker = Worker::over(rig.messages.clone(), first).await;
    assert_eq!(worker.frame().await.confirmed, [extended.lease_id]);
    rig.nack("orders", &failed).await.unwrap();
    let retried = others.next().await;
    assert_eq!(
        (retried.message_id, retried.attempt),
        (failed.message_id, 2)
    );
    assert_eq!((last.attempt, rig.stats("orders").await.leased), (1, 3));
    stop(rig).await;

    // One planned stop after the other.
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.ack("orders", &extended).await.unwrap();
    rig.ack("orders", &last).await.unwrap();
    assert_eq!(rig.stats("orders").await.depth, 1);
    stop(rig).await;
}

#[tokio::test]
async fn leases_outlive_a_planned_stop_in_any_engine() {
    let disk = MemoryDisk::default();
    let start = async || {
        let engine = MemoryEngine::open(&disk).unwrap();
        let server = soon(Server::start_on(in_memory(), engine)).await;
        Rig::of(server.unwrap()).await
    };
    let mut rig = start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "x").await;
    let delivery = rig.consume("orders", 1).await.next().await;
    stop(rig).await;
    let mut rig = start().await;
    rig.ack("orders", &delivery).await.unwrap();
    stop(rig).await;
}

#[tokio::test]
async fn deliveries_that_a_client_did_not_read_are_ready_after_a_planned_stop() {
    const MESSAGES: u64 = 200;
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    let large = "x".repeat(100_000);
    for frame in 0..MESSAGES {
        producer
            .send(frame, "orders", vec![message("a", &large)])
            .await;
        producer.answer().await;
    }
    let _unread = Worker::open(&rig, "orders", MESSAGES as u32).await;
    while rig.stats("orders").await.leased == 0 {
        tokio::task::yield_now().await;
    }
    stop(rig).await;

    let mut rig = Rig::with(on_disk(directory.path())).await;
    let stats = rig.stats("orders").await;
    assert_eq!(stats.depth, MESSAGES);
    // The system's buffers hold a few of them.
    assert!(stats.leased < MESSAGES / 2, "{stats:?}");
    assert_eq!(rig.consume("orders", 1).await.next().await.attempt, 1);
    stop(rig).await;
}
