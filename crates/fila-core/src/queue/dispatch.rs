//! Delivers messages: while a consumer wants one, the engine names a lane, and the queue leases its first message.

use std::time::Duration;

use drr::Cost;
use fila_store::Timestamp;

use super::blocked::BlockReason;
use super::counts::Stage;
use super::failing::Cause;
use super::lane::{Loading, OwedDelivery};
use super::message::{Handle, Holder, Message, State};
use super::redriving::room_for_moves;
use super::throttle_sets::Take;
use super::{Context, Queue};
use crate::memory::Memory;
use crate::throttle::Waiter;
use crate::{Charge, Delivering, Delivery};

/// The cost of a message if every message costs the same, in thousandths of a message.
pub(super) const MESSAGE: u64 = 1000;

/// The most lanes without a token that one call of [`Queue::dispatch`] visits.
pub(crate) const TURNED_AWAY_MAX: usize = 1024;

/// Where the next message of a lane is.
enum NextMessage {
    InMemory(Handle),
    /// Its payload, or all of it, has to be read first.
    InStore(Option<Handle>),
}

/// How a lane has used its turn.
enum Served {
    /// It delivered a message, or owes the delivery now.
    Charged,
    /// It lacks a token, and was not charged.
    Throttled,
    /// Too many reads are under way. It keeps its turn.
    MustWait,
}

impl Queue {
    /// Handles the due timers: messages that become ready, leases that end, messages that expire. Returns whether it handled
    /// all of them; the room of a round limits their number.
    pub(crate) fn fire<T>(&mut self, context: &mut Context<'_, T>) -> bool {
        let most = self.writes.batch.len().saturating_add(context.room);
        // A dead letter without room comes again in a moment: one attempt shows it for all of them.
        let moves = room_for_moves(*context.adopted).max(1);
        loop {
            if self.writes.batch.len() >= most || context.dead_letters.len() >= moves {
                let next = self.index.wheel.next_wake();
                return next.is_none_or(|wake| wake > context.now);
            }
            let Some(slot) = self.index.wheel.next_due(context.now) else {
                break;
            };
            let message = &mut self.index.messages[slot as usize];
            message.timer = None;
            let is_expired = message.is_expired(context.now);
            match message.state {
                State::Leased {
                    holder, is_begun, ..
                } => match holder {
                    Holder::Lost => self.end_lost(context, slot, is_begun),
                    Holder::Stream { .. } | Holder::Call => {
                        self.totals.lease_expired += 1;
                        self.fail(context, slot, &Cause::LeaseExpired);
                    }
                },
                State::Ready { .. } | State::Delayed | State::Failing { .. } if is_expired => {
                    self.expire(context, slot);
                }
                State::Failing { death, .. } => self.decide_late(context, slot, death),
                State::Delayed => self.become_ready(context.now, slot),
                State::Ready { .. } => {}
            }
        }
        let delayed_max = context.settings.limits.delayed_per_queue;
        self.index.resume_suspended(delayed_max);
        self.index.retry_reads(context.now);
        true
    }

    /// Makes a message ready whose time has come.
    fn become_ready(&mut self, now: Timestamp, slot: u32) {
        let meta = &self.index.messages[slot as usize].meta;
        let (since, expires_at) = (meta.deliver_after.unwrap_or(now), meta.expires_at);
        self.index.set_state(slot, State::Ready { since });
        self.index.arm(slot, expires_at);
    }

