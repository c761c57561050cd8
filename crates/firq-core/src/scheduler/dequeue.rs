//! Handing tasks out.
//!
//! The ring chooses the tenant, and the tenant's shard has the task. Both are locked during a dispatch. Expired tasks in the way are dropped, a bounded number for each time the locks are held.

use std::hash::Hash;

use drr::{Cost, Key};

use super::{Phase, Scheduler};
use crate::outcome::{CancelResult, DequeueResult};
use crate::ring::{Location, Ring};
use crate::shard::CHUNK;
use crate::task::{Task, TaskHandle};
use crate::times::Moment;
use crate::topology::{Solo, Topology};

/// The most tasks that are handed out while the locks are held.
const BATCH: usize = 64;

/// Why dispatching stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    /// There is no more work.
    Empty,
    /// As many tasks as wanted were handed out.
    Enough,
    /// As many expired tasks were dropped as may be at once: try again.
    BudgetSpent,
}

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Takes the next task, if there is one now.
    #[inline]
    pub fn try_dequeue(&self) -> DequeueResult<T, K> {
        let mut next = DequeueResult::Empty;
        if self.phase() != Phase::Closed {
            let mut moment = self.times.look_later(&*self.clock);
            let sink = &mut |tenant, task| next = DequeueResult::Task { tenant, task };
            while self.dispatch(&mut moment, 1, sink) == Halt::BudgetSpent {}
        }
        if let DequeueResult::Empty = next {
            return self.nothing();
        }
        next
    }

    /// Lets a task of a tenant run that was never queued, if no task at all is queued. Returns whether it may.
    ///
    /// The order of service, the shares and the statistics are then as if the task had been enqueued and dequeued within
    /// a moment: its tenant pays `cost`, and may [settle](Self::settle) it later. It takes no room, reads no clock,
    /// allocates nothing and wakes no consumer.
    ///
    /// Returns `false`, and changes nothing, if a task is queued, if the scheduler is closed, if the tenant or a group of
    /// it is paused, or if the tenant is not known yet: enqueue the task then.
    ///
    /// ```
    /// use firq_core::{Scheduler, SchedulerConfig, Task, TenantKey};
    ///
    /// let scheduler = Scheduler::new(SchedulerConfig::fair())?;
    /// let tenant = TenantKey::from(7);
    /// assert!(!scheduler.pass(&tenant, 1), "it is not known");
    /// assert!(scheduler.submit(tenant, Task::new("work")).is_ok());
    /// assert!(!scheduler.pass(&tenant, 1), "there is work before it");
    /// assert!(scheduler.try_dequeue().into_task().is_some());
    /// assert!(scheduler.pass(&tenant, 1));
    /// # Ok::<(), firq_core::ConfigError>(())
    /// ```
    pub fn pass(&self, tenant: &K, cost: u64) -> bool {
        let (hash, number) = self.locate(tenant);
        self.topology.with_both(number, |ring, shard| {
            // Room is reserved before a task enters the ring and released after it has left: no room taken, no task.
            if !self.capacity.is_idle() {
                return false;
            }
            let lane = shard.find(hash, tenant);
            let Some(lane) = lane.filter(|&lane| shard.may_run(ring, lane)) else {
                return false;
            };
            shard.pass(ring, lane, Cost::new(cost));
            true
        })
    }

    /// Takes up to `max` tasks in the order of service, and adds them to `tasks`. Returns how many.
    ///
    /// Reads the clock at most once and takes the locks once for every 64 tasks, so it costs less per task than
    /// [`try_dequeue`](Self::try_dequeue); but the order is settled for all of them at once, and a tenant
    /// that gets work a moment later comes after them.
    pub fn dequeue_batch(&self, max: usize, tasks: &mut Vec<(K, Task<T>)>) -> usize {
        if self.phase() == Phase::Closed {
            return 0;
        }
        let mut moment = self.times.look_later(&*self.clock);
        let before = tasks.len();
        let mut left = max;
        while left > 0 {
            let wanted = left.min(BATCH);
            tasks.reserve(wanted.min(self.len()));
            let had = tasks.len();
            let sink = &mut |tenant, task| tasks.push((tenant, task));
            let halt = self.dispatch(&mut moment, wanted, sink);
            left -= tasks.len() - had;
            if halt == Halt::Empty {
                break;
            }
        }
        tasks.len() - before
    }

    /// Takes a task out of the queue, wherever it is, in constant time. Its payload is dropped and its room
    /// is free when this returns.
    ///
    /// ```
    /// use firq_core::{CancelResult, Scheduler, SchedulerConfig, Task, TenantKey};
    ///
    /// let scheduler = Scheduler::new(SchedulerConfig::fair())?;
    /// let handle = scheduler.submit(TenantKey::from(7), Task::new("work")).unwrap();
    /// assert_eq!(scheduler.cancel(handle), CancelResult::Cancelled);
    /// assert_eq!(scheduler.cancel(handle), CancelResult::NotFound);
    /// # Ok::<(), firq_core::ConfigError>(())
    /// ```
    pub fn cancel(&self, handle: TaskHandle) -> CancelResult {
        match self.cancel_and_return(handle) {
            Some(_) => CancelResult::Cancelled,
            None => CancelResult::NotFound,
        }
    }

    /// Takes a task out of the queue as [`cancel`](Self::cancel) does, and returns it if it was there.
    pub fn cancel_and_return(&self, handle: TaskHandle) -> Option<Task<T>> {
        if handle.scheduler != self.number {
            return None;
        }
        let mut effects = self.effects();
        let task = self.change_lane(handle.shard, &mut effects, |shard, effects| {
            let Some(index) = shard.resolve(handle) else {
                return (None, None);
            };
            let (task, lane) = shard.cancel(index, effects);
            (Some(task), Some(lane))
        });
        self.apply(effects);
        task
    }

    /// Drops the tasks whose deadline has passed. Returns how many there were.
    ///
    /// Enqueueing and dequeueing drop the expired tasks that they meet. Call this when neither may happen for
    /// a while and an [observer](crate::SchedulerConfig::on_drop) waits for the tasks.
    pub fn expire(&self) -> u64 {
        let now = self.now();
        (0..self.hints.len() as u32)
            .map(|shard| self.expire_all(shard, now))
            .sum()
    }

    /// Returns the answer when there is nothing to hand out.
    fn nothing(&self) -> DequeueResult<T, K> {
        match self.phase() {
            Phase::Open => DequeueResult::Empty,
            // A producer may be about to queue a task that was accepted before closing.
            Phase::Draining if !self.capacity.is_drained() => DequeueResult::Empty,
            Phase::Draining | Phase::Closed => DequeueResult::Closed,
        }
    }

    /// Hands out up to `wanted` tasks.
    #[inline]
    fn dispatch(
        &self,
        moment: &mut Moment,
        wanted: usize,
        sink: &mut impl FnMut(K, Task<T>),
    ) -> Halt {
        let mut effects = self.effects();
        let halt = match &self.topology {
            Topology::Solo(solo) => {
                let Solo { ring, shard } = &mut *solo.0.lock();
                let halt = take_turns(ring, wanted, sink, |ring, turn, _, budget| {
                    shard.serve(ring, turn, moment, budget, &mut effects)
                });
                effects.settle();
                halt
            }
            Topology::Sharded { ring, shards } => {
                let ring = &mut *ring.0.lock();
                take_turns(ring, wanted, sink, |ring, turn, shard, budget| {
                    let mut shard = shards[shard as usize].0.lock();
                    shard.serve(ring, turn, moment, budget, &mut effects)
                })
            }
        };
        self.apply(effects);
        if halt == Halt::BudgetSpent {
            self.topology.make_way(None); // shards were held for one tenant at a time
        }
        halt
    }
}

