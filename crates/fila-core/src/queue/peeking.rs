//! How a queue shows its keys and its messages, without changing anything.

use std::num::NonZeroU32;
use std::time::Duration;

use fila_store::{Meta, StoredMessage, Timestamp};

use super::Queue;
use super::counts::Stage;
use super::message::{Message, State};
use crate::{GroupStats, KeyCursor, KeyStats, MessageState, MessageStatus, RecentShare};

impl Queue {
    /// Returns the keys that have messages among the next `limit` places.
    pub(crate) fn keys(
        &mut self,
        now: Timestamp,
        after: KeyCursor,
        limit: usize,
    ) -> (Vec<KeyStats>, Option<KeyCursor>) {
        let (from, to, next) = page(after, limit, self.index.lanes.places());
        self.index.lanes.pace.advance(now);
        let mut keys = Vec::new();
        for number in from..to {
            let lane = self.index.lanes.try_get(number);
            if lane.is_some_and(|lane| lane.counts.durable() + lane.counts[Stage::Moving] > 0) {
                keys.push(self.key_stats(now, number));
            }
        }
        (keys, next)
    }

    fn key_stats(&mut self, now: Timestamp, number: u32) -> KeyStats {
        let head_waiting = self.head_waiting(now, number);
        let lanes = &mut self.index.lanes;
        let (served, ideal) = lanes.recent(number);
        let lane = lanes.get(number);
        KeyStats {
            fairness_key: lanes.key(number).clone(),
            weight: lanes.weight_of(number).value(),
            is_paused: lane.is_paused(),
            ready: lane.counts.shown_ready(),
            throttled: lane.counts[Stage::Throttled],
            delayed: lane.counts[Stage::Delayed],
            leased: lane.counts[Stage::Leased],
            delivered: lane.totals.delivered,
            first_delivered: lane.totals.first_delivered,
            waited: Duration::from_millis(lane.totals.waited_ms),
            acked: lane.totals.acked,
            nacked: lane.totals.nacked,
            head_waiting,
            recent: RecentShare { served, ideal },
        }
    }

    /// Returns the groups with messages among the next `limit` places.
    pub(crate) fn groups(
        &mut self,
        now: Timestamp,
        after: KeyCursor,
        limit: usize,
    ) -> (Vec<GroupStats>, Option<KeyCursor>) {
        let index = &mut self.index;
        index.lanes.refresh(&index.messages);
        index.lanes.pace.advance(now);
        let (from, to, next) = page(after, limit, index.lanes.group_places());
        let mut groups = Vec::new();
        for number in from..to {
            let group = self.index.lanes.try_group(number);
            if group.is_some_and(|group| group.counts.durable() + group.counts[Stage::Moving] > 0) {
                groups.push(self.group_stats(number));
            }
        }
        (groups, next)
    }

    fn group_stats(&mut self, number: u32) -> GroupStats {
        let lanes = &mut self.index.lanes;
        let (served, ideal) = lanes.recent_of_group(number);
        let (path, group) = (lanes.group_path(number), lanes.group(number));
        GroupStats {
            path: path.clone(),
            weight: group.weight_in_force().value(),
            is_paused: group.is_paused(),
            concurrency: group.cap().map(NonZeroU32::get),
            depth_max: self.definition.keys.get(path).and_then(|it| it.depth_max),
            members: lanes.members(number),
            active_keys: u64::from(group.use_of_members.active),
            ready: group.counts.shown_ready(),
            throttled: group.counts[Stage::Throttled],
            delayed: group.counts[Stage::Delayed],
            leased: group.counts[Stage::Leased],
            delivered: group.delivered,
            recent: RecentShare { served, ideal },
        }
    }

    /// Returns for how long the first message of a lane that is ready has been so, as far as that is known without
    /// reading or searching.
    fn head_waiting(&mut self, now: Timestamp, number: u32) -> Option<Duration> {
        let index = &mut self.index;
        let head = index.head(number);
        let Some(head) = head.or_else(|| index.throttled_head(number)) else {
            let backlog = self.index.lane(number).backlog?;
            return Some(now.since(backlog.since));
        };
        match self.index.messages[head.slot as usize].state {
            State::Ready { since } => Some(now.since(since)),
            // In a strict line: those that are ready wait behind it.
            State::Delayed | State::Failing { .. } => None,
            State::Leased { .. } => unreachable!("a leased message is not in line"),
        }
    }

    /// Returns the status of a message that was found in the store; `None` if it is gone, or not durable yet.
    pub(crate) fn peek(&self, now: Timestamp, entry: &StoredMessage) -> Option<MessageStatus> {
        let number = self.index.lanes.find(&entry.meta.schedule.fairness_key)?;
        let lane = self.index.lane(number);
        let (state, attempts) = match self.index.find(lane, entry.id) {
            Some(message) => self.in_memory(now, message)?,
            None => {
                if !lane.backlog?.contains(entry.id) {
                    return None;
                }
                (waiting(now, &entry.meta)?, entry.meta.attempts)
            }
        };
        Some(MessageStatus {
            state,
            attempts,
            weight: self.index.lanes.weight_of(number).value(),
        })
    }

    fn in_memory(&self, now: Timestamp, message: &Message) -> Option<(MessageState, u32)> {
        let attempts = message.meta.attempts;
        match message.state {
            State::Ready { .. } | State::Delayed => Some((waiting(now, &message.meta)?, attempts)),
            State::Failing { .. } => {
                // A dead letter has no timer until it is moved, which is at this very moment.
                let end = message.timer.map(|timer| self.index.wheel.deadline(timer));
                let until = end.unwrap_or(now);
                Some((MessageState::Delayed { until }, attempts))
            }
            State::Leased { .. } => {
                let end = message.timer.map(|timer| self.index.wheel.deadline(timer));
                let until = end.expect("a lease has an end");
                Some((MessageState::Leased { until }, attempts.saturating_add(1)))
            }
        }
    }
}

/// Returns the state of a message that is with no consumer; `None` if it has expired and is not deleted yet.
fn waiting(now: Timestamp, meta: &Meta) -> Option<MessageState> {
    if meta.expires_at.is_some_and(|end| end <= now) {
        return None;
    }
    Some(match meta.deliver_after {
        Some(until) if until > now => MessageState::Delayed { until },
        Some(_) | None => MessageState::Ready,
    })
}

/// Returns the first place of a page, the one behind its last, and the cursor for the next page.
fn page(after: KeyCursor, limit: usize, places: usize) -> (u32, u32, Option<KeyCursor>) {
    let from = (after.get() as usize).min(places);
    let to = from.saturating_add(limit).min(places);
    let next = (to < places).then(|| KeyCursor::from_number(to as u32));
    (from as u32, to as u32, next)
}
