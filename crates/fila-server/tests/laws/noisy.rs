//! The law of the noisy tenant, on the real server over gRPC: a tenant that sends 100 times what it may, over one or many
//! connections, in small or large messages, that fails all its work, sends hostile headers, or does not read, causes no
//! refusal for the others, and their messages wait for at most one message of each other key. So does a tenant that names
//! a thousand keys of its own.
//!
//! These tests count and do not measure. `fila-bench law` measures the same from outside, with 1,000 connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    Delivery, EnqueueBatchRequest, EnqueueRequest, ExplainKeyRequest, LeaseNack, Message,
    QueueSettings, WaitReason, WorkRequest,
};
use fila_server::config::Config;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::Channel;

use crate::common::pipes::Worker;
use crate::common::{Rig, code, in_memory, message, soon};

const SHARED: &str = "shared";
const NOISY: &str = "noisy";

const QUIET: usize = 8;
/// The messages that a quiet tenant sends.
const EACH: usize = 2;

/// The hook that the specification shows.
const SCRIPT: &str = r#"
function on_enqueue(msg)
  return {
    fairness_key = msg.headers["tenant"] or "default",
    weight = tonumber(msg.headers["priority"]) or 1,
    throttle_keys = { msg.headers["endpoint"] }
  }
end
"#;

fn quiet_key(tenant: usize) -> String {
    format!("quiet-{tenant}")
}

/// A message of a quiet tenant, with a deduplication id and the headers that the hook reads.
fn quiet_message(tenant: usize, number: usize) -> Message {
    let key = quiet_key(tenant);
    Message {
        deduplication_id: format!("{key}-{number}"),
        headers: [("tenant".to_owned(), key.clone())].into(),
        ..message(&key, "x")
    }
}

/// Lets every quiet tenant send messages over a connection of its own, all at once.
async fn send_quiet(
    rig: &Rig,
    each: usize,
    make: impl Fn(usize, usize) -> Message + Copy + Send + 'static,
) -> Vec<Status> {
    let mut tenants = JoinSet::new();
    for tenant in 0..QUIET {
        let mut messages = rig.another().await;
        tenants.spawn(async move {
            let mut refusals = Vec::new();
            for number in 0..each {
                let request = EnqueueRequest {
                    queue: SHARED.to_owned(),
                    message: Some(make(tenant, number)),
                };
                refusals.extend(soon(messages.enqueue(request)).await.err());
            }
            refusals
        });
    }
    tenants.join_all().await.into_iter().flatten().collect()
}

/// A tenant that sends batch after batch over many connections until it is stopped.
struct Flood {
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Flood {
    async fn start(rig: &Rig, plan: FloodPlan) -> Self {
        let mut flood = Self {
            stop: Arc::default(),
            accepted: Arc::default(),
            refused: Arc::default(),
            tasks: JoinSet::new(),
        };
        for connection in 0..plan.connections {
            let messages = rig.another().await;
            let stop = flood.stop.clone();
            let counts = (flood.accepted.clone(), flood.refused.clone());
            flood.tasks.spawn(async move {
                let mut messages = messages;
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("{connection}-{round}");
                    let sent = send_batch(&mut messages, &name, plan.size, plan.batch).await;
                    let (accepted, refused) = sent;
                    counts.0.fetch_add(accepted, Ordering::Relaxed);
                    counts.1.fetch_add(refused, Ordering::Relaxed);
                }
            });
        }
        flood
    }

    /// Waits until it holds half of the queue, and was refused as often as the plan says.
    async fn has_sent_too_much(&self, plan: FloodPlan) {
        crate::common::eventually(|| async {
            let accepted = self.accepted.load(Ordering::Relaxed);
            let refused = self.refused.load(Ordering::Relaxed);
            accepted >= plan.depth / 2 && refused > plan.times * accepted
        })
        .await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        soon(self.tasks.join_all()).await;
    }
}

