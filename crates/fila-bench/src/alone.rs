//! The cost of a broker with little to do: the server's processor time and context switches for each message that is sent
//! alone, for each message at a low rate with a consumer, and for queues and consumers without any message.
//!
//! A busy server spreads the cost of a wake-up, a write and a sync over many messages. Here every message pays for its own.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use fila_proto::v1::{Message, ProduceRequest, WorkRequest};
use lab::Latencies;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::client::{self, StreamLoad};
use crate::key_shape::KeyShape;
use crate::server::{Server, Usage};

#[derive(Debug, clap::Args)]
pub(crate) struct AloneArguments {
    /// Messages that are sent one after the other
    #[arg(long, default_value_t = 5_000)]
    messages: u64,
    /// Bytes of a payload
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Messages per second, with a consumer
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
    /// How long to send at that rate, and how long to watch the idle server
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Queues of the idle server, with a consumer each, on as many connections; 0 leaves it out
    #[arg(long, default_value_t = 1_000)]
    queues: usize,
    /// The levels of durability
    #[arg(long, value_delimiter = ',', default_value = "os,fsync")]
    levels: Vec<String>,
}

pub(crate) async fn run(arguments: AloneArguments) -> anyhow::Result<()> {
    println!(
        "{} bytes; per message: microseconds of the server's processor, context switches of its threads",
        arguments.size
    );
    println!(
        "{:<8} {:<24} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "level", "messages", "cpu us", "switches", "per s", "p50 us", "p99 us"
    );
    for level in &arguments.levels {
        let directory = tempfile::tempdir()?;
        let settings = [format!("storage.durability={level}")];
        let server = Server::start(directory.path(), &settings)?;
        let channel = client::connect(&server.address).await?;
        one_by_one(&arguments, level, &server, &channel).await?;
        paced(&arguments, level, &server, &channel).await?;
    }
    if arguments.queues > 0 {
        idle(&arguments).await?;
    }
    Ok(())
}

/// Sends each message when the one before is confirmed.
async fn one_by_one(
    arguments: &AloneArguments,
    level: &str,
    server: &Server,
    channel: &Channel,
) -> anyhow::Result<()> {
    client::create(channel, "alone").await?;
    let load = StreamLoad {
        messages: arguments.messages,
        keys: KeyShape::flat(10),
        size: arguments.size,
        outstanding: 1,
        frame: 1,
    };
    let warm = StreamLoad {
        messages: load.messages / 10,
        ..load
    };
    client::produce(channel, "alone", warm, |_| {}).await?;
    let before = server.usage()?;
    let elapsed = client::produce(channel, "alone", load, |_| {}).await?;
    let used = server.usage()?.since(before);
    let row = row(used, load.messages);
    let rate = load.messages as f64 / elapsed.as_secs_f64();
    println!("{level:<8} {:<24} {row} {rate:>10.0}", "one at a time");
    Ok(())
}

/// Sends at a fixed rate, while a consumer takes and acknowledges each message.
async fn paced(
    arguments: &AloneArguments,
    level: &str,
    server: &Server,
    channel: &Channel,
) -> anyhow::Result<()> {
    client::create(channel, "paced").await?;
    let consumer = client::connect(&server.address).await?;
    let messages = arguments.rate * arguments.seconds;
    let began = Instant::now();
    let before = server.usage()?;
    let (sent, latencies) = tokio::join!(
        send_paced(arguments, channel, messages, began),
        receive_paced(&consumer, messages, began),
    );
    sent.context("producing")?;
    let latencies = latencies.context("consuming")?;
    let used = server.usage()?.since(before);
    let row = row(used, messages);
    let what = format!("{} a second, consumed", arguments.rate);
    println!(
        "{level:<8} {what:<24} {row} {:>10} {:>10.0} {:>10.0}",
        "",
        micros(latencies.p50()),
        micros(latencies.p99()),
    );
    Ok(())
}

