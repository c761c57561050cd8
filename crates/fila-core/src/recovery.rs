//! The state of a queue in the store, read when the broker opens the queue.
//!
//! Messages stay in the store. The queue needs only their number for each key and the place of the first one. It reads
//! them back when their turn comes, like any backlog.

use std::num::NonZeroU32;

use fila_store::{
    Epoch, FairnessKey, Generation, MessageId, QueueId, QueueName, Remembered, StoredMessage,
    Timestamp,
};

use crate::QueueSettings;
use crate::queue::{Duplicates, KeptLeases, ready_since};

/// The result of the scan of a queue.
#[derive(Debug)]
pub struct Recovery {
    pub(crate) queue: QueueId,
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    pub(crate) definition: QueueSettings,
    pub(crate) keys: Vec<RecoveredKey>,
    pub(crate) duplicates: Duplicates,
    pub(crate) kept: KeptLeases,
    pub(crate) dead_letter_queue: Option<DeadLetterQueue>,
    pub(crate) damaged: u64,
}

/// Where the dead letters of a queue go.
#[derive(Clone, Debug)]
pub(crate) struct DeadLetterQueue {
    /// The queue that takes them, of the same broker.
    pub(crate) to: QueueId,
    /// The name of the queue that they come from.
    pub(crate) from: QueueName,
}

/// The messages of one key that stay in the store.
#[derive(Debug)]
pub(crate) struct RecoveredKey {
    pub(crate) key: FairnessKey,
    pub(crate) weight: NonZeroU32,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// All messages of the key up to this one are in memory, or gone.
    pub(crate) after: MessageId,
    pub(crate) last: MessageId,
    /// When the first of them became ready.
    pub(crate) since: Timestamp,
}

impl Recovery {
    /// Describes an empty queue. Epoch and generation are those of its shard.
    pub fn new(
        queue: QueueId,
        epoch: Epoch,
        generation: Generation,
        definition: QueueSettings,
    ) -> Self {
        Self {
            queue,
            epoch,
            generation,
            definition,
            keys: Vec::new(),
            duplicates: Duplicates::default(),
            kept: KeptLeases::default(),
            dead_letter_queue: None,
            damaged: 0,
        }
    }

    /// Moves messages that are not tried again to another queue of the same broker. `name` is the name of the queue that
    /// is opened here.
    ///
    /// A queue without this retries its messages without end; a queue of dead letters is such a queue.
    pub fn dead_letters(&mut self, to: QueueId, name: QueueName) {
        self.dead_letter_queue = Some(DeadLetterQueue { to, from: name });
    }

    /// Adds a message, in the order of [`Shard::scan`](fila_store::Shard::scan), after all [rows](Self::remembered).
    pub fn message(&mut self, entry: &StoredMessage) {
        let meta = &entry.meta;
        let after = self.kept.last_of(&meta.schedule.fairness_key);
        if entry.id <= after {
            return self.kept.messages.push(entry.clone());
        }
        let bytes = meta.sizes.total();
        match self.keys.last_mut() {
            Some(known) if known.key == meta.schedule.fairness_key => {
                known.weight = meta.schedule.weight;
                known.messages += 1;
                known.bytes += bytes;
                known.last = entry.id;
            }
            _ => self.keys.push(RecoveredKey {
                key: meta.schedule.fairness_key.clone(),
                weight: meta.schedule.weight,
                messages: 1,
                bytes,
                after,
                last: entry.id,
                since: ready_since(meta),
            }),
        }
    }

    /// Adds a deduplication row, of a message, a batch or a lease, from
    /// [`Shard::remembered`](fila_store::Shard::remembered). All rows come before the first [message](Self::message).
    pub fn remembered(&mut self, row: &Remembered) {
        debug_assert!(self.messages() == 0, "rows come before messages");
        if !self.kept.recover(self.epoch, row) {
            self.duplicates.recover(row);
        }
    }

    /// Counts records that cannot be read.
    pub fn damaged(&mut self, records: usize) {
        self.damaged += records as u64;
    }

    /// Returns the number of messages found.
    pub fn messages(&self) -> u64 {
        let stored: u64 = self.keys.iter().map(|key| key.messages).sum();
        stored + self.kept.messages.len() as u64
    }
}
