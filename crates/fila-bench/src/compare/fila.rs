//! Fila, through the SDK with its defaults, and by hand on the streams of `fila.v1`.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use fila_proto::v1::{Message, ProduceRequest, WorkRequest};
use fila_sdk::Client;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::driver::{BoxFuture, Driver, Goal, Load, OUTSTANDING, Running, Sender};
use crate::client;
use crate::server::{Server, ServerLog, StartOptions};

/// Messages in a frame that is made by hand.
const FRAME: usize = 16;

/// The kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sdk,
    Streams,
}

pub(crate) struct Fila {
    server: Server,
    way: Way,
}

impl Fila {
    pub(crate) fn start(directory: &Path, level: &str, way: Way) -> anyhow::Result<Self> {
        let settings = [format!("storage.durability={level}")];
        let server = Server::start(directory, &settings)?;
        Ok(Self { server, way })
    }

    /// Starts a program that was built as a raw FIFO. Its warning that it is one goes to nowhere.
    pub(crate) fn start_fifo(program: &Path, directory: &Path, way: Way) -> anyhow::Result<Self> {
        let version = Command::new(program).arg("--version").output();
        let version = version.with_context(|| format!("`{}`", program.display()))?;
        ensure!(
            String::from_utf8_lossy(&version.stdout).contains("a FIFO for benches"),
            "`{}` is not built with the feature `fifo`",
            program.display()
        );
        let options = StartOptions {
            program: Some(program),
            settings: &["storage.durability=fsync".to_owned()],
            log: ServerLog::Discarded,
            ..StartOptions::default()
        };
        let server = Server::start_with(directory, options)?;
        Ok(Self { server, way })
    }

    /// Sends as the documentation advises for throughput from one task: posts, and awaits the receipts later, in order.
    async fn produce_by_sdk(&self, queue: &str, load: Load) -> anyhow::Result<()> {
        let client = Client::connect(&self.server.address).await?;
        let queue = client.queue(queue);
        let mut unconfirmed = VecDeque::with_capacity(OUTSTANDING);
        for (number, payload) in load.payloads() {
            if unconfirmed.len() == OUTSTANDING
                && let Some(oldest) = unconfirmed.pop_front()
            {
                oldest.await?;
            }
            let message = fila_sdk::Message::new(payload).key(load.key(number));
            unconfirmed.push_back(queue.post(message).await?);
        }
        for receipt in unconfirmed {
            receipt.await?;
        }
        Ok(())
    }

    async fn produce_by_hand(&self, queue: &str, load: Load) -> anyhow::Result<()> {
        let channel = client::connect(&self.server.address).await?;
        let (sender, frames) = mpsc::channel(64);
        let mut service = client::service(&channel);
        let call = service.produce(ReceiverStream::new(frames));
        let mut responses = call.await?.into_inner();
        responses.message().await?.context("the window")?;
        let mut payloads = load.payloads().peekable();
        let (mut frame_id, mut unconfirmed) = (0, 0);
        while unconfirmed > 0 || payloads.peek().is_some() {
            while unconfirmed < OUTSTANDING && payloads.peek().is_some() {
                let room = FRAME.min(OUTSTANDING - unconfirmed);
                let messages = payloads
                    .by_ref()
                    .take(room)
                    .map(|(number, payload)| Message {
                        fairness_key: load.key(number),
                        payload,
                        ..Message::default()
                    });
                let frame = ProduceRequest {
                    frame_id,
                    queue: queue.to_owned(),
                    messages: messages.collect(),
                    batch_id: None,
                };
                frame_id += 1;
                unconfirmed += frame.messages.len();
                sender.send(frame).await.context("the stream has ended")?;
            }
            let response = responses.message().await?.context("the stream has ended")?;
            for result in &response.results {
                if let Some(error) = &result.error {
                    bail!("refused: {}", error.message);
                }
            }
            unconfirmed -= response.results.len();
        }
        Ok(())
    }

