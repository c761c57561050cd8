//! The messages of one fairness key that name throttle keys, by the set of keys that they name.
//!
//! All messages of a set take their tokens from the same buckets. So if one of them has to wait for a token, all have
//! to: the set *waits* until a token is offered to it, and the lane goes on with the others. In a strictly ordered queue
//! messages stand in the lane's own line, and a first message that lacks a token holds it up; there, sets only know the
//! buckets.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fila_store::{MessageId, ThrottleKey, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::line::{Join, Line};
use super::message::{Handle, Message};
use crate::Ordering;
use crate::throttle::{Claim, Offer, Throttles, WaitSlot, Waiter};

/// The throttle sets of one lane.
#[derive(Debug)]
pub(super) struct ThrottleSets {
    ordering: Ordering,
    numbers: HashMap<Arc<[ThrottleKey]>, u32, RandomState>,
    all: Slab<ThrottleSet>,
    /// The first message of each set. Open sets come before those that wait.
    heads: BTreeSet<(SetState, MessageId, u32)>,
    /// In a strictly ordered lane: the first message and its set, if it waits for a token.
    held_up: Option<(MessageId, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SetState {
    Open,
    /// Waits for a token.
    Waiting,
}

#[derive(Debug)]
struct ThrottleSet {
    keys: Arc<[ThrottleKey]>,
    slots: Vec<WaitSlot>,
    line: Line,
    /// Messages in memory that belong to it, in whatever state.
    members: u32,
    /// Messages that stand in its line.
    count: u64,
    state: SetState,
    /// Where `heads` has it.
    filed: Option<(SetState, MessageId)>,
    /// The id of its present wait, or of its last one.
    wait_id: u64,
    /// The slot in which it waits, or had its last offer.
    slot: usize,
    has_offer: bool,
}

/// Whether tokens are taken, or only looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    Tokens,
    Nothing,
}

impl ThrottleSets {
    pub(super) fn new(ordering: Ordering) -> Self {
        Self {
            ordering,
            numbers: HashMap::default(),
            all: Slab::new(),
            heads: BTreeSet::new(),
            held_up: None,
        }
    }

    /// Empties all lines and opens all sets, for a lane that orders its messages otherwise from now on. Its messages join
    /// again. An offer that was accepted stays; a wait does not, and its waiter is stale.
    pub(super) fn reorder(&mut self, ordering: Ordering) {
        self.ordering = ordering;
        self.heads.clear();
        self.held_up = None;
        for (_, set) in &mut self.all {
            set.line.clear();
            (set.count, set.state, set.filed) = (0, SetState::Open, None);
        }
    }

    /// Returns the set of these keys, which has one more member.
    pub(super) fn enter(&mut self, throttles: &mut Throttles, keys: &[ThrottleKey]) -> u32 {
        if let Some(&number) = self.numbers.get(keys) {
            self.all[number as usize].members += 1;
            return number;
        }
        let shared: Arc<[ThrottleKey]> = keys.into();
        let number = self.all.insert(ThrottleSet {
            keys: shared.clone(),
            slots: throttles.slots(keys),
            line: Line::default(),
            members: 1,
            count: 0,
            state: SetState::Open,
            filed: None,
            wait_id: 0,
            slot: 0,
            has_offer: false,
        }) as u32;
        self.numbers.insert(shared, number);
        number
    }

