//! The server of the demo, in this process, and its clients.
//!
//! Both sides of a scene have the same server, the same messages at the same moments, and the same number of workers.
//! `Fifo` differs from `Fair` in the fairness key only: all messages have the same key, which makes a plain queue.
//! `Flat` differs from `Groups` in the queue's separator only: without one, a key is one name.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use fila_sdk::{Charge, Client, Failure, Message, Queue, QueueSettings, Received};
use fila_server::Server;
use fila_server::config::{Config, Durability};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::record::{Figures, Moment, Record};
use super::script::{Batch, Scene, Sender, Side, Unit};

/// How long workers have to subscribe before a scene begins.
const LEAD: Duration = Duration::from_millis(150);

/// How long the server may take to shut down. The demo keeps none of its data.
const SHUTDOWN_MAX: Duration = Duration::from_secs(3);

/// A server in this process, on a directory that is removed when it is dropped.
pub(crate) struct Stage {
    server: Server,
    directory: TempDir,
    /// How many scenes were started.
    scenes: u32,
}

impl Stage {
    pub(crate) async fn open() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("fila-demo-").tempdir();
        let directory = directory.context("no temporary directory can be made")?;
        let mut config = Config::default();
        config.server.address = ([127, 0, 0, 1], 0).into();
        config.server.shutdown_timeout = SHUTDOWN_MAX;
        config.storage.path = directory.path().join("data");
        // The demo keeps no data, and a slow disk would distort every wait.
        config.storage.durability = Durability::Os;
        let server = Server::start(config).await;
        let server = server.context("the demo's server cannot be started")?;
        Ok(Self {
            server,
            directory,
            scenes: 0,
        })
    }

    /// Starts a scene.
    pub(crate) async fn play(&mut self, scene: &Arc<Scene>) -> anyhow::Result<Playing> {
        self.scenes += 1;
        let start = Instant::now() + LEAD;
        let mut playing = Playing {
            start,
            scene: scene.clone(),
            queues: scene.sides.map(|side| queue_of(side, self.scenes)),
            records: scene
                .sides
                .map(|_| Arc::new(Mutex::new(Record::new(scene.tenants.len())))),
            tasks: JoinSet::new(),
        };
        let queues = playing.queues.clone().map(Arc::from);
        let sides = scene.sides.into_iter().zip(queues);
        for ((side, queue), record) in sides.zip(playing.records.clone()) {
            let part = Part {
                side,
                queue,
                scene: scene.clone(),
                record,
                start,
            };
            let client = self.client().await?;
            let admin = client.admin();
            admin.create_queue(&part.queue, part.settings()).await?;
            playing.tasks.spawn(part.clone().work(client));
            for sender in 0..scene.senders.len() {
                let client = self.client().await?;
                playing.tasks.spawn(part.clone().send(sender, client));
            }
        }
        Ok(playing)
    }

    /// Ends a scene: stops all work and deletes the queues.
    pub(crate) async fn clear(&self, mut playing: Playing) -> anyhow::Result<Played> {
        let length = playing.now().min(playing.scene.length);
        let records = playing
            .records
            .each_ref()
            .map(|record| locked(record, |record| record.clone()));
        playing.tasks.shutdown().await;
        let admin = self.client().await?.admin();
        for queue in &playing.queues {
            admin.delete_queue(queue).await?;
        }
        Ok(Played {
            scene: playing.scene.clone(),
            records,
            length,
        })
    }

    /// Stops the server, and removes its directory.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        // The directory is removed in any case, so an incomplete shutdown does no harm.
        let _ = self.server.shutdown().await;
        self.directory
            .close()
            .context("the temporary directory cannot be removed")
    }

    async fn client(&self) -> anyhow::Result<Client> {
        let address = self.server.address().to_string();
        Ok(Client::connect(address).await?)
    }
}

/// A scene in progress. Dropping it stops it.
pub(crate) struct Playing {
    start: Instant,
    scene: Arc<Scene>,
    queues: [String; 2],
    records: [Arc<Mutex<Record>>; 2],
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Playing {
    /// Returns how long it has been running.
    pub(crate) fn now(&self) -> Moment {
        self.start.elapsed()
    }

    /// Returns when it ends.
    pub(crate) fn ends(&self) -> Instant {
        self.start + self.scene.length
    }

    /// Returns the figures of both sides at the same moment.
    pub(crate) fn figures(&self) -> (Moment, [Figures; 2]) {
        let now = self.now();
        // Copies the rows, so that workers do not wait while the figures are computed.
        let records = self
            .records
            .each_ref()
            .map(|record| locked(record, |record| record.clone()));
        (now, records.map(|record| record.figures(&self.scene, now)))
    }

    /// Waits for the first failure of a task. Without one it waits without end.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(crate) async fn failure(&mut self) -> anyhow::Error {
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(error) => return error.into(),
            }
        }
        std::future::pending().await
    }
}

