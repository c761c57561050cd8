//! A producer and a consumer on the streams of `fila.v1`.
//!
//! A message contains the number of its key and its position among that key's messages, so that the consumer can check
//! the order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    CreateQueueRequest, InspectQueueRequest, Message, ProduceRequest, QueueStats, WorkRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::key_shape::KeyShape;

/// The largest frame that the client reads.
const FRAME_MAX: usize = 64 << 20;

/// The messages to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLoad {
    pub(crate) messages: u64,
    pub(crate) keys: KeyShape,
    pub(crate) size: usize,
    /// Messages that may be unconfirmed, and messages in one frame.
    pub(crate) outstanding: u64,
    pub(crate) frame: u64,
}

/// The results of a consumer.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) elapsed: Duration,
    /// The largest difference between two keys in messages received, while all keys had messages.
    pub(crate) spread: u64,
}

pub(crate) async fn connect(address: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(address.to_owned())?
        .tcp_nodelay(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20);
    Ok(endpoint.connect().await?)
}

pub(crate) async fn create(channel: &Channel, queue: &str) -> anyhow::Result<()> {
    let mut admin = FilaAdminClient::new(channel.clone());
    let request = CreateQueueRequest {
        name: queue.to_owned(),
        settings: None,
    };
    admin.create_queue(request).await?;
    Ok(())
}

pub(crate) async fn stats(channel: &Channel, queue: &str) -> anyhow::Result<QueueStats> {
    let mut admin = FilaAdminClient::new(channel.clone());
    let request = InspectQueueRequest {
        name: queue.to_owned(),
    };
    let answer = admin.inspect_queue(request).await?.into_inner();
    let stats = answer.queue.and_then(|queue| queue.stats);
    stats.context("a queue has figures")
}

pub(crate) fn service(channel: &Channel) -> FilaServiceClient<Channel> {
    FilaServiceClient::new(channel.clone())
        .max_decoding_message_size(FRAME_MAX)
        .max_encoding_message_size(FRAME_MAX)
}

/// Sends all messages on one stream, the keys in turns, and waits until all are confirmed. Calls `each` from time to time
/// with the number of confirmed messages.
pub(crate) async fn produce(
    channel: &Channel,
    queue: &str,
    load: StreamLoad,
    each: impl FnMut(u64),
) -> anyhow::Result<Duration> {
    produce_as(channel, queue, load, &Message::default(), each).await
}

/// Like [`produce`], with the other fields of each message taken from `pattern`.
pub(crate) async fn produce_as(
    channel: &Channel,
    queue: &str,
    load: StreamLoad,
    pattern: &Message,
    mut each: impl FnMut(u64),
) -> anyhow::Result<Duration> {
    let (sender, frames) = mpsc::channel(64);
    let mut service = service(channel);
    let call = service.produce(ReceiverStream::new(frames));
    let mut responses = call.await?.into_inner();
    let window = responses.message().await?.context("the window")?.window;
    let outstanding = load.outstanding.min(u64::from(window));
    let begun = Instant::now();
    let (mut sent, mut confirmed) = (0, 0);
    let mut frame_id = 0;
    let mut body = vec![0x5a; load.size.max(16)];
    while confirmed < load.messages {
        while sent < load.messages && sent - confirmed < outstanding {
            let room = outstanding - (sent - confirmed);
            let count = load.frame.min(room).min(load.messages - sent);
            let messages = (sent..sent + count).map(|number| {
                let (key, place) = (number % load.keys.count, number / load.keys.count);
                body[..8].copy_from_slice(&key.to_be_bytes());
                body[8..16].copy_from_slice(&place.to_be_bytes());
                Message {
                    fairness_key: load.keys.path(key),
                    payload: Bytes::copy_from_slice(&body),
                    ..pattern.clone()
                }
            });
            let frame = ProduceRequest {
                frame_id,
                queue: queue.to_owned(),
                messages: messages.collect(),
                batch_id: None,
            };
            frame_id += 1;
            sent += count;
            sender.send(frame).await.context("the stream has ended")?;
        }
        let response = responses.message().await?.context("the stream has ended")?;
        for result in &response.results {
            if let Some(error) = &result.error {
                bail!("refused: {}", error.message);
            }
        }
        confirmed += response.results.len() as u64;
        each(confirmed);
    }
    Ok(begun.elapsed())
}

/// Takes all messages of a load from a queue, acknowledges each and checks the order.
pub(crate) async fn consume(
    channel: &Channel,
    queue: &str,
    load: StreamLoad,
    credit: u32,
    mut each: impl FnMut(u64),
) -> anyhow::Result<Seen> {
    let (sender, requests) = mpsc::channel(64);
    let mut service = service(channel);
    let first = WorkRequest {
        queue: queue.to_owned(),
        credit,
        ..WorkRequest::default()
    };
    sender.send(first).await?;
    let call = service.work(ReceiverStream::new(requests));
    let mut responses = call.await?.into_inner();
    let begun = Instant::now();
    let mut order = KeyOrder::new(load);
    let (mut delivered, mut confirmed) = (0, 0);
    let mut due: VecDeque<u64> = VecDeque::new();
    while confirmed < load.messages {
        let response = responses.message().await?.context("the stream has ended")?;
        ensure!(
            response.refused.is_empty(),
            "refused: {:?}",
            response.refused
        );
        confirmed += response.confirmed.len() as u64;
        for delivery in &response.deliveries {
            order.deliver(&delivery.payload)?;
            delivered += 1;
            due.push_back(delivery.lease_id);
        }
        order.measure_spread();
        if !due.is_empty() {
            let report = WorkRequest {
                credit: due.len() as u32,
                acks: due.drain(..).collect(),
                ..WorkRequest::default()
            };
            sender.send(report).await.context("the stream has ended")?;
        }
        each(confirmed);
    }
    ensure!(delivered == load.messages, "{delivered} were delivered");
    Ok(Seen {
        elapsed: begun.elapsed(),
        spread: order.spread,
    })
}

/// Checks that messages come in order within their key, and measures how far the keys are apart in messages.
struct KeyOrder {
    /// How many messages of each key have come.
    taken: Vec<u64>,
    /// How many messages a key has in all.
    whole: u64,
    spread: u64,
}

impl KeyOrder {
    fn new(load: StreamLoad) -> Self {
        Self {
            taken: vec![0; load.keys.count as usize],
            whole: load.messages / load.keys.count,
            spread: 0,
        }
    }

    fn deliver(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        let (key, place) = numbers(payload)?;
        let expected = &mut self.taken[key as usize];
        ensure!(
            place == *expected,
            "key {key}: {place} came instead of {expected}"
        );
        *expected += 1;
        Ok(())
    }

    /// Measures how far the keys are apart, until one of them is drained.
    fn measure_spread(&mut self) {
        if let (Some(most), Some(least)) = (self.taken.iter().max(), self.taken.iter().min())
            && *most < self.whole
        {
            self.spread = self.spread.max(most - least);
        }
    }
}

pub(crate) fn numbers(payload: &[u8]) -> anyhow::Result<(u64, u64)> {
    let number = |range| {
        let bytes: Option<&[u8]> = payload.get(range);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_be_bytes)
    };
    number(0..8).zip(number(8..16)).context("a short payload")
}
