//! The client against the test broker, on Tokio's paused clock: whatever breaks, breaks exactly when the test says.
#![cfg(test)] // helpers may unwrap, as tests do

mod answers;
mod config;
mod consuming;
mod dropping;
mod leases;
mod receiving;
mod script;
mod sending;
mod working;

use std::time::Duration;

use fila_sdk::testing::Broker;
use fila_sdk::{Client, Delivery, Queue, QueueSettings};

/// How often something is looked for, a millisecond of the paused clock apart, before it is taken for missing.
const LOOKS_MAX: usize = 20_000;

/// A broker with one queue, and a client of it.
struct Rig {
    broker: Broker,
    client: Client,
    orders: Queue,
}

impl Rig {
    fn new() -> Self {
        Self::with(&QueueSettings::new())
    }

    fn with(settings: &QueueSettings) -> Self {
        let broker = Broker::new();
        broker.create_queue_with("orders", settings);
        let client = broker.client();
        let orders = client.queue("orders");
        Self {
            broker,
            client,
            orders,
        }
    }

    async fn send(&self, payload: &'static str) {
        self.orders.send(payload).await.unwrap();
    }

    /// Waits until this many messages are leased. Other tasks run meanwhile.
    async fn until_leased(&self, count: u64) {
        for _ in 0..LOOKS_MAX {
            let queue = self.client.admin().queue("orders").await.unwrap();
            if queue.stats.leased == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("there are never {count} leased");
    }
}

fn text(delivery: &Delivery) -> &str {
    std::str::from_utf8(&delivery.payload).unwrap()
}

/// Waits for what must happen by itself within a few minutes of the paused clock.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(300), future).await;
    waited.expect("it happens by itself")
}
