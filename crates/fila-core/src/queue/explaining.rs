//! Why a key waits: what holds it up, what it gets, and what it may count on.
//!
//! Nothing here changes who is next. What is asked is answered from what is counted anyway, but for the position: for
//! that, the deliveries to come are played through on a [forecast](drr::Drr::forecast) of the engine, [`FORESEEN`] of them
//! at most. It is exact as long as keys neither come nor go, and results come in: a lane that has nothing left leaves, and
//! one that comes to its cap, or to the end of its tokens, is taken to go on: then fewer come before than was said. Beyond that, the queue's virtual time tells about how far it is to the next visit.

use std::collections::HashMap;
use std::time::Duration;

use drr::{Cost, Costs, State as Engine};
use fila_store::{FairnessKey, Timestamp};
use foldhash::fast::RandomState;

use super::Queue;
use super::dispatch::{MESSAGE, cost};
use super::lane::{Lane, Loading};
use super::message::{Handle, State};
use crate::throttle::Gates;
use crate::{
    Basis, Charge, Delivering, Estimate, Explanation, Ordering, Position, Recent, Waiting,
};

/// How many deliveries are foreseen one by one.
const FORESEEN: u64 = 1000;

/// How many sets of throttle keys are looked at to find the one that is let through first.
const AISLES_MAX: usize = 64;

