//! Plays the coming deliveries of a snapshot, one by one, in a time of its own.
//!
//! It does what [`Queue::dispatch`](crate::queue) does with the same engine: while a consumer has room, the lane that is next
//! gives a message and is charged; a lane that has nothing left, or as many messages with consumers as it may, leaves the
//! ring, and comes back with an arrival or a result.
//!
//! It also does so at the same moments. The broker brings the ring in step with the lanes that have changed just before it
//! asks for the next one, in the order in which they changed. A lane at its cap whose result comes before that does not leave
//! the ring, and so keeps the rest of its turn. The same holds for settings: the broker visits keys in the order of their
//! names.
//!
//! # Work
//! A delivery takes constant time but for the list of events, which is a heap of as many entries as consumers hold messages,
//! and one for each lane that waits for an arrival. The arrivals of a lane that has a backlog are counted when they are
//! asked for, and are no events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;
use std::time::Duration;

use drr::{Cost, Drr, Weight};
use fila_store::FairnessKey;

use super::{LaneSnapshot, Snapshot};
use crate::{Delivering, KeySettings, Ordering, QueueSettings};

/// How many steps are played between two questions whether somebody still waits for the result.
const ASK_EVERY: u64 = 4096;

/// A message is with a consumer for this long at least, so that time goes on.
const HOLD_MIN: u64 = 1_000;

/// A second, in nanoseconds.
pub(super) const SECOND: f64 = 1e9;

/// Nobody waits for the result any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prediction was given up, since nobody waits for it")]
pub struct Cancelled;

/// How time goes on in a play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// In nanoseconds.
    Time,
    /// By one with each delivery. There are no arrivals, and every message is done at once.
    Deliveries,
}

/// Why a play has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// The time has come until which it was to be played.
    Time,
    /// It took as many steps as it may.
    Steps,
    /// Nothing more happens.
    Quiet,
}

/// What an operator's settings mean for a key or a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) weight: Weight,
    pub(super) is_paused: bool,
    pub(super) cap: u64,
}

impl Policy {
    /// Returns the policy of a lane.
    pub(super) fn of_lane(snapshot: &Snapshot, lane: &LaneSnapshot, all: &QueueSettings) -> Self {
        let mut settings = all.keys.get(&lane.path).copied().unwrap_or_default();
        if lane.is_own(snapshot) {
            // The weight of this path is the group's, of which its own messages are a member.
            settings.weight = None;
        }
        let cap = match all.ordering {
            Ordering::None => settings.concurrency.or(all.key_concurrency),
            Ordering::Key => Some(NonZeroU32::MIN),
        };
        Self::new(settings, cap, lane.named)
    }

    /// Returns the policy of the group at this place.
    pub(super) fn of_group(snapshot: &Snapshot, place: usize, all: &QueueSettings) -> Self {
        let group = &snapshot.groups[place];
        let settings = all.keys.get(&group.path).copied().unwrap_or_default();
        Self::new(settings, settings.concurrency, group.named)
    }

    /// Returns the policy of a path without messages.
    pub(super) fn of_stranger(path: &FairnessKey, all: &QueueSettings) -> Self {
        let settings = all.keys.get(path).copied().unwrap_or_default();
        Self::new(settings, settings.concurrency, Weight::ONE)
    }

    fn new(settings: KeySettings, cap: Option<NonZeroU32>, named: Weight) -> Self {
        let fixed = settings.weight.map(|fixed| u64::from(fixed.get()));
        Self {
            weight: fixed.and_then(Weight::new).unwrap_or(named),
            is_paused: settings.delivery == Delivering::Paused,
            cap: cap.map_or(u64::MAX, |cap| cap.get().into()),
        }
    }
}

/// A lane that is played.
#[derive(Clone, Debug)]
pub(super) struct LanePlay {
    pub(super) policy: Policy,
    /// The backlog at the last [scaling](Play::scale_down), without later arrivals and deliveries.
    base: u64,
    /// The arrivals until then.
    arrived: u64,
    /// The deliveries since then.
    taken: u64,
    pub(super) delivered: u64,
    /// The cost of all deliveries.
    pub(super) cost: u64,
    leased: u64,
    /// Deletions that are being stored, and as many as its groups know of.
    storing: u64,
    storing_above: u64,
    is_awake: bool,
    /// Whether the ring has to be brought in step with it.
    is_changed: bool,
    awaits_arrival: bool,
    /// When its backlog was gone for the first and for the last time.
    pub(super) first_empty: Option<u64>,
    pub(super) last_empty: Option<u64>,
    hold: u64,
    /// The time between two arrivals; zero if there are none.
    interval: f64,
    /// The part of the first interval that has passed already, so that lanes do not arrive in step.
    phase: f64,
}

