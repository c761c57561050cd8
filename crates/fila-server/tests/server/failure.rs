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
