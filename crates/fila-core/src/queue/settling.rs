//! How deliveries end: by a result, by time, or with their consumer.

use drr::Cost;

use super::failing::Cause;
use super::message::State;
use super::{Context, Queue};
use crate::{Charge, SettleError, Settlement, Verdict};

/// Whether a round has to be stored before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    Something,
    Nothing,
}

impl Queue {
    /// Takes the result of a delivery.
    pub(crate) fn settle<T>(
        &mut self,
        context: &mut Context<'_, T>,
        settlement: Settlement,
    ) -> Result<Stores, SettleError> {
        let Some(&slot) = self.index.leases.get(&settlement.lease) else {
            self.totals.late += 1;
            return Err(SettleError::LeaseNotFound);
        };
        let message = &self.index.messages[slot as usize];
        if settlement.message.is_some_and(|id| id != message.id) {
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
            Verdict::Extend { by: Some(by) } if by > max => {
                Err(SettleError::TooLong { found: by, max })
            }
            Verdict::Extend { by } => {
                let by = by.unwrap_or(self.definition.visibility_timeout);
                let deadline = context.now.saturating_add(by);
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
        self.end_lease(context, slot);
        let lane = self.index.messages[slot as usize].lane;
        self.index.lanes.get_unmarked(lane).totals.acked += 1;
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

    /// Takes a message from its consumer. The caller moves it to its next state.
    pub(super) fn end_lease<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        let message = &mut self.index.messages[slot as usize];
        let State::Leased {
            lease,
            consumer,
            position,
            since,
            charged,
        } = message.state
        else {
            unreachable!("the caller found it by its lease");
        };
        let lane = message.lane;
        if let Some(timer) = message.timer.take() {
            self.index.wheel.stop(timer);
        }
        self.index.leases.remove(&lease);
        if let Some(moved) = self.consumers.take(consumer, position)
            && let State::Leased {
                position: place, ..
            } = &mut self.index.messages[moved as usize].state
        {
            *place = position;
        }
        if self.definition.charge == Charge::Time {
            let micros = context.now.since(since).as_micros();
            let actual = Cost::new(u64::try_from(micros).unwrap_or(u64::MAX));
            let expected = &mut self.index.lanes.get_unmarked(lane).expected;
            let before = expected.value();
            *expected = Cost::new(before - before / 4 + actual.value() / 4);
            self.index.lanes.settle_charge(lane, charged, actual);
        }
        self.dismiss_drained(context, consumer);
    }

    /// Removes a consumer, and gives back what it has.
    pub(crate) fn unsubscribe<T>(&mut self, context: &mut Context<'_, T>, consumer: u32) {
        self.consumers.leave(consumer);
        while let Some(slot) = self.consumers.some_leased(consumer) {
            self.totals.released += 1;
            self.fail(context, slot, &Cause::ConsumerGone);
        }
        self.consumers.remove(consumer);
    }
}
