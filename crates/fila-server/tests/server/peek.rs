//! Messages and waits, as operators look at them.

use std::collections::BTreeSet;
use std::time::Duration;

use fila_proto::v1::{
    DeleteQueueRequest, Delivery, EnqueueBatchRequest, EnqueueRequest, KeyInfo, ListKeysRequest,
    Message, MessageState, NackRequest, PauseQueueRequest, PeekRequest, PeekResponse,
    PeekedMessage, UpdateKeyRequest,
};
use fila_server::Server;
use fila_server::config::ByteSize;
use fila_server::runtime::Stopped;
use fila_store::{Accident, MemoryDisk, MemoryEngine};
use tonic::{Code, Status};

use crate::common::{Rig, assert_refused, get, in_memory, message, on_disk, soon};

fn request(queue: &str) -> PeekRequest {
    PeekRequest {
        queue: queue.to_owned(),
        ..PeekRequest::default()
    }
}

async fn try_peek(rig: &mut Rig, request: PeekRequest) -> Result<PeekResponse, Status> {
    let peeked = soon(rig.messages.peek(request)).await;
    peeked.map(tonic::Response::into_inner)
}

async fn peek(rig: &mut Rig, request: PeekRequest) -> PeekResponse {
    try_peek(rig, request).await.unwrap()
}

/// Goes through all pages.
async fn walk(rig: &mut Rig, mut request: PeekRequest) -> Vec<Vec<PeekedMessage>> {
    let mut pages = Vec::new();
    loop {
        let page = peek(rig, request.clone()).await;
        pages.push(page.messages);
        if page.next_page_token.is_empty() {
            return pages;
        }
        request.page_token = page.next_page_token;
    }
}

fn payloads(messages: &[PeekedMessage]) -> Vec<&str> {
    let texts = messages.iter();
    texts
        .map(|shown| std::str::from_utf8(&shown.payload).unwrap())
        .collect()
}

async fn enqueue(rig: &mut Rig, queue: &str, message: Message) -> String {
    rig.send(queue, message).await.unwrap()
}

async fn enqueue_many(rig: &mut Rig, queue: &str, key: &str, count: usize) {
    let numbers: Vec<usize> = (0..count).collect();
    for some in numbers.chunks(500) {
        let messages = some.iter().map(|n| message(key, &format!("{n:06}")));
        let request = EnqueueBatchRequest {
            queue: queue.to_owned(),
            messages: messages.collect(),
            batch_id: None,
        };
        let results = soon(rig.messages.enqueue_batch(request)).await.unwrap();
        let results = results.into_inner().results;
        assert!(results.iter().all(|result| result.error.is_none()));
    }
}

#[tokio::test]
async fn a_message_is_shown_with_all_that_is_known_of_it() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let whole = Message {
        weight: Some(3),
        headers: [("kind".to_owned(), "test".to_owned())].into(),
        ttl_ms: Some(60_000),
        deduplication_id: "once".to_owned(),
        throttle_keys: vec!["api".to_owned(), "api:eu".to_owned()],
        ..message("a", "payload")
    };
    let id = enqueue(&mut rig, "orders", whole).await;
    let mut page = peek(&mut rig, request("orders")).await;
    let shown = page.messages.pop().unwrap();
    let at = shown.enqueued_at_ms;
    assert!((1..=page.now_ms).contains(&at), "{at} of {}", page.now_ms);
    assert_eq!((page.next_page_token.as_str(), page.damaged), ("", 0));
    let expected = PeekedMessage {
        message_id: id,
        fairness_key: "a".to_owned(),
        weight: 3,
        headers: [("kind".to_owned(), "test".to_owned())].into(),
        payload: "payload".into(),
        payload_bytes: 7,
        attempts: 0,
        enqueued_at_ms: at,
        state: MessageState::Ready.into(),
        deliver_after_ms: None,
        lease_until_ms: None,
        expires_at_ms: Some(at + 60_000),
        deduplication_id: "once".to_owned(),
        history: None,
        throttle_keys: vec!["api".to_owned(), "api:eu".to_owned()],
    };
    assert_eq!(shown, expected);
    assert!(page.messages.is_empty());
}