/// Lets `serve` take a task from the lane whose turn it is, until there are enough or no more.
#[inline]
fn take_turns<T, K>(
    ring: &mut Ring<K>,
    wanted: usize,
    sink: &mut impl FnMut(K, Task<T>),
    mut serve: impl FnMut(&mut Ring<K>, (Key, u32), u32, &mut usize) -> Option<(K, Task<T>)>,
) -> Halt {
    let mut budget = CHUNK;
    let mut wanted = wanted;
    loop {
        let Some((key, Location { shard, lane })) = ring.next() else {
            return Halt::Empty;
        };
        if let Some((tenant, task)) = serve(ring, (key, lane), shard, &mut budget) {
            sink(tenant, task);
            wanted -= 1;
            if wanted == 0 {
                return Halt::Enough;
            }
        } else if budget == 0 {
            return Halt::BudgetSpent;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Clock, ManualClock, SchedulerConfig, TenantKey};

    const TASKS: usize = 100_000;

    /// A hundred thousand tenants with one task each, all expired, and one with a task that is not.
    fn mass_expiry(shards: usize) -> Scheduler<u64> {
        let clock = ManualClock::new();
        let config = SchedulerConfig {
            shards,
            max_global: TASKS + 1,
            ..SchedulerConfig::default()
        };
        let scheduler: Scheduler<u64> =
            Scheduler::new(config.with_clock(clock.clone())).expect("the configuration is valid");
        let deadline = clock.now() + Duration::from_secs(1);
        for tenant in 0..TASKS as u64 {
            let task = Task::new(tenant).with_deadline(deadline);
            assert!(scheduler.submit(TenantKey::from(tenant), task).is_ok());
        }
        assert!(
            scheduler
                .submit(TenantKey::from(TASKS as u64), Task::new(7))
                .is_ok()
        );
        clock.advance(Duration::from_secs(2));
        scheduler
    }

    #[test]
    fn a_dequeue_drops_a_bounded_number_of_tasks_while_it_holds_the_locks() {
        for shards in [1, 4] {
            let scheduler = mass_expiry(shards);
            let (mut holds, mut next) = (0, None);
            loop {
                let before = scheduler.len();
                let sink = &mut |_, task: Task<u64>| next = Some(task.payload);
                let halt = scheduler.dispatch(&mut scheduler.look(), 1, sink);
                assert!(before - scheduler.len() <= CHUNK + 1);
                holds += 1;
                if halt != Halt::BudgetSpent {
                    break;
                }
            }
            assert_eq!(next, Some(7));
            assert!(holds >= TASKS / CHUNK / 2, "{holds} holds");
        }
    }

    #[test]
    fn looking_for_expired_tasks_drops_a_bounded_number_at_a_time() {
        let scheduler = mass_expiry(1);
        while scheduler.len() > 1 {
            let before = scheduler.len();
            let expired = scheduler.expire_some(0, scheduler.now());
            assert!(expired.freed <= CHUNK as u64);
            assert_eq!((before - scheduler.len()) as u64, expired.freed);
        }
        assert_eq!(scheduler.topology.with_ring(|ring| ring.visits()), 0);
        assert!(scheduler.try_dequeue().into_task().is_some());
    }

    /// Steps that the engine takes for one dequeue, at worst and in the middle, after something happened to
    /// a hundred thousand tenants.
    fn steps(scheduler: &Scheduler<u64>, dequeues: usize) -> (u64, u64) {
        let visits = || scheduler.topology.with_ring(|ring| ring.visits());
        let mut steps: Vec<u64> = (0..dequeues)
            .map(|_| {
                let before = visits();
                assert!(scheduler.try_dequeue().into_task().is_some());
                visits() - before
            })
            .collect();
        steps.sort_unstable();
        (steps[dequeues - 1], steps[dequeues / 2])
    }

    #[test]
    fn cancelled_tasks_are_not_in_the_way() {
        for shards in [1, 4] {
            let config = SchedulerConfig {
                shards,
                max_global: 2 * TASKS,
                ..SchedulerConfig::default()
            };
            let scheduler: Scheduler<u64> = Scheduler::new(config).unwrap();
            for tenant in 0..TASKS as u64 {
                let handle = scheduler
                    .submit(TenantKey::from(tenant), Task::new(tenant))
                    .unwrap();
                if tenant % 100 > 0 {
                    assert_eq!(scheduler.cancel(handle), CancelResult::Cancelled);
                }
            }
            let (worst, median) = steps(&scheduler, TASKS / 100);
            assert!(
                worst <= 10 * median.max(1),
                "at worst {worst} steps, usually {median}"
            );
        }
    }

    #[test]
    fn dear_tasks_are_waited_out_not_walked_through() {
        let config = SchedulerConfig {
            max_global: 2 * TASKS,
            ..SchedulerConfig::default()
        };
        let scheduler: Scheduler<u64> = Scheduler::new(config).unwrap();
        for tenant in 0..TASKS as u64 / 2 {
            for cost in [10_000, 1] {
                assert!(
                    scheduler
                        .submit(TenantKey::from(tenant), Task::new(0).with_cost(cost))
                        .is_ok()
                );
            }
        }
        let (worst, median) = steps(&scheduler, TASKS);
        assert!(
            worst <= 10 * median.max(1),
            "at worst {worst} steps, usually {median}"
        );
    }
}
