//! How jobs come in: at once, or when there is room.

use drr::Pool;

use super::node::{JobSlot, Node, Stage};
use super::{Core, KeyLimit, Notices, Occupancy, Spec, lanes};

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
            let occupancy = self.occupancy(self.lanes.find(key));
            return Admission::Full(job, occupancy); // before the key gets a lane
        }
        let number = lanes::find_or_add(&mut self.lanes, key, spec.weight);
        let lane = &self.lanes[number];
        let enters = has_room && self.has_room_for(lane.len);
        // A submission that waited for this key would have been accepted, so none is overtaken.
        debug_assert!(!(enters && lane.is_awaited));
        if !enters && patience == Patience::DoesNotWait {
            self.counters.refused_full += 1;
            let occupancy = self.occupancy(Some(number));
            return Admission::Full(job, occupancy); // the key has jobs, so its lane is not left over
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
        let lane = &mut self.lanes[number];
        lane.is_awaited = true;
        let queued = lane.len;
        self.lanes.set_busy(number);
        self.line.push(&mut self.nodes, (number, queued), slot);
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

    /// Takes a submission out of the line that has waited for room in vain. Returns `None` if it has been accepted or
    /// refused meanwhile.
    pub(crate) fn time_out(&mut self, place: JobSlot) -> Option<(J, Occupancy)> {
        let lane = self.resolve(place)?.lane;
        let occupancy = self.occupancy(Some(lane));
        let job = self.withdraw(place)?;
        self.counters.refused_full += 1;
        Some((job, occupancy))
    }

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

    /// Returns whether a key with this many queued jobs may have one more, if there is room in the queue.
    #[inline]
    pub(super) const fn has_room_for(&self, queued: u32) -> bool {
        (queued as usize) < self.key_max(self.held())
    }

    /// Returns whether a key with this many queued jobs may have one more, after some others have come in.
    pub(super) const fn has_room_after(&self, others: usize, queued: u32) -> bool {
        let held = self.held() + others;
        held < self.limits.queue_max && (queued as usize) < self.key_max(held)
    }

    /// Returns how many jobs one key may have queued while this much of the queue's room is in use.
    #[inline]
    const fn key_max(&self, held: usize) -> usize {
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

    pub(super) fn occupancy(&self, lane: Option<u32>) -> Occupancy {
        Occupancy {
            held: self.held(),
            key_held: lane.map_or(0, |lane| self.lanes[lane].len as usize),
            key_max: self.key_max(self.held()),
        }
    }

    /// Moves queued jobs of a lane whose active job backs off to the room for backing off, as many as it takes.
    pub(super) fn set_apart(&mut self, lane: u32) {
        let lane = &mut self.lanes[lane];
        let mut room = Pool {
            capacity: self.limits.backoff_max as u64,
            used: (self.backing_off + self.apart) as u64,
        };
        while lane.apart < lane.len && room.admits(u64::from(lane.apart), 1) {
            lane.apart += 1;
            room.used += 1;
            self.apart += 1;
        }
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
    }

    /// Accepts waiting submissions while there is room, a key at a time, after a lane has lost a job.
    #[inline]
    pub(super) fn let_in(&mut self, lane: u32, notices: &mut Notices<T, B>) {
        let lane_of_key = &self.lanes[lane];
        if lane_of_key.is_awaited {
            self.line.set_queued(lane, lane_of_key.len);
        }
        while self.may_let_in() {
            self.let_one_in(notices);
        }
    }

    /// Returns whether there is room for a submission that waits.
    #[inline]
    pub(super) fn may_let_in(&self) -> bool {
        let fewest = self.line.fewest_queued();
        fewest.is_some_and(|queued| self.has_room() && self.has_room_for(queued))
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
        let is_last = self.line.remove(&mut self.nodes, number, slot);
        self.lanes[number].is_awaited = !is_last;
        lanes::release(&mut self.lanes, number);
        self.nodes.remove(slot)
    }
}
