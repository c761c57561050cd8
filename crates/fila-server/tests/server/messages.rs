//! Messages by single calls and by batches.

use fila_proto::v1::{
    AckBatchRequest, AckRequest, ConsumeRequest, DeduplicationScope, EnqueueBatchRequest,
    EnqueueRequest, ExtendRequest, LeaseNack, Message, NackBatchRequest, QueueSettings,
};
use fila_server::runtime::Stopped;
use tonic::{Code, Request};

use crate::common::{Rig, assert_refused, in_memory, message, on_disk, soon};

#[tokio::test]
async fn a_message_is_delivered_as_it_was_given_and_gone_once_acked() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let given = Message {
        fairness_key: "tenant".to_owned(),
        weight: Some(7),
        headers: [("a".to_owned(), "b".to_owned())].into(),
        payload: vec![0, 255, 3].into(),
        ..Message::default()
    };
    let request = EnqueueRequest {
        queue: "orders".to_owned(),
        message: Some(given.clone()),
    };
    let before = rig.server.handle().clock().now().as_millis();
    let stored = soon(rig.messages.enqueue(request)).await.unwrap();
    let stored = stored.into_inner();
    let mut deliveries = rig.consume("orders", 0).await;
    let delivery = deliveries.next().await;
    assert_eq!(delivery.message_id, stored.message_id);
    assert_eq!(delivery.fairness_key, given.fairness_key);
    assert_eq!(delivery.headers, given.headers);
    assert_eq!(delivery.payload, given.payload);
    assert_eq!((delivery.weight, delivery.attempt), (7, 1));
    assert_eq!(delivery.lease_ms, 30_000);
    assert!(delivery.enqueued_at_ms >= before);
    rig.ack("orders", &delivery).await.unwrap();
    let stats = rig.stats("orders").await;
    assert_eq!((stats.depth, stats.acked_total), (0, 1));
}

#[tokio::test]
async fn ids_are_uuids_whose_order_is_that_of_the_messages() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(rig.enqueue("orders", "a", "x").await);
    }
    assert!(ids.is_sorted());
    for id in ids {
        assert_eq!((id.len(), id.as_bytes()[14]), (36, b'8'), "{id}");
    }
}

#[tokio::test]
async fn a_batch_has_a_result_for_each_message() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let too_heavy = Message {
        weight: Some(u32::MAX),
        ..message("a", "x")
    };
    let messages = vec![message("a", "1"), too_heavy, message("a", "2")];
    let request = EnqueueBatchRequest {
        queue: "orders".to_owned(),
        messages,
        batch_id: None,
    };
    let results = soon(rig.messages.enqueue_batch(request)).await.unwrap();
    let results = results.into_inner().results;
    let refused: Vec<bool> = results
        .iter()
        .map(|result| result.error.is_some())
        .collect();
    assert_eq!(refused, [false, true, false]);
    assert!(results[0].message_id < results[2].message_id);
    assert_eq!(rig.stats("orders").await.ready, 2);
}

#[tokio::test]
async fn a_deduplication_id_stands_for_the_first_message() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let request = EnqueueRequest {
        queue: "orders".to_owned(),
        message: Some(Message {
            deduplication_id: "once".to_owned(),
            ..message("a", "x")
        }),
    };
    let first = soon(rig.messages.enqueue(request.clone())).await.unwrap();
    let second = soon(rig.messages.enqueue(request)).await.unwrap();
    let (first, second) = (first.into_inner(), second.into_inner());
    assert_eq!(first.message_id, second.message_id);
    assert_eq!((first.deduplicated, second.deduplicated), (false, true));
    assert_eq!(rig.stats("orders").await.depth, 1);
}

/// Sends `invoice-17` under a key, and returns the message's id if it was stored, or that of the one stored before.
async fn send_invoice(rig: &mut Rig, queue: &str, key: &str) -> Result<String, String> {
    let request = EnqueueRequest {
        queue: queue.to_owned(),
        message: Some(Message {
            deduplication_id: "invoice-17".to_owned(),
            ..message(key, "x")
        }),
    };
    let sent = soon(rig.messages.enqueue(request)).await.unwrap();
    let sent = sent.into_inner();
    if sent.deduplicated {
        Err(sent.message_id)
    } else {
        Ok(sent.message_id)
    }
}

#[tokio::test]
async fn a_tenant_that_sends_the_id_of_another_first_suppresses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create("orders").await;
    let shared = QueueSettings {
        deduplication_scope: Some(DeduplicationScope::Queue.into()),
        ..QueueSettings::default()
    };
    rig.create_with("shared", shared).await;
    let of_mallory = send_invoice(&mut rig, "orders", "mallory").await.unwrap();
    let of_acme = send_invoice(&mut rig, "orders", "acme").await.unwrap();
    assert_ne!(of_mallory, of_acme);
    let first = send_invoice(&mut rig, "shared", "mallory").await.unwrap();
    for is_restarted in [false, true] {
        if is_restarted {
            assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
            rig = Rig::with(on_disk(directory.path())).await;
        }
        let again = send_invoice(&mut rig, "orders", "acme").await;
        assert_eq!(again, Err(of_acme.clone()));
        let again = send_invoice(&mut rig, "orders", "mallory").await;
        assert_eq!(again, Err(of_mallory.clone()));
        let suppressed = send_invoice(&mut rig, "shared", "acme").await;
        assert_eq!(suppressed, Err(first.clone()), "the queue says so");
    }
}

