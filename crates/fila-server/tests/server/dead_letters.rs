//! Messages that fail too often: where they go, what is known of them there, and how they come back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fila_proto::v1::{
    DeathReason, DeduplicationScope, DeleteQueueRequest, EnqueueRequest, HookFallback,
    ListQueuesRequest, Message, NackRequest, PauseQueueRequest, PeekRequest, PeekedMessage,
    ProduceRequest, PurgeQueueRequest, QueueSettings, RedriveRequest, RedriveResponse,
    UpdateKeyRequest, UpdateQueueRequest,
};
use fila_server::config::StorageEngine;
use fila_server::runtime::Stopped;
use fila_store::{DiskOptions, Engine, QueueName};
use tonic::{Code, Status};

use crate::common::{
    Deliveries, Rig, assert_refused, eventually, in_memory, message, on_disk, soon,
};

fn trying(attempts: u32) -> QueueSettings {
    QueueSettings {
        retry_attempts_max: Some(attempts),
        retry_backoff_ms: Some(0),
        ..QueueSettings::default()
    }
}

/// Lets this many deliveries of a queue fail.
async fn fail(rig: &mut Rig, queue: &str, deliveries: usize) {
    let mut consumer = rig.consume(queue, 1).await;
    fail_of(rig, &mut consumer, queue, deliveries).await;
}

/// Lets this many deliveries of a consumer fail, which stays.
async fn fail_of(rig: &mut Rig, consumer: &mut Deliveries, queue: &str, deliveries: usize) {
    for _ in 0..deliveries {
        let delivery = consumer.next().await;
        let request = NackRequest {
            queue: queue.to_owned(),
            message_id: delivery.message_id,
            lease_id: delivery.lease_id,
            error: format!("attempt {} failed", delivery.attempt),
            delay_ms: None,
        };
        soon(rig.messages.nack(request)).await.unwrap();
    }
}

async fn peek(rig: &mut Rig, queue: &str) -> Vec<PeekedMessage> {
    let request = PeekRequest {
        queue: queue.to_owned(),
        page_size: 1_000,
        ..PeekRequest::default()
    };
    let page = soon(rig.messages.peek(request)).await.unwrap();
    page.into_inner().messages
}

fn of(queue: &str) -> RedriveRequest {
    RedriveRequest {
        queue: queue.to_owned(),
        ..RedriveRequest::default()
    }
}

/// Redrives, and returns the last that was said of it.
async fn redrive(rig: &mut Rig, request: RedriveRequest) -> Result<RedriveResponse, Status> {
    let mut steps = soon(rig.admin.redrive(request)).await?.into_inner();
    let mut last = RedriveResponse::default();
    while let Some(step) = soon(steps.message()).await? {
        assert!(step.redriven >= last.redriven && !last.done, "{step:?}");
        last = step;
    }
    assert!(last.done);
    Ok(last)
}

#[tokio::test]
async fn a_message_that_fails_too_often_is_among_the_dead_letters_with_its_history() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(3)).await;
    let id = rig.enqueue("orders", "acme", "broken").await;
    fail(&mut rig, "orders", 3).await;
    let stats = rig.stats("orders").await;
    assert_eq!((stats.depth, stats.dead_lettered_total), (0, 1));
    assert_eq!((stats.nacked_total, stats.retried_total), (3, 2));
    let shown = peek(&mut rig, "orders.dlq").await.remove(0);
    assert_eq!((shown.fairness_key.as_str(), shown.attempts), ("acme", 0));
    assert_eq!(shown.message_id, id, "it keeps its id");
    let history = shown.history.unwrap();
    assert_eq!(history.last_error, "attempt 3 failed");
    assert!(history.first_failed_at_ms <= history.last_failed_at_ms);
    let death = history.death.unwrap();
    assert_eq!(death.reason(), DeathReason::AttemptsExhausted);
    assert_eq!((death.queue.as_str(), death.attempts), ("orders", 3));
    assert_eq!(death.message_id, id);
    assert!(death.enqueued_at_ms <= history.first_failed_at_ms);
    // A consumer gets it with the same history, and can be done with it.
    let mut consumer = rig.consume("orders.dlq", 1).await;
    let delivery = consumer.next().await;
    assert_eq!(&delivery.payload[..], b"broken");
    assert_eq!(delivery.message_id, id);
    let death = delivery.history.clone().unwrap().death.unwrap();
    assert_eq!((death.message_id, death.attempts), (id, 3));
    rig.ack("orders.dlq", &delivery).await.unwrap();
    assert_eq!(rig.stats("orders.dlq").await.depth, 0);
}

