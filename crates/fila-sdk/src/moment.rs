//! Moments to come, and moments that were.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// As good as never: what is later than this is this.
pub(crate) const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the moment when this time has passed, however long it is.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    now + time.min(FAR)
}

/// Returns the moment so many milliseconds after 1970 began.
pub(crate) fn at(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_too_long() {
        let now = Instant::now();
        assert_eq!(after(now, Duration::MAX), now + FAR);
        assert_eq!(
            after(now, Duration::from_secs(1)),
            now + Duration::from_secs(1)
        );
    }
}
