//! Tenants in groups: admitting, shedding and waiting where a group's room counts as well.
//!
//! The lengths of groups are in the [tree](crate::tree), under the ring's lock. Here both locks are held from the start,
//! so that a group never has more tasks queued than it may.

use std::hash::Hash;
use std::task::Context;

use super::Scheduler;
use super::enqueue::{Admission, Request, Reserved};
use crate::capacity::{Refused, Room};
use crate::effects::Effects;
use crate::lane::Flag;
use crate::nesting::{Levels, Newcomer};
use crate::outcome::DropReason;
use crate::ring::{Location, Ring};
use crate::shard::Shard;
use crate::stats::QueueLevel;
use crate::wait_queue::Ticket;

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Returns the groups that a tenant is in, the innermost first; none without
    /// [groups](crate::SchedulerConfig::with_groups).
    #[must_use]
    pub fn groups_of(&self, tenant: &K) -> Vec<K> {
        self.levels
            .as_ref()
            .map_or_else(Vec::new, |levels| levels.groups_of(tenant))
    }

    /// Returns how many groups there are.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.topology
            .with_ring(|ring| ring.tree().map_or(0, |(tree, _)| tree.len()))
    }

    /// Returns how full the queues are that a task of this tenant has to fit into: its own, and then those of its groups,
    /// the innermost first.
    #[must_use]
    pub fn queue_levels(&self, tenant: &K) -> Vec<QueueLevel> {
        let (hash, number) = self.locate(tenant);
        let own = self.topology.with_shard(number, |shard| {
            let lane = shard.find(hash, tenant);
            lane.map_or(0, |lane| shard.lanes[lane].len)
        });
        let mut queues = vec![QueueLevel::new(own, self.max_per_tenant)];
        if let Some(levels) = &self.levels {
            let groups = levels.groups_of(tenant);
            // A tenant that bears the name of a group is in it.
            let names = std::iter::once(tenant).chain(&groups);
            self.topology.with_ring(|ring| {
                let tree = ring.tree().map(|(tree, _)| tree);
                let lens = names.filter_map(|name| tree?.group_len(name));
                queues.extend(lens.map(|len| QueueLevel::new(len, levels.max_per_group)));
            });
        }
        queues
    }

    /// Returns a tenant with its groups and their weights. The caller holds no lock.
    pub(super) fn newcomer<'a>(&self, tenant: &'a K) -> Newcomer<'a, K> {
        let groups = self.groups_of(tenant);
        let equal = self.quanta.are_equal();
        let weigh = |name: &K| match equal {
            true => self.quanta.neutral(),
            false => self.weight(name),
        };
        let weighed = groups.into_iter().map(|group| {
            let weight = weigh(&group);
            (group, weight)
        });
        Newcomer {
            groups: weighed.collect(),
            weight: weigh(tenant),
            neutral: self.quanta.neutral(), // last, as weighing may make the scale finer
            tenant,
        }
    }

    /// Changes a lane of a shard, and then lets the ring know how the lane is.
    pub(super) fn change_lane<R>(
        &self,
        number: u32,
        effects: &mut Effects<'_, T, K>,
        f: impl FnOnce(&mut Shard<T, K>, &mut Effects<'_, T, K>) -> (R, Option<u32>),
    ) -> R {
        if self.levels.is_none() {
            return self
                .topology
                .with_shard_then_ring(number, effects, |shard, effects| {
                    let (result, lane) = f(shard, effects);
                    (result, lane.filter(|&lane| shard.is_news(lane)))
                });
        }
        self.topology.with_both(number, |ring, shard| {
            let (result, lane) = f(shard, effects);
            if let Some(lane) = lane {
                shard.reconcile(ring, lane, effects);
            }
            result
        })
    }

    /// Admits a task if there is room for it, and in all groups of its tenant.
    pub(super) fn admit_nested(
        &self,
        levels: &Levels<K>,
        request: &mut Request<'_, T, K>,
        reserved: Reserved,
    ) -> Admission {
        let mut is_new = false;
        loop {
            let version = self.quanta.version();
            let newcomer = is_new.then(|| self.newcomer(request.tenant));
            let mut effects = self.effects();
            let admission = self.topology.with_both(request.shard, |ring, shard| {
                // Weights that were found before quanta changed may be old ones.
                let newcomer = newcomer.filter(|_| self.quanta.version() == version);
                let room = self.room_for(levels, ring, shard, request, newcomer.as_ref());
                match room {
                    RoomInGroups::Unknown => return None,
                    RoomInGroups::Refused(admission) => return Some(admission),
                    RoomInGroups::Free => {}
                }
                if reserved == Reserved::No {
                    match self.capacity.reserve() {
                        Ok(()) => {}
                        Err(Refused::Full) => return Some(Admission::GlobalFull),
                        Err(Refused::Closed) => return Some(Admission::Closed),
                    }
                }
                self.push_nested(ring, shard, request, newcomer.as_ref(), &mut effects);
                Some(Admission::Accepted)
            });
            self.apply(effects);
            match admission {
                Some(admission) => return admission,
                None => is_new = true,
            }
        }
    }

    /// Returns whether a tenant and all its groups have room for a task.
    fn room_for(
        &self,
        levels: &Levels<K>,
        ring: &Ring<K>,
        shard: &Shard<T, K>,
        request: &Request<'_, T, K>,
        newcomer: Option<&Newcomer<'_, K>>,
    ) -> RoomInGroups {
        let Some((tree, engine)) = ring.tree() else {
            return RoomInGroups::Free;
        };
        let max = levels.max_per_group;
        let lane = shard.find(request.hash, request.tenant);
        let full = match (lane.map(|lane| &shard.lanes[lane]), newcomer) {
            (Some(owner), _) if owner.len >= self.max_per_tenant => {
                return RoomInGroups::Refused(Admission::TenantFull);
            }
            (Some(owner), _) => owner
                .key
                .and_then(|key| tree.full_group_of(engine, key, max)),
            (None, Some(newcomer)) => tree.full_group_for(newcomer, max),
            (None, None) => return RoomInGroups::Unknown,
        };
        match full {
            _ if shard.is_closed => RoomInGroups::Refused(Admission::Closed),
            Some(group) => RoomInGroups::Refused(Admission::GroupFull { group }),
            None => RoomInGroups::Free,
        }
    }

    /// Queues a task for which there is room.
    fn push_nested(
        &self,
        ring: &mut Ring<K>,
        shard: &mut Shard<T, K>,
        request: &mut Request<'_, T, K>,
        newcomer: Option<&Newcomer<'_, K>>,
        effects: &mut Effects<'_, T, K>,
    ) {
        let found = shard.find(request.hash, request.tenant);
        let introduced = || Some(shard.introduce(ring, request.hash, newcomer?));
        let Some(lane) = found.or_else(introduced) else {
            return; // `room_for` has seen one of them
        };
        let task = request.submission.take();
        request.submission.handle = shard.push(lane, task, request.moment);
        if let (Some((tree, engine)), Some(key)) = (ring.tree_mut(), shard.lanes[lane].key) {
            tree.note_accepted(engine, key);
        }
        if shard.lanes[lane].has(Flag::InRing) && shard.may_run(ring, lane) {
            effects.announced += 1;
        }
        shard.reconcile(ring, lane, effects);
    }

    /// Evicts the newest task of the tenant that is furthest above its share, level by level, if the groups of this
    /// tenant or itself would be below that share with one more task. The room stays reserved.
    pub(super) fn shed_nested(&self, request: &Request<'_, T, K>, within: Option<u32>) -> bool {
        let newcomer = self.newcomer(request.tenant);
        let mut effects = self.effects();
        let shed = self.topology.with_chosen(
            |ring| {
                let (tree, engine) = ring.tree()?;
                let victim = tree.victim(engine, &newcomer, within)?;
                let Location { shard, lane } = ring.location(victim);
                Some((shard, lane))
            },
            |ring, shard, lane| {
                let Some(victim) = shard.lanes[lane].last() else {
                    return false;
                };
                shard.discard(victim, DropReason::Evicted, &mut effects);
                effects.freed -= 1; // its room goes to the new task
                shard.reconcile(ring, lane, &mut effects);
                true
            },
        );
        self.apply(effects);
        shed.unwrap_or(false)
    }

    /// Waits for room in a group, unless there is some.
    pub(super) fn wait_in_group(
        &self,
        context: &Context<'_>,
        group: u32,
        kept: impl Fn(Room) -> Option<Ticket>,
    ) -> Option<(Room, Ticket)> {
        let max = self.levels.as_ref()?.max_per_group;
        let room = Room::Group { group };
        let waker = context.waker().clone();
        self.topology.with_ring(|ring| {
            let (tree, _) = ring.tree_mut()?;
            let wait = || self.capacity.wait_for_tenant(room, kept(room), waker);
            let ticket = tree.await_room(group, max, wait)?;
            Some((room, ticket))
        })
    }
}

