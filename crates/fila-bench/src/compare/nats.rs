//! NATS JetStream: a stream in files with work-queue retention, and one durable pull consumer that all consumers share.
//!
//! The server does not confirm acknowledgements, as is usual for NATS. A call after the last one makes sure that it has
//! them.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, anyhow};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use futures_util::StreamExt;

use super::contestant::find;
use super::driver::{BoxFuture, Driver, Goal, Load, OUTSTANDING, Running, Sender};
use super::process::{self, Process};
use super::workloads::until;

const CONSUMER: &str = "work";

/// The subject on which JetStream answers once it is ready.
const INFO: &str = "$JS.API.INFO";

/// Enough for all consumers; the default of 1,000 would slow four of them down.
const UNACKNOWLEDGED: i64 = 16 * OUTSTANDING as i64;

pub(crate) struct Nats {
    process: Process,
    address: String,
}

impl Nats {
    pub(crate) async fn start(directory: &Path) -> anyhow::Result<Self> {
        let program = find("nats-server").context("nats-server is not installed")?;
        let port = process::port()?.to_string();
        let mut command = Command::new(program);
        command
            .args(["--addr", "127.0.0.1", "--port", &port, "--jetstream"])
            .arg("--store_dir")
            .arg(directory);
        let process = Process::start(&mut command)?;
        let address = format!("127.0.0.1:{port}");
        let client = until("nats-server", async || async_nats::connect(&address).await);
        let client = client.await?;
        until("JetStream", async || {
            client.request(INFO, Bytes::new()).await
        })
        .await?;
        Ok(Self { process, address })
    }

    async fn connect(&self) -> anyhow::Result<Context> {
        Ok(jetstream::new(async_nats::connect(&self.address).await?))
    }
}

fn error(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("JetStream: {error}")
}

impl Driver for Nats {
    fn create<'a>(&'a self, queue: &'a str) -> BoxFuture<'a> {
        Box::pin(async move {
            let config = Config {
                name: queue.to_owned(),
                subjects: vec![queue.to_owned()],
                retention: RetentionPolicy::WorkQueue,
                storage: StorageType::File,
                ..Config::default()
            };
            let stream = self.connect().await?.create_stream(config).await?;
            let config = pull::Config {
                durable_name: Some(CONSUMER.to_owned()),
                ack_policy: AckPolicy::Explicit,
                max_ack_pending: UNACKNOWLEDGED,
                ..pull::Config::default()
            };
            stream.create_consumer(config).await?;
            Ok(())
        })
    }

    fn produce<'a>(&'a self, queue: &'a str, load: Load) -> BoxFuture<'a> {
        Box::pin(async move {
            let context = self.connect().await?;
            let mut unconfirmed = VecDeque::with_capacity(OUTSTANDING);
            for (_, payload) in load.payloads() {
                if unconfirmed.len() == OUTSTANDING
                    && let Some(oldest) = unconfirmed.pop_front()
                {
                    IntoFuture::into_future(oldest).await?;
                }
                unconfirmed.push_back(context.publish(queue.to_owned(), payload).await?);
            }
            for confirmed in unconfirmed {
                confirmed.await?;
            }
            Ok(())
        })
    }

    fn sender<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Box<dyn Sender>> {
        Box::pin(async move {
            let sender: Box<dyn Sender> = Box::new(NatsPublisher {
                context: self.connect().await?,
                subject: queue.to_owned(),
            });
            Ok(sender)
        })
    }

    fn consume<'a>(&'a self, queue: &'a str, goal: &'a Goal) -> BoxFuture<'a> {
        Box::pin(async move {
            let context = self.connect().await?;
            let consumer = context.get_consumer_from_stream(CONSUMER, queue);
            let mut consumer: PullConsumer = consumer.await.map_err(error)?;
            let messages = consumer.stream().max_messages_per_batch(OUTSTANDING);
            let mut messages = messages.messages().await?;
            let mut reached = std::pin::pin!(goal.reached());
            while !goal.is_reached() {
                let message = tokio::select! {
                    biased;
                    message = messages.next() => message.context("the consumer has ended")??,
                    () = &mut reached => break,
                };
                goal.take(&message.payload)?;
                message.ack().await.map_err(error)?;
            }
            consumer.info().await?;
            Ok(())
        })
    }

    fn process(&self) -> &dyn Running {
        &self.process
    }
}

struct NatsPublisher {
    context: Context,
    subject: String,
}

impl Sender for NatsPublisher {
    fn send(&self, payload: Bytes) -> BoxFuture<'_> {
        Box::pin(async move {
            let sent = self.context.publish(self.subject.clone(), payload).await?;
            sent.await?;
            Ok(())
        })
    }
}
