//! Collecting statistics.

use std::hash::Hash;

use super::Scheduler;
use crate::shard::CHUNK;
use crate::stats::{SchedulerStats, TopTenant};
use crate::sync::Ordering;

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Returns what the scheduler has done so far, and how it is.
    ///
    /// Drops expired tasks first, so that they are not counted as queued. Takes time in proportion to the
    /// number of tenants if there are [top tenants](crate::SchedulerConfig::top_tenants_capacity) to find,
    /// but holds no lock for longer than it takes to look at 64 of them.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats<K> {
        let now = self.now();
        let mut stats = SchedulerStats::new();
        for shard in 0..self.hints.len() as u32 {
            self.expire_all(shard, now);
            self.topology.with_shard(shard, |shard| {
                stats.add_shard(&shard.counters, &shard.waits, shard.lanes.len());
            });
            self.find_top_tenants(shard, &mut stats);
        }
        self.find_top_groups(&mut stats);
        let [tenant_full, global_full, timeout] = &self.rejections;
        stats.rejected_tenant_full = tenant_full.load(Ordering::Relaxed);
        stats.rejected_global_full = global_full.load(Ordering::Relaxed);
        stats.rejected_timeout = timeout.load(Ordering::Relaxed);
        stats.queue_len_estimate = self.len();
        stats.max_global = self.capacity.max() as usize;
        stats.consumers_waiting = self.consumers.waiting();
        stats.wakeups = self.consumers.calls();
        stats.finish();
        stats
    }

    fn find_top_tenants(&self, shard: u32, stats: &mut SchedulerStats<K>) {
        let max = self.top_tenants_capacity;
        let mut from = (max > 0).then_some(0);
        while let Some(start) = from {
            from = self.topology.with_shard(shard, |shard| {
                let (lanes, next) = shard.lanes_from(start, CHUNK);
                for lane in lanes {
                    let owner = &shard.lanes[lane];
                    let least = stats.top_tenants.get(max - 1);
                    if least.is_some_and(|least| least.enqueued >= u64::from(owner.accepted)) {
                        continue;
                    }
                    if let Some(tenant) = owner.tenant.clone() {
                        let candidate = TopTenant {
                            tenant,
                            enqueued: u64::from(owner.accepted),
                            queue_len: owner.len as usize,
                        };
                        stats.offer_top(candidate, max);
                    }
                }
                next
            });
        }
    }

    fn find_top_groups(&self, stats: &mut SchedulerStats<K>) {
        if self.levels.is_none() {
            return;
        }
        stats.groups.count = self.groups();
        let max = self.top_tenants_capacity;
        let mut from = (max > 0).then_some(0);
        while let Some(start) = from {
            let (groups, next) = self.topology.with_ring(|ring| match ring.tree() {
                Some((tree, _)) => tree.groups_from(start, CHUNK),
                None => (Vec::new(), None),
            });
            for (tenant, enqueued, queue_len) in groups {
                let candidate = TopTenant {
                    tenant,
                    enqueued,
                    queue_len: queue_len as usize,
                };
                stats.offer_top_group(candidate, max);
            }
            from = next;
        }
    }
}