#[derive(Clone, Copy, Debug)]
struct GroupPlay {
    policy: Policy,
    leased: u64,
    /// Deletions of its members that are being stored.
    storing: u64,
}

/// A lane or a group of the snapshot, by its place. A lane comes before the group of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PlayNode {
    Lane(u32),
    Group(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Result(u32),
    Arrival(u32),
}

/// A play.
#[derive(Debug)]
pub(super) struct Play<'a> {
    snapshot: &'a Snapshot,
    pub(super) clock: Clock,
    engine: Drr,
    pub(super) lanes: Vec<LanePlay>,
    groups: Vec<GroupPlay>,
    /// The lane of each key of the engine.
    by_key: Vec<u32>,
    /// The lanes that have changed since the ring was asked.
    changed: Vec<u32>,
    /// Where keys are strictly ordered: the lanes of results whose deletions are being stored.
    storing: Vec<u32>,
    ordering: Ordering,
    /// By how much the times that messages are held are longer than those measured.
    scale: f64,
    /// With a number that grows: events of one moment happen in the order in which they were foreseen.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    foreseen: u64,
    /// How many messages consumers can take now.
    free: u64,
    pub(super) now: u64,
    pub(super) steps: u64,
}

impl<'a> Play<'a> {
    /// Begins to play a snapshot of a queue that has the settings `now` and gets others. A queue that is paused is played as
    /// if it were not.
    pub(super) fn new(
        snapshot: &'a Snapshot,
        now: &QueueSettings,
        settings: &QueueSettings,
    ) -> Self {
        let supply = &snapshot.supply;
        let hold = supply.hold.filter(|_| supply.pace.is_some());
        let clock = hold.map_or(Clock::Deliveries, |_| Clock::Time);
        let scale = hold_scale(snapshot, hold.unwrap_or_default());
        let lane = |(place, lane): (usize, &LaneSnapshot)| {
            let own = lane.hold.or(hold).unwrap_or_default().as_nanos() as f64;
            LanePlay {
                policy: Policy::of_lane(snapshot, lane, settings),
                base: lane.ready,
                arrived: 0,
                taken: 0,
                delivered: 0,
                cost: 0,
                leased: lane.leased,
                storing: 0,
                storing_above: 0,
                is_awake: false,
                is_changed: false,
                awaits_arrival: false,
                first_empty: None,
                last_empty: None,
                hold: ((own * scale) as u64).max(HOLD_MIN),
                interval: match lane.arrivals {
                    rate if rate > 0.0 && clock == Clock::Time => SECOND / rate,
                    _ => 0.0,
                },
                phase: place as f64 * 0.618_033_988_749_895 % 1.0,
            }
        };
        let mut play = Self {
            snapshot,
            clock,
            engine: snapshot.engine.clone(),
            lanes: snapshot.lanes.iter().enumerate().map(lane).collect(),
            groups: Vec::with_capacity(snapshot.groups.len()),
            by_key: Vec::new(),
            changed: Vec::new(),
            storing: Vec::new(),
            ordering: settings.ordering,
            scale,
            events: BinaryHeap::new(),
            foreseen: 0,
            free: supply.spare,
            now: 0,
            steps: 0,
        };
        play.add_groups(settings);
        play.add_lanes();
        play.follow(now, settings);
        play.add_leases();
        play
    }

    fn add_groups(&mut self, settings: &QueueSettings) {
        for place in 0..self.snapshot.groups.len() {
            let policy = Policy::of_group(self.snapshot, place, settings);
            self.groups.push(GroupPlay {
                policy,
                leased: 0,
                storing: 0,
            });
        }
        for lane in &self.snapshot.lanes {
            let mut group = lane.group;
            while let Some(place) = group {
                self.groups[place as usize].leased += lane.leased;
                group = self.snapshot.groups[place as usize].parent;
            }
        }
    }

