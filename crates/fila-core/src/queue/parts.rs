//! The parts of a queue's pools: how much of the depth, of the delayed messages, of the deduplication ids and of the keys
//! one fairness key, one group of keys or one client may take.
//!
//! [`drr::Pool`] is the rule: at most three times what is free. So a key that floods is refused while others are admitted,
//! and nothing that was confirmed is dropped. A refusal says when to come back. The pool of keys is divided among
//! [sources](Source), since a client can name any number of keys.
//!
//! # Groups
//! The rule holds on every level. A group may hold what a key may hold in its place: three times what is free of the pool
//! that it shares with its siblings. That part is the pool of its members: each of them may hold three times what the
//! group has free of it. So a tenant gains nothing by more keys, and a member that floods leaves room to the others in its
//! group. A depth that an operator has set for a key or group replaces its part, and is the pool of the members then.
//! [`Room`] is one step down such a path. A key alone takes one step, as if there were no groups.

use std::time::Duration;

use drr::Pool;
use fila_store::{FairnessKey, GroupWeights, Timestamp};

use super::Queue;
use super::counts::Stage;
use super::lane::Activity;
use super::lane_table::GroupsAbove;
use super::room::{Excess, NoRoomLeft, PartHolder, Room};
use crate::limits::Limits;
use crate::{EnqueueError, SharedPool, Source};

/// The shortest and the longest time after which a refused producer is told to come back.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// A message that asks for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer<'a> {
    pub(super) key: &'a FairnessKey,
    /// The weights that it names for the groups of its key.
    pub(super) group_weights: GroupWeights,
    pub(super) is_delayed: bool,
    /// The client that sends it, if that is known.
    pub(super) source: Option<Source>,
}

impl Queue {
    /// Refuses a message that the queue, the key or the client has no room for; else returns the key's lane, if there is
    /// one.
    pub(super) fn check_room(
        &mut self,
        now: Timestamp,
        limits: &Limits,
        newcomer: Newcomer<'_>,
    ) -> Result<Option<u32>, EnqueueError> {
        let number = self.index.lanes.find(newcomer.key);
        let groups = self.groups_around(number, newcomer.key);
        self.check_depth(now, limits, number, &groups)?;
        if newcomer.is_delayed {
            self.check_delayed(now, limits, number, &groups)?;
        }
        self.check_keys(now, limits, number, newcomer.source)?;
        Ok(number)
    }

    /// Returns the groups that a key is in or will be in, from the top down. A group that does not exist yet holds nothing,
    /// so it has room whenever the level above it has.
    fn groups_around(&self, number: Option<u32>, key: &FairnessKey) -> GroupsAbove {
        match number {
            Some(number) => self.index.lanes.groups_down_to(number),
            None => {
                let separator = self.definition.key_separator;
                self.index.lanes.groups_of_newcomer(separator, key)
            }
        }
    }

    fn check_depth(
        &mut self,
        now: Timestamp,
        limits: &Limits,
        number: Option<u32>,
        groups: &GroupsAbove,
    ) -> Result<(), EnqueueError> {
        let own = self.definition.depth_max.unwrap_or(u64::MAX);
        let pool = Pool {
            capacity: limits.depth_per_queue.min(own),
            used: self.index.counts().total(),
        };
        if pool.free() == 0 {
            return Err(EnqueueError::QueueFull { max: pool.capacity });
        }
        let mut room = Room::of_queue(pool);
        for group in groups.iter() {
            let held = self.index.lanes.group(group).counts.total();
            room = match room.enter(held, self.group_depth_max(group)) {
                Ok(room) => room,
                Err(why) => return Err(self.refuse_depth(now, PartHolder::Group(group), why)),
            };
        }
        let Some(number) = number else {
            return Ok(());
        };
        let held = self.index.lane(number).counts.total();
        let own = self.key_depth_max(number);
        let max = limits.depth_per_key.min(own.unwrap_or(u64::MAX));
        let entered = if held >= max {
            Err(NoRoomLeft::Full { max })
        } else {
            // An operator who sets the depth of a key has decided how much one key may hold.
            room.enter(held, own).map(|_| ())
        };
        entered.map_err(|why| self.refuse_depth(now, PartHolder::Key(number), why))
    }

    /// Returns the most messages of a group, if an operator has set that.
    fn group_depth_max(&self, group: u32) -> Option<u64> {
        let lanes = &self.index.lanes;
        if !lanes.group(group).settings.has_depth_max {
            return None;
        }
        let settings = self.definition.keys.get(lanes.group_path(group))?;
        settings.depth_max
    }

    /// Returns the most messages of a key, if an operator has set that for it or for all keys.
    fn key_depth_max(&self, number: u32) -> Option<u64> {
        if !self.index.lane(number).settings.has_depth_max {
            return self.definition.key_depth_max;
        }
        let settings = self.definition.keys.get(self.index.lanes.key(number));
        let own = settings.and_then(|settings| settings.depth_max);
        own.or(self.definition.key_depth_max)
    }

    fn refuse_depth(
        &mut self,
        now: Timestamp,
        holder: PartHolder,
        why: NoRoomLeft,
    ) -> EnqueueError {
        let path = self.path_of(holder);
        match why {
            NoRoomLeft::Full { max } => EnqueueError::KeyFull { path, max },
            NoRoomLeft::OverPart(excess) => {
                let interval = self.departure_interval(now, holder);
                let wait = interval.map(|interval| times(interval, excess.departures));
                over_part(SharedPool::Depth, Some(path), excess, wait)
            }
        }
    }

