//! Sending: stored messages, refused messages, and messages that share a frame.

use fila_sdk::{Error, ErrorCode, Message};

use crate::rig::{Rig, soon};

#[tokio::test]
async fn a_message_comes_back_as_it_was_sent() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let message = Message::new("seven")
        .key("acme")
        .weight(3)
        .header("tenant", "acme");
    let sent = soon(orders.send(message)).await.unwrap();

    let mut consumer = orders.consumer().subscribe();
    let order = soon(consumer.next()).await.unwrap().unwrap();
    assert_eq!(order.id, sent.id);
    assert_eq!(order.key, "acme");
    assert_eq!(order.weight, 3);
    assert_eq!(order.header("tenant"), Some("acme"));
    assert_eq!(order.payload, "seven");
    assert_eq!(order.attempt, 1);
    soon(order.ack()).await.unwrap();
    assert_eq!(rig.stats("orders").await.depth, 0);
}

#[tokio::test]
async fn a_queue_that_does_not_exist_is_named_with_what_to_do() {
    let rig = Rig::start().await;
    let nowhere = rig.client.queue("nowhere");
    let error = soon(nowhere.send("x")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueNotFound));
    assert!(error.to_string().contains("`nowhere`"), "{error}");
    let first = soon(nowhere.consumer().subscribe().next()).await;
    let error = first.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueNotFound));
}

#[tokio::test]
async fn a_thousand_sends_at_once_are_all_stored_once() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let sends = (0..1000).map(|number| {
        let orders = orders.clone();
        tokio::spawn(async move { orders.send(format!("{number}")).await })
    });
    let sends: Vec<_> = sends.collect();
    for send in sends {
        soon(send).await.unwrap().unwrap();
    }
    assert_eq!(rig.stats("orders").await.totals.enqueued, 1000);
}

#[tokio::test]
async fn nothing_listens_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = soon(fila_sdk::Client::connect(&address)).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("fila server"), "{error}");
}
