//! How a scheduler is set up, and the checks that make one that exists valid.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::nesting::{GroupOf, Levels};
use crate::outcome::Dropped;
use crate::task::TenantKey;

/// The most shards a scheduler can have.
const SHARDS_MAX: usize = 1 << 12;

/// The most tasks a scheduler can hold: they are numbered with 32 bits.
const TASKS_MAX: usize = u32::MAX as usize - 1;

/// The policy for tasks when there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackpressurePolicy {
    /// It is rejected.
    ///
    /// **Not fair when the scheduler is full**: ten tenants that fill `max_global` shut out an eleventh that has nothing
    /// queued. Use it if `max_per_tenant` times the number of tenants is below `max_global`, or take
    /// [`ShedFair`](Self::ShedFair).
    #[default]
    Reject,
    /// The oldest task of its own tenant gives way to it: of the least urgent priority that the tenant has
    /// queued, and never one that is more urgent than the new task.
    DropOldestPerTenant,
    /// The newest task of its own tenant gives way to it, chosen among the least urgent as above.
    DropNewestPerTenant,
    /// The caller waits for room, and is rejected if there is none in time.
    Timeout {
        /// How long the caller waits.
        wait: Duration,
    },
    /// The fair one, and that of [`SchedulerConfig::fair`]. When the scheduler is full, a tenant below its share of the
    /// buffer is still admitted, at the expense of the newest task of the tenant that is furthest above its share.
    /// Otherwise it is rejected.
    ///
    /// Shares of the buffer follow the tenants' quanta. How far tenants are above their share is kept to
    /// within an eighth.
    ShedFair,
}

/// Receives the tasks that leave the queue without being delivered.
pub type DropObserver<T, K = TenantKey> = Arc<dyn Fn(Dropped<T, K>) + Send + Sync>;

/// How a scheduler is set up.
///
/// [`fair`](Self::fair) and [`default`](Self::default) differ in one point: what happens when the scheduler is full. By
/// default a task is then rejected, whatever its tenant, so **greedy tenants can fill the scheduler against one that has
/// nothing queued**. With `fair` the greediest tenant gives way.
///
/// ```
/// use firq_core::{Scheduler, SchedulerConfig, TenantKey};
///
/// let scheduler: Scheduler<String> = Scheduler::new(SchedulerConfig {
///     max_global: 10_000,
///     ..SchedulerConfig::fair()
/// }
/// .with_tenant_quantum(TenantKey::from(7), 30))?;
/// # Ok::<(), firq_core::ConfigError>(())
/// ```
pub struct SchedulerConfig<T, K = TenantKey> {
    /// Into how many parts the queues are divided, so that threads that enqueue for different tenants do
    /// not wait for each other. Invisible otherwise; from 1 to 4,096.
    pub shards: usize,
    /// The most tasks that are queued at any time.
    pub max_global: usize,
    /// The most tasks that one tenant has queued at any time.
    pub max_per_tenant: usize,
    /// The most tasks that the members of a [group](Self::with_groups) have queued together; `None` for as many as
    /// `max_per_tenant`, so that a tenant gains no room by splitting into many.
    pub max_per_group: Option<usize>,
    /// The cost that a tenant may use in a turn, and the measure of its share: a tenant of twice this quantum
    /// gets twice as much.
    pub quantum: u64,
    /// Quanta of tenants that get more or less than the others: their shares, relative to `quantum`.
    pub tenant_quanta: HashMap<K, u64>,
    /// The policy for tasks when there is no room. The default is [`Reject`](BackpressurePolicy::Reject), which is not
    /// fair when the scheduler is full; [`SchedulerConfig::fair`] has [`ShedFair`](BackpressurePolicy::ShedFair).
    pub backpressure: BackpressurePolicy,
    /// Tenants for which something else happens then.
    pub tenant_backpressure: HashMap<K, BackpressurePolicy>,
    /// How many of the busiest tenants [`stats`](crate::Scheduler::stats) names; 0 spares it the search.
    pub top_tenants_capacity: usize,
    /// How tenants nest, if they do; see [`with_groups`](Self::with_groups).
    pub group_of: Option<GroupOf<K>>,
    /// About how many tenants without work and without debt are kept in memory, because they may be back.
    pub idle_tenants_max: usize,
    /// Receives the tasks that expire or are evicted. It is called by whichever thread finds them, holding
    /// no lock, and should be quick. Without it they are dropped, and counted.
    pub on_drop: Option<DropObserver<T, K>>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

impl<T, K> Default for SchedulerConfig<T, K> {
    fn default() -> Self {
        Self {
            shards: 4,
            max_global: 1 << 16,
            max_per_tenant: 1 << 12,
            max_per_group: None,
            quantum: 1,
            tenant_quanta: HashMap::new(),
            backpressure: BackpressurePolicy::Reject,
            tenant_backpressure: HashMap::new(),
            top_tenants_capacity: 16,
            group_of: None,
            idle_tenants_max: 1 << 12,
            on_drop: None,
            clock: Arc::new(SystemClock),
        }
    }
}

impl<T, K: Hash + Eq> SchedulerConfig<T, K> {
    /// Gives a tenant a share of its own.
    #[must_use]
    pub fn with_tenant_quantum(mut self, tenant: K, quantum: u64) -> Self {
        self.tenant_quanta.insert(tenant, quantum);
        self
    }

