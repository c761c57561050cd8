//! The parts of a queue's pools: how much of the depth, of the delayed messages, of the deduplication ids and of the keys
//! one fairness key or one client may take.
//!
//! [`drr::Pool`] is the rule: at most three times what is free. So a key that floods is refused while others are admitted,
//! and nothing that was confirmed is dropped. A refusal says when to come back. The pool of keys is divided among
//! [sources](Source), since a client can name any number of keys.

use std::time::Duration;

use drr::Pool;
use fila_store::{FairnessKey, GroupWeights, Timestamp};

use super::Queue;
use super::counts::Stage;
use super::lane::Activity;
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
        self.check_depth(now, limits, number)?;
        if newcomer.is_delayed {
            self.check_delayed(now, limits, number)?;
        }
        self.check_keys(now, limits, number, newcomer.source)?;
        Ok(number)
    }

    fn check_depth(
        &mut self,
        now: Timestamp,
        limits: &Limits,
        number: Option<u32>,
    ) -> Result<(), EnqueueError> {
        let own = self.definition.depth_max.unwrap_or(u64::MAX);
        let pool = Pool {
            capacity: limits.depth_per_queue.min(own),
            used: self.index.counts().total(),
        };
        if pool.free() == 0 {
            return Err(EnqueueError::QueueFull { max: pool.capacity });
        }
        let Some(number) = number else {
            return Ok(());
        };
        let held = self.index.lane(number).counts.total();
        let own = self.definition.key_depth_max;
        let max = limits.depth_per_key.min(own.unwrap_or(u64::MAX));
        if held >= max {
            return Err(EnqueueError::KeyFull { max });
        }
        // An operator who sets the depth of a key has decided how much one key may hold.
        if own.is_some() || pool.admits(held, 1) {
            return Ok(());
        }
        let departures = departures(pool, held);
        let interval = self.departure_interval(now, number);
        let wait = interval.map(|interval| times(interval, departures));
        Err(over_part(SharedPool::Depth, pool, held, wait))
    }

    fn check_delayed(
        &self,
        now: Timestamp,
        limits: &Limits,
        number: Option<u32>,
    ) -> Result<(), EnqueueError> {
        let pool = Pool {
            capacity: limits.delayed_per_queue,
            used: self.index.counts()[Stage::Delayed] + self.index.delayed_uncommitted,
        };
        if pool.free() == 0 {
            return Err(EnqueueError::TooManyDelayed { max: pool.capacity });
        }
        let Some(lane) = number.map(|number| self.index.lane(number)) else {
            return Ok(());
        };
        let held = lane.counts[Stage::Delayed] + u64::from(lane.delayed_uncommitted);
        if pool.admits(held, 1) {
            return Ok(());
        }
        // If none of them is durable yet, the next refusal knows more.
        let wait = lane.next_due().map_or(RETRY_MIN, |due| due.since(now));
        Err(over_part(SharedPool::Delayed, pool, held, Some(wait)))
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
        if pool.admits(held, 1) {
            return Ok(());
        }
        let depth = self.index.counts().total() / busy.max(1);
        let interval = self.index.lanes.pace.interval(now);
        let wait = interval.map(|interval| times(interval, departures(pool, held) * depth.max(1)));
        Err(over_part(SharedPool::Keys, pool, held, wait))
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
        let held = self.duplicates.held(key);
        if pool.admits(held, 1) {
            return Ok(());
        }
        // They are spread over the window, more or less.
        let window = self.definition.deduplication_window.as_secs_f64();
        let wait = window * departures(pool, held) as f64 / held.max(1) as f64;
        let wait = Duration::try_from_secs_f64(wait).ok();
        Err(over_part(SharedPool::DeduplicationIds, pool, held, wait))
    }

    /// Returns the mean time between the departures of a lane's messages in the last minute, taken from its deliveries.
    fn departure_interval(&mut self, now: Timestamp, number: u32) -> Option<Duration> {
        let lanes = &mut self.index.lanes;
        lanes.pace.advance(now);
        let (served, _) = lanes.recent(number);
        let (total, deliveries) = (lanes.pace.total(), lanes.pace.deliveries());
        // A delivery counts by its cost. The mean cost of the queue makes it a number.
        let count = served as f64 * deliveries as f64 / total.max(1) as f64;
        let interval = lanes.pace.reach(now).as_secs_f64() / count;
        Duration::try_from_secs_f64(interval).ok()
    }
}

/// Returns how many of the `held` have to leave until a key is within its part: each that leaves makes the part larger by
/// three.
fn departures(pool: Pool, held: u64) -> u64 {
    let excess = held.saturating_add(1).saturating_sub(pool.part());
    excess.div_ceil(Pool::PART_PER_FREE + 1).max(1)
}

fn times(interval: Duration, count: u64) -> Duration {
    interval.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

fn over_part(pool: SharedPool, state: Pool, held: u64, wait: Option<Duration>) -> EnqueueError {
    let retry_after = wait.unwrap_or(RETRY_MAX).clamp(RETRY_MIN, RETRY_MAX);
    EnqueueError::OverPart {
        pool,
        held,
        part: state.part(),
        retry_after,
    }
}
