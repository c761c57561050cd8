//! The consumers of a queue, which are served in turns.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use slab::Slab;

use super::lane::OwedDelivery;
use super::message::Holder;
use crate::transit::{ConsumerTransit, Transit};
use crate::{Beginnings, ConsumerId, ConsumerKind, Delivery, Demand};

#[derive(Debug, Default)]
pub(crate) struct Consumers {
    all: Slab<Consumer>,
    /// Consumers that can take a message, in turns. One that cannot any more is dropped when its turn comes.
    ready: VecDeque<u32>,
    /// Consumers that wait until the deliveries of others leave them room.
    parked: BTreeMap<Parked, u32>,
    parked_ever: u64,
    /// Calls that are answered as soon as nothing more is owed to them.
    answering: Vec<u32>,
}

/// The place of a parked consumer: whether it has read, the bytes on their way to it, and a number that grows with each
/// parked consumer. Of those that have read, and of the others, the first have the fewest bytes and have waited longest.
type Parked = (bool, usize, u64);

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) id: ConsumerId,
    credit: u32,
    in_flight_max: u32,
    kind: ConsumerKind,
    state: ConsumerState,
    listing: Listing,
    /// Slots of the messages that are with it.
    leased: Vec<u32>,
    /// Deliveries that are owed to it.
    reserved: u32,
    transit: ConsumerTransit,
}

/// The list of consumers that a consumer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    None,
    Ready,
    Parked(Parked),
}

/// Where a consumer is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConsumerState {
    Working,
    /// Settles its deliveries, and is then dismissed.
    Draining,
    /// A call that has a message, or waits for the first no longer. It takes more until nothing is owed to it.
    Answering,
    /// A call that has its answer.
    Answered,
}

impl Consumer {
    fn is_ready(&self) -> bool {
        self.takes_messages()
            && self.credit > 0
            && self.leased.len() + (self.reserved as usize) < self.in_flight_max as usize
            && self.transit.is_open()
    }

