//! Callers that keep no stream: `Receive`, and the results that they report by calls.

use std::collections::{BTreeMap, BTreeSet};

use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    AckBatchRequest, DeleteQueueRequest, Delivery, ExtendBatchRequest, LeaseExtension,
    LeaseRefusal, PeekRequest, QueueSettings, ReceiveRequest, ReleaseRequest, ServerInfoRequest,
};
use fila_server::runtime::Stopped;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::common::{Rig, assert_refused, eventually, in_memory, message, soon};

/// Longer than any test takes.
const HOUR: u64 = 3_600_000;

fn asking(messages_max: u32, wait_ms: u64) -> ReceiveRequest {
    ReceiveRequest {
        queue: "orders".to_owned(),
        messages_max,
        wait_ms,
        lease_ms: 0,
    }
}

async fn receive(rig: &Rig, request: ReceiveRequest) -> Result<Vec<Delivery>, Status> {
    let mut messages = rig.messages.clone();
    let received = soon(messages.receive(request)).await?;
    Ok(received.into_inner().deliveries)
}

/// Takes what is there.
async fn take(rig: &Rig, messages_max: u32) -> Vec<Delivery> {
    receive(rig, asking(messages_max, 0)).await.unwrap()
}

type Waiting = JoinHandle<Result<Vec<Delivery>, Status>>;

/// Begins a call that waits, and returns when it does.
async fn waiting(rig: &mut Rig) -> Waiting {
    let before = rig.stats("orders").await.consumers;
    let mut messages = rig.messages.clone();
    let call = tokio::spawn(async move {
        let received = messages.receive(asking(10, 60_000)).await?;
        Ok(received.into_inner().deliveries)
    });
    consumers(rig, before + 1).await;
    call
}

/// Waits until the queue has this many consumers.
async fn consumers(rig: &Rig, count: u64) {
    let handle = rig.server.handle();
    let queue = handle.queue("orders").unwrap();
    let inspect = async || handle.inspect(&queue).await.unwrap();
    eventually(async || inspect().await.consumers == count).await;
}

fn leases(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(|it| it.lease_id).collect()
}

fn payloads(deliveries: &[Delivery]) -> Vec<&str> {
    let payloads = deliveries.iter();
    payloads
        .map(|it| std::str::from_utf8(&it.payload).unwrap())
        .collect()
}

fn codes(refused: &[LeaseRefusal]) -> BTreeMap<u64, &'static str> {
    let refused = refused.iter();
    refused
        .map(|it| (it.lease_id, it.error.as_ref().unwrap().code().name()))
        .collect()
}

async fn ack(rig: &mut Rig, lease_ids: Vec<u64>) -> Vec<LeaseRefusal> {
    let queue = "orders".to_owned();
    let request = AckBatchRequest { queue, lease_ids };
    let acked = soon(rig.messages.ack_batch(request)).await.unwrap();
    acked.into_inner().refused
}

fn timeout(millis: u64) -> QueueSettings {
    QueueSettings {
        visibility_timeout_ms: Some(millis),
        retry_backoff_ms: Some(0),
        ..QueueSettings::default()
    }
}

#[tokio::test]
async fn a_caller_takes_messages_and_acknowledges_them_by_calls() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", timeout(HOUR)).await;
    let mut sent = message("acme", "1");
    sent.headers.insert("kind".to_owned(), "new".to_owned());
    sent.weight = Some(7);
    let id = rig.send("orders", sent).await.unwrap();
    rig.enqueue("orders", "globex", "2").await;
    let taken = take(&rig, 10).await;
    assert_eq!(payloads(&taken), ["1", "2"]);
    let first = &taken[0];
    assert_eq!(first.message_id, id);
    assert_eq!((first.fairness_key.as_str(), first.weight), ("acme", 7));
    assert_eq!(first.headers["kind"], "new");
    assert_eq!((first.attempt, first.lost, first.lease_ms), (1, 0, HOUR));
    assert!(first.enqueued_at_ms > 0 && first.history.is_none());
    assert_eq!(rig.stats("orders").await.leased, 2);
    assert_eq!(ack(&mut rig, leases(&taken)).await, []);
    let stats = rig.stats("orders").await;
    assert_eq!((stats.depth, stats.acked_total, stats.consumers), (0, 2, 0));
}

