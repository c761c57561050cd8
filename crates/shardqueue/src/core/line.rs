//! The line of submissions that wait for room: by key, and in order of arrival within a key.
//!
//! Room goes to the key that has the fewest jobs queued, and to keys with equally many in turn. So if the first key may
//! have no more jobs, no other may. The line is kept apart from the lanes, because submissions hardly ever wait.

use std::collections::{BTreeMap, HashMap};

use super::list::List;
use super::node::Node;
use super::slab::Slab;

/// The place of a key: how many jobs it has queued, then its turn.
type Rank = (u32, u64);

/// The submissions of one key that wait.
#[derive(Debug)]
struct WaitingKey {
    list: List,
    rank: Rank,
}

#[derive(Debug)]
pub(crate) struct Line {
    waiting: HashMap<u32, WaitingKey>,
    /// Lanes by their rank.
    order: BTreeMap<Rank, u32>,
    next_turn: u64,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self {
            waiting: HashMap::new(),
            order: BTreeMap::new(),
            next_turn: 0,
        }
    }

    /// Returns how many jobs the first key has queued.
    #[inline]
    pub(crate) fn fewest_queued(&self) -> Option<u32> {
        let (&(queued, _), _) = self.order.first_key_value()?;
        Some(queued)
    }

    /// Adds a submission behind the others of its lane, which has this many jobs queued.
    pub(crate) fn push<J, T>(
        &mut self,
        nodes: &mut Slab<Node<J, T>>,
        (lane, queued): (u32, u32),
        slot: u32,
    ) {
        if !self.waiting.contains_key(&lane) {
            self.insert_key(lane, queued, List::EMPTY);
        }
        if let Some(key) = self.waiting.get_mut(&lane) {
            key.list.push_back(nodes, slot);
        }
    }

    /// Takes a submission out. Returns whether it was the last of its lane.
    pub(crate) fn remove<J, T>(
        &mut self,
        nodes: &mut Slab<Node<J, T>>,
        lane: u32,
        slot: u32,
    ) -> bool {
        let Some(key) = self.waiting.get_mut(&lane) else {
            return false;
        };
        key.list.remove(nodes, slot);
        let is_last = key.list.is_empty();
        if is_last {
            let rank = key.rank;
            self.order.remove(&rank);
            self.waiting.remove(&lane);
        }
        is_last
    }

    /// Takes out the first submission of the first key, which then is behind all others that have as many jobs queued.
    /// Returns it with its lane, and whether it was the last of that.
    pub(crate) fn pop<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>) -> Option<(u32, u32, bool)> {
        let ((queued, _), lane) = self.order.pop_first()?;
        let mut key = self.waiting.remove(&lane)?;
        let slot = key.list.pop_front(nodes)?;
        let is_last = key.list.is_empty();
        if !is_last {
            self.insert_key(lane, queued + 1, key.list);
        }
        Some((lane, slot, is_last))
    }

    /// Notes how many jobs a lane has queued. It keeps its turn.
    pub(crate) fn set_queued(&mut self, lane: u32, queued: u32) {
        let Some(key) = self.waiting.get_mut(&lane) else {
            return;
        };
        self.order.remove(&key.rank);
        key.rank.0 = queued;
        self.order.insert(key.rank, lane);
    }

    fn insert_key(&mut self, lane: u32, queued: u32, list: List) {
        let rank = (queued, self.next_turn);
        self.next_turn += 1;
        self.order.insert(rank, lane);
        self.waiting.insert(lane, WaitingKey { list, rank });
    }
}
