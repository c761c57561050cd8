//! How a queue copies what decides about its coming deliveries, for a [prediction](crate::whatif).
//!
//! It visits every lane once, on the scheduler thread, and every group of a lane that it copies. That is why the number of
//! lanes and groups is limited: it takes 100 to 350 ns for each of them, with the copy of the engine.

use std::time::Duration;

use drr::{Cost, Weight};
use fila_store::Timestamp;

use super::Queue;
use super::blocked::BlockReason;
use super::counts::Stage;
use super::dispatch::{MESSAGE, cost};
use super::lane::{Home, Lane};
use super::lane_table::LaneTable;
use super::message::State;
use crate::whatif::{GroupSnapshot, LaneSnapshot, SNAPSHOT_KEYS_MAX, Supply, UpcomingCosts};
use crate::{Charge, Ordering, Refused, Snapshot};

/// With more leases than this, their ages are not looked up: they are taken to be spread evenly.
const LEASES_MAX: usize = 16_384;

/// Where messages differ in cost: how many of them are looked at, of one lane and of all.
const COSTS_PER_LANE: usize = 1_024;
const COSTS_MAX: usize = 65_536;

impl Queue {
    /// Returns a copy of what decides about the coming deliveries.
    ///
    /// # Errors
    /// If the queue has too many keys and groups for that.
    pub(crate) fn snapshot(&mut self, now: Timestamp) -> Result<Snapshot, Refused> {
        let lanes = &mut self.index.lanes;
        let found = lanes.len() + lanes.groups_len();
        let max = SNAPSHOT_KEYS_MAX;
        if found > max {
            return Err(Refused::TooManyKeysToCopy { found, max });
        }
        lanes.refresh(&self.index.messages);
        lanes.pace.advance(now);
        let mut snapshot = Snapshot {
            engine: lanes.refreshed().engine().clone(),
            lanes: Vec::with_capacity(lanes.len()),
            groups: Vec::new(),
            supply: Supply {
                pace: lanes.pace.interval(now).map(|it| 1.0 / it.as_secs_f64()),
                spare: self.consumers.room(),
                hold: None,
                leases: Vec::new(),
            },
        };
        let mut places = vec![u32::MAX; self.index.lanes.places()];
        let mut groups = CopiedGroups::new(&self.index.lanes);
        let mut holds = MeanHold::default();
        for (number, place) in (0..).zip(&mut places) {
            if let Some(lane) = self.copy_lane(now, number, &mut holds) {
                *place = snapshot.lanes.len() as u32;
                let lanes = &self.index.lanes;
                let group = lanes.groups_above(number).next();
                let group = group.map(|group| groups.place(lanes, group));
                snapshot.lanes.push(LaneSnapshot { group, ..lane });
            }
        }
        snapshot.groups = groups.copies;
        snapshot.supply.leases = self.copy_leases(now, &places, &snapshot.lanes);
        snapshot.supply.complete(&holds);
        Ok(snapshot)
    }

    /// Returns a copy of a lane that has something to deliver, or has messages with consumers, or got some of late.
    fn copy_lane(
        &mut self,
        now: Timestamp,
        number: u32,
        holds: &mut MeanHold,
    ) -> Option<LaneSnapshot> {
        let lane = self.index.lanes.try_get(number)?;
        let counts = lane.counts;
        let waiting = counts.ready() + counts[Stage::Delayed];
        let leased = counts[Stage::Leased] + lane.owed();
        let arrivals = lane.totals.arrivals.rate(now);
        let hold = (lane.totals.acked > 0).then(|| Duration::from_micros(lane.expected.value()));
        if waiting + leased == 0 && arrivals == 0.0 {
            return None;
        }
        holds.add(hold, lane.share.served_at(&self.index.lanes.pace));
        let ready = match lane.ordering {
            Ordering::None => lane.deliverable(lane.owed()),
            Ordering::Key => {
                // Messages that wait for something stand in line, and those behind them wait, too.
                let owed = lane.owed();
                let ready = lane.deliverable(owed);
                let blocked = self.index.blocked(number, owed);
                let is_held_up = blocked.contains(BlockReason::NotDue)
                    || blocked.contains(BlockReason::Throttled);
                if is_held_up { 0 } else { ready }
            }
        };
        let lanes = &self.index.lanes;
        let lane = lanes.get(number);
        Some(LaneSnapshot {
            path: lanes.key(number).clone(),
            key: lanes.refreshed().key(number),
            group: None,
            named: match lane.home {
                Home::Top | Home::Member => lane.weight,
                Home::Own => Weight::ONE,
            },
            ready,
            leased,
            held_back: waiting.saturating_sub(ready + lane.owed()),
            arrivals,
            hold,
            costs: self.copy_costs(lane),
        })
    }

