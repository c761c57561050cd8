//! A server whose process is stopped for longer than leases, throttles and, if `FILA_STOP_SECONDS` says so, clients
//! wait for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fila_sdk::{Client, Consumer, Delivery, Error, Expected, Message, QueueSettings};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::program::Running;
use crate::{PATIENCE, QUEUE, inspect, server_on, signal, soon, take};

const CALLS: &str = "calls";
const MAILS: &str = "mails";
const RATE: f64 = 40.0;
const BURST: f64 = 10.0;
const LEASE: Duration = Duration::from_secs(1);
/// How many messages are with a consumer when the server is stopped.
const HELD: usize = 32;

fn stop_time() -> Duration {
    let seconds = std::env::var("FILA_STOP_SECONDS");
    let seconds = seconds.map_or(2.5, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs_f64(seconds)
}

async fn prepare(client: &Client) {
    let admin = client.admin();
    let settings = QueueSettings::new()
        .visibility_timeout(LEASE)
        .retry_backoff(Duration::ZERO);
    for queue in [QUEUE, CALLS, MAILS] {
        soon(admin.create_queue(queue, settings.clone()))
            .await
            .unwrap();
    }
    for (key, value) in [("throttle:slow:burst", BURST), ("throttle:slow:rate", RATE)] {
        soon(admin.set_config(key, value, Expected::Any))
            .await
            .unwrap();
    }
    let calls = (0..600).map(|number| Message::new(number.to_string()).throttle_key("slow"));
    for sent in soon(client.queue(CALLS).send_all(calls)).await {
        sent.unwrap();
    }
}

/// Takes calls until it is aborted, and reports when each has come.
fn call(client: &Client) -> (JoinHandle<()>, mpsc::UnboundedReceiver<Instant>) {
    let mut consumer = client.queue(CALLS).consumer().subscribe();
    let (sender, moments) = mpsc::unbounded_channel();
    let calling = tokio::spawn(async move {
        while let Some(Ok(delivery)) = consumer.next().await {
            if sender.send(Instant::now()).is_err() {
                return;
            }
            // While the server is stopped, it does not read the result.
            drop(delivery.ack());
        }
    });
    (calling, moments)
}

/// Sends mails until it is told to stop, and returns which were confirmed.
fn send(client: &Client, is_over: &Arc<AtomicBool>) -> Vec<JoinHandle<Vec<u64>>> {
    let next = Arc::new(AtomicU64::new(0));
    let senders = (0..4).map(|_| {
        let (mails, is_over, next) = (client.queue(MAILS), is_over.clone(), next.clone());
        tokio::spawn(async move {
            let mut confirmed = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                let number = next.fetch_add(1, Ordering::SeqCst);
                mails.send(number.to_string()).await.unwrap();
                confirmed.push(number);
            }
            confirmed
        })
    });
    senders.collect()
}

/// Takes `count` messages and holds them.
async fn hold(consumer: &mut Consumer, count: usize) -> Vec<Delivery> {
    let mut held = Vec::new();
    while held.len() < count {
        held.push(soon(consumer.next()).await.unwrap().unwrap());
    }
    held
}

/// An expired lease ends once: an unacknowledged message comes again, and each message is acknowledged once.
async fn settle(client: &Client, consumer: Consumer, acks: Vec<JoinHandle<Result<(), Error>>>) {
    let mut confirmed = 0;
    for ack in acks {
        match soon(ack).await.unwrap() {
            Ok(()) => confirmed += 1,
            Err(Error::LeaseLost | Error::NoAnswer { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    drop(consumer);
    let depth = inspect(client, QUEUE).await.stats.depth as usize;
    assert!(depth + confirmed <= HELD, "{depth} and {confirmed}");
    let mut consumer = client.queue(QUEUE).consumer().subscribe();
    let again = take(&mut consumer, depth).await;
    assert!(again.values().all(|attempt| *attempt >= 2), "{again:?}");
    let stats = inspect(client, QUEUE).await.stats;
    assert_eq!((stats.depth, stats.totals.acked), (0, HELD as u64));
    assert!(stats.totals.lease_expired <= HELD as u64, "{stats:?}");
}

/// The bucket holds no more than its burst, however long the server was stopped.
async fn within_rate(moments: &mut mpsc::UnboundedReceiver<Instant>, resumed: Instant) {
    for count in 1..=60 {
        let moment = soon(moments.recv()).await.unwrap();
        // The broker's clock ticks in milliseconds.
        let time = moment.duration_since(resumed).as_secs_f64() + 0.001;
        let allowed = BURST + RATE * time;
        assert!(f64::from(count) <= allowed, "{count} of {allowed:.1}");
    }
}

/// The queue has every confirmed message once, and no other.
async fn compare(client: &Client, senders: Vec<JoinHandle<Vec<u64>>>) {
    let mut sent = BTreeSet::new();
    for sender in senders {
        sent.extend(soon(sender).await.unwrap());
    }
    let mut consumer = client.queue(MAILS).consumer().subscribe();
    let taken = take(&mut consumer, sent.len()).await;
    let taken: BTreeSet<u64> = taken.keys().map(|text| text.parse().unwrap()).collect();
    assert_eq!(taken, sent);
    let stats = inspect(client, MAILS).await.stats;
    let count = sent.len() as u64;
    assert_eq!((stats.depth, stats.totals.enqueued), (0, count));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_goes_on_without_a_burst_a_loss_or_a_lease_that_ends_twice() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(&mut server_on(directory.path()));
    let builder = Client::builder(&server.address).deadline(PATIENCE + stop_time());
    let client = soon(builder.connect()).await.unwrap();
    prepare(&client).await;

    let (calling, mut moments) = call(&client);
    let is_over = Arc::new(AtomicBool::new(false));
    let senders = send(&client, &is_over);
    for _ in 0..15 {
        soon(moments.recv()).await.unwrap(); // The bucket is empty now.
    }
    let orders = client.queue(QUEUE);
    let messages = (0..HELD).map(|number| Message::new(number.to_string()));
    for sent in soon(orders.send_all(messages)).await {
        sent.unwrap();
    }
    let consumer = orders.consumer().keep_leases(Duration::ZERO);
    let mut consumer = consumer.prefetch(HELD as u32).subscribe();
    let mut held = hold(&mut consumer, HELD).await;

    signal(server.process.id(), "STOP");
    // Some say what became of theirs meanwhile, others afterwards.
    let late = held.split_off(HELD / 2);
    let acks = |held: Vec<Delivery>| held.into_iter().map(|it| tokio::spawn(it.ack()));
    let mut results: Vec<_> = acks(held).collect();
    tokio::time::sleep(stop_time()).await; // There is nothing to wait for: it stands still.
    while moments.try_recv().is_ok() {}
    let resumed = Instant::now();
    signal(server.process.id(), "CONT");
    results.extend(acks(late));

    settle(&client, consumer, results).await;
    within_rate(&mut moments, resumed).await;
    calling.abort();
    is_over.store(true, Ordering::SeqCst);
    compare(&client, senders).await;
}