/// Returns how many messages of a noisy batch the server accepted, and how many it refused.
async fn send_batch(
    messages: &mut FilaServiceClient<Channel>,
    name: &str,
    size: usize,
    count: usize,
) -> (u64, u64) {
    let batch = (0..count).map(|number| Message {
        deduplication_id: format!("{name}-{number}"),
        ..message(NOISY, &"x".repeat(size))
    });
    let request = EnqueueBatchRequest {
        queue: SHARED.to_owned(),
        messages: batch.collect(),
        batch_id: None,
    };
    match messages.enqueue_batch(request).await {
        Ok(answer) => {
            let results = answer.into_inner().results;
            let refused = results.iter().filter(|it| it.error.is_some()).count();
            ((results.len() - refused) as u64, refused as u64)
        }
        Err(_) => (0, count as u64),
    }
}

/// Takes and acknowledges one message after the other, and returns their keys.
async fn drain(rig: &Rig, count: usize) -> Vec<Delivery> {
    let mut worker = Worker::open(rig, SHARED, 0).await;
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(next(&mut worker).await);
        let last: &Delivery = taken.last().unwrap();
        ack(&worker, last.lease_id).await;
    }
    taken
}

async fn next(worker: &mut Worker) -> Delivery {
    let ask = WorkRequest {
        credit: 1,
        ..WorkRequest::default()
    };
    worker.send(ask).await;
    loop {
        if let Some(delivery) = worker.frame().await.deliveries.pop() {
            return delivery;
        }
    }
}

async fn ack(worker: &Worker, lease_id: u64) {
    let report = WorkRequest {
        acks: vec![lease_id],
        ..WorkRequest::default()
    };
    worker.send(report).await;
}

/// Checks that the quiet messages came before all but their share of the others: message `n` of a key within `n + 1`
/// turns of every key, and one delivery that was under way.
fn assert_bounded(taken: &[Delivery], keys: usize, each: usize) {
    for tenant in 0..QUIET {
        let key = quiet_key(tenant);
        let places = taken.iter().enumerate();
        let places = places.filter(|(_, delivery)| delivery.fairness_key == key);
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        assert_eq!(places.len(), each, "{key}");
        for (number, place) in places.into_iter().enumerate() {
            let bound = (number + 1) * keys + 1;
            assert!(place <= bound, "{key}: {place} of {bound}");
        }
    }
}

#[track_caller]
fn assert_none_refused(refusals: &[Status]) {
    let codes: Vec<_> = refusals.iter().map(code).collect();
    assert!(refusals.is_empty(), "quiet tenants were refused: {codes:?}");
}

/// A flood, and the queue that it meets.
#[derive(Clone, Copy)]
struct FloodPlan {
    connections: usize,
    size: usize,
    batch: usize,
    /// How many times as many messages are refused as accepted, at least, before the quiet tenants send.
    times: u64,
    /// How many messages the queue takes.
    depth: u64,
    /// How many messages each quiet tenant sends.
    each: usize,
}

/// A tenant floods the queue, the quiet ones send, and then a worker takes the messages one by one.
async fn flooded(config: Config, plan: FloodPlan) {
    let mut rig = Rig::with(config).await;
    let settings = QueueSettings {
        depth_max: Some(plan.depth),
        ..QueueSettings::default()
    };
    rig.create_with(SHARED, settings).await;
    let flood = Flood::start(&rig, plan).await;
    flood.has_sent_too_much(plan).await;
    let refusals = send_quiet(&rig, plan.each, quiet_message).await;
    flood.end().await;
    assert_none_refused(&refusals);
    let keys = QUIET + 1;
    let taken = drain(&rig, (plan.each + 1) * keys).await;
    assert_bounded(&taken, keys, plan.each);
}

fn small() -> Config {
    let mut config = in_memory();
    config.limits.deduplication_ids_per_queue = 300;
    config
}

/// A hundred times as many messages as the queue takes of one key.
const SMALL_MESSAGES: FloodPlan = FloodPlan {
    connections: 1,
    size: 1 << 10,
    batch: 100,
    times: 99,
    depth: 200,
    each: EACH,
};