    /// Deletes a message that has expired.
    pub(super) fn expire<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        let message = self.index.remove(context.memory, slot);
        self.writes.batch.delete(message.locator());
        self.totals.expired += 1;
    }

    /// Delivers while a consumer wants a message, and a lane may deliver one.
    ///
    /// A lane whose message is not in memory pays for its turn all the same, and owes the delivery. So the order of
    /// lanes does not depend on what has to be read.
    ///
    /// Returns whether it is done. If very many lanes lack a token at the same time, the next call goes on.
    pub(crate) fn dispatch<T>(&mut self, context: &mut Context<'_, T>) -> bool {
        if self.definition.delivery == Delivering::Paused || self.awaits_order() {
            return true;
        }
        let mut turned_away = 0;
        while let Some(consumer) = self.consumers.next(&context.memory.transit) {
            let Some(number) = self.index.next_lane() else {
                return true;
            };
            if turned_away >= TURNED_AWAY_MAX {
                return false;
            }
            match self.serve(context, number, consumer) {
                Served::Charged => {}
                Served::Throttled => turned_away += 1,
                Served::MustWait => return true,
            }
        }
        true
    }

    /// Gives a lane its turn.
    #[inline]
    fn serve<T>(&mut self, context: &mut Context<'_, T>, number: u32, consumer: u32) -> Served {
        let head = match self.next_message(number) {
            // The deliveries that the lane owes come before this one.
            Some(NextMessage::InMemory(head)) if self.index.lane(number).owed.is_empty() => {
                if !self.pass(context, number, head, Take::Tokens) {
                    return Served::Throttled;
                }
                let owed = self.charge(context.now, number, consumer, Some(head));
                self.deliver(context, number, head, owed);
                self.load_ahead(context, number);
                return Served::Charged;
            }
            Some(NextMessage::InMemory(head)) => Some(head),
            Some(NextMessage::InStore(head)) => head,
            None => {
                debug_assert!(false, "a lane in the ring has a message");
                return Served::MustWait;
            }
        };
        if head.is_some_and(|head| !self.pass(context, number, head, Take::Nothing)) {
            return Served::Throttled;
        }
        if !self.ensure_load(context, number, head) {
            return Served::MustWait;
        }
        let owed = self.charge(context.now, number, consumer, head);
        let lane = self.index.lane_mut(number);
        lane.owed.push_back(owed);
        if let Loading::UnderWay(read) = &mut lane.loading {
            // If the message lacks a token, none of the deliveries that are owed can be made.
            read.is_last_owed = lane.sets.is_some();
        }
        Served::Charged
    }

    /// Tells whether there are tokens for a delivery of this message, and takes them if asked to. If there are none, its
    /// throttle set waits for them from now on.
    fn pass<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        head: Handle,
        take: Take,
    ) -> bool {
        let Some(set) = self.index.messages[head.slot as usize].set else {
            return true;
        };
        let queue = self.id;
        let claim = self.index.lanes.claim(queue, number);
        let lane = self.index.lanes.get_unmarked(number);
        let Some(sets) = &mut lane.sets else {
            return true;
        };
        let waiter = |slot, wait_id| {
            let waiter = Waiter {
                queue,
                lane: number,
                set,
                slot,
                wait_id,
            };
            (waiter, claim)
        };
        let (throttles, now) = (&mut *context.throttles, context.now);
        let Err(count) = sets.try_take(throttles, now, (set, head.id), take, waiter) else {
            return true;
        };
        self.index
            .count(number, count, Stage::Ready, Stage::Throttled);
        false
    }

    /// Returns where the next message of a lane is, if it has one.
    fn next_message(&mut self, number: u32) -> Option<NextMessage> {
        let Some(head) = self.index.head(number) else {
            let backlog = self.index.lane(number).backlog?;
            return (!backlog.is_parked).then_some(NextMessage::InStore(None));
        };
        let is_loaded = self.index.messages[head.slot as usize].payload.is_some();
        Some(if is_loaded {
            NextMessage::InMemory(head)
        } else {
            NextMessage::InStore(Some(head))
        })
    }

    /// Charges a lane whose turn it is. From now on it owes its message to the consumer.
    fn charge(
        &mut self,
        now: Timestamp,
        number: u32,
        consumer: u32,
        head: Option<Handle>,
    ) -> OwedDelivery {
        let lane = self.index.lane(number);
        let bytes = match head {
            Some(head) => self.index.messages[head.slot as usize].carried(),
            // Corrected when the message is read.
            None => lane.mean_stored_bytes().unwrap_or(0),
        };
        let charged = cost(self.definition.charge, bytes, lane.expected);
        let expected = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.index.charge(now, number, charged);
        OwedDelivery {
            consumer,
            name: self.consumers.reserve(consumer, expected),
            charged,
            expected,
        }
    }

    /// Makes the deliveries that a lane owes, as far as their messages are in memory now.
    pub(super) fn deliver_owed<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        may_deliver: bool,
    ) {
        while let Some(&owed) = self.index.lane(number).owed.front() {
            let is_wanted = self.consumers.awaits(owed.consumer, owed.name);
            let has_room = is_wanted
                && self
                    .consumers
                    .has_room(owed.consumer, &context.memory.transit);
            let may_deliver = has_room
                && may_deliver
                && self.definition.delivery == Delivering::Running
                && !self.awaits_order()
                && self
                    .index
                    .blocked(number, 0)
                    .without(BlockReason::ReadFailed)
                    .is_empty();
            let next = if may_deliver {
                self.next_message(number)
            } else {
                None
            };
            match next {
                // Otherwise it waits for a token, and perhaps another message does not.
                Some(NextMessage::InMemory(head)) => {
                    if self.pass(context, number, head, Take::Tokens) {
                        self.index.lane_mut(number).owed.pop_front();
                        self.deliver(context, number, head, owed);
                    }
                }
                Some(NextMessage::InStore(head)) if self.ensure_load(context, number, head) => {
                    return;
                }
                Some(NextMessage::InStore(_)) | None => {
                    self.cancel_owed(number, is_wanted, has_room);
                }
            }
        }
    }

    /// Cancels the first delivery that a lane owes. The lane has still used its turn: one that got it back could save
    /// turns up. There are two exceptions: a message that turned out to lack a token when it was read, and a consumer
    /// that has no room for the message any more.
    fn cancel_owed(&mut self, number: u32, is_wanted: bool, has_room: bool) {
        let lane = self.index.lane_mut(number);
        let is_throttled = lane.counts[Stage::Throttled] > 0;
        let Some(owed) = lane.owed.pop_front() else {
            return;
        };
        if is_wanted {
            self.consumers.refund(owed.consumer, owed.expected);
            if is_throttled || !has_room {
                let lanes = &mut self.index.lanes;
                lanes.settle_charge(number, owed.charged, Cost::new(0));
            }
        }
    }

    /// Leases a message that is in memory to its consumer.
    fn deliver<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        head: Handle,
        owed: OwedDelivery,
    ) {
        let now = context.now;
        let lease = self.lease_ids.next();
        let lease_time = self.consumers.lease_time(owed.consumer);
        let lease_time = lease_time.unwrap_or(self.definition.visibility_timeout);
        let index = &mut self.index;
        let weight = index.lanes.weight_of(number).value();
        let message = &mut index.messages[head.slot as usize];
        let payload = message
            .payload
            .take()
            .expect("a message is in memory when it is delivered");
        let waited = first_wait(message, now);
        message.was_delivered = true;
        let charged = match self.definition.charge {
            // Reading the message has not shown how long its delivery will take.
            Charge::Time => owed.charged,
            charge => cost(charge, message.carried(), owed.charged),
        };
        let delivery = Delivery {
            message: message.meta.lasting_id(message.id),
            lease,
            fairness_key: message.meta.schedule.fairness_key.clone(),
            payload,
            attempt: message.meta.attempts.saturating_add(1),
            lost: u32::from(message.lost),
            weight,
            enqueued_at: message.meta.enqueued_at,
            lease_time,
            history: message.meta.history.clone(),
        };
        let (whole, bare) = (Memory::whole(message.meta.sizes), Memory::bare());
        index.resize(context.memory, whole, bare);
        let transit = &mut context.memory.transit;
        let holder = self.consumers.give(transit, owed, head.slot, &delivery);
        context.effects.deliveries.push((owed.name, delivery));
        let leased = State::Leased {
            lease,
            holder,
            is_begun: false,
            since: now,
            charged,
        };
        index.set_state(head.slot, leased);
        index.leases.insert(lease, head.slot);
        index.arm(head.slot, Some(now.saturating_add(lease_time)));
        if charged != owed.charged {
            index.lanes.settle_charge(number, owed.charged, charged);
        }
        self.count_delivery(number, waited);
    }

    /// Counts a delivery; `waited` is how long the message has waited for its first.
    fn count_delivery(&mut self, number: u32, waited: Option<Duration>) {
        self.index.lanes.count_delivery(number);
        let of_lane = &mut self.index.lanes.get_unmarked(number).totals;
        self.totals.delivered += 1;
        if let Some(waited) = waited {
            of_lane.first_delivered += 1;
            // Timestamps have milliseconds.
            of_lane.waited_ms += waited.as_millis() as u64;
            self.totals.first_delivered += 1;
            self.totals.waited += waited;
        }
    }
}

/// Returns how long a message has waited for its first delivery, if it is still to come.
fn first_wait(message: &Message, now: Timestamp) -> Option<Duration> {
    match message.state {
        State::Ready { since } if !message.was_delivered => Some(now.since(since)),
        State::Ready { .. } | State::Delayed | State::Failing { .. } | State::Leased { .. } => None,
    }
}

/// Returns the charge at the start of a delivery of a message with this many bytes.
///
/// Where the queue charges by time, that is the recent mean of the key. With a smaller charge, a key whose messages take
/// long would get all places of a consumer before the first result shows their cost.
pub(super) fn cost(charge: Charge, bytes: u64, expected: Cost) -> Cost {
    match charge {
        Charge::Message => Cost::new(MESSAGE),
        Charge::Time => expected,
        Charge::Bytes => Cost::new(bytes.saturating_mul(MESSAGE).div_ceil(1024)),
    }
}
