//! Who takes a queue's messages, in turns.

use std::collections::VecDeque;

use slab::Slab;

use crate::{ConsumerId, Demand};

#[derive(Debug, Default)]
pub(super) struct Consumers {
    all: Slab<Consumer>,
    /// Those that may be sent something, in turns. One that may not any more is found out when its turn comes.
    willing: VecDeque<u32>,
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) id: ConsumerId,
    credit: u32,
    in_flight_max: u32,
    mood: Mood,
    is_listed: bool,
    /// Slots of the messages that are with it.
    leased: Vec<u32>,
    /// Deliveries that it was promised.
    reserved: u32,
}

/// What a consumer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Working,
    /// Finishes what it has, and is then dismissed.
    Draining,
    /// Is about to be removed.
    Leaving,
}

impl Consumer {
    fn is_willing(&self) -> bool {
        self.mood == Mood::Working
            && self.credit > 0
            && self.leased.len() + (self.reserved as usize) < self.in_flight_max as usize
    }
}

impl Consumers {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn add(&mut self, id: ConsumerId, demand: Demand) -> u32 {
        let consumer = Consumer {
            id,
            credit: demand.credit,
            in_flight_max: demand.in_flight_max,
            mood: Mood::Working,
            is_listed: false,
            leased: Vec::new(),
            reserved: 0,
        };
        let slot = self.all.insert(consumer) as u32;
        self.enlist(slot);
        slot
    }

    pub(super) fn credit(&mut self, slot: u32, more: u32) {
        let consumer = &mut self.all[slot as usize];
        consumer.credit = consumer.credit.saturating_add(more);
        self.enlist(slot);
    }

    /// Returns the consumer whose turn it is. It stays so until it is sent something.
    pub(super) fn next(&mut self) -> Option<u32> {
        while let Some(&slot) = self.willing.front() {
            match self.all.get_mut(slot as usize) {
                Some(consumer) if consumer.is_willing() => return Some(slot),
                Some(consumer) => consumer.is_listed = false,
                None => {}
            }
            self.willing.pop_front();
        }
        None
    }

    /// Tells whether some consumer may be sent something. One that may not any more is perhaps still listed.
    pub(super) fn has_willing(&self) -> bool {
        let is_willing = |&slot: &u32| {
            let consumer = self.all.get(slot as usize);
            consumer.is_some_and(Consumer::is_willing)
        };
        self.willing.front().is_some_and(is_willing)
    }

    /// Promises a delivery to the consumer whose turn it is, and returns its name.
    pub(super) fn promise(&mut self, slot: u32) -> ConsumerId {
        debug_assert_eq!(self.willing.front(), Some(&slot));
        self.willing.pop_front();
        let consumer = &mut self.all[slot as usize];
        consumer.is_listed = false;
        consumer.credit -= 1;
        consumer.reserved += 1;
        let id = consumer.id;
        self.enlist(slot);
        id
    }

    /// Tells whether whoever was promised a delivery is still there and wants it.
    pub(super) fn awaits(&self, slot: u32, id: ConsumerId) -> bool {
        let consumer = self.all.get(slot as usize);
        consumer.is_some_and(|consumer| consumer.id == id && consumer.mood == Mood::Working)
    }

    /// Gives a consumer a message that it was promised, and returns the message's place in its list.
    pub(super) fn give(&mut self, slot: u32, message: u32) -> u32 {
        let consumer = &mut self.all[slot as usize];
        consumer.reserved -= 1;
        consumer.leased.push(message);
        consumer.leased.len() as u32 - 1
    }

    /// Takes a promise back from a consumer that is still there.
    pub(super) fn disappoint(&mut self, slot: u32) {
        let consumer = &mut self.all[slot as usize];
        consumer.reserved -= 1;
        consumer.credit = consumer.credit.saturating_add(1);
        self.enlist(slot);
    }

    /// Takes a message from a consumer, and returns which other one has moved to its place in the list.
    pub(super) fn take(&mut self, slot: u32, position: u32) -> Option<u32> {
        let leased = &mut self.all[slot as usize].leased;
        leased.swap_remove(position as usize);
        let moved = leased.get(position as usize).copied();
        self.enlist(slot);
        moved
    }

    /// Returns a message that is with this consumer.
    pub(super) fn some_leased(&self, slot: u32) -> Option<u32> {
        self.all[slot as usize].leased.last().copied()
    }

    pub(super) fn drain(&mut self, slot: u32) {
        self.all[slot as usize].mood = Mood::Draining;
    }

    pub(super) fn leave(&mut self, slot: u32) {
        self.all[slot as usize].mood = Mood::Leaving;
    }

    /// Returns the name of a consumer that is to be drained and has nothing left.
    pub(super) fn drained(&self, slot: u32) -> Option<ConsumerId> {
        let consumer = &self.all[slot as usize];
        (consumer.mood == Mood::Draining && consumer.leased.is_empty()).then_some(consumer.id)
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.all.remove(slot as usize);
        // A later consumer may get the slot, and must not be served twice a turn.
        self.willing.retain(|&listed| listed != slot);
    }

    /// Forgets all messages that are with consumers or promised to them, and returns who these are.
    pub(super) fn forget_leases(&mut self) -> Vec<u32> {
        let slots: Vec<u32> = self.all.iter().map(|(slot, _)| slot as u32).collect();
        for &slot in &slots {
            let consumer = &mut self.all[slot as usize];
            consumer.leased.clear();
            consumer.credit = consumer.credit.saturating_add(consumer.reserved);
            consumer.reserved = 0;
            self.enlist(slot);
        }
        slots
    }

    pub(super) fn names(&self) -> impl Iterator<Item = ConsumerId> {
        self.all.iter().map(|(_, consumer)| consumer.id)
    }

    fn enlist(&mut self, slot: u32) {
        let consumer = &mut self.all[slot as usize];
        if !consumer.is_listed && consumer.is_willing() {
            consumer.is_listed = true;
            self.willing.push_back(slot);
        }
    }
}
