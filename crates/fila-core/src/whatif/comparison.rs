//! Now beside then: what each key and each group would get under two settings of its queue.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fila_store::FairnessKey;
use foldhash::fast::RandomState;

use super::Snapshot;
use super::play::{Cancelled, Clock, Policy, SECOND};
use super::prediction::{Extent, Prediction, predict};
use crate::QueueSettings;

/// What is asked of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct WhatIfQuery {
    /// The time that shares and rates are of.
    pub over: Duration,
    /// How many levels of groups are shown; 1 for keys and groups that are in no group. Those whose settings would change
    /// are shown on every level, with the groups that they are in.
    pub levels: u8,
    /// The most rows.
    pub rows: usize,
    /// The most steps of each of the two plays: deliveries, results and arrivals.
    pub steps: u64,
}

impl Default for WhatIfQuery {
    fn default() -> Self {
        Self {
            over: Duration::from_secs(60),
            levels: 1,
            rows: 100,
            steps: 4_000_000,
        }
    }
}

/// A time, or as many deliveries where nothing is known about time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// This long.
    Time(Duration),
    /// As long as this many deliveries take.
    Deliveries(u64),
}

impl Span {
    pub(super) const fn new(clock: Clock, ticks: u64) -> Self {
        match clock {
            Clock::Time => Self::Time(Duration::from_nanos(ticks)),
            Clock::Deliveries => Self::Deliveries(ticks),
        }
    }
}

/// When a backlog is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// After this.
    pub after: Span,
    /// Whether it is too far ahead to be played delivery by delivery.
    pub is_extrapolated: bool,
}

/// The basis of the times in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceBasis {
    /// The consumers have no room: they go on as fast as in the last minute.
    Measured,
    /// The consumers have room for more: they take as much as their credit allows, each message for as long as of late.
    Credit,
    /// None: nothing was delivered in the last minute. There are no times.
    Nothing,
}

/// What the present settings come to beside others.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Those whose settings would change come first, then those with the largest shares. Members follow their group.
    pub rows: Vec<PolicyRow>,
    /// How many more rows there would be.
    pub left_out: u64,
    /// The time that shares and rates are of. It is shorter than the time asked for if that has too many deliveries.
    pub over: Span,
    /// Deliveries in a second, in the last minute.
    pub pace: Option<f64>,
    /// The basis of times.
    pub basis: PaceBasis,
}

/// A key or a group of a comparison.
#[derive(Clone, Debug)]
pub struct PolicyRow {
    /// Its name.
    pub path: FairnessKey,
    /// What it is.
    pub kind: RowKind,
    /// In how many groups it is.
    pub level: u8,
    /// Whether the settings of this path would change.
    pub is_changed: bool,
    /// Messages that wait only for their turn.
    pub ready: u64,
    /// Messages that consumers hold.
    pub leased: u64,
    /// Messages that wait for their time or for a token. The prediction leaves them out.
    pub held_back: u64,
    /// Messages that arrive in a second, as in the last minute.
    pub arrivals: f64,
    /// With the present settings.
    pub now: Outlook,
    /// With the others.
    pub then: Outlook,
}

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// A key.
    Key,
    /// A group, with all its members.
    Group,
    /// The messages that name the group itself: a member of it.
    OwnMessages,
}

/// What a key or group gets under some settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// The weight in force.
    pub weight: u32,
    /// Whether an operator has paused it.
    pub is_paused: bool,
    /// The most messages that consumers hold at once.
    pub cap: Option<u32>,
    /// Its part of all deliveries, in the unit that the queue charges; from 0 to 1.
    pub share: f64,
    /// Deliveries to it.
    pub deliveries: u64,
    /// Deliveries in a second.
    pub rate: Option<f64>,
    /// Messages that still wait at the end.
    pub ready: u64,
    /// When none waits any more; `None` for never.
    pub drained: Option<Drained>,
}

