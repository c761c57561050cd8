//! The two streams: `Produce` and `Work`.

use std::collections::BTreeSet;

use fila_proto::v1::{
    DeleteQueueRequest, LeaseExtension, LeaseNack, Message, ProduceRequest, ProduceResponse,
    WorkRequest,
};
use tonic::Code;

use crate::common::pipes::{Producer, Worker};
use crate::common::{Rig, assert_refused, in_memory, message, soon};

fn codes(answer: &ProduceResponse) -> Vec<&'static str> {
    let code = |result: &fila_proto::v1::EnqueueResult| match &result.error {
        None => "stored",
        Some(error) => error.code().name(),
    };
    answer.results.iter().map(code).collect()
}

#[tokio::test]
async fn frames_are_answered_by_their_ids_and_may_leave_out_the_queue() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    assert_eq!(producer.window, 16_384);
    producer
        .send(11, "orders", vec![message("a", "1"), message("b", "2")])
        .await;
    producer.send(12, "", vec![message("a", "3")]).await;
    producer.send(13, "", Vec::new()).await;
    let mut answers = std::collections::BTreeMap::new();
    for _ in 0..3 {
        let answer = producer.answer().await;
        answers.insert(answer.frame_id, codes(&answer));
    }
    assert_eq!(answers[&11], ["stored", "stored"]);
    assert_eq!(answers[&12], ["stored"]);
    assert!(answers[&13].is_empty());
    assert_eq!(rig.stats("orders").await.ready, 3);
}

#[tokio::test]
async fn a_refused_frame_or_message_does_not_hurt_its_neighbours() {
    let mut config = in_memory();
    config.limits.batch_messages = 2.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    let light = Message {
        weight: Some(0),
        ..message("a", "x")
    };
    producer.send(1, "nowhere", vec![message("a", "x")]).await;
    producer.send(2, "orders", vec![message("a", "x"); 3]).await;
    producer
        .send(3, "orders", vec![light, message("a", "x")])
        .await;
    let mut answers = std::collections::BTreeMap::new();
    for _ in 0..3 {
        let answer = producer.answer().await;
        answers.insert(answer.frame_id, codes(&answer));
    }
    assert_eq!(answers[&1], ["QUEUE_NOT_FOUND"]);
    assert_eq!(answers[&2], ["BATCH_TOO_LARGE"; 3]);
    assert_eq!(answers[&3], ["INVALID_WEIGHT", "stored"]);
}

#[tokio::test]
async fn a_producer_that_hangs_up_gets_all_its_answers_first() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let producer = Producer::open(&rig).await;
    for frame_id in 0..500 {
        producer
            .send(frame_id, "orders", vec![message("a", "x"); 10])
            .await;
    }
    let Producer {
        frames,
        mut answers,
        ..
    } = producer;
    drop(frames);
    let mut stored = 0;
    while let Some(answer) = soon(answers.message()).await.unwrap() {
        stored += codes(&answer)
            .iter()
            .filter(|code| **code == "stored")
            .count();
    }
    assert_eq!(stored, 5_000);
    assert_eq!(rig.stats("orders").await.ready, 5_000);
}

#[tokio::test]
async fn no_more_is_read_than_the_window_while_nothing_is_answered() {
    let mut config = in_memory();
    config.limits.produce_window = 4.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    // Far more than a window: it gets through, window by window.
    let mut producer = Producer::open(&rig).await;
    assert_eq!(producer.window, 4);
    for frame_id in 0..100 {
        producer
            .send(frame_id, "orders", vec![message("a", "x")])
            .await;
    }
    let mut answered = BTreeSet::new();
    for _ in 0..100 {
        answered.insert(producer.answer().await.frame_id);
    }
    assert_eq!(answered.len(), 100);
}

#[tokio::test]
async fn a_worker_is_sent_no_more_than_its_credit() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for _ in 0..10 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut worker = Worker::open(&rig, "orders", 3).await;
    let mut leases = Vec::new();
    while leases.len() < 3 {
        leases.extend(worker.frame().await.deliveries.iter().map(|d| d.lease_id));
    }
    // A result brings no delivery; more credit does.
    worker
        .send(WorkRequest {
            acks: leases.clone(),
            ..WorkRequest::default()
        })
        .await;
    let mut confirmed = Vec::new();
    while confirmed.len() < 3 {
        let frame = worker.frame().await;
        assert!(frame.deliveries.is_empty());
        confirmed.extend(frame.confirmed);
    }
    assert_eq!(confirmed, leases);
    assert_eq!(rig.stats("orders").await.leased, 0);
    worker
        .send(WorkRequest {
            credit: 2,
            ..WorkRequest::default()
        })
        .await;
    let mut more = 0;
    while more < 2 {
        more += worker.frame().await.deliveries.len();
    }
    let stats = rig.stats("orders").await;
    assert_eq!(
        (stats.delivered_total, stats.acked_total, stats.leased),
        (5, 3, 2)
    );
}

