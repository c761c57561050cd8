//! The state of a server after a restart.

use fila_proto::v1::{
    DeleteQueueRequest, EnqueueRequest, Message, PauseQueueRequest, QueueSettings,
    ResumeQueueRequest, UpdateKeyRequest,
};
use fila_server::Server;
use fila_server::runtime::{StartError, Stopped};
use fila_store::OpenError;

use crate::common::{Rig, message, on_disk, soon};

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
    let mut producer = crate::common::pipes::Producer::open(&rig).await;
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