#[tokio::test]
async fn every_state_is_shown_with_its_time_and_keys_come_in_order() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "b", "leased").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let leased = deliveries.next().await;
    rig.enqueue("orders", "b", "ready").await;
    let late = Message {
        delay_ms: 50_000,
        ..message("a", "delayed")
    };
    enqueue(&mut rig, "orders", late).await;
    let page = peek(&mut rig, request("orders")).await;
    assert_eq!(payloads(&page.messages), ["delayed", "leased", "ready"]);
    let [delayed, held, ready] = &page.messages[..] else {
        panic!("three were enqueued");
    };
    assert_eq!(delayed.state(), MessageState::Delayed);
    let due = delayed.enqueued_at_ms + 50_000;
    assert_eq!(
        (delayed.deliver_after_ms, delayed.lease_until_ms),
        (Some(due), None)
    );
    assert_eq!((held.state(), held.attempts), (MessageState::Leased, 1));
    assert_eq!(held.message_id, leased.message_id);
    let left = held.lease_until_ms.unwrap() - page.now_ms;
    assert!((1..=30_000).contains(&left), "{left}");
    assert_eq!((ready.state(), ready.attempts), (MessageState::Ready, 0));
    assert_eq!((ready.deliver_after_ms, ready.lease_until_ms), (None, None));

    let nack = NackRequest {
        queue: "orders".to_owned(),
        message_id: held.message_id.clone(),
        lease_id: leased.lease_id,
        error: String::new(),
        delay_ms: Some(40_000),
    };
    soon(rig.messages.nack(nack)).await.unwrap();
    let page = peek(&mut rig, request("orders")).await;
    let failed = &page.messages[1];
    assert_eq!(
        (failed.state(), failed.attempts),
        (MessageState::Delayed, 1)
    );
    let left = failed.deliver_after_ms.unwrap() - page.now_ms;
    assert!((1..=40_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_peek_leases_nothing_and_takes_no_turn() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for key in ["a", "b"] {
        for n in 0..3 {
            rig.enqueue("orders", key, &format!("{key}{n}")).await;
        }
    }
    let before = rig.stats("orders").await;
    for key in [None, Some("b".to_owned()), Some("a".to_owned())] {
        for _ in 0..5 {
            let mut request = request("orders");
            request.fairness_key = key.clone();
            assert!(!peek(&mut rig, request).await.messages.is_empty());
        }
    }
    assert_eq!(rig.stats("orders").await, before);
    let mut deliveries = rig.consume("orders", 10).await;
    let mut order = Vec::new();
    for _ in 0..6 {
        let Delivery {
            payload, attempt, ..
        } = deliveries.next().await;
        assert_eq!(attempt, 1);
        order.push(String::from_utf8(payload.to_vec()).unwrap());
    }
    assert_eq!(order, ["a0", "b0", "a1", "b1", "a2", "b2"]);
}

#[tokio::test]
async fn pages_are_of_ten_unless_asked_for_and_show_everything_once() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for (key, count) in [("a", 7), ("b", 18)] {
        enqueue_many(&mut rig, "orders", key, count).await;
    }
    let pages = walk(&mut rig, request("orders")).await;
    let sizes: Vec<usize> = pages.iter().map(Vec::len).collect();
    assert_eq!(sizes, [10, 10, 5]);
    let seen: Vec<(String, String)> = pages
        .into_iter()
        .flatten()
        .map(|shown| (shown.fairness_key, shown.message_id))
        .collect();
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 25);
    let mut one = request("orders");
    one.page_size = 1_000;
    assert_eq!(walk(&mut rig, one).await.len(), 1);
}

#[tokio::test]
async fn a_fairness_key_is_shown_alone() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for key in ["a", "", "z"] {
        enqueue_many(&mut rig, "orders", key, 12).await;
    }
    for (asked, shown) in [("a", "a"), ("", "default"), ("z", "z")] {
        let mut request = request("orders");
        request.fairness_key = Some(asked.to_owned());
        let pages = walk(&mut rig, request).await;
        let all: Vec<PeekedMessage> = pages.into_iter().flatten().collect();
        assert_eq!(all.len(), 12);
        assert!(all.iter().all(|message| message.fairness_key == shown));
        assert!(payloads(&all).is_sorted());
    }
    let mut nobody = request("orders");
    nobody.fairness_key = Some("nobody".to_owned());
    assert_eq!(walk(&mut rig, nobody).await, [[]]);
}

#[tokio::test]
async fn a_page_goes_on_though_its_last_message_has_gone() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    enqueue_many(&mut rig, "orders", "a", 4).await;
    let mut two = request("orders");
    two.page_size = 2;
    let first = peek(&mut rig, two.clone()).await;
    let mut deliveries = rig.consume("orders", 10).await;
    for _ in 0..3 {
        let delivery = deliveries.next().await;
        rig.ack("orders", &delivery).await.unwrap();
    }
    two.page_token = first.next_page_token;
    let second = peek(&mut rig, two).await;
    assert_eq!(payloads(&second.messages), ["000003"]);
    assert_eq!(second.next_page_token, "");
}

