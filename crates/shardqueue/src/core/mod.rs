//! The heart of a shard: which job runs next, and what has become of every other one.
//!
//! It reads no clock, wakes nobody, runs nothing and takes no lock: it is told what happened and when, and
//! answers what to do. [`Shard`](crate::shard::Shard) puts it behind a lock, and the worker does what it says.
//! It is generic in what a job is (`J`), in how its owner is told (`T`) and in what rings for a barrier (`B`).
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
//! jobs would be told there, and nowhere else.
//!
//! # What always holds
//! 1. A key has at most one job that runs or backs off, its lane's `active`; no other job of the key begins.
//! 2. A lane has work in the ring exactly if it has an active job or queued ones, and is parked exactly while
//!    its active job has a timer.
//! 3. `queued + max(0, backing_off − backoff_max) ≤ queue_max + 1`. Jobs that back off have room of their own,
//!    so that failing keys do not shut out healthy ones; beyond `backoff_max` they use up the queue's, so that
//!    memory is bounded. The one above comes from the job that runs: it gave up its room when it began, and may
//!    have to back off although somebody else has taken that room since.
//! 4. Nobody waits for room that there is, in the shard and for the key.
//! 5. `accepted = ran + failed + cancelled + returned + queued + running + backing_off`.
//!
//! # Order
//! Jobs of one key and priority begin in the order in which their submissions came to the lock: a submission
//! that waits for room is followed by all later ones of its key. Room is given to keys in turn, not to
//! submissions in turn, so that a key with a thousand of them waiting cannot keep out one with a single one.
//!
//! # Hot path
//! [`Core::admit`], [`Core::next`] and [`Core::finish`]: one look-up by name, one ring operation each, and no
//! allocation once the tables have grown, except for the name of a key that is new.

mod barriers;
mod histogram;
mod lane;
mod lanes;
mod line;
mod list;
mod node;
mod slab;
mod stopping;
mod time;
mod waiting;

#[cfg(test)]
mod audit;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drr::{Cost, Quantum, Weight};
use foldhash::fast::RandomState;

pub(crate) use barriers::BarrierId;
pub(crate) use histogram::{BOUNDS, Histogram};
pub(crate) use node::Place;
pub(crate) use stopping::{HandedBack, Leaver};
pub(crate) use time::Timestamp;
pub(crate) use waiting::{Admission, Patience};

use barriers::Barriers;
use lanes::Lanes;
use line::Line;
use list::NIL;
use node::{Node, Stage};
use slab::Slab;

use crate::options::Priority;

/// How much a shard holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Jobs queued in all.
    pub(crate) queue_max: usize,
    /// Jobs queued for one key.
    pub(crate) key_max: usize,
    /// Jobs that back off without using up the queue's room.
    pub(crate) backoff_max: usize,
}

/// What the core needs to know about a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) priority: Priority,
    pub(crate) cost: Cost,
    /// The share of its key, if the key is new to the shard.
    pub(crate) weight: Weight,
}

/// How a job ends, as far as the books are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Ran,
    Failed,
    Cancelled,
    Returned,
}

/// What has been counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) accepted: u64,
    pub(crate) ran: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) returned: u64,
    pub(crate) retried: u64,
    pub(crate) refused_full: u64,
}

/// What a step has to tell others, to be done with when it is over.
#[derive(Debug)]
pub(crate) struct News<T, B> {
    /// Owners of submissions that have been let in.
    pub(crate) accepted: Vec<T>,
    /// Barriers that nothing is left before.
    pub(crate) rung: Vec<B>,
}

impl<T, B> Default for News<T, B> {
    fn default() -> Self {
        Self {
            accepted: Vec::new(),
            rung: Vec::new(),
        }
    }
}

/// A job that is to be attempted, or given up, by the worker.
#[derive(Debug)]
pub(crate) struct Lease<J, T> {
    pub(crate) place: Place,
    pub(crate) key: Arc<str>,
    /// The attempt that begins; for a job that is given up, the one that was the last.
    pub(crate) attempt: u32,
    pub(crate) job: J,
    pub(crate) ticket: T,
}

/// What the worker is to do next.
#[derive(Debug)]
pub(crate) enum Next<J, T> {
    /// Attempt this job.
    Run(Lease<J, T>),
    /// Let this job fail with the error it has: the executor stops, and it was backing off.
    GiveUp(Lease<J, T>),
    /// Sleep until there is something to do, or until the time given.
    Idle(Option<Timestamp>),
    /// End: the executor stops, and nothing is left.
    Ended,
}

