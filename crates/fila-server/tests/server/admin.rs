//! Queues and fairness keys, as operators handle them.

use fila_proto::v1::{
    Charge, ConsumeRequest, CreateQueueRequest, DeduplicationScope, DeleteQueueRequest,
    HookFallback, InspectQueueRequest, ListConfigRequest, ListKeysRequest, ListQueuesRequest,
    Ordering, PauseQueueRequest, PeekRequest, PurgeQueueRequest, QueueSettings, ResumeQueueRequest,
    ServerInfoRequest, UpdateKeyRequest, UpdateQueueRequest,
};
use tonic::Code;

use crate::common::{Rig, assert_refused, code, in_memory, message, soon};

fn create(name: &str) -> CreateQueueRequest {
    CreateQueueRequest {
        name: name.to_owned(),
        settings: None,
    }
}

#[tokio::test]
async fn a_queue_is_what_it_was_created_as() {
    let mut rig = Rig::start().await;
    let settings = QueueSettings {
        visibility_timeout_ms: Some(1_234),
        ordering: Some(Ordering::Key.into()),
        key_concurrency: Some(0),
        charge: Some(Charge::Bytes.into()),
        deduplication_window_ms: Some(5_000),
        depth_max: Some(10),
        key_depth_max: Some(0),
        message_ttl_ms: Some(60_000),
        retry_attempts_max: Some(3),
        retry_backoff_ms: Some(50),
        retry_backoff_max_ms: Some(5_000),
        retry_jitter_percent: Some(0),
        script: Some("function on_enqueue(msg) return {} end".to_owned()),
        hook_fallback: Some(HookFallback::LastGood.into()),
        deduplication_scope: Some(DeduplicationScope::Queue.into()),
        key_separator: Some("|".to_owned()),
    };
    rig.create_with("orders", settings.clone()).await;
    let shown = rig.inspect("orders").await;
    assert_eq!(shown.settings, Some(settings));
    assert_eq!((shown.name.as_str(), shown.paused), ("orders", false));
}

#[tokio::test]
async fn names_that_cannot_be_are_refused() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for name in ["", "a b", "größe", "orders.dlq", &"q".repeat(256)] {
        let refused = soon(rig.admin.create_queue(create(name))).await;
        assert_refused(refused, Code::InvalidArgument, "INVALID_QUEUE_NAME");
    }
    let refused = soon(rig.admin.create_queue(create("orders"))).await;
    assert_refused(refused, Code::AlreadyExists, "QUEUE_EXISTS");
    let odd = CreateQueueRequest {
        name: "odd".to_owned(),
        settings: Some(QueueSettings {
            visibility_timeout_ms: Some(0),
            ..QueueSettings::default()
        }),
    };
    let refused = soon(rig.admin.create_queue(odd)).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn there_are_no_more_queues_than_the_limit() {
    let mut config = in_memory();
    config.limits.queues = 2.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("a").await;
    rig.create("b").await;
    let refused = soon(rig.admin.create_queue(create("c"))).await;
    assert_refused(refused, Code::ResourceExhausted, "TOO_MANY_QUEUES");
    let name = "a".to_owned();
    soon(rig.admin.delete_queue(DeleteQueueRequest { name }))
        .await
        .unwrap();
    rig.create("c").await;
}

#[tokio::test]
async fn nothing_can_be_done_to_a_queue_that_is_not_there() {
    let mut rig = Rig::start().await;
    let name = || "nowhere".to_owned();
    let mut refusals = Vec::new();
    let delete = DeleteQueueRequest { name: name() };
    refusals.push(soon(rig.admin.delete_queue(delete)).await.unwrap_err());
    let inspect = InspectQueueRequest { name: name() };
    refusals.push(soon(rig.admin.inspect_queue(inspect)).await.unwrap_err());
    let pause = PauseQueueRequest { name: name() };
    refusals.push(soon(rig.admin.pause_queue(pause)).await.unwrap_err());
    let resume = ResumeQueueRequest { name: name() };
    refusals.push(soon(rig.admin.resume_queue(resume)).await.unwrap_err());
    let purge = PurgeQueueRequest { name: name() };
    refusals.push(soon(rig.admin.purge_queue(purge)).await.unwrap_err());
    let keys = ListKeysRequest {
        queue: name(),
        ..ListKeysRequest::default()
    };
    refusals.push(soon(rig.admin.list_keys(keys)).await.unwrap_err());
    let key = UpdateKeyRequest {
        queue: name(),
        ..UpdateKeyRequest::default()
    };
    refusals.push(soon(rig.admin.update_key(key)).await.unwrap_err());
    let update = UpdateQueueRequest {
        name: name(),
        ..UpdateQueueRequest::default()
    };
    refusals.push(soon(rig.admin.update_queue(update)).await.unwrap_err());
    for refused in refusals {
        assert_eq!(
            (refused.code(), code(&refused)),
            (Code::NotFound, "QUEUE_NOT_FOUND")
        );
    }
}

