//! Which messages with deduplication ids are stored already.
//!
//! A producer that does not know whether a message was stored sends it again under the same id. All ids of the queue's
//! window are in memory, up to a limit, and in the store beside their messages. One round stores a message and its id.
//!
//! # Scope
//! An id counts for its fairness key, or for the whole queue: the queue's setting says which when the message is stored.
//! An id that counts for the whole queue has a key as well. So when the setting changes from the queue to the key, the
//! ids of other keys suppress nothing from then on. When it changes from the key to the queue, the earlier ids go on to
//! count for their keys alone.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use fila_store::{DeduplicationId, FairnessKey, MessageId, Timestamp};
use foldhash::fast::RandomState;

use super::duplicates::Owners;
use crate::DeduplicationScope;

#[derive(Debug, Default)]
pub(super) struct Deduplication {
    known: HashMap<ScopedId, RememberedId, RandomState>,
    /// How many of them count for the whole queue.
    of_queue: usize,
    /// In the order in which they came. If the window was shortened, some are kept longer than they count.
    order: VecDeque<(Timestamp, ScopedId)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ScopedId {
    /// The key for which it counts; `None` if that is the whole queue.
    owner: Option<u32>,
    id: DeduplicationId,
}

#[derive(Clone, Copy, Debug)]
struct RememberedId {
    message: MessageId,
    until: Timestamp,
    /// The key of the message.
    owner: u32,
}

impl Deduplication {
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the message that this id of a key stands for at `now`. `owner` is the key, if it has any entry.
    pub(super) fn find(
        &self,
        scope: DeduplicationScope,
        owner: Option<u32>,
        id: &DeduplicationId,
        now: Timestamp,
    ) -> Option<MessageId> {
        let find = |owner| {
            let id = id.clone();
            let known = self.known.get(&ScopedId { owner, id })?;
            (known.until > now).then_some(known)
        };
        let is_seen = |known: &&RememberedId| match scope {
            DeduplicationScope::Key => Some(known.owner) == owner,
            DeduplicationScope::Queue => true,
        };
        let of_key = owner
            .filter(|_| self.of_queue < self.known.len())
            .and_then(|owner| find(Some(owner)));
        let of_queue = || match self.of_queue {
            0 => None,
            _ => find(None).filter(is_seen),
        };
        of_key.or_else(of_queue).map(|known| known.message)
    }

    pub(super) fn remember(
        &mut self,
        owners: &mut Owners,
        (scope, key): (DeduplicationScope, &FairnessKey),
        id: DeduplicationId,
        message: MessageId,
        until: Timestamp,
    ) {
        let owner = owners.enter(key);
        let id = ScopedId {
            owner: match scope {
                DeduplicationScope::Key => Some(owner),
                DeduplicationScope::Queue => None,
            },
            id,
        };
        let known = RememberedId {
            message,
            until,
            owner,
        };
        match self.known.entry(id.clone()) {
            Entry::Vacant(free) => {
                self.of_queue += usize::from(id.owner.is_none());
                free.insert(known);
            }
            // Rows are read back in any order, and that of an earlier message may have another key.
            Entry::Occupied(later) if later.get().until > until => return owners.leave(owner),
            Entry::Occupied(mut earlier) => {
                owners.leave(earlier.get().owner);
                earlier.insert(known);
            }
        }
        self.order.push_back((until, id));
    }

    /// Puts ids that were remembered in any order in the order in which they expire.
    pub(super) fn sort(&mut self) {
        let order = self.order.make_contiguous();
        order.sort_by_key(|(until, _)| *until);
    }

