//! How deliveries end: by a result, by time, or with their consumer.
//!
//! # A consumer that leaves
//! ```text
//!                       ┌── Closed, not begun ─────────────────────────▶ Ready
//! Leased, with a stream ┤                            ┌── not begun ────▶ Ready
//!          ▲            └── else ──▶ Leased, lost ───┤ (grace)
//!          │                              │          └── begun ────────▶ Failing
//!          └── extended by a stream ──────┴──▶ extended by a call: Leased, until it runs out
//! ```
//! A lost lease is like any other: results are taken from any stream or call. If the server itself has ended the stream
//! because it stops, the lease is as if a call had extended it: it lasts until it runs out. So do the leases of a call that
//! took messages and was answered.

use std::time::Duration;

use drr::Cost;

use super::failing::Cause;
use super::message::{Holder, State};
use super::{Context, Queue};
use crate::{
    Beginnings, Charge, Departure, LeaseId, RECONNECT_GRACE, SettleError, Settlement, Verdict,
};

/// Whether a round has to be stored before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    Something,
    Nothing,
}

impl Queue {
    /// Takes the result of a delivery, which the consumer `by` reports on its stream, or a call.
    pub(crate) fn settle<T>(
        &mut self,
        context: &mut Context<'_, T>,
        settlement: Settlement,
        by: Option<u32>,
    ) -> Result<Stores, SettleError> {
        let Some(&slot) = self.index.leases.get(&settlement.lease) else {
            self.totals.late += 1;
            return Err(SettleError::LeaseNotFound);
        };
        let message = &self.index.messages[slot as usize];
        let id = message.meta.lasting_id(message.id);
        if settlement.message.is_some_and(|named| named != id) {
            return Err(SettleError::AnotherMessage);
        }
        let max = context.settings.limits.delay;
        match settlement.verdict {
            Verdict::Ack => {
                self.totals.acked += 1;
                self.acknowledge(context, slot);
                Ok(Stores::Something)
            }
            Verdict::Nack {
                delay: Some(found), ..
            } if found > max => Err(SettleError::TooLong { found, max }),
            Verdict::Nack { delay, error } => {
                self.totals.nacked += 1;
                let lane = message.lane;
                self.index.lanes.get_unmarked(lane).totals.nacked += 1;
                self.fail(context, slot, &Cause::Nacked { delay, error });
                Ok(Stores::Something)
            }
            Verdict::Begin => {
                self.begin(slot);
                Ok(Stores::Nothing)
            }
            Verdict::Extend { by: Some(time) } if time > max => {
                Err(SettleError::TooLong { found: time, max })
            }
            Verdict::Extend { by: time } => {
                let time = time.unwrap_or(self.definition.visibility_timeout);
                let deadline = context.now.saturating_add(time);
                self.hold(context, slot, by);
                self.index.arm(slot, Some(deadline));
                Ok(Stores::Nothing)
            }
            Verdict::Release => {
                self.totals.released += 1;
                let writes = self.writes.batch.len();
                self.give_back(context, slot);
                // Its life may have ended meanwhile.
                Ok(if self.writes.batch.len() == writes {
                    Stores::Nothing
                } else {
                    Stores::Something
                })
            }
        }
    }

