//! Remembers the batches that are stored already.
//!
//! A batch that was stored as a whole takes one entry here and one row in the store, however many messages it has. Of a
//! batch that was stored in part, each stored message has an entry. An entry is dropped when its time has passed, or as
//! soon as its producer says that it has the answer, which is before it sends much more. So there are about as many
//! entries as batches under way.
//!
//! A copy of a batch can be late: a copy on a connection that its producer has given up may be read after the copy on the
//! next connection was answered. So the queue remembers for each producer below which sequence its batches are answered,
//! for as long as a copy may come, and refuses batches below.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fila_store::{FairnessKey, MessageId, Timestamp};
use foldhash::fast::RandomState;

use super::batch_row::{BatchRow, Part};
use super::duplicates::Owners;
use crate::{BatchId, ProducerId, Refused, Sequence};

#[derive(Debug, Default)]
pub(super) struct Batches {
    known: BTreeMap<BatchKey, RememberedBatch>,
    producers: HashMap<ProducerId, Producer, RandomState>,
    /// When to drop which: every entry at its time, and every producer at its time or before.
    order: BTreeSet<(Timestamp, Due)>,
}

/// Sorts by the batches of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BatchKey {
    producer: ProducerId,
    sequence: Sequence,
    part: Part,
}

#[derive(Clone, Copy, Debug)]
struct RememberedBatch {
    /// The number of messages of the batch.
    size: u32,
    /// The message, or the first one of the batch.
    message: MessageId,
    until: Timestamp,
    /// The fairness key that it counts for: that of the batch's first message.
    owner: u32,
}

#[derive(Clone, Copy, Debug)]
struct Producer {
    answered_below: Sequence,
    /// Until when a copy of one of its batches may come.
    until: Timestamp,
    /// The fairness key that it counts for: that of its first batch.
    owner: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Batch(BatchKey),
    Producer(ProducerId),
}

/// How much of a batch is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// None of it.
    Never,
    /// All its messages are stored, this one first and the others under the ids that follow.
    Whole(MessageId),
    /// Some of its messages are stored.
    InPart,
}

impl Batches {
    /// Returns the number of entries and producers.
    pub(super) fn len(&self) -> usize {
        self.known.len() + self.producers.len()
    }

    /// Returns how much of a batch of `size` messages is stored.
    ///
    /// # Errors
    /// If the batch was answered, or had another size before.
    pub(super) fn find(&self, id: &BatchId, size: usize) -> Result<Sent, Refused> {
        let answered_below = self.answered_below(id.producer).max(id.answered_below);
        if id.sequence < answered_below {
            return Err(Refused::BatchAnswered {
                sequence: id.sequence,
                answered_below,
            });
        }
        let entry = |part| BatchKey {
            producer: id.producer,
            sequence: id.sequence,
            part,
        };
        let all = entry(Part::Whole)..=entry(Part::Message(u32::MAX));
        let Some((entry, known)) = self.known.range(all).next() else {
            return Ok(Sent::Never);
        };
        let before = known.size as usize;
        if before != size {
            return Err(Refused::BatchChanged { before, now: size });
        }
        Ok(match entry.part {
            Part::Whole => Sent::Whole(known.message),
            Part::Message(_) => Sent::InPart,
        })
    }

    /// Returns the message at a place of a batch that was stored in part, if that one was.
    pub(super) fn message(&self, id: &BatchId, place: u32) -> Option<MessageId> {
        let entry = BatchKey {
            producer: id.producer,
            sequence: id.sequence,
            part: Part::Message(place),
        };
        self.known.get(&entry).map(|known| known.message)
    }

    pub(super) fn remember(
        &mut self,
        owners: &mut Owners,
        key: &FairnessKey,
        row: &BatchRow,
        message: MessageId,
        until: Timestamp,
    ) {
        let due = Due::Producer(row.producer);
        let producer = self.producers.entry(row.producer).or_insert_with(|| {
            self.order.insert((until, due));
            Producer {
                answered_below: Sequence::default(),
                until,
                owner: owners.enter(key),
            }
        });
        producer.until = producer.until.max(until);
        self.forget_answered(owners, row.producer, row.answered_below);
        if row.sequence < self.answered_below(row.producer) {
            return;
        }
        let entry = BatchKey {
            producer: row.producer,
            sequence: row.sequence,
            part: row.part,
        };
        // Rows are read back in any order, and that of an earlier copy may have another key.
        let is_later = |known: &RememberedBatch| known.until > until;
        if self.known.get(&entry).is_some_and(is_later) {
            return;
        }
        let size = row.size;
        let known = RememberedBatch {
            size,
            message,
            until,
            owner: owners.enter(key),
        };
        if let Some(before) = self.known.insert(entry, known) {
            owners.leave(before.owner);
            self.order.remove(&(before.until, Due::Batch(entry)));
        }
        self.order.insert((until, Due::Batch(entry)));
    }

