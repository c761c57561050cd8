//! Random verbs on a scheduler and on a model that is too simple to be wrong.
//!
//! The model knows what is queued, in which order for each tenant, and what must be refused. It does not
//! know whose turn it is: that is the laws' business.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use firq_core::{
    BackpressurePolicy, CancelResult, Clock, DequeueResult, EnqueueRejectReason, ManualClock,
    Priority, Rejected, Scheduler, SchedulerConfig, Task, TaskHandle, TenantKey,
};
use proptest::prelude::*;

const MAX_GLOBAL: usize = 12;
const MAX_PER_TENANT: usize = 5;
const MAX_PER_GROUP: usize = 7;

#[derive(Clone, Debug)]
enum Verb {
    Enqueue {
        tenant: u64,
        priority: Priority,
        lifetime: Option<u64>,
    },
    Dequeue,
    Batch(usize),
    Cancel(usize),
    Pass(u64),
    Weigh {
        tenant: u64,
        quantum: u64,
    },
    Forget(u64),
    Pause(u64),
    Resume(u64),
    Settle {
        tenant: u64,
        actual: u64,
    },
    Stats,
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let priority = prop::sample::select(Priority::ALL.to_vec());
    let verb = prop_oneof![
        6 => (0..6_u64, priority, prop::option::of(0..2_000_u64))
            .prop_map(|(tenant, priority, lifetime)| Verb::Enqueue { tenant, priority, lifetime }),
        4 => Just(Verb::Dequeue),
        1 => (1..5_usize).prop_map(Verb::Batch),
        2 => any::<prop::sample::Index>().prop_map(|index| Verb::Cancel(index.index(1 << 20))),
        2 => (0..1_500_u64).prop_map(Verb::Pass),
        1 => (0..6_u64, 1..200_u64).prop_map(|(tenant, quantum)| Verb::Weigh { tenant, quantum }),
        1 => (0..6_u64).prop_map(Verb::Forget),
        1 => (0..6_u64).prop_map(Verb::Pause),
        2 => (0..6_u64).prop_map(Verb::Resume),
        1 => (0..6_u64, 0..50_u64).prop_map(|(tenant, actual)| Verb::Settle { tenant, actual }),
        1 => Just(Verb::Stats),
    ];
    prop::collection::vec(verb, 1..400)
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    tenant: u64,
    priority: Priority,
    deadline: Option<Instant>,
}

/// The queued tasks, by number; numbers grow.
#[derive(Debug, Default)]
struct Model {
    queued: BTreeMap<u64, Queued>,
    expired: u64,
    paused: BTreeSet<u64>,
    nests: bool,
}

/// The group of a tenant, where tenants nest: 3 and 5 are in 1, which is in none, and 4 is in 2, which is in 0.
fn group_of(tenant: u64) -> Option<u64> {
    [None, None, Some(0), Some(1), Some(2), Some(1)][tenant as usize]
}

impl Model {
    fn expire(&mut self, now: Instant) {
        let before = self.queued.len();
        self.queued
            .retain(|_, task| task.deadline.is_none_or(|deadline| deadline >= now));
        self.expired += (before - self.queued.len()) as u64;
    }

    /// The tenant and the groups that it is in, the innermost first.
    fn path(&self, tenant: u64) -> impl Iterator<Item = u64> {
        let nests = self.nests;
        std::iter::successors(Some(tenant), move |&name| group_of(name).filter(|_| nests))
    }

    /// How many tasks a tenant and all that are in it have.
    fn within(&self, name: u64) -> usize {
        let tenants = self.queued.values().map(|task| task.tenant);
        tenants
            .filter(|&tenant| self.path(tenant).any(|above| above == name))
            .count()
    }

    /// Whether a tenant is the name of a group with members.
    fn is_group(&self, name: u64) -> bool {
        self.within(name) > self.of(name).count()
    }

    fn is_paused(&self, tenant: u64) -> bool {
        self.path(tenant).any(|name| self.paused.contains(&name))
    }

    /// How many tasks may be handed out.
    fn runnable(&self) -> usize {
        let tenants = self.queued.values().map(|task| task.tenant);
        tenants.filter(|&tenant| !self.is_paused(tenant)).count()
    }

