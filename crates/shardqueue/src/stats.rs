//! The counters and gauges of an executor.

use crate::shard::Snapshot;

/// Counters and gauges of an executor, or of one of its shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Jobs accepted.
    pub accepted: u64,
    /// Jobs that ended because an attempt succeeded.
    pub ran: u64,
    /// Jobs that ended because their last attempt failed.
    pub failed: u64,
    /// Jobs that ended because they were cancelled before an attempt.
    pub cancelled: u64,
    /// Jobs that ended without any attempt because the executor stopped.
    pub returned: u64,
    /// Jobs that wait for their first attempt.
    pub queued: usize,
    /// Jobs that run: at most `concurrency` per shard.
    pub running: usize,
    /// Jobs that wait for another attempt.
    pub backing_off: usize,
    /// Attempts that were not a job's first.
    pub retried: u64,
    /// Submissions refused because there was no room, at once or in time.
    pub refused_full: u64,
    /// Keys in memory, with and without jobs.
    pub keys: usize,
    /// Groups in memory; one that has keys in several shards counts once in each. See
    /// [`key_separator`](crate::Config::key_separator).
    pub groups: usize,
    /// How often a sleeping worker was woken.
    pub wakeups: u64,
}

impl Stats {
    /// Returns whether every job that was accepted is accounted for, exactly once:
    /// `accepted = ran + failed + cancelled + returned + queued + running + backing_off`.
    #[must_use]
    pub const fn is_balanced(&self) -> bool {
        let ended = self.ran + self.failed + self.cancelled + self.returned;
        let alive = self.queued + self.running + self.backing_off;
        self.accepted == ended + alive as u64
    }

    pub(crate) const fn of(snapshot: &Snapshot) -> Self {
        let (queued, running, backing_off) = snapshot.gauges;
        Self {
            accepted: snapshot.counters.accepted,
            ran: snapshot.counters.ran,
            failed: snapshot.counters.failed,
            cancelled: snapshot.counters.cancelled,
            returned: snapshot.counters.returned,
            queued,
            running,
            backing_off,
            retried: snapshot.counters.retried,
            refused_full: snapshot.counters.refused_full,
            keys: snapshot.keys,
            groups: snapshot.groups,
            wakeups: snapshot.wakeups,
        }
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            accepted: self.accepted + other.accepted,
            ran: self.ran + other.ran,
            failed: self.failed + other.failed,
            cancelled: self.cancelled + other.cancelled,
            returned: self.returned + other.returned,
            queued: self.queued + other.queued,
            running: self.running + other.running,
            backing_off: self.backing_off + other.backing_off,
            retried: self.retried + other.retried,
            refused_full: self.refused_full + other.refused_full,
            keys: self.keys + other.keys,
            groups: self.groups + other.groups,
            wakeups: self.wakeups + other.wakeups,
        }
    }
}
