//! The heart of a shard: it decides which job runs next, and knows the state of all others.
//!
//! It reads no clock, wakes no task, runs no job and takes no lock: callers tell it each event with its time, and it
//! returns what to do. [`Shard`](crate::shard::Shard) puts it behind a lock, and the worker carries out its answers.
//! It is generic over the job (`J`), its owner's ticket (`T`) and the bell of a barrier (`B`).
//!
//! # The life of a job
//! ```text
//!            withdraw, close                        cancel, hand back
//!  Waiting ─────────────────►(refused)   Queued ────────────────────────► ended
//!     │                                  ▲   │ next                         ▲
//!     └───────── room: accepted ─────────┘   ▼                              │
//!                                         Running ── finish ────────────────┤
//!                                         ▲   │ retry                       │
//!                                    next │   ▼                             │
//!                                       BackingOff ── cancel, hand back ────┘
//! ```
//! Accepting and ending are one function each ([`Core::accept`], [`Core::end`]): a store that should remember
//! jobs would be called there, and nowhere else.
//!
//! # What always holds
//! 1. A key has at most one job that runs or backs off, its lane's `active`; no other job of the key begins.
//! 2. A lane has work in the ring exactly if it has an active job or queued ones, and is parked exactly while
//!    its active job has a timer or has been set aside: it runs, waits for something, and other keys may run meanwhile;
//!    or while the lane is in the [express line](express), because its next job is urgent; or while its active node
//!    belongs to a [job across keys](crate::joint) that does not hold all its keys yet, or runs in another lane.
//! 3. `queued − apart + max(0, backing_off + apart − backoff_max) ≤ queue_max + concurrency`. Jobs that back off have room of their
//!    own, and so has a part of the jobs queued behind them (`apart`), so that failing keys do not shut out healthy ones;
//!    beyond `backoff_max` they use up the queue's, so that memory is bounded. The excess comes from running jobs:
//!    each gave up its room when it began, and may have to back off although another job has taken that room since.
//! 4. No submission waits while there is room for it, in the shard and for its key.
//! 5. `accepted = ran + failed + cancelled + returned + queued + running + backing_off`.
//!
//! # Order
//! Jobs of one key and priority begin in the order in which their submissions came to the lock: a submission
//! that waits for room is followed by all later ones of its key. Room is given to the key that has the fewest jobs
//! queued, so that a key with a thousand submissions waiting cannot keep out one with a single one.
//!
//! # Room
//! By default a key may have three times as many jobs queued as the queue has room for ([`drr::Pool`]). That is enough
//! for keys that run: what they hold leaves. A key that backs off holds its jobs for long, and a few such keys, one after
//! another, would take three quarters of what is left each. So jobs that are queued behind one that backs off move to the
//! room for backing off, which is divided by the same rule. They are counted there until they begin.
//!
//! The [groups](groups) that a key is in have parts, too, from the top down: the part of a member is of what its group may
//! hold, so a tenant with a thousand keys gets the part of one.
//!
//! # Hot path
//! [`Core::admit`], [`Core::next`] and [`Core::finish`]: one look-up by name, one ring operation each, and no
//! allocation once the tables have grown, except for the name of a key that is new.

mod across;
mod barriers;
mod express;
mod groups;
mod histogram;
mod lane;
mod lanes;
mod line;
mod list;
mod node;
mod room;
mod running;
mod slab;
mod stopping;
mod time;
mod turns;
mod vocabulary;
mod waiting;

#[cfg(test)]
mod audit;
#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use drr::Quantum;
use foldhash::fast::RandomState;

pub(crate) use barriers::BarrierId;
pub(crate) use histogram::{BOUNDS_MS, Histogram};
pub(crate) use node::{JobSlot, Role};
pub(crate) use stopping::{HandedBack, RemovedJob};
pub(crate) use time::Timestamp;
pub(crate) use vocabulary::{
    Cancelled, Counters, End, KeyLimit, Lease, Limits, Next, NoRetry, Notices, Occupancy, Spec,
    Status,
};
pub(crate) use waiting::{Admission, Patience};

use barriers::Barriers;
use express::Express;
use groups::Names;
use lanes::Lanes;
use line::Line;
use node::{Node, Stage};
use slab::Slab;

use crate::options::Priority;
use crate::path::Separator;

/// The jobs of a shard, and all decisions about them.
#[derive(Debug)]
pub(crate) struct Core<J, T, B> {
    limits: Limits,
    names: Names,
    lanes: Lanes,
    express: Express,
    line: Line,
    nodes: Slab<Node<J, T>>,
    /// Jobs that back off, by the time at which they are due.
    timers: BTreeMap<(Timestamp, u64), u32>,
    barriers: Barriers<B>,
    /// How many jobs run.
    running: usize,
    queued: usize,
    /// How many of the queued jobs use the room for backing off.
    apart: usize,
    backing_off: usize,
    is_stopping: bool,
    /// The number of the next submission.
    serial: u64,
    counters: Counters,
    runs: Histogram,
}

