//! The commit threads: they store rounds, in the order in which their scheduler thread has sealed them.
//!
//! A round is staged (written), then settled (synced to the disk). While one thread settles the staged rounds, the
//! other one stages the next rounds. One settle then covers all of them: the settling thread does it if it is still in
//! its loop, otherwise the staging thread. So one thread always listens, a single round is stored by the thread that
//! took it, and under load each sync covers all rounds that arrived during the sync before. Without syncs, one thread
//! is enough.
//!
//! If a queue was deleted in the meantime, the round is stored without the changes of that queue. After the store has
//! failed once, nothing is written to it any more.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use fila_core::{Committed, Round};
use fila_store::{Batch, CommitError, Durability, Engine, QueueId, Shard};
use tracing::error;

use crate::metrics::Metrics;
use crate::runtime::queues::registry::Registry;
use crate::runtime::status::Status;
use crate::runtime::threads::scheduler::Event;

/// Returns how many threads store the rounds of one scheduler thread.
pub(crate) fn threads(durability: Durability) -> usize {
    match durability {
        Durability::Fsync => 2,
        Durability::Os | Durability::Memory => 1,
    }
}

/// The state that the commit threads of one scheduler thread share.
#[derive(Debug)]
pub(crate) struct Committer<E: Engine> {
    pub(crate) engine: Arc<E>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) status: Arc<Status>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Sender<Event>,
    /// The thread that holds the lock takes the next round.
    pub(crate) rounds: Mutex<Receiver<Round>>,
    pub(crate) staged: Mutex<StagedRounds>,
}

/// Rounds that are staged.
#[derive(Debug, Default)]
pub(crate) struct StagedRounds {
    rounds: Vec<StagedRound>,
    /// Whether a thread is settling. That thread also settles all rounds that are added.
    is_settling: bool,
}

#[derive(Debug)]
struct StagedRound {
    began: Instant,
    operations: usize,
    outcome: StageOutcome,
}

#[derive(Debug)]
enum StageOutcome {
    /// Written. Settling decides on the outcome.
    Staged {
        round: Round,
        fenced: Vec<QueueId>,
    },
    Over(Committed),
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Engine> Committer<E> {
    /// Stores rounds as they arrive, until the scheduler thread drops its sender.
    pub(crate) fn run(&self) {
        let _report = PanicReport(&self.events);
        while let Some(is_mine) = self.stage_next() {
            while is_mine && let Some(staged) = self.take_staged() {
                let committed = self.settle(staged);
                if self.events.send(Event::Committed(committed)).is_err() {
                    return;
                }
            }
        }
    }

    /// Stages the next round, and tells whether this thread has to settle it. Returns `None` after the last round.
    fn stage_next(&self) -> Option<bool> {
        let rounds = hold(&self.rounds);
        let round = rounds.recv().ok()?;
        let staged = self.stage(round);
        let mut staged_rounds = hold(&self.staged);
        staged_rounds.rounds.push(staged);
        Some(!std::mem::replace(&mut staged_rounds.is_settling, true))
    }

    /// Takes the staged rounds. If there are none, this thread stops settling.
    fn take_staged(&self) -> Option<Vec<StagedRound>> {
        let mut staged_rounds = hold(&self.staged);
        staged_rounds.is_settling = !staged_rounds.rounds.is_empty();
        staged_rounds
            .is_settling
            .then(|| std::mem::take(&mut staged_rounds.rounds))
    }

    fn stage(&self, round: Round) -> StagedRound {
        let began = Instant::now();
        let operations = round.batches.iter().map(|(_, batch)| batch.len()).sum();
        StagedRound {
            began,
            operations,
            outcome: self.staged(round),
        }
    }

    fn staged(&self, round: Round) -> StageOutcome {
        let mut fenced = Vec::new();
        let mut shards = Vec::with_capacity(round.batches.len());
        for (queue, _) in &round.batches {
            let shard = self.registry.shard(*queue);
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
                .filter_map(|((_, batch), shard)| Some((concrete::<E>(shard.as_deref()?), batch)))
                .collect();
            if batches.is_empty() {
                return StageOutcome::Staged { round, fenced };
            }
            match self.engine.stage(&batches) {
                Ok(()) => return StageOutcome::Staged { round, fenced },
                Err(CommitError::Fenced { queue }) if !fenced.contains(&queue) => {
                    fenced.push(queue);
                }
                Err(error) => return StageOutcome::Over(self.failed(&error)),
            }
        }
    }

    /// Settles rounds, and returns the outcome of each.
    fn settle(&self, staged: Vec<StagedRound>) -> Vec<Committed> {
        let is_staged =
            |staged: &StagedRound| matches!(staged.outcome, StageOutcome::Staged { .. });
        let settled = if staged.iter().any(is_staged) {
            self.engine.settle()
        } else {
            Ok(())
        };
        let failed = settled.map_err(|error| self.failed(&error)).err();
        let committed = staged.into_iter().map(|staged| {
            let took = staged.began.elapsed();
            self.metrics.committed(took, staged.operations);
            match (staged.outcome, &failed) {
                (StageOutcome::Over(committed), _) => committed,
                (StageOutcome::Staged { .. }, Some(_)) => Committed::Unknown,
                (StageOutcome::Staged { round, fenced }, None) => {
                    Committed::Stored { round, fenced }
                }
            }
        });
        committed.collect()
    }

    fn failed(&self, failure: &CommitError) -> Committed {
        let source = std::error::Error::source(failure).map(ToString::to_string);
        let source = source.unwrap_or_default();
        error!(error = %failure, source, "commit failed");
        self.status.fail("the store takes no more writes");
        match failure {
            CommitError::Unknown(_) => Committed::Unknown,
            CommitError::Fenced { .. } | CommitError::Unreadable(_) | CommitError::Rejected(_) => {
                Committed::Failed
            }
        }
    }
}

/// Returns a shard as its concrete type.
fn concrete<E: Engine>(shard: &dyn Shard) -> &E::Shard {
    let shard: &dyn Any = shard;
    shard
        .downcast_ref()
        .expect("the registry has shards of this engine only")
}

/// Reports all rounds of the scheduler thread as unknown if a commit thread panics.
struct PanicReport<'a>(&'a Sender<Event>);