#[tokio::test]
async fn a_call_waits_for_the_first_message_and_is_then_answered() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let call = waiting(&mut rig).await;
    rig.enqueue("orders", "a", "x").await;
    let taken = soon(call).await.unwrap().unwrap();
    assert_eq!(payloads(&taken), ["x"]);
    consumers(&rig, 0).await;
}

#[tokio::test]
async fn a_call_that_finds_nothing_is_answered_without_a_message() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    assert_eq!(take(&rig, 10).await, []);
    assert_eq!(receive(&rig, asking(10, 20)).await.unwrap(), []);
    consumers(&rig, 0).await;
}

#[tokio::test]
async fn a_lease_outlives_the_connection_of_its_caller() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", timeout(HOUR)).await;
    rig.enqueue("orders", "a", "x").await;
    let mut other = rig.another().await;
    let taken = soon(other.receive(asking(1, 0))).await.unwrap();
    let taken = taken.into_inner().deliveries;
    drop(other);
    let info = async || {
        let mut admin = rig.admin.clone();
        let info = soon(admin.server_info(ServerInfoRequest {})).await;
        info.unwrap().into_inner()
    };
    eventually(async || info().await.connections == 1).await;
    consumers(&rig, 0).await;
    let peek = PeekRequest {
        queue: "orders".to_owned(),
        ..PeekRequest::default()
    };
    let peeked = soon(rig.messages.peek(peek)).await.unwrap().into_inner();
    let until = peeked.messages[0].lease_until_ms.unwrap();
    assert!(until > peeked.now_ms + HOUR / 2);
    assert_eq!(ack(&mut rig, leases(&taken)).await, []);
}

#[tokio::test]
async fn a_caller_that_never_comes_back_costs_the_message_an_attempt_when_its_time_is_over() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", timeout(HOUR)).await;
    rig.enqueue("orders", "a", "x").await;
    let request = ReceiveRequest {
        lease_ms: 20,
        ..asking(1, 0)
    };
    let first = receive(&rig, request).await.unwrap();
    assert_eq!((first[0].attempt, first[0].lease_ms), (1, 20));
    let second = receive(&rig, asking(1, 60_000)).await.unwrap();
    assert_eq!((second[0].attempt, second[0].lease_ms), (2, HOUR));
    let refused = ack(&mut rig, leases(&first)).await;
    assert_eq!(codes(&refused)[&first[0].lease_id], "LEASE_NOT_FOUND");
    assert_eq!(rig.stats("orders").await.lease_expired_total, 1);
}

#[tokio::test]
async fn a_caller_that_hangs_up_while_it_waits_leaves_no_trace() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    waiting(&mut rig).await.abort();
    consumers(&rig, 0).await;
    rig.enqueue("orders", "a", "x").await;
    let taken = take(&rig, 1).await;
    assert_eq!((taken[0].attempt, taken[0].lost), (1, 0));
}

#[tokio::test]
async fn callers_that_hang_up_while_messages_come_lose_none() {
    const MESSAGES: usize = 100;
    let mut rig = Rig::start().await;
    // An answer that was on its way to a caller that has hung up comes back when its lease ends.
    let settings = QueueSettings {
        retry_attempts_max: Some(0),
        ..timeout(20)
    };
    rig.create_with("orders", settings).await;
    let mut sent = BTreeSet::new();
    for _ in 0..MESSAGES {
        let mut messages = rig.messages.clone();
        let call = tokio::spawn(async move { messages.receive(asking(2, 60_000)).await });
        sent.insert(rig.enqueue("orders", "a", "x").await);
        call.abort();
    }
    let mut received = BTreeSet::new();
    while received.len() < MESSAGES {
        let request = ReceiveRequest {
            lease_ms: HOUR,
            ..asking(1_000, 60_000)
        };
        let taken = receive(&rig, request).await.unwrap();
        assert_eq!(ack(&mut rig, leases(&taken)).await, []);
        for delivery in taken {
            let id = delivery.message_id;
            assert!(received.insert(id.clone()), "{id} came twice");
        }
    }
    consumers(&rig, 0).await;
    assert_eq!(received, sent);
    assert_eq!(rig.stats("orders").await.depth, 0);
}