    async fn consume_by_sdk(&self, queue: &str, goal: &Goal) -> anyhow::Result<()> {
        let client = Client::connect(&self.server.address).await?;
        let queue = client.queue(queue);
        let mut consumer = queue.consumer().prefetch(OUTSTANDING as u32).subscribe();
        let mut reached = std::pin::pin!(goal.reached());
        while !goal.is_reached() {
            let delivery = tokio::select! {
                biased;
                delivery = consumer.next() => delivery.context("the consumer has ended")??,
                () = &mut reached => break,
            };
            goal.take(&delivery.payload)?;
            // The SDK sends the result even if its future is dropped.
            drop(delivery.ack());
        }
        consumer.stop().await;
        Ok(())
    }

    async fn consume_by_hand(&self, queue: &str, goal: &Goal) -> anyhow::Result<()> {
        let channel = client::connect(&self.server.address).await?;
        let (sender, requests) = mpsc::channel(64);
        let first = WorkRequest {
            queue: queue.to_owned(),
            credit: OUTSTANDING as u32,
            ..WorkRequest::default()
        };
        sender.send(first).await?;
        let mut service = client::service(&channel);
        let call = service.work(ReceiverStream::new(requests));
        let mut responses = call.await?.into_inner();
        let mut unconfirmed = 0;
        let mut reached = std::pin::pin!(goal.reached());
        while unconfirmed > 0 || !goal.is_reached() {
            let response = tokio::select! {
                biased;
                response = responses.message() => response?.context("the stream has ended")?,
                () = &mut reached, if unconfirmed == 0 => break,
            };
            ensure!(response.refused.is_empty(), "{:?}", response.refused);
            unconfirmed -= response.confirmed.len();
            let mut acks = Vec::with_capacity(response.deliveries.len());
            for delivery in &response.deliveries {
                goal.take(&delivery.payload)?;
                acks.push(delivery.lease_id);
            }
            if !acks.is_empty() {
                unconfirmed += acks.len();
                let report = WorkRequest {
                    credit: acks.len() as u32,
                    acks,
                    ..WorkRequest::default()
                };
                sender.send(report).await.context("the stream has ended")?;
            }
        }
        Ok(())
    }
}

impl Driver for Fila {
    fn create<'a>(&'a self, queue: &'a str) -> BoxFuture<'a> {
        Box::pin(async move {
            let channel = client::connect(&self.server.address).await?;
            client::create(&channel, queue).await
        })
    }

    fn produce<'a>(&'a self, queue: &'a str, load: Load) -> BoxFuture<'a> {
        match self.way {
            Way::Sdk => Box::pin(self.produce_by_sdk(queue, load)),
            Way::Streams => Box::pin(self.produce_by_hand(queue, load)),
        }
    }

    fn sender<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Box<dyn Sender>> {
        Box::pin(async move {
            let client = Client::connect(&self.server.address).await?;
            let sender: Box<dyn Sender> = Box::new(client.queue(queue));
            Ok(sender)
        })
    }

    fn consume<'a>(&'a self, queue: &'a str, goal: &'a Goal) -> BoxFuture<'a> {
        match self.way {
            Way::Sdk => Box::pin(self.consume_by_sdk(queue, goal)),
            Way::Streams => Box::pin(self.consume_by_hand(queue, goal)),
        }
    }

    fn process(&self) -> &dyn Running {
        &self.server
    }
}

// The calls go to the server's inherent methods, which take precedence over the trait's.
impl Running for Server {
    fn memory(&self) -> anyhow::Result<u64> {
        let (now, _most) = self.memory()?;
        Ok(now)
    }

    fn processor_time(&self) -> anyhow::Result<Duration> {
        self.processor_time()
    }
}

impl Sender for fila_sdk::Queue {
    fn send(&self, payload: Bytes) -> BoxFuture<'_> {
        Box::pin(async move {
            self.send(fila_sdk::Message::new(payload).key("tenant-0"))
                .await?;
            Ok(())
        })
    }
}
