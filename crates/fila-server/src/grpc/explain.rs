//! Conversion of `ExplainKey` for the wire.

use fila_core::{Basis, Explanation, Position, Waiting};
use fila_proto::v1::{EstimateBasis, ExplainKeyResponse, WaitReason};
use fila_store::Timestamp;

use super::settings::millis;

/// Returns an explanation for the wire.
pub(super) fn to_wire(explanation: &Explanation) -> ExplainKeyResponse {
    let recent = explanation.recent;
    let part = |cost: u64| (recent.total > 0).then(|| cost as f64 / recent.total as f64);
    let mut wire = ExplainKeyResponse {
        now_ms: explanation.now.as_millis(),
        weight: explanation.weight,
        ready: explanation.ready,
        delayed: explanation.delayed,
        leased: explanation.leased,
        recent_ms: millis(recent.over),
        share: part(recent.served),
        ideal_share: part(recent.ideal),
        debt: explanation.debt,
        bound: explanation.bound,
        estimate_ms: explanation.estimate.map(|estimate| estimate.at.as_millis()),
        ..ExplainKeyResponse::default()
    };
    if let Some(estimate) = explanation.estimate {
        wire.set_estimate_basis(basis(estimate.basis));
    }
    set_reason(&mut wire, &explanation.waiting);
    wire
}

fn set_reason(wire: &mut ExplainKeyResponse, waiting: &Waiting) {
    let mut until = |moment: Timestamp| wire.until_ms = Some(moment.as_millis());
    let reason = match waiting {
        Waiting::Empty => WaitReason::Empty,
        Waiting::Storing => WaitReason::Storing,
        Waiting::QueuePaused => WaitReason::QueuePaused,
        Waiting::KeyPaused => WaitReason::KeyPaused,
        Waiting::AtCap { cap } => {
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
