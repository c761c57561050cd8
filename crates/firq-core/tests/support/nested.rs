//! The scheduler with groups as the laws of trees see it.

use std::collections::HashMap;

use fairness_laws::{Dispatched, Driver, Paths, TreeDriver};
use firq_core::{DequeueResult, EnqueueResult, Scheduler, SchedulerConfig, Task, TenantPath};

#[derive(Debug)]
pub(crate) struct Nested {
    scheduler: Scheduler<u64, TenantPath>,
    quantum: u64,
    paths: Paths,
    /// Paths that were made already.
    tenants: HashMap<u32, TenantPath>,
    weights: HashMap<TenantPath, u32>,
    /// How much has been enqueued for each key.
    enqueued: HashMap<u32, u64>,
}

impl Nested {
    pub(crate) fn new(shards: usize, quantum: u64) -> Self {
        let config = SchedulerConfig {
            shards,
            quantum,
            max_global: 1 << 24,
            max_per_tenant: 1 << 24,
            ..SchedulerConfig::fair()
        };
        let scheduler = Scheduler::new(config.with_groups(TenantPath::parent));
        Self {
            scheduler: scheduler.expect("the configuration is valid"),
            quantum,
            paths: Paths::default(),
            tenants: HashMap::new(),
            weights: HashMap::new(),
            enqueued: HashMap::new(),
        }
    }

    fn tenant(&mut self, key: u32) -> TenantPath {
        let paths = &self.paths;
        let tenant = self.tenants.entry(key);
        tenant.or_insert_with(|| path(&paths.key(key))).clone()
    }

    fn group(&self, group: u32) -> TenantPath {
        path(&self.paths.group(group))
    }

    fn weigh(&mut self, tenant: TenantPath, weight: u32) {
        if self.weights.get(&tenant).copied().unwrap_or(1) != weight {
            self.weights.insert(tenant.clone(), weight);
            let quantum = self.quantum.saturating_mul(u64::from(weight));
            self.scheduler.set_tenant_quantum(tenant, quantum);
        }
    }
}

fn path(text: &str) -> TenantPath {
    TenantPath::parse(text).expect("laws have at most four levels")
}

impl Driver for Nested {
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32) {
        let tenant = self.tenant(key);
        self.weigh(tenant.clone(), weight);
        let sequence = self.enqueued.entry(key).or_default();
        let task = Task::new(*sequence).with_cost(cost);
        *sequence += 1;
        assert_eq!(
            self.scheduler.enqueue(tenant, task),
            EnqueueResult::Enqueued
        );
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        match self.scheduler.try_dequeue() {
            DequeueResult::Task { tenant, task } => Some(Dispatched {
                key: self
                    .paths
                    .number(tenant.as_str())
                    .expect("a law has named it"),
                sequence: task.payload,
                cost: task.cost,
                ticket: 0,
            }),
            DequeueResult::Empty => None,
            DequeueResult::Closed => panic!("the scheduler is open"),
        }
    }

    fn finish(&mut self, work: Dispatched, actual: u64) {
        let tenant = self.tenant(work.key);
        self.scheduler.settle(&tenant, work.cost, actual);
    }

    fn park(&mut self, key: u32) {
        let tenant = self.tenant(key);
        self.scheduler.pause_tenant(&tenant);
    }

    fn unpark(&mut self, key: u32) {
        let tenant = self.tenant(key);
        self.scheduler.resume_tenant(&tenant);
    }

    fn set_weight(&mut self, key: u32, weight: u32) {
        let tenant = self.tenant(key);
        self.weigh(tenant, weight);
    }

    fn evict(&mut self, key: u32) {
        let tenant = self.tenant(key);
        self.scheduler.forget_tenant(&tenant);
    }
}

impl TreeDriver for Nested {
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32) {
        self.paths.found(group, parent);
        let name = self.group(group);
        self.weigh(name, weight);
    }

    fn adopt(&mut self, key: u32, group: u32) {
        self.paths.adopt(key, group);
        self.tenants.remove(&key);
    }

    fn own(&mut self, key: u32, group: u32) {
        self.paths.own(key, group);
        self.tenants.remove(&key);
    }

    fn park_group(&mut self, group: u32) {
        self.scheduler.pause_tenant(&self.group(group));
    }

    fn unpark_group(&mut self, group: u32) {
        self.scheduler.resume_tenant(&self.group(group));
    }

    fn set_group_weight(&mut self, group: u32, weight: u32) {
        let name = self.group(group);
        self.weigh(name, weight);
    }
}