    fn add_lanes(&mut self) {
        for place in 0..self.lanes.len() {
            let LaneSnapshot { key, ready, .. } = self.snapshot.lanes[place];
            if self.by_key.len() <= key.index() {
                self.by_key.resize(key.index() + 1, u32::MAX);
            }
            self.by_key[key.index()] = place as u32;
            let lane = &mut self.lanes[place];
            lane.is_awake = match registered(self.engine.state(key)) {
                drr::State::Idle | drr::State::Parked => false,
                // Fresh, waiting or being served.
                _ => true,
            };
            if ready == 0 {
                (lane.first_empty, lane.last_empty) = (Some(0), Some(0));
                self.await_arrival(place as u32);
            }
        }
    }

    /// Changes the settings as the broker does: first those of the paths that had some, then the others, each by name.
    fn follow(&mut self, now: &QueueSettings, settings: &QueueSettings) {
        let order = |path: &FairnessKey| match settings.keys.contains_key(path) {
            _ if now.keys.contains_key(path) => Some(false),
            true => Some(true),
            false => None,
        };
        let lanes = (0..).zip(&self.snapshot.lanes);
        let lanes = lanes.filter_map(|(place, lane)| {
            Some((order(&lane.path)?, &lane.path, PlayNode::Lane(place)))
        });
        let groups = (0..).zip(&self.snapshot.groups);
        let groups = groups.filter_map(|(place, group)| {
            Some((order(&group.path)?, &group.path, PlayNode::Group(place)))
        });
        let mut nodes: Vec<_> = lanes.chain(groups).collect();
        nodes.sort_unstable();
        for (_, _, node) in nodes {
            match node {
                PlayNode::Lane(place) => {
                    let key = self.snapshot.lanes[place as usize].key;
                    let weight = self.lanes[place as usize].policy.weight;
                    registered(self.engine.set_weight(key, weight));
                    self.mark(place);
                }
                PlayNode::Group(place) => {
                    let group = self.snapshot.groups[place as usize].group;
                    let weight = self.groups[place as usize].policy.weight;
                    registered(self.engine.set_weight(group, weight));
                    self.refresh_group(place);
                }
            }
        }
        // The settings for all keys may have changed as well, and without a pace there are no caps.
        for place in 0..self.groups.len() as u32 {
            self.refresh_group(place);
        }
        for place in 0..self.lanes.len() as u32 {
            self.mark(place);
        }
    }

    /// Foresees when the messages come back that are with consumers. One that is overdue takes as long again as it is late.
    ///
    /// Their ages are stretched like the times that messages are held, so they come back in the order that was measured.
    fn add_leases(&mut self) {
        if self.clock == Clock::Deliveries {
            return;
        }
        for &(lane, age) in &self.snapshot.supply.leases {
            let hold = self.lanes[lane as usize].hold;
            let age = (age.as_nanos() as f64 * self.scale) as u64;
            self.foresee(hold.abs_diff(age), Event::Result(lane));
        }
    }

