//! How deliveries end: by a result, by time, or with their consumer.

use std::time::Duration;

use drr::Cost;

use super::admission::earliest;
use super::line::Join;
use super::message::State;
use super::{Context, Queue};
use crate::{Charge, Ordering, SettleError, Settlement, Verdict};

/// Whether something has to be stored before the answer.
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
        let Some(&slot) = self.books.leases.get(&settlement.lease) else {
            self.totals.late += 1;
            return Err(SettleError::LeaseNotFound);
        };
        let message = &self.books.messages[slot as usize];
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
            Verdict::Nack { delay } if delay > max => {
                Err(SettleError::TooLong { found: delay, max })
            }
            Verdict::Nack { delay } => {
                self.totals.nacked += 1;
                let lane = message.lane;
                self.books.lane_mut(lane).nacked += 1;
                self.give_back(context, slot, true, delay);
                Ok(Stores::Something)
            }
            Verdict::Extend { by: Some(by) } if by > max => {
                Err(SettleError::TooLong { found: by, max })
            }
            Verdict::Extend { by } => {
                let by = by.unwrap_or(self.definition.visibility_timeout);
                let deadline = context.now.saturating_add(by);
                self.books.arm(slot, Some(deadline));
                Ok(Stores::Nothing)
            }
            Verdict::Release => {
                self.totals.released += 1;
                let writes = self.writes.batch.len();
                self.give_back(context, slot, false, Duration::ZERO);
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
        let message = self.books.remove(context.memory, slot);
        self.writes.batch.delete(message.locator());
        let lane = self.books.lane_mut(message.lane);
        lane.acked += 1;
        if self.definition.ordering == Ordering::Key {
            lane.settling += 1;
            self.writes.settling.push(message.lane);
        }
        self.books.refresh(message.lane, &self.definition);
    }

    /// Ends a lease without an acknowledgement: the message goes back to its place, at once or after a delay.
    pub(super) fn give_back<T>(
        &mut self,
        context: &mut Context<'_, T>,
        slot: u32,
        is_attempt: bool,
        delay: Duration,
    ) {
        self.end_lease(context, slot);
        let books = &mut self.books;
        let message = &mut books.messages[slot as usize];
        if is_attempt {
            message.meta.attempts = message.meta.attempts.saturating_add(1);
            message.meta.deliver_after =
                (!delay.is_zero()).then(|| context.now.saturating_add(delay));
            self.writes.batch.update(message.id, message.meta.clone());
        }
        let is_early = message.is_early(context.now);
        let is_expired = message.is_expired(context.now);
        message.state = if is_early {
            State::Delayed
        } else {
            State::Ready { since: context.now }
        };
        let moment = if is_early {
            earliest(message.meta.deliver_after, message.meta.expires_at)
        } else {
            message.meta.expires_at
        };
        let number = message.lane;
        books.stats.leased -= 1;
        let lane = books.lane_mut(number);
        lane.leased -= 1;
        if is_early {
            lane.delayed += 1;
        } else {
            lane.ready_count += 1;
        }
        if !is_early || self.definition.ordering == Ordering::Key {
            books.line_up(slot, Join::Between);
        }
        if is_early {
            books.stats.delayed += 1;
        } else {
            books.stats.ready += 1;
        }
        books.arm(slot, moment);
        if is_expired {
            self.expire(context, slot);
        } else {
            self.books.refresh(number, &self.definition);
        }
    }

    /// Takes a message from its consumer. What it is then is the caller's to say.
    fn end_lease<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        let message = &mut self.books.messages[slot as usize];
        let State::Leased {
            lease,
            consumer,
            position,
            since,
            charged,
        } = message.state
        else {
            unreachable!("the caller knows it by its lease");
        };
        let lane = message.lane;
        if let Some(timer) = message.timer.take() {
            self.books.wheel.stop(timer);
        }
        self.books.leases.remove(&lease);
        if let Some(moved) = self.consumers.take(consumer, position)
            && let State::Leased {
                position: place, ..
            } = &mut self.books.messages[moved as usize].state
        {
            *place = position;
        }
        if self.definition.charge == Charge::Time {
            let micros = context.now.since(since).as_micros();
            let actual = Cost::new(u64::try_from(micros).unwrap_or(u64::MAX));
            let lane = self.books.lane_mut(lane);
            let (key, before) = (lane.engine, lane.expected.value());
            lane.expected = Cost::new(before - before / 4 + actual.value() / 4);
            let known = self.books.engine.settle(key, charged, actual);
            known.expect("a lane's key is registered");
        }
        self.dismiss_drained(context, consumer);
    }

    /// Removes a consumer, and gives back what it has.
    pub(crate) fn unsubscribe<T>(&mut self, context: &mut Context<'_, T>, consumer: u32) {
        self.consumers.leave(consumer);
        while let Some(slot) = self.consumers.some_leased(consumer) {
            self.totals.released += 1;
            self.give_back(context, slot, true, Duration::ZERO);
        }
        self.consumers.remove(consumer);
    }
}
