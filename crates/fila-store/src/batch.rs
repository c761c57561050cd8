//! The changes that one commit makes to one queue.
//!
//! A batch holds at most one operation for each message: it merges the calls for a message as they come. So an engine may
//! apply the operations in any order, and applying a batch twice is the same as once.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use foldhash::fast::RandomState;

use crate::{
    Generation, Locator, MessageId, Meta, Payload, QueueId, RememberedName, StoredMessage,
    Timestamp,
};

/// Changes to one queue that happen together or not at all.
///
/// A batch that is [cleared](Self::clear) and reused for the next commit stops allocating.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    purge: Option<Generation>,
    operations: Vec<Operation>,
    /// Where in `operations` a message's operation is.
    slots: HashMap<MessageId, usize, RandomState>,
    deduplication: HashMap<RememberedName, Remembered, RandomState>,
    bytes: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Put(StoredMessage),
    Adopt(MessageId, Meta, Origin),
    Update(MessageId, Meta),
    Delete(Locator),
}

/// Where a message is before it moves into another queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its queue.
    pub queue: QueueId,
    /// How often that queue had been purged when the message was put.
    pub generation: Generation,
    /// Its position in that queue.
    pub locator: Locator,
}

/// A deduplication row: the message that its name stands for, and until when it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The name.
    pub name: RememberedName,
    /// The message that was accepted under this name.
    pub id: MessageId,
    /// When the name becomes free again.
    pub expires_at: Timestamp,
}

impl Batch {
    /// The most operations in one commit.
    pub const OPERATIONS_MAX: usize = 1 << 20;
    /// The most bytes of payload in one commit.
    pub const BYTES_MAX: usize = 256 << 20;

    /// Returns a batch that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a message. This replaces an earlier operation on the same id in this batch.
    pub fn put(&mut self, id: MessageId, mut meta: Meta, payload: Payload) {
        meta.sizes = payload.sizes();
        self.bytes += carried(&meta);
        let payload = Some(payload);
        self.replace(id, Operation::Put(StoredMessage { id, meta, payload }));
    }

    /// Adds a message with the payload of another message, which an earlier commit has stored. This replaces an earlier
    /// operation on the same id in this batch.
    ///
    /// The engine copies the payload when it commits the batch; the payload need not be in memory before. Together with the
    /// [deletion](Self::delete) of the other message, in the batch of its queue and the same commit, this moves a message:
    /// exactly one of the two exists at any time. `meta` says how large the payload is.
    ///
    /// A repeated commit finds the origin gone, and keeps the payload that it copied the first time. If the origin was gone
    /// from the beginning, or is damaged, the message is added without a payload, and every read reports it as damaged.
    pub fn adopt(&mut self, id: MessageId, meta: Meta, origin: Origin) {
        self.bytes += carried(&meta);
        self.replace(id, Operation::Adopt(id, meta, origin));
    }

    /// Replaces the metadata of a message that is stored, or that this batch puts. Its payload does not change.
    ///
    /// The message must exist, under the same fairness key. `meta` replaces all fields, except the sizes of a message that
    /// this batch puts. A message that this batch deletes stays deleted.
    pub fn update(&mut self, id: MessageId, meta: Meta) {
        match self.slots.entry(id) {
            Slot::Vacant(slot) => {
                slot.insert(self.operations.len());
                self.operations.push(Operation::Update(id, meta));
            }
            Slot::Occupied(slot) => match &mut self.operations[*slot.get()] {
                Operation::Put(StoredMessage { meta: known, .. })
                | Operation::Adopt(_, known, _) => {
                    *known = Meta {
                        sizes: known.sizes,
                        ..meta
                    };
                }
                Operation::Update(_, known) => *known = meta,
                Operation::Delete(_) => {}
            },
        }
    }

    /// Removes a message, if it exists. This replaces an earlier operation on the message in this batch.
    pub fn delete(&mut self, locator: Locator) {
        self.replace(locator.id, Operation::Delete(locator));
    }

    /// Remembers until `expires_at` that `name` stands for the message `id`.
    pub fn remember(
        &mut self,
        name: impl Into<RememberedName>,
        id: MessageId,
        expires_at: Timestamp,
    ) {
        let name = name.into();
        let remembered = Remembered {
            name: name.clone(),
            id,
            expires_at,
        };
        self.deduplication.insert(name, remembered);
    }

    /// Empties the queue, before anything else in this batch happens: messages and deduplication ids.
    ///
    /// `to` is the generation after the [present one](crate::Shard::generation). Because the batch names it, a repeated
    /// commit purges once.
    pub fn purge(&mut self, to: Generation) {
        self.purge = Some(to);
    }