impl<J, T: Clone, B> Core<J, T, B> {
    pub(crate) fn new(
        limits: Limits,
        separator: Option<Separator>,
        quantum: Quantum,
        hasher: RandomState,
    ) -> Self {
        Self {
            limits,
            names: Names::new(separator, limits.backoff_max),
            lanes: lanes::new(quantum, hasher),
            express: Express::default(),
            line: Line::default(),
            nodes: Slab::new(),
            timers: BTreeMap::new(),
            barriers: Barriers::new(),
            running: 0,
            queued: 0,
            apart: 0,
            backing_off: 0,
            is_stopping: false,
            serial: 0,
            counters: Counters::default(),
            runs: Histogram::default(),
        }
    }

    /// Returns the status of a job; `None` if it is not accepted or has ended.
    pub(crate) fn status(&mut self, place: JobSlot) -> Option<Status> {
        let node = self.resolve(place)?;
        let (lane, priority, attempt) = (node.lane, node.priority, node.attempts);
        match node.stage {
            Stage::Waiting => None,
            Stage::Holding { .. } => Some(Status::Queued { position: 0 }),
            Stage::Queued => Some(Status::Queued {
                position: self.position(place.slot, lane, priority),
            }),
            Stage::Running { .. } => Some(Status::Running { attempt }),
            Stage::BackingOff { until } => Some(Status::BackingOff { attempt, until }),
        }
    }

    /// Returns how many jobs of the key run before a queued one, if none comes that is more urgent.
    fn position(&mut self, slot: u32, number: u32, priority: Priority) -> usize {
        let lane = &self.lanes[number];
        let more_urgent = match priority.queue() {
            None => 0,
            Some(queue) => {
                self.express.len(&mut self.nodes, number) + lane.len_before(&mut self.nodes, queue)
            }
        };
        usize::from(lane.has_active()) + more_urgent + list::ahead_of(&mut self.nodes, slot)
    }

    /// Sets a barrier behind all jobs of a key, or of the shard. Gives the bell back if there are none.
    pub(crate) fn barrier(&mut self, key: Option<&str>, bell: B) -> Result<BarrierId, B> {
        let scope = match key {
            None => None,
            Some(key) => match self.lanes.find(key) {
                Some(lane) => Some(lane),
                None => return Err(bell),
            },
        };
        let remaining = match scope {
            None => self.live(),
            Some(lane) => {
                let lane = &self.lanes[lane];
                lane.len as usize + usize::from(lane.has_active())
            }
        };
        if remaining == 0 {
            return Err(bell);
        }
        let before = self.counters.accepted;
        Ok(self.barriers.set(scope, before, remaining, bell))
    }

    pub(crate) fn take_down(&mut self, barrier: BarrierId) {
        self.barriers.remove(barrier);
    }

    /// Returns whether a worker that sleeps has something to do.
    #[inline]
    pub(crate) fn needs_worker(&self) -> bool {
        self.running < self.limits.concurrency
            && (self.is_stopping || self.lanes.engine().is_runnable() || !self.express.is_empty())
    }

    pub(crate) const fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) const fn runs(&self) -> &Histogram {
        &self.runs
    }

    /// Returns how many jobs are queued, run, and back off.
    pub(crate) const fn gauges(&self) -> (usize, usize, usize) {
        (self.queued, self.running, self.backing_off)
    }

    /// Returns how many keys are in memory.
    pub(crate) fn keys(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the key of a job that runs, the attempt, and its ticket.
    pub(crate) fn running_job(&self, place: JobSlot) -> Option<(&Arc<str>, u32, &T)> {
        let node = self.nodes.get(place.slot)?;
        let runs = node.serial == place.serial && matches!(node.stage, Stage::Running { .. });
        runs.then(|| (self.lanes.name(node.lane), node.attempts, &node.ticket))
    }

    /// Returns the key of a job that has not ended.
    pub(crate) fn key_of(&self, place: JobSlot) -> Option<&Arc<str>> {
        let node = self.nodes.get(place.slot)?;
        (node.serial == place.serial).then(|| self.lanes.name(node.lane))
    }

    /// Returns the key of a lane.
    pub(crate) fn lane_name(&self, lane: u32) -> &Arc<str> {
        self.lanes.name(lane)
    }

    /// Returns the jobs that run, in the order in which they were accepted.
    pub(crate) fn running_jobs(&self) -> Vec<JobSlot> {
        let slots = self.slots(|node| matches!(node.stage, Stage::Running { .. }));
        let place = |slot| JobSlot {
            slot,
            serial: self.nodes[slot].serial,
        };
        slots.into_iter().map(place).collect()
    }

    /// Returns how many jobs have been accepted and have not ended.
    const fn live(&self) -> usize {
        let (queued, running, backing_off) = self.gauges();
        queued + running + backing_off
    }

    fn resolve(&mut self, place: JobSlot) -> Option<&mut Node<J, T>> {
        let node = self.nodes.get_mut(place.slot)?;
        (node.serial == place.serial).then_some(node)
    }
}