    fn path_of(&self, holder: PartHolder) -> FairnessKey {
        let lanes = &self.index.lanes;
        match holder {
            PartHolder::Group(group) => lanes.group_path(group).clone(),
            PartHolder::Key(number) => lanes.key(number).clone(),
        }
    }

    fn check_delayed(
        &self,
        now: Timestamp,
        limits: &Limits,
        number: Option<u32>,
        groups: &GroupsAbove,
    ) -> Result<(), EnqueueError> {
        let pool = Pool {
            capacity: limits.delayed_per_queue,
            used: self.index.counts()[Stage::Delayed] + self.index.delayed_uncommitted,
        };
        if pool.free() == 0 {
            return Err(EnqueueError::TooManyDelayed { max: pool.capacity });
        }
        let lane = number.map(|number| self.index.lane(number));
        let refuse = |holder, excess| {
            // If none of them is durable yet, the next refusal knows more. So it does if others of the group have them.
            let due = lane.and_then(|lane| lane.next_due());
            let wait = due.map_or(RETRY_MIN, |due| due.since(now));
            let path = Some(self.path_of(holder));
            over_part(SharedPool::Delayed, path, excess, Some(wait))
        };
        let mut room = Room::of_queue(pool);
        for group in groups.iter() {
            let value = self.index.lanes.group(group);
            let held = value.counts[Stage::Delayed] + u64::from(value.delayed_uncommitted);
            let entered = room.share(held);
            room = entered.map_err(|excess| refuse(PartHolder::Group(group), excess))?;
        }
        let (Some(lane), Some(number)) = (lane, number) else {
            return Ok(());
        };
        let held = lane.counts[Stage::Delayed] + u64::from(lane.delayed_uncommitted);
        let entered = room.share(held).map(|_| ());
        entered.map_err(|excess| refuse(PartHolder::Key(number), excess))
    }

    /// Refuses a key that has no messages if its client has brought as many keys as it may.
    fn check_keys(
        &mut self,
        now: Timestamp,
        limits: &Limits,
        number: Option<u32>,
        source: Option<Source>,
    ) -> Result<(), EnqueueError> {
        let is_idle = |number| self.index.lane(number).activity() == Activity::Idle;
        if !number.is_none_or(is_idle) {
            return Ok(());
        }
        let max = limits.keys_per_queue;
        // No client can have brought more keys than there are lanes. With few of them nothing has to be counted.
        let lanes = self.index.lanes.len() as u64;
        let capacity = max as u64;
        let most = Pool {
            capacity,
            used: lanes,
        };
        if most.admits(lanes, 1) {
            return Ok(());
        }
        let busy = self.index.busy_keys() as u64;
        if number.is_none() && busy >= capacity {
            return Err(EnqueueError::TooManyKeys { max });
        }
        let Some(source) = source else {
            return Ok(());
        };
        let pool = Pool {
            capacity,
            used: busy,
        };
        let held = self.index.lanes.keys_of(source);
        let Err(excess) = Room::of_queue(pool).share(held) else {
            return Ok(());
        };
        let depth = self.index.counts().total() / busy.max(1);
        let interval = self.index.lanes.pace.interval(now);
        let wait = interval.map(|interval| times(interval, excess.departures * depth.max(1)));
        Err(over_part(SharedPool::Keys, None, excess, wait))
    }

    /// Refuses an id or a batch of a key that has its part of what the queue remembers.
    pub(super) fn check_remembered(
        &self,
        limits: &Limits,
        key: &FairnessKey,
    ) -> Result<(), EnqueueError> {
        let max = limits.deduplication_ids_per_queue;
        let pool = Pool {
            capacity: max as u64,
            used: self.duplicates.len() as u64,
        };
        if pool.free() == 0 {
            return Err(EnqueueError::TooManyDeduplicationIds { max });
        }
        let mut room = Room::of_queue(pool);
        for (path, held) in self.duplicates.levels(key) {
            room = room.share(held).map_err(|excess| {
                // They are spread over the window, more or less.
                let window = self.definition.deduplication_window.as_secs_f64();
                let wait = window * excess.departures as f64 / held.max(1) as f64;
                let wait = Duration::try_from_secs_f64(wait).ok();
                over_part(
                    SharedPool::DeduplicationIds,
                    Some(path.clone()),
                    excess,
                    wait,
                )
            })?;
        }
        Ok(())
    }

    /// Returns the mean time between the departures of messages in the last minute, taken from the deliveries.
    fn departure_interval(&mut self, now: Timestamp, holder: PartHolder) -> Option<Duration> {
        let lanes = &mut self.index.lanes;
        lanes.pace.advance(now);
        let (served, _) = match holder {
            PartHolder::Group(group) => lanes.recent_of_group(group),
            PartHolder::Key(number) => lanes.recent(number),
        };
        let (total, deliveries) = (lanes.pace.total(), lanes.pace.deliveries());
        // A delivery counts by its cost. The mean cost of the queue makes it a number.
        let count = served as f64 * deliveries as f64 / total.max(1) as f64;
        let interval = lanes.pace.reach(now).as_secs_f64() / count;
        Duration::try_from_secs_f64(interval).ok()
    }
}

fn times(interval: Duration, count: u64) -> Duration {
    interval.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

fn over_part(
    pool: SharedPool,
    path: Option<FairnessKey>,
    excess: Excess,
    wait: Option<Duration>,
) -> EnqueueError {
    EnqueueError::OverPart {
        pool,
        path,
        held: excess.held,
        part: excess.part,
        retry_after: wait.unwrap_or(RETRY_MAX).clamp(RETRY_MIN, RETRY_MAX),
    }
}
