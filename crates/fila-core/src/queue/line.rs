//! Messages that stand in line, in the order of their ids.
//!
//! A message that leaves the line before its turn leaves a stale handle behind, which is dropped when its turn comes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use slab::Slab;

use super::message::{Handle, Message};

#[derive(Debug, Default)]
pub(super) struct Line {
    /// Never delivered, and in order.
    pub(super) ready: VecDeque<Handle>,
    /// Delivered before, or delayed.
    pub(super) returned: BinaryHeap<Reverse<Handle>>,
}

/// Where a message joins a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// Behind all others: its id is the greatest.
    Behind,
    /// At the place of its id.
    Between,
}

impl Line {
    pub(super) fn join(&mut self, handle: Handle, join: Join) {
        match join {
            Join::Behind => {
                debug_assert!(self.ready.back().is_none_or(|last| last.id < handle.id));
                self.ready.push_back(handle);
            }
            Join::Between => self.returned.push(Reverse(handle)),
        }
    }

    /// Returns the first message, and drops stale handles in front of it.
    pub(super) fn head(&mut self, messages: &Slab<Message>) -> Option<Handle> {
        let is_live = |handle: &Handle| {
            let message = messages.get(handle.slot as usize);
            message.is_some_and(|message| message.id == handle.id)
        };
        while self.ready.front().is_some_and(|handle| !is_live(handle)) {
            self.ready.pop_front();
        }
        while self.returned.peek().is_some_and(|it| !is_live(&it.0)) {
            self.returned.pop();
        }
        let ready = self.ready.front().copied();
        let returned = self.returned.peek().map(|handle| handle.0);
        [ready, returned].into_iter().flatten().min()
    }

    /// Takes out the message that [`head`](Self::head) has returned.
    pub(super) fn pop(&mut self, head: Handle) {
        if self.ready.front() == Some(&head) {
            self.ready.pop_front();
        } else {
            self.returned.pop();
        }
    }

    /// Drops all handles, which are stale.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.returned.clear();
    }
}
