//! The state of a queue's hooks.

use std::time::Duration;

use fila_proto::v1;

use super::settings::words;

/// The state of a hook of a queue. Totals count from the later of two moments: the server's start, and the script's
/// arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HookInfo {
    /// `on_enqueue` or `on_failure`.
    pub name: String,
    /// Whether the broker calls it.
    pub state: HookState,
    /// How many calls have failed since the last call that succeeded.
    pub failures_in_a_row: u32,
    /// How often the broker has called it.
    pub calls_total: u64,
    /// How many calls failed.
    pub failures_total: u64,
    /// How many messages got the fallback.
    pub fallbacks_total: u64,
    /// How many answers had a number that the broker brought into range.
    pub adjusted_total: u64,
    /// How many answers the broker could not use, or not all of them. They do not count as failed calls.
    pub unusable_total: u64,
    /// The sum of the times of all calls.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "busy_us_total", serialize_with = "crate::json::micros")
    )]
    pub busy_total: Duration,
    /// The error of the last call that failed, with the line of the script, or of the last answer that could not be used.
    pub last_error: Option<String>,
    /// When the broker tries it again, while the broker does not call it.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "asked_again_in_ms",
            serialize_with = "crate::json::some_millis"
        )
    )]
    pub asked_again_in: Option<Duration>,
}

words! {
    /// Whether the broker calls a hook: the state of its circuit breaker.
    HookState {
        /// The broker calls it.
        #[default]
        Closed = "closed",
        /// The broker does not call it, because it has failed too often in a row.
        Open = "open",
        /// The broker calls it for one message, and the result closes or opens it.
        HalfOpen = "half_open",
        /// The broker does not call it, because its script does not load. An earlier server has accepted the script.
        Broken = "broken",
    }
}

impl From<v1::HookInfo> for HookInfo {
    fn from(wire: v1::HookInfo) -> Self {
        Self {
            state: wire.state().into(),
            name: wire.name,
            failures_in_a_row: wire.failures_in_a_row,
            calls_total: wire.calls_total,
            failures_total: wire.failures_total,
            fallbacks_total: wire.fallbacks_total,
            adjusted_total: wire.adjusted_total,
            unusable_total: wire.unusable_total,
            busy_total: Duration::from_micros(wire.busy_us_total),
            last_error: Some(wire.last_error).filter(|error| !error.is_empty()),
            asked_again_in: wire.asked_again_in_ms.map(Duration::from_millis),
        }
    }
}
