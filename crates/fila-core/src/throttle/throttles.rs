//! All throttles of one broker: what waits for their tokens, and to which throttle set a token is offered next.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fila_store::{ThrottleKey, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::TokenSource;
use super::bucket_queue::{BucketQueue, Precedence, WaitSlot, Waiter};
use super::claim::Claim;

/// The most offers of one poll, so that the removal of a throttle does not stop everything else.
pub(crate) const OFFERS_MAX: usize = 1024;

/// How many waiters of a queue are inspected when one more joins, to find stale ones; and from which length on.
const INSPECTIONS: usize = 2;
const INSPECT_FROM: usize = 64;

/// Unused queues are looked for at this number of queues, and then whenever the number has doubled.
const SWEEP_MIN: usize = 64;

/// The bucket queues of all throttle keys that messages of one broker name.
#[derive(Debug)]
pub(crate) struct Throttles {
    source: Box<dyn TokenSource>,
    queues: Slab<BucketQueue>,
    numbers: HashMap<ThrottleKey, u32, RandomState>,
    /// When each queue has its next token to offer.
    alarms: BTreeSet<(Timestamp, u32)>,
    /// The queues that may have a token to offer now.
    due: Vec<u32>,
    /// The queues that have offered a token in this poll.
    offering: Vec<u32>,
    /// The long queues that sets have joined since the last [`remove_stale`](Self::remove_stale), once for each set.
    joined: Vec<u32>,
    sweep_at: usize,
    last_wait_id: u64,
    polls: u64,
    /// How many offers there were so far.
    offers: u64,
}

/// A token for a throttle set that waits.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) waiter: Waiter,
    queue: u32,
    precedence: Precedence,
}

/// There is no token for a throttle set in this one of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoToken {
    pub(crate) slot: usize,
}

impl Throttles {
    pub(crate) fn new(source: Box<dyn TokenSource>) -> Self {
        Self {
            source,
            queues: Slab::new(),
            numbers: HashMap::default(),
            alarms: BTreeSet::new(),
            due: Vec::new(),
            offering: Vec::new(),
            joined: Vec::new(),
            sweep_at: SWEEP_MIN,
            last_wait_id: 0,
            polls: 0,
            offers: 0,
        }
    }

    /// Returns a wait slot for each of these keys.
    pub(crate) fn slots(&mut self, keys: &[ThrottleKey]) -> Vec<WaitSlot> {
        let mut slots: Vec<WaitSlot> = Vec::with_capacity(keys.len());
        for key in keys {
            let queue = self.find_or_add(key);
            if slots.iter().all(|slot| slot.queue != queue) {
                slots.push(WaitSlot {
                    queue,
                    standing: None,
                    offered_in: None,
                    has_paid: false,
                });
            }
        }
        slots
    }

    fn find_or_add(&mut self, key: &ThrottleKey) -> Arc<u32> {
        if let Some(&number) = self.numbers.get(key) {
            return self.queues[number as usize].number.clone();
        }
        if self.queues.len() >= self.sweep_at {
            self.sweep();
        }
        let entry = self.queues.vacant_entry();
        let number = Arc::new(entry.key() as u32);
        let bucket = self.source.find(key);
        entry.insert(BucketQueue::new(key.clone(), bucket, number.clone()));
        self.numbers.insert(key.clone(), *number);
        number
    }

    /// Removes the queues without a wait slot.
    fn sweep(&mut self) {
        let (numbers, alarms) = (&mut self.numbers, &mut self.alarms);
        self.queues.retain(|number, queue| {
            let is_used = Arc::strong_count(&queue.number) > 1;
            if !is_used {
                numbers.remove(&queue.key);
                if let Some(alarm) = queue.alarm {
                    alarms.remove(&(alarm, number as u32));
                }
            }
            is_used
        });
        let queues = &self.queues;
        for list in [&mut self.due, &mut self.offering, &mut self.joined] {
            list.retain(|number| queues.contains(*number as usize));
        }
        self.sweep_at = (self.queues.len() * 2).max(SWEEP_MIN);
    }

    /// Finds the buckets of these keys again. The next poll offers their tokens.
    pub(crate) fn rethrottle(&mut self, keys: &[ThrottleKey]) {
        for key in keys {
            if let Some(&number) = self.numbers.get(key) {
                self.queues[number as usize].bucket = self.source.find(key);
                self.mark_due(number);
            }
        }
    }

