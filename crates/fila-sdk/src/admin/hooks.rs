//! How the hooks of a queue fare.

use std::time::Duration;

use fila_proto::v1;

/// How a hook of a queue fares. Totals count since the server was started, or since there is a script.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookInfo {
    /// `on_enqueue` or `on_failure`.
    pub name: String,
    /// Whether it is asked.
    pub state: HookState,
    /// How many calls have failed since the last one that did not.
    pub failures_in_a_row: u32,
    /// How often it was called.
    pub calls_total: u64,
    /// How many of the calls gave no answer.
    pub failures_total: u64,
    /// Messages that got what stands in for an answer.
    pub fallbacks_total: u64,
    /// How long all calls took, together.
    pub busy_total: Duration,
    /// What the last call that failed has failed of, with the line of the script.
    pub last_error: Option<String>,
    /// While it is not asked: in how long it will be asked again.
    pub asked_again_in: Option<Duration>,
}

/// Whether a hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookState {
    /// It is.
    Closed,
    /// It is not: it has failed too often in a row.
    Open,
    /// It is asked about one message, and what comes of that decides.
    HalfOpen,
    /// It is not: its script, which an earlier server took, does not load.
    Broken,
}

impl From<v1::HookInfo> for HookInfo {
    fn from(wire: v1::HookInfo) -> Self {
        Self {
            state: match wire.state() {
                v1::HookState::Closed => HookState::Closed,
                v1::HookState::Open => HookState::Open,
                v1::HookState::HalfOpen => HookState::HalfOpen,
                v1::HookState::Broken => HookState::Broken,
            },
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
