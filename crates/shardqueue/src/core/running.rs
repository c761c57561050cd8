//! A job's way through its lane: begun, finished, put back, cancelled; and its end.

use std::time::Duration;

use super::list::NIL;
use super::node::{JobSlot, Node, Role, Stage};
use super::time::Timestamp;
use super::vocabulary::{Cancelled, End, Lease, Next, NoRetry, Notices};
use super::{Core, lanes};
use crate::options::Priority;

impl<J, T: Clone, B> Core<J, T, B> {
    /// Returns the worker's next step. The job before must have been finished, set aside, or be backing off.
    #[inline]
    pub(crate) fn next(&mut self, now: Timestamp, notices: &mut Notices<T, B>) -> Next<J, T> {
        if self.running == self.limits.concurrency {
            return Next::Idle(None);
        }
        if !self.timers.is_empty() {
            self.fire_timers(now);
        }
        let number = loop {
            let Some(number) = self.next_lane() else {
                return self.idle();
            };
            if self.lanes[number].has_active() || self.pop(number) == Role::Single {
                break number;
            }
            self.hold(number, notices);
        };
        let slot = self.lanes[number].active;
        let was_backing_off = self.nodes[slot].stage.backs_off();
        let node = &mut self.nodes[slot];
        let gives_up = self.is_stopping && was_backing_off;
        node.stage = Stage::Running {
            is_cancelled: false,
            is_aside: false,
        };
        node.attempts = if gives_up {
            node.attempts
        } else {
            node.attempts.saturating_add(1)
        };
        let lease = Lease {
            place: JobSlot {
                slot,
                serial: node.serial,
            },
            attempt: node.attempts,
            job: node.job.take().expect("a job that does not run is here"),
            ticket: node.ticket.clone(),
        };
        self.running += 1;
        if was_backing_off {
            self.backing_off -= 1;
            self.count(number, |group| group.backing_off -= 1);
        } else {
            self.queued -= 1;
        }
        if gives_up {
            return Next::GiveUp(lease); // it costs nothing: it does not run
        }
        let cost = self.nodes[slot].cost;
        self.lanes.charge(number, cost);
        self.counters.retried += u64::from(was_backing_off);
        self.let_in(number, notices);
        Next::Run(lease)
    }

    /// Returns the lane that is served next: of the express line, or of the ring.
    #[inline]
    fn next_lane(&mut self) -> Option<u32> {
        if !self.express.is_empty() {
            let others_wait = self.lanes.engine().is_runnable();
            let max = self.limits.urgent_max;
            if let Some(number) = self.express.next_lane(others_wait, max) {
                self.lanes.unpark(number); // as any lane while its job runs
                return Some(number);
            }
        }
        let number = self.lanes.next_lane()?;
        self.express.interrupt();
        Some(number)
    }

    /// Makes the first job of a lane its active one, and returns its role.
    #[inline]
    fn pop(&mut self, number: u32) -> Role {
        let lane = &mut self.lanes[number];
        let first = if lane.is_urgent {
            let (slot, is_last) = self
                .express
                .pop(&mut self.nodes, number)
                .expect("an urgent lane has an urgent job");
            lane.is_urgent = !is_last;
            lane.len -= 1;
            slot
        } else {
            let slot = lane.pop(&mut self.nodes);
            slot.expect("a lane in the ring has work")
        };
        lane.active = first;
        self.count(number, |group| group.queued -= 1);
        self.trim_apart(number);
        self.nodes[first].role
    }

    /// Puts a lane whose next job is urgent into the express line.
    fn list(&mut self, number: u32) {
        self.lanes.park(number);
        self.express.list(&self.lanes, number);
    }

    /// Takes a lane out of the express line, if it is in it.
    fn unlist(&mut self, number: u32) {
        if self.express.unlist(number) {
            self.lanes.unpark(number);
        }
    }

    fn idle(&mut self) -> Next<J, T> {
        if self.is_stopping && self.live() == 0 {
            return Next::Ended;
        }
        lanes::trim(&mut self.lanes);
        Next::Idle(self.timers.keys().next().map(|&(until, _)| until))
    }