    /// Looks for a token in each of these slots. A throttle set without an offer gets no token that others wait for.
    ///
    /// # Errors
    /// If there is none: the slot of the slowest bucket without one, in which the set has to wait.
    pub(crate) fn check(
        &mut self,
        now: Timestamp,
        slots: &[WaitSlot],
        wait_id: u64,
        has_offer: bool,
    ) -> Result<(), NoToken> {
        let queues = &mut self.queues;
        let without = slots.iter().enumerate().filter_map(|(index, slot)| {
            let checked = queues[*slot.queue as usize].check(now, wait_id, has_offer);
            checked.err().map(|rate| (rate, index))
        });
        without
            .min()
            .map_or(Ok(()), |(_, slot)| Err(NoToken { slot }))
    }

    /// Takes a token from the bucket of each of these slots.
    ///
    /// # Errors
    /// If one has none: then no token is taken.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        slots: &mut [WaitSlot],
        wait_id: u64,
    ) -> Result<(), NoToken> {
        for index in 0..slots.len() {
            let bucket = &mut self.queues[*slots[index].queue as usize].bucket;
            let is_taken = bucket.as_mut().is_none_or(|bucket| bucket.take(now));
            if !is_taken {
                // Another broker was faster.
                for slot in &slots[..index] {
                    if let Some(bucket) = &mut self.queues[*slot.queue as usize].bucket {
                        bucket.give_back();
                    }
                }
                return Err(NoToken { slot: index });
            }
        }
        for slot in slots {
            let queue = &mut self.queues[*slot.queue as usize];
            queue.end_offer(slot, self.polls);
            queue.cancel_reservation(wait_id);
        }
        Ok(())
    }

    /// Returns the id of a new wait.
    pub(crate) fn next_wait_id(&mut self) -> u64 {
        self.last_wait_id += 1;
        self.last_wait_id
    }

    /// Lets a throttle set wait in one of its slots. `previous` is the id of its wait before this one.
    pub(crate) fn wait(
        &mut self,
        now: Timestamp,
        slots: &mut [WaitSlot],
        waiter: Waiter,
        claim: &Claim,
        previous: u64,
    ) {
        let has_reserved = self.reserve(now, slots, waiter, previous);
        let slot = &mut slots[waiter.slot];
        let number = *slot.queue;
        let queue = &mut self.queues[number as usize];
        if has_reserved {
            queue.push_priority(waiter);
        } else {
            queue.push(slot, waiter, claim, self.polls);
            if queue.in_ring >= INSPECT_FROM {
                self.joined.push(number);
            }
        }
        self.schedule(now, number);
    }

    /// Reserves the tokens that were offered to a throttle set, of the buckets that are slower than the one that it waits
    /// for; tells whether there are such.
    fn reserve(
        &mut self,
        now: Timestamp,
        slots: &mut [WaitSlot],
        waiter: Waiter,
        previous: u64,
    ) -> bool {
        let awaited = *slots[waiter.slot].queue;
        let Some((until, rate)) = self.queues[awaited as usize].next_priority(now) else {
            return false;
        };
        let mut has_reserved = false;
        for (index, slot) in slots.iter_mut().enumerate() {
            let number = *slot.queue;
            let queue = &mut self.queues[number as usize];
            let had_reserved = queue.cancel_reservation(previous);
            if index == waiter.slot {
                continue;
            }
            let bucket = queue.bucket.as_ref();
            // Numbers order the buckets of equal rates, so that no sets wait in a circle.
            let is_slower = bucket.is_some_and(|it| (it.rate(), number) < (rate, awaited));
            if is_slower && (slot.offered_in.is_some() || had_reserved) {
                queue.end_offer(slot, self.polls);
                queue.reserve(
                    waiter.wait_id,
                    until.saturating_add(Duration::from_millis(1)),
                );
                has_reserved = true;
                self.schedule(now, number);
            }
        }
        has_reserved
    }

    /// Offers a token to the next waiter. The caller [accepts](Self::accept) or [declines](Self::decline) it.
    pub(crate) fn offer(&mut self, now: Timestamp) -> Option<Offer> {
        while let Some(number) = self.next_due(now) {
            let queue = &mut self.queues[number as usize];
            let next = if queue.has_free_token(now) {
                queue.pop()
            } else {
                None
            };
            let Some((waiter, precedence)) = next else {
                queue.is_due = false;
                self.due.pop();
                self.schedule(now, number);
                continue;
            };
            if queue.offered == 0 {
                self.offering.push(number);
            }
            queue.offered += 1;
            self.offers += 1;
            return Some(Offer {
                waiter,
                queue: number,
                precedence,
            });
        }
        None
    }

    /// Returns a queue that is due. It stays due until it has nothing to offer.
    fn next_due(&mut self, now: Timestamp) -> Option<u32> {
        while let Some(&(moment, number)) = self.alarms.first() {
            if moment > now {
                break;
            }
            self.alarms.pop_first();
            self.queues[number as usize].alarm = None;
            self.mark_due(number);
        }
        self.due.last().copied()
    }

    /// Accepts an offer, in the slot in which the throttle set waited.
    pub(crate) fn accept(&self, offer: &Offer, slot: &mut WaitSlot) {
        slot.offered_in = Some(self.polls);
        match offer.precedence {
            Precedence::Ring(served) => (slot.standing, slot.has_paid) = (served.standing, true),
            Precedence::Reservation => slot.has_paid = false,
        }
    }

    /// Declines an offer to a throttle set that waits no longer.
    pub(crate) fn decline(&mut self, offer: &Offer) {
        self.queues[offer.queue as usize].decline(offer.precedence);
    }

    /// Inspects a few waiters of the queues that have grown, and removes the stale ones. So their number stays small.
    pub(crate) fn remove_stale(&mut self, is_waiting: impl Fn(&Waiter) -> bool) {
        for number in self.joined.drain(..) {
            for _ in 0..INSPECTIONS {
                self.queues[number as usize].remove_stale(&is_waiting);
            }
        }
    }

    /// Ends a poll. Offered tokens that were not taken are free again.
    pub(crate) fn end_poll(&mut self, now: Timestamp) {
        self.polls += 1;
        while let Some(number) = self.offering.pop() {
            self.queues[number as usize].offered = 0;
            self.schedule(now, number);
        }
    }

    /// Returns when the next queue has a token to offer.
    pub(crate) fn next_alarm(&self) -> Option<Timestamp> {
        self.alarms.first().map(|(moment, _)| *moment)
    }

    /// Tells whether a queue may have a token to offer now.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Returns the key that a throttle set waits for, and when it gets its token, if all sets before it take theirs; none if
    /// that is never.
    pub(crate) fn forecast(
        &mut self,
        now: Timestamp,
        slot: &WaitSlot,
        wait_id: u64,
    ) -> (&ThrottleKey, Option<Timestamp>) {
        let queue = &mut self.queues[*slot.queue as usize];
        let when = queue.arrival(now, wait_id);
        (&queue.key, when)
    }

    /// Returns how many queues there are, and how many offers there were so far.
    #[cfg(test)]
    pub(crate) fn work(&self) -> (usize, u64) {
        (self.queues.len(), self.offers)
    }

    /// Returns how many sets wait, with the stale ones.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.waiting()).sum()
    }

    /// Sets the alarm of a queue to its next offer.
    fn schedule(&mut self, now: Timestamp, number: u32) {
        let queue = &mut self.queues[number as usize];
        // A set that was offered a token waits again if it has more messages.
        let is_waiting = queue.waiting() > 0 || queue.offered > 0;
        if let Some(bucket) = &mut queue.bucket {
            bucket.set_waiting(now, is_waiting);
        }
        let next = queue.next_offer(now);
        if next.is_some_and(|next| next <= now) {
            return self.mark_due(number);
        }
        if next != queue.alarm {
            if let Some(alarm) = queue.alarm {
                self.alarms.remove(&(alarm, number));
            }
            queue.alarm = next;
            self.alarms.extend(next.map(|next| (next, number)));
        }
    }

    fn mark_due(&mut self, number: u32) {
        let queue = &mut self.queues[number as usize];
        if !std::mem::replace(&mut queue.is_due, true) {
            self.due.push(number);
        }
    }
}
