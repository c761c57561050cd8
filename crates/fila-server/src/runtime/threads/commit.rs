//! The commit threads: they store rounds, in the order in which their scheduler thread has sealed them.
//!
//! A round is staged (written), then settled (synced to the disk). While one thread settles the staged rounds, the
//! other one stages the next rounds. One settle then covers all of them: the settling thread does it if it is still in
//! its loop, otherwise the staging thread. So a single round is stored by the thread that took it, the other one sleeps
//! on, and under load each sync covers all rounds that arrived during the sync before. Without syncs, one thread is
//! enough, and a scheduler stores a small round itself if no round is under way.
//!
//! If a queue was deleted in the meantime, the round is stored without the changes of that queue. After the store has
//! failed once, nothing is written to it any more.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fila_core::{Committed, Round};
use fila_store::{Batch, CommitError, Durability, Engine, QueueId, Shard};
use tracing::error;

use crate::metrics::Metrics;
use crate::runtime::queues::registry::Registry;
use crate::runtime::status::Status;
use crate::runtime::threads::events::{Event, EventSender};
use crate::runtime::threads::round_queue::RoundQueue;

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
    pub(crate) events: EventSender,
    pub(crate) rounds: Arc<RoundQueue>,
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

/// What became of a settle.
#[derive(Clone, Copy, Debug)]
enum Settled {
    Done,
    Unknown,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Engine> Committer<E> {
    /// Stores rounds as they arrive, until the scheduler thread drops its sender.
    pub(crate) fn run(&self) {
        let _attendance = self.rounds.attend();
        let _report = PanicReport(&self.events);
        while let Some(is_mine) = self.stage_next() {
            if is_mine {
                self.settle_staged();
            }
        }
    }

    /// Settles rounds until none is staged, and tells the scheduler. Takes the scheduler's turn only after that: other
    /// rounds must not wait for it.
    fn settle_staged(&self) {
        let mut is_told = true;
        while let Some(staged) = self.take_staged() {
            if !is_told {
                self.events.summon();
            }
            let committed = self.settle(staged);
            self.events.add(Event::Committed(committed));
            is_told = false;
        }
        if !is_told {
            self.events.call();
        }
    }

    /// Stages the next round, and tells whether this thread has to settle it. Returns `None` after the last round.
    fn stage_next(&self) -> Option<bool> {
        let (round, _staging) = self.rounds.next()?;
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
        let settled = self.settle_engine(&staged);
        let outcome = |staged| self.outcome(staged, settled);
        staged.into_iter().map(outcome).collect()
    }

    fn settle_engine(&self, staged: &[StagedRound]) -> Settled {
        let is_staged =
            |staged: &StagedRound| matches!(staged.outcome, StageOutcome::Staged { .. });
        if !staged.iter().any(is_staged) {
            return Settled::Done;
        }
        match self.engine.settle() {
            Ok(()) => Settled::Done,
            Err(error) => {
                self.failed(&error);
                Settled::Unknown
            }
        }
    }

    fn outcome(&self, staged: StagedRound, settled: Settled) -> Committed {
        let took = staged.began.elapsed();
        self.metrics.committed(took, staged.operations);
        match (staged.outcome, settled) {
            (StageOutcome::Over(committed), _) => committed,
            (StageOutcome::Staged { .. }, Settled::Unknown) => Committed::Unknown,
            (StageOutcome::Staged { round, fenced }, Settled::Done) => {
                Committed::Stored { round, fenced }
            }
        }
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

/// Stores rounds on the thread of the caller.
pub(crate) trait RoundStore: Send + Sync {
    /// Stores a round while no other round is under way.
    fn store(&self, round: Round) -> Committed;

    /// Tells whether that may take more than a moment.
    fn may_wait(&self) -> bool;
}

impl<E: Engine> RoundStore for Committer<E> {
    fn store(&self, round: Round) -> Committed {
        let staged = self.stage(round);
        let settled = self.settle_engine(std::slice::from_ref(&staged));
        self.outcome(staged, settled)
    }

    fn may_wait(&self) -> bool {
        self.engine.may_wait()
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
struct PanicReport<'a>(&'a EventSender);

impl Drop for PanicReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let unknown = std::iter::repeat_with(|| Committed::Unknown);
            let all = unknown.take(fila_core::ROUNDS_MAX).collect();
            self.0.add(Event::Committed(all));
            // This thread can take no turn.
            self.0.summon();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use crossbeam_channel::Receiver;
    use fila_store::{
        Accident, FairnessKey, MemoryDisk, MemoryEngine, MessageId, Meta, Payload, QueueName,
        Timestamp,
    };

    use super::*;
    use crate::runtime::queues::registry::QueueEntry;
    use crate::runtime::status::State;
    use crate::runtime::threads::round_queue::RoundSender;
    use crate::runtime::threads::seat::Seat;

    type Committing = Committer<MemoryEngine>;

    /// Returns a committer, the channel to it, and its events.
    fn committer(disk: &MemoryDisk) -> (Committing, RoundSender, Receiver<Event>) {
        let (rounds, rounds_to_commit) = RoundQueue::new(threads(Durability::Fsync));
        let (events, events_to_take) = EventSender::new(Arc::new(Seat::new()));
        let committer = Committer {
            engine: Arc::new(MemoryEngine::open(disk).unwrap()),
            registry: Arc::default(),
            status: Arc::new(Status::new()),
            metrics: Arc::new(Metrics::new()),
            events,
            rounds: rounds_to_commit,
            staged: Mutex::default(),
        };
        (committer, rounds, events_to_take)
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
