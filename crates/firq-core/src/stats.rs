//! Counters and gauges of a scheduler.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::shard::Counters;
use crate::task::TenantKey;

/// Counters of a scheduler since its start, and its present state.
///
/// Shards are asked one after the other, so numbers that change meanwhile may be from slightly different
/// moments. Once nothing changes they add up: `enqueued` is `dequeued + expired + evicted + cancelled +
/// discarded + queue_len_estimate`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerStats<K = TenantKey> {
    /// Tasks accepted.
    pub enqueued: u64,
    /// Tasks delivered.
    pub dequeued: u64,
    /// Tasks lost to backpressure: `rejected + evicted`.
    pub dropped: u64,
    /// Tasks that were not delivered because their deadline had passed.
    pub expired: u64,
    /// Tasks that were not accepted, for any reason.
    pub rejected: u64,
    /// Tasks that were not accepted because their tenant had too many queued.
    pub rejected_tenant_full: u64,
    /// Tasks that were not accepted because too many were queued in all.
    pub rejected_global_full: u64,
    /// Tasks that were not accepted because there was no room in time.
    pub rejected_timeout: u64,
    /// Tasks that had been accepted and gave way to others.
    pub evicted: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// Tasks that were queued when the scheduler was closed at once.
    pub discarded: u64,
    /// Tasks that are queued. Exact unless others are at work; never above `max_global`.
    pub queue_len_estimate: usize,
    /// The most tasks that may be queued.
    pub max_global: usize,
    /// Tenants that are kept in memory, with and without work.
    pub tenants: usize,
    /// Consumers that wait for work.
    pub consumers_waiting: u64,
    /// How often a waiting consumer has been woken.
    pub wakeups: u64,
    /// How long the tasks that were delivered had been queued.
    pub queue_time: QueueTime,
    /// The tenants with the most tasks accepted, busiest first; at most `top_tenants_capacity`.
    pub top_tenants: Vec<TopTenant<K>>,
    /// The groups of tenants, where tenants [nest](crate::SchedulerConfig::with_groups).
    pub groups: GroupStats<K>,
    pub(crate) waits: Histogram,
}

/// How long tasks were queued before they were delivered. Each is at most an eighth above the truth.
///
/// With a [coarse](crate::Precision::Coarse) clock these are the times of a sample, at least of every sixteenth task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueTime {
    /// The sum over the tasks that were timed.
    pub sum: Duration,
    /// The number of these tasks.
    pub samples: u64,
    /// Half of the tasks waited no longer.
    pub p50: Duration,
    /// 95 % of the tasks waited no longer.
    pub p95: Duration,
    /// 99 % of the tasks waited no longer.
    pub p99: Duration,
    /// 99.9 % of the tasks waited no longer.
    pub p999: Duration,
    /// None of them waited longer.
    pub max: Duration,
}

/// How full a queue is that a task has to fit into: that of its tenant, or that of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLevel {
    /// Tasks that are queued.
    pub queued: usize,
    /// The most tasks that may be queued; at least 1.
    pub max: usize,
}

impl QueueLevel {
    pub(crate) const fn new(queued: u32, max: u32) -> Self {
        Self {
            queued: queued as usize,
            max: max as usize,
        }
    }

    /// Returns how full the queue is, from 0 to 1.
    #[must_use]
    pub fn fill(&self) -> f64 {
        self.queued as f64 / self.max as f64
    }
}

/// The groups of tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStats<K = TenantKey> {
    /// How many there are, on all levels.
    pub count: usize,
    /// The groups with the most tasks accepted of all their members, busiest first; at most `top_tenants_capacity`.
    pub top: Vec<TopTenant<K>>,
}

/// One of the busiest tenants, or of the busiest groups.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopTenant<K = TenantKey> {
    /// The tenant, or the name of the group.
    pub tenant: K,
    /// Tasks accepted since the tenant was last without work for long; stops at four billion. For a group, since its
    /// first member came.
    pub enqueued: u64,
    /// Tasks it has queued.
    pub queue_len: usize,
}