#[tokio::test]
async fn dead_letters_come_back_by_count_by_key_and_by_header() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(1)).await;
    for number in 0..6 {
        let key = ["a", "b"][number % 2];
        let mut sent = message(key, &number.to_string());
        let region = ["eu", "us", "us"][number % 3];
        sent.headers = [("region", region), ("kind", "test")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        rig.send("orders", sent).await.unwrap();
    }
    fail(&mut rig, "orders", 6).await;
    assert_eq!(rig.stats("orders.dlq").await.depth, 6);

    // One of the headers is not enough.
    let of_both = RedriveRequest {
        headers: [("region", "us"), ("kind", "none")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..of("orders.dlq")
    };
    assert_eq!(redrive(&mut rig, of_both).await.unwrap().redriven, 0);
    let one = RedriveRequest {
        count: Some(1),
        ..of("orders.dlq")
    };
    let moved = redrive(&mut rig, one).await.unwrap();
    assert_eq!((moved.redriven, moved.total), (1, 6));
    let of_key = RedriveRequest {
        fairness_key: Some("b".to_owned()),
        headers: [("region".to_owned(), "us".to_owned())].into(),
        ..of("orders.dlq")
    };
    // Of the three of key `b` (1, 3 and 5), those from the US.
    assert_eq!(redrive(&mut rig, of_key).await.unwrap().redriven, 2);
    let left: BTreeSet<_> = peek(&mut rig, "orders.dlq")
        .await
        .into_iter()
        .collect_text();
    assert_eq!(left, ["2", "3", "4"].map(str::to_owned).into());
    assert_eq!(
        redrive(&mut rig, of("orders.dlq")).await.unwrap().redriven,
        3
    );
    let back = peek(&mut rig, "orders").await;
    assert!(back.iter().all(|it| it.attempts == 0));
    let back: BTreeSet<_> = back.into_iter().collect_text();
    assert_eq!(back.len(), 6);
    let stats = rig.stats("orders.dlq").await;
    assert_eq!((stats.depth, stats.redriven_total), (0, 6));
}

trait Texts {
    fn collect_text(self) -> BTreeSet<String>;
}

impl<I: Iterator<Item = PeekedMessage>> Texts for I {
    fn collect_text(self) -> BTreeSet<String> {
        let text = |it: PeekedMessage| String::from_utf8(it.payload.to_vec()).unwrap();
        self.map(text).collect()
    }
}

#[tokio::test]
async fn what_a_consumer_has_is_left_and_all_else_comes_back_once() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(1)).await;
    for number in 0..1_000 {
        let key = format!("k{}", number % 7);
        rig.enqueue("orders", &key, &number.to_string()).await;
    }
    fail(&mut rig, "orders", 1_000).await;
    let mut consumer = rig.consume("orders.dlq", 5).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(consumer.next().await);
    }
    let moved = redrive(&mut rig, of("orders.dlq")).await.unwrap();
    assert_eq!((moved.redriven, moved.skipped_leased), (995, 5));
    assert_eq!((moved.seen, moved.total), (1_000, 1_000));
    assert_eq!(rig.stats("orders.dlq").await.leased, 5);
    for delivery in &held {
        rig.ack("orders.dlq", delivery).await.unwrap();
    }
    let mut bodies = BTreeSet::new();
    let mut consumer = rig.consume("orders", 1_000).await;
    for _ in 0..995 {
        let delivery = consumer.next().await;
        assert_eq!(delivery.attempt, 1);
        assert!(bodies.insert(delivery.payload.clone()), "it came twice");
        rig.ack("orders", &delivery).await.unwrap();
    }
    bodies.extend(held.into_iter().map(|delivery| delivery.payload));
    assert_eq!(bodies.len(), 1_000);
    for queue in ["orders", "orders.dlq"] {
        assert_eq!(rig.stats(queue).await.depth, 0);
    }
}

