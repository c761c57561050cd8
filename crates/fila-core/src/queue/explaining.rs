//! Explains why a key waits: the reason, its share, and the bound on its wait.
//!
//! Nothing here changes the order of deliveries. The queue keeps all figures anyway, except the position:
//! a [forecast](drr::Drr::forecast) of the engine plays the next deliveries through, [`FORESEEN`] of them at most. It is
//! exact as long as keys neither come nor go, and results come in. A lane that has nothing left leaves the forecast. A lane
//! that would come to its cap or to the end of its tokens stays in it: then fewer deliveries come before than it says.
//! Beyond [`FORESEEN`], the queue's virtual time tells about how far it is to the next turn.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use drr::{Cost, Costs, State as Engine};
use fila_store::{FairnessKey, Timestamp};
use foldhash::fast::RandomState;

use super::Queue;
use super::blocked::BlockReason;
use super::counts::Stage;
use super::dispatch::{MESSAGE, cost};
use super::lane::Lane;
use super::message::State;
use crate::throttle::Throttles;
use crate::{
    Basis, Charge, Delivering, Estimate, Explanation, Ordering, Position, Recent, Waiting,
};

/// How many deliveries are foreseen one by one.
const FORESEEN: u64 = 1000;

/// How many throttle sets are looked at to find the one that gets its token first.
const SETS_MAX: usize = 64;

impl Queue {
    /// Returns why a key waits. An unknown key has no messages.
    pub(crate) fn explain(
        &mut self,
        now: Timestamp,
        throttles: &mut Throttles,
        key: &FairnessKey,
    ) -> Explanation {
        let index = &mut self.index;
        index.lanes.refresh(&index.messages);
        index.lanes.pace.advance(now);
        let mut recent = Recent {
            over: index.lanes.pace.reach(now),
            total: index.lanes.pace.total(),
            ..Recent::default()
        };
        let Some(number) = index.lanes.find(key) else {
            let weight = self.settings_of(key).weight;
            return Explanation {
                now,
                waiting: Waiting::Empty,
                weight: weight.map_or(1, std::num::NonZeroU32::get),
                ready: 0,
                delayed: 0,
                leased: 0,
                recent,
                debt: 0,
                bound: None,
                estimate: None,
            };
        };
        (recent.served, recent.ideal) = index.lanes.recent(number);
        let waiting = self.waiting(now, throttles, number);
        let lane = self.index.lane(number);
        Explanation {
            now,
            estimate: self.estimate(now, &waiting, recent),
            waiting,
            weight: self.index.lanes.weight_of(number).value(),
            ready: lane.counts.ready(),
            delayed: lane.counts[Stage::Delayed],
            leased: lane.counts[Stage::Leased],
            recent,
            debt: self.index.lanes.refreshed().debt(number),
            bound: Some(self.bound(number)),
        }
    }

    /// Returns what holds a lane up: the first reason why it is blocked, or else what all lanes wait for.
    fn waiting(&mut self, now: Timestamp, throttles: &mut Throttles, number: u32) -> Waiting {
        let blocked = self.index.blocked(number, self.index.lane(number).owed());
        let is_paused = self.definition.delivery == Delivering::Paused;
        if is_paused && !blocked.contains(BlockReason::Empty) {
            return Waiting::QueuePaused;
        }
        let mut reasons = blocked.reasons();
        if let Some(waiting) = reasons.find_map(|it| self.describe(now, throttles, number, it)) {
            return waiting;
        }
        if !self.index.lane(number).owed.is_empty() {
            return Waiting::Reading;
        }
        if self.consumers.len() == 0 {
            return Waiting::NoConsumers;
        }
        if !self.consumers.has_ready() && self.index.lanes.pace.deliveries() == 0 {
            return Waiting::NoCredit;
        }
        Waiting::Runnable {
            position: self.position(number),
        }
    }

    /// Describes the wait of a lane that is blocked for this reason, if the details are known.
    fn describe(
        &mut self,
        now: Timestamp,
        throttles: &mut Throttles,
        number: u32,
        reason: BlockReason,
    ) -> Option<Waiting> {
        let lane = self.index.lane(number);
        Some(match reason {
            BlockReason::Empty if lane.counts.uncommitted() > 0 => Waiting::Storing,
            BlockReason::Empty => Waiting::Empty,
            BlockReason::GroupPaused | BlockReason::Paused => Waiting::KeyPaused,
            BlockReason::GroupAtCap => Waiting::AtCap {
                cap: self.group_cap(number)?,
            },
            BlockReason::AtCap => Waiting::AtCap {
                cap: lane.cap(self.definition.key_concurrency),
            },
            BlockReason::TooManyDelayed => Waiting::TooManyDelayed,
            BlockReason::NotDue => self.not_due(number)?,
            BlockReason::Throttled => self.throttled(now, throttles, number)?,
            BlockReason::Removing => Waiting::Storing,
            BlockReason::ReadFailed => Waiting::ReadFailed {
                until: self.index.retry_of(number)?,
            },
            BlockReason::Owing => Waiting::Reading,
        })
    }

    /// Returns the least cap of the groups above a lane that are at theirs.
    fn group_cap(&self, number: u32) -> Option<u32> {
        let lanes = &self.index.lanes;
        let above = lanes.groups_above(number).map(|group| lanes.group(group));
        let at_cap = above.filter(|group| group.is_at_cap(u64::from(group.use_of_members.owed)));
        at_cap
            .filter_map(|group| group.cap())
            .min()
            .map(NonZeroU32::get)
    }

