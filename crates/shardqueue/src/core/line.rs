//! The line of submissions that wait for room: by key, and in order of arrival within a key.
//!
//! Keys get room in turn. A key whose lane is at its own limit is passed over until it has room again. The line is
//! kept apart from the lanes, because submissions hardly ever wait.

use std::collections::{BTreeMap, HashMap};

use super::list::List;
use super::node::Node;
use super::slab::Slab;

/// The submissions of one key that wait.
#[derive(Debug)]
struct WaitingKey {
    list: List,
    /// When it is the key's turn; `None` while its lane has no room.
    turn: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Line {
    waiting: HashMap<u32, WaitingKey>,
    /// Lanes by their turn.
    turns: BTreeMap<u64, u32>,
    next_turn: u64,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self {
            waiting: HashMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
        }
    }

    /// Returns whether a submission waits that could be accepted if the shard had room.
    #[inline]
    pub(crate) fn has_eligible(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Adds a submission behind the others of its lane.
    pub(crate) fn push<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>, lane: u32, slot: u32) {
        let key = self.waiting.entry(lane).or_insert(WaitingKey {
            list: List::EMPTY,
            turn: None,
        });
        key.list.push_back(nodes, slot);
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
            self.remove_key(lane);
        }
        is_last
    }

    /// Takes out the first submission of the key whose turn it is, which then is behind all others. Returns it
    /// with its lane, and whether it was the last of that.
    pub(crate) fn pop<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>) -> Option<(u32, u32, bool)> {
        let (_, lane) = self.turns.pop_first()?;
        let key = self.waiting.get_mut(&lane)?;
        key.turn = None;
        let slot = key.list.pop_front(nodes)?;
        let is_last = key.list.is_empty();
        if is_last {
            self.remove_key(lane);
        }
        Some((lane, slot, is_last))
    }

    /// Says whether a lane has room of its own.
    pub(crate) fn set_eligible(&mut self, lane: u32, is_eligible: bool) {
        let Some(key) = self.waiting.get_mut(&lane) else {
            return;
        };
        match (key.turn, is_eligible) {
            (None, true) => {
                key.turn = Some(self.next_turn);
                self.turns.insert(self.next_turn, lane);
                self.next_turn += 1;
            }
            (Some(turn), false) => {
                key.turn = None;
                self.turns.remove(&turn);
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    fn remove_key(&mut self, lane: u32) {
        let key = self.waiting.remove(&lane);
        if let Some(turn) = key.and_then(|key| key.turn) {
            self.turns.remove(&turn);
        }
    }
}