#[tokio::test]
async fn a_deduplication_id_counts_for_the_key_that_the_hook_gives() {
    let mut rig = Rig::start().await;
    let settings = QueueSettings {
        script: Some("function on_enqueue(msg) return { fairness_key = 'one' } end".to_owned()),
        ..QueueSettings::default()
    };
    rig.create_with("orders", settings).await;
    let first = send_invoice(&mut rig, "orders", "acme").await.unwrap();
    let second = send_invoice(&mut rig, "orders", "globex").await;
    assert_eq!(second, Err(first));
}

#[tokio::test]
async fn a_nacked_message_comes_again_and_counts_its_attempts() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let id = rig.enqueue("orders", "a", "x").await;
    let mut deliveries = rig.consume("orders", 1).await;
    for attempt in 1..=3 {
        let delivery = deliveries.next().await;
        assert_eq!((&delivery.message_id, delivery.attempt), (&id, attempt));
        rig.nack("orders", &delivery).await.unwrap();
    }
    assert_eq!(rig.stats("orders").await.nacked_total, 3);
}

#[tokio::test]
async fn results_in_batches_name_only_those_that_were_refused() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for _ in 0..4 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut deliveries = rig.consume("orders", 10).await;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(deliveries.next().await.lease_id);
    }
    let request = AckBatchRequest {
        queue: "orders".to_owned(),
        lease_ids: vec![leases[0], 12345, leases[1]],
    };
    let refused = soon(rig.messages.ack_batch(request)).await.unwrap();
    let refused = refused.into_inner().refused;
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].lease_id, 12345);
    let nack = |lease_id| LeaseNack {
        lease_id,
        ..LeaseNack::default()
    };
    let request = NackBatchRequest {
        queue: "orders".to_owned(),
        nacks: vec![nack(leases[2]), nack(leases[3]), nack(leases[0])],
    };
    let refused = soon(rig.messages.nack_batch(request)).await.unwrap();
    let refused = refused.into_inner().refused;
    assert_eq!(refused.len(), 1);
    assert_eq!(
        refused[0].error.as_ref().unwrap().code().name(),
        "LEASE_NOT_FOUND"
    );
    let stats = rig.stats("orders").await;
    assert_eq!((stats.acked_total, stats.nacked_total), (2, 2));
}

#[tokio::test]
async fn whatever_is_wrong_with_a_message_has_a_code_of_its_own() {
    let mut config = in_memory();
    config.limits.batch_messages = 3.try_into().unwrap();
    config.limits.depth_per_key = 1.try_into().unwrap();
    config.limits.depth_per_queue = 2.try_into().unwrap();
    config.limits.delayed_per_queue = 0;
    config.limits.keys_per_queue = 1.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let invalid = Code::InvalidArgument;
    let exhausted = Code::ResourceExhausted;
    let with = |change: &dyn Fn(&mut Message)| {
        let mut message = message("a", "x");
        change(&mut message);
        message
    };
    let many = |count: u32| (0..count).map(|n| (n.to_string(), String::new())).collect();
    let cases = [
        (
            invalid,
            "PAYLOAD_TOO_LARGE",
            with(&|m| m.payload = vec![0; (1 << 20) + 1].into()),
        ),
        (
            invalid,
            "HEADERS_TOO_LARGE",
            with(&|m| m.headers = many(65)),
        ),
        (
            invalid,
            "HEADERS_TOO_LARGE",
            with(&|m| m.headers = many(2000)),
        ),
        (
            invalid,
            "HEADERS_TOO_LARGE",
            with(&|m| m.headers = [("a".to_owned(), "b".repeat(20 << 10))].into()),
        ),
        (
            invalid,
            "FAIRNESS_KEY_TOO_LONG",
            with(&|m| m.fairness_key = "k".repeat(257)),
        ),
        (
            invalid,
            "FAIRNESS_KEY_TOO_LONG",
            with(&|m| m.fairness_key = "k".repeat(9999)),
        ),
        (invalid, "INVALID_WEIGHT", with(&|m| m.weight = Some(0))),
        (
            invalid,
            "INVALID_WEIGHT",
            with(&|m| m.weight = Some(u32::MAX)),
        ),
        (invalid, "DELAY_TOO_LONG", with(&|m| m.delay_ms = u64::MAX)),
        (
            invalid,
            "DELAY_TOO_LONG",
            with(&|m| m.ttl_ms = Some(u64::MAX)),
        ),
        (
            invalid,
            "DEDUPLICATION_ID_TOO_LONG",
            with(&|m| m.deduplication_id = "d".repeat(129)),
        ),
        (exhausted, "TOO_MANY_DELAYED", with(&|m| m.delay_ms = 1_000)),
    ];
    for (status, name, message) in cases {
        let request = EnqueueRequest {
            queue: "orders".to_owned(),
            message: Some(message),
        };
        let refused = soon(rig.messages.enqueue(request)).await;
        assert_refused(refused, status, name);
    }
    rig.enqueue("orders", "a", "x").await;
    let key_full = request("orders", "a");
    assert_refused(
        soon(rig.messages.enqueue(key_full)).await,
        exhausted,
        "KEY_FULL",
    );
    let new_key = request("orders", "b");
    assert_refused(
        soon(rig.messages.enqueue(new_key)).await,
        exhausted,
        "TOO_MANY_KEYS",
    );
    let batch = EnqueueBatchRequest {
        queue: "orders".to_owned(),
        messages: vec![message("a", "x"); 4],
        batch_id: None,
    };
    let refused = soon(rig.messages.enqueue_batch(batch)).await;
    assert_refused(refused, invalid, "BATCH_TOO_LARGE");
    let nothing = EnqueueRequest {
        queue: "orders".to_owned(),
        message: None,
    };
    assert_refused(
        soon(rig.messages.enqueue(nothing)).await,
        invalid,
        "INVALID_ARGUMENT",
    );
}

