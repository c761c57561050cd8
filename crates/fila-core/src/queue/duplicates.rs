//! The messages and batches that a queue remembers, and how many of them belong to which fairness key.

use std::collections::HashMap;

use fila_store::{DeduplicationId, FairnessKey, MessageId, Remembered, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::batch_row::BatchRow;
use super::batches::{Batches, Sent};
use super::deduplication::Deduplication;
use super::row_name::RowName;
use crate::{BatchId, DeduplicationScope, Refused};

/// All that a queue remembers of messages that were sent already.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    owners: Owners,
    ids: Deduplication,
    batches: Batches,
}

impl Duplicates {
    /// Adds a row that was read back. [`sort`](Self::sort) follows the last one.
    pub(crate) fn recover(&mut self, row: &Remembered) {
        // An earlier version has written a row without a key, which expires by itself.
        let Some(RowName { scope, key, id }) = RowName::decode(&row.name) else {
            return;
        };
        let (message, until) = (row.id, row.expires_at);
        match BatchRow::decode(&id) {
            Some(batch) => self.remember_batch(&key, &batch, message, until),
            None => self.remember_id(scope, &key, id, message, until),
        }
    }

    /// Puts ids that were read back in the order in which they expire.
    pub(super) fn sort(&mut self) {
        self.ids.sort();
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.ids.len() + self.batches.len()
    }

    /// Returns how many entries a key has.
    pub(super) fn held(&self, key: &FairnessKey) -> u64 {
        self.owners.held(key)
    }

    /// Returns the message that this id stands for.
    pub(super) fn find_id(
        &self,
        scope: DeduplicationScope,
        key: &FairnessKey,
        id: &DeduplicationId,
        now: Timestamp,
    ) -> Option<MessageId> {
        self.ids.find(scope, self.owners.find(key), id, now)
    }

    pub(super) fn remember_id(
        &mut self,
        scope: DeduplicationScope,
        key: &FairnessKey,
        id: DeduplicationId,
        message: MessageId,
        until: Timestamp,
    ) {
        let owners = &mut self.owners;
        self.ids.remember(owners, (scope, key), id, message, until);
    }

    /// Returns how much of a batch is stored, and forgets the batches that its producer has the answers of.
    ///
    /// # Errors
    /// If the batch was answered, or had another size before. Nothing is forgotten then.
    pub(super) fn find_batch(&mut self, id: &BatchId, size: usize) -> Result<Sent, Refused> {
        let sent = self.batches.find(id, size)?;
        self.batches
            .forget_answered(&mut self.owners, id.producer, id.answered_below);
        Ok(sent)
    }

    /// Returns the message at a place of a batch that was stored in part, if that one was.
    pub(super) fn batch_message(&self, id: &BatchId, place: u32) -> Option<MessageId> {
        self.batches.message(id, place)
    }

    pub(super) fn remember_batch(
        &mut self,
        key: &FairnessKey,
        row: &BatchRow,
        message: MessageId,
        until: Timestamp,
    ) {
        self.batches
            .remember(&mut self.owners, key, row, message, until);
    }

    /// Drops the ids whose time is over.
    pub(super) fn forget_expired_ids(&mut self, now: Timestamp) {
        self.ids.forget_expired(&mut self.owners, now);
    }

    /// Drops everything whose time is over.
    pub(super) fn forget_expired(&mut self, now: Timestamp) {
        self.ids.forget_expired(&mut self.owners, now);
        self.batches.forget_expired(&mut self.owners, now);
    }
}

/// How many entries each fairness key has. A key without entries takes no memory.
#[derive(Debug, Default)]
pub(super) struct Owners {
    numbers: HashMap<FairnessKey, u32, RandomState>,
    owners: Slab<Owner>,
}

#[derive(Debug)]
struct Owner {
    key: FairnessKey,
    held: u64,
}

impl Owners {
    /// Returns the number of a key that has entries. It has this number until the last of them is gone.
    fn find(&self, key: &FairnessKey) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    fn held(&self, key: &FairnessKey) -> u64 {
        self.find(key)
            .map_or(0, |number| self.owners[number as usize].held)
    }

    /// Counts an entry of a key, and returns the key's number.
    pub(super) fn enter(&mut self, key: &FairnessKey) -> u32 {
        let number = self.find(key).unwrap_or_else(|| {
            let key = key.clone();
            let number = self.owners.insert(Owner {
                key: key.clone(),
                held: 0,
            }) as u32;
            self.numbers.insert(key, number);
            number
        });
        self.owners[number as usize].held += 1;
        number
    }

    /// Counts an entry less.
    pub(super) fn leave(&mut self, number: u32) {
        let owner = &mut self.owners[number as usize];
        owner.held -= 1;
        if owner.held == 0 {
            let Owner { key, .. } = self.owners.remove(number as usize);
            self.numbers.remove(&key);
        }
    }

    #[cfg(test)]
    pub(super) fn total(&self) -> u64 {
        assert_eq!(self.numbers.len(), self.owners.len());
        self.owners.iter().map(|(_, owner)| owner.held).sum()
    }
}

#[cfg(test)]
mod tests {
    use fila_store::Epoch;

    use super::*;
    use crate::queue::batch_row::Part;
    use crate::{ProducerId, Sequence};

    fn key(name: &'static str) -> FairnessKey {
        FairnessKey::new(name).unwrap()
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn every_entry_belongs_to_a_key_until_it_is_dropped() {
        let mut known = Duplicates::default();
        let message = MessageId::new(Epoch::FIRST, 1).unwrap();
        let id = |name: &'static str| DeduplicationId::new(name).unwrap();
        let scope = DeduplicationScope::Key;
        known.remember_id(scope, &key("a"), id("x"), message, at(10));
        known.remember_id(scope, &key("b"), id("x"), message, at(20));
        // Anew: it replaces the first.
        known.remember_id(scope, &key("a"), id("x"), message, at(30));
        let batch = |sequence, below| BatchId {
            answered_below: Sequence::new(below),
            ..BatchId::new(ProducerId::new([1; 16]), Sequence::new(sequence))
        };
        for sequence in 0..3 {
            let row = BatchRow::new(&batch(sequence, 0), 1, Part::Whole);
            known.remember_batch(&key("b"), &row, message, at(40));
        }
        let held = |known: &Duplicates| (known.held(&key("a")), known.held(&key("b")));
        assert_eq!(held(&known), (1, 5));
        assert_eq!(known.owners.total() as usize, known.len());
        known.find_batch(&batch(3, 2), 1).unwrap();
        assert_eq!(held(&known), (1, 3), "two were answered");
        known.forget_expired(at(20));
        assert_eq!(held(&known), (1, 2), "the producer and its last batch");
        known.forget_expired(at(40));
        assert_eq!((held(&known), known.len()), ((0, 0), 0));
        assert_eq!((known.owners.total(), known.owners.owners.len()), (0, 0));
    }
}