#[tokio::test]
async fn a_rate_is_kept_and_a_redrive_that_is_dropped_ends() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(1)).await;
    for number in 0..40 {
        rig.enqueue("orders", "a", &number.to_string()).await;
    }
    fail(&mut rig, "orders", 40).await;
    let slow = RedriveRequest {
        rate: Some(100.0),
        count: Some(21),
        ..of("orders.dlq")
    };
    let began = Instant::now();
    assert_eq!(redrive(&mut rig, slow.clone()).await.unwrap().redriven, 21);
    assert!(
        began.elapsed() >= Duration::from_millis(150),
        "5 at once, then the rest"
    );
    let slower = RedriveRequest {
        rate: Some(0.001),
        count: None,
        ..slow
    };
    let mut steps = soon(rig.admin.redrive(slower)).await.unwrap().into_inner();
    let first = soon(steps.message()).await.unwrap().unwrap();
    assert_eq!((first.redriven, first.done), (1, false));
    drop(steps);
    assert_eq!(rig.stats("orders.dlq").await.depth, 18);
}

#[tokio::test]
async fn what_cannot_be_redriven_is_refused_and_stays() {
    let mut rig = Rig::start().await;
    let settings = QueueSettings {
        depth_max: Some(3),
        ..trying(1)
    };
    rig.create_with("orders", settings).await;
    for number in 0..5 {
        rig.enqueue("orders", "a", &number.to_string()).await;
        fail(&mut rig, "orders", 1).await;
    }
    let refused = redrive(&mut rig, of("orders")).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    let refused = redrive(&mut rig, of("nobody.dlq")).await;
    assert_refused(refused, Code::NotFound, "QUEUE_NOT_FOUND");
    let nothing = RedriveRequest {
        count: Some(0),
        ..of("orders.dlq")
    };
    let refused = redrive(&mut rig, nothing).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let odd = RedriveRequest {
            rate: Some(rate),
            ..of("orders.dlq")
        };
        let refused = redrive(&mut rig, odd).await;
        assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    }
    // The queue has room for three.
    let refused = redrive(&mut rig, of("orders.dlq")).await;
    assert_refused(refused, Code::ResourceExhausted, "QUEUE_FULL");
    assert_eq!(rig.stats("orders").await.depth, 3);
    assert_eq!(rig.stats("orders.dlq").await.depth, 2);
}

#[tokio::test]
async fn dead_letters_belong_to_their_queue() {
    let mut rig = Rig::with(in_memory()).await;
    rig.create("orders").await;
    let refused = rig
        .messages
        .enqueue(EnqueueRequest {
            queue: "orders.dlq".to_owned(),
            message: Some(Message::default()),
        })
        .await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    let frame = ProduceRequest {
        frame_id: 1,
        queue: "orders.dlq".to_owned(),
        messages: vec![message("a", "one")],
        batch_id: None,
    };
    let frames = futures_util::stream::iter([frame]);
    let mut answers = soon(rig.messages.produce(frames))
        .await
        .unwrap()
        .into_inner();
    let window = soon(answers.message()).await.unwrap().unwrap();
    assert!(window.window > 0);
    let answer = soon(answers.message()).await.unwrap().unwrap();
    assert_eq!(
        answer.results[0].error.as_ref().unwrap().code().name(),
        "INVALID_ARGUMENT"
    );
    let delete = |name: &str| DeleteQueueRequest {
        name: name.to_owned(),
    };
    let refused = soon(rig.admin.delete_queue(delete("orders.dlq"))).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    soon(rig.admin.delete_queue(delete("orders")))
        .await
        .unwrap();
    let gone = soon(rig.messages.peek(PeekRequest {
        queue: "orders.dlq".to_owned(),
        ..PeekRequest::default()
    }))
    .await;
    assert_refused(gone, Code::NotFound, "QUEUE_NOT_FOUND");
    rig.create("orders").await;
    assert_eq!(rig.stats("orders.dlq").await.depth, 0);
}

