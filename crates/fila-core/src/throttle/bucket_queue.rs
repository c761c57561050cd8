//! The throttle sets that wait for tokens of one bucket, and the order in which they get them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use drr::{Cost, Standing};
use fila_store::{QueueId, ThrottleKey, Timestamp};

use super::Tokens;
use super::claim::Claim;
use super::wait_ring::{ServedWaiter, TOKEN_COST, WaitRing};

/// A forecast looks at no more waiters than this.
const FORECAST_MAX: usize = 1000;

/// A bucket, and the throttle sets that wait for its tokens.
#[derive(Debug)]
pub(super) struct BucketQueue {
    pub(super) key: ThrottleKey,
    /// None if the key is not throttled.
    pub(super) bucket: Option<Box<dyn Tokens>>,
    /// Every wait slot has a clone, so the reference count tells whether the queue is in use.
    pub(super) number: Arc<u32>,
    /// The order of the waiters. The first wait creates it.
    ring: Option<Box<WaitRing>>,
    /// The waiters of the ring, at the indexes of their keys. Some may be stale, after a purge, say: an offer or
    /// [`remove_stale`](Self::remove_stale) finds them.
    waiters: Vec<Option<(drr::Key, Waiter)>>,
    pub(super) in_ring: usize,
    /// The index in `waiters` that [`remove_stale`](Self::remove_stale) looked at last.
    inspected: usize,
    /// The waiters that have reserved a token of a slower bucket. They come before the ring.
    priority: VecDeque<Waiter>,
    /// How many tokens have been offered in this poll and not taken since.
    pub(super) offered: u64,
    reservations: Vec<Reservation>,
    pub(super) alarm: Option<Timestamp>,
    pub(super) is_due: bool,
}

/// A token that only one throttle set may take, for a while.
#[derive(Clone, Copy, Debug)]
struct Reservation {
    wait_id: u64,
    until: Timestamp,
}

/// A throttle set's access to one bucket queue.
#[derive(Debug)]
pub(crate) struct WaitSlot {
    pub(super) queue: Arc<u32>,
    /// The set's debt in the ring, as of its last offer.
    pub(super) standing: Option<Standing>,
    /// The poll in which the set was offered a token that it has not taken since.
    pub(super) offered_in: Option<u64>,
    /// Whether the set has paid for that offer in the ring.
    pub(super) has_paid: bool,
}

/// A throttle set that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) queue: QueueId,
    pub(crate) lane: u32,
    pub(crate) set: u32,
    /// The index of the wait slot in which it waits.
    pub(crate) slot: usize,
    /// Identifies this wait. The set's next wait has another id.
    pub(crate) wait_id: u64,
}

/// Why a waiter is next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Precedence {
    /// The ring chose it. It has paid.
    Ring(ServedWaiter),
    /// It has a reservation. It has not paid, and its standing is unchanged.
    Reservation,
}

impl BucketQueue {
    pub(super) fn new(key: ThrottleKey, bucket: Option<Box<dyn Tokens>>, number: Arc<u32>) -> Self {
        Self {
            key,
            bucket,
            number,
            ring: None,
            waiters: Vec::new(),
            in_ring: 0,
            inspected: 0,
            priority: VecDeque::new(),
            offered: 0,
            reservations: Vec::new(),
            alarm: None,
            is_due: false,
        }
    }

    /// Returns how many sets wait, with the stale ones.
    pub(super) fn waiting(&self) -> usize {
        self.in_ring + self.priority.len()
    }

    /// Looks for a token that a throttle set may take. Without an offer it gets no token that others wait for.
    ///
    /// # Errors
    /// If there is none: the rate of the bucket.
    pub(super) fn check(
        &mut self,
        now: Timestamp,
        wait_id: u64,
        has_offer: bool,
    ) -> Result<(), u128> {
        self.expire_reservations(now);
        let reservations = self.reservations.iter();
        let others = reservations.filter(|it| it.wait_id != wait_id).count() as u64;
        let waiting = self.waiting();
        let Some(bucket) = &mut self.bucket else {
            return Ok(());
        };
        let free = bucket.available(now).saturating_sub(others);
        let may_take = if has_offer {
            free > 0
        } else {
            free > self.offered && waiting == 0
        };
        if may_take { Ok(()) } else { Err(bucket.rate()) }
    }

    fn expire_reservations(&mut self, now: Timestamp) {
        self.reservations.retain(|it| it.until > now);
    }

    pub(super) fn reserve(&mut self, wait_id: u64, until: Timestamp) {
        self.reservations.push(Reservation { wait_id, until });
    }

    /// Ends the reservation of a wait; tells whether there was one.
    pub(super) fn cancel_reservation(&mut self, wait_id: u64) -> bool {
        let before = self.reservations.len();
        self.reservations.retain(|it| it.wait_id != wait_id);
        self.reservations.len() < before
    }

    /// Returns how many tokens are reserved or offered.
    fn promised(&mut self, now: Timestamp) -> u64 {
        self.expire_reservations(now);
        self.reservations.len() as u64 + self.offered
    }

    /// Tells whether there is a token that is neither reserved nor offered.
    pub(super) fn has_free_token(&mut self, now: Timestamp) -> bool {
        let promised = self.promised(now);
        let bucket = self.bucket.as_mut();
        bucket.is_none_or(|bucket| bucket.available(now) > promised)
    }

