//! The scheduler as the laws of fairness see it.

mod nested;

pub(crate) use nested::Nested;

use std::collections::HashMap;

use fairness_laws::{Dispatched, Driver};
use firq_core::{DequeueResult, EnqueueResult, Scheduler, SchedulerConfig, Task, TenantKey};

#[derive(Debug)]
pub(crate) struct Firq {
    scheduler: Scheduler<u64>,
    quantum: u64,
    weights: HashMap<u32, u32>,
    /// How much has been enqueued for each key.
    enqueued: HashMap<u32, u64>,
}

impl Firq {
    pub(crate) fn new(shards: usize, quantum: u64) -> Self {
        let scheduler = Scheduler::new(SchedulerConfig {
            shards,
            quantum,
            max_global: 1 << 24,
            max_per_tenant: 1 << 24,
            ..SchedulerConfig::default()
        });
        Self {
            scheduler: scheduler.expect("the configuration is valid"),
            quantum,
            weights: HashMap::new(),
            enqueued: HashMap::new(),
        }
    }
}

fn tenant(key: u32) -> TenantKey {
    TenantKey::from(u64::from(key))
}

impl Driver for Firq {
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32) {
        if self.weights.get(&key).copied().unwrap_or(1) != weight {
            self.set_weight(key, weight);
        }
        let sequence = self.enqueued.entry(key).or_default();
        let task = Task::new(*sequence).with_cost(cost);
        *sequence += 1;
        assert_eq!(
            self.scheduler.enqueue(tenant(key), task),
            EnqueueResult::Enqueued
        );
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        match self.scheduler.try_dequeue() {
            DequeueResult::Task { tenant, task } => Some(Dispatched {
                key: u32::try_from(tenant.as_u64()).expect("keys are small numbers"),
                sequence: task.payload,
                cost: task.cost,
                ticket: 0,
            }),
            DequeueResult::Empty => None,
            DequeueResult::Closed => panic!("the scheduler is open"),
        }
    }

    fn finish(&mut self, work: Dispatched, actual: u64) {
        self.scheduler.settle(&tenant(work.key), work.cost, actual);
    }

    fn park(&mut self, key: u32) {
        self.scheduler.pause_tenant(&tenant(key));
    }

    fn unpark(&mut self, key: u32) {
        self.scheduler.resume_tenant(&tenant(key));
    }

    fn set_weight(&mut self, key: u32, weight: u32) {
        self.weights.insert(key, weight);
        let quantum = self.quantum.saturating_mul(u64::from(weight));
        self.scheduler.set_tenant_quantum(tenant(key), quantum);
    }

    fn evict(&mut self, key: u32) {
        self.scheduler.forget_tenant(&tenant(key));
    }
}
