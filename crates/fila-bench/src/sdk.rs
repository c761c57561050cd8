//! The throughput of `fila-sdk`: the same work by hand on gRPC streams and through the SDK, in the same run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fila_sdk::{Client, Failure, Message, Queue, Received};
use tokio::sync::Notify;

use crate::client::{self, StreamLoad};
use crate::key_shape::KeyShape;
use crate::server::Server;
use crate::speed::SpeedArguments;

pub(crate) async fn run(arguments: SpeedArguments) -> anyhow::Result<()> {
    let scale = arguments.scale();
    println!(
        "{} bytes, 10 keys, one connection, fsync; messages/s, and the part of what is done by hand",
        arguments.size
    );
    let directory = tempfile::tempdir()?;
    let server = Server::start(directory.path(), &[])?;
    let channel = client::connect(&server.address).await?;
    let sdk = Client::connect(&server.address).await?;
    let many = StreamLoad {
        messages: 200_000 / scale,
        keys: KeyShape::flat(10),
        size: arguments.size,
        outstanding: 1000,
        frame: 100,
    };
    let alone = StreamLoad {
        messages: 5_000 / scale,
        outstanding: 1,
        frame: 1,
        ..many
    };

    let mut rows = Rows::default();
    for queue in ["hand", "tasks", "all", "hand-1", "loop"] {
        client::create(&channel, queue).await?;
    }
    let by_hand = client::produce(&channel, "hand", many, |_| {}).await?;
    rows.base("produce, frames of 100 by hand, 1,000 out", many, by_hand);
    let elapsed = send_from_tasks(&sdk.queue("tasks"), many, 1000).await?;
    rows.row("send().await from 1,000 tasks", many, elapsed);
    let elapsed = send_all(&sdk.queue("all"), many).await?;
    rows.row("send_all() of 1,000 each", many, elapsed);

    let by_hand = client::produce(&channel, "hand-1", alone, |_| {}).await?;
    rows.base("produce, one by one by hand", alone, by_hand);
    let elapsed = send_from_tasks(&sdk.queue("loop"), alone, 1).await?;
    rows.row("send().await in a loop", alone, elapsed);

    let by_hand = client::consume(&channel, "hand", many, 256, |_| {}).await?;
    rows.base("drain by hand, 256 credits", many, by_hand.elapsed);
    let elapsed = stream(&sdk.queue("tasks"), many).await?;
    rows.row("Stream, prefetch 256, acks not awaited", many, elapsed);
    let elapsed = work(&sdk.queue("all"), many).await?;
    rows.row("worker, 128 handlers, 256 prefetched", many, elapsed);
    Ok(())
}

/// The lines of the table. Each is compared with the last base before it.
#[derive(Debug, Default)]
struct Rows {
    base: f64,
}

impl Rows {
    fn base(&mut self, what: &str, load: StreamLoad, elapsed: Duration) {
        self.base = load.messages as f64 / elapsed.as_secs_f64();
        println!("{what:<44} {:>10.0}", self.base);
    }

    fn row(&self, what: &str, load: StreamLoad, elapsed: Duration) {
        let rate = load.messages as f64 / elapsed.as_secs_f64();
        println!("{what:<44} {rate:>10.0}   {:.2}", rate / self.base);
    }
}

fn message(number: u64, load: StreamLoad, body: &Bytes) -> Message {
    Message::new(body.clone()).key(load.keys.path(number % load.keys.count))
}

async fn send_from_tasks(queue: &Queue, load: StreamLoad, tasks: u64) -> anyhow::Result<Duration> {
    let body = Bytes::from(vec![0x5a; load.size]);
    let begun = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (queue, body) = (queue.clone(), body.clone());
            tokio::spawn(async move {
                for number in (task..load.messages).step_by(tasks as usize) {
                    queue.send(message(number, load, &body)).await?;
                }
                Ok::<(), fila_sdk::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(begun.elapsed())
}

async fn send_all(queue: &Queue, load: StreamLoad) -> anyhow::Result<Duration> {
    let body = Bytes::from(vec![0x5a; load.size]);
    let begun = Instant::now();
    let mut first = 0;
    while first < load.messages {
        let last = (first + 1000).min(load.messages);
        let messages = (first..last).map(|number| message(number, load, &body));
        for sent in queue.send_all(messages).await {
            sent?;
        }
        first = last;
    }
    Ok(begun.elapsed())
}

async fn stream(queue: &Queue, load: StreamLoad) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut consumer = queue.consumer().prefetch(256).subscribe();
    for _ in 0..load.messages {
        let Some(delivery) = consumer.next().await else {
            anyhow::bail!("the consumer has ended");
        };
        drop(delivery?.ack());
    }
    consumer.stop().await;
    Ok(begun.elapsed())
}

async fn work(queue: &Queue, load: StreamLoad) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let left = Arc::new(AtomicU64::new(load.messages));
    let done = Arc::new(Notify::new());
    let handler = {
        let done = done.clone();
        move |_: Received| {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                done.notify_one();
            }
            async { Ok::<(), Failure>(()) }
        }
    };
    let worker = queue.worker().concurrency(128).prefetch(256);
    let report = worker.run_until(done.notified(), handler).await?;
    anyhow::ensure!(report.acked == load.messages, "{report:?}");
    Ok(begun.elapsed())
}