    fn of(&self, tenant: u64) -> impl Iterator<Item = (u64, Priority)> {
        let own = self
            .queued
            .iter()
            .filter(move |(_, task)| task.tenant == tenant);
        own.map(|(&number, task)| (number, task.priority))
    }

    /// The task that must come next, if this tenant's turn has come.
    fn first_of(&self, tenant: u64) -> Option<u64> {
        self.of(tenant)
            .min_by_key(|&(number, priority)| (priority, number))
            .map(|first| first.0)
    }

    /// The task of a tenant that gives way to one of this priority.
    fn victim_of(
        &self,
        tenant: u64,
        priority: Priority,
        policy: BackpressurePolicy,
    ) -> Option<u64> {
        let least = self.of(tenant).map(|(_, priority)| priority).max()?;
        let mut candidates = self
            .of(tenant)
            .filter(|&(_, other)| other == least && other >= priority);
        match policy {
            BackpressurePolicy::DropOldestPerTenant => candidates.next(),
            BackpressurePolicy::DropNewestPerTenant => candidates.last(),
            _ => None,
        }
        .map(|victim| victim.0)
    }
}

fn check(
    shards: usize,
    policy: BackpressurePolicy,
    nests: bool,
    verbs: Vec<Verb>,
) -> Result<(), TestCaseError> {
    let clock = ManualClock::new();
    let mut config = SchedulerConfig {
        shards,
        max_global: MAX_GLOBAL,
        max_per_tenant: MAX_PER_TENANT,
        max_per_group: Some(MAX_PER_GROUP),
        quantum: 10,
        backpressure: policy,
        idle_tenants_max: 1,
        ..SchedulerConfig::default()
    };
    if nests {
        config =
            config.with_groups(|tenant: &TenantKey| group_of(tenant.as_u64()).map(TenantKey::from));
    }
    let scheduler: Scheduler<u64> =
        Scheduler::new(config.with_clock(clock.clone())).expect("the configuration is valid");
    let mut model = Model {
        nests,
        ..Model::default()
    };
    let mut handles: Vec<(u64, TaskHandle)> = Vec::new();
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for (number, verb) in (0..).zip(verbs) {
        match verb {
            Verb::Enqueue {
                tenant,
                priority,
                lifetime,
            } => {
                model.expire(clock.now());
                let deadline = lifetime.map(|nanos| clock.now() + Duration::from_nanos(nanos));
                let task = Task {
                    deadline,
                    ..Task::new(number).with_priority(priority)
                };
                let groups_full = model.path(tenant).any(|name| {
                    let is_group = model.is_group(name) || name != tenant;
                    is_group && model.within(name) >= MAX_PER_GROUP
                });
                let full = match (model.of(tenant).count(), model.queued.len()) {
                    (MAX_PER_TENANT, _) => Some(EnqueueRejectReason::TenantFull),
                    _ if groups_full => Some(EnqueueRejectReason::TenantFull),
                    (_, MAX_GLOBAL) => Some(EnqueueRejectReason::GlobalFull),
                    _ => None,
                };
                let victim = full.and_then(|_| model.victim_of(tenant, priority, policy));
                match (scheduler.try_enqueue(TenantKey::from(tenant), task), full) {
                    (Ok(handle), None) => {
                        handles.push((number, handle));
                        model.queued.insert(
                            number,
                            Queued {
                                tenant,
                                priority,
                                deadline,
                            },
                        );
                        *counts.entry("enqueued").or_default() += 1;
                    }
                    (Ok(handle), Some(_)) if victim.is_some() => {
                        victim.map(|victim| model.queued.remove(&victim));
                        handles.push((number, handle));
                        model.queued.insert(
                            number,
                            Queued {
                                tenant,
                                priority,
                                deadline,
                            },
                        );
                        *counts.entry("enqueued").or_default() += 1;
                        *counts.entry("evicted").or_default() += 1;
                    }
                    (Err(Rejected::Full { reason, task }), Some(expected)) if victim.is_none() => {
                        prop_assert_eq!(reason, expected);
                        prop_assert_eq!(task.payload, number);
                        *counts.entry("rejected").or_default() += 1;
                    }
                    (result, full) => {
                        prop_assert!(false, "{:?}, but the model says {:?}", result, full)
                    }
                }
            }
            Verb::Dequeue => {
                model.expire(clock.now());
                match scheduler.try_dequeue() {
                    DequeueResult::Task { tenant, task } => {
                        prop_assert!(!model.is_paused(tenant.as_u64()));
                        prop_assert_eq!(Some(task.payload), model.first_of(tenant.as_u64()));
                        model.queued.remove(&task.payload);
                        *counts.entry("dequeued").or_default() += 1;
                    }
                    DequeueResult::Empty => prop_assert_eq!(model.runnable(), 0),
                    DequeueResult::Closed => prop_assert!(false, "it is open"),
                }
            }
            Verb::Batch(max) => {
                model.expire(clock.now());
                let mut tasks = Vec::new();
                let got = scheduler.dequeue_batch(max, &mut tasks);
                prop_assert_eq!(got, max.min(model.runnable()));
                for (tenant, task) in tasks {
                    prop_assert_eq!(Some(task.payload), model.first_of(tenant.as_u64()));
                    model.queued.remove(&task.payload);
                    *counts.entry("dequeued").or_default() += 1;
                }
            }
            Verb::Cancel(pick) if !handles.is_empty() => {
                // It is not specified whether an expired task that no call has met yet can be cancelled.
                model.expire(clock.now());
                prop_assert_eq!(scheduler.stats().queue_len_estimate, model.queued.len());
                let (number, handle) = handles[pick % handles.len()];
                let expected = match model.queued.remove(&number) {
                    Some(_) => CancelResult::Cancelled,
                    None => CancelResult::NotFound,
                };
                prop_assert_eq!(scheduler.cancel(handle), expected);
                if expected == CancelResult::Cancelled {
                    *counts.entry("cancelled").or_default() += 1;
                }
            }
            Verb::Cancel(_) => {}
            Verb::Pass(nanos) => clock.advance(Duration::from_nanos(nanos)),
            Verb::Weigh { tenant, quantum } => {
                scheduler.set_tenant_quantum(TenantKey::from(tenant), quantum)
            }
            Verb::Forget(tenant) => {
                scheduler.forget_tenant(&TenantKey::from(tenant));
            }
            Verb::Pause(tenant) => {
                scheduler.pause_tenant(&TenantKey::from(tenant));
                model.paused.insert(tenant);
            }
            Verb::Resume(tenant) => {
                scheduler.resume_tenant(&TenantKey::from(tenant));
                model.paused.remove(&tenant);
            }
            Verb::Settle { tenant, actual } => {
                scheduler.settle(&TenantKey::from(tenant), 10, actual);
            }
            Verb::Stats => {
                model.expire(clock.now());
                let stats = scheduler.stats();
                prop_assert_eq!(stats.queue_len_estimate, model.queued.len());
                prop_assert_eq!(stats.expired, model.expired);
                for tenant in 0..6 {
                    let len = scheduler.tenant_len(&TenantKey::from(tenant));
                    prop_assert_eq!(len, model.within(tenant), "of {}", tenant);
                }
                for (what, counted) in [
                    ("enqueued", stats.enqueued),
                    ("dequeued", stats.dequeued),
                    ("cancelled", stats.cancelled),
                    ("rejected", stats.rejected),
                    ("evicted", stats.evicted),
                ] {
                    prop_assert_eq!(counted, counts.get(what).copied().unwrap_or(0), "{}", what);
                }
            }
        }
        prop_assert!(scheduler.len() <= MAX_GLOBAL);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_scheduler_does_what_the_model_does(
        verbs in verbs(),
        shards in prop::sample::select(vec![1_usize, 4]),
        nests in any::<bool>(),
        policy in prop::sample::select(vec![
            BackpressurePolicy::Reject,
            BackpressurePolicy::DropOldestPerTenant,
            BackpressurePolicy::DropNewestPerTenant,
        ]),
    ) {
        check(shards, policy, nests, verbs)?;
    }
}
