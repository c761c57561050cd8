//! The messages of one fairness key that name throttle keys, by the set of keys that they name.
//!
//! Messages of an *aisle* take their tokens from the same buckets, so if one of them has to wait for a token, all have to:
//! the aisle is *shut* until it is called, and the lane goes on with the others. In a strictly ordered queue there is one
//! line only, and an aisle that is shut holds it up; there, aisles are for knowing the buckets.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use drr::Weight;
use fila_store::{MessageId, ThrottleKey, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::line::{Join, Line};
use super::message::{Handle, Message};
use crate::throttle::{Call, Gates, Seat, Waiter};

/// The aisles of one lane.
#[derive(Debug, Default)]
pub(super) struct Aisles {
    known: HashMap<Arc<[ThrottleKey]>, u32, RandomState>,
    all: Slab<Aisle>,
    /// Their first messages, those that are open before those that are shut.
    heads: BTreeSet<(Door, MessageId, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Door {
    Open,
    Shut,
}

#[derive(Debug)]
struct Aisle {
    keys: Arc<[ThrottleKey]>,
    seats: Vec<Seat>,
    line: Line,
    /// Messages in memory that belong to it, wherever they are.
    members: u32,
    /// Those that stand in its line.
    count: u64,
    door: Door,
    /// Where `heads` has it.
    filed: Option<(Door, MessageId)>,
    /// The stamp of its waiting: of this one if it is shut, or else of the last.
    stamp: u64,
    /// At which seat it waits, or was called last.
    seat: usize,
    is_called: bool,
}

impl Aisles {
    /// Returns the aisle of these keys, which has one more member.
    pub(super) fn enter(&mut self, gates: &mut Gates, keys: &[ThrottleKey]) -> u32 {
        if let Some(&number) = self.known.get(keys) {
            self.all[number as usize].members += 1;
            return number;
        }
        let shared: Arc<[ThrottleKey]> = keys.into();
        let number = self.all.insert(Aisle {
            keys: shared.clone(),
            seats: gates.seats(keys),
            line: Line::default(),
            members: 1,
            count: 0,
            door: Door::Open,
            filed: None,
            stamp: 0,
            seat: 0,
            is_called: false,
        }) as u32;
        self.known.insert(shared, number);
        number
    }

    /// Takes note that a member is gone. With the last one the aisle is.
    pub(super) fn leave(&mut self, number: u32) {
        let aisle = &mut self.all[number as usize];
        aisle.members -= 1;
        if aisle.members == 0 {
            debug_assert_eq!(aisle.count, 0);
            if let Some((door, id)) = aisle.filed {
                self.heads.remove(&(door, id, number));
            }
            let aisle = self.all.remove(number as usize);
            self.known.remove(&aisle.keys);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Lets a member stand in line; tells whether the aisle is shut.
    pub(super) fn join(
        &mut self,
        messages: &Slab<Message>,
        number: u32,
        handle: Handle,
        join: Join,
    ) -> bool {
        let aisle = &mut self.all[number as usize];
        aisle.line.join(handle, join);
        aisle.count += 1;
        let is_shut = aisle.door == Door::Shut;
        self.file(messages, number);
        is_shut
    }

    /// Takes out the first of the line.
    pub(super) fn pop(&mut self, messages: &Slab<Message>, number: u32, head: Handle) {
        let aisle = &mut self.all[number as usize];
        aisle.line.pop(head);
        aisle.count -= 1;
        self.file(messages, number);
    }

    /// Takes note that one is gone that stood in line; tells whether the aisle is shut.
    pub(super) fn lose(&mut self, messages: &Slab<Message>, number: u32) -> bool {
        let aisle = &mut self.all[number as usize];
        aisle.count -= 1;
        let is_shut = aisle.door == Door::Shut;
        self.file(messages, number);
        is_shut
    }

    fn file(&mut self, messages: &Slab<Message>, number: u32) {
        let aisle = &mut self.all[number as usize];
        if aisle.count == 0 {
            aisle.line.clear();
        }
        let head = aisle.line.head(messages);
        let place = head.map(|head| (aisle.door, head.id));
        if place != aisle.filed {
            if let Some((door, id)) = aisle.filed {
                self.heads.remove(&(door, id, number));
            }
            aisle.filed = place;
            self.heads
                .extend(place.map(|(door, id)| (door, id, number)));
        }
    }

    /// Tells whether the aisle of these keys is shut.
    pub(super) fn is_shut(&self, keys: &[ThrottleKey]) -> bool {
        let number = self.known.get(keys);
        number.is_some_and(|&number| self.all[number as usize].door == Door::Shut)
    }

    /// Returns the first message of all aisles that are open.
    pub(super) fn head(&mut self, messages: &Slab<Message>) -> Option<Handle> {
        let &(door, _, number) = self.heads.first()?;
        match door {
            Door::Open => self.all[number as usize].line.head(messages),
            Door::Shut => None,
        }
    }

    /// Returns the first message of all aisles that are shut, and where that one waits.
    pub(super) fn shut_head(&mut self, messages: &Slab<Message>) -> Option<(Handle, &Seat)> {
        let from = (Door::Shut, MessageId::from_number(0), 0);
        let &(_, _, number) = self.heads.range(from..).next()?;
        let aisle = &mut self.all[number as usize];
        let head = aisle.line.head(messages)?;
        Some((head, &aisle.seats[aisle.seat]))
    }

    /// Returns the seat at which an aisle waits, and the stamp of its waiting.
    pub(super) fn seat(&self, number: u32) -> (&Seat, u64) {
        let aisle = &self.all[number as usize];
        (&aisle.seats[aisle.seat], aisle.stamp)
    }

    /// Returns the aisles that are shut, in the order of their first messages.
    pub(super) fn shut(&self) -> impl Iterator<Item = u32> {
        let from = (Door::Shut, MessageId::from_number(0), 0);
        self.heads.range(from..).map(|(_, _, number)| *number)
    }

    /// Returns the messages that stand in this line, in no order.
    pub(super) fn standing(&self, number: u32) -> impl Iterator<Item = Handle> {
        let line = &self.all[number as usize].line;
        let returned = line.returned.iter().map(|handle| handle.0);
        returned.chain(line.ready.iter().copied())
    }

    /// Tells whether there are tokens for a delivery of this aisle. If not, it is shut; also returns how many stand in it.
    pub(super) fn try_pass(
        &mut self,
        gates: &mut Gates,
        now: Timestamp,
        number: u32,
        take: Take,
        waiter: impl FnOnce(usize, u64) -> (Waiter, Weight),
    ) -> Result<(), u64> {
        let aisle = &mut self.all[number as usize];
        let checked = gates.check(now, &aisle.seats, aisle.stamp, aisle.is_called);
        let passed = match (checked, take) {
            (Ok(()), Take::Nothing) => return Ok(()),
            (Ok(()), Take::Tokens) => gates.take(now, &mut aisle.seats, aisle.stamp),
            (Err(lacking), _) => Err(lacking),
        };
        let Err(lacking) = passed else {
            aisle.is_called = false;
            return Ok(());
        };
        let holder = std::mem::replace(&mut aisle.stamp, gates.stamp());
        aisle.seat = lacking.seat;
        aisle.is_called = false;
        let (waiter, weight) = waiter(lacking.seat, aisle.stamp);
        gates.wait(now, &mut aisle.seats, waiter, weight, holder);
        aisle.door = Door::Shut;
        if let Some((door, id)) = aisle.filed.take() {
            self.heads.remove(&(door, id, number));
            aisle.filed = Some((Door::Shut, id));
            self.heads.insert((Door::Shut, id, number));
        }
        Err(aisle.count)
    }

    /// Opens an aisle that was called, if it still waits for that; returns how many stand in it.
    pub(super) fn called(&mut self, gates: &Gates, call: &Call) -> Option<u64> {
        let number = call.waiter.aisle;
        let aisle = self.all.get_mut(number as usize)?;
        if aisle.door == Door::Open || aisle.stamp != call.waiter.stamp {
            return None;
        }
        gates.reached(call, &mut aisle.seats[call.waiter.seat]);
        aisle.is_called = true;
        self.open(number);
        Some(self.all[number as usize].count)
    }

    /// Tells whether an aisle still waits like this.
    pub(super) fn awaits(&self, waiter: &Waiter) -> bool {
        let aisle = self.all.get(waiter.aisle as usize);
        aisle.is_some_and(|aisle| aisle.door == Door::Shut && aisle.stamp == waiter.stamp)
    }

    /// Opens an aisle, whether or not it was called.
    pub(super) fn open(&mut self, number: u32) {
        let aisle = &mut self.all[number as usize];
        aisle.door = Door::Open;
        if let Some((door, id)) = aisle.filed.take() {
            self.heads.remove(&(door, id, number));
            aisle.filed = Some((Door::Open, id));
            self.heads.insert((Door::Open, id, number));
        }
    }
}

/// Whether tokens are taken, or only looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    Tokens,
    Nothing,
}
