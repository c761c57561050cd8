//! A tenant that takes all it can get of a pool is refused before others are.

use std::net::IpAddr;

use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{EnqueueRequest, Error, Message, QueueSettings, Quota, QuotaPool};
use fila_server::config::{ByteSize, Config};
use fila_server::runtime::Stopped;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use crate::common::{Rig, assert_refused, batch, in_memory, message, on_disk, soon};

/// Of a pool of 8, one key gets 6: then 2 are free, and three times that is 6.
const POOL: usize = 8;
const PART: u64 = 6;

/// Returns the quota of a refusal.
fn quota(refused: Status) -> Quota {
    let details = refused.metadata().get_bin("fila-error-bin");
    let details = details.unwrap().to_bytes().unwrap();
    let error = Error::from_bytes(&details).unwrap();
    assert_eq!(error.message, refused.message());
    assert_eq!(error.code().name(), "QUOTA_EXCEEDED");
    let quota = error.quota.unwrap();
    assert_refused::<()>(Err(refused), Code::ResourceExhausted, "QUOTA_EXCEEDED");
    assert!((100..=60_000).contains(&quota.retry_after_ms), "{quota:?}");
    quota
}

/// Sends messages until one is refused; returns how many were not, and the quota of the refusal.
async fn flood(rig: &mut Rig, next: impl Fn(u64) -> Message) -> (u64, Quota) {
    for sent in 0..100 {
        if let Err(refused) = rig.send("orders", next(sent)).await {
            return (sent, quota(refused));
        }
    }
    panic!("nothing was refused");
}

async fn with_limits(change: impl FnOnce(&mut Config)) -> Rig {
    let mut config = in_memory();
    change(&mut config);
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    rig
}

fn shape(quota: &Quota) -> (QuotaPool, u64, u64) {
    (quota.pool(), quota.held, quota.part)
}

#[tokio::test]
async fn a_tenant_holds_its_part_of_the_depth_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    let settings = QueueSettings {
        depth_max: Some(POOL as u64),
        ..QueueSettings::default()
    };
    rig.create_with("orders", settings).await;
    let (stored, refused) = flood(&mut rig, |_| message("greedy", "x")).await;
    assert_eq!(stored, PART);
    assert_eq!(shape(&refused), (QuotaPool::Depth, PART, PART));
    rig.enqueue("orders", "quiet", "x").await;
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let mut rig = Rig::with(on_disk(directory.path())).await;
    let refused = rig.send("orders", message("greedy", "x")).await;
    let refused = quota(refused.unwrap_err());
    assert_eq!(shape(&refused), (QuotaPool::Depth, PART, 3));
    // In a batch each message has its own result, with the same details.
    let both = vec![message("greedy", "x"), message("silent", "x")];
    let results = rig.enqueue_batch(batch(1), "orders", both).await.unwrap();
    let error = results[0].error.as_ref().unwrap();
    assert_eq!(error.code().name(), "QUOTA_EXCEEDED");
    assert_eq!(error.quota, Some(refused));
    assert_eq!(results[1].error, None);
    // What departs makes room.
    let mut deliveries = rig.consume("orders", 8).await;
    for _ in 0..POOL {
        let delivery = deliveries.next().await;
        rig.ack("orders", &delivery).await.unwrap();
    }
    rig.enqueue("orders", "greedy", "x").await;
}

#[tokio::test]
async fn a_refusal_names_the_group_that_holds_its_part() {
    let size = (POOL as u64).try_into().unwrap();
    let limit = |config: &mut Config| config.limits.depth_per_queue = size;
    let mut rig = with_limits(limit).await;
    let (stored, refused) = flood(&mut rig, |n| message(&format!("acme/{n}"), "x")).await;
    assert_eq!(stored, PART);
    assert_eq!(shape(&refused), (QuotaPool::Depth, PART, PART));
    assert_eq!(refused.path, "acme");
    rig.enqueue("orders", "globex/0", "x").await;
}

#[tokio::test]
async fn a_tenant_holds_its_part_of_the_delayed_messages() {
    let limit = |config: &mut Config| config.limits.delayed_per_queue = POOL;
    let mut rig = with_limits(limit).await;
    let delayed = |key: &str| Message {
        delay_ms: 50_000,
        ..message(key, "x")
    };
    let (stored, refused) = flood(&mut rig, |_| delayed("greedy")).await;
    assert_eq!(stored, PART);
    assert_eq!(shape(&refused), (QuotaPool::Delayed, PART, PART));
    assert!(refused.retry_after_ms > 1_000, "{refused:?}");
    rig.send("orders", delayed("quiet")).await.unwrap();
    rig.enqueue("orders", "greedy", "without a delay").await;
}

#[tokio::test]
async fn a_tenant_holds_its_part_of_the_deduplication_ids() {
    let limit = |config: &mut Config| config.limits.deduplication_ids_per_queue = POOL;
    let mut rig = with_limits(limit).await;
    let named = |key: &str, number: u64| Message {
        deduplication_id: number.to_string(),
        ..message(key, "x")
    };
    let (stored, refused) = flood(&mut rig, |n| named("greedy", n)).await;
    assert_eq!(stored, PART);
    assert_eq!(shape(&refused), (QuotaPool::DeduplicationIds, PART, PART));
    rig.send("orders", named("quiet", 1)).await.unwrap();
    rig.enqueue("orders", "greedy", "without an id").await;
}

#[tokio::test]
async fn a_client_holds_its_part_of_the_keys() {
    let limit = |config: &mut Config| config.limits.keys_per_queue = POOL.try_into().unwrap();
    let mut rig = with_limits(limit).await;
    let (stored, refused) = flood(&mut rig, |n| message(&n.to_string(), "x")).await;
    assert_eq!(stored, PART);
    assert_eq!(shape(&refused), (QuotaPool::Keys, PART, PART));
    // Another connection is the same client; a key that has messages is not refused.
    rig.messages = rig.another().await;
    let refused = rig.send("orders", message("new", "x")).await;
    assert_eq!(quota(refused.unwrap_err()).held, PART);
    rig.enqueue("orders", "0", "x").await;
    // Another address is another client.
    let address: IpAddr = "127.0.0.2".parse().unwrap();
    let server = format!("http://{}", rig.server.address());
    let endpoint = Endpoint::from_shared(server).unwrap();
    let channel = soon(endpoint.local_address(Some(address)).connect()).await;
    let mut another = FilaServiceClient::new(channel.unwrap());
    let request = EnqueueRequest {
        queue: "orders".to_owned(),
        message: Some(message("quiet", "x")),
    };
    soon(another.enqueue(request)).await.unwrap();
}

/// What waits to be stored has a bound in bytes. Enqueues beyond it wait for room, in turns by key.
#[tokio::test]
async fn a_flood_that_fills_the_buffer_refuses_neither_itself_nor_another_tenant() {
    let rig = with_limits(|config| {
        config.limits.buffered_bytes = ByteSize::mib(1);
    })
    .await;
    let large = "x".repeat(200 << 10);
    let mut calls = JoinSet::new();
    for number in 0..64 {
        let key = if number % 8 == 7 { "quiet" } else { "noisy" };
        let request = EnqueueRequest {
            queue: "orders".to_owned(),
            message: Some(message(key, &large)),
        };
        let mut messages = rig.messages.clone();
        calls.spawn(async move { messages.enqueue(request).await });
    }
    for answer in soon(calls.join_all()).await {
        answer.unwrap();
    }
}
