//! Nodes of jobs across keys: see [`Joint`](crate::joint::Joint).

use super::node::{JobSlot, Role, Stage};
use super::{Core, End, Notices, RemovedJob};

impl<J, T: Clone, B> Core<J, T, B> {
    /// Counts a submission that found no room.
    pub(crate) const fn count_refusal(&mut self) {
        self.counters.refused_full += 1;
    }

    /// Lets the first node of a lane hold its key, because the job needs others as well.
    pub(super) fn hold(&mut self, number: u32, notices: &mut Notices<T, B>) {
        let node = &mut self.nodes[self.lanes[number].active];
        node.stage = Stage::Holding { is_ready: false };
        notices.arrived.push(node.ticket.clone());
        let (role, cost) = (node.role, node.cost);
        if role == Role::Part {
            self.lanes.charge(number, cost); // a home is charged when it runs
        }
        self.lanes.park(number);
        self.let_in(number, notices);
    }

    /// Lets a node run that holds its key: the job holds all of them.
    pub(crate) fn ready(&mut self, place: JobSlot) {
        let Some(node) = self.resolve(place) else {
            return; // it has ended meanwhile
        };
        node.stage = Stage::Holding { is_ready: true };
        let lane = node.lane;
        self.lanes.unpark(lane);
    }

    /// Removes a part of a job that has ended elsewhere.
    pub(crate) fn release(
        &mut self,
        place: JobSlot,
        end: End,
        notices: &mut Notices<T, B>,
    ) -> Option<RemovedJob<J, T>> {
        let lane = self.resolve(place)?.lane;
        let removed = self.remove(place.slot, end, notices);
        self.let_in(lane, notices);
        Some(removed)
    }
}
