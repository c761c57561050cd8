//! Explains why a key or a group waits: the reason, its share, and the bound on its wait, level by level.
//!
//! Nothing here changes the order of deliveries. The queue keeps all figures anyway, except the [place](place) in the line.

mod levels;
mod place;

use std::time::Duration;

use fila_store::{FairnessKey, Timestamp};

use self::levels::{PathNode, along, subject};
use super::Queue;
use super::blocked::BlockReason;
use super::counts::{Counts, Stage};
use super::message::State;
use crate::throttle::Throttles;
use crate::{Basis, Delivering, Estimate, Explanation, Ordering, Recent, Waiting};

/// How many throttle sets are looked at to find the one that gets its token first.
const SETS_MAX: usize = 64;

impl Queue {
    /// Returns why a key waits, or a group if there is one of this path. An unknown key has no messages.
    pub(crate) fn explain(
        &mut self,
        now: Timestamp,
        throttles: &mut Throttles,
        path: &FairnessKey,
    ) -> Explanation {
        let index = &mut self.index;
        index.lanes.refresh(&index.messages);
        index.lanes.pace.advance(now);
        let total = index.lanes.pace.total();
        let all = Recent {
            over: index.lanes.pace.reach(now),
            total,
            served: total,
            ideal: total,
        };
        let node = PathNode::find(&index.lanes, path);
        let waiting = match node {
            Some(PathNode::Key(number)) => self.waiting(now, throttles, number),
            Some(PathNode::Group(group)) => self.group_waiting(group),
            None => Waiting::Empty,
        };
        let counts = node.map_or_else(Counts::default, |node| node.counts(&self.index.lanes));
        let (mut levels, last) = self.levels(path, node, all);
        let (weight, debt) = (last.weight, last.debt);
        levels.push(last);
        let is_last = levels.len() - 1;
        for (number, level) in levels.iter_mut().enumerate() {
            level.holds_up = waiting.holds_up(&level.path, number == is_last);
        }
        let recent = along(levels.iter(), all);
        Explanation {
            now,
            subject: subject(node),
            estimate: self.estimate(now, &waiting, recent),
            waiting,
            weight,
            ready: counts.ready(),
            delayed: counts[Stage::Delayed],
            leased: counts[Stage::Leased],
            recent,
            debt,
            bound: levels.iter().map(|level| level.bound).sum(),
            levels,
        }
    }

    /// Returns what holds a lane up: the first reason why it is blocked, or else what all lanes wait for.
    fn waiting(&mut self, now: Timestamp, throttles: &mut Throttles, number: u32) -> Waiting {
        let blocked = self.index.blocked(number, self.index.lane(number).owed());
        let is_paused = self.definition.delivery == Delivering::Paused;
        if is_paused && !blocked.contains(BlockReason::Empty) {
            return Waiting::QueuePaused;
        }
        let mut reasons = blocked.reasons();
        if let Some(waiting) = reasons.find_map(|it| self.describe(now, throttles, number, it)) {
            return waiting;
        }
        if !self.index.lane(number).owed.is_empty() {
            return Waiting::Reading;
        }
        self.in_line(PathNode::Key(number))
    }

    /// Returns what holds all members of a group up, or else what all groups wait for.
    fn group_waiting(&self, group: u32) -> Waiting {
        let value = self.index.lanes.group(group);
        if value.counts.ready() + value.counts[Stage::Delayed] == 0 {
            return match value.counts.uncommitted() {
                0 => Waiting::Empty,
                _ => Waiting::Storing,
            };
        }
        if self.definition.delivery == Delivering::Paused {
            return Waiting::QueuePaused;
        }
        let above = || {
            let first = Some(group);
            let lanes = self.index.lanes.refreshed();
            std::iter::successors(first, |&group| lanes.group_around(group))
        };
        if let Some(waiting) = self.paused_group(above()) {
            return waiting;
        }
        if let Some(waiting) = self.group_at_cap(above()) {
            return waiting;
        }
        if value.use_of_members.owed > 0 {
            return Waiting::Reading;
        }
        if !value.known.is_runnable {
            return Waiting::MembersWait;
        }
        self.in_line(PathNode::Group(group))
    }

    /// Returns what a key or group waits for that may run.
    fn in_line(&self, node: PathNode) -> Waiting {
        if self.consumers.len() == 0 {
            return Waiting::NoConsumers;
        }
        if !self.consumers.has_ready() && self.index.lanes.pace.deliveries() == 0 {
            return Waiting::NoCredit;
        }
        Waiting::Runnable {
            position: self.position(node),
        }
    }

