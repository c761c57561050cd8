//! Checks every invariant of a core, after every step of random histories.

use std::collections::HashMap;
use std::fmt::Debug;

use drr::State;

use super::node::Stage;
use super::{Core, JobSlot, groups};

impl<J, T: Clone, B> Core<J, T, B> {
    /// Panics if something that always holds does not.
    pub(crate) fn audit(&mut self) {
        let (mut queued, mut running, mut backing_off, mut waiting) = (0, 0, 0, 0);
        let mut lens: HashMap<u32, u32> = HashMap::new();
        let mut awaited: HashMap<u32, u32> = HashMap::new();
        let (mut aside, mut holding): (Vec<u32>, usize) = (Vec::new(), 0);
        for (slot, node) in self.nodes.iter() {
            let lane = &self.lanes[node.lane];
            match node.stage {
                Stage::Waiting => {
                    waiting += 1;
                    *awaited.entry(node.lane).or_default() += 1;
                    assert!(lane.is_awaited, "the lane knows that a submission waits");
                }
                Stage::Queued => {
                    queued += 1;
                    *lens.entry(node.lane).or_default() += 1;
                }
                Stage::Holding { is_ready } => {
                    queued += 1;
                    holding += 1;
                    assert_eq!(lane.active, slot, "a node that holds its key is active");
                    aside.extend((!is_ready).then_some(node.lane));
                }
                Stage::Running { is_aside, .. } => {
                    running += 1;
                    assert_eq!(lane.active, slot, "a job that runs holds its lane");
                    aside.extend(is_aside.then_some(node.lane));
                }
                Stage::BackingOff { until } => {
                    backing_off += 1;
                    assert_eq!(lane.active, slot, "a job that backs off holds its lane");
                    let timer = self.timers.get(&(until, node.serial));
                    assert!(timer.is_none_or(|&timed| timed == slot));
                }
            }
            let is_running = matches!(node.stage, Stage::Running { .. });
            assert_eq!(node.job.is_none(), is_running, "only a running job is away");
        }
        assert_eq!((queued, running, backing_off), self.gauges());
        assert!(self.timers.len() <= backing_off, "every timer has its job");
        let apart: u32 = self.lanes.iter().map(|(_, _, lane)| lane.apart).sum();
        assert_eq!(apart as usize, self.apart);
        assert!(running <= self.limits.concurrency);
        self.audit_lanes(&lens, &awaited, aside);
        self.audit_groups();
        self.audit_room(waiting, holding);
        let counters = &self.counters;
        let ended = counters.ran + counters.failed + counters.cancelled + counters.returned;
        assert_eq!(counters.accepted, ended + self.live() as u64);
    }

    fn audit_lanes(
        &mut self,
        lens: &HashMap<u32, u32>,
        awaited: &HashMap<u32, u32>,
        aside: Vec<u32>,
    ) {
        let timed = self.timers.values().map(|&slot| self.nodes[slot].lane);
        let mut parked: Vec<u32> = timed.chain(aside).collect();
        let numbers = self.lanes.iter().map(|(number, _, _)| number);
        parked.extend(numbers.filter(|&number| self.express.is_listed(number)));
        let lanes: Vec<_> = self
            .lanes
            .iter()
            .map(|(number, _, lane)| {
                assert!(lane.apart <= lane.len, "only queued jobs are set apart");
                assert!(
                    !lane.is_urgent || lane.has_active() || self.express.is_listed(number),
                    "an urgent job waits for its key or for its turn, and for nothing else"
                );
                (number, lane.len, lane.has_work(), lane.is_awaited)
            })
            .collect();
        for (number, len, has_work, is_awaited) in lanes {
            let urgent = self.express.len(&mut self.nodes, number);
            assert_eq!(urgent > 0, self.lanes[number].is_urgent);
            assert_eq!(len, lens.get(&number).copied().unwrap_or(0));
            assert_eq!(is_awaited, awaited.contains_key(&number));
            let is_parked = self.lanes.state(number) == State::Parked;
            assert_eq!(
                is_parked,
                parked.contains(&number),
                "parked while it has a timer, is set aside or in the express line"
            );
            let is_idle = self.lanes.state(number) == State::Idle;
            assert_eq!(
                is_idle,
                !has_work && !is_parked,
                "in the ring while it has work"
            );
            assert_eq!(
                self.lanes.is_idle(number),
                !has_work && !is_awaited,
                "forgotten only if nothing is lost with it"
            );
        }
    }

    fn audit_groups(&self) {
        let mut loads: HashMap<u32, (u32, u32, u32)> = HashMap::new();
        for (number, _, lane) in self.lanes.iter() {
            let backs_off = lane.has_active() && self.nodes[lane.active].stage.backs_off();
            for &group in groups::around(&self.lanes, number).iter() {
                let (queued, apart, backing_off) = loads.entry(group).or_default();
                *queued += lane.len;
                *apart += lane.apart;
                *backing_off += u32::from(backs_off);
            }
        }
        for (number, name, group) in self.lanes.groups().iter() {
            let counted = (group.queued, group.apart, group.backing_off);
            let expected = loads.get(&number).copied().unwrap_or_default();
            assert_eq!(counted, expected, "the members of {name}");
        }
        assert!(self.line.is_sound() && self.express.is_sound());
    }

    fn audit_room(&self, waiting: usize, holding: usize) {
        assert!(
            self.held() <= self.limits.queue_max + self.limits.concurrency + holding,
            "the bound on memory"
        );
        assert!(
            !self.may_let_in(),
            "no submission waits while there is room"
        );
        let awaited = self.lanes.iter().filter(|(_, _, lane)| lane.is_awaited);
        for (number, name, _) in awaited {
            let enters = self.has_room() && self.has_room_for(number);
            assert!(!enters, "{name} waits while there is room for it");
        }
        if self.is_stopping {
            assert_eq!(waiting, 0, "no submission waits for a core that stops");
        }
    }

    /// Returns where a job is, by its serial number.
    pub(crate) fn find(&self, serial: u64) -> Option<JobSlot> {
        let mut nodes = self.nodes.iter();
        let (slot, _) = nodes.find(|(_, node)| node.serial == serial)?;
        Some(JobSlot { slot, serial })
    }
}

/// A step's answer, for assertions.
pub(crate) fn show(value: &impl Debug) -> String {
    format!("{value:?}")
}