#[tokio::test]
async fn an_update_changes_what_it_names_if_no_other_came_first() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let seen = rig.inspect("orders").await;
    let update = |version, timeout| UpdateQueueRequest {
        name: "orders".to_owned(),
        settings: Some(QueueSettings {
            visibility_timeout_ms: Some(timeout),
            ..QueueSettings::default()
        }),
        version,
    };
    let updated = soon(rig.admin.update_queue(update(Some(seen.version), 5))).await;
    let updated = updated.unwrap().into_inner().queue.unwrap();
    let settings = updated.settings.unwrap();
    assert_eq!(settings.visibility_timeout_ms, Some(5));
    assert_eq!(settings.deduplication_window_ms, Some(300_000));
    assert!(updated.version > seen.version);
    let refused = soon(rig.admin.update_queue(update(Some(seen.version), 6))).await;
    assert_refused(refused, Code::Aborted, "QUEUE_CHANGED");
    soon(rig.admin.update_queue(update(None, 7))).await.unwrap();
}

#[tokio::test]
async fn queues_are_listed_in_pages_in_the_order_of_their_names() {
    let mut rig = Rig::start().await;
    for name in ["c", "a.2", "a.1", "b", "a.3"] {
        rig.create(name).await;
    }
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListQueuesRequest {
            prefix: "a.".to_owned(),
            page_size: 2,
            page_token,
        };
        let page = soon(rig.admin.list_queues(request))
            .await
            .unwrap()
            .into_inner();
        names.push(
            page.queues
                .iter()
                .map(|queue| queue.name.clone())
                .collect::<Vec<_>>(),
        );
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    // Each with the queue of its dead letters.
    assert_eq!(
        names,
        [["a.1", "a.1.dlq"], ["a.2", "a.2.dlq"], ["a.3", "a.3.dlq"]]
    );
}

#[tokio::test]
async fn a_paused_queue_takes_messages_and_delivers_none_until_it_is_resumed() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let name = || "orders".to_owned();
    soon(rig.admin.pause_queue(PauseQueueRequest { name: name() }))
        .await
        .unwrap();
    assert!(rig.inspect("orders").await.paused);
    let mut deliveries = rig.consume("orders", 1).await;
    rig.enqueue("orders", "a", "x").await;
    let stats = rig.stats("orders").await;
    assert_eq!((stats.ready, stats.delivered_total), (1, 0));
    assert!(deliveries.is_silent());
    soon(rig.admin.resume_queue(ResumeQueueRequest { name: name() }))
        .await
        .unwrap();
    deliveries.next().await;
    assert!(!rig.inspect("orders").await.paused);
}

#[tokio::test]
async fn a_paused_key_stops_alone_and_a_fixed_weight_is_in_force() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let pause = UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: "a".to_owned(),
        paused: Some(true),
        weight: Some(9),
        concurrency: None,
        ..UpdateKeyRequest::default()
    };
    let key = soon(rig.admin.update_key(pause))
        .await
        .unwrap()
        .into_inner();
    let key = key.key.unwrap();
    assert_eq!(
        (key.paused, key.weight, key.concurrency),
        (true, Some(9), None)
    );
    rig.enqueue("orders", "a", "first").await;
    rig.enqueue("orders", "b", "second").await;
    let mut deliveries = rig.consume("orders", 10).await;
    assert_eq!(deliveries.next().await.payload, "second");
    assert_eq!(rig.stats("orders").await.ready, 1);
    assert!(deliveries.is_silent());

    let request = ListKeysRequest {
        queue: "orders".to_owned(),
        ..ListKeysRequest::default()
    };
    let keys = soon(rig.admin.list_keys(request))
        .await
        .unwrap()
        .into_inner();
    let paused: Vec<_> = keys
        .keys
        .iter()
        .map(|key| (key.fairness_key.as_str(), key.weight, key.paused, key.ready))
        .filter(|(_, _, paused, _)| *paused)
        .collect();
    assert_eq!(paused, [("a", 9, true, 1)]);

    let resume = UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: "a".to_owned(),
        paused: Some(false),
        weight: Some(0),
        concurrency: None,
        ..UpdateKeyRequest::default()
    };
    soon(rig.admin.update_key(resume)).await.unwrap();
    assert_eq!(deliveries.next().await.payload, "first");
    assert!(rig.inspect("orders").await.keys.is_empty());
}

#[tokio::test]
async fn odd_requests_about_keys_are_refused() {
    let mut config = in_memory();
    config.limits.key_settings_per_queue = 1;
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let update = |key: &str, weight| UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: key.to_owned(),
        weight: Some(weight),
        ..UpdateKeyRequest::default()
    };
    let long = soon(rig.admin.update_key(update(&"k".repeat(300), 1))).await;
    assert_refused(long, Code::InvalidArgument, "FAIRNESS_KEY_TOO_LONG");
    let heavy = soon(rig.admin.update_key(update("a", u32::MAX))).await;
    assert_refused(heavy, Code::InvalidArgument, "INVALID_WEIGHT");
    soon(rig.admin.update_key(update("a", 2))).await.unwrap();
    let many = soon(rig.admin.update_key(update("b", 2))).await;
    assert_refused(many, Code::ResourceExhausted, "TOO_MANY_KEY_SETTINGS");
}

