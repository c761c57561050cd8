//! RabbitMQ: a durable queue, classic or quorum, persistent messages, publisher confirms, prefetch.
//!
//! AMQP does not confirm acknowledgements, and one can acknowledge all messages before it: the driver sends one for the
//! deliveries that arrived together. Closing the channel makes sure that the server has them.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use super::contestant::find;
use super::driver::{BoxFuture, Driver, Goal, Load, OUTSTANDING, Running, Sender};
use super::process::{self, Process};
use super::workloads::until;

/// The kind of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Classic,
    Quorum,
}

pub(crate) struct Rabbit {
    process: Process,
    /// The port mapper, which Erlang needs even for a single node.
    _mapper: Process,
    address: String,
    queue: Queue,
}

impl Rabbit {
    pub(crate) async fn start(directory: &Path, queue: Queue) -> anyhow::Result<Self> {
        let program = "/usr/lib/rabbitmq/bin/rabbitmq-server";
        let mapper = find("epmd").context("epmd is not installed")?;
        let (mapper_port, port) = (process::port()?.to_string(), process::port()?.to_string());
        let mapper = Process::start(Command::new(mapper).args([
            "-address",
            "127.0.0.1",
            "-port",
            &mapper_port,
        ]))?;
        let mut command = Command::new(program);
        command
            .env("HOME", directory)
            .env("ERL_EPMD_PORT", &mapper_port)
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_NODENAME", "bench@localhost")
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", &port)
            .env("RABBITMQ_DIST_PORT", process::port()?.to_string());
        for (variable, path) in [
            ("RABBITMQ_MNESIA_BASE", "mnesia"),
            ("RABBITMQ_LOG_BASE", "log"),
            ("RABBITMQ_CONFIG_FILE", "rabbitmq"),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", "advanced"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "plugins"),
            ("RABBITMQ_PID_FILE", "pid"),
        ] {
            command.env(variable, directory.join(path));
        }
        let rabbit = Self {
            process: Process::start(&mut command)?,
            _mapper: mapper,
            address: format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
            queue,
        };
        until("rabbitmq-server", async || rabbit.connect().await).await?;
        Ok(rabbit)
    }

    /// Opens a connection with one channel, which lives as long as the connection.
    async fn connect(&self) -> lapin::Result<(Connection, Channel)> {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&self.address, properties).await?;
        let channel = connection.create_channel().await?;
        Ok((connection, channel))
    }

    async fn publisher(&self, queue: &str) -> anyhow::Result<RabbitPublisher> {
        let (connection, channel) = self.connect().await?;
        let options = ConfirmSelectOptions::default();
        channel.confirm_select(options).await?;
        Ok(RabbitPublisher {
            _connection: connection,
            channel,
            queue: queue.into(),
        })
    }
}

impl Driver for Rabbit {
    fn create<'a>(&'a self, queue: &'a str) -> BoxFuture<'a> {
        Box::pin(async move {
            let mut arguments = FieldTable::default();
            match self.queue {
                Queue::Classic => {
                    arguments.insert("x-queue-version".into(), AMQPValue::LongInt(2));
                }
                Queue::Quorum => {
                    let kind = AMQPValue::LongString("quorum".into());
                    arguments.insert("x-queue-type".into(), kind);
                }
            }
            let (_connection, channel) = self.connect().await?;
            let options = QueueDeclareOptions::durable();
            channel
                .queue_declare(queue.into(), options, arguments)
                .await?;
            Ok(())
        })
    }

    fn produce<'a>(&'a self, queue: &'a str, load: Load) -> BoxFuture<'a> {
        Box::pin(async move {
            let publisher = self.publisher(queue).await?;
            let mut unconfirmed = VecDeque::with_capacity(OUTSTANDING);
            for (_, payload) in load.payloads() {
                if unconfirmed.len() == OUTSTANDING
                    && let Some(oldest) = unconfirmed.pop_front()
                {
                    confirmed(oldest).await?;
                }
                unconfirmed.push_back(publisher.publish(&payload).await?);
            }
            for oldest in unconfirmed {
                confirmed(oldest).await?;
            }
            Ok(())
        })
    }

    fn sender<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Box<dyn Sender>> {
        Box::pin(async move {
            let sender: Box<dyn Sender> = Box::new(self.publisher(queue).await?);
            Ok(sender)
        })
    }

    fn consume<'a>(&'a self, queue: &'a str, goal: &'a Goal) -> BoxFuture<'a> {
        Box::pin(async move {
            let (connection, channel) = self.connect().await?;
            let options = BasicQosOptions::default();
            channel.basic_qos(OUTSTANDING as u16, options).await?;
            let options = BasicConsumeOptions::default();
            let arguments = FieldTable::default();
            let consumer = channel.basic_consume(queue.into(), "".into(), options, arguments);
            let mut deliveries = consumer.await?.ready_chunks(OUTSTANDING);
            let mut reached = std::pin::pin!(goal.reached());
            while !goal.is_reached() {
                let arrived = tokio::select! {
                    biased;
                    arrived = deliveries.next() => arrived.context("the consumer has ended")?,
                    () = &mut reached => break,
                };
                let mut last = None;
                for delivery in arrived {
                    let delivery = delivery?;
                    goal.take(&delivery.data)?;
                    last = Some(delivery);
                }
                if let Some(last) = last {
                    last.ack(BasicAckOptions { multiple: true }).await?;
                }
            }
            channel.close(200, "done".into()).await?;
            connection.close(200, "done".into()).await?;
            Ok(())
        })
    }

    fn process(&self) -> &dyn Running {
        &self.process
    }
}

struct RabbitPublisher {
    _connection: Connection,
    channel: Channel,
    queue: ShortString,
}

impl RabbitPublisher {
    async fn publish(&self, payload: &[u8]) -> lapin::Result<lapin::PublisherConfirm> {
        const PERSISTENT: u8 = 2;
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let options = BasicPublishOptions::default();
        let queue = self.queue.clone();
        let publish = self
            .channel
            .basic_publish("".into(), queue, options, payload, properties);
        publish.await
    }
}

async fn confirmed(message: lapin::PublisherConfirm) -> anyhow::Result<()> {
    ensure!(message.await?.is_ack(), "a message was not confirmed");
    Ok(())
}

impl Sender for RabbitPublisher {
    fn send(&self, payload: Bytes) -> BoxFuture<'_> {
        Box::pin(async move { confirmed(self.publish(&payload).await?).await })
    }
}