/// Whether a tenant and its groups have room for a task.
enum RoomInGroups {
    Free,
    Refused(Admission),
    /// The tenant is new, and its groups are not known.
    Unknown,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use drr::{Cost, Drr, Quantum, Weight};

    use super::*;
    use crate::config::SchedulerConfig;
    use crate::ring::registered;
    use crate::sync::counted::locks;
    use crate::task::{Task, TenantKey};

    fn scheduler(nests: bool) -> Scheduler<u64> {
        let config = SchedulerConfig {
            shards: 4,
            ..SchedulerConfig::fair()
        };
        let group_of = |tenant: &TenantKey| {
            let group = tenant.as_u64() % 100;
            (tenant.as_u64() >= 100).then(|| TenantKey::from(group))
        };
        let config = match nests {
            true => config.with_groups(group_of),
            false => config,
        };
        Scheduler::new(config).expect("the configuration is valid")
    }

    fn enqueue(scheduler: &Scheduler<u64>, tenant: u64) {
        let submitted = scheduler.submit(TenantKey::from(tenant), Task::new(0));
        assert!(submitted.is_ok());
    }

    fn dequeue(scheduler: &Scheduler<u64>) {
        assert!(scheduler.try_dequeue().into_task().is_some());
    }

    /// Returns the visits of an engine that serves so many tasks of each of so many keys.
    fn visits_of_the_engine(keys: usize, tasks: usize) -> u64 {
        let mut engine = Drr::new(Quantum::new(1).expect("not zero"));
        let mut left = vec![tasks; keys];
        for _ in 0..keys {
            let key = engine.register(Weight::ONE);
            registered(engine.wake(key));
        }
        while let Some(key) = engine.next_key() {
            registered(engine.charge(key, Cost::new(1)));
            left[key.index()] -= 1;
            if left[key.index()] == 0 {
                registered(engine.sleep(key));
            }
        }
        engine.work().visits
    }