    /// Returns what the next messages of a lane cost. Where that is not the same for all, the first ones are looked at that
    /// are in memory.
    fn copy_costs(&self, lane: &Lane) -> UpcomingCosts {
        let charge = self.definition.charge;
        let same = |mean| UpcomingCosts {
            first: Box::default(),
            mean,
        };
        match charge {
            Charge::Message => return same(Cost::new(MESSAGE)),
            Charge::Time => return same(lane.expected),
            Charge::Bytes => {}
        }
        let most = (COSTS_MAX / self.index.lanes.len().max(1)).clamp(1, COSTS_PER_LANE);
        let handles = lane.line.ready.iter().take(most);
        let first: Box<[Cost]> = handles
            .filter_map(|handle| {
                let message = self.index.messages.get(handle.slot as usize)?;
                let is_there = message.id == handle.id;
                is_there.then(|| cost(charge, message.carried(), lane.expected))
            })
            .collect();
        let mean = match (lane.mean_stored_bytes(), first.len() as u64) {
            (Some(bytes), _) => cost(charge, bytes, lane.expected),
            (None, 0) => Cost::new(MESSAGE),
            (None, known) => Cost::new(first.iter().map(|cost| cost.value()).sum::<u64>() / known),
        };
        // Those that have come back are delivered in between, so the places of the others are not known.
        let is_in_order = lane.line.returned.is_empty() && lane.sets.is_none();
        let first = if is_in_order { first } else { Box::default() };
        UpcomingCosts { first, mean }
    }

    /// Returns the lanes of the messages that are with consumers or owed to them, and for how long already.
    fn copy_leases(
        &self,
        now: Timestamp,
        places: &[u32],
        lanes: &[LaneSnapshot],
    ) -> Vec<(u32, Duration)> {
        if self.index.leases.len() > LEASES_MAX {
            return spread_evenly(lanes);
        }
        let slots = self.index.leases.values();
        let mut leased: Vec<_> = slots
            .filter_map(|&slot| {
                let message = self.index.messages.get(slot as usize)?;
                match message.state {
                    State::Leased { lease, since, .. } => {
                        Some((self.lease_ids.number(lease), since, message.lane))
                    }
                    State::Ready { .. } | State::Delayed | State::Failing { .. } => None,
                }
            })
            .collect();
        // The table of leases has no order. Deliveries of one moment come back in the order in which they were made.
        leased.sort_unstable_by_key(|&(number, ..)| number);
        let leases = leased
            .into_iter()
            .map(|(_, since, lane)| (places[lane as usize], now.since(since)));
        let owed = lanes.iter().zip(0..).flat_map(|(lane, place)| {
            let owed = self.index.lane(lane.key.index() as u32).owed();
            (0..owed).map(move |_| (place, Duration::ZERO))
        });
        let all = leases.chain(owed);
        all.filter(|(place, _)| *place != u32::MAX).collect()
    }
}

/// The groups of the lanes that are copied.
struct CopiedGroups {
    /// Parents come before their members.
    copies: Vec<GroupSnapshot>,
    /// The places of groups in `copies`, by their numbers.
    places: Vec<u32>,
}

impl CopiedGroups {
    fn new(lanes: &LaneTable) -> Self {
        Self {
            copies: Vec::new(),
            places: vec![u32::MAX; lanes.group_places()],
        }
    }

    /// Returns the place of a group's copy. Copies it first if need be, with the groups above it.
    fn place(&mut self, lanes: &LaneTable, group: u32) -> u32 {
        let known = self.places[group as usize];
        if known != u32::MAX {
            return known;
        }
        let parent = lanes.refreshed().group_around(group);
        // A path has four parts at most, so this goes three levels deep.
        let parent = parent.map(|parent| self.place(lanes, parent));
        let place = self.copies.len() as u32;
        self.copies.push(GroupSnapshot {
            path: lanes.group_path(group).clone(),
            group: lanes.refreshed().groups().handle(group),
            parent,
            named: lanes.group(group).weight_without_operator(),
        });
        self.places[group as usize] = place;
        place
    }
}

/// Returns leases of ages that are spread evenly over the time for which messages of their lanes are held.
fn spread_evenly(lanes: &[LaneSnapshot]) -> Vec<(u32, Duration)> {
    let mut leases = Vec::new();
    for (lane, place) in lanes.iter().zip(0..) {
        let hold = lane.hold.unwrap_or_default().as_secs_f64();
        let age = |number: u64| hold * (number as f64 + 0.5) / lane.leased as f64;
        let ages = (0..lane.leased).rev().map(age);
        leases.extend(ages.map(|age| (place, Duration::from_secs_f64(age))));
    }
    leases
}

/// The mean time for which messages are held, by the deliveries of the last minute.
#[derive(Debug, Default)]
struct MeanHold {
    served: f64,
    held: f64,
}

impl MeanHold {
    fn add(&mut self, hold: Option<Duration>, served: u64) {
        if let Some(hold) = hold {
            self.served += served as f64;
            self.held += served as f64 * hold.as_secs_f64();
        }
    }
}

impl Supply {
    /// Sets the mean time for which messages are held, and the room of consumers of which none is here at this moment.
    fn complete(&mut self, holds: &MeanHold) {
        let Some(pace) = self.pace else {
            return;
        };
        let held = self.leases.len() as f64;
        let mean = match holds.served {
            served if served > 0.0 => holds.held / served,
            // By Little's law.
            _ => held / pace,
        };
        self.hold = Duration::try_from_secs_f64(mean)
            .ok()
            .filter(|_| holds.served > 0.0 || held > 0.0);
        if self.leases.is_empty() && self.spare == 0 {
            self.spare = ((pace * mean).round() as u64).max(1);
        }
    }
}
