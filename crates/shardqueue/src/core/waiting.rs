//! How jobs come in: at once, or when there is room.

use super::node::{JobSlot, Node, Stage};
use super::{Core, Notices, Occupancy, Spec, lanes};

/// What became of a submission.
#[derive(Debug)]
pub(crate) enum Admission<J> {
    Accepted(JobSlot),
    /// It is in line, and its owner will be told.
    Waiting(JobSlot),
    /// It would have to wait, and was not to.
    Full(J, Occupancy),
    Closed(J),
}

/// Whether a submission waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Waits,
    DoesNotWait,
}

impl<J, T: Clone, B> Core<J, T, B> {
    /// Accepts a job, or puts it in line.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        key: &str,
        spec: Spec,
        (job, ticket): (J, T),
        patience: Patience,
    ) -> Admission<J> {
        if self.is_stopping {
            return Admission::Closed(job);
        }
        let has_room = self.has_room();
        if !has_room && patience == Patience::DoesNotWait {
            self.counters.refused_full += 1;
            let occupancy = self.occupancy_named(key);
            return Admission::Full(job, occupancy); // before the key gets a lane
        }
        let (number, is_new) = self.find_or_add(key);
        let enters = has_room && self.has_room_for(number);
        // A submission that waited for this key would have been accepted, so none is overtaken.
        debug_assert!(!(enters && self.lanes[number].is_awaited));
        if !enters && patience == Patience::DoesNotWait {
            self.counters.refused_full += 1;
            let occupancy = self.occupancy_of(number);
            if is_new {
                self.lanes.forget(number); // it is a group that has no room
            }
            return Admission::Full(job, occupancy);
        }
        let serial = self.serial;
        self.serial += 1;
        let node = Node::new(
            serial,
            number,
            (spec.priority, spec.cost, spec.role),
            job,
            ticket,
        );
        let slot = self.nodes.insert(node);
        let place = JobSlot { slot, serial };
        if enters {
            self.accept(slot);
            return Admission::Accepted(place);
        }
        self.lanes[number].is_awaited = true;
        self.lanes.set_busy(number);
        self.line.push(&mut self.nodes, &self.lanes, (number, slot));
        Admission::Waiting(place)
    }

    /// Returns the lane of a key, which gets one if it has none, and whether it is new.
    #[inline]
    pub(super) fn find_or_add(&mut self, key: &str) -> (u32, bool) {
        let (number, is_new) = lanes::find_or_add(&mut self.lanes, &self.names, key);
        if is_new && !self.lanes.groups().is_empty() {
            self.complete_groups(number);
        }
        (number, is_new)
    }

    /// Takes a submission out of the line. Returns `None` if it has been accepted or refused meanwhile.
    pub(crate) fn withdraw(&mut self, place: JobSlot) -> Option<J> {
        let node = self.resolve(place)?;
        if node.stage != Stage::Waiting {
            return None;
        }
        let node = self.leave_line(place.slot);
        node.job
    }

    /// Takes a submission out of the line that has waited for room in vain. Returns `None` if it has been accepted or
    /// refused meanwhile.
    pub(crate) fn time_out(&mut self, place: JobSlot) -> Option<(J, Occupancy)> {
        let lane = self.resolve(place)?.lane;
        let occupancy = self.occupancy_of(lane);
        let job = self.withdraw(place)?;
        self.counters.refused_full += 1;
        Some((job, occupancy))
    }

    /// Puts a job into its lane's queue: the one place where jobs are accepted.
    #[inline]
    pub(super) fn accept(&mut self, slot: u32) {
        let node = &mut self.nodes[slot];
        node.stage = Stage::Queued;
        node.order = self.counters.accepted;
        self.counters.accepted += 1;
        self.queued += 1;
        let (number, priority) = (node.lane, node.priority);
        let lane = &mut self.lanes[number];
        let had_work = lane.has_work();
        let backs_off = lane.has_active() && self.nodes[lane.active].stage.backs_off();
        self.push(number, slot, priority);
        if !had_work {
            self.lanes.set_busy(number);
            self.lanes.wake(number);
        }
        if backs_off {
            self.set_apart(number);
        }
        if !self.line.is_empty() {
            self.line.refresh(&self.lanes, number);
        }
    }

    /// Accepts waiting submissions while there is room, a key at a time, after a lane has lost a job.
    #[inline]
    pub(super) fn let_in(&mut self, lane: u32, notices: &mut Notices<T, B>) {
        if self.line.is_empty() {
            return;
        }
        self.line.refresh(&self.lanes, lane);
        while self.may_let_in() {
            self.let_one_in(notices);
        }
    }

    /// Returns whether there is room for a submission that waits.
    pub(super) fn may_let_in(&self) -> bool {
        let least = self.line.least_need();
        let max = self.key_max(self.held()) as u64;
        least.is_some_and(|need| self.has_room() && need <= max)
    }

    fn let_one_in(&mut self, notices: &mut Notices<T, B>) {
        let Some((number, slot, is_last)) = self.line.pop(&mut self.nodes) else {
            return;
        };
        self.lanes[number].is_awaited = !is_last;
        self.accept(slot);
        notices.accepted.push(self.nodes[slot].ticket.clone());
    }

    /// Removes a submission that waits.
    pub(super) fn leave_line(&mut self, slot: u32) -> Node<J, T> {
        let number = self.nodes[slot].lane;
        let is_last = self
            .line
            .remove(&mut self.nodes, &self.lanes, (number, slot));
        self.lanes[number].is_awaited = !is_last;
        lanes::release(&mut self.lanes, number);
        self.nodes.remove(slot)
    }
}