/// Returns a client that lets the server send it no byte of a response.
async fn without_window(rig: &Rig) -> FilaServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", rig.server.address())).unwrap();
    let endpoint = endpoint.initial_stream_window_size(0);
    FilaServiceClient::new(soon(endpoint.connect()).await.unwrap())
}

#[tokio::test]
async fn a_caller_that_hangs_up_before_its_answer_is_sent_gives_the_messages_back() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", timeout(HOUR)).await;
    rig.enqueue("orders", "a", &"x".repeat(50_000)).await;
    let mut stuck = without_window(&rig).await;
    let call = tokio::spawn(async move { stuck.receive(asking(1, 0)).await });
    let handle = rig.server.handle();
    let stats = || handle.queue("orders").unwrap().stats();
    eventually(async || stats().leased == 1).await;
    eventually(async || handle.info().memory_used > 50_000).await;
    call.abort();
    eventually(async || stats().ready == 1).await;
    let taken = take(&rig, 1).await;
    assert_eq!((taken[0].attempt, taken[0].lost), (1, 0));
    eventually(async || handle.info().memory_used < 10_000).await;
}

#[tokio::test]
async fn a_response_ends_with_the_message_that_takes_it_over_64_kib() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let payload = "x".repeat(40_000);
    for _ in 0..5 {
        rig.enqueue("orders", "a", &payload).await;
    }
    let mut sizes = Vec::new();
    for _ in 0..3 {
        sizes.push(take(&rig, 10).await.len());
    }
    assert_eq!(sizes, [2, 2, 1]);
}

#[tokio::test]
async fn a_call_that_waits_counts_as_a_consumer() {
    let mut config = in_memory();
    config.limits.consumers = 1.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let call = waiting(&mut rig).await;
    let refused = receive(&rig, asking(1, 0)).await;
    assert_refused(refused, Code::ResourceExhausted, "TOO_MANY_CONSUMERS");
    call.abort();
    consumers(&rig, 0).await;
    eventually(async || receive(&rig, asking(1, 0)).await.is_ok()).await;
}

#[tokio::test]
async fn a_call_ends_with_its_queue_and_with_the_server() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let call = waiting(&mut rig).await;
    let name = "orders".to_owned();
    let deletion = DeleteQueueRequest { name };
    soon(rig.admin.delete_queue(deletion)).await.unwrap();
    let ended = soon(call).await.unwrap();
    assert_refused(ended, Code::NotFound, "QUEUE_DELETED");

    rig.create("orders").await;
    let call = waiting(&mut rig).await;
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let ended = soon(call).await.unwrap();
    assert_refused(ended, Code::Unavailable, "SHUTTING_DOWN");
}

#[tokio::test]
async fn numbers_out_of_range_are_refused() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "x").await;
    let too_long = |lease_ms| ReceiveRequest {
        lease_ms,
        ..asking(1, 0)
    };
    for (request, code) in [
        (asking(1_001, 0), "INVALID_ARGUMENT"),
        (asking(u32::MAX, 0), "INVALID_ARGUMENT"),
        (asking(1, 60_001), "INVALID_ARGUMENT"),
        (asking(1, -1_i64 as u64), "INVALID_ARGUMENT"),
        (too_long(u64::MAX), "DELAY_TOO_LONG"),
    ] {
        let refused = receive(&rig, request).await;
        assert_refused(refused, Code::InvalidArgument, code);
    }
    let nowhere = ReceiveRequest {
        queue: "nowhere".to_owned(),
        ..asking(1, 60_000)
    };
    let refused = receive(&rig, nowhere).await;
    assert_refused(refused, Code::NotFound, "QUEUE_NOT_FOUND");
    assert_eq!(take(&rig, 0).await.len(), 1, "0 asks for one");
}

