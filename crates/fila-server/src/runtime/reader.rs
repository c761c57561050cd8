//! The threads that read messages back from the store, and drop what takes time to drop.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use fila_core::{Failure, Garbage, Load, LoadRequest, LoadedMessages};
use fila_store::{Engine, ReadError, Shard};
use tracing::error;

use super::judge::Judge;
use super::scheduler::Event;
use super::shards::Shards;

/// How many there are. A read waits for a disk, not for a core.
pub(super) const READERS: usize = 2;

/// What a reader is given.
#[derive(Debug)]
pub(super) enum Errand {
    /// Something to read, and who wants it. A scheduler thread has one load of a key under way at most.
    Load(Load, Sender<Event>),
    /// A failure to judge, and who wants to know.
    Judge(Failure, Sender<Event>),
    /// Something to drop.
    Drop(Vec<Garbage>),
}

/// What readers work with.
#[derive(Debug)]
pub(super) struct Reader<E: Engine> {
    pub(super) shards: Arc<Shards<E::Shard>>,
    pub(super) judge: Arc<Judge>,
}

impl<E: Engine> Reader<E> {
    /// Runs errands as they come, until nobody can send any more.
    pub(super) fn run(&self, errands: &Receiver<Errand>) {
        for errand in errands {
            match errand {
                Errand::Load(load, events) => {
                    let Load {
                        queue,
                        request,
                        token,
                    } = load;
                    let found = match self.shards.of(queue) {
                        Some(shard) => read(&*shard, &request),
                        None => Err(ReadError::Fenced { queue }),
                    };
                    let found = found.unwrap_or_else(|failure| {
                        if !matches!(failure, ReadError::Fenced { .. }) {
                            error!(queue_id = queue.get(), error = %failure, "messages were not read back");
                        }
                        LoadedMessages::Failed(failure)
                    });
                    // A scheduler thread that has stopped wants nothing any more.
                    let _ = events.send(Event::Loaded {
                        queue,
                        token,
                        found,
                    });
                }
                Errand::Judge(failure, events) => {
                    let shard = self.shards.of(failure.queue);
                    self.judge.judge(failure, shard.as_deref(), events);
                }
                Errand::Drop(garbage) => drop(garbage),
            }
        }
    }
}

fn read(shard: &impl Shard, request: &LoadRequest) -> Result<LoadedMessages, ReadError> {
    match request {
        LoadRequest::Backlog { key, after, limit } => {
            let page = shard.backlog(key, *after, *limit)?;
            Ok(LoadedMessages::Backlog(page))
        }
        LoadRequest::Payloads(messages) => Ok(LoadedMessages::Payloads(shard.load(messages)?)),
    }
}
