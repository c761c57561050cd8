//! How a queue shows its keys and its messages, without changing anything.

use std::time::Duration;

use fila_store::{Meta, StoredMessage, Timestamp};

use super::Queue;
use super::lane::Lane;
use super::message::{Message, State};
use crate::{KeyCursor, KeyStats, MessageState, MessageStatus};

impl Queue {
    /// Returns the keys that have messages among the next `limit` places.
    pub(crate) fn keys(
        &mut self,
        now: Timestamp,
        after: KeyCursor,
        limit: usize,
    ) -> (Vec<KeyStats>, Option<KeyCursor>) {
        let places = self.books.lanes.len();
        let from = (after.get() as usize).min(places);
        let to = from.saturating_add(limit).min(places);
        let mut keys = Vec::new();
        for number in from..to {
            if self.books.lanes[number]
                .as_ref()
                .is_some_and(|lane| lane.is_active)
            {
                let head_waiting = self.head_waiting(now, number as u32);
                let lane = self.books.lane(number as u32);
                keys.push(key_stats(lane, head_waiting));
            }
        }
        let next = (to < places).then(|| KeyCursor::from_number(to as u32));
        (keys, next)
    }

    /// Returns for how long the first message of a lane that is ready has been so, as far as that is known without
    /// reading or searching.
    fn head_waiting(&mut self, now: Timestamp, number: u32) -> Option<Duration> {
        let head = self
            .books
            .head(number)
            .or_else(|| self.books.shut_head(number));
        let Some(head) = head else {
            let stored = self.books.lane(number).stored?;
            return Some(now.since(stored.since));
        };
        match self.books.messages[head.slot as usize].state {
            State::Ready { since } => Some(now.since(since)),
            // In a strict line: those that are ready wait behind it.
            State::Delayed | State::Failing { .. } => None,
            State::Leased { .. } => unreachable!("what is leased is not in line"),
        }
    }

    /// Returns how a message is that was found in the store; nothing if it is gone, or not durable yet.
    pub(crate) fn peek(&self, now: Timestamp, entry: &StoredMessage) -> Option<MessageStatus> {
        let number = *self.books.keys.get(&entry.meta.schedule.fairness_key)?;
        let lane = self.books.lane(number);
        let (state, attempts) = match self.books.find(lane, entry.id) {
            Some(message) => self.in_memory(now, message)?,
            None => {
                let stored = lane.stored?;
                // What comes before is gone; what comes behind is not confirmed.
                if entry.id <= stored.after || entry.id > stored.last {
                    return None;
                }
                (waiting(now, &entry.meta)?, entry.meta.attempts)
            }
        };
        Some(MessageStatus {
            state,
            attempts,
            weight: lane.weight_in_force().value(),
        })
    }

    fn in_memory(&self, now: Timestamp, message: &Message) -> Option<(MessageState, u32)> {
        let attempts = message.meta.attempts;
        match message.state {
            State::Ready { .. } | State::Delayed => Some((waiting(now, &message.meta)?, attempts)),
            State::Failing { .. } => {
                // One that is about to leave has no timer, for no longer than this moment.
                let end = message.timer.map(|timer| self.books.wheel.deadline(timer));
                let until = end.unwrap_or(now);
                Some((MessageState::Delayed { until }, attempts))
            }
            State::Leased { .. } => {
                let end = message.timer.map(|timer| self.books.wheel.deadline(timer));
                let until = end.expect("a lease has an end");
                Some((MessageState::Leased { until }, attempts.saturating_add(1)))
            }
        }
    }
}

/// Returns how a message is that nobody has; nothing if its life has ended, and only nobody has come to delete it.
fn waiting(now: Timestamp, meta: &Meta) -> Option<MessageState> {
    if meta.expires_at.is_some_and(|end| end <= now) {
        return None;
    }
    Some(match meta.deliver_after {
        Some(until) if until > now => MessageState::Delayed { until },
        Some(_) | None => MessageState::Ready,
    })
}

fn key_stats(lane: &Lane, head_waiting: Option<Duration>) -> KeyStats {
    KeyStats {
        fairness_key: lane.key.clone(),
        weight: lane.weight_in_force().value(),
        is_paused: lane.is_paused(),
        ready: lane.ready_count + lane.stored_count(),
        throttled: lane.throttled,
        delayed: lane.delayed,
        leased: u64::from(lane.leased),
        delivered: lane.delivered,
        first_delivered: lane.first_delivered,
        waited: lane.waited,
        acked: lane.acked,
        nacked: lane.nacked,
        head_waiting,
    }
}
