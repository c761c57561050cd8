//! Conversion of `ExplainKey` for the wire.

use fila_core::{
    Basis, Delivering, Explanation, LevelExplanation, Position, Recent, Subject, Waiting,
};
use fila_proto::v1::{EstimateBasis, ExplainKeyResponse, ExplainLevel, WaitReason};
use fila_store::Timestamp;

use super::message::key_text;
use super::settings::millis;

/// Returns an explanation for the wire.
pub(super) fn to_wire(explanation: &Explanation) -> ExplainKeyResponse {
    let recent = explanation.recent;
    let mut wire = ExplainKeyResponse {
        now_ms: explanation.now.as_millis(),
        weight: explanation.weight,
        ready: explanation.ready,
        delayed: explanation.delayed,
        leased: explanation.leased,
        recent_ms: millis(recent.over),
        share: part(recent, recent.served),
        ideal_share: part(recent, recent.ideal),
        debt: explanation.debt,
        bound: explanation.bound,
        estimate_ms: explanation.estimate.map(|estimate| estimate.at.as_millis()),
        levels: explanation.levels.iter().map(level).collect(),
        group: match explanation.subject {
            Subject::Key => false,
            Subject::Group => true,
        },
        ..ExplainKeyResponse::default()
    };
    if let Some(estimate) = explanation.estimate {
        wire.set_estimate_basis(basis(estimate.basis));
    }
    set_reason(&mut wire, &explanation.waiting);
    wire
}

fn level(level: &LevelExplanation) -> ExplainLevel {
    let LevelExplanation { recent, .. } = *level;
    ExplainLevel {
        path: key_text(&level.path),
        weight: level.weight,
        holds_up: level.holds_up,
        paused: level.delivery == Delivering::Paused,
        cap: level.cap,
        leased: level.leased,
        share: part(recent, recent.served),
        ideal_share: part(recent, recent.ideal),
        debt: level.debt,
        bound: level.bound,
    }
}

/// Returns a cost as a part of all recent deliveries, if there were any.
fn part(recent: Recent, cost: u64) -> Option<f64> {
    (recent.total > 0).then(|| cost as f64 / recent.total as f64)
}

fn set_reason(wire: &mut ExplainKeyResponse, waiting: &Waiting) {
    let mut until = |moment: Timestamp| wire.until_ms = Some(moment.as_millis());
    let reason = match waiting {
        Waiting::Empty => WaitReason::Empty,
        Waiting::Storing => WaitReason::Storing,
        Waiting::QueuePaused => WaitReason::QueuePaused,
        Waiting::KeyPaused { .. } => WaitReason::KeyPaused,
        Waiting::AtCap { cap, .. } => {
            wire.cap = *cap;
            WaitReason::AtCap
        }
        Waiting::Judging => WaitReason::Judging,
        Waiting::TooManyDelayed => WaitReason::TooManyDelayed,
        Waiting::BackingOff { until: moment } => {
            until(*moment);
            WaitReason::BackingOff
        }
        Waiting::Throttled { key, until: moment } => {
            moment.map(until);
            wire.throttle_key = key.as_str().to_owned();
            WaitReason::Throttled
        }
        Waiting::ReadFailed { until: moment } => {
            until(*moment);
            WaitReason::ReadFailed
        }
        Waiting::MembersWait => WaitReason::MembersWait,
        Waiting::Reading => WaitReason::Reading,
        Waiting::NoConsumers => WaitReason::NoConsumers,
        Waiting::NoCredit => WaitReason::NoCredit,
        Waiting::Runnable { position } => {
            wire.position = Some(position.deliveries());
            wire.position_exact = matches!(position, Position::Exactly(_));
            WaitReason::Runnable
        }
    };
    wire.set_reason(reason);
}

fn basis(basis: Basis) -> EstimateBasis {
    match basis {
        Basis::QueuePace => EstimateBasis::QueuePace,
        Basis::KeyPace => EstimateBasis::KeyPace,
        Basis::Due => EstimateBasis::Due,
        Basis::Store => EstimateBasis::Store,
    }
}