    /// Plays until this time, with this many steps at most.
    pub(super) fn run(
        &mut self,
        until: u64,
        steps_max: u64,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Pause, Cancelled> {
        loop {
            while self.free > 0 || self.clock == Clock::Deliveries {
                if self.steps >= steps_max {
                    return Ok(Pause::Steps);
                }
                if self.clock == Clock::Deliveries && self.now >= until {
                    return Ok(Pause::Time);
                }
                self.refresh_changed();
                let Some(key) = self.engine.next_key() else {
                    break;
                };
                match self.by_key.get(key.index()) {
                    Some(&lane) if lane != u32::MAX => self.deliver(lane),
                    // It is in the ring without a message, and leaves it.
                    Some(_) | None => {
                        self.steps += 1;
                        registered(self.engine.sleep(key));
                    }
                }
                if self.steps.is_multiple_of(ASK_EVERY) && !is_wanted() {
                    return Err(Cancelled);
                }
            }
            if !self.storing.is_empty() {
                self.finish_storing();
                continue;
            }
            let Some(&Reverse((moment, ..))) = self.events.peek() else {
                return Ok(Pause::Quiet);
            };
            if moment > until {
                self.now = until;
                return Ok(Pause::Time);
            }
            if self.steps >= steps_max {
                return Ok(Pause::Steps);
            }
            self.now = moment;
            while let Some(&Reverse((next, _, event))) = self.events.peek()
                && next == moment
            {
                self.events.pop();
                self.steps += 1;
                self.happen(event);
            }
        }
    }

    fn deliver(&mut self, place: u32) {
        self.steps += 1;
        let snapshot = &self.snapshot.lanes[place as usize];
        let lane = &mut self.lanes[place as usize];
        let cost = snapshot.costs.of(lane.delivered);
        lane.taken += 1;
        lane.delivered += 1;
        lane.cost += cost.value();
        registered(self.engine.charge(snapshot.key, cost));
        match self.clock {
            Clock::Deliveries => self.now += 1,
            Clock::Time => {
                lane.leased += 1;
                let end = self.now.saturating_add(lane.hold);
                self.free -= 1;
                self.foresee(end, Event::Result(place));
                self.each_group_of(place, |play, group| {
                    play.groups[group as usize].leased += 1;
                });
            }
        }
        if self.backlog(place) == 0 {
            let lane = &mut self.lanes[place as usize];
            lane.first_empty.get_or_insert(self.now);
            lane.last_empty = Some(self.now);
            self.await_arrival(place);
        }
        self.mark(place);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Result(place) => {
                let lane = &mut self.lanes[place as usize];
                lane.leased = lane.leased.saturating_sub(1);
                self.free += 1;
                self.each_group_of(place, |play, group| {
                    let leased = &mut play.groups[group as usize].leased;
                    *leased = leased.saturating_sub(1);
                });
                match self.ordering {
                    Ordering::None => {}
                    Ordering::Key => {
                        self.lanes[place as usize].storing += 1;
                        self.storing.push(place);
                    }
                }
                self.mark(place);
            }
            Event::Arrival(place) => {
                self.lanes[place as usize].awaits_arrival = false;
                self.mark(place);
            }
        }
    }

    /// Lets strictly ordered lanes go on whose last message is deleted for good. The store takes no time in a play, but other
    /// lanes have their turn first.
    fn finish_storing(&mut self) {
        for place in std::mem::take(&mut self.storing) {
            self.lanes[place as usize].storing -= 1;
            self.mark(place);
        }
    }

    /// Visits the groups of a lane, from the inside out.
    fn each_group_of(&mut self, place: u32, visit: impl Fn(&mut Self, u32)) {
        let mut group = self.snapshot.lanes[place as usize].group;
        while let Some(place) = group {
            visit(self, place);
            group = self.snapshot.groups[place as usize].parent;
        }
    }

    /// Notes that the ring has to be brought in step with a lane.
    fn mark(&mut self, place: u32) {
        let is_changed = &mut self.lanes[place as usize].is_changed;
        if !std::mem::replace(is_changed, true) {
            self.changed.push(place);
        }
    }

    /// Brings the ring in step with the lanes that have changed.
    fn refresh_changed(&mut self) {
        // Taken, so that lanes can be changed; put back, so that its memory is used again.
        let mut changed = std::mem::take(&mut self.changed);
        for place in changed.drain(..) {
            self.refresh(place);
            let lane = &mut self.lanes[place as usize];
            let (before, now) = (lane.storing_above, lane.storing);
            lane.storing_above = now;
            self.each_group_of(place, |play, group| {
                let storing = &mut play.groups[group as usize].storing;
                *storing = *storing - before + now;
                play.refresh_group(group);
            });
        }
        self.changed = changed;
    }

    /// Parks a group that is paused or has as many leases as it may, or unparks it.
    fn refresh_group(&mut self, place: u32) {
        let GroupPlay {
            policy,
            leased,
            storing,
        } = self.groups[place as usize];
        let group = self.snapshot.groups[place as usize].group;
        if policy.is_paused || self.clock == Clock::Time && leased + storing >= policy.cap {
            registered(self.engine.park(group));
        } else {
            registered(self.engine.unpark(group));
        }
    }

    /// Lets a lane join the ring or leave it, as its backlog and its leases say.
    fn refresh(&mut self, place: u32) {
        let backlog = self.backlog(place);
        let lane = &mut self.lanes[place as usize];
        lane.is_changed = false;
        let is_at_cap = self.clock == Clock::Time && lane.leased + lane.storing >= lane.policy.cap;
        let may_run = backlog > 0 && !lane.policy.is_paused && !is_at_cap;
        if may_run != lane.is_awake {
            lane.is_awake = may_run;
            let key = self.snapshot.lanes[place as usize].key;
            registered(match may_run {
                true => self.engine.wake(key),
                false => self.engine.sleep(key),
            });
        }
    }

