//! The law of the noisy tenant, on the real server over gRPC: a tenant that sends hostile headers or does not read causes no
//! refusal for the others, and their messages wait for at most one message of each other key.
//!
//! These tests count and do not measure. `fila-bench law` measures the same from outside, with 1,000 connections.

use fila_proto::v1::{Delivery, EnqueueRequest, Message, QueueSettings, WorkRequest};
use fila_server::config::Config;
use tokio::task::JoinSet;
use tonic::Status;

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

fn small() -> Config {
    let mut config = in_memory();
    config.limits.deduplication_ids_per_queue = 300;
    config
}

const LARGE: usize = 1 << 20;

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