impl Queue {
    /// Returns why a key waits. One that is not known has no messages.
    pub(crate) fn explain(
        &mut self,
        now: Timestamp,
        gates: &mut Gates,
        key: &FairnessKey,
    ) -> Explanation {
        self.books.pace.advance(now);
        let mut recent = Recent {
            over: self.books.pace.reach(now),
            total: self.books.pace.total(),
            ..Recent::default()
        };
        let Some(&number) = self.books.keys.get(key) else {
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
        (recent.served, recent.ideal) = self.books.recent(number);
        let waiting = self.waiting(now, gates, number);
        let lane = self.books.lane(number);
        let debt = self.books.engine.debt(lane.engine);
        Explanation {
            now,
            estimate: self.estimate(now, &waiting, recent),
            waiting,
            weight: lane.weight_in_force().value(),
            ready: lane.ready_count + lane.stored_count(),
            delayed: lane.delayed,
            leased: u64::from(lane.leased),
            recent,
            debt: debt.expect("a lane's key is registered"),
            bound: Some(self.bound(lane)),
        }
    }

    /// Returns what holds a lane up.
    fn waiting(&mut self, now: Timestamp, gates: &mut Gates, number: u32) -> Waiting {
        let head = self.books.head(number);
        let lane = self.books.lane(number);
        let ready = lane.ready_count + lane.stored_count();
        if ready + lane.delayed == 0 {
            return match lane.uncommitted {
                0 => Waiting::Empty,
                _ => Waiting::Storing,
            };
        }
        if self.definition.delivery == Delivering::Paused {
            return Waiting::QueuePaused;
        }
        if lane.is_paused() {
            return Waiting::KeyPaused;
        }
        let cap = lane.cap(&self.definition);
        if lane.leased + lane.settling >= cap {
            return Waiting::AtCap { cap };
        }
        if lane.is_held {
            return Waiting::TooManyDelayed;
        }
        if let Some(waiting) = self.off_time(number, head, ready) {
            return waiting;
        }
        if let Some(waiting) = self.throttled(now, gates, number) {
            return waiting;
        }
        if lane.removing > 0 {
            return Waiting::Storing;
        }
        if lane.loading == Loading::Failed
            && let Some(until) = self.books.retry_of(number)
        {
            return Waiting::ReadFailed { until };
        }
        if !lane.promises.is_empty() {
            return Waiting::Reading;
        }
        if self.consumers.len() == 0 {
            return Waiting::NoConsumers;
        }
        if !self.consumers.has_willing() && self.books.pace.deliveries() == 0 {
            return Waiting::NoCredit;
        }
        Waiting::Runnable {
            position: self.position(number),
        }
    }

    /// Returns what a lane waits for whose messages are not due: all of them, or the first one of a strict line.
    fn off_time(&self, number: u32, head: Option<Handle>, ready: u64) -> Option<Waiting> {
        let judging = Some(Waiting::Judging);
        let at = |until| Some(Waiting::BackingOff { until });
        match self.definition.ordering {
            Ordering::Key => {
                let message = &self.books.messages[head?.slot as usize];
                match message.state {
                    State::Delayed => at(message.meta.deliver_after?),
                    State::Failing { .. } => judging,
                    State::Ready { .. } | State::Leased { .. } => None,
                }
            }
            Ordering::None if ready > 0 => None,
            Ordering::None => self.books.next_due(number).map_or(judging, at),
        }
    }

    /// Returns which throttle a lane waits for that has nothing else to deliver.
    fn throttled(&self, now: Timestamp, gates: &mut Gates, number: u32) -> Option<Waiting> {
        let lane = self.books.lane(number);
        let aisles = lane.aisles.as_ref()?;
        let mut outlook = |aisle: u32| {
            let (seat, stamp) = aisles.seat(aisle);
            let (key, until) = gates.outlook(now, seat, stamp);
            (key.clone(), until)
        };
        let (key, until) = match lane.held {
            Some(aisle) => outlook(aisle),
            None if lane.throttled == 0 || lane.deliverable() > 0 => return None,
            // The one that is let through first; never is later than any time.
            None => aisles
                .shut()
                .take(AISLES_MAX)
                .map(outlook)
                .min_by_key(|(_, until)| (until.is_none(), *until))?,
        };
        Some(Waiting::Throttled { key, until })
    }

    /// Returns how many deliveries to others come before the next one to a lane that may run.
    fn position(&self, number: u32) -> Position {
        let books = &self.books;
        let mut forecast = books.engine.forecast();
        let mut served: HashMap<u32, u64, RandomState> = HashMap::default();
        let mut deliveries = 0;
        // Whoever has nothing to deliver takes a step as well, and there may be many of them.
        for _ in 0..2 * FORESEEN {
            if deliveries == FORESEEN {
                break;
            }
            let Some(key) = forecast.next_key() else {
                return Position::Exactly(deliveries); // it is not in the ring, so nobody comes before it
            };
            let next = key.index() as u32;
            if next == number {
                return Position::Exactly(deliveries);
            }
            let lane = books.lane(next);
            let before = served.entry(next).or_default();
            let has = lane.deliverable().saturating_sub(*before);
            // In a strict line there may be nothing but messages that wait for their time.
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

    /// Returns what the delivery after so many more is charged, as far as that is known.
    fn next_cost(&self, lane: &Lane, after: u64) -> Cost {
        let place = usize::try_from(after).ok();
        let message = place
            .filter(|_| lane.line.returned.is_empty() && lane.aisles.is_none())
            .and_then(|place| lane.line.ready.get(place))
            .and_then(|handle| self.books.messages.get(handle.slot as usize));
        let bytes = match (message, lane.stored) {
            (Some(message), _) => message.carried(),
            (None, Some(stored)) => stored.bytes / stored.count.max(1),
            (None, None) => 1024,
        };
        cost(self.definition.charge, bytes, lane.expected)
    }

    /// Returns about how many deliveries it is to the next one of a lane in the ring.
    ///
    /// A lane is due again when virtual time has moved on by what its last delivery cost, divided by its weight. One that
    /// was never served waits behind all newcomers, at most.
    fn distance(&self, number: u32) -> u64 {
        let (books, lane) = (&self.books, self.books.lane(number));
        let mean = match books.pace.deliveries() {
            0 => MESSAGE,
            deliveries => (books.pace.total() / deliveries).max(1),
        };
        let is_new = books.engine.state(lane.engine) == Ok(Engine::Fresh) || lane.delivered == 0;
        if is_new {
            return books.engine.runnable().saturating_sub(1) as u64;
        }
        let weight = u64::from(lane.weight_in_force().value());
        let round = books.engine.quantum().value().max(mean) / weight;
        let left = round.saturating_sub(lane.share.since_delivery(&books.pace));
        let left = u128::from(left) * u128::from(books.engine.runnable_weight());
        u64::try_from(left / u128::from(mean)).unwrap_or(u64::MAX)
    }

    /// Returns how much others get at most before a lane, in messages or what they are worth.
    fn bound(&self, lane: &Lane) -> u64 {
        let (largest, costs) = match self.definition.charge {
            Charge::Message => (Cost::new(MESSAGE), Costs::Equal),
            Charge::Bytes | Charge::Time => {
                let largest = self.books.pace.largest().max(Cost::new(MESSAGE));
                (largest.max(lane.expected), Costs::Mixed)
            }
        };
        let bound = self.books.engine.bound(lane.engine, largest, costs);
        bound.expect("a lane's key is registered") / MESSAGE
    }

    /// Returns when the next message of a key that waits for this will be delivered, if that can be told.
    fn estimate(&self, now: Timestamp, waiting: &Waiting, recent: Recent) -> Option<Estimate> {
        let pace = &self.books.pace;
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