    /// Returns when the messages of a lane are due, or that it is being decided what becomes of them.
    fn not_due(&mut self, number: u32) -> Option<Waiting> {
        let until = match self.definition.ordering {
            Ordering::Key => {
                let head = self.index.head(number)?;
                let message = &self.index.messages[head.slot as usize];
                match message.state {
                    State::Delayed => message.meta.deliver_after,
                    State::Failing { .. } | State::Ready { .. } | State::Leased { .. } => None,
                }
            }
            Ordering::None => self.index.lane(number).next_due(),
        };
        Some(until.map_or(Waiting::Judging, |until| Waiting::BackingOff { until }))
    }

    /// Returns the throttle key that a lane waits for.
    fn throttled(&self, now: Timestamp, throttles: &mut Throttles, number: u32) -> Option<Waiting> {
        let sets = self.index.lane(number).sets.as_ref()?;
        let (key, until) = sets
            .waiting()
            .take(SETS_MAX)
            .map(|set| {
                let (slot, wait_id) = sets.slot(set);
                let (key, until) = throttles.forecast(now, slot, wait_id);
                (key.clone(), until)
            })
            // The set that gets its token first; one that never gets it comes last.
            .min_by_key(|(_, until)| (until.is_none(), *until))?;
        Some(Waiting::Throttled { key, until })
    }

    /// Returns how many deliveries to others come before the next one to a lane that may run.
    fn position(&self, number: u32) -> Position {
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
            if next == number {
                return Position::Exactly(deliveries);
            }
            let lane = lanes.get(next);
            let before = served.entry(next).or_default();
            let has = lane.deliverable(lane.owed()).saturating_sub(*before);
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
        Position::About(self.distance(number).max(deliveries))
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

    /// Returns about how many deliveries it is to the next one of a lane in the ring.
    ///
    /// A lane is due again when virtual time has moved on by what its last delivery cost, divided by its weight. A lane
    /// that was never served waits behind all newcomers, at most.
    fn distance(&self, number: u32) -> u64 {
        let (lanes, lane) = (&self.index.lanes, self.index.lane(number));
        let (engine, pace) = (lanes.refreshed().engine(), &lanes.pace);
        let mean = match pace.deliveries() {
            0 => MESSAGE,
            deliveries => (pace.total() / deliveries).max(1),
        };
        let is_fresh = lanes.refreshed().state(number) == Engine::Fresh;
        if is_fresh || lane.totals.delivered == 0 {
            return engine.runnable().saturating_sub(1) as u64;
        }
        let weight = u64::from(lane.weight_in_force().value());
        let round = engine.quantum().value().max(mean) / weight;
        let left = round.saturating_sub(lane.share.since_delivery(&pace.time));
        let left = u128::from(left) * u128::from(engine.runnable_weight());
        u64::try_from(left / u128::from(mean)).unwrap_or(u64::MAX)
    }

    /// Returns the most that other lanes get before a lane, in messages or in their cost.
    fn bound(&self, number: u32) -> u64 {
        let lanes = &self.index.lanes;
        let (largest, costs) = match self.definition.charge {
            Charge::Message => (Cost::new(MESSAGE), Costs::Equal),
            Charge::Bytes => (lanes.pace.largest().max(Cost::new(MESSAGE)), Costs::Mixed),
            Charge::Time => {
                let largest = lanes.pace.largest().max(Cost::new(MESSAGE));
                (largest.max(lanes.get(number).expected), Costs::Mixed)
            }
        };
        lanes.refreshed().bound(number, largest, costs) / MESSAGE
    }

    /// Returns when the next message of a key that waits for this will be delivered, if that can be told.
    fn estimate(&self, now: Timestamp, waiting: &Waiting, recent: Recent) -> Option<Estimate> {
        let pace = &self.index.lanes.pace;
        let after = |wait: Duration, basis| {
            let at = now.saturating_add(wait);
            Some(Estimate { at, basis })
        };
        match waiting {
            Waiting::Runnable { position } => {
                let turns = position.deliveries().saturating_add(1) as f64;
                let wait = pace.interval(now)?.as_secs_f64() * turns;
                let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
                after(wait, Basis::QueuePace)
            }
            Waiting::AtCap { .. } => {
                // A delivery of this key needs a result of this key.
                let mean = pace.total().checked_div(pace.deliveries())?.max(1);
                let deliveries = u32::try_from(recent.served / mean).unwrap_or(u32::MAX);
                after(recent.over.checked_div(deliveries)?, Basis::KeyPace)
            }
            Waiting::BackingOff { until }
            | Waiting::Throttled {
                until: Some(until), ..
            }
            | Waiting::ReadFailed { until } => Some(Estimate {
                at: (*until).max(now),
                basis: Basis::Due,
            }),
            Waiting::Reading => after(Duration::ZERO, Basis::Store),
            Waiting::Empty
            | Waiting::Storing
            | Waiting::QueuePaused
            | Waiting::KeyPaused
            | Waiting::Judging
            | Waiting::TooManyDelayed
            | Waiting::Throttled { until: None, .. }
            | Waiting::NoConsumers
            | Waiting::NoCredit => None,
        }
    }
}