#[tokio::test]
async fn dead_letters_survive_a_restart_and_come_back_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create_with("orders", trying(2)).await;
    for number in 0..20 {
        rig.enqueue("orders", "a", &number.to_string()).await;
    }
    fail(&mut rig, "orders", 40).await;
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let mut rig = Rig::with(on_disk(directory.path())).await;
    let shown = peek(&mut rig, "orders.dlq").await;
    assert_eq!(shown.len(), 20);
    let death = shown[0].history.clone().unwrap().death.unwrap();
    assert_eq!((death.queue.as_str(), death.attempts), ("orders", 2));
    assert_eq!(
        redrive(&mut rig, of("orders.dlq")).await.unwrap().redriven,
        20
    );
    // They can still die, on whatever thread they are now.
    fail(&mut rig, "orders", 40).await;
    assert_eq!(rig.stats("orders.dlq").await.depth, 20);
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
}

#[tokio::test]
async fn a_queue_from_before_gets_its_dead_letters_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = on_disk(directory.path());
    config.storage.engine = StorageEngine::Lsm;
    let engine = DiskOptions::new(&config.storage.path).open().unwrap();
    let name = QueueName::parse("orders").unwrap();
    let definition = fila_core::QueueSettings::default().encode();
    engine.create_queue(&name, definition).unwrap();
    drop(engine);
    let mut rig = Rig::with(config).await;
    assert_eq!(rig.stats("orders.dlq").await.depth, 0);
    rig.enqueue("orders", "a", "one").await;
    let update = fila_proto::v1::UpdateQueueRequest {
        name: "orders".to_owned(),
        settings: Some(trying(1)),
        version: None,
    };
    soon(rig.admin.update_queue(update)).await.unwrap();
    fail(&mut rig, "orders", 1).await;
    assert_eq!(rig.stats("orders.dlq").await.depth, 1);
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
}

#[tokio::test]
async fn a_full_queue_of_dead_letters_loses_nothing() {
    let mut rig = Rig::start().await;
    let settings = QueueSettings {
        retry_backoff_max_ms: Some(1),
        ..trying(1)
    };
    rig.create_with("orders", settings).await;
    let full = QueueSettings {
        depth_max: Some(1),
        ..QueueSettings::default()
    };
    let update = fila_proto::v1::UpdateQueueRequest {
        name: "orders.dlq".to_owned(),
        settings: Some(full),
        version: None,
    };
    soon(rig.admin.update_queue(update)).await.unwrap();
    rig.enqueue("orders", "a", "one").await;
    rig.enqueue("orders", "a", "two").await;
    let mut consumer = rig.consume("orders", 1).await;
    fail_of(&mut rig, &mut consumer, "orders", 3).await;
    let stats = rig.stats("orders").await;
    assert_eq!((stats.depth, stats.dead_lettered_total), (1, 1));
    assert_eq!(stats.dead_letters_refused_total, 2);
    let empty = fila_proto::v1::PurgeQueueRequest {
        name: "orders.dlq".to_owned(),
    };
    soon(rig.admin.purge_queue(empty)).await.unwrap();
    fail_of(&mut rig, &mut consumer, "orders", 1).await;
    assert_eq!(rig.stats("orders").await.depth, 0);
    assert_eq!(rig.stats("orders.dlq").await.depth, 1);
}