    /// Returns when a waiter that joins `priority` now gets its token, and the rate of the bucket; none if no token comes.
    pub(super) fn next_priority(&mut self, now: Timestamp) -> Option<(Timestamp, u128)> {
        let bucket = self.bucket.as_mut()?;
        let place = 1 + self.priority.len() as u64;
        // A bucket with a small burst never holds `place` tokens.
        let when = bucket.when(now, place).or_else(|| bucket.when(now, 1))?;
        Some((when, bucket.rate()))
    }

    /// Returns when there is a token to offer, if a set waits.
    pub(super) fn next_offer(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.waiting() == 0 {
            return None;
        }
        let promised = self.promised(now);
        let Some(bucket) = &mut self.bucket else {
            return Some(now);
        };
        let mut token = bucket.when(now, promised + 1);
        if token.is_some_and(|token| token <= now) && bucket.available(now) <= promised {
            // It is another broker's turn, for a moment.
            token = Some(now.saturating_add(Duration::from_millis(1)));
        }
        let expiry = self.reservations.iter().map(|it| it.until).min();
        [token, expiry].into_iter().flatten().min()
    }

    /// Returns when the token comes for a wait, if all sets before it take theirs and wait again; none if that is never.
    pub(super) fn arrival(&mut self, now: Timestamp, wait_id: u64) -> Option<Timestamp> {
        let others = self.promised(now) + self.waiting_before(wait_id);
        let Some(bucket) = &mut self.bucket else {
            return Some(now);
        };
        bucket.arrival(now, others + 1)
    }

    /// Returns how many offers come before a wait's; all that wait, if they are too many to look at.
    fn waiting_before(&self, wait_id: u64) -> u64 {
        let mut priority = self.priority.iter().take(FORECAST_MAX);
        if let Some(place) = priority.position(|waiter| waiter.wait_id == wait_id) {
            return place as u64;
        }
        let priority = self.priority.len() as u64;
        let Some(ring) = &self.ring else {
            return priority;
        };
        let mut forecast = ring.forecast();
        for place in 0..FORECAST_MAX {
            let Some(key) = forecast.next_key() else {
                break;
            };
            if self.waiters[key.index()].is_some_and(|(_, waiter)| waiter.wait_id == wait_id) {
                return priority + place as u64;
            }
            let known = forecast.charge(key, Cost::new(TOKEN_COST));
            known.expect("the forecast has just named it");
        }
        self.waiting() as u64
    }

    /// Ends the offer to a throttle set, which takes its token or waits again; tells whether there was one.
    pub(super) fn end_offer(&mut self, slot: &mut WaitSlot, poll: u64) -> bool {
        let offered_in = slot.offered_in.take();
        if offered_in == Some(poll) {
            self.offered -= 1;
        }
        offered_in.is_some()
    }

    /// Puts a waiter behind those that have reservations as well.
    pub(super) fn push_priority(&mut self, waiter: Waiter) {
        self.priority.push_back(waiter);
    }

    /// Puts a waiter into the ring.
    pub(super) fn push(&mut self, slot: &mut WaitSlot, waiter: Waiter, claim: &Claim, poll: u64) {
        let is_unused = self.end_offer(slot, poll) && slot.has_paid;
        let ring = self.ring.get_or_insert_with(|| Box::new(WaitRing::new()));
        let key = ring.add(slot.standing.take(), claim);
        if is_unused {
            // The set paid for a token and did not get it.
            ring.refund(key);
        }
        let index = key.index();
        if self.waiters.len() <= index {
            self.waiters.resize(index + 1, None);
        }
        self.waiters[index] = Some((key, waiter));
        self.in_ring += 1;
    }

    /// Inspects one waiter of the ring, and removes it if it waits no longer.
    pub(super) fn remove_stale(&mut self, is_waiting: impl Fn(&Waiter) -> bool) {
        self.inspected = (self.inspected + 1) % self.waiters.len().max(1);
        let Some(place) = self.waiters.get_mut(self.inspected) else {
            return;
        };
        if let (Some((key, waiter)), Some(ring)) = (*place, &mut self.ring)
            && !is_waiting(&waiter)
        {
            *place = None;
            self.in_ring -= 1;
            // No set comes back for this standing.
            ring.remove(key);
        }
    }

    /// Takes out the next waiter.
    pub(super) fn pop(&mut self) -> Option<(Waiter, Precedence)> {
        if let Some(waiter) = self.priority.pop_front() {
            return Some((waiter, Precedence::Reservation));
        }
        let ring = self.ring.as_mut()?;
        let key = ring.next()?;
        let waiter = self.waiters[key.index()].take().map(|(_, waiter)| waiter);
        let served = ring.serve(key);
        self.in_ring -= 1;
        let waiter = waiter.expect("every key of the ring has a waiter");
        Some((waiter, Precedence::Ring(served)))
    }

    /// Takes back an offer that the ring chose and its waiter does not need any more.
    pub(super) fn decline(&mut self, precedence: Precedence) {
        self.offered = self.offered.saturating_sub(1);
        if let (Precedence::Ring(served), Some(ring)) = (precedence, &mut self.ring) {
            ring.refund_group(served);
        }
    }
}