    fn acknowledge<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        let held = self.end_lease(context, slot);
        let lane = self.index.messages[slot as usize].lane;
        let lane = self.index.lanes.get_unmarked(lane);
        if self.definition.charge != Charge::Time {
            lane.observe_hold(held);
        }
        lane.totals.acked += 1;
        self.depart(context, slot);
    }

    /// Ends a lease as if it had never been: the message goes back to its place at once.
    fn give_back<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        self.end_lease(context, slot);
        let message = &self.index.messages[slot as usize];
        let (is_expired, expires_at) = (message.is_expired(context.now), message.meta.expires_at);
        // Its time had come when it was delivered, and does not go back.
        let ready = State::Ready { since: context.now };
        self.index.set_state(slot, ready);
        if is_expired {
            self.expire(context, slot);
        } else {
            self.index.arm(slot, expires_at);
        }
    }

    /// Takes a message from its consumer, and returns how long it was there. The caller moves it to its next state.
    pub(super) fn end_lease<T>(&mut self, context: &mut Context<'_, T>, slot: u32) -> Duration {
        let message = &mut self.index.messages[slot as usize];
        let State::Leased {
            lease,
            holder,
            since,
            charged,
            ..
        } = message.state
        else {
            unreachable!("the caller found it by its lease");
        };
        let lane = message.lane;
        if let Some(timer) = message.timer.take() {
            self.index.wheel.stop(timer);
        }
        self.index.leases.remove(&lease);
        let held = context.now.since(since);
        if self.definition.charge == Charge::Time {
            let micros = held.as_micros();
            let actual = Cost::new(u64::try_from(micros).unwrap_or(u64::MAX));
            let expected = &mut self.index.lanes.get_unmarked(lane).expected;
            let before = expected.value();
            *expected = Cost::new(before - before / 4 + actual.value() / 4);
            self.index.lanes.settle_charge(lane, charged, actual);
        }
        self.detach(context, holder);
        held
    }

    /// Takes a message out of the list of its consumer, which is dismissed if it is draining and this was its last one.
    fn detach<T>(&mut self, context: &mut Context<'_, T>, holder: Holder) {
        let Holder::Stream { consumer, position } = holder else {
            return;
        };
        if let Some(moved) = self.consumers.take(consumer, position)
            && let State::Leased {
                holder: Holder::Stream {
                    position: place, ..
                },
                ..
            } = &mut self.index.messages[moved as usize].state
        {
            *place = position;
        }
        self.dismiss_drained(context, consumer);
    }

    /// Lets the consumer that extends a lease hold it from now on; without one, a call.
    fn hold<T>(&mut self, context: &mut Context<'_, T>, slot: u32, by: Option<u32>) {
        let State::Leased { holder: before, .. } = self.index.messages[slot as usize].state else {
            return;
        };
        // A consumer that was draining may have been dismissed by a result of the same command.
        let by = by.filter(|by| self.consumers.contains(*by));
        let after = match (before, by) {
            (Holder::Stream { consumer, .. }, Some(by)) if consumer == by => return,
            (Holder::Stream { .. } | Holder::Call, None) => return,
            (Holder::Lost, None) => Holder::Call,
            (_, Some(by)) => self.consumers.attach(by, slot),
        };
        self.set_holder(slot, after);
        self.detach(context, before);
    }

    /// Notes that a handler has begun.
    fn begin(&mut self, slot: u32) {
        if let State::Leased { is_begun, .. } = &mut self.index.messages[slot as usize].state {
            *is_begun = true;
        }
    }

    fn set_holder(&mut self, slot: u32, to: Holder) {
        if let State::Leased { holder, .. } = &mut self.index.messages[slot as usize].state {
            *holder = to;
        }
    }

    /// Removes a consumer, and decides on its leases in the order of their deliveries.
    pub(crate) fn unsubscribe<T>(
        &mut self,
        context: &mut Context<'_, T>,
        consumer: u32,
        departure: Departure,
        mut unsent: Vec<LeaseId>,
    ) {
        unsent.sort_unstable();
        let transit = &mut context.memory.transit;
        let (beginnings, slots) = self.consumers.remove(transit, consumer);
        let mut leases = Vec::with_capacity(slots.len());
        for slot in slots {
            if let State::Leased { lease, holder, .. } =
                &mut self.index.messages[slot as usize].state
            {
                *holder = Holder::Lost;
                leases.push((self.lease_ids.number(*lease), *lease, slot));
            }
        }
        leases.sort_unstable();
        let mut assumed = beginnings == Beginnings::Assumed;
        for (_, lease, slot) in leases {
            if unsent.binary_search(&lease).is_ok() {
                self.totals.released += 1;
                self.give_back(context, slot);
            } else {
                self.part(context, slot, departure, std::mem::take(&mut assumed));
            }
        }
    }

    /// Parts a lease from its consumer, which has left. If it is `assumed` to be begun, it is.
    fn part<T>(
        &mut self,
        context: &mut Context<'_, T>,
        slot: u32,
        departure: Departure,
        assumed: bool,
    ) {
        let message = &mut self.index.messages[slot as usize];
        if let State::Leased {
            is_begun, holder, ..
        } = &mut message.state
        {
            *is_begun |= assumed;
            match departure {
                Departure::Closed if !*is_begun => {
                    self.totals.released += 1;
                    return self.give_back(context, slot);
                }
                Departure::Stopped | Departure::Answered => {
                    *holder = Holder::Call;
                    return;
                }
                Departure::Closed | Departure::Lost => {}
            }
        }
        let grace = context.now.saturating_add(RECONNECT_GRACE);
        let end = message.timer.map(|timer| self.index.wheel.deadline(timer));
        let end = end.map_or(grace, |end| end.min(grace));
        self.index.arm(slot, Some(end));
    }

    /// Ends a lease whose consumer was lost and has not come back.
    pub(super) fn end_lost<T>(&mut self, context: &mut Context<'_, T>, slot: u32, is_begun: bool) {
        self.totals.released += 1;
        let lost = &mut self.index.messages[slot as usize].lost;
        *lost = lost.saturating_add(1);
        if is_begun {
            self.fail(context, slot, &Cause::ConsumerLost);
        } else {
            self.give_back(context, slot);
        }
    }
}
