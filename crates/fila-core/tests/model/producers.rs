//! Producers that send batches under ids, and send them again until they have the answer.
//!
//! An answer may be lost on its way, a crash may come before it, and a copy of a batch may come late: after its
//! producer has said that it was answered.

use std::collections::BTreeMap;
use std::time::Duration;

use fila_core::{BatchId, ProducerId, Sequence};
use fila_store::{DeduplicationId, FairnessKey, RememberedName};

use super::{Chance, Simulation};

#[derive(Debug)]
pub(super) struct Producer {
    id: ProducerId,
    next: u64,
    /// The batches without an answer.
    open: BTreeMap<u64, Vec<Shape>>,
    /// The batches with an answer.
    answered: BTreeMap<u64, Vec<Shape>>,
}

/// The properties of a message that stay the same when it is sent again.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) deduplication_id: Option<DeduplicationId>,
    /// Whether it is refused, always.
    pub(super) is_invalid: bool,
}

impl Shape {
    pub(super) fn some(chance: &mut Chance) -> Vec<Self> {
        let count = 1 + chance.below(5);
        let shapes = (0..count).map(|_| {
            let id = format!("d{}", chance.below(6));
            Self {
                deduplication_id: chance.one_in(4).then(|| DeduplicationId::new(id).unwrap()),
                is_invalid: chance.one_in(12),
            }
        });
        shapes.collect()
    }
}

/// Whether a batch may be refused for being late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    InTime,
    Late,
}

/// One message of a batch.
pub(super) type Place = (ProducerId, Sequence, u32);

impl Producer {
    pub(super) fn new(number: u8) -> Self {
        Self {
            id: ProducerId::new([number; 16]),
            next: 0,
            open: BTreeMap::new(),
            answered: BTreeMap::new(),
        }
    }

    fn batch_id(&self, sequence: u64) -> BatchId {
        let below = self.open.keys().next().copied().unwrap_or(self.next);
        BatchId {
            answered_below: Sequence::new(below),
            ..BatchId::new(self.id, Sequence::new(sequence))
        }
    }
}

impl Simulation {
    fn some_producer(&mut self) -> usize {
        self.chance.below(self.producers.len() as u64) as usize
    }

    pub(super) fn send_batch(&mut self) {
        let number = self.some_producer();
        let shapes = Shape::some(&mut self.chance);
        let producer = &mut self.producers[number];
        let sequence = producer.next;
        producer.next += 1;
        producer.open.insert(sequence, shapes.clone());
        let id = producer.batch_id(sequence);
        self.send_copy(id, &shapes);
    }

    pub(super) fn send_batch_again(&mut self) {
        let number = self.some_producer();
        let open = &self.producers[number].open;
        let nth = self.chance.below(open.len().max(1) as u64) as usize;
        let Some((&sequence, shapes)) = open.iter().nth(nth) else {
            return;
        };
        let shapes = shapes.clone();
        let id = self.producers[number].batch_id(sequence);
        self.send_copy(id, &shapes);
    }

    pub(super) fn send_open_batches_again(&mut self) {
        for number in 0..self.producers.len() {
            for (sequence, shapes) in self.producers[number].open.clone() {
                let id = self.producers[number].batch_id(sequence);
                self.send_copy(id, &shapes);
            }
        }
    }

    fn send_copy(&mut self, id: BatchId, shapes: &[Shape]) {
        let remember_max = Duration::from_millis(1 + self.chance.below(2000));
        let remember_max = self.chance.one_in(3).then_some(remember_max);
        let id = BatchId { remember_max, ..id };
        self.send(Some((id, Copies::InTime)), shapes);
    }

    /// Sends a copy of a batch that was answered, if all of it would still be remembered.
    pub(super) fn send_late_copy(&mut self) {
        let now = self.shell.now;
        let number = self.some_producer();
        let producer = &self.producers[number];
        let nth = self.chance.below(producer.answered.len().max(1) as u64) as usize;
        let Some((&sequence, shapes)) = producer.answered.iter().nth(nth) else {
            return;
        };
        let id = BatchId::new(producer.id, Sequence::new(sequence));
        let is_remembered = |place: u32| {
            let known = self.batches.get(&(id.producer, id.sequence, place));
            known.is_some_and(|(_, until)| *until > now)
        };
        if (0..shapes.len() as u32).all(is_remembered) {
            let shapes = shapes.clone();
            self.send(Some((id, Copies::Late)), &shapes);
        }
    }

    /// Lets a producer have an answer, unless that gets lost.
    pub(super) fn deliver_answer(&mut self, id: &BatchId) {
        if self.loses_answers && self.chance.one_in(3) {
            return;
        }
        let mut producers = self.producers.iter_mut();
        let producer = producers.find(|known| known.id == id.producer).unwrap();
        let sequence = id.sequence.get();
        if let Some(shapes) = producer.open.remove(&sequence) {
            producer.answered.insert(sequence, shapes);
        }
    }
}

/// A row of the store that is about messages sent already.
#[derive(Debug)]
pub(super) enum Row {
    /// The places of a batch. The row names the message at the first of them.
    Batch(Vec<Place>),
    Id {
        /// The key that it counts for, unless that is the whole queue.
        scope: Option<FairnessKey>,
        /// The key of the message.
        key: FairnessKey,
        id: DeduplicationId,
    },
}

impl Row {
    pub(super) fn read(name: &RememberedName) -> Self {
        let (mark, rest) = name.as_bytes().split_first().unwrap();
        let (length, rest) = rest.split_first_chunk().unwrap();
        let (key, rest) = rest.split_at(u16::from_be_bytes(*length).into());
        let key = FairnessKey::new(key.to_vec()).unwrap();
        if let (0xfd, [0xff, rest @ ..]) = (*mark, rest) {
            return Self::Batch(places(rest));
        }
        Self::Id {
            scope: (*mark == 0xfe).then(|| key.clone()),
            key,
            id: DeduplicationId::new(rest.to_vec()).unwrap(),
        }
    }
}

fn places(rest: &[u8]) -> Vec<Place> {
    let (producer, rest) = rest.split_first_chunk().unwrap();
    let (sequence, rest) = rest.split_first_chunk().unwrap();
    let (_, rest) = rest.split_first_chunk::<8>().unwrap();
    let (size, rest) = rest.split_first_chunk().unwrap();
    let producer = ProducerId::new(*producer);
    let sequence = Sequence::new(u64::from_be_bytes(*sequence));
    let places = match rest {
        [] => 0..u32::from_be_bytes(*size),
        place => {
            let place = u32::from_be_bytes(place.try_into().unwrap());
            place..place + 1
        }
    };
    places.map(|place| (producer, sequence, place)).collect()
}