impl<K> SchedulerStats<K> {
    pub(crate) fn new() -> Self {
        Self {
            enqueued: 0,
            dequeued: 0,
            dropped: 0,
            expired: 0,
            rejected: 0,
            rejected_tenant_full: 0,
            rejected_global_full: 0,
            rejected_timeout: 0,
            evicted: 0,
            cancelled: 0,
            discarded: 0,
            queue_len_estimate: 0,
            max_global: 0,
            tenants: 0,
            consumers_waiting: 0,
            wakeups: 0,
            queue_time: QueueTime::default(),
            top_tenants: Vec::new(),
            groups: GroupStats {
                count: 0,
                top: Vec::new(),
            },
            waits: Histogram::new(),
        }
    }

    /// Returns how full the scheduler is, from 0 to 1.
    #[must_use]
    pub fn saturation(&self) -> f64 {
        self.queue_len_estimate as f64 / self.max_global.max(1) as f64
    }

    /// Returns how long a delivered task was queued on average.
    #[must_use]
    pub fn queue_time_mean(&self) -> Duration {
        self.queue_time
            .sum
            .as_nanos()
            .checked_div(u128::from(self.queue_time.samples))
            .map_or(Duration::ZERO, duration)
    }

    pub(crate) fn add_shard(&mut self, counters: &Counters, waits: &Histogram, tenants: usize) {
        self.enqueued += counters.enqueued;
        self.dequeued += counters.dequeued;
        self.expired += counters.expired;
        self.evicted += counters.evicted;
        self.cancelled += counters.cancelled;
        self.discarded += counters.discarded;
        self.tenants += tenants;
        self.waits.add(waits);
    }

    /// Adds a candidate to the `max` busiest tenants.
    pub(crate) fn offer_top(&mut self, candidate: TopTenant<K>, max: usize) {
        offer(&mut self.top_tenants, candidate, max);
    }

    /// Adds a candidate to the `max` busiest groups.
    pub(crate) fn offer_top_group(&mut self, candidate: TopTenant<K>, max: usize) {
        offer(&mut self.groups.top, candidate, max);
    }

    /// Fills in the derived figures.
    pub(crate) fn finish(&mut self) {
        self.rejected =
            self.rejected_tenant_full + self.rejected_global_full + self.rejected_timeout;
        self.dropped = self.rejected + self.evicted;
        let quantile = |per_mille| Duration::from_nanos(self.waits.quantile(per_mille));
        self.queue_time = QueueTime {
            sum: duration(self.waits.sum()),
            samples: self.waits.samples(),
            p50: quantile(500),
            p95: quantile(950),
            p99: quantile(990),
            p999: quantile(999),
            max: Duration::from_nanos(self.waits.longest()),
        };
    }
}

fn offer<K>(top: &mut Vec<TopTenant<K>>, candidate: TopTenant<K>, max: usize) {
    let at = top.partition_point(|other| other.enqueued >= candidate.enqueued);
    if at < max {
        top.truncate(max - 1);
        top.insert(at, candidate);
    }
}

fn duration(nanos: u128) -> Duration {
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    Duration::new(seconds, (nanos % 1_000_000_000) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_are_kept_in_order() {
        let mut stats = SchedulerStats::new();
        for (tenant, enqueued) in [(1, 5), (2, 9), (3, 1), (4, 7), (5, 9)] {
            let candidate = TopTenant {
                tenant,
                enqueued,
                queue_len: 0,
            };
            stats.offer_top(candidate, 3);
        }
        let top: Vec<i32> = stats.top_tenants.iter().map(|top| top.tenant).collect();
        assert_eq!(top, [2, 5, 4]);
    }

    #[test]
    fn numbers_follow_from_each_other() {
        let mut stats = SchedulerStats::<TenantKey>::new();
        let counters = Counters {
            evicted: 2,
            ..Counters::default()
        };
        let mut waits = Histogram::new();
        waits.record(1_000);
        waits.record(3_000);
        stats.add_shard(&counters, &waits, 1);
        stats.rejected_timeout = 3;
        (stats.queue_len_estimate, stats.max_global) = (1, 4);
        stats.finish();
        assert_eq!((stats.rejected, stats.dropped), (3, 5));
        assert_eq!(stats.queue_time_mean(), Duration::from_micros(2));
        assert_eq!(stats.queue_time.max, Duration::from_micros(3));
        assert!((stats.saturation() - 0.25).abs() < 1e-9);
    }
}
