//! Programs that use `fila-sdk` with its defaults while everything around them is killed with `kill -9`: the server,
//! which comes back, and consumers, which do not. Nothing confirmed is lost, nothing is stored twice, nothing hangs,
//! and handlers see no more duplicates than what was in work at a kill.
#![cfg(test)] // helpers may unwrap, as tests do

mod consumer;
#[path = "../common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;
mod programs;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila_sdk::{Client, Message, QueueSettings};

use consumer::PREFETCH;
use programs::{Consumer, free_port, server};

const QUEUE: &str = "orders";
const ROUNDS: u64 = 3;
const CONSUMERS: u64 = 2;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// Deliveries, in whatever process: for each number, the ids under which it came, and how often.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    numbers: BTreeMap<u64, BTreeMap<String, u64>>,
    deliveries: u64,
}

impl Seen {
    /// Takes a line that a consumer has printed before it acknowledged the message.
    pub(crate) fn note(&mut self, line: &str) {
        let Some((number, id)) = line.split_once(' ') else {
            return; // Cut off by a kill.
        };
        // A kill may leave half an id: then the message was not acknowledged.
        if id.len() == 36 {
            let number = number.parse().unwrap();
            let ids = self.numbers.entry(number).or_default();
            *ids.entry(id.to_owned()).or_default() += 1;
            self.deliveries += 1;
        }
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.expect("it happens within patience")
}

/// Waits until the consumers have received this many more messages.
async fn progress(seen: &Arc<Mutex<Seen>>, more: u64) {
    let goal = seen.lock().unwrap().deliveries + more;
    soon(async {
        while seen.lock().unwrap().deliveries < goal {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_servers_and_consumers_lose_nothing_and_double_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut running = server(directory.path(), port);
    let client = soon(Client::connect(format!("127.0.0.1:{port}")))
        .await
        .unwrap();
    let created = client.admin();
    soon(created.create_queue(QUEUE, QueueSettings::new()))
        .await
        .unwrap();

    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut consumers: Vec<Consumer> = (0..CONSUMERS)
        .map(|_| Consumer::start(port, &seen))
        .collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicU64::new(0));
    let producers: Vec<_> = (0..16)
        .map(|task| {
            let orders = client.queue(QUEUE);
            let (is_over, next) = (is_over.clone(), next.clone());
            tokio::spawn(async move {
                let mut confirmed = Vec::new();
                while !is_over.load(Ordering::SeqCst) {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    let message = Message::new(number.to_string()).key(format!("tenant-{task}"));
                    let sent = orders.send(message).await;
                    let sent = sent.unwrap_or_else(|error| panic!("{number}: {error}"));
                    confirmed.push((number, sent.id.to_string()));
                }
                confirmed
            })
        })
        .collect();

    for _ in 0..ROUNDS {
        progress(&seen, 300).await;
        consumers.remove(0).kill();
        consumers.push(Consumer::start(port, &seen));
        progress(&seen, 300).await;
        running.kill();
        running = server(directory.path(), port);
        progress(&seen, 300).await;
    }
    is_over.store(true, Ordering::SeqCst);
    let mut confirmed = Vec::new();
    for producer in producers {
        confirmed.extend(soon(producer).await.unwrap());
    }
    soon(async {
        while client.admin().queue(QUEUE).await.unwrap().stats.depth > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // Their output is read to the end.
    for consumer in consumers {
        consumer.kill();
    }

    let seen = seen.lock().unwrap();
    for (number, id) in &confirmed {
        let ids = seen.numbers.get(number);
        let ids = ids.unwrap_or_else(|| panic!("{number} is lost"));
        assert_eq!(ids.len(), 1, "{number} was stored twice: {ids:?}");
        assert!(
            ids.contains_key(id),
            "{number} was confirmed as {id}: {ids:?}"
        );
    }
    assert_eq!(seen.numbers.len(), confirmed.len());
    let again = seen.deliveries - confirmed.len() as u64;
    // A killed consumer had at most its prefetch in work, and a killed server that of every consumer.
    let allowed = ROUNDS * u64::from(PREFETCH) * (1 + CONSUMERS);
    assert!(
        again <= allowed,
        "{again} delivered again, {allowed} allowed"
    );
    println!(
        "{} messages, {again} delivered again of {allowed} allowed",
        confirmed.len()
    );
}
