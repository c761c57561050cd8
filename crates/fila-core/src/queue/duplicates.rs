//! The messages and batches that a queue remembers, and how many of them belong to which fairness key or group of keys.

use std::collections::HashMap;

use fila_store::{DeduplicationId, FairnessKey, MessageId, Remembered, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::batch_row::BatchRow;
use super::batches::{Batches, Sent};
use super::deduplication::Deduplication;
use super::row_name::RowName;
use crate::{BatchId, DEPTH_MAX, DeduplicationScope, KeySeparator, Refused};

/// All that a queue remembers of messages that were sent already.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    owners: Owners,
    ids: Deduplication,
    batches: Batches,
}

impl Duplicates {
    /// Returns an empty one, for keys with this separator.
    pub(super) fn new(separator: Option<KeySeparator>) -> Self {
        Self {
            owners: Owners {
                separator,
                ..Owners::default()
            },
            ..Self::default()
        }
    }

    /// Counts the entries for the groups that another separator says. Takes time in proportion to the keys that have any.
    pub(super) fn renest(&mut self, separator: Option<KeySeparator>) {
        self.owners.renest(separator);
    }

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

    /// Returns how many entries a key and each of its groups have, from the top down. Those without entries are left out.
    pub(super) fn levels(&self, key: &FairnessKey) -> impl Iterator<Item = (&FairnessKey, u64)> {
        self.owners.levels(key)
    }

    /// Returns the message that this id stands for.
    pub(super) fn find_id(
        &self,
        scope: DeduplicationScope,
        key: &FairnessKey,
        id: &DeduplicationId,
        now: Timestamp,
    ) -> Option<MessageId> {
        let owner = self.owners.find(key.as_bytes());
        self.ids.find(scope, owner, id, now)
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

/// How many entries each fairness key and each group has. One without entries takes no memory.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Says which groups a key is in.
    separator: Option<KeySeparator>,
    numbers: HashMap<FairnessKey, u32, RandomState>,
    owners: Slab<Owner>,
}

/// A key, or a group, or both.
#[derive(Debug)]
struct Owner {
    path: FairnessKey,
    parent: Option<u32>,
    /// The entries of exactly this key.
    own: u64,
    /// The same and those of its members.
    all: u64,
}

impl Owners {
    /// Returns the number of a key or group that has entries. It has this number until the last of them is gone.
    fn find(&self, path: &[u8]) -> Option<u32> {
        self.numbers.get(path).copied()
    }

    fn levels(&self, key: &FairnessKey) -> impl Iterator<Item = (&FairnessKey, u64)> {
        let number = self.find(key.as_bytes());
        let own = number.map(|number| &self.owners[number as usize]);
        let mut groups = [None; DEPTH_MAX - 1];
        let lowest = match own {
            // A key that bears the name of a group is a member of that group.
            Some(own) if own.all > own.own => number,
            Some(own) => own.parent,
            None => self.lowest_group(key),
        };
        let above = std::iter::successors(lowest, |&group| self.owners[group as usize].parent);
        for (place, group) in groups.iter_mut().rev().zip(above) {
            *place = Some(&self.owners[group as usize]);
        }
        let groups = groups.into_iter().flatten();
        let groups = groups.map(|group| (&group.path, group.all));
        groups.chain(own.map(|own| (&own.path, own.own)))
    }

    /// Returns the group with entries that a key without entries would be in, or the one above that.
    fn lowest_group(&self, key: &FairnessKey) -> Option<u32> {
        let groups = self.separator?.groups(key.as_bytes());
        groups.filter_map(|group| self.find(group)).last()
    }

    /// Counts an entry of a key, and returns the key's number.
    pub(super) fn enter(&mut self, key: &FairnessKey) -> u32 {
        let number = self.find_or_add(key);
        self.owners[number as usize].own += 1;
        self.count(number, 1);
        number
    }

    fn find_or_add(&mut self, path: &FairnessKey) -> u32 {
        if let Some(number) = self.find(path.as_bytes()) {
            return number;
        }
        let parent = self.parent_of(path);
        let number = self.owners.insert(Owner {
            path: path.clone(),
            parent,
            own: 0,
            all: 0,
        }) as u32;
        self.numbers.insert(path.clone(), number);
        number
    }

    /// Returns the group that a key or group is in, made if there is none.
    fn parent_of(&mut self, path: &FairnessKey) -> Option<u32> {
        let parent = self.separator?.parent(path.as_bytes())?;
        if let Some(number) = self.find(parent) {
            return Some(number);
        }
        let parent = FairnessKey::new(parent.to_vec());
        let parent = parent.expect("it is shorter than the path that it is a part of");
        Some(self.find_or_add(&parent))
    }

    /// Counts entries of a key for itself and for its groups.
    fn count(&mut self, number: u32, entries: u64) {
        let mut next = Some(number);
        while let Some(number) = next {
            let owner = &mut self.owners[number as usize];
            owner.all += entries;
            next = owner.parent;
        }
    }

    /// Counts an entry less.
    pub(super) fn leave(&mut self, number: u32) {
        self.owners[number as usize].own -= 1;
        let mut next = Some(number);
        while let Some(number) = next {
            let owner = &mut self.owners[number as usize];
            owner.all -= 1;
            next = owner.parent;
            if owner.all == 0 {
                let Owner { path, .. } = self.owners.remove(number as usize);
                self.numbers.remove(&path);
            }
        }
    }

    fn renest(&mut self, separator: Option<KeySeparator>) {
        if self.separator == separator {
            return;
        }
        self.separator = separator;
        // Groups of the earlier separator go. Keys keep their numbers, which their entries name.
        let numbers = &mut self.numbers;
        self.owners.retain(|_, owner| {
            (owner.parent, owner.all) = (None, 0);
            if owner.own == 0 {
                numbers.remove(&owner.path);
            }
            owner.own > 0
        });
        let keys: Vec<u32> = self.owners.iter().map(|(key, _)| key as u32).collect();
        for &key in &keys {
            let path = self.owners[key as usize].path.clone();
            self.owners[key as usize].parent = self.parent_of(&path);
        }
        for key in keys {
            self.count(key, self.owners[key as usize].own);
        }
    }

    #[cfg(test)]
    pub(super) fn total(&self) -> u64 {
        assert_eq!(self.numbers.len(), self.owners.len());
        self.owners.iter().map(|(_, owner)| owner.own).sum()
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
        let held_by =
            |known: &Duplicates, name| known.levels(&key(name)).map(|(_, held)| held).sum();
        let held =
            |known: &Duplicates| -> (u64, u64) { (held_by(known, "a"), held_by(known, "b")) };
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
