//! The thread that stores rounds: one for each scheduler thread, one round at a time.
//!
//! A queue that was deleted while its changes were on their way does not take the others of the round with it: the
//! round is stored without it. A store that fails is not written to again.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use fila_core::{Committed, Round};
use fila_store::{Batch, CommitError, Engine, QueueId};
use tracing::error;

use super::scheduler::Event;
use super::shards::Shards;
use super::status::Status;
use crate::metrics::Metrics;

/// What a commit thread works with.
#[derive(Debug)]
pub(super) struct Committer<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) shards: Arc<Shards<E::Shard>>,
    pub(super) status: Arc<Status>,
    pub(super) metrics: Arc<Metrics>,
}

impl<E: Engine> Committer<E> {
    /// Stores rounds as they come, until the scheduler thread hangs up.
    pub(super) fn run(&self, rounds: &Receiver<Round>, events: &Sender<Event>) {
        for round in rounds {
            let began = Instant::now();
            let operations: usize = round.batches.iter().map(|(_, batch)| batch.len()).sum();
            let committed = self.store(round);
            self.metrics.committed(began.elapsed(), operations);
            if events.send(Event::Committed(committed)).is_err() {
                return;
            }
        }
    }

    fn store(&self, round: Round) -> Committed {
        let mut fenced = Vec::new();
        let mut shards = Vec::with_capacity(round.batches.len());
        for (queue, _) in &round.batches {
            let shard = self.shards.of(*queue);
            if shard.is_none() {
                fenced.push(*queue);
            }
            shards.push(shard);
        }
        loop {
            let batches: Vec<(&E::Shard, &Batch)> = round
                .batches
                .iter()
                .zip(&shards)
                .filter(|((queue, _), _)| !fenced.contains(queue))
                .filter_map(|((_, batch), shard)| Some((shard.as_deref()?, batch)))
                .collect();
            if batches.is_empty() {
                return Committed::Stored { round, fenced };
            }
            match self.engine.commit(&batches) {
                Ok(()) => return Committed::Stored { round, fenced },
                Err(CommitError::Fenced { queue }) if !fenced.contains(&queue) => {
                    fenced.push(queue);
                }
                Err(error) => return self.failed(&error, &fenced),
            }
        }
    }

    fn failed(&self, failure: &CommitError, fenced: &[QueueId]) -> Committed {
        let source = std::error::Error::source(failure).map(ToString::to_string);
        let source = source.unwrap_or_default();
        error!(error = %failure, source, fenced = fenced.len(), "commit failed");
        self.status.fail("the store takes no more writes");
        match failure {
            CommitError::Unknown(_) => Committed::Unknown,
            _ => Committed::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fila_store::{
        Accident, FairnessKey, MemoryDisk, MemoryEngine, MessageId, Meta, Payload, QueueName,
        Shard, Timestamp,
    };

    use super::super::status::State;
    use super::*;

    type Committing = Committer<MemoryEngine>;

    fn committer(disk: &MemoryDisk) -> Committing {
        Committer {
            engine: Arc::new(MemoryEngine::open(disk).unwrap()),
            shards: Arc::new(Shards::new()),
            status: Arc::new(Status::new()),
            metrics: Arc::new(Metrics::new()),
        }
    }

    fn queue(committer: &Committing, name: &str) -> QueueId {
        let name = QueueName::parse(name).unwrap();
        let queue = committer.engine.create_queue(&name, Bytes::new()).unwrap();
        let shard = committer.engine.claim(queue.id).unwrap();
        committer.shards.add(Arc::new(shard));
        queue.id
    }

    fn round(committer: &Committing, queues: &[QueueId]) -> Round {
        let key = FairnessKey::new("a").unwrap();
        let meta = Meta::new(key, Timestamp::from_millis(1));
        let batches = queues.iter().map(|&queue| {
            let epoch = committer.shards.of(queue).unwrap().epoch();
            let mut batch = Batch::new();
            let payload = Payload::new(Vec::new(), "x").unwrap();
            batch.put(MessageId::new(epoch, 1).unwrap(), meta.clone(), payload);
            (queue, batch)
        });
        Round {
            batches: batches.collect(),
        }
    }

    #[test]
    fn a_deleted_queue_does_not_take_its_neighbours_with_it() {
        let committer = committer(&MemoryDisk::default());
        let queues = ["a", "b", "c"].map(|name| queue(&committer, name));
        let round = round(&committer, &queues);
        committer.engine.delete_queue(queues[1]).unwrap();
        committer.engine.delete_queue(queues[2]).unwrap();
        committer.shards.remove(queues[2]);
        let Committed::Stored { fenced, .. } = committer.store(round) else {
            panic!("the round of a sound store is stored");
        };
        assert_eq!(fenced, [queues[2], queues[1]]);
        assert_eq!(committer.status.state(), State::Starting);
    }

    #[test]
    fn a_failed_write_takes_the_server_out_of_service() {
        let disk = MemoryDisk::default();
        let committer = committer(&disk);
        let queues = [queue(&committer, "a")];
        disk.fail_next_write(Accident::Lost);
        let first = committer.store(round(&committer, &queues));
        assert!(matches!(first, Committed::Unknown));
        assert_eq!(committer.status.state(), State::Failed);
        let second = committer.store(round(&committer, &queues));
        assert!(matches!(second, Committed::Failed));
    }
}
