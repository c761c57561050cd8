//! Moving dead letters back to the queue that they come from.

use fila_proto::v1;
use fila_proto::v1::fila_admin_client::FilaAdminClient;
use tokio::time::Instant;
use tonic::Streaming;

use crate::{Client, Error};

/// Selects dead letters and moves them back. From [`Admin::redrive`](crate::Admin::redrive).
///
/// The broker enqueues them like new messages, with their first attempt to come. It leaves messages that a consumer
/// holds, and messages that become dead letters meanwhile.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fila_sdk::Error> {
/// # let mut config = fila_server::config::Config::default();
/// # config.server.address = ([127, 0, 0, 1], 0).into();
/// # config.storage.engine = fila_server::config::StorageEngine::Memory;
/// # let server = fila_server::Server::start(config).await.unwrap();
/// # let client = fila_sdk::Client::connect(server.address().to_string()).await?;
/// # client.admin().create_queue("orders", fila_sdk::QueueSettings::new()).await?;
/// let admin = client.admin();
/// let done = admin.redrive("orders.dlq").count(10).key("acme").run().await?;
/// println!("{} are back, {} are with a consumer", done.redriven, done.skipped_leased);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a redrive does nothing until it is started"]
pub struct RedriveBuilder {
    client: Client,
    request: v1::RedriveRequest,
}

impl RedriveBuilder {
    pub(crate) fn new(client: Client, queue: &str) -> Self {
        let request = v1::RedriveRequest {
            queue: queue.to_owned(),
            ..v1::RedriveRequest::default()
        };
        Self { client, request }
    }

    /// Sets how many messages to move at most; all of them by default.
    pub fn count(mut self, messages: u64) -> Self {
        self.request.count = Some(messages);
        self
    }

    /// Moves messages of this fairness key only.
    pub fn key(mut self, fairness_key: impl Into<String>) -> Self {
        self.request.fairness_key = Some(fairness_key.into());
        self
    }

    /// Moves messages of the keys in this group only, on every level, and of the key of this name. Not beside
    /// [`key`](Self::key).
    pub fn within(mut self, group: impl Into<String>) -> Self {
        self.request.within = Some(group.into());
        self
    }

    /// Moves messages with this header only. May be called several times: a message must have all of these headers.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.headers.insert(name.into(), value.into());
        self
    }

    /// Sets how many messages to move in a second; as fast as live traffic allows by default.
    pub fn rate(mut self, messages_per_second: f64) -> Self {
        self.request.rate = Some(messages_per_second);
        self
    }

    /// Starts the redrive, and returns a handle to its progress. Dropping the handle ends it; messages that are already
    /// moved stay moved.
    ///
    /// # Errors
    /// If there is no such queue, it holds no dead letters, or a value is out of range.
    pub async fn start(self) -> Result<Redrive, Error> {
        let mut admin = FilaAdminClient::new(self.client.channel());
        let call = admin.redrive(self.request);
        let steps = self.client.call(call).await?;
        Ok(Redrive {
            client: self.client,
            steps,
            begun: Instant::now(),
            progress: RedriveProgress::default(),
        })
    }

    /// Moves all selected messages, and returns the final progress.
    ///
    /// # Errors
    /// As for [`start`](Self::start); also if the target queue accepts no more, the store fails, or the connection
    /// breaks. Messages that are already moved stay moved, and another redrive continues with the rest.
    ///
    /// # Cancel safety
    /// Dropping it ends the redrive.
    pub async fn run(self) -> Result<RedriveProgress, Error> {
        let mut redrive = self.start().await?;
        while redrive.next().await?.is_some() {}
        Ok(redrive.progress)
    }
}

/// A running redrive.
#[derive(Debug)]
#[must_use = "a redrive that is dropped ends"]
pub struct Redrive {
    client: Client,
    steps: Streaming<v1::RedriveResponse>,
    begun: Instant,
    progress: RedriveProgress,
}

/// The progress of a redrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedriveProgress {
    /// How many messages it has moved.
    pub redriven: u64,
    /// How many messages it has left, because a consumer holds them.
    pub skipped_leased: u64,
    /// How many messages it has read.
    pub seen: u64,
    /// How many dead letters there were at its start.
    pub total: u64,
}

impl Redrive {
    /// Waits until the redrive has moved more messages, and returns its progress; none at the end.
    ///
    /// # Errors
    /// If the target queue accepts no more, the store fails, or the connection breaks.
    ///
    /// # Cancel safety
    /// May be dropped at any time, and called again.
    pub async fn next(&mut self) -> Result<Option<RedriveProgress>, Error> {
        let step = self.steps.message().await;
        let step = step.map_err(|status| self.client.failed(status, self.begun.elapsed()))?;
        let Some(step) = step else {
            return Ok(None);
        };
        self.progress = RedriveProgress {
            redriven: step.redriven,
            skipped_leased: step.skipped_leased,
            seen: step.seen,
            total: step.total,
        };
        Ok(Some(self.progress))
    }

    /// Returns the progress.
    pub fn progress(&self) -> RedriveProgress {
        self.progress
    }
}
