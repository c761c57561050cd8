//! Dropping futures and values, at every point: the books stay balanced.

use std::time::Duration;

use fila_sdk::Error;
use fila_sdk::testing::Broker;
use futures_util::poll;
use tokio::time::sleep;

use crate::{Rig, text};

#[tokio::test(start_paused = true)]
async fn a_send_that_was_never_polled_sends_nothing() {
    let rig = Rig::new();
    drop(rig.orders.send("x"));
    rig.client.flush().await;
    assert_eq!(rig.broker.frames(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_send_that_was_handed_over_happens() {
    let rig = Rig::new();
    let mut send = Box::pin(rig.orders.send("x"));
    assert!(poll!(&mut send).is_pending());
    drop(send);
    rig.client.flush().await;
    assert_eq!(rig.broker.depth("orders"), 1);
}

#[tokio::test(start_paused = true)]
async fn sends_dropped_at_every_point_leave_no_place_taken() {
    let rig = Rig::new();
    // Room for one message at a time.
    let client = rig.broker.client_with(|client| client.buffer(512));
    let orders = client.queue("orders");
    for polls in 0..40 {
        let mut send = Box::pin(orders.send("x"));
        for _ in 0..polls {
            if poll!(&mut send).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(send);
    }
    orders.send("last").await.unwrap();
    client.flush().await;
    let depth = rig.broker.depth("orders");
    assert!((2..=41).contains(&depth), "{depth}");
}

#[tokio::test(start_paused = true)]
async fn a_send_dropped_while_it_waits_for_room_sends_nothing() {
    let rig = Rig::new();
    let client = rig.broker.client_with(|client| client.buffer(512));
    let orders = client.queue("orders");
    rig.broker.go_away();
    let mut first = Box::pin(orders.send("first"));
    assert!(poll!(&mut first).is_pending());
    let mut second = Box::pin(orders.send("second"));
    assert!(poll!(&mut second).is_pending());
    drop(second);
    rig.broker.come_back();
    first.await.unwrap();
    client.flush().await;
    assert_eq!(rig.broker.depth("orders"), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_next_loses_no_delivery() {
    let rig = Rig::new();
    let mut consumer = rig.orders.consumer().subscribe();
    for number in 0..20 {
        let mut next = Box::pin(consumer.next());
        assert!(poll!(&mut next).is_pending());
        drop(next);
        rig.send("x").await;
        // It comes even if no call waits for it right now.
        sleep(Duration::from_millis(number % 3)).await;
        let order = consumer.next().await.unwrap().unwrap();
        assert_eq!(order.attempt, 1);
        order.ack().await.unwrap();
    }
    assert_eq!(rig.broker.acked("orders"), 20);
}

#[tokio::test(start_paused = true)]
async fn results_are_sent_even_if_their_future_is_dropped() {
    let rig = Rig::new();
    for payload in ["acked", "nacked", "released", "dropped"] {
        rig.send(payload).await;
    }
    let mut consumer = rig.orders.consumer().subscribe();
    let mut attempts = Vec::new();
    for _ in 0..7 {
        let order = consumer.next().await.unwrap().unwrap();
        attempts.push((text(&order).to_owned(), order.attempt));
        match (text(&order), attempts.len()) {
            ("nacked", 1..=4) => drop(order.nack("why")),
            ("released", 1..=4) => drop(order.release()),
            ("dropped", 1..=4) => drop(order),
            _ => drop(order.ack()),
        }
    }
    consumer.stop().await;
    assert_eq!(rig.broker.depth("orders"), 0);
    let attempts: Vec<_> = attempts
        .iter()
        .map(|(payload, attempt)| (payload.as_str(), *attempt))
        .collect();
    for again in [("nacked", 2), ("released", 1), ("dropped", 2)] {
        assert!(attempts[4..].contains(&again), "{attempts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_consumer_gives_back_untaken_messages_and_keeps_held_ones() {
    let rig = Rig::new();
    for _ in 0..5 {
        rig.send("x").await;
    }
    let mut consumer = rig.orders.consumer().subscribe();
    let held = consumer.next().await.unwrap().unwrap();
    rig.until_leased(5).await;
    drop(consumer);
    rig.until_leased(1).await;
    sleep(Duration::from_secs(300)).await; // its lease is kept
    held.ack().await.unwrap();
    assert_eq!(rig.broker.depth("orders"), 4);
}

#[tokio::test(start_paused = true)]
async fn everything_dropped_ends_everything() {
    let broker = Broker::new();
    broker.create_queue("orders");
    let client = broker.client();
    let mut consumer = client.queue("orders").consumer().subscribe();
    client.queue("orders").send("x").await.unwrap();
    let order = consumer.next().await.unwrap().unwrap();
    drop((client, consumer));
    // The delivery alone keeps its stream; its result is still taken.
    order.ack().await.unwrap();
    assert_eq!(broker.depth("orders"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_send_of_many_that_is_dropped_has_sent_those_there_was_room_for() {
    let rig = Rig::new();
    let client = rig.broker.client_with(|client| client.buffer(1024));
    let orders = client.queue("orders");
    rig.broker.go_away();
    let mut sending = Box::pin(orders.send_all(["1", "2", "3", "4", "5"]));
    assert!(poll!(&mut sending).is_pending());
    drop(sending);
    rig.broker.come_back();
    client.flush().await;
    // Each takes a little more than 256 bytes of room: two units.
    assert_eq!(rig.broker.depth("orders"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_dropped_goes_on() {
    let rig = Rig::new();
    for _ in 0..3 {
        rig.send("x").await;
    }
    let mut consumer = rig.orders.consumer().subscribe();
    let held = consumer.next().await.unwrap().unwrap();
    rig.until_leased(3).await;
    let mut stopping = Box::pin(consumer.stop());
    assert!(poll!(&mut stopping).is_pending());
    drop(stopping);
    rig.until_leased(1).await;
    held.ack().await.unwrap();
    assert_eq!(rig.broker.depth("orders"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_is_dropped_leaves_nothing_behind() {
    let rig = Rig::new();
    rig.broker.go_away();
    let mut send = Box::pin(rig.orders.send("x"));
    assert!(poll!(&mut send).is_pending());
    let mut flush = Box::pin(rig.client.flush());
    assert!(poll!(&mut flush).is_pending());
    drop(flush);
    rig.broker.come_back();
    send.await.unwrap();
    rig.client.flush().await;
}

#[test]
fn a_client_whose_runtime_is_gone_says_so() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let (rig, mut consumer, order) = first.block_on(async {
        let rig = Rig::new();
        rig.send("x").await;
        let mut consumer = rig.orders.consumer().subscribe();
        let order = consumer.next().await.unwrap().unwrap();
        (rig, consumer, order)
    });
    drop(first);
    runtime().block_on(async {
        assert_eq!(rig.orders.send("y").await, Err(Error::Closed));
        assert_eq!(rig.orders.send_all(["z"]).await, [Err(Error::Closed)]);
        rig.client.flush().await;
        assert!(consumer.next().await.is_none());
        order.lost().await;
        assert_eq!(order.ack().await, Err(Error::LeaseLost));
        consumer.stop().await;
    });
}

#[tokio::test(start_paused = true)]
async fn a_send_that_is_looked_at_long_after_its_deadline_has_no_answer() {
    let rig = Rig::new();
    rig.broker.go_away();
    let mut send = Box::pin(rig.orders.send("x"));
    assert!(poll!(&mut send).is_pending());
    sleep(Duration::from_secs(60)).await;
    let error = send.await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
}
