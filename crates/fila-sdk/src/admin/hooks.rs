//! The state of a queue's hooks.

use std::time::Duration;

use fila_proto::v1;

use super::settings::words;

/// The state of a hook of a queue. Totals count since the server was started, or since the queue has a script.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HookInfo {
    /// `on_enqueue` or `on_failure`.
    pub name: String,
    /// Whether the broker calls it.
    pub state: HookState,
    /// How many calls have failed since the last one that did not.
    pub failures_in_a_row: u32,
    /// How often it was called.
    pub calls_total: u64,
    /// How many calls gave no answer.
    pub failures_total: u64,
    /// How many messages got the fallback.
    pub fallbacks_total: u64,
    /// How long all calls took, together.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "busy_us_total", serialize_with = "crate::json::micros")
    )]
    pub busy_total: Duration,
    /// The error of the last call that failed, with the line of the script.
    pub last_error: Option<String>,
    /// While the broker does not call it: when the broker tries it again.
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
        /// The broker does not call it: it has failed too often in a row.
        Open = "open",
        /// The broker calls it for one message, and the result closes or opens it.
        HalfOpen = "half_open",
        /// The broker does not call it: its script, which an earlier server accepted, does not load.
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
            busy_total: Duration::from_micros(wire.busy_us_total),
            last_error: Some(wire.last_error).filter(|error| !error.is_empty()),
            asked_again_in: wire.asked_again_in_ms.map(Duration::from_millis),
        }
    }
}