    /// Foresees the next arrival of a lane without a backlog, if there is one to come.
    fn await_arrival(&mut self, place: u32) {
        let lane = &mut self.lanes[place as usize];
        if lane.interval > 0.0 && !lane.awaits_arrival {
            lane.awaits_arrival = true;
            let next = lane.arrived_by(self.now) as f64 + 1.0 - lane.phase;
            let moment = ((next * lane.interval).ceil() as u64).max(self.now + 1);
            self.foresee(moment, Event::Arrival(place));
        }
    }

    fn foresee(&mut self, moment: u64, event: Event) {
        self.foreseen += 1;
        self.events.push(Reverse((moment, self.foreseen, event)));
    }

    /// Returns how many messages of a lane wait now.
    pub(super) fn backlog(&self, place: u32) -> u64 {
        let lane = &self.lanes[place as usize];
        let arrived = lane.arrived_by(self.now) - lane.arrived;
        (lane.base + arrived).saturating_sub(lane.taken)
    }

    /// Returns whether a lane or a group that it is in is paused.
    pub(super) fn is_paused(&self, place: u32) -> bool {
        let mut group = self.snapshot.lanes[place as usize].group;
        let mut is_paused = self.lanes[place as usize].policy.is_paused;
        while let Some(place) = group {
            is_paused |= self.groups[place as usize].policy.is_paused;
            group = self.snapshot.groups[place as usize].parent;
        }
        is_paused
    }

    /// Returns how many messages arrive in a second, without those of paused keys and groups.
    pub(super) fn arrivals(&self) -> f64 {
        let lanes = (0..).zip(&self.lanes).zip(&self.snapshot.lanes);
        let taken =
            lanes.filter(|((place, lane), _)| lane.interval > 0.0 && !self.is_paused(*place));
        taken.map(|(_, lane)| lane.arrivals).sum()
    }

    /// Goes on with a part of each backlog. A time from here on then stands for `by` times as much: backlogs grow and shrink
    /// at the same rates, and there is less of them.
    pub(super) fn scale_down(&mut self, by: u64) {
        for place in 0..self.lanes.len() as u32 {
            let backlog = self.backlog(place);
            let now = self.now;
            let lane = &mut self.lanes[place as usize];
            lane.arrived = lane.arrived_by(now);
            lane.base = backlog.div_ceil(by);
            lane.taken = 0;
        }
    }
}

impl LanePlay {
    fn arrived_by(&self, now: u64) -> u64 {
        if self.interval > 0.0 {
            (now as f64 / self.interval + self.phase) as u64
        } else {
            0
        }
    }
}

impl LaneSnapshot {
    /// Returns whether its messages name a group: it is then a member of that group.
    pub(super) fn is_own(&self, snapshot: &Snapshot) -> bool {
        let group = self.group.map(|place| &snapshot.groups[place as usize]);
        group.is_some_and(|group| group.path == self.path)
    }
}

impl super::UpcomingCosts {
    /// Returns the cost of a lane's delivery after this many.
    fn of(&self, after: u64) -> Cost {
        let place = usize::try_from(after).unwrap_or(usize::MAX);
        self.first.get(place).copied().unwrap_or(self.mean)
    }
}

/// Returns by how much the times that messages are held have to be longer, so that the consumers take them at the pace that
/// was measured.
///
/// If consumers have no room, they hold `pace × time` messages (Little's law), and the pace is measured better than the
/// times of single keys are. If they have room, something else sets the pace.
fn hold_scale(snapshot: &Snapshot, mean: Duration) -> f64 {
    let supply = &snapshot.supply;
    let held = supply.leases.len() as f64;
    match supply.pace {
        Some(pace) if supply.spare == 0 && held > 0.0 && !mean.is_zero() => {
            held / pace / mean.as_secs_f64()
        }
        Some(_) | None => 1.0,
    }
}

/// Unwraps the answer of an engine that forgets nothing.
fn registered<T>(answer: Result<T, drr::Unknown>) -> T {
    answer.expect("a snapshot's engine has all its keys and groups")
}
