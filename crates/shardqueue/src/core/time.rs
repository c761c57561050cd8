//! Time as the core sees it: a number that its caller passes in.

use std::time::Duration;

/// The time since the executor was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Timestamp(Duration);

impl Timestamp {
    pub(crate) const fn since_start(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    pub(crate) const fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }

    /// Returns the time from `earlier` to this, or nothing if it is past.
    #[inline]
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) const fn elapsed(self) -> Duration {
        self.0
    }
}
