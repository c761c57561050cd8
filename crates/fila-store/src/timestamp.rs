//! A moment on the wall clock. Callers pass the time to the store; it never reads the clock.

use std::time::Duration;

/// Milliseconds since the beginning of 1970, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Returns the moment `millis` milliseconds after the beginning of 1970.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since the beginning of 1970.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the moment `later` than this, or the last possible moment.
    #[must_use]
    pub fn saturating_add(self, later: Duration) -> Self {
        let millis = u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// Returns how long after `earlier` this is; zero if it is before.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}