/// Why a job that failed is not attempted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRetry {
    Cancelled,
    Stopping,
}

/// What cancelling a job did.
#[derive(Debug)]
pub(crate) enum Cancelled<J, T> {
    Removed(J, T),
    IsRunning,
    Gone,
}

/// How a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Queued { position: usize },
    Running { attempt: u32 },
    BackingOff { attempt: u32, until: Timestamp },
}

#[derive(Debug)]
pub(crate) struct Core<J, T, B> {
    limits: Limits,
    lanes: Lanes,
    line: Line,
    nodes: Slab<Node<J, T>>,
    /// Jobs that back off, by the time at which they are due.
    timers: BTreeMap<(Timestamp, u64), u32>,
    barriers: Barriers<B>,
    /// The job that runs.
    running: Option<u32>,
    queued: usize,
    backing_off: usize,
    is_stopping: bool,
    serial: u64,
    counters: Counters,
    runs: Histogram,
}

impl<J, T: Clone, B> Core<J, T, B> {
    pub(crate) fn new(limits: Limits, quantum: Quantum, hasher: RandomState) -> Self {
        Self {
            limits,
            lanes: Lanes::new(quantum, hasher),
            line: Line::new(),
            nodes: Slab::new(),
            timers: BTreeMap::new(),
            barriers: Barriers::new(),
            running: None,
            queued: 0,
            backing_off: 0,
            is_stopping: false,
            serial: 0,
            counters: Counters::default(),
            runs: Histogram::default(),
        }
    }

    /// Says what the worker is to do next. The job before must have been finished, or be backing off.
    #[inline]
    pub(crate) fn next(&mut self, now: Timestamp, news: &mut News<T, B>) -> Next<J, T> {
        debug_assert!(self.running.is_none(), "a shard runs one job at a time");
        if !self.timers.is_empty() {
            self.fire_timers(now);
        }
        let Some(number) = self.lanes.next() else {
            return self.idle();
        };
        let lane = &mut self.lanes[number];
        let was_backing_off = lane.has_active();
        if !was_backing_off {
            let first = lane.pop(&mut self.nodes);
            lane.active = first.expect("a lane in the ring has work");
        }
        let slot = lane.active;
        let key = Arc::clone(&lane.name);
        let node = &mut self.nodes[slot];
        let gives_up = self.is_stopping && was_backing_off;
        node.stage = Stage::Running {
            is_cancelled: false,
        };
        node.attempts = match gives_up {
            true => node.attempts,
            false => node.attempts.saturating_add(1),
        };
        let lease = Lease {
            place: Place {
                slot,
                serial: node.serial,
            },
            key,
            attempt: node.attempts,
            job: node.job.take().expect("a job that does not run is here"),
            ticket: node.ticket.clone(),
        };
        self.running = Some(slot);
        match was_backing_off {
            true => self.backing_off -= 1,
            false => self.queued -= 1,
        }
        if gives_up {
            return Next::GiveUp(lease); // it costs nothing: it does not run
        }
        let cost = node.cost;
        self.lanes.charge(number, cost);
        self.counters.retried += u64::from(was_backing_off);
        self.let_in(number, news);
        Next::Run(lease)
    }

    fn idle(&mut self) -> Next<J, T> {
        if self.is_stopping {
            return Next::Ended; // all timers have fired, so nothing backs off, either
        }
        self.lanes.trim();
        Next::Idle(self.timers.keys().next().map(|&(until, _)| until))
    }