#[tokio::test]
async fn a_flood_over_one_connection_refuses_and_delays_no_other_tenant() {
    flooded(small(), SMALL_MESSAGES).await;
}

#[tokio::test]
async fn a_flood_over_a_hundred_connections_refuses_and_delays_no_other_tenant() {
    let plan = FloodPlan {
        connections: 100,
        batch: 20,
        ..SMALL_MESSAGES
    };
    flooded(small(), plan).await;
}

/// Few unconfirmed bytes, so that large messages fill them.
fn small_buffer() -> Config {
    let mut config = small();
    config.limits.buffered_bytes = "8 MiB".parse().unwrap();
    config
}

const LARGE: usize = 1 << 20;

/// The largest messages. A hundred times what the queue takes would be gigabytes: this flood goes on until it is refused.
const LARGE_MESSAGES: FloodPlan = FloodPlan {
    connections: 1,
    size: LARGE,
    batch: 4,
    times: 0,
    depth: 40,
    each: 1,
};

#[tokio::test]
async fn a_flood_of_large_messages_over_one_connection_refuses_and_delays_no_other_tenant() {
    flooded(small_buffer(), LARGE_MESSAGES).await;
}

#[tokio::test]
async fn a_flood_of_large_messages_over_many_connections_refuses_and_delays_no_other_tenant() {
    let plan = FloodPlan {
        connections: 25,
        batch: 1,
        // So often that calls which are refused together fill the buffer.
        times: 3,
        ..LARGE_MESSAGES
    };
    flooded(small_buffer(), plan).await;
}

/// A tenant floods the queue in the name of a thousand keys, and the quiet ones send one message after the other.
#[tokio::test]
async fn a_tenant_that_splits_itself_into_a_thousand_keys_costs_the_others_nothing() {
    const KEYS: usize = 1_000;
    let mut rig = Rig::with(small()).await;
    rig.create(SHARED).await;
    let mut floods = JoinSet::new();
    for connection in 0..10 {
        let mut messages = rig.another().await;
        floods.spawn(async move {
            for round in 0..10 {
                let of_key = |key| message(&format!("{NOISY}/{connection}/{key}"), "x");
                let request = EnqueueBatchRequest {
                    queue: SHARED.to_owned(),
                    messages: (0..KEYS / 10).map(of_key).collect(),
                    batch_id: None,
                };
                let sent = soon(messages.enqueue_batch(request)).await.unwrap();
                let results = sent.into_inner().results;
                assert!(results.iter().all(|it| it.error.is_none()), "round {round}");
            }
        });
    }
    assert_none_refused(&send_quiet(&rig, EACH, quiet_message).await);
    floods.join_all().await;
    assert_none_refused(
        &send_quiet(&rig, EACH, |tenant, number| {
            quiet_message(tenant, number + EACH)
        })
        .await,
    );
    // However many keys it has, the noisy tenant is one.
    let keys = QUIET + 1;
    let taken = drain(&rig, (2 * EACH + 1) * keys).await;
    assert_bounded(&taken, keys, 2 * EACH);
    let sent = 10 * KEYS + 2 * EACH * QUIET;
    let stats = rig.stats(SHARED).await;
    assert_eq!(stats.enqueued_total, sent as u64, "no message is lost");
}

