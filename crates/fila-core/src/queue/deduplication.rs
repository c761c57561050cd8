//! Which messages with deduplication ids are stored already.
//!
//! A producer that does not know whether a message was stored sends it again under the same id. All ids of the queue's
//! window are in memory, up to a limit, and in the store beside their messages. One round stores a message and its id.

use std::collections::{HashMap, VecDeque};

use fila_store::{DeduplicationId, MessageId, Timestamp};
use foldhash::fast::RandomState;

#[derive(Debug, Default)]
pub(super) struct Deduplication {
    known: HashMap<DeduplicationId, RememberedId, RandomState>,
    /// In the order in which they came. If the window was shortened, some are kept longer than they count.
    order: VecDeque<(Timestamp, DeduplicationId)>,
}

#[derive(Clone, Copy, Debug)]
struct RememberedId {
    message: MessageId,
    until: Timestamp,
}

impl Deduplication {
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the message that this id stands for at `now`.
    pub(super) fn find(&self, id: &DeduplicationId, now: Timestamp) -> Option<MessageId> {
        let known = self.known.get(id).filter(|known| known.until > now)?;
        Some(known.message)
    }

    pub(super) fn remember(&mut self, id: DeduplicationId, message: MessageId, until: Timestamp) {
        self.known
            .insert(id.clone(), RememberedId { message, until });
        self.order.push_back((until, id));
    }

    /// Drops ids whose time is over.
    pub(super) fn forget_expired(&mut self, now: Timestamp) {
        while let Some((until, _)) = self.order.front() {
            if *until > now {
                break;
            }
            let Some((until, id)) = self.order.pop_front() else {
                break;
            };
            // It may have been remembered anew since.
            if self
                .known
                .get(&id)
                .is_some_and(|known| known.until <= until)
            {
                self.known.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fila_store::Epoch;

    use super::*;

    fn id(name: &'static str) -> DeduplicationId {
        DeduplicationId::new(name).unwrap()
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn message(counter: u64) -> MessageId {
        MessageId::new(Epoch::FIRST, counter).unwrap()
    }

    #[test]
    fn an_id_counts_until_its_time_and_no_longer() {
        let mut known = Deduplication::default();
        known.remember(id("a"), message(1), at(10));
        assert_eq!(known.find(&id("a"), at(9)), Some(message(1)));
        assert_eq!(known.find(&id("a"), at(10)), None);
        known.forget_expired(at(10));
        assert_eq!(known.len(), 0);
    }

    #[test]
    fn an_id_that_is_remembered_anew_outlives_its_first_time() {
        let mut known = Deduplication::default();
        known.remember(id("a"), message(1), at(10));
        known.remember(id("a"), message(2), at(20));
        known.forget_expired(at(15));
        assert_eq!(known.find(&id("a"), at(15)), Some(message(2)));
        known.forget_expired(at(20));
        assert_eq!(known.len(), 0);
    }

    #[test]
    fn a_shorter_window_counts_at_once() {
        let mut known = Deduplication::default();
        known.remember(id("long"), message(1), at(100));
        known.remember(id("short"), message(2), at(10));
        known.forget_expired(at(10));
        assert_eq!(known.find(&id("short"), at(10)), None);
        assert_eq!(known.find(&id("long"), at(10)), Some(message(1)));
    }
}
