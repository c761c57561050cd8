//! `WhatIf`: the question from the wire, and the comparison for it.

use std::time::Duration;

use fila_core::{
    Comparison, DEPTH_MAX, Delivering, Drained, Outlook, PaceBasis, PolicyRow, QueueSettings,
    RowKind, Span, WhatIfQuery,
};
use fila_proto::v1::{self, WhatIfRequest, WhatIfResponse};
use tonic::Status;

use super::keys::KeyRules;
use super::message::key_text;
use super::refusal::Refusal;
use super::settings::{apply_keys, millis};
use crate::runtime::Handle;

/// The longest time that shares and rates are of: a day. Arrivals and consumers change in that time.
const OVER_MAX_MS: u64 = 86_400_000;

/// The most rows of an answer, which then has less than a megabyte.
const ROWS_MAX: u32 = 1_000;

/// Plays the coming deliveries of a queue with its settings and with changed ones.
pub(super) async fn answer(
    handle: &Handle,
    request: WhatIfRequest,
) -> Result<WhatIfResponse, Status> {
    let query = query(&request)?;
    let queue = handle.queue(&request.queue)?;
    let changes = KeyRules::of(handle, &queue).changes(request.changes)?;
    let mut then = QueueSettings::clone(&queue.definition);
    apply_keys(changes, handle.limits().key_settings_per_queue, &mut then)?;
    let comparison = handle.what_if(&queue, then, query).await?;
    Ok(WhatIfResponse {
        version: queue.version.get(),
        queue_paused: queue.definition.delivery == Delivering::Paused,
        ..to_wire(&comparison)
    })
}

/// Returns what is asked for, with the defaults.
fn query(request: &WhatIfRequest) -> Result<WhatIfQuery, Refusal> {
    let WhatIfRequest {
        over_ms,
        levels,
        rows_max,
        ..
    } = *request;
    if over_ms > OVER_MAX_MS {
        let text = format!("over_ms {over_ms} is out of range; at most {OVER_MAX_MS}, a day");
        return Err(Refusal::invalid(text));
    }
    if rows_max > ROWS_MAX {
        let text = format!("rows_max {rows_max} is out of range; at most {ROWS_MAX} are allowed");
        return Err(Refusal::invalid(text));
    }
    let mut query = WhatIfQuery::default();
    if over_ms > 0 {
        query.over = Duration::from_millis(over_ms);
    }
    if rows_max > 0 {
        query.rows = rows_max as usize;
    }
    // There are no more levels than that, so asking for more is asking for all.
    let levels = usize::try_from(levels).map_or(DEPTH_MAX, |levels| levels.clamp(1, DEPTH_MAX));
    query.levels = u8::try_from(levels).unwrap_or(u8::MAX);
    Ok(query)
}

fn to_wire(comparison: &Comparison) -> WhatIfResponse {
    let (over_ms, over_deliveries) = span(comparison.over);
    let basis = match comparison.basis {
        PaceBasis::Measured => v1::PaceBasis::Measured,
        PaceBasis::Credit => v1::PaceBasis::Credit,
        PaceBasis::Nothing => v1::PaceBasis::Nothing,
    };
    WhatIfResponse {
        rows: comparison.rows.iter().map(row).collect(),
        left_out: comparison.left_out,
        over_ms,
        over_deliveries,
        pace: comparison.pace,
        basis: basis.into(),
        ..WhatIfResponse::default()
    }
}

fn row(row: &PolicyRow) -> v1::WhatIfRow {
    let kind = match row.kind {
        RowKind::Key => v1::WhatIfKind::Key,
        RowKind::Group => v1::WhatIfKind::Group,
        RowKind::OwnMessages => v1::WhatIfKind::OwnMessages,
    };
    v1::WhatIfRow {
        path: key_text(&row.path),
        kind: kind.into(),
        level: row.level.into(),
        changed: row.is_changed,
        ready: row.ready,
        leased: row.leased,
        held_back: row.held_back,
        arrivals: row.arrivals,
        now: Some(outlook(&row.now)),
        then: Some(outlook(&row.then)),
    }
}

fn outlook(outlook: &Outlook) -> v1::Outlook {
    let drained = outlook.drained.map(|drained| span(drained.after));
    let (drained_ms, drained_deliveries) = drained.unwrap_or_default();
    v1::Outlook {
        weight: outlook.weight,
        paused: outlook.is_paused,
        cap: outlook.cap,
        share: outlook.share,
        deliveries: outlook.deliveries,
        rate: outlook.rate,
        ready: outlook.ready,
        drained_ms,
        drained_deliveries,
        drained_extrapolated: matches!(
            outlook.drained,
            Some(Drained {
                is_extrapolated: true,
                ..
            })
        ),
    }
}

/// Returns a span as milliseconds or as deliveries.
fn span(span: Span) -> (Option<u64>, Option<u64>) {
    match span {
        Span::Time(time) => (Some(millis(time)), None),
        Span::Deliveries(deliveries) => (None, Some(deliveries)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_without_figures_has_the_defaults() {
        let asked = query(&WhatIfRequest::default()).unwrap();
        let default = WhatIfQuery::default();
        assert_eq!(asked.over, default.over);
        assert_eq!((asked.levels, asked.rows), (1, default.rows));
    }

    #[test]
    fn more_levels_than_there_are_is_all_levels() {
        let request = WhatIfRequest {
            levels: u32::MAX,
            ..WhatIfRequest::default()
        };
        assert_eq!(usize::from(query(&request).unwrap().levels), DEPTH_MAX);
    }

    #[test]
    fn times_and_rows_beyond_the_limits_are_refused() {
        let request = |over_ms, rows_max| WhatIfRequest {
            over_ms,
            rows_max,
            ..WhatIfRequest::default()
        };
        assert!(query(&request(OVER_MAX_MS, ROWS_MAX)).is_ok());
        for odd in [
            request(OVER_MAX_MS + 1, 0),
            request(0, ROWS_MAX + 1),
            request(u64::MAX, u32::MAX),
        ] {
            assert!(query(&odd).is_err(), "{odd:?}");
        }
    }
}
