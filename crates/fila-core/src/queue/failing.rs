//! What becomes of a delivery that has failed: another attempt, or the end.
//!
//! # The way of a failure
//! ```text
//!                         ┌── judged by somebody else, if the queue says so ──┐
//! Leased ──▶ Failing ─────┤                                                   ├──▶ Ready, or Delayed first
//!                         └── by the queue's own policy, else or too late ────┤
//!                                                                             └──▶ deleted here, adopted there
//! ```
//! Failing is no more than a moment, unless somebody else judges. The attempt is part of the round in which it failed,
//! with the wait that the queue's own policy gives it, so that a crash before the judgement is as good as none.
//!
//! # What always holds
//! - A message that is failing is out of line, and in a strictly ordered queue in the way of those behind it; it counts as
//!   delayed, and has a timer.
//! - A message becomes a dead letter in one round with its deletion. If the other queue has no room the message stays,
//!   and is tried again after the longest wait.
//! - Whatever waits is in memory, so there is a bound on how many wait. At the bound a message that fails waits all the
//!   same, and its key delivers nothing until there is room again: so there are never more than the bound and what was
//!   leased, and keys whose messages do not fail do not notice.

use std::sync::Arc;
use std::time::Duration;

use fila_store::{Death, DeathReason, ErrorText, History, Meta, QueueId, Timestamp};

use super::admission::earliest;
use super::line::Join;
use super::message::State;
use super::{Context, Queue};
use crate::{Failure, FailureToken, Judgement, MovedMessage, Ordering};

/// When a message that is to become a dead letter is tried to be moved again, if the round was too full for it.
const NEXT_ROUND: Duration = Duration::from_millis(10);

/// Why a delivery ended without an acknowledgement.
#[derive(Debug)]
pub(super) enum Cause {
    Nacked {
        /// What the consumer has asked for.
        delay: Option<Duration>,
        error: Option<ErrorText>,
    },
    LeaseExpired,
    ConsumerGone,
}

impl Cause {
    fn text(&self) -> ErrorText {
        match self {
            Self::Nacked { error, .. } => error.clone().unwrap_or_else(|| ErrorText::new("nacked")),
            Self::LeaseExpired => ErrorText::new("visibility timeout expired"),
            Self::ConsumerGone => ErrorText::new("consumer disconnected"),
        }
    }
}

/// A message that is to leave for another queue.
#[derive(Debug)]
pub(crate) struct Dying {
    pub(crate) slot: u32,
    reason: DeathReason,
}

impl Queue {
    /// Ends a delivery that has failed, and counts the attempt.
    pub(super) fn fail<T>(&mut self, context: &mut Context<'_, T>, slot: u32, cause: &Cause) {
        self.end_lease(context, slot);
        let now = context.now;
        let error = cause.text();
        let wish = match cause {
            Cause::Nacked { delay, .. } => *delay,
            // It has waited for the length of its lease; that is enough.
            Cause::LeaseExpired | Cause::ConsumerGone => Some(Duration::ZERO),
        };
        let books = &mut self.books;
        let message = &mut books.messages[slot as usize];
        let before = message.footprint();
        message.meta.attempts = message.meta.attempts.saturating_add(1);
        message.meta.history = Some(Arc::new(History {
            last_error: error.clone(),
            first_failed_at: match &message.meta.history {
                Some(history) => history.first_failed_at,
                None => now,
            },
            last_failed_at: now,
            death: match &message.meta.history {
                Some(history) => history.death.clone(),
                None => None,
            },
        }));
        let attempts = message.meta.attempts;
        let wait = wish.unwrap_or_else(|| self.definition.retry.delay(message.id, attempts));
        message.meta.deliver_after = (!wait.is_zero()).then(|| now.saturating_add(wait));
        message.state = State::Failing {
            wish,
            sentence: None,
        };
        self.writes.batch.update(message.id, message.meta.clone());
        let after = message.footprint();
        let number = message.lane;
        let (locator, is_expired) = (message.locator(), message.is_expired(now));
        let id = message.id;
        books.resize(context.memory, before, after);
        books.stats.leased -= 1;
        books.stats.delayed += 1;
        let lane = books.lane_mut(number);
        lane.leased -= 1;
        lane.delayed += 1;
        if self.definition.ordering == Ordering::Key {
            books.line_up(slot, Join::Between);
        }
        if is_expired {
            return self.expire(context, slot);
        }
        if !self.definition.judges_failures() || matches!(cause, Cause::ConsumerGone) {
            return self.pass_judgement(context, slot, Judgement::Default);
        }
        self.await_judgement(slot, now.saturating_add(context.settings.judging_time));
        context.effects.failures.push(Failure {
            queue: self.id,
            locator,
            attempts,
            error,
            token: FailureToken {
                generation: self.books.serial,
                slot,
                message: id,
                attempts,
            },
        });
    }

    /// Lets a message that is failing wait until then, or until its life ends.
    fn await_judgement(&mut self, slot: u32, until: Timestamp) {
        let message = &self.books.messages[slot as usize];
        let moment = earliest(Some(until), message.meta.expires_at);
        let lane = message.lane;
        self.books.arm(slot, moment);
        self.books.refresh(lane, &self.definition);
    }

    /// Takes the judgement on a failure, if that still waits for it.
    pub(crate) fn judge<T>(
        &mut self,
        context: &mut Context<'_, T>,
        token: FailureToken,
        judgement: Judgement,
    ) {
        if token.generation != self.books.serial {
            // Purged since.
            return;
        }
        let awaits = |message: &super::message::Message| {
            message.id == token.message
                && message.meta.attempts == token.attempts
                && matches!(message.state, State::Failing { sentence: None, .. })
        };
        let found = self.books.messages.get(token.slot as usize);
        if found.is_some_and(awaits) {
            self.pass_judgement(context, token.slot, judgement);
        }
    }

