//! What a play comes to: what each lane gets in the time asked for, and when its backlog is gone.
//!
//! ```text
//! 0 ─────────── window ──────────────── half of the steps ──────────────── all steps ─────────▶
//!  played: shares, rates │ played: drained │ scaled down, played: drained │ drawn out: drained, or never
//! ```
//! A backlog that is not gone after half of the steps is played on [at a scale](Play::scale_down), so that all of it fits
//! the other half. What is left even then is drawn out along a straight line.

use super::Snapshot;
use super::comparison::{Drained, Span};
use super::play::{Cancelled, Clock, Pause, Play, Policy, SECOND};
use crate::QueueSettings;

/// The consumers are taken to be a hundredth faster than the arrivals at least, when the scale is chosen.
const SURPLUS_MIN: f64 = 0.01;

/// What a play comes to.
#[derive(Debug)]
pub(super) struct Prediction {
    /// In the order of the snapshot.
    pub(super) lanes: Vec<LanePrediction>,
    pub(super) group_policies: Vec<Policy>,
    /// The time that shares and rates are of.
    pub(super) over: Span,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LanePrediction {
    pub(super) policy: Policy,
    /// Deliveries in the window, and their cost.
    pub(super) delivered: u64,
    pub(super) cost: u64,
    /// Messages that wait at its end.
    pub(super) ready: u64,
    /// When none waits any more; `None` for never.
    pub(super) drained: Option<Drained>,
}

/// How far a play goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// In nanoseconds, where there is a pace.
    pub(super) window: u64,
    /// In deliveries, where there is none.
    pub(super) deliveries: u64,
    pub(super) steps: u64,
}

/// Plays a snapshot of a queue that has the settings `now` and gets others.
pub(super) fn predict(
    snapshot: &Snapshot,
    now: &QueueSettings,
    settings: &QueueSettings,
    extent: Extent,
    is_wanted: &dyn Fn() -> bool,
) -> Result<Prediction, Cancelled> {
    let mut play = Play::new(snapshot, now, settings);
    let window = match play.clock {
        Clock::Time => extent.window,
        Clock::Deliveries => extent.deliveries,
    };
    let half = extent.steps / 2;
    let mut pause = play.run(window, half, is_wanted)?;
    if pause == Pause::Quiet && play.clock == Clock::Time {
        play.now = window;
    }
    let over = play.now.max(1);
    let mut lanes: Vec<LanePrediction> = (0..).zip(&play.lanes).map(in_window(&play)).collect();
    if pause == Pause::Time {
        pause = play.run(u64::MAX, half, is_wanted)?;
    }
    let has_more = pause == Pause::Steps;
    let open = drained_so_far(&play, &mut lanes, has_more);
    if has_more && !open.is_empty() {
        play_scaled(&mut play, &mut lanes, &open, extent.steps, is_wanted)?;
    }
    let groups = 0..snapshot.groups.len();
    Ok(Prediction {
        lanes,
        group_policies: groups
            .map(|place| Policy::of_group(snapshot, place, settings))
            .collect(),
        over: Span::new(play.clock, over),
    })
}

fn in_window<'p>(
    play: &'p Play<'_>,
) -> impl Fn((u32, &super::play::LanePlay)) -> LanePrediction + 'p {
    |(place, lane)| LanePrediction {
        policy: lane.policy,
        delivered: lane.delivered,
        cost: lane.cost,
        ready: play.backlog(place),
        drained: None,
    }
}

/// Says of the lanes that have drained when they have, and returns the others.
///
/// Where the play goes on, a lane that has not been empty for half of the time counts as one of the others: its backlog may
/// be growing.
fn drained_so_far(play: &Play<'_>, lanes: &mut [LanePrediction], has_more: bool) -> Vec<u32> {
    let mut open = Vec::new();
    for (place, lane) in (0..).zip(&play.lanes) {
        let is_empty_now = play.backlog(place) == 0;
        let is_steady = lane.last_empty.is_some_and(|last| last >= play.now / 2);
        match lane.first_empty {
            Some(first) if is_empty_now || has_more && is_steady => {
                lanes[place as usize].drained = Some(Drained {
                    after: Span::new(play.clock, first),
                    is_extrapolated: false,
                });
            }
            Some(_) | None => open.push(place),
        }
    }
    open
}

/// Plays on at a scale, and says when the open lanes have drained.
fn play_scaled(
    play: &mut Play<'_>,
    lanes: &mut [LanePrediction],
    open: &[u32],
    steps_max: u64,
    is_wanted: &dyn Fn() -> bool,
) -> Result<(), Cancelled> {
    let began = play.now;
    let scale = scale_for(play, steps_max - play.steps);
    play.scale_down(scale);
    let before: Vec<u64> = open.iter().map(|&place| play.backlog(place)).collect();
    for &place in open {
        let lane = &mut play.lanes[place as usize];
        (lane.first_empty, lane.last_empty) = (None, None);
    }
    play.run(u64::MAX, steps_max, is_wanted)?;
    let played = play.now - began;
    for (&place, before) in open.iter().zip(before) {
        let after = play.backlog(place);
        let lane = &play.lanes[place as usize];
        let is_steady = lane
            .last_empty
            .is_some_and(|last| last >= began + played / 2);
        let more = match lane.first_empty {
            Some(first) if after == 0 || is_steady => Some((first - began) as f64),
            Some(_) | None if after < before => {
                let gone = (before - after) as f64;
                Some(played as f64 * (1.0 + after as f64 / gone))
            }
            Some(_) | None => None,
        };
        lanes[place as usize].drained = more.map(|more| Drained {
            after: Span::new(
                play.clock,
                began.saturating_add((more * scale as f64) as u64),
            ),
            is_extrapolated: true,
        });
    }
    Ok(())
}

/// Returns a scale at which the backlogs are gone after about this many steps.
fn scale_for(play: &Play<'_>, steps: u64) -> u64 {
    let waiting: u64 = (0..play.lanes.len() as u32)
        .filter(|&place| !play.is_paused(place))
        .map(|place| play.backlog(place))
        .sum();
    let delivered: u64 = play.lanes.iter().map(|lane| lane.delivered).sum();
    // Each delivery is one step, with its result two, and others with the arrivals.
    let per_delivery = play.steps as f64 / delivered.max(1) as f64;
    let arrivals = play.arrivals();
    let pace = delivered as f64 * SECOND / play.now.max(1) as f64;
    let surplus = (1.0 - arrivals / pace.max(f64::MIN_POSITIVE)).max(SURPLUS_MIN);
    let needed = waiting as f64 * per_delivery / surplus;
    // A quarter stays free, since this is no more than a guess.
    ((needed / (steps as f64 * 0.75)).ceil() as u64).max(1)
}