    /// Unparks lanes with due jobs; all lanes when the executor stops.
    fn fire_timers(&mut self, now: Timestamp) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now && !self.is_stopping {
                return;
            }
            let slot = entry.remove();
            let (lane, priority) = (self.nodes[slot].lane, self.nodes[slot].priority);
            match priority.queue() {
                None => self.express.list(&self.lanes, lane), // it stays parked
                Some(_) => self.lanes.unpark(lane),
            }
        }
    }

    /// Lets jobs of other keys run while a job that runs waits for something.
    pub(crate) fn set_aside(&mut self, place: JobSlot) {
        if self.limits.concurrency == 1 {
            return; // there is no next job before this one has ended, so its lane may stay in the ring
        }
        let node = &mut self.nodes[place.slot];
        if let Stage::Running { is_aside, .. } = &mut node.stage {
            *is_aside = true;
            self.lanes.park(node.lane);
        }
    }

    /// Ends a job that runs. Returns its ticket and its lane, whose [name](Self::lane_name) is known until the next step.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        place: JobSlot,
        end: End,
        notices: &mut Notices<T, B>,
    ) -> (T, u32) {
        self.running -= 1;
        let node = &self.nodes[place.slot];
        debug_assert!(matches!(node.stage, Stage::Running { .. }));
        if let Stage::Running { is_aside: true, .. } = node.stage {
            self.lanes.unpark(node.lane);
        }
        let node = self.end(place.slot, end, notices);
        (node.ticket, node.lane)
    }

    /// Lets a job that runs back off until a time, if it may.
    pub(crate) fn retry(
        &mut self,
        place: JobSlot,
        job: J,
        until: Timestamp,
        notices: &mut Notices<T, B>,
    ) -> Result<(), (J, NoRetry)> {
        let node = &mut self.nodes[place.slot];
        if let Stage::Running {
            is_cancelled: true, ..
        } = node.stage
        {
            return Err((job, NoRetry::Cancelled));
        }
        if self.is_stopping {
            return Err((job, NoRetry::Stopping));
        }
        node.stage = Stage::BackingOff { until };
        node.job = Some(job);
        self.running -= 1;
        self.backing_off += 1;
        self.timers.insert((until, node.serial), place.slot);
        let lane = node.lane;
        self.count(lane, |group| group.backing_off += 1);
        self.lanes.park(lane);
        self.set_apart(lane);
        self.let_in(lane, notices);
        Ok(())
    }

    /// Notes how long an attempt took.
    #[inline]
    pub(crate) fn record(&mut self, duration: Duration) {
        self.runs.record(duration);
    }

    /// Cancels a job that was accepted.
    pub(crate) fn cancel(
        &mut self,
        place: JobSlot,
        notices: &mut Notices<T, B>,
    ) -> Cancelled<J, T> {
        let Some(node) = self.resolve(place) else {
            return Cancelled::Gone;
        };
        match &mut node.stage {
            Stage::Waiting => return Cancelled::Gone, // it is withdrawn, not cancelled
            Stage::Running { is_cancelled, .. } => {
                *is_cancelled = true;
                return Cancelled::IsRunning;
            }
            Stage::Queued | Stage::Holding { .. } | Stage::BackingOff { .. } => {}
        }
        let lane = node.lane;
        let removed = self.remove(place.slot, End::Cancelled, notices);
        self.let_in(lane, notices);
        Cancelled::Removed(removed)
    }

    /// Takes a job that is queued or backs off out of its lane, before it ends.
    pub(super) fn detach(&mut self, slot: u32) {
        let node = &self.nodes[slot];
        let (lane, priority, serial) = (node.lane, node.priority, node.serial);
        match node.stage {
            Stage::Queued => {
                self.unlink(lane, slot, priority);
                self.trim_apart(lane);
                self.queued -= 1;
            }
            Stage::Holding { is_ready } => {
                self.queued -= 1;
                if !is_ready {
                    self.lanes.unpark(lane);
                }
            }
            Stage::BackingOff { until } => {
                self.backing_off -= 1;
                self.count(lane, |group| group.backing_off -= 1);
                if self.timers.remove(&(until, serial)).is_some() {
                    self.lanes.unpark(lane);
                } else {
                    self.unlist(lane);
                }
            }
            Stage::Waiting | Stage::Running { .. } => {}
        }
    }

    /// Puts a job that is accepted behind the others of its lane and priority.
    #[inline]
    pub(super) fn push(&mut self, number: u32, slot: u32, priority: Priority) {
        self.count(number, |group| group.queued += 1);
        let lane = &mut self.lanes[number];
        if let Some(queue) = priority.queue() {
            lane.push(&mut self.nodes, slot, queue);
            return;
        }
        lane.len += 1;
        self.express.push(&mut self.nodes, number, slot);
        let is_first = !std::mem::replace(&mut lane.is_urgent, true);
        if is_first && !lane.has_active() {
            self.list(number);
        }
    }

    /// Takes a queued job out of its lane.
    fn unlink(&mut self, number: u32, slot: u32, priority: Priority) {
        self.count(number, |group| group.queued -= 1);
        let lane = &mut self.lanes[number];
        if let Some(queue) = priority.queue() {
            lane.unlink(&mut self.nodes, slot, queue);
            return;
        }
        lane.len -= 1;
        lane.is_urgent = !self.express.remove(&mut self.nodes, number, slot);
        if !lane.is_urgent && !lane.has_active() {
            self.unlist(number);
        }
    }

    /// Ends a job that has been taken out of its lane: the one place where jobs end.
    #[inline]
    pub(super) fn end(&mut self, slot: u32, end: End, notices: &mut Notices<T, B>) -> Node<J, T> {
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
            if lane.is_urgent {
                self.list(node.lane);
            }
        }
        let lane = &self.lanes[node.lane];
        if !lane.has_work() {
            self.lanes.sleep(node.lane);
            lanes::release(&mut self.lanes, node.lane);
        }
        self.barriers
            .ended(node.lane, node.order, |bell| notices.rung.push(bell));
        node
    }
}