#[tokio::test]
async fn every_list_refuses_a_page_token_that_it_did_not_give() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for page_token in ["certainly not", "orders", "\u{7f}", "ff"] {
        let page_token = page_token.to_owned();
        let queues = soon(rig.admin.list_queues(ListQueuesRequest {
            page_token: page_token.clone(),
            ..ListQueuesRequest::default()
        }));
        let mut refusals = vec![queues.await.unwrap_err()];
        let config = soon(rig.admin.list_config(ListConfigRequest {
            page_token: page_token.clone(),
            ..ListConfigRequest::default()
        }));
        refusals.push(config.await.unwrap_err());
        let keys = soon(rig.admin.list_keys(ListKeysRequest {
            queue: "orders".to_owned(),
            page_token: page_token.clone(),
            page_size: 0,
            ..ListKeysRequest::default()
        }));
        refusals.push(keys.await.unwrap_err());
        let messages = soon(rig.messages.peek(PeekRequest {
            queue: "orders".to_owned(),
            page_token,
            ..PeekRequest::default()
        }));
        refusals.push(messages.await.unwrap_err());
        for refusal in refusals {
            let text = "page_token is none; give it as the last page did";
            assert_eq!(refusal.message(), text);
            assert_refused::<()>(Err(refusal), Code::InvalidArgument, "INVALID_ARGUMENT");
        }
    }
}

#[tokio::test]
async fn a_request_that_names_no_queue_is_told_so() {
    let mut rig = Rig::start().await;
    let enqueued = rig.send("", message("a", "x")).await.unwrap_err();
    let consumed = soon(rig.messages.consume(ConsumeRequest::default())).await;
    let inspected = soon(rig.admin.inspect_queue(InspectQueueRequest::default())).await;
    let paused = soon(rig.admin.pause_queue(PauseQueueRequest::default())).await;
    let created = soon(rig.admin.create_queue(CreateQueueRequest::default())).await;
    for refused in [
        enqueued,
        consumed.unwrap_err(),
        inspected.unwrap_err(),
        paused.unwrap_err(),
        created.unwrap_err(),
    ] {
        assert!(refused.message().contains("is empty"), "{refused}");
        assert_refused::<()>(Err(refused), Code::InvalidArgument, "INVALID_QUEUE_NAME");
    }
}

#[tokio::test]
async fn keys_are_listed_in_pages_none_twice() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for number in 0..25 {
        rig.enqueue("orders", &format!("key-{number}"), "x").await;
    }
    let mut keys = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListKeysRequest {
            queue: "orders".to_owned(),
            page_size: 10,
            page_token,
            ..ListKeysRequest::default()
        };
        let page = soon(rig.admin.list_keys(request))
            .await
            .unwrap()
            .into_inner();
        assert!(page.keys.len() <= 10);
        keys.extend(page.keys.into_iter().map(|key| key.fairness_key));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 25);
}

#[tokio::test]
async fn a_purge_deletes_what_waits_and_what_is_leased() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for _ in 0..5 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut deliveries = rig.consume("orders", 1).await;
    let leased = deliveries.next().await;
    let name = "orders".to_owned();
    let purged = soon(rig.admin.purge_queue(PurgeQueueRequest { name }))
        .await
        .unwrap();
    assert_eq!(purged.into_inner().purged, 5);
    let refused = rig.ack("orders", &leased).await;
    assert_refused(refused, Code::FailedPrecondition, "LEASE_NOT_FOUND");
    assert_eq!(rig.stats("orders").await.depth, 0);
    rig.enqueue("orders", "a", "new").await;
    assert_eq!(deliveries.next().await.payload, "new");
}

#[tokio::test]
async fn a_deleted_queue_ends_its_consumers_and_leaves_nothing_to_its_successor() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "old").await;
    rig.enqueue("orders", "a", "old").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let leased = deliveries.next().await;
    let name = "orders".to_owned();
    soon(rig.admin.delete_queue(DeleteQueueRequest { name }))
        .await
        .unwrap();
    let ended = soon(deliveries.try_next()).await;
    assert_refused(ended, Code::NotFound, "QUEUE_DELETED");
    rig.create("orders").await;
    let refused = rig.ack("orders", &leased).await;
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(rig.stats("orders").await.depth, 0);
    rig.enqueue("orders", "a", "new").await;
    assert_eq!(rig.consume("orders", 1).await.next().await.payload, "new");
}

#[tokio::test]
async fn the_server_says_what_it_is() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let request = ConsumeRequest {
        queue: "orders".to_owned(),
        prefetch: 1,
    };
    let _consumer = soon(rig.messages.consume(request)).await.unwrap();
    let info = soon(rig.admin.server_info(ServerInfoRequest {}))
        .await
        .unwrap();
    let info = info.into_inner();
    assert_eq!((info.durability.as_str(), info.writable), ("memory", true));
    assert_eq!((info.queues, info.consumers, info.connections), (1, 1, 1));
    assert_eq!(info.memory_budget_bytes, 256 << 20);
    assert!(info.started_at_ms > 0);
}
