//! Time as the core sees it: a number that its caller passes in.

use std::time::Duration;

/// Nanoseconds since the executor was made; 584 years of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Timestamp(u64);

impl Timestamp {
    pub(crate) fn since_start(elapsed: Duration) -> Self {
        Self(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(Self::since_start(delay).0))
    }

    /// Returns the time from `earlier` to this, or nothing if it is past.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) const fn elapsed(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}
