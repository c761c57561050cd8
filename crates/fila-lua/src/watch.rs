//! Shows another thread how long a call has been running.
//!
//! A sandbox ends its calls itself. A pool that does not rely on it checks from time to time, and abandons a worker whose
//! call has exceeded its limit many times over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shows any thread how long a [`Sandbox`](crate::Sandbox) has been busy with a call.
#[derive(Clone, Debug)]
pub struct Watch {
    inner: Arc<CallClock>,
}

#[derive(Debug)]
struct CallClock {
    epoch: Instant,
    /// Nanoseconds from the epoch to the start of the present call, plus one; zero if there is none.
    since: AtomicU64,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(CallClock {
                epoch: Instant::now(),
                since: AtomicU64::new(0),
            }),
        }
    }

    /// Returns how long the present call has been running, if there is one.
    pub fn busy_for(&self, now: Instant) -> Option<Duration> {
        // No other memory depends on this value, so `Relaxed` is enough.
        let since = self.inner.since.load(Ordering::Relaxed).checked_sub(1)?;
        let began = self.inner.epoch + Duration::from_nanos(since);
        Some(now.saturating_duration_since(began))
    }

    pub(crate) fn begin(&self, now: Instant) {
        let since = now.saturating_duration_since(self.inner.epoch).as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX - 1);
        self.inner.since.store(since + 1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.inner.since.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_seen_from_its_beginning_to_its_end() {
        let watch = Watch::new();
        let now = Instant::now();
        assert_eq!(watch.busy_for(now), None);
        watch.begin(now);
        let later = now + Duration::from_millis(7);
        assert_eq!(watch.busy_for(later), Some(Duration::from_millis(7)));
        watch.end();
        assert_eq!(watch.busy_for(later), None);
    }
}
