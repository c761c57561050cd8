//! Helpers of the tests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardqueue::{Config, JobContext, JobError, JobHandle, Outcome, ShardExecutor};
use tokio::sync::Semaphore;

/// A second, in which times are counted here.
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns an executor whose keys are all in one shard, which runs one job at a time.
pub(crate) fn one_shard(config: Config) -> ShardExecutor {
    ShardExecutor::new(Config {
        shards: 1,
        concurrency: 1,
        ..config
    })
    .unwrap()
}

/// Returns a configuration without jitter: waits are 1, 2, 4, 8, … seconds, up to 20.
pub(crate) fn plain() -> Config {
    let cap = 20 * SECOND;
    Config::default().with_retry_policy(shardqueue::ExponentialBackoff::new(SECOND, cap, 8))
}

/// What happened, in order.
#[derive(Debug)]
pub(crate) struct Journal<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Journal<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static> Journal<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn note(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl<T: Clone + Send + 'static> Journal<T> {
    /// Returns a job that notes an entry.
    pub(crate) fn noting(
        &self,
        entry: T,
    ) -> impl FnMut(JobContext) -> std::future::Ready<()> + use<T> {
        let journal = self.clone();
        move |_| {
            journal.note(entry.clone());
            std::future::ready(())
        }
    }
}

/// Keeps jobs from going on until they may.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets this many jobs continue.
    pub(crate) fn open(&self, jobs: usize) {
        self.0.add_permits(jobs);
    }

    pub(crate) async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

/// Submits a job that runs until the gate is open, and waits until it runs.
pub(crate) async fn occupy(executor: &ShardExecutor, key: &str) -> (Gate, JobHandle) {
    let (gate, begun) = (Gate::closed(), Gate::closed());
    let (inner, told) = (gate.clone(), begun.clone());
    let job = move |_| {
        let (gate, begun) = (inner.clone(), told.clone());
        async move {
            begun.open(1);
            gate.pass().await;
        }
    };
    let handle = executor.submit(key, job).await.unwrap();
    begun.pass().await;
    (gate, handle)
}

/// A job that always fails.
pub(crate) fn failing(
    text: &'static str,
) -> impl FnMut(JobContext) -> std::future::Ready<Result<(), JobError>> {
    move |_| std::future::ready(Err(text.into()))
}

/// Panics with a payload, if there is one.
pub(crate) async fn panics(payload: impl Send + 'static) {
    if size_of_val(&payload) < usize::MAX {
        std::panic::panic_any(payload);
    }
}

/// A job that does nothing.
pub(crate) fn idle(_: JobContext) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Returns how a job failed.
pub(crate) fn failure(outcome: &Outcome) -> &shardqueue::JobFailure {
    outcome
        .failure()
        .unwrap_or_else(|| panic!("{outcome:?} is no failure"))
}
