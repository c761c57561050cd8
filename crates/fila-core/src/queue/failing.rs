//! Failed deliveries: another attempt, or the dead-letter queue.
//!
//! # The way of a failure
//! ```text
//!                         ┌── the driver decides, if the queue asks for it ──┐
//! Leased ──▶ Failing ─────┤                                                  ├──▶ Ready, or Delayed first
//!                         └── else, or too late: the queue's own policy ─────┤
//!                                                                            └──▶ deleted here, adopted there
//! ```
//! Without a hook, a message is failing for a moment only. The round in which the delivery failed stores the attempt, with
//! the delay that the queue's own policy gives it. So a crash before the driver's decision loses nothing.
//!
//! # What always holds
//! - A failing message is not deliverable. In a strictly ordered queue it stands in line, and those behind it wait. It
//!   counts as delayed, and has a timer.
//! - One round stores the dead letter and the deletion of its message. If the other queue has no room, the message stays,
//!   and is tried again after the longest delay.
//! - Delayed messages are in memory, so their number has a limit. A message that fails beyond it, or beyond the part of its
//!   key or of a group that it is in, is delayed all the same, and the key or group is suspended until there is room again.
//!   So there are never more delayed messages than the limit and the leased ones, and keys whose messages do not fail are
//!   not affected.

use std::sync::Arc;
use std::time::Duration;

use fila_store::{Death, DeathReason, ErrorText, History, Meta, QueueId, Timestamp};

use super::message::{Message, State};
use super::{Context, Queue};
use crate::{Failure, FailureToken, Judgement, MovedMessage, Ordering};

/// When to try again to move a dead letter that the round had no room for.
const NEXT_ROUND: Duration = Duration::from_millis(10);

/// Why a delivery ended without an acknowledgement.
#[derive(Debug)]
pub(super) enum Cause {
    Nacked {
        /// The delay that the consumer has asked for.
        delay: Option<Duration>,
        error: Option<ErrorText>,
    },
    LeaseExpired,
    /// A handler had begun it when its consumer was lost.
    ConsumerLost,
}

impl Cause {
    fn text(&self) -> ErrorText {
        match self {
            Self::Nacked { error, .. } => error.clone().unwrap_or_else(|| ErrorText::new("nacked")),
            Self::LeaseExpired => ErrorText::new("visibility timeout expired"),
            Self::ConsumerLost => ErrorText::new("consumer disconnected"),
        }
    }
}

/// A message that becomes a dead letter.
#[derive(Debug)]
pub(crate) struct DeadLetter {
    pub(crate) slot: u32,
    reason: DeathReason,
}

impl Queue {
    /// Ends a delivery that has failed, and counts the attempt.
    pub(super) fn fail<T>(&mut self, context: &mut Context<'_, T>, slot: u32, cause: &Cause) {
        self.end_lease(context, slot);
        let now = context.now;
        let requested_delay = match cause {
            Cause::Nacked { delay, .. } => *delay,
            // It has waited for the end of its lease already.
            Cause::LeaseExpired | Cause::ConsumerLost => Some(Duration::ZERO),
        };
        let error = cause.text();
        let message = &mut self.index.messages[slot as usize];
        let before = message.footprint();
        message.meta.attempts = message.meta.attempts.saturating_add(1);
        let earlier = message.meta.history.as_ref();
        message.meta.history = Some(Arc::new(History {
            last_error: error.clone(),
            first_failed_at: earlier.map_or(now, |history| history.first_failed_at),
            last_failed_at: now,
            death: earlier.and_then(|history| history.death.clone()),
        }));
        let delay = requested_delay.unwrap_or_else(|| {
            self.definition
                .retry
                .delay(message.id, message.meta.attempts)
        });
        message.meta.deliver_after = (!delay.is_zero()).then(|| now.saturating_add(delay));
        self.writes.batch.update(message.id, message.meta.clone());
        let (after, is_expired) = (message.footprint(), message.is_expired(now));
        self.index.resize(context.memory, before, after);
        let failing = State::Failing {
            requested_delay,
            death: None,
        };
        self.index.set_state(slot, failing);
        if is_expired {
            self.expire(context, slot);
        } else if self.definition.judges_failures() {
            self.ask_for_judgement(context, slot, error);
        } else {
            self.judge_failing(context, slot, Judgement::Default);
        }
    }

    /// Lets the driver decide what becomes of a failing message, for a while.
    fn ask_for_judgement<T>(&mut self, context: &mut Context<'_, T>, slot: u32, error: ErrorText) {
        self.wait_failing(
            slot,
            context.now.saturating_add(context.settings.judging_time),
        );
        let message = &self.index.messages[slot as usize];
        let attempts = message.meta.attempts;
        context.effects.failures.push(Failure {
            queue: self.id,
            message: message.meta.lasting_id(message.id),
            locator: message.locator(),
            attempts,
            error,
            token: FailureToken {
                generation: self.index.serial,
                slot,
                message: message.id,
                attempts,
            },
        });
    }

    /// Lets a failing message wait until then, or until it expires.
    fn wait_failing(&mut self, slot: u32, until: Timestamp) {
        let expires_at = self.index.messages[slot as usize].meta.expires_at;
        let moment = expires_at.map_or(until, |end| end.min(until));
        self.index.arm(slot, Some(moment));
    }