    /// Takes a member out that is gone. With its last member the set goes.
    pub(super) fn leave(&mut self, number: u32) {
        let set = &mut self.all[number as usize];
        set.members -= 1;
        if set.members == 0 {
            debug_assert_eq!(set.count, 0);
            if let Some((state, id)) = set.filed {
                self.heads.remove(&(state, id, number));
            }
            let set = self.all.remove(number as usize);
            self.numbers.remove(&set.keys);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Puts a member in line.
    pub(super) fn join(
        &mut self,
        messages: &Slab<Message>,
        number: u32,
        handle: Handle,
        join: Join,
    ) {
        let set = &mut self.all[number as usize];
        set.line.join(handle, join);
        set.count += 1;
        self.file_head(messages, number);
    }

    /// Takes out the first of the line.
    pub(super) fn pop(&mut self, messages: &Slab<Message>, number: u32, head: Handle) {
        let set = &mut self.all[number as usize];
        set.line.pop(head);
        set.count -= 1;
        self.file_head(messages, number);
    }

    /// Takes a message out of line that is gone from memory already.
    pub(super) fn lose(&mut self, messages: &Slab<Message>, number: u32) {
        self.all[number as usize].count -= 1;
        self.file_head(messages, number);
    }

    fn file_head(&mut self, messages: &Slab<Message>, number: u32) {
        let set = &mut self.all[number as usize];
        if set.count == 0 {
            set.line.clear();
        }
        let filed = set.line.head(messages).map(|head| (set.state, head.id));
        self.file(number, filed);
    }

    fn file(&mut self, number: u32, filed: Option<(SetState, MessageId)>) {
        let before = std::mem::replace(&mut self.all[number as usize].filed, filed);
        if before != filed {
            if let Some((state, id)) = before {
                self.heads.remove(&(state, id, number));
            }
            self.heads
                .extend(filed.map(|(state, id)| (state, id, number)));
        }
    }

    fn set_state(&mut self, number: u32, state: SetState) {
        let set = &mut self.all[number as usize];
        set.state = state;
        let filed = set.filed.map(|(_, id)| (state, id));
        self.file(number, filed);
    }

    /// Tells whether this message of a set waits for a token.
    pub(super) fn is_throttled(&self, number: u32, id: MessageId) -> bool {
        match self.ordering {
            Ordering::None => self.all[number as usize].state == SetState::Waiting,
            Ordering::Key => self.held_up.is_some_and(|(head, _)| head == id),
        }
    }

    /// Tells whether the set of these keys waits for a token.
    pub(super) fn are_throttled(&self, keys: &[ThrottleKey]) -> bool {
        let number = self.numbers.get(keys);
        number.is_some_and(|&number| self.all[number as usize].state == SetState::Waiting)
    }

    /// Tells whether the first message of a strictly ordered lane waits for a token.
    pub(super) fn holds_up_line(&self) -> bool {
        self.held_up.is_some()
    }

    /// Lets a strictly ordered lane go on whose first message waits for a token and is about to leave; tells whether
    /// this one is it.
    pub(super) fn give_up(&mut self, id: MessageId) -> bool {
        match self.held_up {
            Some((head, set)) if head == id => {
                self.held_up = None;
                self.set_state(set, SetState::Open);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Returns the first message of all open sets.
    pub(super) fn head(&mut self, messages: &Slab<Message>) -> Option<Handle> {
        let &(state, _, number) = self.heads.first()?;
        match state {
            SetState::Open => self.all[number as usize].line.head(messages),
            SetState::Waiting => None,
        }
    }

    /// Returns the first message of all sets that wait.
    pub(super) fn waiting_head(&mut self, messages: &Slab<Message>) -> Option<Handle> {
        let from = (SetState::Waiting, MessageId::from_number(0), 0);
        let &(_, _, number) = self.heads.range(from..).next()?;
        self.all[number as usize].line.head(messages)
    }

    /// Returns the slot in which a set waits, and the id of its wait.
    pub(super) fn slot(&self, number: u32) -> (&WaitSlot, u64) {
        let set = &self.all[number as usize];
        (&set.slots[set.slot], set.wait_id)
    }

    /// Returns the sets that hold the lane up, in the order of their first messages.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> {
        let from = (SetState::Waiting, MessageId::from_number(0), 0);
        let waiting = self.heads.range(from..).map(|(_, _, number)| *number);
        self.held_up.map(|(_, set)| set).into_iter().chain(waiting)
    }

    /// Returns the messages that stand in this set's line, in no order.
    pub(super) fn standing(&self, number: u32) -> impl Iterator<Item = Handle> {
        let line = &self.all[number as usize].line;
        let returned = line.returned.iter().map(|handle| handle.0);
        returned.chain(line.ready.iter().copied())
    }

    /// Looks for the tokens that a delivery of this message takes, and takes them if asked to.
    ///
    /// # Errors
    /// If there are none: then the set waits for them. Returns how many messages do so with it.
    pub(super) fn try_take(
        &mut self,
        throttles: &mut Throttles,
        now: Timestamp,
        (number, head): (u32, MessageId),
        take: Take,
        waiter: impl FnOnce(usize, u64) -> (Waiter, Claim),
    ) -> Result<(), u64> {
        let set = &mut self.all[number as usize];
        let checked = throttles.check(now, &set.slots, set.wait_id, set.has_offer);
        let taken = match (checked, take) {
            (Ok(()), Take::Nothing) => return Ok(()),
            (Ok(()), Take::Tokens) => throttles.take(now, &mut set.slots, set.wait_id),
            (Err(no_token), _) => Err(no_token),
        };
        set.has_offer = false;
        let Err(no_token) = taken else {
            return Ok(());
        };
        let previous = std::mem::replace(&mut set.wait_id, throttles.next_wait_id());
        set.slot = no_token.slot;
        let (waiter, claim) = waiter(no_token.slot, set.wait_id);
        throttles.wait(now, &mut set.slots, waiter, &claim, previous);
        let count = set.count;
        self.set_state(number, SetState::Waiting);
        Err(match self.ordering {
            Ordering::None => count,
            Ordering::Key => {
                self.held_up = Some((head, number));
                1
            }
        })
    }

    /// Opens a set that is offered a token, if it still waits for it; returns how many messages have waited with it.
    pub(super) fn accept(&mut self, throttles: &Throttles, offer: &Offer) -> Option<u64> {
        if !self.awaits(&offer.waiter) {
            return None;
        }
        let number = offer.waiter.set;
        let set = &mut self.all[number as usize];
        throttles.accept(offer, &mut set.slots[offer.waiter.slot]);
        set.has_offer = true;
        let count = set.count;
        self.set_state(number, SetState::Open);
        Some(self.held_up.take().map_or(count, |_| 1))
    }

    /// Tells whether a set still waits like this.
    pub(super) fn awaits(&self, waiter: &Waiter) -> bool {
        let set = self.all.get(waiter.set as usize);
        set.is_some_and(|set| set.state == SetState::Waiting && set.wait_id == waiter.wait_id)
    }
}