#[tokio::test]
async fn a_tenant_whose_work_always_fails_leaves_room_for_the_delays_of_others() {
    let mut config = small();
    config.limits.delayed_per_queue = 40;
    let mut rig = Rig::with(config).await;
    let settings = QueueSettings {
        retry_backoff_ms: Some(3_600_000),
        retry_backoff_max_ms: Some(3_600_000),
        ..QueueSettings::default()
    };
    rig.create_with(SHARED, settings).await;
    let mut noisy = rig.another().await;
    let (accepted, _) = send_batch(&mut noisy, "failing", 1, 100).await;
    assert_eq!(accepted, 100);
    let mut worker = Worker::open(&rig, SHARED, 0).await;
    while !has_failed_enough(&mut rig).await {
        let delivery = next(&mut worker).await;
        fail(&mut worker, delivery.lease_id).await;
    }
    let later = |tenant, number| Message {
        delay_ms: 3_600_000,
        ..quiet_message(tenant, number)
    };
    assert_none_refused(&send_quiet(&rig, 1, later).await);
    let now = |tenant, number| quiet_message(tenant, number + 1);
    assert_none_refused(&send_quiet(&rig, EACH, now).await);
    drop(worker);
    let taken = drain(&rig, EACH * QUIET).await;
    let of_quiet = taken.iter().filter(|it| it.fairness_key != NOISY).count();
    // The noisy tenant has had all that it may have, or takes its turn.
    assert!(of_quiet >= EACH * QUIET - EACH, "{of_quiet}");
}

/// Reports that the work on a message failed, and waits until the server has stored it.
async fn fail(worker: &mut Worker, lease_id: u64) {
    let nack = LeaseNack {
        lease_id,
        error: "as always".to_owned(),
        delay_ms: None,
    };
    let report = WorkRequest {
        nacks: vec![nack],
        ..WorkRequest::default()
    };
    worker.send(report).await;
    while !worker.frame().await.confirmed.contains(&lease_id) {}
}

/// Tells whether the server delivers no more of the noisy tenant's messages because so many have failed.
async fn has_failed_enough(rig: &mut Rig) -> bool {
    let request = ExplainKeyRequest {
        queue: SHARED.to_owned(),
        fairness_key: NOISY.to_owned(),
    };
    let shown = soon(rig.admin.explain_key(request)).await.unwrap();
    shown.into_inner().reason() == WaitReason::TooManyDelayed
}

#[tokio::test]
async fn hostile_headers_cost_no_other_tenant_its_key() {
    let mut rig = Rig::with(small()).await;
    let settings = QueueSettings {
        script: Some(SCRIPT.to_owned()),
        ..QueueSettings::default()
    };
    rig.create_with(SHARED, settings).await;
    let long = "x".repeat(257);
    let hostile = [
        ("priority", "0"),
        ("priority", "1.5"),
        ("priority", "70000"),
        ("priority", "-1"),
        ("endpoint", ""),
        ("endpoint", long.as_str()),
        ("tenant", long.as_str()),
    ];
    for (name, value) in hostile.into_iter().cycle().take(70) {
        let mut headers =
            std::collections::BTreeMap::from([("tenant".to_owned(), NOISY.to_owned())]);
        headers.insert(name.to_owned(), value.to_owned());
        let message = Message {
            headers,
            ..message(NOISY, "x")
        };
        // The server may refuse it; the others must not notice.
        let _ = rig.send(SHARED, message).await;
    }
    assert_none_refused(&send_quiet(&rig, EACH, quiet_message).await);
    // The noisy tenant's messages are under its key, and under the key of messages that have none.
    let keys = QUIET + 2;
    let taken = drain(&rig, (EACH + 1) * keys).await;
    assert_bounded(&taken, keys, EACH);
}

#[tokio::test]
async fn consumers_that_do_not_read_hold_up_no_other_consumer() {
    let mut rig = Rig::with(small()).await;
    rig.create(SHARED).await;
    rig.create(NOISY).await;
    let large = "x".repeat(LARGE);
    for _ in 0..100 {
        rig.enqueue(NOISY, NOISY, &large).await;
    }
    let mut unread = Vec::new();
    for _ in 0..10 {
        let mut consumer = rig.another().await;
        unread.push(crate::common::consume(&mut consumer, NOISY, 64).await);
    }
    assert_none_refused(&send_quiet(&rig, EACH, quiet_message).await);
    let taken = drain(&rig, EACH * QUIET).await;
    assert_bounded(&taken, QUIET, EACH);
}