    /// Gives a tenant a backpressure policy of its own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use firq_core::{BackpressurePolicy, Scheduler, SchedulerConfig, TenantKey};
    ///
    /// let (web, batch) = (TenantKey::from(1), TenantKey::from(2));
    /// let wait = BackpressurePolicy::Timeout { wait: Duration::from_secs(30) };
    /// // Requests from the web are rejected when there is no room; the nightly batch waits.
    /// let config = SchedulerConfig::default().with_tenant_backpressure(batch, wait);
    /// let scheduler: Scheduler<String> = Scheduler::new(config)?;
    /// assert_eq!(scheduler.backpressure_for(&web), BackpressurePolicy::Reject);
    /// assert_eq!(scheduler.backpressure_for(&batch), wait);
    /// # Ok::<(), firq_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn with_tenant_backpressure(mut self, tenant: K, policy: BackpressurePolicy) -> Self {
        self.tenant_backpressure.insert(tenant, policy);
        self
    }

    /// Sets the observer of tasks that expire, are evicted, or are discarded by closing.
    #[must_use]
    pub fn with_on_drop(
        mut self,
        observer: impl Fn(Dropped<T, K>) + Send + Sync + 'static,
    ) -> Self {
        self.on_drop = Some(Arc::new(observer));
        self
    }

    /// Lets tenants nest: `group_of` returns the group that a tenant or a group is in, or `None` if it is in none.
    ///
    /// The members of a group get together what one tenant gets, and share it among themselves. A tenant that may
    /// choose its keys then gains nothing by choosing many:
    ///
    /// ```
    /// use firq_core::{Scheduler, SchedulerConfig, Task, TenantPath};
    ///
    /// let config = SchedulerConfig::fair().with_groups(TenantPath::parent);
    /// let scheduler = Scheduler::new(config)?;
    /// for user in 0..100 {
    ///     let path = TenantPath::parse(&format!("acme/user-{user}"))?;
    ///     assert!(scheduler.submit(path, Task::new("of a hundred users")).is_ok());
    /// }
    /// for number in 0..10 {
    ///     assert!(scheduler.submit(TenantPath::parse("globex")?, Task::new("of one")).is_ok());
    /// }
    /// let mut first = Vec::new();
    /// scheduler.dequeue_batch(20, &mut first);
    /// let globex = first.iter().filter(|(tenant, _)| tenant.as_str() == "globex");
    /// assert_eq!(globex.count(), 10, "every other task");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Use [`TenantPath::parent`](crate::TenantPath::parent) for paths such as `acme/alice`,
    /// [`group_by_slash`](crate::group_by_slash) for strings of that form, [`group_by_first`](crate::group_by_first) for pairs
    /// such as `("acme", "/search")`, and a closure for a type of your own.
    ///
    /// - **A group is named by a key**, and the settings of that key are the group's:
    ///   [quantum](crate::Scheduler::set_tenant_quantum) and [pause](crate::Scheduler::pause_tenant). A tenant of that name
    ///   may have tasks of its own; it is then one member of the group, with the base quantum.
    /// - **Costs** count on every level, also those that are [settled](crate::Scheduler::settle) later.
    /// - **Room**: the members of a group have at most `max_per_group` tasks queued, which is `max_per_tenant` unless it
    ///   is set. Under [`ShedFair`](BackpressurePolicy::ShedFair) the group furthest above its share of the buffer gives
    ///   way, and in it the member furthest above its share.
    /// - **Levels**: three groups above a tenant at most. Of more, the outermost count.
    /// - **Speed**: each level costs one more choice per task, and enqueueing takes the lock of the order of service every
    ///   time. Without groups nothing changes.
    ///
    /// `group_of` must always return the same answer for the same key. It is asked without any lock being held. A key from
    /// which 32 steps do not lead to the outermost group is in no group: bound the depth of names that clients choose, as
    /// the functions above do.
    #[must_use]
    pub fn with_groups(
        mut self,
        group_of: impl Fn(&K) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.group_of = Some(Arc::new(group_of));
        self
    }