    /// Describes the wait of a lane that is blocked for this reason, if the details are known.
    fn describe(
        &mut self,
        now: Timestamp,
        throttles: &mut Throttles,
        number: u32,
        reason: BlockReason,
    ) -> Option<Waiting> {
        let lanes = &self.index.lanes;
        let lane = lanes.get(number);
        Some(match reason {
            BlockReason::Empty if lane.counts.uncommitted() > 0 => Waiting::Storing,
            BlockReason::Empty => Waiting::Empty,
            BlockReason::GroupPaused => self.paused_group(lanes.groups_above(number))?,
            BlockReason::Paused => Waiting::KeyPaused {
                path: lanes.key(number).clone(),
            },
            BlockReason::GroupAtCap => self.group_at_cap(lanes.groups_above(number))?,
            BlockReason::AtCap => Waiting::AtCap {
                path: lanes.key(number).clone(),
                cap: lane.cap(self.definition.key_concurrency),
            },
            BlockReason::TooManyDelayed => Waiting::TooManyDelayed,
            BlockReason::NotDue => self.not_due(number)?,
            BlockReason::Throttled => self.throttled(now, throttles, number)?,
            BlockReason::Removing => Waiting::Storing,
            BlockReason::ReadFailed => Waiting::ReadFailed {
                until: self.index.retry_of(number)?,
            },
            BlockReason::Owing => Waiting::Reading,
        })
    }

    /// Returns the pause of the last of these groups that is paused; they come from the lowest to the top.
    fn paused_group(&self, groups: impl Iterator<Item = u32>) -> Option<Waiting> {
        let lanes = &self.index.lanes;
        let paused = groups.filter(|&group| lanes.group(group).is_paused());
        let path = lanes.group_path(paused.last()?).clone();
        Some(Waiting::KeyPaused { path })
    }

    /// Returns the cap of the last of these groups that is at its cap; they come from the lowest to the top.
    fn group_at_cap(&self, groups: impl Iterator<Item = u32>) -> Option<Waiting> {
        let lanes = &self.index.lanes;
        let at_cap = groups.filter(|&group| {
            let group = lanes.group(group);
            group.is_at_cap(u64::from(group.use_of_members.owed))
        });
        let group = at_cap.last()?;
        Some(Waiting::AtCap {
            path: lanes.group_path(group).clone(),
            cap: lanes.group(group).cap()?.get(),
        })
    }

    /// Returns when the messages of a lane are due, or that it is being decided what becomes of them.
    fn not_due(&mut self, number: u32) -> Option<Waiting> {
        let until = match self.definition.ordering {
            Ordering::Key => {
                let head = self.index.head(number)?;
                let message = &self.index.messages[head.slot as usize];
                match message.state {
                    State::Delayed => message.meta.deliver_after,
                    State::Failing { .. } | State::Ready { .. } | State::Leased { .. } => None,
                }
            }
            Ordering::None => self.index.lane(number).next_due(),
        };
        Some(until.map_or(Waiting::Judging, |until| Waiting::BackingOff { until }))
    }

    /// Returns the throttle key that a lane waits for.
    fn throttled(&self, now: Timestamp, throttles: &mut Throttles, number: u32) -> Option<Waiting> {
        let sets = self.index.lane(number).sets.as_ref()?;
        let (key, until) = sets
            .waiting()
            .take(SETS_MAX)
            .map(|set| {
                let (slot, wait_id) = sets.slot(set);
                let (key, until) = throttles.forecast(now, slot, wait_id);
                (key.clone(), until)
            })
            // The set that gets its token first; one that never gets it comes last.
            .min_by_key(|(_, until)| (until.is_none(), *until))?;
        Some(Waiting::Throttled { key, until })
    }

    /// Returns when the next message of a key that waits for this will be delivered, if that can be told.
    fn estimate(&self, now: Timestamp, waiting: &Waiting, recent: Recent) -> Option<Estimate> {
        let pace = &self.index.lanes.pace;
        let after = |wait: Duration, basis| {
            let at = now.saturating_add(wait);
            Some(Estimate { at, basis })
        };
        match waiting {
            Waiting::Runnable { position } => {
                let turns = position.deliveries().saturating_add(1) as f64;
                let wait = pace.interval(now)?.as_secs_f64() * turns;
                let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
                after(wait, Basis::QueuePace)
            }
            Waiting::AtCap { .. } => {
                // A delivery needs a result first; the recent pace of the key tells how often one came for it.
                let mean = pace.total().checked_div(pace.deliveries())?.max(1);
                let deliveries = u32::try_from(recent.served / mean).unwrap_or(u32::MAX);
                after(recent.over.checked_div(deliveries)?, Basis::KeyPace)
            }
            Waiting::BackingOff { until }
            | Waiting::Throttled {
                until: Some(until), ..
            }
            | Waiting::ReadFailed { until } => Some(Estimate {
                at: (*until).max(now),
                basis: Basis::Due,
            }),
            Waiting::Reading => after(Duration::ZERO, Basis::Store),
            Waiting::Empty
            | Waiting::Storing
            | Waiting::QueuePaused
            | Waiting::KeyPaused { .. }
            | Waiting::MembersWait
            | Waiting::Judging
            | Waiting::TooManyDelayed
            | Waiting::Throttled { until: None, .. }
            | Waiting::NoConsumers
            | Waiting::NoCredit => None,
        }
    }
}