    /// Judges a failure whose time to be judged by somebody else is over.
    pub(super) fn judge_late<T>(
        &mut self,
        context: &mut Context<'_, T>,
        slot: u32,
        sentence: Option<DeathReason>,
    ) {
        match sentence {
            Some(reason) => self.sentence(context, slot, reason),
            None => self.pass_judgement(context, slot, Judgement::Default),
        }
    }

    fn pass_judgement<T>(&mut self, context: &mut Context<'_, T>, slot: u32, judgement: Judgement) {
        let message = &self.books.messages[slot as usize];
        let State::Failing { wish, .. } = message.state else {
            unreachable!("the caller has looked");
        };
        let (retry, attempts) = (self.definition.retry, message.meta.attempts);
        let own = wish.unwrap_or_else(|| retry.delay(message.id, attempts));
        let may_die = self.dead_letters.is_some();
        match judgement {
            Judgement::Retry { delay } => {
                let delay = delay.min(context.settings.limits.delay);
                self.try_again(context, slot, delay);
            }
            Judgement::DeadLetter { reason } if may_die => self.sentence(context, slot, reason),
            Judgement::Default if may_die && retry.is_exhausted(attempts) => {
                self.sentence(context, slot, DeathReason::AttemptsExhausted);
            }
            Judgement::Default | Judgement::DeadLetter { .. } => {
                self.try_again(context, slot, own);
            }
        }
    }

    /// Lets a message that has failed be delivered again, after a wait.
    fn try_again<T>(&mut self, context: &mut Context<'_, T>, slot: u32, wait: Duration) {
        self.totals.retried += 1;
        let now = context.now;
        let max = context.settings.limits.delayed_per_queue;
        let books = &mut self.books;
        let message = &mut books.messages[slot as usize];
        let deliver_after = (!wait.is_zero()).then(|| now.saturating_add(wait));
        if message.meta.deliver_after != deliver_after {
            message.meta.deliver_after = deliver_after;
            self.writes.batch.update(message.id, message.meta.clone());
        }
        let is_early = message.is_early(now);
        message.state = if is_early {
            State::Delayed
        } else {
            State::Ready { since: now }
        };
        let moment = if is_early {
            earliest(deliver_after, message.meta.expires_at)
        } else {
            message.meta.expires_at
        };
        let number = message.lane;
        let lane = books.lane_mut(number);
        if is_early {
            // It was counted as delayed before.
            if books.stats.delayed > max {
                books.hold(number);
            }
        } else {
            lane.delayed -= 1;
            lane.ready_count += 1;
            match self.definition.ordering {
                Ordering::None => books.line_up(slot, Join::Between),
                // It stands in line, perhaps at the head.
                Ordering::Key => lane.is_blocked = false,
            }
            books.stats.delayed -= 1;
            books.stats.ready += 1;
        }
        books.arm(slot, moment);
        books.refresh(number, &self.definition);
    }

    /// Lets a message leave for the other queue, as soon as the broker comes to it.
    fn sentence<T>(&mut self, context: &mut Context<'_, T>, slot: u32, reason: DeathReason) {
        if let State::Failing { sentence, .. } = &mut self.books.messages[slot as usize].state {
            *sentence = Some(reason);
        }
        self.books.arm(slot, None);
        context.dying.push(Dying { slot, reason });
    }

    /// Returns the dead letter that a message becomes, and the queue that is to take it.
    pub(crate) fn dead_letter(
        &self,
        now: Timestamp,
        dying: &Dying,
    ) -> Option<(QueueId, MovedMessage)> {
        let dead_letters = self.dead_letters.as_ref()?;
        let message = &self.books.messages[dying.slot as usize];
        let mut history = History::clone(message.meta.history.as_deref()?);
        history.death = Some(Death {
            reason: dying.reason,
            queue: dead_letters.from.clone(),
            message: message.id,
            attempts: message.meta.attempts,
            died_at: now,
            enqueued_at: message.meta.enqueued_at,
        });
        let mut meta = Meta::new(message.meta.schedule.clone(), now);
        meta.deduplication_id = message.meta.deduplication_id.clone();
        meta.sizes = message.meta.sizes;
        meta.history = Some(Arc::new(history));
        let from = message.locator();
        Some((dead_letters.to, MovedMessage { from, meta }))
    }

    /// Deletes a message that the other queue has taken.
    pub(crate) fn bury<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        self.totals.dead_lettered += 1;
        self.depart(context, slot);
    }

    /// Keeps a message that the other queue has no room for.
    pub(crate) fn keep<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        self.totals.dead_letters_refused += 1;
        self.try_again(context, slot, self.definition.retry.backoff_max);
    }

    /// Tries to let a message leave in the next round, since this one is full.
    pub(crate) fn keep_for_a_moment(&mut self, now: Timestamp, slot: u32) {
        self.await_judgement(slot, now.saturating_add(NEXT_ROUND));
    }

    /// Deletes a message, which holds up a strict line until that is durable.
    pub(super) fn depart<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        let message = self.books.remove(context.memory, slot);
        self.writes.batch.delete(message.locator());
        let lane = self.books.lane_mut(message.lane);
        lane.is_blocked = false;
        if self.definition.ordering == Ordering::Key {
            lane.settling += 1;
            self.writes.settling.push(message.lane);
        }
        self.books.refresh(message.lane, &self.definition);
    }
}