#[tokio::test]
async fn payloads_are_cut_where_the_caller_says() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "payload").await;
    for (most, shown) in [(0, ""), (3, "pay"), (7, "payload"), (u64::MAX, "payload")] {
        let mut request = request("orders");
        request.payload_bytes_max = Some(most);
        let page = peek(&mut rig, request).await;
        assert_eq!(payloads(&page.messages), [shown]);
        assert_eq!(page.messages[0].payload_bytes, 7);
    }
}

#[tokio::test]
async fn a_page_of_large_messages_is_what_a_client_reads_without_being_told() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let large = "x".repeat(1 << 20);
    for _ in 0..5 {
        rig.enqueue("orders", "a", &large).await;
    }
    let mut all = request("orders");
    all.page_size = 1_000;
    let pages = walk(&mut rig, all.clone()).await;
    assert_eq!(pages.iter().map(Vec::len).sum::<usize>(), 5);
    assert!(pages.iter().all(|page| page.len() == 1));
    // A cut payload takes less of a page.
    all.payload_bytes_max = Some(10);
    assert_eq!(walk(&mut rig, all).await.len(), 1);
}

#[tokio::test]
async fn bad_requests_are_refused_with_their_reasons() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    enqueue_many(&mut rig, "orders", "a", 12).await;
    let refused = try_peek(&mut rig, request("nowhere")).await;
    assert_refused(refused, Code::NotFound, "QUEUE_NOT_FOUND");
    let mut large = request("orders");
    large.page_size = 1_001;
    let refused = try_peek(&mut rig, large).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    let mut broken = request("orders");
    broken.page_token = "what?".to_owned();
    let refused = try_peek(&mut rig, broken).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    let mut another = request("orders");
    another.page_token = peek(&mut rig, request("orders")).await.next_page_token;
    assert_ne!(another.page_token, "");
    another.fairness_key = Some("b".to_owned());
    let refused = try_peek(&mut rig, another).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    let mut long = request("orders");
    long.fairness_key = Some("k".repeat(513));
    let refused = try_peek(&mut rig, long).await;
    assert_refused(refused, Code::InvalidArgument, "FAIRNESS_KEY_TOO_LONG");

    let name = "orders".to_owned();
    soon(rig.admin.delete_queue(DeleteQueueRequest { name }))
        .await
        .unwrap();
    let refused = try_peek(&mut rig, request("orders")).await;
    assert_refused(refused, Code::NotFound, "QUEUE_NOT_FOUND");
}

#[tokio::test]
async fn an_empty_queue_and_a_paused_one_are_shown_as_they_are() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let page = peek(&mut rig, request("orders")).await;
    assert_eq!((page.messages.len(), page.next_page_token.len()), (0, 0));
    let name = "orders".to_owned();
    soon(rig.admin.pause_queue(PauseQueueRequest { name }))
        .await
        .unwrap();
    let pause = UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: "a".to_owned(),
        paused: Some(true),
        weight: Some(9),
        concurrency: None,
        ..UpdateKeyRequest::default()
    };
    soon(rig.admin.update_key(pause)).await.unwrap();
    rig.enqueue("orders", "a", "one").await;
    let page = peek(&mut rig, request("orders")).await;
    let shown = &page.messages[0];
    assert_eq!((shown.state(), shown.weight), (MessageState::Ready, 9));
}

#[tokio::test]
async fn a_queue_larger_than_memory_is_shown_whole_before_and_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = on_disk(directory.path());
    config.storage.memory_budget = ByteSize::mib(1);
    let mut rig = Rig::with(config.clone()).await;
    rig.create("orders").await;
    enqueue_many(&mut rig, "orders", "a", 2_500).await;
    enqueue_many(&mut rig, "orders", "b", 500).await;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    rig.nack("orders", &delivery).await.unwrap();
    drop(deliveries);
    while rig.stats("orders").await.leased > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for _ in 0..2 {
        assert!(rig.stats("orders").await.stored_only > 1_000);
        let mut large = request("orders");
        large.page_size = 1_000;
        let pages = walk(&mut rig, large).await;
        let all: Vec<PeekedMessage> = pages.into_iter().flatten().collect();
        assert_eq!(all.len(), 3_000);
        assert!(payloads(&all[..2_500]).is_sorted() && payloads(&all[2_500..]).is_sorted());
        assert!(all.iter().all(|shown| shown.state() == MessageState::Ready));
        assert!(all[0].attempts > 0 && all[2].attempts == 0);
        let ids: BTreeSet<&str> = all.iter().map(|it| it.message_id.as_str()).collect();
        assert_eq!(ids.len(), 3_000);

        let Rig { server, .. } = rig;
        assert_eq!(soon(server.shutdown()).await, Stopped::Complete);
        rig = Rig::with(config.clone()).await;
    }
}