#[tokio::test]
async fn all_kinds_of_results_go_up_the_work_stream() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for payload in ["0", "1", "2", "3"] {
        rig.enqueue("orders", "a", payload).await;
    }
    let mut worker = Worker::open(&rig, "orders", 4).await;
    let mut deliveries = Vec::new();
    while deliveries.len() < 4 {
        deliveries.extend(worker.frame().await.deliveries);
    }
    let lease = |place: usize| deliveries[place].lease_id;
    worker
        .send(WorkRequest {
            credit: 2,
            acks: vec![lease(0)],
            nacks: vec![LeaseNack {
                lease_id: lease(1),
                ..LeaseNack::default()
            }],
            extensions: vec![LeaseExtension {
                lease_id: lease(2),
                lease_ms: 60_000,
            }],
            releases: vec![lease(3), 4711],
            ..WorkRequest::default()
        })
        .await;
    let (mut confirmed, mut refused, mut again) = (Vec::new(), Vec::new(), Vec::new());
    while confirmed.len() + refused.len() < 5 || again.len() < 2 {
        let frame = worker.frame().await;
        confirmed.extend(frame.confirmed);
        refused.extend(frame.refused);
        again.extend(frame.deliveries);
    }
    confirmed.sort_unstable();
    let mut expected: Vec<u64> = (0..4).map(lease).collect();
    expected.sort_unstable();
    assert_eq!(confirmed, expected);
    assert_eq!(refused[0].lease_id, 4711);
    assert_eq!(
        refused[0].error.as_ref().unwrap().code().name(),
        "LEASE_NOT_FOUND"
    );
    // What failed counts as an attempt, what was released does not.
    let attempts: BTreeSet<_> = again
        .iter()
        .map(|delivery| (delivery.payload.as_ref(), delivery.attempt))
        .collect();
    assert_eq!(attempts, BTreeSet::from([(&b"1"[..], 2), (&b"3"[..], 1)]));
}

#[tokio::test]
async fn a_worker_that_ends_its_side_gets_the_answers_to_its_results_first() {
    const MESSAGES: usize = 200;
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for _ in 0..MESSAGES {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut worker = Worker::open(&rig, "orders", MESSAGES as u32).await;
    let mut leases = BTreeSet::new();
    while leases.len() < MESSAGES {
        let frame = worker.frame().await;
        leases.extend(frame.deliveries.iter().map(|delivery| delivery.lease_id));
    }
    for lease in &leases {
        let acks = vec![*lease];
        worker
            .send(WorkRequest {
                acks,
                ..WorkRequest::default()
            })
            .await;
    }
    let Worker {
        requests,
        mut frames,
    } = worker;
    drop(requests);
    let mut confirmed = BTreeSet::new();
    while let Some(frame) = soon(frames.message()).await.unwrap() {
        assert_eq!(frame.refused, []);
        confirmed.extend(frame.confirmed);
    }
    assert_eq!(confirmed, leases);
    let stats = rig.stats("orders").await;
    assert_eq!((stats.depth, stats.released_total), (0, 0));
}

#[tokio::test]
async fn a_drained_worker_gives_its_results_and_then_the_stream_ends() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for _ in 0..4 {
        rig.enqueue("orders", "a", "x").await;
    }
    let mut worker = Worker::open(&rig, "orders", 2).await;
    let mut leases = Vec::new();
    while leases.len() < 2 {
        leases.extend(worker.frame().await.deliveries.iter().map(|d| d.lease_id));
    }
    worker
        .send(WorkRequest {
            credit: 10,
            drain: true,
            ..WorkRequest::default()
        })
        .await;
    worker
        .send(WorkRequest {
            acks: leases.clone(),
            ..WorkRequest::default()
        })
        .await;
    let mut confirmed = Vec::new();
    while let Some(frame) = worker.end().await.unwrap() {
        // Deliveries that were in flight when the server read the drain are settled like the others.
        let acks: Vec<u64> = frame.deliveries.iter().map(|d| d.lease_id).collect();
        leases.extend(&acks);
        if !acks.is_empty() {
            worker
                .send(WorkRequest {
                    acks,
                    ..WorkRequest::default()
                })
                .await;
        }
        confirmed.extend(frame.confirmed);
    }
    assert_eq!(confirmed.len(), leases.len());
    let stats = rig.stats("orders").await;
    assert_eq!((stats.leased, stats.consumers), (0, 0));
    assert_eq!(stats.ready + stats.acked_total, 4);
}

