//! How long messages wait, as an operator sees it.

use std::time::Duration;

use fila_sdk::Message;

use crate::rig::{Rig, eventually, soon};

const WAIT: Duration = Duration::from_millis(20);

#[tokio::test]
async fn an_operator_sees_how_long_messages_wait_and_have_waited() {
    let rig = Rig::start().await;
    let queue = rig.queue("orders").await;
    let admin = rig.client.admin();
    soon(queue.send(Message::new("first").key("acme")))
        .await
        .unwrap();
    eventually(|| async {
        let keys = admin.keys("orders", 10).await.unwrap();
        keys[0].head_waiting.unwrap() >= WAIT
    })
    .await;
    let keys = soon(admin.keys("orders", 10)).await.unwrap();
    assert_eq!(keys[0].first_delivered_total, 0);

    let mut consumer = queue.consumer().subscribe();
    let first = soon(consumer.next()).await.unwrap().unwrap();
    // The message that has come keeps the key in the list.
    soon(queue.send(Message::new("second").key("acme")))
        .await
        .unwrap();
    soon(first.ack()).await.unwrap();

    let keys = soon(admin.keys("orders", 10)).await.unwrap();
    assert_eq!(keys[0].acked_total, 1);
    assert!(keys[0].first_delivered_total >= 1);
    assert!(keys[0].waited_total >= WAIT);
    let stats = rig.stats("orders").await;
    assert!(stats.totals.first_delivered >= 1);
    assert!(stats.totals.waited >= WAIT);
}