    /// The memory of a flat scheduler is the business of `tests/memory.rs`: steady traffic allocates nothing.
    #[test]
    fn without_groups_a_task_takes_one_lock_in_two_out_and_the_visits_of_the_engine_alone() {
        let scheduler = scheduler(false);
        (0..200).for_each(|tenant| enqueue(&scheduler, tenant));
        assert_eq!(scheduler.groups(), 0);
        for tenant in 0..200 {
            let into_a_busy_lane = locks(|| enqueue(&scheduler, tenant));
            assert_eq!(into_a_busy_lane, 1, "the shard's");
        }
        for _ in 0..400 {
            assert_eq!(locks(|| dequeue(&scheduler)), 2, "the ring's and a shard's");
        }
        let visits = scheduler.topology.with_ring(|ring| ring.visits());
        assert_eq!(visits, visits_of_the_engine(200, 2));
        let into_an_idle_lane = locks(|| enqueue(&scheduler, 7));
        assert_eq!(into_an_idle_lane, 2, "the shard's and the ring's");
    }

    #[test]
    fn with_groups_a_task_takes_two_locks_in_and_two_out() {
        let scheduler = scheduler(true);
        (0..400).for_each(|tenant| enqueue(&scheduler, tenant));
        assert_eq!(scheduler.groups(), 100);
        for tenant in 0..400 {
            assert_eq!(locks(|| enqueue(&scheduler, tenant)), 2);
        }
        for _ in 0..800 {
            assert_eq!(locks(|| dequeue(&scheduler)), 2);
        }
    }

    #[test]
    fn the_levels_of_a_queue_are_its_own_and_those_of_its_groups() {
        let flat = scheduler(false);
        enqueue(&flat, 107);
        assert_eq!(flat.queue_levels(&TenantKey::from(107)).len(), 1);
        let nested = scheduler(true);
        for tenant in [107, 107, 207, 7] {
            enqueue(&nested, tenant);
        }
        let queued = |tenant: u64| -> Vec<usize> {
            let levels = nested.queue_levels(&TenantKey::from(tenant));
            levels.iter().map(|level| level.queued).collect()
        };
        assert_eq!(queued(107), [2, 4]);
        assert_eq!(queued(7), [1, 4], "its own tasks, and those of its group");
        assert_eq!(queued(307), [0, 4], "of a tenant that is not known yet");
        assert_eq!(queued(8), [0]);
    }
}