#[tokio::test]
async fn what_comes_back_goes_through_the_hook_of_its_queue() {
    let mut rig = Rig::start().await;
    let script = "function on_enqueue(msg)
        if fila.get('refuse') then error('as planned') end
        local tier = fila.get('tier:' .. msg.headers['tenant']) or 'free'
        return {
          fairness_key = tier .. ' ' .. msg.payload_size, weight = 2, throttle_keys = { tier }
        }
    end
    function on_failure(msg) return { action = 'dlq' } end";
    let settings = QueueSettings {
        script: Some(script.to_owned()),
        hook_fallback: Some(fila_proto::v1::HookFallback::Refuse.into()),
        ..QueueSettings::default()
    };
    rig.create_with("orders", settings).await;
    let mut sent = message("mine", "hello");
    let tenant = ("tenant".to_owned(), "acme".to_owned());
    sent.headers = [tenant].into();
    rig.send("orders", sent).await.unwrap();
    fail(&mut rig, "orders", 1).await;
    soon(async { while peek(&mut rig, "orders.dlq").await.is_empty() {} }).await;
    let dead = peek(&mut rig, "orders.dlq").await.remove(0);
    assert_eq!(dead.fairness_key, "free 5");
    rig.configure("refuse", "yes").await;
    let refused = redrive(&mut rig, of("orders.dlq")).await;
    assert_refused(refused, Code::FailedPrecondition, "HOOK_FAILED");
    assert_eq!(rig.stats("orders.dlq").await.ready, 1);
    let request = fila_proto::v1::DeleteConfigRequest {
        key: "refuse".to_owned(),
        version: None,
    };
    soon(rig.admin.delete_config(request)).await.unwrap();
    rig.configure("tier:acme", "gold").await;
    let done = redrive(&mut rig, of("orders.dlq")).await.unwrap();
    assert_eq!(done.redriven, 1);
    let back = peek(&mut rig, "orders").await.remove(0);
    assert_eq!((back.fairness_key.as_str(), back.weight), ("gold 5", 2));
    assert_eq!(back.throttle_keys, ["gold"]);
}

#[tokio::test]
async fn a_stream_into_dead_letters_is_refused_whatever_script_they_have() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let request = UpdateQueueRequest {
        name: "orders.dlq".to_owned(),
        settings: Some(QueueSettings {
            script: Some("function on_failure(msg) return {} end".to_owned()),
            ..QueueSettings::default()
        }),
        version: None,
    };
    soon(rig.admin.update_queue(request)).await.unwrap();
    let frame = ProduceRequest {
        frame_id: 7,
        queue: "orders.dlq".to_owned(),
        messages: vec![message("a", "one")],
        batch_id: None,
    };
    let frames = futures_util::stream::iter([frame]);
    let answers = soon(rig.messages.produce(frames)).await.unwrap();
    let mut answers = answers.into_inner();
    soon(answers.message()).await.unwrap().unwrap();
    let answer = soon(answers.message()).await.unwrap().unwrap();
    assert_eq!(answer.frame_id, 7);
    let error = answer.results[0].error.as_ref().unwrap();
    assert_eq!(error.code().name(), "INVALID_ARGUMENT");
    assert_eq!(rig.inspect("orders.dlq").await.hooks[0].calls_total, 0);
}

#[tokio::test]
async fn a_redrive_that_waits_for_its_rate_does_not_keep_the_server_from_stopping() {
    let mut config = in_memory();
    config.server.shutdown_timeout = Duration::from_secs(3600);
    let mut rig = Rig::with(config).await;
    rig.create_with("orders", trying(1)).await;
    for number in 0..2 {
        rig.enqueue("orders", "a", &number.to_string()).await;
    }
    fail(&mut rig, "orders", 2).await;
    let slow = RedriveRequest {
        rate: Some(0.000_1),
        ..of("orders.dlq")
    };
    let mut steps = soon(rig.admin.redrive(slow)).await.unwrap().into_inner();
    let first = soon(steps.message()).await.unwrap().unwrap();
    assert_eq!((first.redriven, first.done), (1, false));
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let ended = soon(steps.message()).await;
    assert_refused(ended, Code::Unavailable, "SHUTTING_DOWN");
}

#[tokio::test]
async fn a_redrive_ends_with_its_queue_and_goes_into_one_that_is_paused() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(1)).await;
    for number in 0..3 {
        rig.enqueue("orders", "a", &number.to_string()).await;
    }
    fail(&mut rig, "orders", 3).await;
    let name = "orders".to_owned();
    let pause = PauseQueueRequest { name: name.clone() };
    soon(rig.admin.pause_queue(pause)).await.unwrap();
    let slow = RedriveRequest {
        rate: Some(20.0),
        ..of("orders.dlq")
    };
    let mut steps = soon(rig.admin.redrive(slow)).await.unwrap().into_inner();
    let first = soon(steps.message()).await.unwrap().unwrap();
    assert_eq!((first.redriven, first.done), (1, false));
    assert_eq!(rig.stats("orders").await.ready, 1, "it waits there");
    let delete = DeleteQueueRequest { name };
    soon(rig.admin.delete_queue(delete)).await.unwrap();
    let ended = loop {
        match soon(steps.message()).await {
            Ok(Some(step)) => assert!(!step.done),
            other => break other,
        }
    };
    assert_refused(ended, Code::NotFound, "QUEUE_DELETED");
}

