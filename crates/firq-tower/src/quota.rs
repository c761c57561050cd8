//! How many permits one tenant may hold.
//!
//! A tenant that holds as many as it may is paused: it keeps its place in the ring, and is passed over until one
//! of its requests has ended. A task that takes a request holds the lock of the counts until the tenant is
//! paused, if it has to be, so that no other task takes one too many meanwhile.
//!
//! Lock order: the counts, then the scheduler's locks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use firq_async::{DequeueResult, Scheduler};

#[derive(Debug)]
pub(crate) struct Quota<K> {
    max: usize,
    /// The permits of each tenant that holds any.
    held: Mutex<HashMap<K, usize>>,
}

impl<K: Hash + Eq + Clone> Quota<K> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            held: Mutex::default(),
        }
    }

    /// Takes the next task of a tenant that may have one more.
    pub(crate) fn try_dequeue<T>(&self, scheduler: &Scheduler<T, K>) -> DequeueResult<T, K> {
        let mut held = self.lock();
        let next = scheduler.try_dequeue();
        if let DequeueResult::Task { tenant, .. } = &next {
            let count = held.entry(tenant.clone()).or_default();
            *count += 1;
            if *count == self.max {
                scheduler.pause_tenant(tenant);
            }
        }
        next
    }

    /// Notes that a task of a tenant has ended.
    pub(crate) fn end<T>(&self, scheduler: &Scheduler<T, K>, tenant: &K) {
        let mut held = self.lock();
        let Entry::Occupied(mut count) = held.entry(tenant.clone()) else {
            return;
        };
        *count.get_mut() -= 1;
        // While the scheduler drains, tenants are not paused, and may hold more.
        if *count.get() + 1 == self.max {
            scheduler.resume_tenant(tenant);
        }
        if *count.get() == 0 {
            count.remove();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use firq_async::{SchedulerConfig, Task, TenantKey};

    use super::*;

    fn next(quota: &Quota<TenantKey>, scheduler: &Scheduler<()>) -> Option<u64> {
        let next = quota.try_dequeue(scheduler).into_task();
        next.map(|(tenant, _)| tenant.as_u64())
    }

    #[test]
    fn a_tenant_that_holds_as_many_as_it_may_is_passed_over_until_one_has_ended() {
        let scheduler: Scheduler<()> = Scheduler::new(SchedulerConfig::default()).unwrap();
        for tenant in [1, 1, 1, 1, 2] {
            scheduler
                .submit(TenantKey::from(tenant), Task::new(()))
                .unwrap();
        }
        let quota = Quota::new(2);
        let mut first: Vec<u64> = std::iter::from_fn(|| next(&quota, &scheduler)).collect();
        first.sort_unstable();
        assert_eq!(first, [1, 1, 2]);
        quota.end(&scheduler, &TenantKey::from(2));
        assert_eq!(next(&quota, &scheduler), None);
        for _ in 0..2 {
            quota.end(&scheduler, &TenantKey::from(1));
            assert_eq!(next(&quota, &scheduler), Some(1));
            assert_eq!(next(&quota, &scheduler), None);
        }
        for _ in 0..2 {
            quota.end(&scheduler, &TenantKey::from(1));
        }
        assert!(
            quota.lock().is_empty(),
            "a tenant that holds nothing is forgotten"
        );
    }

    #[test]
    fn a_scheduler_that_drains_hands_everything_out() {
        let scheduler: Scheduler<()> = Scheduler::new(SchedulerConfig::default()).unwrap();
        let quota = Quota::new(1);
        for _ in 0..5 {
            scheduler.submit(TenantKey::from(1), Task::new(())).unwrap();
        }
        assert_eq!(next(&quota, &scheduler), Some(1));
        assert_eq!(next(&quota, &scheduler), None);
        scheduler.close_drain();
        for _ in 0..4 {
            assert_eq!(next(&quota, &scheduler), Some(1));
        }
        for _ in 0..5 {
            quota.end(&scheduler, &TenantKey::from(1));
        }
        assert!(quota.lock().is_empty());
    }
}
