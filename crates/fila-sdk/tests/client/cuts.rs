//! A real server behind a wire that is cut at any byte: in the middle of frames, of answers, of deliveries.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila_sdk::{Client, Failure, Message, Received};

use crate::proxy::Proxy;
use crate::rig::{Rig, eventually, in_memory, soon};

const PREFETCH: u32 = 16;

/// What handlers have seen: for each number, the ids under which it came, and how often.
type Seen = Arc<Mutex<BTreeMap<u64, HashMap<String, u64>>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_at_any_byte_lose_nothing_and_double_nothing() {
    let rig = Rig::with(in_memory(), |client| client).await;
    rig.queue("orders").await;
    let proxy = Proxy::start(rig.server.address()).await;
    let client = Client::builder(proxy.address())
        .backoff(Duration::from_millis(1), Duration::from_millis(20))
        .connect();
    let client = soon(client).await.unwrap();

    // Producers: some tasks in loops, some batches.
    let next = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = (0..8)
        .map(|task| {
            let orders = client.queue("orders");
            let (next, is_over) = (next.clone(), is_over.clone());
            tokio::spawn(async move {
                let message = |number: u64| {
                    Message::new(number.to_string()).key(format!("tenant-{}", number % 5))
                };
                let mut confirmed = Vec::new();
                while !is_over.load(Ordering::SeqCst) {
                    let count = if task % 2 == 0 { 1 } else { 50 };
                    let first = next.fetch_add(count, Ordering::SeqCst);
                    let numbers = first..first + count;
                    let sent = orders.send_all(numbers.clone().map(message)).await;
                    for (number, sent) in numbers.zip(sent) {
                        sent.unwrap_or_else(|error| panic!("{number}: {error}"));
                        confirmed.push(number);
                    }
                }
                confirmed
            })
        })
        .collect();

    // A worker on the same wire.
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |order: Received| {
            let number = std::str::from_utf8(&order.payload)
                .unwrap()
                .parse()
                .unwrap();
            let mut seen = seen.lock().unwrap();
            let ids = seen.entry(number).or_default();
            *ids.entry(order.id.to_string()).or_default() += 1;
            async { Ok::<(), Failure>(()) }
        }
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = client.queue("orders").worker().prefetch(PREFETCH);
    let working = tokio::spawn(worker.run_until(stopped, handler));

    // Cuts, at places that wander through frames of both directions.
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..60 {
        let before = (proxy.cuts(), seen.lock().unwrap().len());
        proxy.cut_after(random.u32(0..40_000));
        eventually(|| {
            let (proxy, seen) = (proxy.clone(), seen.clone());
            async move { proxy.cuts() > before.0 && seen.lock().unwrap().len() > before.1 }
        })
        .await;
    }
    is_over.store(true, Ordering::SeqCst);
    let mut confirmed = Vec::new();
    for producer in producers {
        confirmed.extend(soon(producer).await.unwrap());
    }
    eventually(|| async { rig.stats("orders").await.depth == 0 }).await;
    stop.send(()).unwrap();
    let report = soon(working).await.unwrap().unwrap();

    let stats = rig.stats("orders").await;
    assert_eq!(
        stats.totals.enqueued,
        confirmed.len() as u64,
        "stored once each"
    );
    let seen = seen.lock().unwrap();
    let mut deliveries = 0;
    for number in confirmed {
        let ids = seen
            .get(&number)
            .unwrap_or_else(|| panic!("{number} is lost"));
        assert_eq!(ids.len(), 1, "{number} was stored twice: {ids:?}");
        deliveries += ids.values().sum::<u64>();
    }
    // Only messages that were leased when a connection broke are delivered again.
    let again = deliveries - stats.totals.enqueued;
    let cuts = proxy.cuts();
    assert!(
        again <= cuts * u64::from(PREFETCH),
        "{again} again after {cuts} cuts"
    );
    assert!(cuts >= 60);
    println!(
        "{} messages, {cuts} cuts, {again} delivered again, {} results too late",
        stats.totals.enqueued, report.lost
    );
}

#[tokio::test]
async fn a_wire_that_falls_silent_is_given_up() {
    // Nothing answers, and nothing says so: as behind a firewall that drops packets.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = Client::builder(address)
        .connect_timeout(Duration::from_millis(100))
        .deadline(Duration::from_millis(300));
    let client = client.connect_lazy().unwrap();
    let error = soon(client.queue("orders").send("x")).await.unwrap_err();
    assert!(
        matches!(error, fila_sdk::Error::NoAnswer { .. }),
        "{error:?}"
    );
    let error = soon(client.admin().server()).await.unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_outlasts_its_connection_is_acknowledged_over_the_next() {
    let rig = Rig::with(in_memory(), |client| client).await;
    rig.queue("orders").await;
    let proxy = Proxy::start(rig.server.address()).await;
    let client = soon(Client::builder(proxy.address()).connect())
        .await
        .unwrap();
    let orders = client.queue("orders");
    for number in 0..10 {
        orders.send(number.to_string()).await.unwrap();
    }
    let (begun, mut beginnings) = tokio::sync::mpsc::unbounded_channel();
    let finish = Arc::new(tokio::sync::Notify::new());
    let handler = {
        let finish = finish.clone();
        move |order: Received| {
            begun.send(order.attempt).unwrap();
            let finish = finish.clone();
            async move {
                finish.notified().await;
                Ok::<(), Failure>(())
            }
        }
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = orders.worker().concurrency(2).prefetch(10);
    let working = tokio::spawn(worker.run_until(stopped, handler));
    for _ in 0..2 {
        assert_eq!(soon(beginnings.recv()).await, Some(1));
    }
    proxy.cut_after(0);
    // Any byte will do.
    let inspecting = client.clone();
    tokio::spawn(async move { inspecting.admin().queue("orders").await });
    eventually(|| async { proxy.cuts() == 1 }).await;
    for _ in 0..8 {
        finish.notify_one();
        assert_eq!(soon(beginnings.recv()).await, Some(1), "it waited here");
    }
    for _ in 0..2 {
        finish.notify_one();
    }
    eventually(|| async { rig.stats("orders").await.depth == 0 }).await;
    stop.send(()).unwrap();
    let report = soon(working).await.unwrap().unwrap();
    assert_eq!((report.acked, report.nacked, report.lost), (10, 0, 0));
    let totals = rig.stats("orders").await.totals;
    assert_eq!(
        (totals.delivered, totals.acked, totals.released),
        (10, 10, 0)
    );
}
