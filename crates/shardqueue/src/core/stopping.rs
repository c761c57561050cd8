//! Stopping a shard: it accepts no more jobs, and runs the queued ones or hands them back.

use std::sync::Arc;

use super::node::{JobSlot, Node, Role, Stage};
use super::{Core, End, Notices};

/// A job that was removed before it ended by itself.
#[derive(Debug)]
pub(crate) struct RemovedJob<J, T> {
    pub(crate) place: JobSlot,
    pub(crate) key: Arc<str>,
    /// How often it was attempted.
    pub(crate) attempts: u32,
    pub(crate) job: J,
    pub(crate) ticket: T,
}

/// The jobs that are handed back when there is no more time.
#[derive(Debug)]
pub(crate) struct HandedBack<J, T> {
    /// Jobs that were never attempted, in the order in which they were accepted.
    pub(crate) queued: Vec<RemovedJob<J, T>>,
    /// Jobs that were to be attempted again: they have failed, and are counted so.
    pub(crate) backing_off: Vec<RemovedJob<J, T>>,
}

impl<J, T: Clone, B> Core<J, T, B> {
    /// Takes no more jobs from now on. Returns the submissions that wait for room: they are refused.
    ///
    /// The worker runs the queued jobs, and gives up those that back off.
    pub(crate) fn stop(&mut self) -> Vec<(J, T)> {
        self.is_stopping = true;
        let refused = self.slots(|node| node.stage == Stage::Waiting);
        refused
            .into_iter()
            .map(|slot| {
                let node = self.leave_line(slot);
                let job = node.job.expect("a job that does not run is here");
                (job, node.ticket)
            })
            .collect()
    }

    /// Ends everything that does not run.
    pub(crate) fn hand_back(&mut self, notices: &mut Notices<T, B>) -> HandedBack<J, T> {
        let has_not_begun = |node: &Node<J, T>| match node.stage {
            Stage::Queued | Stage::Holding { .. } => node.role != Role::Part, // a part leaves with its home
            Stage::Waiting | Stage::Running { .. } | Stage::BackingOff { .. } => false,
        };
        let queued = self.remove_all(has_not_begun, End::Returned, notices);
        let backs_off = |node: &Node<J, T>| node.stage.backs_off();
        let backing_off = self.remove_all(backs_off, End::Failed, notices);
        HandedBack {
            queued,
            backing_off,
        }
    }

    fn remove_all(
        &mut self,
        is_concerned: impl Fn(&Node<J, T>) -> bool,
        end: End,
        notices: &mut Notices<T, B>,
    ) -> Vec<RemovedJob<J, T>> {
        let slots = self.slots(is_concerned);
        let leave = |slot| self.remove(slot, end, notices);
        slots.into_iter().map(leave).collect()
    }

    /// Ends a job that does not run.
    pub(super) fn remove(
        &mut self,
        slot: u32,
        end: End,
        notices: &mut Notices<T, B>,
    ) -> RemovedJob<J, T> {
        self.detach(slot);
        let key = Arc::clone(self.lanes.name(self.nodes[slot].lane));
        let node = self.end(slot, end, notices);
        RemovedJob {
            place: JobSlot {
                slot,
                serial: node.serial,
            },
            key,
            attempts: node.attempts,
            job: node.job.expect("a job that does not run is here"),
            ticket: node.ticket,
        }
    }

    /// Returns some of the nodes, in the order in which they were accepted.
    pub(super) fn slots(&self, is_concerned: impl Fn(&Node<J, T>) -> bool) -> Vec<u32> {
        let nodes = self.nodes.iter();
        let mut found: Vec<(u64, u64, u32)> = nodes
            .filter(|(_, node)| is_concerned(node))
            .map(|(slot, node)| (node.order, node.serial, slot))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, _, slot)| slot).collect()
    }
}