    /// Drops ids whose time is over.
    pub(super) fn forget_expired(&mut self, owners: &mut Owners, now: Timestamp) {
        while let Some((until, _)) = self.order.front() {
            if *until > now {
                break;
            }
            let Some((until, id)) = self.order.pop_front() else {
                break;
            };
            // It may have been remembered anew since.
            if let Some(known) = self.known.get(&id)
                && known.until <= until
            {
                owners.leave(known.owner);
                self.of_queue -= usize::from(id.owner.is_none());
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

    /// The ids of a queue, and the keys `a` and `b`, which have an entry all the time.
    struct Ids {
        known: Deduplication,
        owners: Owners,
        keys: [(FairnessKey, u32); 2],
    }

    const A: usize = 0;
    const B: usize = 1;

    impl Ids {
        fn new() -> Self {
            let mut owners = Owners::default();
            let keys = ["a", "b"].map(|name| {
                let key = FairnessKey::new(name).unwrap();
                let number = owners.enter(&key);
                (key, number)
            });
            Self {
                known: Deduplication::default(),
                owners,
                keys,
            }
        }

        fn remember(
            &mut self,
            scope: DeduplicationScope,
            key: usize,
            name: &'static str,
            (message_id, until): (u64, u64),
        ) {
            let of = (scope, &self.keys[key].0);
            self.known.remember(
                &mut self.owners,
                of,
                id(name),
                message(message_id),
                at(until),
            );
        }

        fn find(
            &self,
            scope: DeduplicationScope,
            key: usize,
            name: &'static str,
            now: u64,
        ) -> Option<MessageId> {
            self.known
                .find(scope, Some(self.keys[key].1), &id(name), at(now))
        }

        fn forget_expired(&mut self, now: u64) {
            self.known.forget_expired(&mut self.owners, at(now));
        }
    }

    use DeduplicationScope::{Key, Queue};

    #[test]
    fn an_id_counts_until_its_time_and_no_longer() {
        for scope in [Key, Queue] {
            let mut ids = Ids::new();
            ids.remember(scope, A, "a", (1, 10));
            assert_eq!(ids.find(scope, A, "a", 9), Some(message(1)));
            assert_eq!(ids.find(scope, A, "a", 10), None);
            ids.forget_expired(10);
            assert_eq!((ids.known.len(), ids.known.of_queue), (0, 0));
        }
    }

    #[test]
    fn an_id_that_is_remembered_anew_outlives_its_first_time() {
        for scope in [Key, Queue] {
            let mut ids = Ids::new();
            ids.remember(scope, A, "a", (1, 10));
            ids.remember(scope, A, "a", (2, 20));
            ids.forget_expired(15);
            assert_eq!(ids.find(scope, A, "a", 15), Some(message(2)));
            ids.forget_expired(20);
            assert_eq!((ids.known.len(), ids.known.of_queue), (0, 0));
            assert_eq!(ids.owners.total(), 2);
        }
    }

    #[test]
    fn a_shorter_window_counts_at_once() {
        let mut ids = Ids::new();
        ids.remember(Key, A, "long", (1, 100));
        ids.remember(Key, A, "short", (2, 10));
        ids.forget_expired(10);
        assert_eq!(ids.find(Key, A, "short", 10), None);
        assert_eq!(ids.find(Key, A, "long", 10), Some(message(1)));
    }

    #[test]
    fn ids_that_were_read_back_expire_in_the_order_of_their_times() {
        let mut ids = Ids::new();
        ids.remember(Key, A, "long", (1, 100));
        ids.remember(Key, A, "short", (2, 10));
        // The row of a message before it, under another key.
        ids.remember(Queue, A, "twice", (4, 100));
        ids.remember(Queue, B, "twice", (3, 10));
        ids.known.sort();
        ids.forget_expired(10);
        assert_eq!((ids.known.len(), ids.known.of_queue), (2, 1));
        assert_eq!(ids.find(Key, A, "long", 10), Some(message(1)));
        assert_eq!(ids.find(Queue, B, "twice", 10), Some(message(4)));
        assert_eq!(ids.owners.total(), 4);
    }

    #[test]
    fn a_changed_scope_never_shows_the_ids_of_one_key_to_another_that_it_should_not_see() {
        let mut ids = Ids::new();
        ids.remember(Key, A, "x", (1, 100));
        assert_eq!(ids.find(Key, A, "x", 0), Some(message(1)));
        assert_eq!(ids.find(Key, B, "x", 0), None);
        // From the key to the queue: `x` goes on to count for its key alone.
        assert_eq!(ids.find(Queue, A, "x", 0), Some(message(1)));
        assert_eq!(ids.find(Queue, B, "x", 0), None);
        ids.remember(Queue, A, "y", (2, 100));
        assert_eq!(ids.find(Queue, B, "y", 0), Some(message(2)));
        // And back: `y` counts for its key alone, at once.
        assert_eq!(ids.find(Key, A, "y", 0), Some(message(2)));
        assert_eq!(ids.find(Key, B, "y", 0), None);
    }
}
