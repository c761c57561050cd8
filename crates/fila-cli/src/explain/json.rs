//! An explanation for programs. `docs/cli.md` promises the names of the fields.

use fila_cli::message_json::millis;
use fila_sdk::{EstimateBasis, Explanation, LevelExplanation, Waiting};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct ExplanationJson<'a> {
    key: &'a str,
    group: bool,
    now_ms: u64,
    #[serde(flatten)]
    wait: WaitJson<'a>,
    weight: u32,
    ready: u64,
    delayed: u64,
    leased: u64,
    recent_ms: u64,
    share: Option<f64>,
    ideal_share: Option<f64>,
    debt: f64,
    bound: Option<u64>,
    estimate_ms: Option<u64>,
    estimate_basis: Option<&'static str>,
    levels: Vec<LevelJson<'a>>,
}

/// The reason of a wait, and what belongs to it.
#[derive(Debug, Serialize)]
struct WaitJson<'a> {
    reason: &'static str,
    until_ms: Option<u64>,
    throttle_key: Option<&'a str>,
    cap: Option<u32>,
    position: Option<u64>,
    position_exact: Option<bool>,
}

#[derive(Debug, Serialize)]
struct LevelJson<'a> {
    path: &'a str,
    weight: u32,
    holds_up: bool,
    paused: bool,
    cap: Option<u32>,
    leased: u64,
    share: Option<f64>,
    ideal_share: Option<f64>,
    debt: f64,
    bound: Option<u64>,
}

impl<'a> ExplanationJson<'a> {
    pub(super) fn new(key: &'a str, explanation: &'a Explanation) -> Self {
        Self {
            key,
            group: explanation.is_group,
            now_ms: millis(explanation.now),
            wait: WaitJson::from(&explanation.waiting),
            weight: explanation.weight,
            ready: explanation.ready,
            delayed: explanation.delayed,
            leased: explanation.leased,
            recent_ms: u64::try_from(explanation.recent.as_millis()).unwrap_or(u64::MAX),
            share: explanation.share,
            ideal_share: explanation.ideal_share,
            debt: explanation.debt,
            bound: explanation.bound,
            estimate_ms: explanation.estimate.map(|estimate| millis(estimate.at)),
            estimate_basis: explanation.estimate.map(|estimate| match estimate.basis {
                EstimateBasis::QueuePace => "queue_pace",
                EstimateBasis::KeyPace => "key_pace",
                EstimateBasis::Due => "due",
                EstimateBasis::Store => "store",
                _ => "unknown",
            }),
            levels: explanation.levels.iter().map(LevelJson::from).collect(),
        }
    }
}

impl<'a> From<&'a Waiting> for WaitJson<'a> {
    fn from(waiting: &'a Waiting) -> Self {
        let until = match waiting {
            Waiting::BackingOff { until } | Waiting::ReadFailed { until } => Some(*until),
            Waiting::Throttled { until, .. } => *until,
            _ => None,
        };
        let (position, position_exact) = match waiting {
            Waiting::Runnable { position, is_exact } => (Some(*position), Some(*is_exact)),
            _ => (None, None),
        };
        Self {
            reason: reason(waiting),
            until_ms: until.map(millis),
            throttle_key: match waiting {
                Waiting::Throttled { key, .. } => Some(key),
                _ => None,
            },
            cap: match waiting {
                Waiting::AtCap { cap } => Some(*cap),
                _ => None,
            },
            position,
            position_exact,
        }
    }
}

impl<'a> From<&'a LevelExplanation> for LevelJson<'a> {
    fn from(level: &'a LevelExplanation) -> Self {
        Self {
            path: &level.path,
            weight: level.weight,
            holds_up: level.holds_up,
            paused: level.is_paused,
            cap: level.cap,
            leased: level.leased,
            share: level.share,
            ideal_share: level.ideal_share,
            debt: level.debt,
            bound: level.bound,
        }
    }
}

fn reason(waiting: &Waiting) -> &'static str {
    match waiting {
        Waiting::Empty => "empty",
        Waiting::Storing => "storing",
        Waiting::QueuePaused => "queue_paused",
        Waiting::KeyPaused => "key_paused",
        Waiting::AtCap { .. } => "at_cap",
        Waiting::BackingOff { .. } => "backing_off",
        Waiting::Throttled { .. } => "throttled",
        Waiting::Judging => "judging",
        Waiting::TooManyDelayed => "too_many_delayed",
        Waiting::ReadFailed { .. } => "read_failed",
        Waiting::MembersWait => "members_wait",
        Waiting::Reading => "reading",
        Waiting::NoConsumers => "no_consumers",
        Waiting::NoCredit => "no_credit",
        Waiting::Runnable { .. } => "runnable",
        _ => "unknown",
    }
}
