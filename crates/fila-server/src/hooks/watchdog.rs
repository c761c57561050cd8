//! Who looks after workers that do not come back.
//!
//! A sandbox ends its calls itself, by its thread's own time and, a hundred times later, by the clock on the wall. Nobody
//! relies on it: a call that takes longer than even that is answered for, as one that has failed; its worker is given up
//! and another hired in its place. A worker that comes back finds its seat empty, and leaves.

use std::sync::Arc;
use std::time::Duration;

use super::pool::Shared;

/// How many times its limit a call may take by the clock on the wall: twice what a sandbox promises.
const FACTOR: u32 = 200;

/// However short the limit is, a machine may be busy for so long.
const PATIENCE_MIN: Duration = Duration::from_secs(5);

/// Returns how long a call with this limit is waited for.
pub(super) fn patience(timeout: Duration) -> Duration {
    timeout.saturating_mul(FACTOR).max(PATIENCE_MIN)
}

/// Watches until the server stops.
pub(super) fn run(shared: &Arc<Shared>) {
    while shared.watch() {}
}