#[tokio::test]
async fn dead_letters_that_were_purged_or_consumed_are_not_redriven() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(1)).await;
    for number in 0..4 {
        rig.enqueue("orders", "a", &number.to_string()).await;
    }
    fail(&mut rig, "orders", 4).await;
    let slow = RedriveRequest {
        rate: Some(20.0),
        ..of("orders.dlq")
    };
    let mut steps = soon(rig.admin.redrive(slow)).await.unwrap().into_inner();
    let first = soon(steps.message()).await.unwrap().unwrap();
    assert_eq!((first.redriven, first.total), (1, 4));
    let name = "orders.dlq".to_owned();
    let purge = soon(rig.admin.purge_queue(PurgeQueueRequest { name }));
    let purged = purge.await.unwrap().into_inner().purged;
    let mut last = first;
    while let Some(step) = soon(steps.message()).await.unwrap() {
        last = step;
    }
    assert!(last.done);
    assert_eq!(last.redriven + purged, 4);
    assert_eq!(rig.stats("orders").await.depth, last.redriven);
    assert_eq!(rig.stats("orders.dlq").await.depth, 0);
}

#[tokio::test]
async fn what_dies_while_a_redrive_walks_is_left_for_another() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(1)).await;
    for number in 0..4 {
        rig.enqueue("orders", "a", &number.to_string()).await;
    }
    fail(&mut rig, "orders", 4).await;
    // What comes back waits.
    let pause = UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: "a".to_owned(),
        paused: Some(true),
        ..UpdateKeyRequest::default()
    };
    soon(rig.admin.update_key(pause)).await.unwrap();
    let slow = RedriveRequest {
        rate: Some(5.0),
        ..of("orders.dlq")
    };
    let mut steps = soon(rig.admin.redrive(slow)).await.unwrap().into_inner();
    soon(steps.message()).await.unwrap().unwrap();
    rig.enqueue("orders", "z", "late").await;
    fail(&mut rig, "orders", 1).await;
    let mut last = RedriveResponse::default();
    while let Some(step) = soon(steps.message()).await.unwrap() {
        last = step;
    }
    let left = peek(&mut rig, "orders.dlq").await;
    assert_eq!((last.redriven, last.done), (4, true), "left: {left:?}");
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].payload, "late");
    assert_eq!(
        redrive(&mut rig, of("orders.dlq")).await.unwrap().redriven,
        1
    );
}