#[tokio::test]
async fn released_messages_are_ready_at_once_and_every_lease_has_its_result() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", timeout(HOUR)).await;
    for payload in ["1", "2", "3"] {
        rig.enqueue("orders", "a", payload).await;
    }
    let taken = take(&rig, 3).await;
    let release = |lease_ids| ReleaseRequest {
        queue: "orders".to_owned(),
        lease_ids,
    };
    let lease_ids = vec![taken[0].lease_id, 17, taken[2].lease_id];
    let released = soon(rig.messages.release(release(lease_ids))).await;
    let refused = released.unwrap().into_inner().refused;
    assert_eq!(codes(&refused), BTreeMap::from([(17, "LEASE_NOT_FOUND")]));
    let again = take(&rig, 3).await;
    assert_eq!(payloads(&again), ["1", "3"]);
    assert!(again.iter().all(|it| (it.attempt, it.lost) == (1, 0)));
    assert_eq!(rig.stats("orders").await.released_total, 2);

    let many = soon(rig.messages.release(release(vec![1; 10_001]))).await;
    assert_refused(many, Code::InvalidArgument, "BATCH_TOO_LARGE");
}

#[tokio::test]
async fn leases_are_extended_together_and_each_has_its_result() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", timeout(100)).await;
    for payload in ["1", "2", "3"] {
        rig.enqueue("orders", "a", payload).await;
    }
    let taken = take(&rig, 3).await;
    let extension = |lease_id, lease_ms| LeaseExtension { lease_id, lease_ms };
    let request = ExtendBatchRequest {
        queue: "orders".to_owned(),
        extensions: vec![
            extension(taken[0].lease_id, HOUR),
            extension(17, HOUR),
            extension(taken[2].lease_id, u64::MAX),
        ],
    };
    let extended = soon(rig.messages.extend_batch(request)).await.unwrap();
    let refused = codes(&extended.into_inner().refused);
    let expected = [
        (17, "LEASE_NOT_FOUND"),
        (taken[2].lease_id, "DELAY_TOO_LONG"),
    ];
    assert_eq!(refused, BTreeMap::from(expected));
    let mut again = BTreeSet::new();
    while again.len() < 2 {
        let taken = receive(&rig, asking(3, 60_000)).await.unwrap();
        again.extend(
            taken
                .iter()
                .map(|it| String::from_utf8_lossy(&it.payload).into_owned()),
        );
    }
    assert_eq!(again, BTreeSet::from(["2".to_owned(), "3".to_owned()]));
    assert_eq!(ack(&mut rig, vec![taken[0].lease_id]).await, []);
}

#[tokio::test]
async fn callers_get_the_keys_of_an_ordered_queue_one_by_one() {
    let mut rig = Rig::start().await;
    let settings = QueueSettings {
        ordering: Some(fila_proto::v1::Ordering::Key.into()),
        ..timeout(HOUR)
    };
    rig.create_with("orders", settings).await;
    for (key, payload) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
        rig.enqueue("orders", key, payload).await;
    }
    let taken = take(&rig, 10).await;
    assert_eq!(payloads(&taken), ["a1", "b1"]);
    assert_eq!(take(&rig, 10).await, []);
    assert_eq!(ack(&mut rig, leases(&taken)).await, []);
    let next = receive(&rig, asking(10, 60_000)).await.unwrap();
    assert_eq!(payloads(&next), ["a2"]);
}

#[tokio::test]
async fn callers_get_messages_of_all_keys_in_turns() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for (key, count) in [("loud", 100), ("quiet", 5), ("shy", 5)] {
        for _ in 0..count {
            rig.enqueue("orders", key, "x").await;
        }
    }
    let mut counts = BTreeMap::<String, u32>::new();
    for _ in 0..3 {
        for delivery in take(&rig, 5).await {
            *counts.entry(delivery.fairness_key).or_default() += 1;
        }
    }
    let counts: Vec<u32> = counts.into_values().collect();
    assert_eq!(counts, [5, 5, 5]);
}
