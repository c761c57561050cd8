//! The line of those who wait for room: by key, and in order of arrival within a key.
//!
//! Room is given to keys in turn. A key whose lane is at its own limit is passed over until it has room again.
//! Apart from the lanes, because hardly ever does anybody wait.

use std::collections::{BTreeMap, HashMap};

use super::list::List;
use super::node::Node;
use super::slab::Slab;

/// The submissions of one key that wait.
#[derive(Debug)]
struct Party {
    list: List,
    /// When it is the key's turn; `None` while its lane has no room.
    turn: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Line {
    parties: HashMap<u32, Party>,
    /// Lanes by their turn.
    turns: BTreeMap<u64, u32>,
    next_turn: u64,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self {
            parties: HashMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
        }
    }

    /// Returns whether somebody waits who could be let in if the shard had room.
    #[inline]
    pub(crate) fn has_eligible(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Adds a submission behind the others of its lane.
    pub(crate) fn push<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>, lane: u32, slot: u32) {
        let party = self.parties.entry(lane).or_insert(Party {
            list: List::EMPTY,
            turn: None,
        });
        party.list.push_back(nodes, slot);
    }

    /// Takes a submission out. Returns whether it was the last of its lane.
    pub(crate) fn remove<J, T>(
        &mut self,
        nodes: &mut Slab<Node<J, T>>,
        lane: u32,
        slot: u32,
    ) -> bool {
        let Some(party) = self.parties.get_mut(&lane) else {
            return false;
        };
        party.list.remove(nodes, slot);
        let is_last = party.list.is_empty();
        if is_last {
            self.dissolve(lane);
        }
        is_last
    }

    /// Takes out the first submission of the key whose turn it is, which then is behind all others. Returns it
    /// with its lane, and whether it was the last of that.
    pub(crate) fn pop<J, T>(&mut self, nodes: &mut Slab<Node<J, T>>) -> Option<(u32, u32, bool)> {
        let (_, lane) = self.turns.pop_first()?;
        let party = self.parties.get_mut(&lane)?;
        party.turn = None;
        let slot = party.list.pop_front(nodes)?;
        let is_last = party.list.is_empty();
        if is_last {
            self.dissolve(lane);
        }
        Some((lane, slot, is_last))
    }

    /// Says whether a lane has room of its own.
    pub(crate) fn set_eligible(&mut self, lane: u32, is_eligible: bool) {
        let Some(party) = self.parties.get_mut(&lane) else {
            return;
        };
        match (party.turn, is_eligible) {
            (None, true) => {
                party.turn = Some(self.next_turn);
                self.turns.insert(self.next_turn, lane);
                self.next_turn += 1;
            }
            (Some(turn), false) => {
                party.turn = None;
                self.turns.remove(&turn);
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    fn dissolve(&mut self, lane: u32) {
        let party = self.parties.remove(&lane);
        if let Some(turn) = party.and_then(|party| party.turn) {
            self.turns.remove(&turn);
        }
    }
}
