//! Consuming: credit, leases, and connections that break.

use std::time::Duration;

use fila_sdk::{Error, ErrorCode, Failure, QueueSettings, Received};
use tokio::time::sleep;

use crate::{Rig, soon, text};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn no_more_messages_are_here_than_the_prefetch() {
    let rig = Rig::new();
    for _ in 0..10 {
        rig.send("x").await;
    }
    let mut consumer = rig.orders.consumer().prefetch(3).subscribe();
    rig.until_leased(3).await;
    let first = consumer.next().await.unwrap().unwrap();
    sleep(Duration::from_secs(1)).await;
    rig.until_leased(3).await;
    first.ack().await.unwrap();
    rig.until_leased(3).await;
    assert_eq!(rig.broker.depth("orders"), 9);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_as_long_as_its_delivery_is_held() {
    let rig = Rig::with(&QueueSettings::new().visibility_timeout(Duration::from_secs(30)));
    rig.send("x").await;
    let mut consumer = rig.orders.consumer().subscribe();
    let order = consumer.next().await.unwrap().unwrap();
    sleep(50 * MINUTE).await;
    assert!(!order.is_lost());
    order.ack().await.unwrap();
    let stats = rig.client.admin().queue("orders").await.unwrap().stats;
    assert_eq!(stats.totals.lease_expired, 0);
    assert_eq!(stats.totals.acked, 1);
}

#[tokio::test(start_paused = true)]
async fn leases_of_messages_that_wait_here_are_kept_as_well() {
    let rig = Rig::new();
    rig.send("one").await;
    rig.send("two").await;
    let mut consumer = rig.orders.consumer().subscribe();
    let first = consumer.next().await.unwrap().unwrap();
    sleep(5 * MINUTE).await;
    first.ack().await.unwrap();
    let second = consumer.next().await.unwrap().unwrap();
    assert_eq!((text(&second), second.attempt), ("two", 1));
    second.ack().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn work_that_hangs_keeps_its_lease_for_an_hour_and_no_longer() {
    let rig = Rig::new();
    rig.send("x").await;
    let mut consumer = rig.orders.consumer().subscribe();
    let hanging = consumer.next().await.unwrap().unwrap();
    sleep(62 * MINUTE).await;
    let again = consumer.next().await.unwrap().unwrap();
    assert_eq!(again.attempt, 2);
    assert!(matches!(hanging.ack().await, Err(Error::LeaseLost)));
    again.ack().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_not_kept_run_out_unless_extended() {
    let rig = Rig::new();
    rig.send("x").await;
    let consumer = rig.orders.consumer().keep_leases(Duration::ZERO);
    let mut consumer = consumer.subscribe();
    let order = consumer.next().await.unwrap().unwrap();
    order.extend(2 * MINUTE).await.unwrap();
    sleep(MINUTE).await;
    order.extend(2 * MINUTE).await.unwrap();
    sleep(3 * MINUTE).await;
    assert!(matches!(order.ack().await, Err(Error::LeaseLost)));
    assert_eq!(consumer.next().await.unwrap().unwrap().attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn an_extension_and_a_result_said_together_are_both_taken() {
    let rig = Rig::new();
    rig.send("x").await;
    let mut consumer = rig.orders.consumer().subscribe();
    let order = consumer.next().await.unwrap().unwrap();
    let extended = order.extend(MINUTE);
    let acked = order.ack();
    let (extended, acked) = tokio::join!(extended, acked);
    extended.unwrap();
    acked.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_takes_nothing_from_a_consumer_that_is_back_in_time() {
    let rig = Rig::new();
    for payload in ["one", "two", "three"] {
        rig.send(payload).await;
    }
    let mut consumer = rig.orders.consumer().subscribe();
    let first = consumer.next().await.unwrap().unwrap();
    rig.until_leased(3).await;
    rig.broker.cut();
    // Far longer than the broker waits for a client.
    sleep(MINUTE).await;
    assert!(!first.is_lost());
    first.ack().await.unwrap();
    for payload in ["two", "three"] {
        let order = consumer.next().await.unwrap().unwrap();
        assert_eq!((text(&order), order.attempt, order.lost), (payload, 1, 0));
        order.ack().await.unwrap();
    }
    let stats = rig.client.admin().queue("orders").await.unwrap().stats;
    assert_eq!((stats.totals.delivered, stats.totals.acked), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_outlasts_its_connection_is_acknowledged_over_the_next() {
    let rig = Rig::new();
    rig.send("x").await;
    let handler = |_: Received| async {
        sleep(MINUTE).await;
        Ok::<(), Failure>(())
    };
    let worker = rig.orders.worker();
    let working = tokio::spawn(worker.run_until(sleep(10 * MINUTE), handler));
    rig.until_leased(1).await;
    for _ in 0..5 {
        rig.broker.cut();
        sleep(Duration::from_secs(7)).await;
    }
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.acked, report.nacked, report.lost), (1, 0, 0));
    let stats = rig.client.admin().queue("orders").await.unwrap().stats;
    assert_eq!((stats.totals.delivered, stats.totals.acked), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_back_too_late_gets_its_messages_again_and_none_is_charged() {
    let rig = Rig::new();
    for payload in ["one", "two"] {
        rig.send(payload).await;
    }
    let mut consumer = rig.orders.consumer().subscribe();
    let first = consumer.next().await.unwrap().unwrap();
    rig.until_leased(2).await;
    sleep(Duration::from_secs(1)).await; // so that the broker knows what has begun
    rig.broker.go_away();
    sleep(Duration::from_secs(10)).await;
    rig.broker.come_back();
    soon(first.lost()).await;
    assert_eq!(first.ack().await, Err(Error::LeaseLost));
    for (payload, attempt) in [("one", 2), ("two", 1)] {
        let order = soon(consumer.next()).await.unwrap().unwrap();
        let found = (text(&order), order.attempt, order.lost);
        assert_eq!(found, (payload, attempt, 1));
        order.ack().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_in_hands_takes_its_place_on_the_next_connection_too() {
    let rig = Rig::new();
    for _ in 0..10 {
        rig.send("x").await;
    }
    let mut consumer = rig.orders.consumer().prefetch(3).subscribe();
    let first = consumer.next().await.unwrap().unwrap();
    let second = consumer.next().await.unwrap().unwrap();
    let third = consumer.next().await.unwrap().unwrap();
    rig.broker.cut();
    sleep(MINUTE).await;
    rig.until_leased(3).await;
    assert_eq!(delivered(&rig).await, 3);
    first.ack().await.unwrap();
    rig.until_leased(3).await;
    assert_eq!(delivered(&rig).await, 4);
    second.ack().await.unwrap();
    third.ack().await.unwrap();
    sleep(MINUTE).await;
    rig.until_leased(3).await;
    assert_eq!(delivered(&rig).await, 6);
}

async fn delivered(rig: &Rig) -> u64 {
    let queue = rig.client.admin().queue("orders").await.unwrap();
    queue.stats.totals.delivered
}

#[tokio::test(start_paused = true)]
async fn a_consumer_outlasts_a_server_that_is_away_for_long() {
    let rig = Rig::new();
    let mut consumer = rig.orders.consumer().subscribe();
    rig.until_leased(0).await;
    rig.broker.go_away();
    let waiting = tokio::spawn(async move { consumer.next().await });
    sleep(10 * MINUTE).await;
    rig.broker.come_back();
    rig.send("x").await;
    let order = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!(text(&order), "x");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_deleted_ends_its_consumers() {
    let rig = Rig::new();
    let mut consumer = rig.client.queue("nowhere").consumer().subscribe();
    let error = consumer.next().await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueNotFound));
    assert!(consumer.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_nack_lets_the_message_wait_as_long_as_it_says() {
    let rig = Rig::new();
    rig.send("x").await;
    let mut consumer = rig.orders.consumer().subscribe();
    let order = consumer.next().await.unwrap().unwrap();
    let nacked = tokio::time::Instant::now();
    order.nack_after("not now", MINUTE).await.unwrap();
    let again = consumer.next().await.unwrap().unwrap();
    assert!(nacked.elapsed() >= MINUTE);
    assert_eq!(again.attempt, 2);
    again.nack("still not").await.unwrap();
    assert_eq!(consumer.next().await.unwrap().unwrap().attempt, 3);
}

#[tokio::test(start_paused = true)]
async fn stopping_gives_back_what_was_not_taken_and_waits_for_what_was() {
    let rig = Rig::new();
    for payload in ["one", "two", "three"] {
        rig.send(payload).await;
    }
    let mut consumer = rig.orders.consumer().subscribe();
    let first = consumer.next().await.unwrap().unwrap();
    rig.until_leased(3).await;
    let stopping = tokio::spawn(consumer.stop());
    rig.until_leased(1).await;
    assert!(!stopping.is_finished());
    first.ack().await.unwrap();
    stopping.await.unwrap();
    assert_eq!(rig.broker.depth("orders"), 2);

    let mut consumer = rig.orders.consumer().subscribe();
    let order = consumer.next().await.unwrap().unwrap();
    assert_eq!(order.attempt, 1, "no consumer had taken it");
}

#[tokio::test(start_paused = true)]
async fn messages_of_all_keys_come_in_turns() {
    use fila_sdk::Message;
    let rig = Rig::new();
    for _ in 0..4 {
        rig.orders
            .send(Message::new("").key("noisy"))
            .await
            .unwrap();
    }
    rig.orders
        .send(Message::new("").key("quiet"))
        .await
        .unwrap();
    let mut consumer = rig.orders.consumer().prefetch(1).subscribe();
    let mut keys = Vec::new();
    for _ in 0..5 {
        let order = consumer.next().await.unwrap().unwrap();
        keys.push(order.key.clone());
        order.ack().await.unwrap();
    }
    assert_eq!(keys, ["noisy", "quiet", "noisy", "noisy", "noisy"]);
}

#[tokio::test(start_paused = true)]
async fn no_time_that_can_be_said_is_too_long() {
    let rig = Rig::with(&QueueSettings::new().visibility_timeout(Duration::MAX));
    let client = rig.broker.client_with(|client| {
        client
            .deadline(Duration::MAX)
            .connect_timeout(Duration::MAX)
            .backoff(Duration::MAX, Duration::MAX)
    });
    let orders = client.queue("orders");
    let message = fila_sdk::Message::new("x").time_to_live(Duration::MAX);
    orders.send(message).await.unwrap();
    client.admin().queue("orders").await.unwrap();
    let consumer = orders
        .consumer()
        .keep_leases(Duration::MAX)
        .prefetch(u32::MAX);
    let mut consumer = consumer.subscribe();
    let order = consumer.next().await.unwrap().unwrap();
    order.extend(Duration::MAX).await.unwrap();
    order.nack_after("later", Duration::MAX).await.unwrap();
    consumer.stop().await;
    assert_eq!(rig.broker.depth("orders"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_double_moves_dead_letters_as_the_server_does() {
    let rig = Rig::with(&QueueSettings::new().retry_attempts_max(2));
    rig.send("x").await;
    let mut consumer = rig.orders.consumer().subscribe();
    for attempt in 1..=2 {
        let order = consumer.next().await.unwrap().unwrap();
        assert_eq!(order.attempt, attempt);
        order.nack("no").await.unwrap();
    }
    assert_eq!(rig.broker.depth("orders"), 0);
    let mut dead_letters = rig.client.queue("orders.dlq").consumer().subscribe();
    let dead = dead_letters.next().await.unwrap().unwrap();
    assert_eq!((text(&dead), dead.attempt), ("x", 1));
    dead.ack().await.unwrap();
}
