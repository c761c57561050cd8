//! How a shard comes to its end: it takes nothing more, runs what is queued, or hands it back.

use std::sync::Arc;

use super::node::{Place, Stage};
use super::{Core, End, News};

/// A job that leaves without having ended by itself.
#[derive(Debug)]
pub(crate) struct Leaver<J, T> {
    pub(crate) place: Place,
    pub(crate) key: Arc<str>,
    /// How often it was attempted.
    pub(crate) attempts: u32,
    pub(crate) job: J,
    pub(crate) ticket: T,
}

/// What is handed back when there is no more time.
#[derive(Debug)]
pub(crate) struct HandedBack<J, T> {
    /// Jobs that were never attempted, in the order in which they were accepted.
    pub(crate) queued: Vec<Leaver<J, T>>,
    /// Jobs that were to be attempted again: they have failed, and are counted so.
    pub(crate) backing_off: Vec<Leaver<J, T>>,
}

impl<J, T: Clone, B> Core<J, T, B> {
    /// Takes no more jobs from now on. Returns the submissions that wait for room: they are refused.
    ///
    /// The worker drains what is queued, and gives up what backs off.
    pub(crate) fn stop(&mut self) -> Vec<(J, T)> {
        self.is_stopping = true;
        let refused = self.slots(|stage| stage == Stage::Waiting);
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
    pub(crate) fn hand_back(&mut self, news: &mut News<T, B>) -> HandedBack<J, T> {
        let queued = self.remove_all(|stage| stage == Stage::Queued, End::Returned, news);
        let backs_off = |stage| matches!(stage, Stage::BackingOff { .. });
        let backing_off = self.remove_all(backs_off, End::Failed, news);
        HandedBack {
            queued,
            backing_off,
        }
    }

    fn remove_all(
        &mut self,
        is_concerned: impl Fn(Stage) -> bool,
        end: End,
        news: &mut News<T, B>,
    ) -> Vec<Leaver<J, T>> {
        let slots = self.slots(is_concerned);
        let leave = |slot| {
            self.detach(slot);
            let key = Arc::clone(self.lanes.name(self.nodes[slot].lane));
            let node = self.end(slot, end, news);
            Leaver {
                place: Place {
                    slot,
                    serial: node.serial,
                },
                key,
                attempts: node.attempts,
                job: node.job.expect("a job that does not run is here"),
                ticket: node.ticket,
            }
        };
        slots.into_iter().map(leave).collect()
    }

    /// Returns the nodes of some stages, in the order in which they were accepted.
    fn slots(&self, is_concerned: impl Fn(Stage) -> bool) -> Vec<u32> {
        let nodes = self.nodes.iter();
        let mut found: Vec<(u64, u64, u32)> = nodes
            .filter(|(_, node)| is_concerned(node.stage))
            .map(|(slot, node)| (node.order, node.serial, slot))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, _, slot)| slot).collect()
    }
}
