//! Redis Streams: a stream with one group, its append-only file synced once a second or always.
//!
//! The producer adds messages in pipelines of [`OUTSTANDING`]. A consumer reads as many at a time. It acknowledges and
//! deletes them with one command each, on a second connection, while it reads the next ones.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tokio::sync::mpsc;

use super::contestant::find;
use super::driver::{BoxFuture, Driver, Goal, Load, OUTSTANDING, Running, Sender};
use super::process::{self, Process};
use super::workloads::until;

const GROUP: &str = "work";

/// How long a read waits for entries, in milliseconds.
const BLOCK: usize = 1000;

/// The reply to a read: streams with entries, each with its name and its one field.
type Read = Option<Vec<(String, Vec<(String, (String, Vec<u8>))>)>>;

pub(crate) struct Redis {
    process: Process,
    client: Client,
}

impl Redis {
    pub(crate) async fn start(directory: &Path, sync: &str) -> anyhow::Result<Self> {
        let program = find("redis-server").context("redis-server is not installed")?;
        let port = process::port()?.to_string();
        let mut command = Command::new(program);
        command
            .args(["--bind", "127.0.0.1", "--port", &port, "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", sync, "--dir"])
            .arg(directory);
        let process = Process::start(&mut command)?;
        let client = Client::open(format!("redis://127.0.0.1:{port}/"))?;
        let redis = Self { process, client };
        // Redis accepts connections before it has read its file, and refuses commands until then.
        until("redis-server", async || {
            let mut connection = redis.connect().await?;
            redis::cmd("DBSIZE")
                .exec_async(&mut connection)
                .await
                .map_err(anyhow::Error::from)
        })
        .await?;
        Ok(redis)
    }

    async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        Ok(connection.await?)
    }
}

/// Acknowledges and deletes entries as they arrive.
async fn acknowledge(
    mut connection: MultiplexedConnection,
    queue: String,
    mut read: mpsc::Receiver<Vec<String>>,
) -> anyhow::Result<()> {
    while let Some(ids) = read.recv().await {
        let mut pipe = redis::pipe();
        pipe.cmd("XACK").arg(&queue).arg(GROUP).arg(&ids).ignore();
        pipe.cmd("XDEL").arg(&queue).arg(&ids).ignore();
        pipe.exec_async(&mut connection).await?;
    }
    Ok(())
}

impl Driver for Redis {
    fn create<'a>(&'a self, queue: &'a str) -> BoxFuture<'a> {
        Box::pin(async move {
            let mut connection = self.connect().await?;
            let mut create = redis::cmd("XGROUP");
            create.arg("CREATE").arg(queue).arg(GROUP);
            create.arg("0").arg("MKSTREAM");
            create.exec_async(&mut connection).await?;
            Ok(())
        })
    }

    fn produce<'a>(&'a self, queue: &'a str, load: Load) -> BoxFuture<'a> {
        Box::pin(async move {
            let mut connection = self.connect().await?;
            let mut payloads = load.payloads().peekable();
            while payloads.peek().is_some() {
                let mut pipe = redis::Pipeline::with_capacity(OUTSTANDING);
                for (_, payload) in payloads.by_ref().take(OUTSTANDING) {
                    pipe.cmd("XADD").arg(queue).arg("*");
                    pipe.arg("d").arg(payload.as_ref()).ignore();
                }
                pipe.exec_async(&mut connection).await?;
            }
            Ok(())
        })
    }

    fn sender<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Box<dyn Sender>> {
        Box::pin(async move {
            let sender: Box<dyn Sender> = Box::new(Adder {
                connection: self.connect().await?,
                queue: queue.to_owned(),
            });
            Ok(sender)
        })
    }

    fn consume<'a>(&'a self, queue: &'a str, goal: &'a Goal) -> BoxFuture<'a> {
        Box::pin(async move {
            let mut connection = self.connect().await?;
            let (sender, read) = mpsc::channel(1);
            let acknowledge = acknowledge(self.connect().await?, queue.to_owned(), read);
            let acknowledge = tokio::spawn(acknowledge);
            // Each consumer of a group needs its own name.
            let name = format!("{:?}", std::ptr::from_ref(&connection));
            let mut command = redis::cmd("XREADGROUP");
            command.arg("GROUP").arg(GROUP).arg(name);
            command.arg("COUNT").arg(OUTSTANDING);
            command.arg("BLOCK").arg(BLOCK);
            command.arg("STREAMS").arg(queue).arg(">");
            let mut reached = std::pin::pin!(goal.reached());
            while !goal.is_reached() {
                let entries: Read = tokio::select! {
                    biased;
                    entries = command.query_async(&mut connection) => entries?,
                    () = &mut reached => break,
                };
                let entries = entries.into_iter().flatten();
                let mut ids = Vec::with_capacity(OUTSTANDING);
                for (id, (_field, payload)) in entries.flat_map(|(_stream, entries)| entries) {
                    goal.take(&payload)?;
                    ids.push(id);
                }
                if !ids.is_empty() {
                    sender.send(ids).await.context("acknowledging has ended")?;
                }
            }
            drop(sender);
            acknowledge.await?
        })
    }

    fn process(&self) -> &dyn Running {
        &self.process
    }
}

struct Adder {
    connection: MultiplexedConnection,
    queue: String,
}

impl Sender for Adder {
    fn send(&self, payload: Bytes) -> BoxFuture<'_> {
        Box::pin(async move {
            let mut add = redis::cmd("XADD");
            add.arg(&self.queue).arg("*").arg("d").arg(payload.as_ref());
            add.exec_async(&mut self.connection.clone()).await?;
            Ok(())
        })
    }
}