fn request(queue: &str, key: &str) -> EnqueueRequest {
    EnqueueRequest {
        queue: queue.to_owned(),
        message: Some(message(key, "x")),
    }
}

#[tokio::test]
async fn a_full_queue_refuses_every_message() {
    let mut config = in_memory();
    config.limits.depth_per_queue = 2.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "x").await;
    rig.enqueue("orders", "b", "x").await;
    let refused = soon(rig.messages.enqueue(request("orders", "c"))).await;
    assert_refused(refused, Code::ResourceExhausted, "QUEUE_FULL");
}

#[tokio::test]
async fn no_call_finds_a_queue_that_is_not_there() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let (missing, name) = (Code::NotFound, "QUEUE_NOT_FOUND");
    let queue = "nowhere".to_owned();
    let refused = soon(rig.messages.enqueue(request("nowhere", "a"))).await;
    assert_refused(refused, missing, name);
    let consume = ConsumeRequest {
        queue: queue.clone(),
        prefetch: 1,
    };
    assert_refused(soon(rig.messages.consume(consume)).await, missing, name);
    let ack = AckRequest {
        queue: queue.clone(),
        ..AckRequest::default()
    };
    assert_refused(soon(rig.messages.ack(ack)).await, missing, name);
    let extend = ExtendRequest {
        queue,
        ..ExtendRequest::default()
    };
    assert_refused(soon(rig.messages.extend(extend)).await, missing, name);
}

#[tokio::test]
async fn a_message_id_that_is_none_is_refused() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.create("others").await;
    let foreign = rig.enqueue("others", "a", "x").await;
    rig.enqueue("orders", "a", "x").await;
    let other = rig.enqueue("orders", "a", "y").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    for message_id in ["certainly not", &foreign, &other] {
        let request = AckRequest {
            queue: "orders".to_owned(),
            message_id: message_id.to_owned(),
            lease_id: delivery.lease_id,
        };
        let refused = soon(rig.messages.ack(request)).await;
        assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    }
    rig.ack("orders", &delivery).await.unwrap();
}

#[tokio::test]
async fn there_are_no_more_consumers_than_the_limit_and_a_place_is_free_at_once() {
    let mut config = in_memory();
    config.limits.consumers = 1.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let first = rig.consume("orders", 1).await;
    let request = ConsumeRequest {
        queue: "orders".to_owned(),
        prefetch: 1,
    };
    let refused = soon(rig.messages.consume(request.clone())).await;
    assert_refused(refused, Code::ResourceExhausted, "TOO_MANY_CONSUMERS");
    drop(first);
    let messages = rig.messages.clone();
    crate::common::eventually(|| {
        let (mut messages, request) = (messages.clone(), request.clone());
        async move { messages.consume(request).await.is_ok() }
    })
    .await;
}

#[tokio::test]
async fn the_trace_of_a_call_travels_with_its_messages() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let mut call = Request::new(request("orders", "a"));
    call.metadata_mut()
        .insert("traceparent", parent.parse().unwrap());
    call.metadata_mut()
        .insert("tracestate", "vendor=1".parse().unwrap());
    soon(rig.messages.enqueue(call)).await.unwrap();
    let mut own = request("orders", "a");
    let headers = [("traceparent".to_owned(), "its own".to_owned())];
    own.message.as_mut().unwrap().headers = headers.into();
    let mut call = Request::new(own);
    call.metadata_mut()
        .insert("traceparent", parent.parse().unwrap());
    soon(rig.messages.enqueue(call)).await.unwrap();
    let mut deliveries = rig.consume("orders", 10).await;
    let first = deliveries.next().await.headers;
    assert_eq!(first["traceparent"], parent);
    assert_eq!(first["tracestate"], "vendor=1");
    assert_eq!(deliveries.next().await.headers["traceparent"], "its own");
}
