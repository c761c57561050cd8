//! The durable sides of the queues that are served here, for the threads that read and write.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use fila_store::{QueueId, Shard};
use foldhash::fast::RandomState;

/// All shards by their queues. Changed when queues come and go; read once per round and per load.
#[derive(Debug)]
pub(super) struct Shards<S>(RwLock<HashMap<QueueId, Arc<S>, RandomState>>);

impl<S: Shard> Shards<S> {
    pub(super) fn new() -> Self {
        Self(RwLock::default())
    }

    pub(super) fn add(&self, shard: Arc<S>) {
        let mut shards = self.0.write().unwrap_or_else(PoisonError::into_inner);
        shards.insert(shard.queue(), shard);
    }

    pub(super) fn remove(&self, queue: QueueId) {
        let mut shards = self.0.write().unwrap_or_else(PoisonError::into_inner);
        shards.remove(&queue);
    }

    /// Returns the shard, unless the queue was deleted.
    pub(super) fn of(&self, queue: QueueId) -> Option<Arc<S>> {
        let shards = self.0.read().unwrap_or_else(PoisonError::into_inner);
        shards.get(&queue).cloned()
    }
}
