//! A queue of durable jobs: submitting, and running them.

use std::future::Future;
use std::time::Duration;

use fila_sdk::{Client, ErrorCode, Message, MessageId, Ordering, Queue, QueueSettings, Report};

use crate::registry::NAME_HEADER;
use crate::{DurableError, DurableJob, JobRegistry};

/// A queue of durable jobs on a broker.
#[derive(Clone, Debug)]
pub struct DurableQueue {
    queue: Queue,
}

impl DurableQueue {
    /// Opens a queue, and creates it with these settings and the ordering `key` if there is none of this name.
    ///
    /// The settings say how often and when failed jobs are attempted again, and how much the queue holds.
    ///
    /// # Errors
    /// If there is such a queue that does not keep the order of its keys, if a setting is out of range, or if the broker
    /// does not answer.
    pub async fn open(
        client: &Client,
        name: &str,
        settings: QueueSettings,
    ) -> Result<Self, DurableError> {
        let admin = client.admin();
        let created = admin.create_queue(name, settings.ordering(Ordering::Key));
        let info = match created.await {
            Err(error) if error.code() == Some(ErrorCode::QueueExists) => admin.queue(name).await?,
            created => created?,
        };
        if info.settings.ordering != Some(Ordering::Key) {
            return Err(DurableError::NotOrdered {
                queue: name.to_owned(),
            });
        }
        Ok(Self {
            queue: client.queue(name),
        })
    }

    /// Submits a job: it runs after all jobs of its key that were submitted before. Returns its id when the broker has
    /// stored it.
    ///
    /// Submissions that run at the same time share the broker's work, and are stored in any order. For an order among the
    /// jobs of one key, await each before the next.
    ///
    /// # Errors
    /// If the arguments cannot be written, the broker refuses the job, or does not answer in time. After
    /// [`NoAnswer`](fila_sdk::Error::NoAnswer) the job may or may not be stored.
    ///
    /// # Cancel safety
    /// As [`Queue::send`]: after the first poll the job may be stored although the future is dropped.
    pub async fn submit<J: DurableJob>(
        &self,
        key: impl Into<String>,
        job: &J,
    ) -> Result<MessageId, DurableError> {
        let arguments = serde_json::to_vec(job).map_err(|source| DurableError::Encode {
            name: J::NAME,
            source,
        })?;
        let message = Message::new(arguments)
            .key(key)
            .header(NAME_HEADER, J::NAME);
        Ok(self.queue.send(message).await?.id)
    }

    /// Returns a worker that runs the jobs with these handlers.
    pub fn worker(&self, registry: JobRegistry) -> DurableWorker {
        DurableWorker {
            queue: self.queue.clone(),
            registry,
            concurrency: 8,
            grace: Duration::from_secs(30),
        }
    }
}

/// A worker of a queue of durable jobs. Any number of them may run, in any number of processes.
#[derive(Clone, Debug)]
#[must_use = "a worker does nothing until it runs"]
pub struct DurableWorker {
    queue: Queue,
    registry: JobRegistry,
    concurrency: usize,
    grace: Duration,
}

impl DurableWorker {
    /// Sets how many jobs it runs at once, each of another key; 8 by default, at least 1.
    pub const fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs;
        self
    }

    /// Sets how long jobs may take to end when the worker stops; 30 s by default. The broker gives the rest to other
    /// workers.
    pub const fn grace(mut self, time: Duration) -> Self {
        self.grace = time;
        self
    }

    /// Runs jobs until `stop` completes, and waits for those under way.
    ///
    /// # Errors
    /// If the broker refuses the subscription, as for a queue that has been deleted.
    pub async fn run_until<S>(self, stop: impl Future<Output = S>) -> Result<Report, DurableError> {
        let registry = self.registry;
        let worker = self.queue.worker();
        let worker = worker.concurrency(self.concurrency).grace(self.grace);
        let report = worker.run_until(stop, move |received| registry.attempt(received));
        Ok(report.await?)
    }
}