impl Snapshot {
    /// Plays the coming deliveries with the present settings and with others.
    ///
    /// It takes up to a second or two, and asks now and then whether the result is still wanted.
    ///
    /// # Errors
    /// If it is wanted no longer.
    pub fn compare(
        &self,
        now: &QueueSettings,
        then: &QueueSettings,
        query: &WhatIfQuery,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Comparison, Cancelled> {
        let extent = Extent {
            window: u64::try_from(query.over.as_nanos()).unwrap_or(u64::MAX),
            deliveries: 1_000.max(10 * self.lanes.len() as u64),
            steps: query.steps.max(2),
        };
        let before = predict(self, now, now, extent, is_wanted)?;
        // With a window that was too long for one of them, both are of the shorter one.
        let extent = extent.within(before.over);
        let after = predict(self, now, then, extent, is_wanted)?;
        let changed = |path: &FairnessKey| now.keys.get(path) != then.keys.get(path);
        let mut tree = Tree::new(self, &changed);
        tree.add(self, &before, Side::Now);
        tree.add(self, &after, Side::Then);
        tree.add_strangers(now, then, before.over);
        let mut comparison = Comparison {
            rows: Vec::new(),
            left_out: 0,
            over: before.over,
            pace: self.supply.pace,
            basis: match (before.over, self.supply.spare) {
                (Span::Deliveries(_), _) => PaceBasis::Nothing,
                (Span::Time(_), 0) => PaceBasis::Measured,
                (Span::Time(_), _) => PaceBasis::Credit,
            },
        };
        tree.list(None, 0, query, &mut comparison);
        Ok(comparison)
    }
}

impl Extent {
    const fn within(self, over: Span) -> Self {
        match over {
            Span::Time(time) => Self {
                window: time.as_nanos() as u64,
                ..self
            },
            Span::Deliveries(deliveries) => Self { deliveries, ..self },
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Now,
    Then,
}

/// The rows of a comparison, before they are put in order: first those of groups, then those of lanes, at their places in
/// the snapshot.
struct Tree {
    rows: Vec<PolicyRow>,
    /// Rows by the row of their group.
    members: HashMap<Option<usize>, Vec<usize>, RandomState>,
    /// Whether a row or a member of it is changed.
    leads_to_change: Vec<bool>,
}

impl Tree {
    fn new(snapshot: &Snapshot, changed: &dyn Fn(&FairnessKey) -> bool) -> Self {
        let mut tree = Self {
            rows: Vec::with_capacity(snapshot.groups.len() + snapshot.lanes.len()),
            members: HashMap::default(),
            leads_to_change: Vec::new(),
        };
        for group in &snapshot.groups {
            let parent = group.parent.map(|place| place as usize);
            let row = PolicyRow::new(&group.path, RowKind::Group);
            tree.push(parent, row, changed(&group.path));
        }
        for lane in &snapshot.lanes {
            let parent = lane.group.map(|place| place as usize);
            let is_own = lane.is_own(snapshot);
            let kind = if is_own {
                RowKind::OwnMessages
            } else {
                RowKind::Key
            };
            let row = PolicyRow {
                ready: lane.ready,
                leased: lane.leased,
                held_back: lane.held_back,
                arrivals: lane.arrivals,
                ..PolicyRow::new(&lane.path, kind)
            };
            tree.push(parent, row, !is_own && changed(&lane.path));
        }
        tree.add_up(snapshot);
        tree
    }

    fn push(&mut self, parent: Option<usize>, row: PolicyRow, is_changed: bool) {
        let place = self.rows.len();
        let level = parent.map_or(0, |parent| self.rows[parent].level + 1);
        self.rows.push(PolicyRow {
            level,
            is_changed,
            ..row
        });
        self.members.entry(parent).or_default().push(place);
        self.leads_to_change.push(is_changed);
    }

    /// Adds what the lanes have to the groups that they are in.
    fn add_up(&mut self, snapshot: &Snapshot) {
        for (lane, place) in snapshot.lanes.iter().zip(snapshot.groups.len()..) {
            let is_changed = self.leads_to_change[place];
            for group in groups_of(snapshot, lane.group) {
                let row = &mut self.rows[group];
                row.ready += lane.ready;
                row.leased += lane.leased;
                row.held_back += lane.held_back;
                row.arrivals += lane.arrivals;
                self.leads_to_change[group] |= is_changed;
            }
        }
        for (place, group) in snapshot.groups.iter().enumerate() {
            let is_changed = self.leads_to_change[place];
            for above in groups_of(snapshot, group.parent) {
                self.leads_to_change[above] |= is_changed;
            }
        }
    }

    fn add(&mut self, snapshot: &Snapshot, prediction: &Prediction, side: Side) {
        let total: u64 = prediction.lanes.iter().map(|lane| lane.cost).sum();
        let nothing = |policy: &Policy| Outlook::without_messages(policy, prediction.over);
        let mut outlooks: Vec<Outlook> = prediction.group_policies.iter().map(nothing).collect();
        for (lane, predicted) in snapshot.lanes.iter().zip(&prediction.lanes) {
            let outlook = Outlook {
                share: predicted.cost as f64 / total.max(1) as f64,
                deliveries: predicted.delivered,
                ready: predicted.ready,
                drained: predicted.drained,
                ..Outlook::new(&predicted.policy)
            };
            for group in groups_of(snapshot, lane.group) {
                outlooks[group].include(&outlook);
            }
            outlooks.push(outlook);
        }
        for (row, mut outlook) in self.rows.iter_mut().zip(outlooks) {
            outlook.rate = match prediction.over {
                Span::Time(time) => {
                    Some(outlook.deliveries as f64 * SECOND / time.as_nanos().max(1) as f64)
                }
                Span::Deliveries(_) => None,
            };
            match side {
                Side::Now => row.now = outlook,
                Side::Then => row.then = outlook,
            }
        }
    }

    /// Adds the paths whose settings would change, and which have no messages and got none of late.
    fn add_strangers(&mut self, now: &QueueSettings, then: &QueueSettings, over: Span) {
        let both: BTreeMap<_, _> = now.keys.iter().chain(&then.keys).collect();
        let changed = both
            .into_keys()
            .filter(|&path| now.keys.get(path) != then.keys.get(path));
        let known = self.rows.iter().filter(|row| row.is_changed);
        let known: std::collections::BTreeSet<FairnessKey> =
            known.map(|row| row.path.clone()).collect();
        let strangers: Vec<FairnessKey> = changed
            .filter(|&path| !known.contains(path))
            .cloned()
            .collect();
        for path in strangers {
            let mut row = PolicyRow::new(&path, RowKind::Key);
            let outlook = |settings| {
                let policy = Policy::of_stranger(&path, settings);
                Outlook::without_messages(&policy, over)
            };
            (row.now, row.then) = (outlook(now), outlook(then));
            self.push(None, row, true);
        }
    }

    /// Lists the members of a group in their order, each with its own members behind it.
    fn list(&mut self, of: Option<usize>, level: u8, query: &WhatIfQuery, into: &mut Comparison) {
        let Some(mut members) = self.members.remove(&of) else {
            return;
        };
        if level >= query.levels {
            members.retain(|&place| self.leads_to_change[place]);
        }
        let rank = |&place: &usize| {
            let row = &self.rows[place];
            let share = row.now.share.max(row.then.share);
            (self.leads_to_change[place], share, row.ready)
        };
        members.sort_by(|a, b| {
            let (a_rank, b_rank) = (rank(a), rank(b));
            b_rank
                .partial_cmp(&a_rank)
                .unwrap_or(std::cmp::Ordering::Equal)
                .then_with(|| self.rows[*a].path.cmp(&self.rows[*b].path))
        });
        for place in members {
            if into.rows.len() < query.rows {
                into.rows.push(self.rows[place].clone());
            } else {
                into.left_out += 1;
            }
            self.list(Some(place), level + 1, query, into);
        }
    }
}

impl PolicyRow {
    fn new(path: &FairnessKey, kind: RowKind) -> Self {
        let nothing = Outlook {
            weight: 1,
            is_paused: false,
            cap: None,
            share: 0.0,
            deliveries: 0,
            rate: None,
            ready: 0,
            drained: None,
        };
        Self {
            path: path.clone(),
            kind,
            level: 0,
            is_changed: false,
            ready: 0,
            leased: 0,
            held_back: 0,
            arrivals: 0.0,
            now: nothing,
            then: nothing,
        }
    }
}

impl Outlook {
    fn new(policy: &Policy) -> Self {
        Self {
            weight: policy.weight.value(),
            is_paused: policy.is_paused,
            cap: u32::try_from(policy.cap).ok(),
            share: 0.0,
            deliveries: 0,
            rate: None,
            ready: 0,
            drained: None,
        }
    }

    /// Returns the outlook of a key or group that has nothing to deliver.
    fn without_messages(policy: &Policy, over: Span) -> Self {
        let after = match over {
            Span::Time(_) => Span::Time(Duration::ZERO),
            Span::Deliveries(_) => Span::Deliveries(0),
        };
        Self {
            drained: Some(Drained {
                after,
                is_extrapolated: false,
            }),
            ..Self::new(policy)
        }
    }

    /// Adds what a member gets to what its group gets.
    fn include(&mut self, member: &Self) {
        self.share += member.share;
        self.deliveries += member.deliveries;
        self.ready += member.ready;
        self.drained = match (self.drained, member.drained) {
            (Some(a), Some(b)) => Some(Drained {
                after: a.after.max(b.after),
                is_extrapolated: a.is_extrapolated || b.is_extrapolated,
            }),
            (Some(_) | None, None) | (None, Some(_)) => None,
        };
    }
}

/// Returns the groups that something in this group is in, from the inside out.
fn groups_of(snapshot: &Snapshot, group: Option<u32>) -> impl Iterator<Item = usize> + '_ {
    let above = |place: &u32| snapshot.groups[*place as usize].parent;
    std::iter::successors(group, above).map(|place| place as usize)
}