    fn takes_messages(&self) -> bool {
        match self.state {
            ConsumerState::Working | ConsumerState::Answering => true,
            ConsumerState::Draining | ConsumerState::Answered => false,
        }
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
            kind: demand.kind,
            state: ConsumerState::Working,
            listing: Listing::None,
            leased: Vec::new(),
            reserved: 0,
            transit: ConsumerTransit::default(),
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

    /// Notes that the socket of a consumer has taken bytes; tells whether the consumer is ready only now.
    pub(crate) fn taken(&mut self, transit: &mut Transit, slot: u32, bytes: usize) -> bool {
        let consumer = &mut self.all[slot as usize];
        transit.take(&mut consumer.transit, bytes);
        if let Listing::Parked(place) = consumer.listing {
            self.parked.remove(&place);
            consumer.listing = Listing::None;
        }
        self.enlist(slot)
    }

    /// Returns the consumer whose turn it is. It keeps the turn until a delivery is reserved for it.
    pub(super) fn next(&mut self, transit: &Transit) -> Option<u32> {
        while let Some(&slot) = self.ready.front() {
            if let Some(consumer) = self.all.get_mut(slot as usize) {
                let is_ready = consumer.is_ready();
                if is_ready && transit.admits(consumer.transit) {
                    return Some(slot);
                }
                consumer.listing = Listing::None;
                if is_ready {
                    let (has_read, bytes) = (consumer.transit.has_read, consumer.transit.bytes);
                    let place = (has_read, bytes, self.parked_ever);
                    consumer.listing = Listing::Parked(place);
                    self.parked.insert(place, slot);
                    self.parked_ever += 1;
                }
            }
            self.ready.pop_front();
        }
        None
    }

    /// Tells whether a consumer waits until the deliveries of others leave it room.
    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Makes the parked consumers ready for which there is room now; tells whether there are any. They come before the
    /// consumers that are ready, which did not have to wait.
    pub(crate) fn unpark(&mut self, transit: &Transit) -> bool {
        let ready = self.ready.len();
        for has_read in [true, false] {
            let places = (has_read, 0, 0)..=(has_read, usize::MAX, u64::MAX);
            while let Some((&place, &slot)) = self.parked.range(places.clone()).next()
                && let consumer = &mut self.all[slot as usize]
                && transit.admits(consumer.transit)
            {
                self.parked.remove(&place);
                consumer.listing = Listing::Ready;
                self.ready.push_back(slot);
            }
        }
        self.ready.rotate_left(ready);
        self.ready.len() > ready
    }

    /// Tells whether there is room for a delivery that was reserved for a consumer.
    pub(super) fn has_room(&self, slot: u32, transit: &Transit) -> bool {
        let consumer = self.all[slot as usize].transit;
        consumer.has_room() && transit.admits(consumer)
    }

    /// Tells whether the consumer whose turn it is can take a message.
    pub(super) fn has_ready(&self) -> bool {
        let is_ready = |&slot: &u32| {
            let consumer = self.all.get(slot as usize);
            consumer.is_some_and(Consumer::is_ready)
        };
        self.ready.front().is_some_and(is_ready)
    }

    /// Returns how many messages the consumers could take now.
    pub(super) fn room(&self) -> u64 {
        let ready = self.all.iter().filter(|(_, consumer)| consumer.is_ready());
        let room = ready.map(|(_, consumer)| {
            let held = consumer.leased.len() as u64 + u64::from(consumer.reserved);
            let most = u64::from(consumer.in_flight_max).saturating_sub(held);
            most.min(consumer.credit.into())
        });
        room.sum()
    }

    /// Reserves a delivery for the consumer whose turn it is, and returns its id.
    pub(super) fn reserve(&mut self, slot: u32, expected: usize) -> ConsumerId {
        debug_assert_eq!(self.ready.front(), Some(&slot));
        self.ready.pop_front();
        let consumer = &mut self.all[slot as usize];
        consumer.listing = Listing::None;
        consumer.credit -= 1;
        consumer.reserved += 1;
        consumer.transit.expect(expected);
        let id = consumer.id;
        self.enlist(slot);
        id
    }

    /// Tells whether the consumer that a delivery is owed to is still there and wants it.
    pub(super) fn awaits(&self, slot: u32, id: ConsumerId) -> bool {
        let consumer = self.all.get(slot as usize);
        consumer.is_some_and(|consumer| consumer.id == id && consumer.takes_messages())
    }

    /// Gives a consumer a message that is owed to it.
    pub(super) fn give(
        &mut self,
        transit: &mut Transit,
        owed: OwedDelivery,
        message: u32,
        delivery: &Delivery,
    ) -> Holder {
        let consumer = &mut self.all[owed.consumer as usize];
        consumer.reserved -= 1;
        consumer.transit.expect_less(owed.expected);
        transit.send(&mut consumer.transit, delivery.bytes());
        self.answer_soon(owed.consumer);
        self.attach(owed.consumer, message)
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
    pub(super) fn refund(&mut self, slot: u32, expected: usize) {
        let consumer = &mut self.all[slot as usize];
        consumer.reserved -= 1;
        consumer.transit.expect_less(expected);
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
        match self.all[slot as usize].kind {
            ConsumerKind::Stream(_) => self.all[slot as usize].state = ConsumerState::Draining,
            ConsumerKind::Call { .. } => self.answer_soon(slot),
        }
    }

    /// Answers a call as soon as nothing more is owed to it. Ignored for streams.
    fn answer_soon(&mut self, slot: u32) {
        let consumer = &mut self.all[slot as usize];
        if let ConsumerKind::Call { .. } = consumer.kind
            && consumer.state == ConsumerState::Working
        {
            consumer.state = ConsumerState::Answering;
            self.answering.push(slot);
        }
    }

    /// Returns the calls that have got everything that there is for them. They get no more.
    pub(super) fn served(&mut self) -> impl Iterator<Item = ConsumerId> {
        let all = &mut self.all;
        let is_served = |slot: &mut u32| all[*slot as usize].reserved == 0;
        let served: Vec<u32> = self.answering.extract_if(.., is_served).collect();
        served.into_iter().map(|slot| {
            let consumer = &mut self.all[slot as usize];
            consumer.state = ConsumerState::Answered;
            consumer.id
        })
    }

    /// Returns how long the leases of a consumer last, if it says so itself.
    pub(super) fn lease_time(&self, slot: u32) -> Option<Duration> {
        match self.all[slot as usize].kind {
            ConsumerKind::Stream(_) => None,
            ConsumerKind::Call { lease_time } => lease_time,
        }
    }

    /// Returns the id of a consumer that is draining and has no message left.
    pub(super) fn drained(&self, slot: u32) -> Option<ConsumerId> {
        let consumer = &self.all[slot as usize];
        (consumer.state == ConsumerState::Draining && consumer.leased.is_empty())
            .then_some(consumer.id)
    }

    /// Removes a consumer, and returns the messages that are with it, in no order.
    pub(super) fn remove(&mut self, transit: &mut Transit, slot: u32) -> (Beginnings, Vec<u32>) {
        let consumer = self.all.remove(slot as usize);
        transit.leave(consumer.transit);
        if let Listing::Parked(place) = consumer.listing {
            self.parked.remove(&place);
        }
        // A later consumer may get the slot, and must not be served twice a turn.
        self.ready.retain(|&listed| listed != slot);
        let beginnings = match consumer.kind {
            ConsumerKind::Stream(beginnings) => beginnings,
            ConsumerKind::Call { .. } => {
                self.answering.retain(|&listed| listed != slot);
                Beginnings::Reported
            }
        };
        (beginnings, consumer.leased)
    }

    /// Returns the messages that are with a consumer, in no order, and the bytes on their way to it.
    pub(super) fn held(&self, slot: u32) -> (&[u32], usize) {
        let consumer = &self.all[slot as usize];
        (&consumer.leased, consumer.transit.bytes)
    }

    /// Forgets all messages that are with consumers or owed to them, and returns all consumers.
    pub(super) fn forget_leases(&mut self) -> Vec<u32> {
        let slots: Vec<u32> = self.all.iter().map(|(slot, _)| slot as u32).collect();
        for &slot in &slots {
            let consumer = &mut self.all[slot as usize];
            consumer.leased.clear();
            consumer.credit = consumer.credit.saturating_add(consumer.reserved);
            consumer.reserved = 0;
            consumer.transit.expect_nothing();
            self.enlist(slot);
        }
        slots
    }

    /// Notes that all of them leave.
    pub(super) fn leave_all(&self, transit: &mut Transit) {
        for (_, consumer) in &self.all {
            transit.leave(consumer.transit);
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = ConsumerId> {
        self.all.iter().map(|(_, consumer)| consumer.id)
    }

    /// Adds a consumer to the list of those that are ready; tells whether it was in none and is ready.
    fn enlist(&mut self, slot: u32) -> bool {
        let consumer = &mut self.all[slot as usize];
        let is_new = consumer.listing == Listing::None && consumer.is_ready();
        if is_new {
            consumer.listing = Listing::Ready;
            self.ready.push_back(slot);
        }
        is_new
    }
}
