//! A store that fails: the server confirms only stored messages, and reports the failure.

use fila_proto::v1::{EnqueueRequest, ServerInfoRequest};
use fila_server::Server;
use fila_server::runtime::State;
use fila_store::{Accident, MemoryDisk, MemoryEngine};
use tonic::Code;

use crate::common::{Rig, assert_refused, get, in_memory, message, soon};

async fn on(disk: &MemoryDisk) -> Rig {
    let engine = MemoryEngine::open(disk).unwrap();
    Rig::of(soon(Server::start_on(in_memory(), engine)).await.unwrap()).await
}

#[tokio::test]
async fn a_failed_write_is_never_confirmed_and_takes_the_server_out_of_service() {
    for accident in [Accident::Stored, Accident::Lost] {
        let disk = MemoryDisk::default();
        let mut rig = on(&disk).await;
        rig.create("orders").await;
        rig.enqueue("orders", "a", "before").await;
        let request = || EnqueueRequest {
            queue: "orders".to_owned(),
            message: Some(message("a", "x")),
        };
        disk.fail_next_write(accident);
        let unknown = soon(rig.messages.enqueue(request())).await;
        assert_refused(unknown, Code::Unknown, "OUTCOME_UNKNOWN");
        let refused = soon(rig.messages.enqueue(request())).await;
        assert_refused(refused, Code::Unavailable, "STORE_UNAVAILABLE");
        let created = rig.admin.create_queue(fila_proto::v1::CreateQueueRequest {
            name: "another".to_owned(),
            settings: None,
        });
        assert_refused(soon(created).await, Code::Unavailable, "STORE_UNAVAILABLE");

        assert_eq!(rig.server.handle().info().state, State::Failed);
        assert_eq!(get(&rig.server, "/readyz").await.0, 503);
        assert_eq!(get(&rig.server, "/healthz").await.0, 200);
        let info = soon(rig.admin.server_info(ServerInfoRequest {}))
            .await
            .unwrap();
        assert!(!info.into_inner().writable);
        let _ = soon(rig.server.shutdown()).await;

        let mut rig = on(&disk).await;
        let kept = match accident {
            Accident::Stored => 2,
            Accident::Lost => 1,
        };
        assert_eq!(rig.stats("orders").await.depth, kept);
    }
}

#[tokio::test]
async fn a_failed_write_ends_the_streams_of_consumers_with_the_reason() {
    let disk = MemoryDisk::default();
    let mut rig = on(&disk).await;
    rig.create("orders").await;
    let mut waiting = rig.consume("orders", 10).await;
    disk.fail_next_write(Accident::Lost);
    let unknown = rig.send("orders", message("a", "x")).await;
    assert_refused(unknown, Code::Unknown, "OUTCOME_UNKNOWN");
    let ended = soon(waiting.try_next()).await;
    assert_refused(ended, Code::Unavailable, "STORE_UNAVAILABLE");
    let request = fila_proto::v1::ConsumeRequest {
        queue: "orders".to_owned(),
        prefetch: 10,
    };
    let refused = soon(rig.messages.consume(request)).await;
    assert_refused(refused, Code::Unavailable, "STORE_UNAVAILABLE");
}

#[tokio::test]
async fn a_full_disk_refuses_messages_with_a_code_and_passes() {
    let disk = MemoryDisk::default();
    let mut rig = on(&disk).await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "before").await;
    disk.set_full(true);
    let refused = rig.send("orders", message("a", "x")).await;
    assert_refused(refused, Code::ResourceExhausted, "STORAGE_FULL");
    let (code, text) = get(&rig.server, "/readyz").await;
    assert_eq!(code, 200, "consumers must reach it");
    assert!(text.contains("the disk is full"), "{text}");
    let (_, metrics) = get(&rig.server, "/metrics").await;
    assert!(metrics.contains("fila_store_full 1"), "{metrics}");
    let mut deliveries = rig.consume("orders", 10).await;
    let delivery = deliveries.next().await;
    rig.ack("orders", &delivery).await.unwrap();
    disk.set_full(false);
    rig.enqueue("orders", "a", "after").await;
    let (_, text) = get(&rig.server, "/readyz").await;
    assert!(text.ends_with("\r\n\r\nready\n"), "{text}");
    let (_, metrics) = get(&rig.server, "/metrics").await;
    assert!(metrics.contains("fila_store_full 0"), "{metrics}");
}