impl Drop for PanicReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let unknown = std::iter::repeat_with(|| Committed::Unknown);
            let all = unknown.take(fila_core::ROUNDS_MAX).collect();
            // The scheduler thread may have stopped.
            let _ = self.0.send(Event::Committed(all));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fila_store::{
        Accident, FairnessKey, MemoryDisk, MemoryEngine, MessageId, Meta, Payload, QueueName,
        Timestamp,
    };

    use super::*;
    use crate::runtime::queues::registry::QueueEntry;
    use crate::runtime::status::State;

    type Committing = Committer<MemoryEngine>;

    /// Returns a committer, the channel to it, and its events.
    fn committer(disk: &MemoryDisk) -> (Committing, Sender<Round>, Receiver<Event>) {
        let (rounds, rounds_to_commit) = crossbeam_channel::unbounded();
        let (events, events_to_take) = crossbeam_channel::unbounded();
        let committer = Committer {
            engine: Arc::new(MemoryEngine::open(disk).unwrap()),
            registry: Arc::default(),
            status: Arc::new(Status::new()),
            metrics: Arc::new(Metrics::new()),
            events,
            rounds: Mutex::new(rounds_to_commit),
            staged: Mutex::default(),
        };
        (committer, rounds, events_to_take)
    }

    impl Committing {
        fn store(&self, round: Round) -> Committed {
            let staged = self.stage(round);
            self.settle(vec![staged]).pop().unwrap()
        }
    }

    fn queue(committer: &Committing, name: &str) -> QueueId {
        let name = QueueName::parse(name).unwrap();
        let queue = committer.engine.create_queue(&name, Bytes::new()).unwrap();
        let shard = committer.engine.claim(queue.id).unwrap();
        let entry = QueueEntry {
            id: queue.id,
            name: queue.name,
            version: queue.version,
            definition: Arc::default(),
            source: None,
            thread: 0,
            figures: Arc::default(),
            hooks: None,
        };
        committer.registry.add(Arc::new(entry), Arc::new(shard));
        queue.id
    }

    fn round(committer: &Committing, queues: &[QueueId]) -> Round {
        let key = FairnessKey::new("a").unwrap();
        let meta = Meta::new(key, Timestamp::from_millis(1));
        let batches = queues.iter().map(|&queue| {
            let epoch = committer.registry.shard(queue).unwrap().epoch();
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
        let (committer, ..) = committer(&MemoryDisk::default());
        let queues = ["a", "b", "c"].map(|name| queue(&committer, name));
        let round = round(&committer, &queues);
        committer.engine.delete_queue(queues[1]).unwrap();
        committer.engine.delete_queue(queues[2]).unwrap();
        committer.registry.release_shard(queues[2]);
        let Committed::Stored { fenced, .. } = committer.store(round) else {
            panic!("the round of a sound store is stored");
        };
        assert_eq!(fenced, [queues[2], queues[1]]);
        assert_eq!(committer.status.state(), State::Starting);
    }

    #[test]
    fn a_failed_write_takes_the_server_out_of_service() {
        let disk = MemoryDisk::default();
        let (committer, ..) = committer(&disk);
        let queues = [queue(&committer, "a")];
        disk.fail_next_write(Accident::Lost);
        let first = committer.store(round(&committer, &queues));
        assert!(matches!(first, Committed::Unknown));
        assert_eq!(committer.status.state(), State::Failed);
        let second = committer.store(round(&committer, &queues));
        assert!(matches!(second, Committed::Failed));
    }

    #[test]
    fn two_threads_tell_what_became_of_rounds_in_their_order() {
        const ROUNDS: u64 = 2_000;
        let disk = MemoryDisk::default();
        let (committer, rounds, events) = committer(&disk);
        let queue = queue(&committer, "a");
        for number in 0..ROUNDS {
            let mut round = round(&committer, &[queue]);
            let epoch = committer.registry.shard(queue).unwrap().epoch();
            let id = MessageId::new(epoch, number + 1).unwrap();
            let meta = Meta::new(FairnessKey::new("a").unwrap(), Timestamp::from_millis(1));
            round.batches[0].1 = Batch::new();
            let payload = Payload::new(Vec::new(), "x").unwrap();
            round.batches[0].1.put(id, meta, payload);
            rounds.send(round).unwrap();
        }
        drop(rounds);
        std::thread::scope(|scope| {
            for _ in 0..threads(Durability::Fsync) {
                scope.spawn(|| committer.run());
            }
        });
        let mut ids = Vec::new();
        for event in events.try_iter() {
            let Event::Committed(committed) = event else {
                panic!("it has nothing else to say");
            };
            for committed in committed {
                let Committed::Stored { mut round, .. } = committed else {
                    panic!("the store is sound");
                };
                ids.extend(round.batches[0].1.take_puts().map(|it| it.id));
            }
        }
        assert_eq!(ids.len(), ROUNDS as usize);
        assert!(ids.is_sorted());
    }
}