    /// Returns how many operations there are, including the purge and the deduplication ids.
    pub fn len(&self) -> usize {
        self.operations.len() + self.deduplication.len() + usize::from(self.purge.is_some())
    }

    /// Returns the bytes of payload in the messages that were put or adopted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tells whether committing it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes everything, and keeps the memory for the next commit.
    pub fn clear(&mut self) {
        self.purge = None;
        self.operations.clear();
        self.slots.clear();
        self.deduplication.clear();
        self.bytes = 0;
    }

    /// Removes everything, keeps the memory for the next commit, and returns the messages that were put or adopted, in
    /// order. Adopted messages come without a payload.
    ///
    /// A caller that keeps stored messages in memory needs no second copy while the commit runs.
    pub fn take_puts(&mut self) -> impl Iterator<Item = StoredMessage> {
        self.purge = None;
        self.slots.clear();
        self.deduplication.clear();
        self.bytes = 0;
        self.operations
            .drain(..)
            .filter_map(|operation| match operation {
                Operation::Put(message) => Some(message),
                Operation::Adopt(id, meta, _) => Some(StoredMessage {
                    id,
                    meta,
                    payload: None,
                }),
                Operation::Update(..) | Operation::Delete(_) => None,
            })
    }

    pub(crate) fn purged_to(&self) -> Option<Generation> {
        self.purge
    }

    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    pub(crate) fn remembered(&self) -> impl Iterator<Item = &Remembered> {
        self.deduplication.values()
    }

    fn replace(&mut self, id: MessageId, operation: Operation) {
        match self.slots.entry(id) {
            Slot::Vacant(slot) => {
                slot.insert(self.operations.len());
                self.operations.push(operation);
            }
            Slot::Occupied(slot) => {
                let replaced = std::mem::replace(&mut self.operations[*slot.get()], operation);
                self.bytes -= match &replaced {
                    Operation::Put(StoredMessage { meta, .. }) | Operation::Adopt(_, meta, _) => {
                        carried(meta)
                    }
                    Operation::Update(..) | Operation::Delete(_) => 0,
                };
            }
        }
    }
}

fn carried(meta: &Meta) -> usize {
    meta.sizes.total() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, FairnessKey};

    fn id(counter: u64) -> MessageId {
        MessageId::new(Epoch::FIRST, counter).unwrap()
    }

    fn meta() -> Meta {
        Meta::new(FairnessKey::new("a").unwrap(), Timestamp::from_millis(1))
    }

    fn payload(body: &'static str) -> Payload {
        Payload::new(Vec::new(), body).unwrap()
    }

    fn locator(counter: u64) -> Locator {
        Locator {
            fairness_key: FairnessKey::new("a").unwrap(),
            id: id(counter),
        }
    }

    #[test]
    fn an_update_of_a_message_in_the_batch_becomes_part_of_its_put() {
        let mut batch = Batch::new();
        batch.put(id(1), meta(), payload("four"));
        let mut retried = meta();
        retried.attempts = 3;
        batch.update(id(1), retried);
        let [Operation::Put(StoredMessage { meta, .. })] = batch.operations() else {
            panic!("one put: {batch:?}");
        };
        assert_eq!((meta.attempts, meta.sizes.body), (3, 4));
    }

    #[test]
    fn a_delete_wins_over_what_came_before_and_over_later_updates() {
        let mut batch = Batch::new();
        batch.put(id(1), meta(), payload("four"));
        batch.delete(locator(1));
        batch.update(id(1), meta());
        assert!(matches!(batch.operations(), [Operation::Delete(_)]));
        assert_eq!(batch.bytes(), 0, "what is not put is not counted");
    }

    #[test]
    fn messages_are_taken_back_in_order_and_leave_nothing() {
        let mut batch = Batch::new();
        for counter in [2, 1, 3] {
            batch.put(id(counter), meta(), payload("four"));
        }
        batch.delete(locator(1));
        batch.purge(Generation::new(1));
        let taken: Vec<_> = batch.take_puts().map(|it| it.id.counter()).collect();
        assert_eq!(taken, [2, 3]);
        assert!(batch.is_empty());
        assert_eq!(batch.bytes(), 0);
    }

    #[test]
    fn a_cleared_batch_changes_nothing() {
        let mut batch = Batch::new();
        batch.put(id(1), meta(), payload("four"));
        batch.remember(
            RememberedName::new("d").unwrap(),
            id(1),
            Timestamp::from_millis(9),
        );
        batch.purge(Generation::new(1));
        assert_eq!((batch.len(), batch.bytes()), (3, 4));
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!((batch.bytes(), batch.purged_to()), (0, None));
    }
}
