//! How much room there is: in the shard, and for a key on every level of its path.
//!
//! A key, or the group at the top of its path, has a part of the shard's room. What is in a group has a part of what the
//! group may hold now, by the same rule, and so on down to the key. A submission needs room on every level.

use drr::Pool;

use super::groups;
use super::{Core, KeyLimit, Occupancy};
use crate::error::FullLevel;
use crate::path::PARTS_MAX;

/// How much is held on every level of a key's path, from the top down. The last level is the key itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads {
    held: [u64; PARTS_MAX],
    len: usize,
}

impl Loads {
    const NONE: Self = Self {
        held: [0; PARTS_MAX],
        len: 0,
    };

    const fn push(&mut self, held: u64) {
        self.held[self.len] = held;
        self.len += 1;
    }

    /// Returns all levels from the top down, if `max` is what the top may hold.
    fn levels(&self, max: u64) -> impl Iterator<Item = Level> {
        let numbered = self.held[..self.len].iter().enumerate();
        numbered.scan(max, |max, (above, &held)| {
            let level = Level {
                above,
                held,
                max: *max,
            };
            let pool = Pool {
                capacity: *max,
                used: held,
            };
            *max = pool.part();
            Some(level)
        })
    }

    /// Returns the first level that may hold no more.
    fn first_full(&self, max: u64) -> Option<Level> {
        self.levels(max).find(|level| level.held >= level.max)
    }
}

/// One level of a key's path: what it holds, and what it may hold.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// How many levels are above it.
    above: usize,
    held: u64,
    max: u64,
}

impl<J, T: Clone, B> Core<J, T, B> {
    /// Returns how much of the queue's room is in use.
    #[inline]
    pub(crate) const fn held(&self) -> usize {
        let backing_off = self.backing_off + self.apart;
        self.queued - self.apart + backing_off.saturating_sub(self.limits.backoff_max)
    }

    #[inline]
    pub(crate) const fn has_room(&self) -> bool {
        self.held() < self.limits.queue_max
    }

    /// Returns whether a lane may have one more job queued, if there is room in the queue.
    #[inline]
    pub(super) fn has_room_for(&self, lane: u32) -> bool {
        let max = self.key_max(self.held());
        if self.lanes.groups().is_empty() {
            return (self.lanes[lane].len as usize) < max;
        }
        self.loads_of(lane).first_full(max as u64).is_none()
    }

    /// Returns whether there is room for a job of each of these keys, which are different ones.
    pub(crate) fn has_room_for_all(&self, keys: &[String]) -> Result<(), Occupancy> {
        for (before, key) in keys.iter().enumerate() {
            let loads = self.loads_named(key, &keys[..before]);
            let held = self.held() + before;
            let full = loads.first_full(self.key_max(held) as u64);
            if held >= self.limits.queue_max || full.is_some() {
                return Err(self.occupancy_with(held, &loads));
            }
        }
        Ok(())
    }

    /// Returns how many jobs one key or group at the top may have queued while this much of the queue's room is in use.
    #[inline]
    pub(super) const fn key_max(&self, held: usize) -> usize {
        match self.limits.key_max {
            KeyLimit::Fixed(max) => max,
            KeyLimit::Part => {
                let queue = Pool {
                    capacity: self.limits.queue_max as u64,
                    used: held as u64,
                };
                queue.part() as usize
            }
        }
    }

    /// Returns how full the levels of a lane are, for a submission that is refused.
    pub(super) fn occupancy_of(&self, lane: u32) -> Occupancy {
        self.occupancy_with(self.held(), &self.loads_of(lane))
    }

    /// Does the same for a key that may have no lane.
    pub(super) fn occupancy_named(&self, key: &str) -> Occupancy {
        self.occupancy_with(self.held(), &self.loads_named(key, &[]))
    }

    fn occupancy_with(&self, held: usize, loads: &Loads) -> Occupancy {
        let max = self.key_max(held) as u64;
        let full = loads.first_full(max);
        let (level, full) = match full {
            _ if held >= self.limits.queue_max => (FullLevel::Shard, None),
            Some(full) if full.above + 1 < loads.len => {
                let parts = full.above + 1;
                (FullLevel::Group { parts }, Some(full))
            }
            Some(_) | None => (FullLevel::Key, None),
        };
        let (key_held, key_max) = match full.or_else(|| loads.levels(max).last()) {
            Some(level) => (level.held, level.max),
            None => (0, max),
        };
        Occupancy {
            held,
            level,
            key_held: key_held as usize,
            key_max: key_max as usize,
        }
    }

    fn loads_of(&self, lane: u32) -> Loads {
        let mut loads = Loads::NONE;
        for &group in groups::around(&self.lanes, lane).iter() {
            loads.push(self.lanes.group(group).held());
        }
        loads.push(u64::from(self.lanes[lane].len));
        loads
    }

    /// Returns what the levels of a key hold after one job of each of the other keys has come in. The key may have no
    /// lane yet, and its groups may be missing.
    fn loads_named(&self, key: &str, others: &[String]) -> Loads {
        let mut loads = Loads::NONE;
        if let Some(separator) = self.names.separator {
            let is_within = |group: &str| {
                let others = others.iter();
                let within = others.filter(|other| separator.is_within(other, group));
                within.count() as u64
            };
            for group in separator.groups(key) {
                loads.push(self.load_named(group) + is_within(group));
            }
            let is_group = self.lanes.groups().find(key).is_some() || is_within(key) > 0;
            if is_group {
                loads.push(self.load_named(key) + is_within(key));
            }
        }
        let lane = self.lanes.find(key);
        loads.push(lane.map_or(0, |lane| u64::from(self.lanes[lane].len)));
        loads
    }

    /// Returns what a group holds, or would hold if it were made now.
    fn load_named(&self, group: &str) -> u64 {
        let load = match self.lanes.groups().find(group) {
            Some(group) => *self.lanes.group(group),
            None => self.load_of_lane(self.lanes.find(group), self.names.empty(group)),
        };
        load.held()
    }

    /// Moves queued jobs of a lane whose active job backs off to the room for backing off, as many as it takes.
    pub(super) fn set_apart(&mut self, number: u32) {
        while self.may_set_apart(number) {
            self.lanes[number].apart += 1;
            self.apart += 1;
            self.count(number, |group| group.apart += 1);
        }
    }

    fn may_set_apart(&self, number: u32) -> bool {
        let lane = &self.lanes[number];
        let mut room = Pool {
            capacity: self.limits.backoff_max as u64,
            used: (self.backing_off + self.apart) as u64,
        };
        if !self.lanes.groups().is_empty() {
            for &group in groups::around(&self.lanes, number).iter() {
                let held = u64::from(self.lanes.group(group).apart);
                if !room.admits(held, 1) {
                    return false;
                }
                room = Pool {
                    capacity: room.part(),
                    used: held,
                };
            }
        }
        lane.apart < lane.len && room.admits(u64::from(lane.apart), 1)
    }

    /// Corrects how many jobs of a lane use the room for backing off, after one has left the queue.
    #[inline]
    pub(super) fn trim_apart(&mut self, number: u32) {
        let surplus = self.lanes[number].trim_apart();
        if surplus > 0 {
            self.apart -= surplus as usize;
            self.count(number, |group| group.apart -= surplus);
        }
    }
}