#[tokio::test]
async fn a_work_stream_that_cannot_begin_says_why() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let mut lost = Worker::open(&rig, "nowhere", 1).await;
    assert_refused(lost.end().await, Code::NotFound, "QUEUE_NOT_FOUND");
    let mut unnamed = Worker::open(&rig, "", 1).await;
    let ended = unnamed.end().await;
    assert_refused(ended, Code::InvalidArgument, "INVALID_QUEUE_NAME");
    let mut moving = Worker::open(&rig, "orders", 1).await;
    moving
        .send(WorkRequest {
            queue: "another".to_owned(),
            ..WorkRequest::default()
        })
        .await;
    assert_refused(
        moving.end().await,
        Code::InvalidArgument,
        "INVALID_ARGUMENT",
    );
}

#[tokio::test]
async fn a_work_stream_ends_when_its_queue_is_deleted() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a", "x").await;
    let mut worker = Worker::open(&rig, "orders", 10).await;
    assert_eq!(worker.frame().await.deliveries.len(), 1);
    let name = "orders".to_owned();
    soon(rig.admin.delete_queue(DeleteQueueRequest { name }))
        .await
        .unwrap();
    assert_refused(worker.end().await, Code::NotFound, "QUEUE_DELETED");
}

#[tokio::test]
async fn a_worker_that_grants_everything_and_reads_nothing_holds_a_window_at_most() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    for frame_id in 0..10 {
        producer
            .send(frame_id, "orders", vec![message("a", "x"); 500])
            .await;
        producer.answer().await;
    }
    let mut worker = Worker::open(&rig, "orders", u32::MAX).await;
    let mut seen = worker.frame().await.deliveries.len();
    // Reading goes on to the end all the same: nothing is acked, so only the in-flight limit would stop it.
    while seen < 5_000 {
        seen += worker.frame().await.deliveries.len();
    }
    assert_eq!(rig.stats("orders").await.leased, 5_000);
}

#[tokio::test]
async fn many_messages_go_through_both_streams_and_none_is_lost_or_doubled() {
    const MESSAGES: usize = 20_000;
    let mut config = in_memory();
    config.scheduler.threads = 2.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    for queue in ["a", "b"] {
        rig.create(queue).await;
    }
    let mut producer = Producer::open(&rig).await;
    let frames = producer.frames.clone();
    let producing = tokio::spawn(async move {
        for number in 0..MESSAGES as u64 {
            let key = format!("key-{}", number % 7);
            let frame = ProduceRequest {
                frame_id: number,
                queue: if number % 2 == 0 { "a" } else { "b" }.to_owned(),
                messages: vec![message(&key, &number.to_string())],
                batch_id: None,
            };
            frames.send(frame).await.unwrap();
        }
    });
    let mut seen = BTreeSet::new();
    let mut workers = Vec::new();
    for queue in ["a", "b"] {
        workers.push(Worker::open(&rig, queue, 256).await);
    }
    let mut answered = 0;
    for worker in &mut workers {
        let mut settled = 0;
        while settled < MESSAGES / 2 {
            // Answers are read on the way, or the producer would rightly be stopped.
            tokio::select! {
                answer = producer.answers.message(), if answered < MESSAGES => {
                    let answer = answer.unwrap().unwrap();
                    assert_eq!(codes(&answer), ["stored"]);
                    answered += 1;
                }
                frame = worker.frames.message() => {
                    let frame = frame.unwrap().unwrap();
                    assert!(frame.refused.is_empty());
                    settled += frame.confirmed.len();
                    let acks: Vec<u64> = frame.deliveries.iter().map(|d| d.lease_id).collect();
                    for delivery in frame.deliveries {
                        assert!(seen.insert(delivery.payload), "twice");
                    }
                    let credit = u32::try_from(acks.len()).unwrap();
                    let request = WorkRequest { credit, acks, ..WorkRequest::default() };
                    worker.requests.send(request).await.unwrap();
                }
            }
        }
    }
    while answered < MESSAGES {
        producer.answer().await;
        answered += 1;
    }
    soon(producing).await.unwrap();
    assert_eq!(seen.len(), MESSAGES);
    assert_eq!(rig.stats("a").await.depth + rig.stats("b").await.depth, 0);
}