#[tokio::test]
async fn a_step_that_is_smaller_than_a_page_skips_no_message() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(1)).await;
    for number in 0..40 {
        let key = ["a", "b", "c"][number % 3];
        rig.enqueue("orders", key, &number.to_string()).await;
    }
    fail(&mut rig, "orders", 40).await;
    let in_steps_of_five = RedriveRequest {
        rate: Some(100.0),
        ..of("orders.dlq")
    };
    let moved = redrive(&mut rig, in_steps_of_five).await.unwrap();
    assert_eq!((moved.redriven, moved.seen), (40, 40));
    assert_eq!(rig.stats("orders").await.depth, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_a_message_in_one_queue_at_any_time() {
    const MESSAGES: u64 = 300;
    let mut rig = Rig::start().await;
    rig.create_with("orders", trying(1)).await;
    for _ in 0..MESSAGES {
        rig.enqueue("orders", "a", "x").await;
    }
    let admin = rig.admin.clone();
    let list = || {
        let mut admin = admin.clone();
        async move {
            let list = soon(admin.list_queues(ListQueuesRequest::default())).await;
            let queues = list.unwrap().into_inner().queues.into_iter();
            let depths = queues.map(|it| it.stats.unwrap().depth);
            depths.collect::<Vec<u64>>()
        }
    };
    // The figures follow an answer in a moment.
    eventually(|| async { list().await == [MESSAGES, 0] }).await;
    let failing = tokio::spawn(async move {
        fail(&mut rig, "orders", MESSAGES as usize).await;
        redrive(&mut rig, of("orders.dlq")).await.unwrap();
        rig
    });
    let mut moving = 0;
    while !failing.is_finished() {
        let depths = list().await;
        assert_eq!(depths.iter().sum::<u64>(), MESSAGES, "{depths:?}");
        moving += u64::from(!depths.contains(&0));
    }
    assert!(moving > 0, "no list came while messages moved");
    let rig = soon(failing).await.unwrap();
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
}

#[tokio::test]
async fn a_message_keeps_its_id_and_its_history_among_the_dead_letters_and_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create_with("orders", trying(2)).await;
    let id = rig.enqueue("orders", "a", "x").await;
    for times in 1..=2 {
        // Each result names the message, and the server compares.
        fail(&mut rig, "orders", 2).await;
        let letter = peek(&mut rig, "orders.dlq").await.remove(0);
        let death = letter.history.unwrap().death.unwrap();
        assert_eq!((&letter.message_id, &death.message_id), (&id, &id));
        assert_eq!(death.attempts, 2 * times);
        let mut reader = rig.consume("orders.dlq", 1).await;
        let delivery = reader.next().await;
        assert_eq!(delivery.message_id, id);
        drop(reader);
        while rig.stats("orders.dlq").await.consumers > 0 {
            tokio::task::yield_now().await;
        }
        rig.nack("orders.dlq", &delivery).await.unwrap();
        assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
        rig = Rig::with(on_disk(directory.path())).await;
        let moved = redrive(&mut rig, of("orders.dlq")).await.unwrap();
        assert_eq!(moved.redriven, 1);
        let back = peek(&mut rig, "orders").await.remove(0);
        assert_eq!((back.message_id.as_str(), back.attempts), (id.as_str(), 0));
        let history = back.history.unwrap();
        assert_eq!(history.death.unwrap().attempts, 2 * times);
    }
    let delivery = rig.consume("orders", 1).await.next().await;
    assert_eq!((&delivery.message_id, delivery.attempt), (&id, 1));
    rig.ack("orders", &delivery).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_dead_letters_refuses_settings_that_would_do_nothing() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let inert = [
        QueueSettings {
            deduplication_window_ms: Some(1),
            ..QueueSettings::default()
        },
        QueueSettings {
            deduplication_scope: Some(DeduplicationScope::Queue.into()),
            ..QueueSettings::default()
        },
        QueueSettings {
            hook_fallback: Some(HookFallback::Refuse.into()),
            ..QueueSettings::default()
        },
        QueueSettings {
            script: Some("function on_enqueue(msg) return {} end".to_owned()),
            ..QueueSettings::default()
        },
        QueueSettings {
            retry_attempts_max: Some(3),
            ..QueueSettings::default()
        },
    ];
    for settings in inert {
        for (name, is_refused) in [("orders.dlq", true), ("orders", false)] {
            let request = UpdateQueueRequest {
                name: name.to_owned(),
                settings: Some(settings.clone()),
                version: None,
            };
            let updated = soon(rig.admin.update_queue(request)).await;
            assert_eq!(updated.is_err(), is_refused, "{settings:?}");
            if let Err(refused) = updated {
                assert_eq!(refused.code(), Code::InvalidArgument);
                assert!(refused.message().contains("set it for queue `orders`"));
            }
        }
    }
    // `on_failure` says when a dead letter is tried again.
    let request = UpdateQueueRequest {
        name: "orders.dlq".to_owned(),
        settings: Some(QueueSettings {
            script: Some("function on_failure(msg) return { action = 'retry' } end".to_owned()),
            retry_backoff_ms: Some(5),
            ..QueueSettings::default()
        }),
        version: None,
    };
    soon(rig.admin.update_queue(request)).await.unwrap();
}