    /// Drops the batches of a producer below this one, and refuses them from now on.
    pub(super) fn forget_answered(
        &mut self,
        owners: &mut Owners,
        producer: ProducerId,
        below: Sequence,
    ) {
        // An unknown producer cannot have an earlier batch.
        let Some(known) = self.producers.get_mut(&producer) else {
            return;
        };
        if below <= known.answered_below {
            return;
        }
        let entry = |sequence| BatchKey {
            producer,
            sequence,
            part: Part::Whole,
        };
        let answered = entry(known.answered_below)..entry(below);
        known.answered_below = below;
        while let Some((&entry, known)) = self.known.range(answered.clone()).next() {
            owners.leave(known.owner);
            self.order.remove(&(known.until, Due::Batch(entry)));
            self.known.remove(&entry);
        }
    }

    /// Drops entries and producers whose time is over.
    pub(super) fn forget_expired(&mut self, owners: &mut Owners, now: Timestamp) {
        while let Some(&(moment, due)) = self.order.first() {
            if moment > now {
                break;
            }
            self.order.pop_first();
            match due {
                Due::Batch(entry) => {
                    if let Some(known) = self.known.remove(&entry) {
                        owners.leave(known.owner);
                    }
                }
                Due::Producer(id) => match self.producers.get(&id) {
                    Some(producer) if producer.until > now => {
                        self.order.insert((producer.until, due));
                    }
                    Some(&Producer { owner, .. }) => {
                        owners.leave(owner);
                        self.producers.remove(&id);
                    }
                    None => {}
                },
            }
        }
    }

    fn answered_below(&self, producer: ProducerId) -> Sequence {
        let known = self.producers.get(&producer);
        known.map(|known| known.answered_below).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use fila_store::Epoch;

    use super::*;

    const SIZE: u32 = 3;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn message(counter: u64) -> MessageId {
        MessageId::new(Epoch::FIRST, counter).unwrap()
    }

    fn id(producer: u8, sequence: u64, answered_below: u64) -> BatchId {
        BatchId {
            answered_below: Sequence::new(answered_below),
            ..BatchId::new(ProducerId::new([producer; 16]), Sequence::new(sequence))
        }
    }

    /// The batches of a queue, all of one key.
    #[derive(Default)]
    struct OwnedBatches {
        batches: Batches,
        owners: Owners,
    }

    impl OwnedBatches {
        fn remember(&mut self, id: &BatchId, until: u64) {
            let row = BatchRow::new(id, SIZE, Part::Whole);
            let key = FairnessKey::default();
            let first = message(id.sequence.get());
            self.batches
                .remember(&mut self.owners, &key, &row, first, at(until));
            assert_eq!(self.owners.total() as usize, self.batches.len());
        }

        fn forget_expired(&mut self, now: u64) {
            self.batches.forget_expired(&mut self.owners, at(now));
            assert_eq!(self.owners.total() as usize, self.batches.len());
        }
    }

    fn find(batches: &Batches, id: &BatchId) -> Result<Sent, Refused> {
        batches.find(id, SIZE as usize)
    }

    #[test]
    fn whatever_is_over_first_is_dropped_first() {
        let mut all = OwnedBatches::default();
        for (sequence, until) in [(1, 30), (2, 10), (3, 20)] {
            all.remember(&id(1, sequence, 0), until);
        }
        for (now, left) in [(9, 3), (10, 2), (20, 1), (29, 1)] {
            all.forget_expired(now);
            assert_eq!(all.batches.known.len(), left, "{now}");
            assert_eq!(all.batches.producers.len(), 1);
        }
        all.forget_expired(30);
        assert_eq!((all.batches.len(), all.batches.order.len()), (0, 0));
    }

    #[test]
    fn answered_batches_leave_nothing_but_their_producer() {
        let mut all = OwnedBatches::default();
        all.remember(&id(2, 0, 0), 100);
        for sequence in 0..1000 {
            all.remember(&id(1, sequence, sequence), 100);
            assert_eq!((all.batches.len(), all.batches.order.len()), (4, 4));
        }
        let refused = find(&all.batches, &id(1, 998, 0));
        assert!(
            matches!(refused, Err(Refused::BatchAnswered { .. })),
            "{refused:?}"
        );
        assert_eq!(
            find(&all.batches, &id(1, 999, 0)),
            Ok(Sent::Whole(message(999)))
        );
        assert_eq!(
            find(&all.batches, &id(2, 0, 0)),
            Ok(Sent::Whole(message(0)))
        );
    }

    #[test]
    fn rows_that_are_read_back_leave_as_much_as_there_was() {
        let mut all = OwnedBatches::default();
        let rows: Vec<BatchId> = (0..100)
            .map(|n: u64| id(1, n, n.saturating_sub(3)))
            .collect();
        for id in rows.iter().rev() {
            all.remember(id, 100);
        }
        assert_eq!(all.batches.known.len(), 4);
        all = OwnedBatches::default();
        for id in &rows {
            all.remember(id, 100);
            assert!(all.batches.known.len() <= 4);
        }
    }

    #[test]
    fn an_entry_that_is_remembered_anew_outlives_its_first_time() {
        let mut all = OwnedBatches::default();
        all.remember(&id(1, 1, 0), 10);
        all.remember(&id(1, 1, 0), 20);
        all.forget_expired(15);
        assert_eq!(
            find(&all.batches, &id(1, 1, 0)),
            Ok(Sent::Whole(message(1)))
        );
        all.forget_expired(20);
        assert_eq!((all.batches.len(), all.batches.order.len()), (0, 0));
    }
}
