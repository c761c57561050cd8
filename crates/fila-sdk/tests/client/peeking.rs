//! Looking at messages without taking them.

use std::time::Duration;

use fila_sdk::{ErrorCode, Message, PeekedState};

use crate::rig::{Rig, soon};

#[tokio::test]
async fn a_peek_shows_every_state_and_changes_none() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    soon(orders.send(Message::new("leased").key("a")))
        .await
        .unwrap();
    let mut consumer = orders.consumer().prefetch(1).subscribe();
    let leased = soon(consumer.next()).await.unwrap().unwrap();
    let delayed = Message::new("delayed")
        .key("b")
        .delay(Duration::from_secs(600));
    soon(orders.send(delayed.deduplication_id("once")))
        .await
        .unwrap();
    let ready = Message::new("ready").key("c").header("tenant", "c");
    soon(orders.send(ready.time_to_live(Duration::from_secs(60))))
        .await
        .unwrap();

    let page = soon(orders.peek().payload_max(3).page()).await.unwrap();
    assert_eq!(page.next, None);
    let [a, b, c] = &page.messages[..] else {
        panic!("{page:?}");
    };
    assert_eq!((a.id.clone(), a.attempts), (leased.id.clone(), 1));
    assert!(matches!(a.state, PeekedState::Leased { until } if until > page.now));
    assert!(matches!(b.state, PeekedState::Delayed { until } if until > page.now));
    assert_eq!(b.deduplication_id.as_deref(), Some("once"));
    assert_eq!(c.state, PeekedState::Ready);
    assert_eq!((&c.payload[..], c.payload_bytes), (&b"rea"[..], 5));
    assert_eq!(c.headers["tenant"], "c");
    assert!(c.expires_at.is_some() && a.expires_at.is_none());
    soon(leased.ack()).await.unwrap();
}

#[tokio::test]
async fn pages_follow_each_other_within_a_key() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let messages = (0..5).map(|n| Message::new(format!("{n}")).key("acme"));
    for sent in soon(orders.send_all(messages)).await {
        sent.unwrap();
    }
    soon(orders.send(Message::new("x").key("other")))
        .await
        .unwrap();
    let mut peek = orders.peek().key("acme").limit(2);
    let mut seen = Vec::new();
    loop {
        let page = soon(peek.page()).await.unwrap();
        seen.extend(page.messages.into_iter().map(|message| message.payload));
        match page.next {
            Some(place) => peek = peek.after(place),
            None => break,
        }
    }
    assert_eq!(seen, ["0", "1", "2", "3", "4"]);
    let missing = soon(rig.client.queue("nowhere").peek().page()).await;
    assert_eq!(missing.unwrap_err().code(), Some(ErrorCode::QueueNotFound));
}
