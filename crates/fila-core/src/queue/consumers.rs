//! The consumers of a queue, which are served in turns.

use std::collections::VecDeque;

use slab::Slab;

use super::message::Holder;
use crate::{Beginnings, ConsumerId, Demand};

#[derive(Debug, Default)]
pub(super) struct Consumers {
    all: Slab<Consumer>,
    /// Consumers that can take a message, in turns. One that cannot any more is dropped when its turn comes.
    ready: VecDeque<u32>,
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) id: ConsumerId,
    credit: u32,
    in_flight_max: u32,
    beginnings: Beginnings,
    state: ConsumerState,
    /// It is in the list of consumers that are ready.
    is_listed: bool,
    /// Slots of the messages that are with it.
    leased: Vec<u32>,
    /// Deliveries that are owed to it.
    reserved: u32,
}

/// Where a consumer is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConsumerState {
    Working,
    /// Settles its deliveries, and is then dismissed.
    Draining,
}

impl Consumer {
    fn is_ready(&self) -> bool {
        self.state == ConsumerState::Working
            && self.credit > 0
            && self.leased.len() + (self.reserved as usize) < self.in_flight_max as usize
    }
}

impl Consumers {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.all.contains(slot as usize)
    }

    pub(super) fn add(&mut self, id: ConsumerId, demand: Demand) -> u32 {
        let consumer = Consumer {
            id,
            credit: demand.credit,
            in_flight_max: demand.in_flight_max,
            beginnings: demand.beginnings,
            state: ConsumerState::Working,
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

    /// Returns the consumer whose turn it is. It keeps the turn until a delivery is reserved for it.
    pub(super) fn next(&mut self) -> Option<u32> {
        while let Some(&slot) = self.ready.front() {
            match self.all.get_mut(slot as usize) {
                Some(consumer) if consumer.is_ready() => return Some(slot),
                Some(consumer) => consumer.is_listed = false,
                None => {}
            }
            self.ready.pop_front();
        }
        None
    }

    /// Tells whether the consumer whose turn it is can take a message.
    pub(super) fn has_ready(&self) -> bool {
        let is_ready = |&slot: &u32| {
            let consumer = self.all.get(slot as usize);
            consumer.is_some_and(Consumer::is_ready)
        };
        self.ready.front().is_some_and(is_ready)
    }

    /// Reserves a delivery for the consumer whose turn it is, and returns its id.
    pub(super) fn reserve(&mut self, slot: u32) -> ConsumerId {
        debug_assert_eq!(self.ready.front(), Some(&slot));
        self.ready.pop_front();
        let consumer = &mut self.all[slot as usize];
        consumer.is_listed = false;
        consumer.credit -= 1;
        consumer.reserved += 1;
        let id = consumer.id;
        self.enlist(slot);
        id
    }

    /// Tells whether the consumer that a delivery is owed to is still there and wants it.
    pub(super) fn awaits(&self, slot: u32, id: ConsumerId) -> bool {
        let consumer = self.all.get(slot as usize);
        consumer
            .is_some_and(|consumer| consumer.id == id && consumer.state == ConsumerState::Working)
    }

    /// Gives a consumer a message that was reserved for it.
    pub(super) fn give(&mut self, slot: u32, message: u32) -> Holder {
        self.all[slot as usize].reserved -= 1;
        self.attach(slot, message)
    }

    /// Lets a consumer hold a message.
    pub(super) fn attach(&mut self, slot: u32, message: u32) -> Holder {
        let leased = &mut self.all[slot as usize].leased;
        leased.push(message);
        Holder::Stream {
            consumer: slot,
            position: leased.len() as u32 - 1,
        }
    }

    /// Cancels a reserved delivery of a consumer that is still there, and gives back the credit.
    pub(super) fn refund(&mut self, slot: u32) {
        let consumer = &mut self.all[slot as usize];
        consumer.reserved -= 1;
        consumer.credit = consumer.credit.saturating_add(1);
        self.enlist(slot);
    }

    /// Takes a message from a consumer, and returns the one that has moved to its place in the list.
    pub(super) fn take(&mut self, slot: u32, position: u32) -> Option<u32> {
        let leased = &mut self.all[slot as usize].leased;
        leased.swap_remove(position as usize);
        let moved = leased.get(position as usize).copied();
        self.enlist(slot);
        moved
    }

    pub(super) fn drain(&mut self, slot: u32) {
        self.all[slot as usize].state = ConsumerState::Draining;
    }

    /// Returns the id of a consumer that is draining and has no message left.
    pub(super) fn drained(&self, slot: u32) -> Option<ConsumerId> {
        let consumer = &self.all[slot as usize];
        (consumer.state == ConsumerState::Draining && consumer.leased.is_empty())
            .then_some(consumer.id)
    }

    /// Removes a consumer, and returns the messages that are with it, in no order.
    pub(super) fn remove(&mut self, slot: u32) -> (Beginnings, Vec<u32>) {
        let consumer = self.all.remove(slot as usize);
        // A later consumer may get the slot, and must not be served twice a turn.
        self.ready.retain(|&listed| listed != slot);
        (consumer.beginnings, consumer.leased)
    }

    /// Forgets all messages that are with consumers or owed to them, and returns all consumers.
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
        if !consumer.is_listed && consumer.is_ready() {
            consumer.is_listed = true;
            self.ready.push_back(slot);
        }
    }
}
