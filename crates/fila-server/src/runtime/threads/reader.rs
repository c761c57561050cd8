//! The reader threads: they read messages back from the store, and drop values that take long to drop.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use fila_core::{Failure, Garbage, Load, LoadRequest, LoadedMessages};
use fila_store::{ReadError, Shard};
use tracing::error;

use crate::metrics::Metrics;
use crate::runtime::queues::registry::Registry;
use crate::runtime::threads::events::{Event, EventSender};
use crate::runtime::threads::failure_hooks::FailureHooks;

/// The number of reader threads. A read waits for a disk, not for a core.
pub(crate) const READERS: usize = 2;

/// Work that a scheduler thread must not wait for.
#[derive(Debug)]
pub(crate) enum BlockingJob {
    /// Reads messages, and sends them to the scheduler thread. A scheduler thread has at most one load of a key under
    /// way.
    Load(Load, EventSender),
    /// Asks a hook about a failure, and sends the decision to the scheduler thread.
    Failure(Failure, EventSender),
    /// Drops values.
    Drop(Vec<Garbage>),
}

/// A reader thread.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) registry: Arc<Registry>,
    pub(crate) failure_hooks: FailureHooks,
    pub(crate) metrics: Arc<Metrics>,
}

impl Reader {
    /// Runs jobs as they come, until all scheduler threads have ended.
    pub(crate) fn run(&self, jobs: &Receiver<BlockingJob>) {
        for job in jobs {
            match job {
                BlockingJob::Load(load, events) => {
                    let Load {
                        queue,
                        request,
                        token,
                    } = load;
                    let found = match self.registry.shard(queue) {
                        Some(shard) => read(&*shard, &request),
                        None => Err(ReadError::Fenced { queue }),
                    };
                    let found = found.unwrap_or_else(|failure| {
                        if !matches!(failure, ReadError::Fenced { .. }) {
                            self.metrics.read_failed();
                            let error = causes(&failure);
                            error!(
                                queue_id = queue.get(),
                                error, "messages were not read back; the broker tries again"
                            );
                        }
                        LoadedMessages::Failed(failure)
                    });
                    events.add(Event::Loaded {
                        queue,
                        token,
                        found,
                    });
                    events.call();
                }
                BlockingJob::Failure(failure, events) => {
                    self.failure_hooks.ask(failure, events);
                }
                BlockingJob::Drop(garbage) => drop(garbage),
            }
        }
    }
}

/// Returns an error with its causes, which name the file.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

fn read(shard: &dyn Shard, request: &LoadRequest) -> Result<LoadedMessages, ReadError> {
    match request {
        LoadRequest::Backlog { key, after, limit } => {
            let page = shard.backlog(key, *after, *limit)?;
            Ok(LoadedMessages::Backlog(page))
        }
        LoadRequest::Payloads(messages) => Ok(LoadedMessages::Payloads(shard.load(messages)?)),
    }
}