#[tokio::test]
async fn what_may_or_may_not_be_stored_is_not_shown() {
    let disk = MemoryDisk::default();
    let engine = MemoryEngine::open(&disk).unwrap();
    let server = soon(Server::start_on(in_memory(), engine)).await.unwrap();
    let mut rig = Rig::of(server).await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "confirmed").await;
    disk.fail_next_write(Accident::Stored);
    let unknown = EnqueueRequest {
        queue: "orders".to_owned(),
        message: Some(message("a", "unknown")),
    };
    let unknown = soon(rig.messages.enqueue(unknown)).await;
    assert_refused(unknown, Code::Unknown, "OUTCOME_UNKNOWN");
    let page = peek(&mut rig, request("orders")).await;
    assert_eq!(payloads(&page.messages), ["confirmed"]);
}

#[tokio::test]
async fn peeks_beside_work_show_no_message_twice_and_hold_nothing_up() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    enqueue_many(&mut rig, "orders", "a", 600).await;
    enqueue_many(&mut rig, "orders", "b", 600).await;
    let mut peeks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut messages = rig.another().await;
        peeks.spawn(async move {
            let mut request = request("orders");
            request.page_size = 100;
            let mut seen = Vec::new();
            loop {
                let page = soon(messages.peek(request.clone())).await.unwrap();
                let page = page.into_inner();
                assert_eq!(page.damaged, 0);
                let places = page.messages.into_iter();
                seen.extend(places.map(|it| (it.fairness_key, it.message_id)));
                if page.next_page_token.is_empty() {
                    return seen;
                }
                request.page_token = page.next_page_token;
            }
        });
    }
    let mut deliveries = rig.consume("orders", 50).await;
    for _ in 0..1_200 {
        let delivery = deliveries.next().await;
        assert_eq!(delivery.attempt, 1);
        rig.ack("orders", &delivery).await.unwrap();
    }
    while let Some(seen) = soon(peeks.join_next()).await {
        let seen = seen.unwrap();
        assert!(seen.is_sorted_by(|one, next| one < next));
    }
    let page = peek(&mut rig, request("orders")).await;
    assert_eq!(page.messages, []);
}

async fn keys(rig: &mut Rig) -> Vec<KeyInfo> {
    let request = ListKeysRequest {
        queue: "orders".to_owned(),
        ..ListKeysRequest::default()
    };
    let keys = soon(rig.admin.list_keys(request)).await.unwrap();
    keys.into_inner().keys
}

#[tokio::test]
async fn keys_and_queues_say_how_long_messages_have_waited() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for key in ["a", "a", "b"] {
        rig.enqueue("orders", key, "x").await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let waiting: Vec<_> = keys(&mut rig).await;
    assert!(waiting.iter().all(|key| key.head_waiting_ms >= Some(20)));
    assert!(waiting.iter().all(|key| key.first_delivered_total == 0));
    let mut deliveries = rig.consume("orders", 10).await;
    let first = deliveries.next().await;
    let (second, third) = (deliveries.next().await, deliveries.next().await);
    rig.nack("orders", &first).await.unwrap();
    let again = deliveries.next().await;
    assert_eq!((again.message_id, again.attempt), (first.message_id, 2));
    rig.ack("orders", &second).await.unwrap();
    assert_eq!(
        (second.fairness_key, third.fairness_key),
        ("b".into(), "a".into())
    );

    let known = keys(&mut rig).await;
    let [a] = &known[..] else {
        panic!("one has messages: {known:?}");
    };
    assert_eq!((a.first_delivered_total, a.delivered_total), (2, 3));
    assert_eq!((a.acked_total, a.nacked_total), (0, 1));
    assert!(a.waited_ms_total >= 40, "{a:?}");
    assert_eq!(a.head_waiting_ms, None, "all of it is leased");
    let stats = rig.stats("orders").await;
    assert_eq!((stats.first_delivered_total, stats.delivered_total), (3, 4));
    assert!(stats.waited_ms_total >= a.waited_ms_total + 20, "{stats:?}");
    let line = "fila_messages_waited_seconds_total{queue=\"orders\"} ";
    let (_, page) = get(&rig.server, "/metrics").await;
    let (_, rest) = page.split_once(line).unwrap();
    let seconds: f64 = rest.lines().next().unwrap().parse().unwrap();
    let total = stats.waited_ms_total as f64 / 1_000.0;
    assert!((seconds - total).abs() < 0.001, "{seconds} of {total}");
    assert!(page.contains("fila_messages_first_delivered_total{queue=\"orders\"} 3"));
}