    /// Lets lanes back into the ring whose jobs are due; all of them when the executor stops.
    fn fire_timers(&mut self, now: Timestamp) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now && !self.is_stopping {
                return;
            }
            let slot = entry.remove();
            self.lanes.unpark(self.nodes[slot].lane);
        }
    }

    /// Ends the job that runs.
    #[inline]
    pub(crate) fn finish(&mut self, place: Place, end: End, news: &mut News<T, B>) -> T {
        debug_assert_eq!(self.running, Some(place.slot));
        self.running = None;
        self.end(place.slot, end, news).ticket
    }

    /// Lets the job that runs back off until a time, if it may.
    pub(crate) fn retry(
        &mut self,
        place: Place,
        job: J,
        until: Timestamp,
    ) -> Result<(), (J, NoRetry)> {
        debug_assert_eq!(self.running, Some(place.slot));
        let node = &mut self.nodes[place.slot];
        if let Stage::Running { is_cancelled: true } = node.stage {
            return Err((job, NoRetry::Cancelled));
        }
        if self.is_stopping {
            return Err((job, NoRetry::Stopping));
        }
        node.stage = Stage::BackingOff { until };
        node.job = Some(job);
        self.running = None;
        self.backing_off += 1;
        self.timers.insert((until, node.serial), place.slot);
        self.lanes.park(node.lane);
        Ok(())
    }

    /// Notes how long an attempt took.
    #[inline]
    pub(crate) fn record(&mut self, duration: Duration) {
        self.runs.record(duration);
    }

    /// Cancels a job that was accepted.
    pub(crate) fn cancel(&mut self, place: Place, news: &mut News<T, B>) -> Cancelled<J, T> {
        let Some(node) = self.resolve(place) else {
            return Cancelled::Gone;
        };
        match &mut node.stage {
            Stage::Waiting => return Cancelled::Gone, // it is withdrawn, not cancelled
            Stage::Running { is_cancelled } => {
                *is_cancelled = true;
                return Cancelled::IsRunning;
            }
            Stage::Queued | Stage::BackingOff { .. } => {}
        }
        self.detach(place.slot);
        let node = self.end(place.slot, End::Cancelled, news);
        self.let_in(node.lane, news);
        let job = node.job.expect("a job that does not run is here");
        Cancelled::Removed(job, node.ticket)
    }

    /// Returns how a job is; `None` if it is not accepted or has ended.
    pub(crate) fn status(&mut self, place: Place) -> Option<Status> {
        let node = self.resolve(place)?;
        let (lane, priority, attempt) = (node.lane, node.priority, node.attempts);
        match node.stage {
            Stage::Waiting => None,
            Stage::Queued => Some(Status::Queued {
                position: self.lanes[lane].position(&mut self.nodes, place.slot, priority),
            }),
            Stage::Running { .. } => Some(Status::Running { attempt }),
            Stage::BackingOff { until } => Some(Status::BackingOff { attempt, until }),
        }
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
        self.is_stopping || self.lanes.is_runnable()
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
        (
            self.queued,
            self.running.is_some() as usize,
            self.backing_off,
        )
    }

    /// Returns how many keys are in memory.
    pub(crate) const fn keys(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the job that runs.
    pub(crate) fn runner(&self) -> Option<(Place, &Arc<str>, u32, &T)> {
        let slot = self.running?;
        let node = &self.nodes[slot];
        let place = Place {
            slot,
            serial: node.serial,
        };
        Some((
            place,
            &self.lanes[node.lane].name,
            node.attempts,
            &node.ticket,
        ))
    }

    /// Returns how many jobs have been accepted and have not ended.
    const fn live(&self) -> usize {
        let (queued, running, backing_off) = self.gauges();
        queued + running + backing_off
    }

    fn resolve(&mut self, place: Place) -> Option<&mut Node<J, T>> {
        let node = self.nodes.get_mut(place.slot)?;
        (node.serial == place.serial).then_some(node)
    }

    /// Takes a job that is queued or backs off out of its lane, before it ends.
    fn detach(&mut self, slot: u32) {
        let node = &self.nodes[slot];
        let (lane, priority, serial) = (node.lane, node.priority, node.serial);
        match node.stage {
            Stage::Queued => {
                self.lanes[lane].unlink(&mut self.nodes, slot, priority);
                self.queued -= 1;
            }
            Stage::BackingOff { until } => {
                self.backing_off -= 1;
                if self.timers.remove(&(until, serial)).is_some() {
                    self.lanes.unpark(lane);
                }
            }
            Stage::Waiting | Stage::Running { .. } => {}
        }
    }

    /// Ends a job that has been taken out of its lane: the one place where jobs leave the books.
    #[inline]
    fn end(&mut self, slot: u32, end: End, news: &mut News<T, B>) -> Node<J, T> {
        let node = self.nodes.remove(slot);
        match end {
            End::Ran => self.counters.ran += 1,
            End::Failed => self.counters.failed += 1,
            End::Cancelled => self.counters.cancelled += 1,
            End::Returned => self.counters.returned += 1,
        }
        let lane = &mut self.lanes[node.lane];
        if lane.active == slot {
            lane.active = NIL;
        }
        if !lane.has_work() {
            self.lanes.sleep(node.lane);
        }
        self.barriers
            .ended(node.lane, node.order, |bell| news.rung.push(bell));
        node
    }
}
