//! How many permits one tenant may hold.
//!
//! A tenant that holds as many as it may is paused: it keeps its place in the ring, and is passed over until one
//! of its requests has ended. A task that takes a request, or lets one pass, holds the lock of the counts until the
//! tenant is paused, if it has to be, so that no other task takes one too many meanwhile.
//!
//! Where tenants nest, the party that holds permits is the outermost group. To count inner groups as well would change
//! nothing: they hold no more than the group around them, and the maximum is the same.
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
    /// The permits of each tenant or outermost group that holds any.
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
            self.begin(&mut held, scheduler, tenant);
        }
        next
    }

    /// Lets a task of a tenant pass that may have one more: a tenant that may not is paused.
    pub(crate) fn pass<T>(&self, scheduler: &Scheduler<T, K>, tenant: &K, cost: u64) -> bool {
        let mut held = self.lock();
        let has_passed = scheduler.pass(tenant, cost);
        if has_passed {
            self.begin(&mut held, scheduler, tenant);
        }
        has_passed
    }

    /// Counts a task of a tenant, and pauses the tenant if it may have no more.
    fn begin<T>(&self, held: &mut HashMap<K, usize>, scheduler: &Scheduler<T, K>, tenant: &K) {
        let holder = holder(scheduler, tenant);
        let count = held.entry(holder.clone()).or_default();
        *count += 1;
        if *count == self.max {
            scheduler.pause_tenant(&holder);
        }
    }

    /// Notes that a task of a tenant has ended.
    pub(crate) fn end<T>(&self, scheduler: &Scheduler<T, K>, tenant: &K) {
        let holder = holder(scheduler, tenant);
        let mut held = self.lock();
        let Entry::Occupied(mut count) = held.entry(holder) else {
            return;
        };
        *count.get_mut() -= 1;
        // While the scheduler drains, tenants are not paused, and may hold more.
        if *count.get() + 1 == self.max {
            scheduler.resume_tenant(count.key());
        }
        if *count.get() == 0 {
            count.remove();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the party whose permits are counted: the outermost group of a tenant, or the tenant itself.
fn holder<T, K: Hash + Eq + Clone>(scheduler: &Scheduler<T, K>, tenant: &K) -> K {
    let outermost = scheduler.groups_of(tenant).pop();
    outermost.unwrap_or_else(|| tenant.clone())
}

#[cfg(test)]
mod tests {
    use firq_async::{SchedulerConfig, Task, TenantKey, TenantPath};

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
    fn the_members_of_a_group_hold_together_what_one_tenant_may() {
        let config = SchedulerConfig::fair().with_groups(TenantPath::parent);
        let scheduler: Scheduler<(), TenantPath> = Scheduler::new(config).unwrap();
        for name in ["acme", "acme/web/alice", "acme/bob", "globex", "globex"] {
            let tenant = TenantPath::parse(name).unwrap();
            scheduler.submit(tenant, Task::new(())).unwrap();
        }
        let quota = Quota::new(2);
        let next = || quota.try_dequeue(&scheduler).into_task();
        let begun: Vec<TenantPath> =
            std::iter::from_fn(|| next().map(|(tenant, _)| tenant)).collect();
        let of_acme = |tenant: &&TenantPath| tenant.as_str().starts_with("acme");
        assert_eq!(begun.iter().filter(of_acme).count(), 2);
        assert_eq!(begun.len(), 4, "globex has its own two: {begun:?}");
        let ended = begun.iter().find(of_acme).unwrap();
        quota.end(&scheduler, ended);
        assert!(next().is_some_and(|(tenant, _)| of_acme(&&tenant)));
        assert!(next().is_none());
        let rest = begun.iter().filter(|tenant| *tenant != ended);
        rest.for_each(|tenant| quota.end(&scheduler, tenant));
        quota.end(&scheduler, &TenantPath::parse("acme").unwrap());
        assert!(quota.lock().is_empty());
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