async fn send_paced(
    arguments: &AloneArguments,
    channel: &Channel,
    messages: u64,
    began: Instant,
) -> anyhow::Result<()> {
    let (sender, frames) = mpsc::channel(64);
    let call = client::service(channel)
        .produce(ReceiverStream::new(frames))
        .await;
    let mut responses = call?.into_inner();
    responses.message().await?.context("the window")?;
    let mut pace = tokio::time::interval(Duration::from_secs(1) / arguments.rate as u32);
    let mut confirmed = 0;
    let mut sent = 0;
    let mut body = vec![0x5a; arguments.size.max(16)];
    while confirmed < messages {
        tokio::select! {
            _ = pace.tick(), if sent < messages => {
                let now = began.elapsed().as_nanos() as u64;
                body[..8].copy_from_slice(&now.to_be_bytes());
                let message = Message {
                    fairness_key: format!("key-{}", sent % 10),
                    payload: Bytes::copy_from_slice(&body),
                    ..Message::default()
                };
                let frame = ProduceRequest {
                    frame_id: sent,
                    queue: "paced".to_owned(),
                    messages: vec![message],
                    batch_id: None,
                };
                sent += 1;
                sender.send(frame).await.context("the stream has ended")?;
            }
            response = responses.message() => {
                let response = response?.context("the stream has ended")?;
                ensure!(response.results.iter().all(|result| result.error.is_none()), "refused");
                confirmed += response.results.len() as u64;
            }
        }
    }
    Ok(())
}

async fn receive_paced(
    channel: &Channel,
    messages: u64,
    began: Instant,
) -> anyhow::Result<Latencies> {
    let (sender, requests) = mpsc::channel(64);
    let first = WorkRequest {
        queue: "paced".to_owned(),
        credit: 256,
        ..WorkRequest::default()
    };
    sender.send(first).await?;
    let mut service = client::service(channel);
    let call = service.work(ReceiverStream::new(requests));
    let mut responses = call.await?.into_inner();
    let mut latencies = Latencies::default();
    let mut confirmed = 0;
    while confirmed < messages {
        let response = responses.message().await?.context("the stream has ended")?;
        ensure!(
            response.refused.is_empty(),
            "refused: {:?}",
            response.refused
        );
        confirmed += response.confirmed.len() as u64;
        let now = began.elapsed().as_nanos() as u64;
        for delivery in &response.deliveries {
            let (sent, _) = client::numbers(&delivery.payload)?;
            latencies.record(Duration::from_nanos(now.saturating_sub(sent)));
        }
        if !response.deliveries.is_empty() {
            let report = WorkRequest {
                credit: response.deliveries.len() as u32,
                acks: response.deliveries.iter().map(|it| it.lease_id).collect(),
                ..WorkRequest::default()
            };
            sender.send(report).await.context("the stream has ended")?;
        }
    }
    Ok(latencies)
}

/// Watches a server whose queues have a consumer each and no message.
async fn idle(arguments: &AloneArguments) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let server = Server::start(directory.path(), &[])?;
    let channel = client::connect(&server.address).await?;
    let mut streams = Vec::new();
    for number in 0..arguments.queues {
        let queue = format!("idle-{number}");
        client::create(&channel, &queue).await?;
        let consumer = client::connect(&server.address).await?;
        let (sender, requests) = mpsc::channel(1);
        let first = WorkRequest {
            queue,
            credit: 16,
            ..WorkRequest::default()
        };
        sender.send(first).await?;
        let mut service = client::service(&consumer);
        let call = service.work(ReceiverStream::new(requests));
        streams.push((sender, call.await?.into_inner()));
    }
    let before = server.usage()?;
    tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
    let used = server.usage()?.since(before);
    println!(
        "idle server, {} queues and consumers: {:.2} % of a core, {} context switches a second",
        arguments.queues,
        100.0 * used.processor.as_secs_f64() / arguments.seconds as f64,
        used.switches / arguments.seconds,
    );
    drop(streams);
    Ok(())
}

/// Returns the columns that both kinds of load have.
fn row(used: Usage, messages: u64) -> String {
    let each = micros(used.processor) / messages as f64;
    let switches = used.switches as f64 / messages as f64;
    format!("{each:>8.1} {switches:>10.2}")
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
