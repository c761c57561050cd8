//! How fast messages go in and out over loopback, through the two streams.
//!
//! ```text
//! cargo run --release -p fila-server --example throughput -- [fsync|os|memory] [messages] [payload bytes] [per frame]
//! ```
//!
//! Server and client share this process and its processors, so the figure is what the pair does on the machine. `memory`
//! is the engine in memory; the others are on disk, in a directory that vanishes.

use std::error::Error;
use std::time::{Duration, Instant};

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{CreateQueueRequest, EnqueueRequest, Message, ProduceRequest, WorkRequest};
use fila_server::Server;
use fila_server::config::{Config, StorageEngine};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

type Client = FilaServiceClient<Channel>;
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Deliveries that a worker has at once.
const CREDIT: u32 = 1_000;
const KEYS: u64 = 10;

#[derive(Clone, Copy)]
struct Load {
    messages: u64,
    bytes: usize,
    per_frame: u64,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| match arguments.get(place) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    let level = arguments.first().map_or("fsync", String::as_str);
    let load = Load {
        messages: number(1, 200_000)?,
        bytes: usize::try_from(number(2, 1_024)?)?,
        per_frame: number(3, 1)?.max(1),
    };
    let directory = tempfile::tempdir()?;
    let mut config = Config::default();
    config.server.address = ([127, 0, 0, 1], 0).into();
    config.storage.path = directory.path().to_owned();
    match level {
        "memory" => config.storage.engine = StorageEngine::Memory,
        level => config.storage.durability = level.parse()?,
    }
    let server = Server::start(config).await?;
    let address = format!("http://{}", server.address());
    let channel = Channel::from_shared(address)?.connect().await?;
    let client = FilaServiceClient::new(channel.clone());
    let mut admin = FilaAdminClient::new(channel);
    for queue in ["calls", "first", "second"] {
        let name = queue.to_owned();
        let settings = None;
        admin
            .create_queue(CreateQueueRequest { name, settings })
            .await?;
    }

    let Load {
        messages,
        bytes,
        per_frame,
    } = load;
    println!("{messages} messages of {bytes} bytes, {per_frame} per frame, durability {level}");
    let calls = 1_000;
    let took = call(client.clone(), calls, bytes).await?;
    println!("enqueue by calls, one at a time   {}", rate(calls, took));
    println!(
        "produce                           {}",
        rate(messages, produce(client.clone(), "first", load).await?)
    );
    println!(
        "drain                             {}",
        rate(messages, work(client.clone(), "first", load).await?)
    );
    let began = Instant::now();
    let producing = tokio::spawn(produce(client.clone(), "second", load));
    work(client, "second", load).await?;
    producing.await??;
    println!(
        "produce and drain at once         {}",
        rate(messages, began.elapsed())
    );
    let _ = server.shutdown().await;
    Ok(())
}

fn rate(messages: u64, took: Duration) -> String {
    let each = took.as_secs_f64() / messages as f64;
    format!("{:>9.0}/s   {:>7.2} µs each", 1.0 / each, each * 1e6)
}

fn message(number: u64, bytes: usize) -> Message {
    Message {
        fairness_key: format!("tenant-{}", number % KEYS),
        payload: vec![b'x'; bytes].into(),
        ..Message::default()
    }
}

async fn call(mut client: Client, calls: u64, bytes: usize) -> Outcome<Duration> {
    let began = Instant::now();
    for number in 0..calls {
        let request = EnqueueRequest {
            queue: "calls".to_owned(),
            message: Some(message(number, bytes)),
        };
        client.enqueue(request).await?;
    }
    Ok(began.elapsed())
}

async fn produce(mut client: Client, queue: &'static str, load: Load) -> Outcome<Duration> {
    let began = Instant::now();
    let (frames, requests) = mpsc::channel(256);
    let sending = tokio::spawn(async move {
        let mut sent = 0;
        while sent < load.messages {
            let end = load.messages.min(sent + load.per_frame);
            let frame = ProduceRequest {
                frame_id: sent,
                queue: queue.to_owned(),
                messages: (sent..end)
                    .map(|number| message(number, load.bytes))
                    .collect(),
                batch_id: None,
            };
            if frames.send(frame).await.is_err() {
                break;
            }
            sent = end;
        }
    });
    let answers = client.produce(ReceiverStream::new(requests)).await?;
    let mut answers = answers.into_inner();
    let mut stored = 0;
    while let Some(answer) = answers.message().await? {
        stored += answer.results.len() as u64;
        if let Some(error) = answer.results.into_iter().find_map(|result| result.error) {
            return Err(error.message.into());
        }
    }
    sending.await?;
    match stored == load.messages {
        true => Ok(began.elapsed()),
        false => Err(format!("{stored} of {} were stored", load.messages).into()),
    }
}

async fn work(mut client: Client, queue: &'static str, load: Load) -> Outcome<Duration> {
    let began = Instant::now();
    let (results, requests) = mpsc::channel(256);
    let first = WorkRequest {
        queue: queue.to_owned(),
        credit: CREDIT,
        ..WorkRequest::default()
    };
    results.send(first).await?;
    let frames = client.work(ReceiverStream::new(requests)).await?;
    let mut frames = frames.into_inner();
    let mut confirmed = 0;
    while confirmed < load.messages {
        let Some(frame) = frames.message().await? else {
            return Err("the stream ended early".into());
        };
        confirmed += frame.confirmed.len() as u64;
        let acks: Vec<u64> = frame
            .deliveries
            .iter()
            .map(|delivery| delivery.lease_id)
            .collect();
        if !acks.is_empty() {
            let credit = u32::try_from(acks.len())?;
            let request = WorkRequest {
                credit,
                acks,
                ..WorkRequest::default()
            };
            results.send(request).await?;
        }
    }
    Ok(began.elapsed())
}