    /// Sets where time comes from.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

impl<T, K> SchedulerConfig<T, K> {
    /// Returns the defaults with [`ShedFair`](BackpressurePolicy::ShedFair): no tenant, and no crowd of tenants, can fill
    /// the scheduler against another.
    #[must_use]
    pub fn fair() -> Self {
        Self {
            backpressure: BackpressurePolicy::ShedFair,
            ..Self::default()
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Names the first field that is wrong, and its valid range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let check = |field, value: usize, min: usize, max: usize| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::OutOfRange {
                    field,
                    value: value as u64,
                    min: min as u64,
                    max: max as u64,
                })
            }
        };
        check("shards", self.shards, 1, SHARDS_MAX)?;
        check("max_global", self.max_global, 1, TASKS_MAX)?;
        check("max_per_tenant", self.max_per_tenant, 1, usize::MAX)?;
        check(
            "max_per_group",
            self.max_per_group.unwrap_or(1),
            1,
            usize::MAX,
        )?;
        check(
            "top_tenants_capacity",
            self.top_tenants_capacity,
            0,
            1 << 16,
        )?;
        let smallest = self.tenant_quanta.values().copied().min();
        for (field, quantum) in [
            ("quantum", self.quantum),
            ("tenant_quanta", smallest.unwrap_or(1)),
        ] {
            if quantum == 0 {
                return Err(ConfigError::OutOfRange {
                    field,
                    value: 0,
                    min: 1,
                    max: u64::MAX,
                });
            }
        }
        Ok(())
    }

    /// Takes out how tenants nest.
    pub(crate) fn take_levels(&mut self) -> Option<Levels<K>> {
        let max = self.max_per_group.unwrap_or(self.max_per_tenant);
        let group_of = self.group_of.take()?;
        Some(Levels::new(
            group_of,
            u32::try_from(max).unwrap_or(u32::MAX),
        ))
    }

    /// Returns whether any tenant sheds the tasks of others.
    pub(crate) fn sheds(&self) -> bool {
        self.backpressure == BackpressurePolicy::ShedFair
            || self
                .tenant_backpressure
                .values()
                .any(|&policy| policy == BackpressurePolicy::ShedFair)
    }
}

impl<T, K: fmt::Debug> fmt::Debug for SchedulerConfig<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedulerConfig")
            .field("shards", &self.shards)
            .field("max_global", &self.max_global)
            .field("max_per_tenant", &self.max_per_tenant)
            .field("max_per_group", &self.max_per_group)
            .field("group_of", &self.group_of.is_some())
            .field("quantum", &self.quantum)
            .field("tenant_quanta", &self.tenant_quanta)
            .field("backpressure", &self.backpressure)
            .field("tenant_backpressure", &self.tenant_backpressure)
            .field("top_tenants_capacity", &self.top_tenants_capacity)
            .field("idle_tenants_max", &self.idle_tenants_max)
            .field("on_drop", &self.on_drop.is_some())
            .field("clock", &self.clock)
            .finish()
    }
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is outside its range.
    #[error("`{field}` is {value}; it must be from {min} to {max}")]
    OutOfRange {
        /// The field of [`SchedulerConfig`].
        field: &'static str,
        /// Its value.
        value: u64,
        /// The smallest value that is accepted.
        min: u64,
        /// The largest value that is accepted.
        max: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut SchedulerConfig<()>)) -> String {
        let mut config = SchedulerConfig::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_default_is_valid() {
        assert_eq!(SchedulerConfig::<()>::default().validate(), Ok(()));
    }

    #[test]
    fn an_error_names_the_field_and_its_range() {
        assert_eq!(
            refused(|config| config.shards = 0),
            "`shards` is 0; it must be from 1 to 4096"
        );
        assert!(refused(|config| config.max_global = 0).contains("`max_global` is 0"));
        assert!(refused(|config| config.max_global = usize::MAX).contains("`max_global`"));
        assert!(refused(|config| config.max_per_tenant = 0).contains("`max_per_tenant`"));
        assert!(refused(|config| config.max_per_group = Some(0)).contains("`max_per_group`"));
        assert!(refused(|config| config.quantum = 0).contains("`quantum`"));
        assert!(refused(|config| config.top_tenants_capacity = 1 << 20).contains("`top_tenants"));
        let no_share = |config: &mut SchedulerConfig<()>| {
            config.tenant_quanta.insert(TenantKey::from(1), 0);
        };
        assert!(refused(no_share).contains("`tenant_quanta`"));
    }
}
