//! Settings of a tenant: its share, the true cost of its work, whether it may run.

use std::hash::Hash;
use std::sync::Arc;

use drr::{Cost, Weight};

use super::Scheduler;
use crate::nesting::Newcomer;
use crate::quanta::Found;
use crate::shard::CHUNK;

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Gives a tenant a quantum of its own: its share, relative to the base quantum.
    ///
    /// Takes effect at the tenant's next turn, also for its queued tasks. Shares can be from a sixtieth of the
    /// base to a thousand times it. They are exact for all multiples of the base, for every quantum beside a
    /// base up to 65, and for halves, thirds, quarters, fifths, sixths, tenths of a larger base; others are
    /// rounded to the nearest sixtieth of the base. Zero counts as the smallest share there is.
    ///
    /// The first quantum that is not a multiple of the base makes the scale finer for all tenants, which
    /// takes time in proportion to their number, once.
    #[expect(clippy::needless_pass_by_value, reason = "the same as for `enqueue`")]
    pub fn set_tenant_quantum(&self, tenant: K, quantum: u64) {
        self.quanta.set(tenant.clone(), quantum);
        self.reweigh(&tenant);
    }

    /// Removes the quantum that [`set_tenant_quantum`](Self::set_tenant_quantum) or the configuration has set.
    ///
    /// The tenant then has the quantum of the provider, or else the base quantum. Use it when a tenant returns
    /// to the default plan:
    ///
    /// ```
    /// use firq_core::{Scheduler, SchedulerConfig, TenantKey};
    ///
    /// let scheduler: Scheduler<String> = Scheduler::new(SchedulerConfig::fair())?;
    /// scheduler.set_tenant_quantum(TenantKey::from(7), 30); // the tenant books a larger plan
    /// scheduler.clear_tenant_quantum(TenantKey::from(7)); // and cancels it
    /// # Ok::<(), firq_core::ConfigError>(())
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "the same as for `enqueue`")]
    pub fn clear_tenant_quantum(&self, tenant: K) {
        self.quanta.clear(&tenant);
        self.reweigh(&tenant);
    }

    /// Sets the function that returns a tenant's quantum, for example by its plan; `None` is the base quantum.
    ///
    /// A quantum that was set for the tenant itself goes first. The provider is asked about every tenant
    /// that is known now, and about others when they first have work; call this again when its answers
    /// change. It is asked without any lock being held.
    pub fn set_quantum_provider(
        &self,
        provider: impl Fn(&K) -> Option<u64> + Send + Sync + 'static,
    ) {
        self.quanta.set_provider(Arc::new(provider));
        self.reweigh_all();
    }

    /// Returns the weight of a tenant. The caller holds no lock.
    pub(super) fn weight(&self, tenant: &K) -> Weight {
        loop {
            match self.quanta.weight(tenant) {
                Found::Weight(weight) => return weight,
                Found::Refined => self.reweigh_all(),
            }
        }
    }

    /// Lets every lane have the weight that its tenant's quantum says.
    fn reweigh_all(&self) {
        for shard in 0..self.hints.len() as u32 {
            let mut from = Some(0);
            while let Some(start) = from {
                let (tenants, next) = self.topology.with_shard(shard, |shard| {
                    let (lanes, next) = shard.lanes_from(start, CHUNK);
                    let tenants = lanes
                        .into_iter()
                        .filter_map(|lane| shard.lanes[lane].tenant.clone());
                    (tenants.collect::<Vec<K>>(), next)
                });
                tenants.iter().for_each(|tenant| self.reweigh(tenant));
                from = next;
            }
        }
        self.reweigh_groups();
    }

    /// Lets every group have the weight that the quantum of its name says.
    fn reweigh_groups(&self) {
        let mut from = self.levels.is_some().then_some(0);
        while let Some(start) = from {
            let (groups, next) = self.topology.with_ring(|ring| match ring.tree() {
                Some((tree, _)) => tree.groups_from(start, CHUNK),
                None => (Vec::new(), None),
            });
            groups.iter().for_each(|(group, ..)| self.reweigh(group));
            from = next;
        }
    }

    /// Reports the true cost of a finished task, where that is known only afterwards.
    ///
    /// The tenant was charged `charged`, the task's declared cost. It pays the difference, or gets it back,
    /// in its next turns.
    ///
    /// ```
    /// use firq_core::{Scheduler, SchedulerConfig, Task, TenantKey};
    ///
    /// let scheduler = Scheduler::new(SchedulerConfig::fair())?;
    /// let guess = Task::new("scan a table").with_cost(10);
    /// assert!(scheduler.submit(TenantKey::from(7), guess).is_ok());
    /// let (tenant, task) = scheduler.try_dequeue().into_task().unwrap();
    /// let rows = 340; // known when the work is done
    /// scheduler.settle(&tenant, task.cost, rows);
    /// # Ok::<(), firq_core::ConfigError>(())
    /// ```
    pub fn settle(&self, tenant: &K, charged: u64, actual: u64) {
        let (hash, number) = self.locate(tenant);
        let (charged, actual) = (Cost::new(charged), Cost::new(actual));
        let settle = |newcomer: Option<&Newcomer<'_, K>>| {
            self.topology.with_both(number, |ring, shard| {
                let lane = shard.find(hash, tenant);
                let introduced = || Some(shard.introduce(ring, hash, newcomer?));
                let lane = lane.or_else(introduced);
                if let Some(lane) = lane {
                    let key = shard.enter(ring, lane);
                    ring.settle(key, charged, actual);
                }
                lane.is_some()
            })
        };
        // A forgotten tenant owes nothing, and credit is not saved up.
        if !settle(None) && actual > charged {
            settle(Some(&self.newcomer(tenant)));
        }
    }

    /// Pauses a tenant: none of its tasks is handed out until it is resumed. Its tasks still expire.
    pub fn pause_tenant(&self, tenant: &K) {
        let (hash, number) = self.locate(tenant);
        let newcomer = self.newcomer(tenant);
        let mut effects = self.effects();
        self.topology.with_both(number, |ring, shard| {
            if self.capacity.is_closed() {
                return; // queued tasks are to be done
            }
            let lane = shard.find(hash, tenant);
            let lane = lane.unwrap_or_else(|| shard.introduce(ring, hash, &newcomer));
            shard.set_paused(ring, lane, true, &mut effects);
        });
        self.apply(effects);
    }

    /// Lets a tenant run again.
    pub fn resume_tenant(&self, tenant: &K) {
        let (hash, number) = self.locate(tenant);
        let mut effects = self.effects();
        self.topology.with_both(number, |ring, shard| {
            if let Some(lane) = shard.find(hash, tenant) {
                shard.set_paused(ring, lane, false, &mut effects);
            }
        });
        self.apply(effects);
    }

    /// Forgets a tenant that has no work and owes nothing, now rather than later. Returns whether the
    /// scheduler has no memory of the tenant any more.
    ///
    /// Idle tenants are forgotten by themselves. This is for a tenant that is deleted, so that its key is not
    /// kept until then:
    ///
    /// ```
    /// use firq_core::{Scheduler, SchedulerConfig, Task, TenantKey};
    ///
    /// let scheduler = Scheduler::new(SchedulerConfig::fair())?;
    /// let tenant = TenantKey::from(7);
    /// assert!(scheduler.submit(tenant, Task::new("work")).is_ok());
    /// assert!(!scheduler.forget_tenant(&tenant), "it has work");
    /// # Ok::<(), firq_core::ConfigError>(())
    /// ```
    pub fn forget_tenant(&self, tenant: &K) -> bool {
        let (hash, number) = self.locate(tenant);
        let mut effects = self.effects();
        let forgotten = self.topology.with_both(number, |ring, shard| {
            let Some(lane) = shard.find(hash, tenant) else {
                return true;
            };
            let may = shard.lanes[lane].is_idle()
                && shard.owes_nothing(ring, lane)
                && !shard.is_awaited(ring, lane);
            if may {
                shard.evict(ring, lane, &mut effects);
            }
            may
        });
        self.apply(effects);
        forgotten
    }

    /// Returns how many tenants are kept in memory.
    #[must_use]
    pub fn tenants(&self) -> usize {
        (0..self.hints.len() as u32)
            .map(|shard| self.topology.with_shard(shard, |shard| shard.lanes.len()))
            .sum()
    }

    /// Returns how many tasks a tenant has queued; for the name of a [group](crate::SchedulerConfig::with_groups), how many
    /// all its members have.
    #[must_use]
    pub fn tenant_len(&self, tenant: &K) -> usize {
        if self.levels.is_some()
            && let Some(len) = self
                .topology
                .with_ring(|ring| ring.tree()?.0.group_len(tenant))
        {
            return len as usize;
        }
        let (hash, number) = self.locate(tenant);
        self.topology.with_shard(number, |shard| {
            let lane = shard.find(hash, tenant);
            lane.map_or(0, |lane| shard.lanes[lane].len as usize)
        })
    }

    /// Lets a tenant's lane, if it has one, have the weight that its quantum says.
    fn reweigh(&self, tenant: &K) {
        let (hash, number) = self.locate(tenant);
        loop {
            let version = self.quanta.version();
            let weight = self.weight(tenant);
            let is_current = self.topology.with_both(number, |ring, shard| {
                let is_current = self.quanta.version() == version;
                if let Some((tree, engine)) = ring.tree_mut().filter(|_| is_current) {
                    tree.set_weight(engine, tenant, weight, self.quanta.neutral());
                }
                if let Some(lane) = shard.find(hash, tenant).filter(|_| is_current) {
                    shard.set_weight(ring, lane, weight);
                }
                is_current
            });
            if is_current {
                return;
            }
        }
    }
}