/// A scene that has ended.
pub(crate) struct Played {
    pub(crate) scene: Arc<Scene>,
    pub(crate) records: [Record; 2],
    /// How long it ran; less than its length if the user skipped the rest.
    pub(crate) length: Duration,
}

/// The context of the tasks of one side.
#[derive(Clone)]
struct Part {
    side: Side,
    queue: Arc<str>,
    scene: Arc<Scene>,
    record: Arc<Mutex<Record>>,
    start: Instant,
}

impl Part {
    fn settings(&self) -> QueueSettings {
        let settings = QueueSettings::new().charge(match self.scene.unit {
            Unit::Messages => Charge::Message,
            Unit::Time => Charge::Time,
        });
        match self.side {
            Side::Fifo | Side::Fair | Side::Groups => settings,
            Side::Flat => settings.key_separator(""),
        }
    }

    /// Sends all batches of a sender.
    async fn send(self, sender: usize, client: Client) -> anyhow::Result<()> {
        let queue = client.queue(&*self.queue);
        let Sender { batches } = &self.scene.senders[sender];
        let mut sending = JoinSet::new();
        for batch in batches {
            sleep_until(self.start + batch.at).await;
            // In its own task, so that the next batch is sent in time even if this one is not confirmed by then.
            sending.spawn(send_all(queue.clone(), self.messages(batch)));
            while let Some(sent) = sending.try_join_next() {
                sent??;
            }
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        Ok(())
    }

    fn messages(&self, batch: &Batch) -> Vec<Message> {
        let now = self.start.elapsed();
        locked(&self.record, |record| {
            let turns = batch.turns();
            let messages = turns.map(|tenant| {
                let number = record.sent(tenant, now);
                let message = Message::new(Label { tenant, number }.to_bytes());
                match self.side {
                    Side::Fifo => message.key("everybody"),
                    Side::Fair | Side::Flat | Side::Groups => {
                        let tenant = &self.scene.tenants[tenant];
                        message.key(tenant.key(number)).weight(tenant.weight)
                    }
                }
            });
            messages.collect()
        })
    }

    /// Processes messages. The processing is simulated: the worker sleeps.
    async fn work(self, client: Client) -> anyhow::Result<()> {
        let workers = self.scene.workers;
        let worker = client.queue(&*self.queue).worker().concurrency(workers);
        // No message waits in the client, so the server alone decides which one is next.
        let worker = worker.prefetch(u32::try_from(workers)?);
        let ended = worker.run(move |message: Received| {
            let part = self.clone();
            async move { part.handle(&message).await }
        });
        ended.await?;
        Ok(())
    }

    async fn handle(self, message: &Received) -> Result<(), Failure> {
        let Label { tenant, number } = Label::from_bytes(&message.payload).ok_or("no label")?;
        let work = self.scene.tenants.get(tenant).ok_or("no such tenant")?.work;
        locked(&self.record, |record| {
            record.delivered(tenant, number, self.start.elapsed())
        });
        sleep(work).await;
        locked(&self.record, |record| {
            record.done(tenant, number, self.start.elapsed())
        });
        Ok(())
    }
}

/// Returns the queue of a side, which exists for one scene. Every scene has other names, because messages of the scene
/// before may still be on their way to the server.
fn queue_of(side: Side, scene: u32) -> String {
    let name = match side {
        Side::Fifo => "demo-fifo",
        Side::Fair => "demo-fair",
        Side::Flat => "demo-flat",
        Side::Groups => "demo-groups",
    };
    format!("{name}-{scene}")
}

async fn send_all(queue: Queue, messages: Vec<Message>) -> anyhow::Result<()> {
    for sent in queue.send_all(messages).await {
        sent?;
    }
    Ok(())
}

fn locked<T>(record: &Mutex<Record>, with: impl FnOnce(&mut Record) -> T) -> T {
    // Every call leaves the record consistent, so a panic elsewhere does not spoil it.
    with(&mut record.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The payload of a message: its tenant, and its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label {
    tenant: usize,
    number: u32,
}

impl Label {
    fn to_bytes(self) -> Vec<u8> {
        let tenant = u32::try_from(self.tenant).expect("a scene has few tenants");
        [tenant.to_le_bytes(), self.number.to_le_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tenant, number) = bytes.split_first_chunk()?;
        Some(Self {
            tenant: u32::from_le_bytes(*tenant) as usize,
            number: u32::from_le_bytes(number.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_comes_back_as_it_was() {
        let label = Label {
            tenant: 3,
            number: 49_999,
        };
        assert_eq!(Label::from_bytes(&label.to_bytes()), Some(label));
        assert_eq!(Label::from_bytes(b"hello"), None);
    }
}
