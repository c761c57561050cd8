//! Conversions of times.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The longest time that the client calculates with. It stands for all longer times.
pub(crate) const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the moment after this time, limited to [`FAR`].
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    now + time.min(FAR)
}

/// Returns the moment this many milliseconds after the Unix epoch.
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
