//! Throttles: set by the runtime configuration, in effect at once, shared by all queues and scheduler threads.

use fila_proto::v1::{DeleteConfigRequest, Message};
use fila_server::config::Config;
use fila_server::runtime::Stopped;

use crate::common::{Rig, assert_refused, in_memory, message, on_disk, soon};

/// One in eleven days: none comes while a test runs.
const HARDLY_EVER: &str = "0.000001";

fn throttled(key: &str, payload: &str, throttles: &[&str]) -> Message {
    Message {
        throttle_keys: throttles.iter().map(ToString::to_string).collect(),
        ..message(key, payload)
    }
}

/// Sends `count` messages with the throttle key `api`.
async fn send_many(rig: &mut Rig, queue: &str, count: usize) {
    for _ in 0..count {
        let message = throttled("a", "throttled", &["api"]);
        rig.send(queue, message).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_that_is_raised_or_taken_away_lets_those_go_who_wait() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.configure("throttle:api:rate", "0").await;
    send_many(&mut rig, "orders", 3).await;
    rig.enqueue("orders", "a", "free").await;
    let mut deliveries = rig.consume("orders", 10).await;
    assert_eq!(deliveries.next().await.payload, "free");
    assert_eq!(rig.stats("orders").await.throttled, 3);
    assert!(deliveries.is_silent());
    rig.configure("throttle:api:burst", "1").await;
    rig.configure("throttle:api:rate", "1000").await;
    for _ in 0..3 {
        assert_eq!(deliveries.next().await.payload, "throttled");
    }
    rig.configure("throttle:api:rate", "0").await;
    send_many(&mut rig, "orders", 2).await;
    rig.enqueue("orders", "a", "free").await;
    assert_eq!(deliveries.next().await.payload, "free");
    let request = DeleteConfigRequest {
        key: "throttle:api:rate".to_owned(),
        version: None,
    };
    soon(rig.admin.delete_config(request)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(deliveries.next().await.payload, "throttled");
    }
    assert_eq!(rig.stats("orders").await.throttled, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_is_set_after_the_rate_is_there_at_once_and_no_more() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.configure("throttle:api:rate", HARDLY_EVER).await;
    rig.configure("throttle:api:burst", "20").await;
    send_many(&mut rig, "orders", 30).await;
    let mut deliveries = rig.consume("orders", 100).await;
    for _ in 0..20 {
        deliveries.next().await;
    }
    rig.enqueue("orders", "a", "free").await;
    assert_eq!(deliveries.next().await.payload, "free");
    assert_eq!(rig.stats("orders").await.throttled, 10);
    rig.configure("throttle:api:burst", "25").await;
    rig.enqueue("orders", "a", "free").await;
    assert_eq!(deliveries.next().await.payload, "free", "no second burst");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_gives_no_second_burst() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create("orders").await;
    rig.configure("throttle:api:burst", "3").await;
    rig.configure("throttle:api:rate", HARDLY_EVER).await;
    send_many(&mut rig, "orders", 5).await;
    let mut deliveries = rig.consume("orders", 10).await;
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(deliveries.next().await);
    }
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.enqueue("orders", "a", "free").await;
    let mut deliveries = rig.consume("orders", 10).await;
    assert_eq!(deliveries.next().await.payload, "free");
    for delivery in &taken {
        rig.nack("orders", delivery).await.unwrap();
    }
    assert_eq!(rig.stats("orders").await.throttled, 5, "all have failed");
    assert!(deliveries.is_silent());
    rig.configure("throttle:api:rate", "1000").await;
    for _ in 0..5 {
        assert_eq!(deliveries.next().await.payload, "throttled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_on_different_threads_share_a_bucket() {
    let mut config: Config = in_memory();
    config.scheduler.threads = 2.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.configure("throttle:api:burst", "7").await;
    rig.configure("throttle:api:rate", HARDLY_EVER).await;
    let queues = ["one", "two", "three", "four"];
    let mut consumers = Vec::new();
    for queue in queues {
        rig.create(queue).await;
        consumers.push(rig.consume(queue, 100).await);
    }
    for queue in queues {
        send_many(&mut rig, queue, 5).await;
    }
    let mut leased = 0;
    for queue in queues {
        let stats = rig.stats(queue).await;
        assert_eq!(stats.leased + stats.throttled, 5);
        leased += stats.leased;
    }
    assert_eq!(leased, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn throttle_keys_that_are_none_are_refused() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let many: Vec<String> = (0..17).map(|number| format!("k{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = "k".repeat(257);
    for keys in [&[""][..], &[&long], &many] {
        let refused = rig.send("orders", throttled("a", "x", keys)).await;
        let code = tonic::Code::InvalidArgument;
        assert_refused(refused, code, "INVALID_THROTTLE_KEY");
    }
    assert_eq!(rig.stats("orders").await.depth, 0);
}
