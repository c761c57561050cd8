//! The place of a key or group in the line: how many deliveries come before its next one.
//!
//! A [forecast](drr::Drr::forecast) of the engine plays the next deliveries through, [`FORESEEN`] of them at most. It is
//! exact as long as keys neither come nor go, and results come in. A lane that has nothing left leaves the forecast. A lane
//! or group that would come to its cap or to the end of its tokens stays in it: then fewer deliveries come before than it
//! says. Beyond [`FORESEEN`], the virtual time of each level tells about how far it is to the next turn on that level.

use std::collections::HashMap;

use drr::{Cost, State as Engine};
use foldhash::fast::RandomState;

use super::levels::PathNode;
use crate::Position;
use crate::queue::Queue;
use crate::queue::dispatch::{MESSAGE, cost};
use crate::queue::lane::Lane;

/// How many deliveries are foreseen one by one.
const FORESEEN: u64 = 1000;

impl Queue {
    /// Returns how many deliveries to others come before the next one to a key or group that may run.
    pub(super) fn position(&self, node: PathNode) -> Position {
        let lanes = &self.index.lanes;
        let mut forecast = lanes.refreshed().engine().forecast();
        let mut served: HashMap<u32, u64, RandomState> = HashMap::default();
        let mut deliveries = 0;
        // A lane that has nothing to deliver takes a step as well, and there may be many of them.
        for _ in 0..2 * FORESEEN {
            if deliveries == FORESEEN {
                break;
            }
            let Some(key) = forecast.next_key() else {
                return Position::Exactly(deliveries); // it is not in the ring, so nothing comes before it
            };
            let next = key.index() as u32;
            let lane = lanes.get(next);
            let before = served.entry(next).or_default();
            let has = lane.deliverable(lane.owed()).saturating_sub(*before);
            let is_it = match node {
                PathNode::Key(number) => next == number,
                PathNode::Group(group) => {
                    has > 0 && lanes.groups_above(next).any(|above| above == group)
                }
            };
            if is_it {
                return Position::Exactly(deliveries);
            }
            if has > 0 {
                let charged = self.next_cost(lane, *before);
                let known = forecast.charge(key, charged);
                known.expect("the forecast has just named it");
                *before += 1;
                deliveries += 1;
            }
            if has <= 1 {
                let known = forecast.sleep(key);
                known.expect("the forecast has just named it");
            }
        }
        Position::About(self.distance(node).max(deliveries))
    }

    /// Returns the expected charge of a lane's delivery after `after` more.
    fn next_cost(&self, lane: &Lane, after: u64) -> Cost {
        let message = usize::try_from(after)
            .ok()
            .filter(|_| lane.line.returned.is_empty() && lane.sets.is_none())
            .and_then(|place| lane.line.ready.get(place))
            .and_then(|handle| self.index.messages.get(handle.slot as usize));
        let bytes = match message {
            Some(message) => message.carried(),
            None => lane.mean_stored_bytes().unwrap_or(1024),
        };
        cost(self.definition.charge, bytes, lane.expected)
    }

    /// Returns about how many deliveries it is to the next one of a key or group in the ring, added up level by level.
    ///
    /// A group has to get as many deliveries as come before the key inside of it. The first one comes with the group's next
    /// turn, and meanwhile and between any two of them the keys and groups beside it get theirs, by their weights.
    fn distance(&self, node: PathNode) -> u64 {
        let lanes = &self.index.lanes;
        let mut inside: u128 = 0;
        let mut next = Some(node);
        while let Some(node) = next {
            let around = node.around(lanes);
            let weight = u128::from(node.weight(lanes));
            let others = u128::from(self.ring(around).weight).saturating_sub(weight);
            let beside = inside.saturating_mul(others) / weight.max(1);
            let first = u128::from(self.next_turn(node, around));
            inside = inside.saturating_add(beside).saturating_add(first);
            next = around.map(PathNode::Group);
        }
        u64::try_from(inside).unwrap_or(u64::MAX)
    }

    /// Returns about how many deliveries the keys and groups beside one get before its next turn.
    ///
    /// It is due again when the virtual time of its level has moved on by what its last delivery cost, divided by its
    /// weight. One that was never served waits behind all newcomers, at most.
    fn next_turn(&self, node: PathNode, around: Option<u32>) -> u64 {
        let (lanes, pace) = (&self.index.lanes, &self.index.lanes.pace);
        let engine = lanes.refreshed().engine();
        let mean = match pace.deliveries() {
            0 => MESSAGE,
            deliveries => (pace.total() / deliveries).max(1),
        };
        let time = match around {
            None => &pace.time,
            Some(group) => &lanes.group(group).time,
        };
        let (delivered, since) = match node {
            PathNode::Key(number) => {
                let lane = lanes.get(number);
                (lane.totals.delivered, lane.share.since_delivery(time))
            }
            PathNode::Group(group) => {
                let group = lanes.group(group);
                (group.delivered, group.share.since_delivery(time))
            }
        };
        let ring = self.ring(around);
        let is_fresh = engine.state(node.in_engine(lanes)) == Ok(Engine::Fresh);
        if is_fresh || delivered == 0 {
            return ring.runnable.saturating_sub(1) as u64;
        }
        let round = engine.quantum().value().max(mean) / u64::from(node.weight(lanes)).max(1);
        let left = u128::from(round.saturating_sub(since)) * u128::from(ring.weight);
        u64::try_from(left / u128::from(mean)).unwrap_or(u64::MAX)
    }

    /// Returns the members of a group that may run, or the keys and groups that are in none.
    fn ring(&self, group: Option<u32>) -> Ring {
        let lanes = self.index.lanes.refreshed();
        let engine = lanes.engine();
        let (runnable, weight) = match group {
            None => (engine.runnable(), engine.runnable_weight()),
            Some(group) => {
                let group = lanes.groups().handle(group);
                (
                    engine.runnable_in(group).unwrap_or(0),
                    engine.runnable_weight_in(group).unwrap_or(0),
                )
            }
        };
        Ring { runnable, weight }
    }
}

/// The siblings of one level that may run: how many they are, and their weights together.
#[derive(Clone, Copy, Debug)]
struct Ring {
    runnable: usize,
    weight: u64,
}
