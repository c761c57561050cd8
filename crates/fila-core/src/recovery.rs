//! The state of a queue in the store, read when the broker opens the queue.
//!
//! Messages stay in the store. The queue needs only their number for each key and the place of the first one. It reads
//! them back when their turn comes, like any backlog.

use std::num::NonZeroU32;

use fila_store::{
    Epoch, FairnessKey, Generation, GroupWeights, MessageId, QueueId, QueueName, Remembered,
    StoredMessage, Timestamp,
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
    /// The last weights of its groups that messages of the key name.
    pub(crate) group_weights: GroupWeights,
    /// The last message of the key that names any. Of two keys in a group the later message decides.
    pub(crate) groups_weighed: Option<MessageId>,
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
        let group_weights = meta.schedule.group_weights;
        let groups_weighed = (!group_weights.is_empty()).then_some(entry.id);
        match self.keys.last_mut() {
            Some(known) if known.key == meta.schedule.fairness_key => {
                known.weight = meta.schedule.weight;
                known.group_weights.follow(&group_weights);
                known.groups_weighed = groups_weighed.or(known.groups_weighed);
                known.messages += 1;
                known.bytes += bytes;
                known.last = entry.id;
            }
            _ => self.keys.push(RecoveredKey {
                key: meta.schedule.fairness_key.clone(),
                weight: meta.schedule.weight,
                group_weights,
                groups_weighed,
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

    /// Returns the weights of groups that messages name, in the order in which the messages came.
    pub(crate) fn group_weights(&self) -> Vec<(FairnessKey, GroupWeights)> {
        let stored = self.keys.iter().filter_map(|found| {
            let message = found.groups_weighed?;
            Some((message, found.key.clone(), found.group_weights))
        });
        let kept = self.kept.messages.iter().filter_map(|message| {
            let schedule = &message.meta.schedule;
            let is_named = !schedule.group_weights.is_empty();
            is_named.then(|| {
                (
                    message.id,
                    schedule.fairness_key.clone(),
                    schedule.group_weights,
                )
            })
        });
        let mut all: Vec<_> = stored.chain(kept).collect();
        all.sort_by_key(|(message, ..)| *message);
        all.into_iter()
            .map(|(_, key, weights)| (key, weights))
            .collect()
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

#[cfg(test)]
mod tests {
    use fila_store::Meta;

    use super::*;

    fn entry(key: &'static str, number: u64, weights: [u32; 3]) -> StoredMessage {
        let key = FairnessKey::new(key).unwrap();
        let mut meta = Meta::new(key, Timestamp::from_millis(number));
        for (level, weight) in weights.into_iter().enumerate() {
            if let Some(weight) = NonZeroU32::new(weight) {
                meta.schedule.group_weights.set(level, weight);
            }
        }
        StoredMessage {
            id: MessageId::from_number(number),
            meta,
            payload: None,
        }
    }

    #[test]
    fn the_last_weights_that_a_key_has_named_for_its_groups_are_found_again() {
        let mut recovery = Recovery::new(
            QueueId::new(1),
            Epoch::FIRST,
            Generation::new(0),
            QueueSettings::default(),
        );
        for entry in [
            entry("a/b/c", 1, [3, 0, 0]),
            entry("a/b/c", 4, [5, 2, 0]),
            entry("a/b/c", 5, [0, 7, 0]),
            entry("a/b/c", 6, [0, 0, 0]),
            entry("flat", 2, [0, 0, 0]),
        ] {
            recovery.message(&entry);
        }
        let [nested, flat] = &recovery.keys[..] else {
            panic!("{:?}", recovery.keys)
        };
        let weights: Vec<_> = nested.group_weights.iter().collect();
        let number = |number| NonZeroU32::new(number).unwrap();
        assert_eq!(weights, [(0, number(5)), (1, number(7))]);
        assert_eq!(nested.groups_weighed, Some(MessageId::from_number(5)));
        assert!(flat.group_weights.is_empty() && flat.groups_weighed.is_none());
    }
}