    /// Takes the driver's decision on a failure, if the message still waits for it.
    pub(crate) fn judge<T>(
        &mut self,
        context: &mut Context<'_, T>,
        token: FailureToken,
        judgement: Judgement,
    ) {
        if token.generation != self.index.serial {
            return; // purged since
        }
        let awaits = |message: &Message| {
            message.id == token.message
                && message.meta.attempts == token.attempts
                && matches!(message.state, State::Failing { death: None, .. })
        };
        let found = self.index.messages.get(token.slot as usize);
        if found.is_some_and(awaits) {
            self.judge_failing(context, token.slot, judgement);
        }
    }

    /// Decides on a failing message whose time to wait is over.
    pub(super) fn decide_late<T>(
        &mut self,
        context: &mut Context<'_, T>,
        slot: u32,
        death: Option<DeathReason>,
    ) {
        match death {
            Some(reason) => self.give_up(context, slot, reason),
            None => self.judge_failing(context, slot, Judgement::Default),
        }
    }

    fn judge_failing<T>(&mut self, context: &mut Context<'_, T>, slot: u32, judgement: Judgement) {
        let message = &self.index.messages[slot as usize];
        let State::Failing {
            requested_delay, ..
        } = message.state
        else {
            unreachable!("the caller has looked");
        };
        let (retry, attempts) = (self.definition.retry, message.meta.attempts);
        let own_delay = requested_delay.unwrap_or_else(|| retry.delay(message.id, attempts));
        let is_exhausted = retry.is_exhausted(attempts);
        let may_die = self.dead_letter_queue.is_some();
        match judgement {
            Judgement::Retry { delay } => {
                let delay = delay.min(context.settings.limits.delay);
                self.retry(context, slot, delay);
            }
            Judgement::DeadLetter { reason } if may_die => self.give_up(context, slot, reason),
            Judgement::Default if may_die && is_exhausted => {
                self.give_up(context, slot, DeathReason::AttemptsExhausted);
            }
            Judgement::Default | Judgement::DeadLetter { .. } => {
                self.retry(context, slot, own_delay);
            }
        }
    }

    /// Lets a failing message be delivered again, after a delay.
    fn retry<T>(&mut self, context: &mut Context<'_, T>, slot: u32, delay: Duration) {
        self.totals.retried += 1;
        let now = context.now;
        let message = &mut self.index.messages[slot as usize];
        let deliver_after = (!delay.is_zero()).then(|| now.saturating_add(delay));
        if message.meta.deliver_after != deliver_after {
            message.meta.deliver_after = deliver_after;
            self.writes.batch.update(message.id, message.meta.clone());
        }
        let (number, moment) = (message.lane, message.next_moment(now));
        if message.is_early(now) {
            self.index.set_state(slot, State::Delayed);
            let max = context.settings.limits.delayed_per_queue;
            if let Some(holder) = self.index.has_too_many_delayed(number, max) {
                self.index.suspend(holder);
            }
        } else {
            self.index.set_state(slot, State::Ready { since: now });
        }
        self.index.arm(slot, moment);
    }

    /// Makes a failing message a dead letter, which the broker moves next.
    fn give_up<T>(&mut self, context: &mut Context<'_, T>, slot: u32, reason: DeathReason) {
        if let State::Failing { death, .. } = &mut self.index.messages[slot as usize].state {
            *death = Some(reason);
        }
        self.index.arm(slot, None);
        context.dead_letters.push(DeadLetter { slot, reason });
    }

    /// Returns the dead letter that a message becomes, and the queue that takes it.
    pub(crate) fn dead_letter(
        &self,
        now: Timestamp,
        dead: &DeadLetter,
    ) -> Option<(QueueId, MovedMessage)> {
        let queue = self.dead_letter_queue.as_ref()?;
        let message = &self.index.messages[dead.slot as usize];
        let mut history = History::clone(message.meta.history.as_deref()?);
        let before = history.death.as_ref();
        let attempts = before.map_or(0, |death| death.attempts);
        let enqueued_at = before.map_or(message.meta.enqueued_at, |death| death.enqueued_at);
        history.death = Some(Death {
            reason: dead.reason,
            queue: queue.from.clone(),
            message: message.meta.lasting_id(message.id),
            attempts: attempts.saturating_add(message.meta.attempts),
            died_at: now,
            enqueued_at,
        });
        let mut meta = Meta::new(message.meta.schedule.clone(), now);
        meta.deduplication_id = message.meta.deduplication_id.clone();
        meta.sizes = message.meta.sizes;
        meta.history = Some(Arc::new(history));
        let from = message.locator();
        Some((queue.to, MovedMessage { from, meta }))
    }

    /// Deletes a message that the dead-letter queue has taken.
    pub(crate) fn delete_moved<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        self.totals.dead_lettered += 1;
        self.depart(context, slot);
    }

    /// Keeps a message that the dead-letter queue has no room for.
    pub(crate) fn keep<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        self.totals.dead_letters_refused += 1;
        self.retry(context, slot, self.definition.retry.backoff_max);
    }

    /// Keeps a message until the next round, since this one is full.
    pub(crate) fn keep_for_a_moment(&mut self, now: Timestamp, slot: u32) {
        self.wait_failing(slot, now.saturating_add(NEXT_ROUND));
    }

    /// Deletes a message. A strictly ordered lane waits until that is durable.
    pub(super) fn depart<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        let message = self.index.remove(context.memory, slot);
        self.writes.batch.delete(message.locator());
        if self.definition.ordering == Ordering::Key {
            self.index.lane_mut(message.lane).deletions.strict += 1;
            self.writes.settling.push(message.lane);
        }
    }
}
