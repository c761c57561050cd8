//! How jobs come in: at once, or when there is room.

use super::lane::Lane;
use super::node::{JobSlot, Node, Stage};
use super::{Core, Notices, Spec, lanes};

/// What became of a submission.
#[derive(Debug)]
pub(crate) enum Admission<J> {
    Accepted(JobSlot),
    /// It is in line, and its owner will be told.
    Waiting(JobSlot),
    /// It would have to wait, and was not to.
    Full(J),
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
            return Admission::Full(job); // before the key gets a lane
        }
        let number = lanes::find_or_add(&mut self.lanes, key, spec.weight);
        let lane = &self.lanes[number];
        let enters = has_room && self.has_room_for(lane);
        // A submission that waited for this key would have been accepted, so none is overtaken.
        debug_assert!(!(enters && lane.is_awaited));
        if !enters && patience == Patience::DoesNotWait {
            self.counters.refused_full += 1;
            return Admission::Full(job); // the key has jobs, so its lane is not left over
        }
        let serial = self.serial;
        self.serial += 1;
        let node = Node::new(serial, number, (spec.priority, spec.cost), job, ticket);
        let slot = self.nodes.insert(node);
        let place = JobSlot { slot, serial };
        if enters {
            self.accept(slot);
            return Admission::Accepted(place);
        }
        self.lanes[number].is_awaited = true;
        self.lanes.set_busy(number);
        self.line.push(&mut self.nodes, number, slot);
        self.line
            .set_eligible(number, self.has_room_for(&self.lanes[number]));
        Admission::Waiting(place)
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

    /// Notes that a submission has waited for room in vain.
    pub(crate) const fn count_refusal(&mut self) {
        self.counters.refused_full += 1;
    }

    /// Returns how much of the queue's room is in use.
    #[inline]
    pub(crate) const fn held(&self) -> usize {
        self.queued + self.backing_off.saturating_sub(self.limits.backoff_max)
    }

    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.held() < self.limits.queue_max
    }

    /// Returns whether a lane has room of its own.
    #[inline]
    const fn has_room_for(&self, lane: &Lane) -> bool {
        (lane.len as usize) < self.limits.key_max
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
        lane.push(&mut self.nodes, slot, priority);
        if !had_work {
            self.lanes.set_busy(number);
            self.lanes.wake(number);
        }
    }

    /// Accepts waiting submissions while there is room, a key at a time, after a lane has lost a job.
    #[inline]
    pub(super) fn let_in(&mut self, lane: u32, notices: &mut Notices<T, B>) {
        if self.lanes[lane].is_awaited {
            self.line
                .set_eligible(lane, self.has_room_for(&self.lanes[lane]));
        }
        while self.line.has_eligible() && self.has_room() {
            self.let_one_in(notices);
        }
    }

    fn let_one_in(&mut self, notices: &mut Notices<T, B>) {
        let Some((number, slot, is_last)) = self.line.pop(&mut self.nodes) else {
            return;
        };
        self.lanes[number].is_awaited = !is_last;
        self.accept(slot);
        self.line
            .set_eligible(number, self.has_room_for(&self.lanes[number]));
        notices.accepted.push(self.nodes[slot].ticket.clone());
    }

    /// Removes a submission that waits.
    pub(super) fn leave_line(&mut self, slot: u32) -> Node<J, T> {
        let number = self.nodes[slot].lane;
        let is_last = self.line.remove(&mut self.nodes, number, slot);
        self.lanes[number].is_awaited = !is_last;
        lanes::release(&mut self.lanes, number);
        self.nodes.remove(slot)
    }
}
