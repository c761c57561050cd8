//! Consumers that do not read: what they hold is bounded in bytes and counted, and the others go on.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::common::{Rig, consume, eventually, in_memory, message};

const MIB: u64 = 1 << 20;
const MESSAGES: usize = 64;

#[tokio::test]
async fn unread_streams_hold_a_quarter_of_memory_at_most_and_another_stream_gets_everything_else() {
    let mut config = in_memory();
    config.storage.memory_budget = "64MiB".parse().unwrap();
    config.scheduler.threads = 1.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let payload = "x".repeat(1 << 20);
    for number in 0..MESSAGES {
        let key = ["a", "b", "c"][number % 3];
        rig.send("orders", message(key, &payload)).await.unwrap();
    }
    let mut unread = Vec::new();
    for _ in 0..4 {
        let mut client = rig.another().await;
        unread.push(consume(&mut client, "orders", 1_000).await);
    }
    let mut deliveries = rig.consume("orders", 1_000).await;
    let received = Arc::new(Mutex::new(BTreeSet::new()));
    let reading = tokio::spawn({
        let received = received.clone();
        async move {
            while let Ok(Some(delivery)) = deliveries.try_next().await {
                received.lock().unwrap().insert(delivery.message_id);
            }
        }
    });
    let handle = rig.server.handle();
    let stats = || handle.queue("orders").unwrap().stats();
    eventually(async || stats().ready == 0).await;

    // The client's own window takes two messages of a stream, the server holds a few more.
    let of_unread = MESSAGES - received.lock().unwrap().len();
    assert!(of_unread <= 4 * 2 + 17, "{of_unread} messages are unread");
    let memory_used = || handle.info().memory_used;
    eventually(async || memory_used() <= 17 * MIB).await;
    assert!(memory_used() >= MIB, "what is unread is counted");

    drop(unread);
    eventually(async || received.lock().unwrap().len() == MESSAGES).await;
    eventually(async || memory_used() < MIB).await;
    reading.abort();
}
