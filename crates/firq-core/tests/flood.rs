#![cfg(test)] // helpers may unwrap, as tests do
//! The law of the noisy tenant: one that sends a hundred times what it may, over many submitters, with cheap and dear
//! tasks that are served, cancelled or left to expire, causes no refusal for the others, and delays them by at most a
//! tenth more than a busy neighbour does. Time is counted in cost served, so every run is exact.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firq_core::{
    BackpressurePolicy, Clock, DequeueResult, Dropped, ManualClock, Scheduler, SchedulerConfig,
    Task, TenantKey,
};

const QUIET: u64 = 9;
const NOISY: u64 = QUIET;
const QUIET_COST: u64 = 10;
const ROOM: usize = 1_000;
const DISPATCHES: u64 = 500;
/// One unit of cost takes this long.
const TICK: Duration = Duration::from_micros(1);

/// What becomes of the noisy tenant's tasks.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// It keeps two tasks queued: the same load without a flood.
    Busy,
    /// They wait until they are served.
    Served { submitters: u64 },
    /// It cancels all but the last of each submitter's round.
    Cancelled { submitters: u64 },
    /// Their deadline is over before most of them are served.
    Expired { submitters: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    shards: usize,
    policy: BackpressurePolicy,
    /// The cost of a noisy task.
    cost: u64,
}

/// What quiet tenants saw.
#[derive(Debug, Default)]
struct Seen {
    waits: Vec<u64>,
    refused: u64,
    /// Tasks that were accepted and not delivered.
    dropped: u64,
}

impl Seen {
    fn p99(&self) -> u64 {
        let mut sorted = self.waits.clone();
        sorted.sort_unstable();
        sorted[sorted.len() * 99 / 100]
    }
}

struct Scene {
    scheduler: Scheduler<u64>,
    clock: ManualClock,
    setting: Setting,
    /// Units of cost served.
    now: u64,
}

impl Scene {
    fn new(setting: Setting, dropped: &Arc<Mutex<HashMap<u64, u64>>>) -> Self {
        let clock = ManualClock::new();
        // With `Reject` the tenant's own limit has to leave room to others; `ShedFair` needs none.
        let max_per_tenant = match setting.policy {
            BackpressurePolicy::ShedFair => ROOM,
            _ => ROOM / 2,
        };
        let dropped = Arc::clone(dropped);
        let config = SchedulerConfig {
            shards: setting.shards,
            max_global: ROOM,
            max_per_tenant,
            backpressure: setting.policy,
            ..SchedulerConfig::default()
        }
        .with_on_drop(move |task: Dropped<u64>| {
            *dropped
                .lock()
                .unwrap()
                .entry(task.tenant.as_u64())
                .or_default() += 1;
        })
        .with_clock(clock.clone());
        Self {
            scheduler: Scheduler::new(config).unwrap(),
            clock,
            setting,
            now: 0,
        }
    }

    fn make_noise(&self, noise: Noise) {
        let tenant = TenantKey::from(NOISY);
        let task = Task::new(self.now).with_cost(self.setting.cost);
        let (submitters, patience) = match noise {
            Noise::Busy => {
                while self.scheduler.tenant_len(&tenant) < 2 {
                    self.scheduler.submit(tenant, task.clone()).unwrap();
                }
                return;
            }
            Noise::Served { submitters } | Noise::Cancelled { submitters } => (submitters, 1 << 30),
            Noise::Expired { submitters } => (submitters, 50 * self.setting.cost),
        };
        for number in 0..submitters.max(100) {
            let deadline = self.clock.now() + TICK * patience as u32;
            let submitted = self
                .scheduler
                .submit(tenant, task.clone().with_deadline(deadline));
            if let (Noise::Cancelled { .. }, Ok(handle)) = (noise, submitted)
                && number > 0
            {
                let _ = self.scheduler.cancel(handle);
            }
        }
    }

    /// Serves one task. Returns its tenant, and when it was submitted.
    fn serve(&mut self) -> Option<(u64, u64)> {
        let served = match self.scheduler.try_dequeue() {
            DequeueResult::Task { tenant, task } => {
                self.now += task.cost;
                Some((tenant.as_u64(), task.payload, task.cost))
            }
            DequeueResult::Empty => None,
            DequeueResult::Closed => panic!("it is open"),
        };
        let took = served.map_or(1, |(_, _, cost)| cost);
        self.clock.advance(TICK * took as u32);
        served.map(|(tenant, submitted, _)| (tenant, submitted))
    }
}

/// Plays quiet tenants beside a noisy one, and returns what the quiet ones saw.
fn play(setting: Setting, noise: Noise) -> Seen {
    let dropped = Arc::default();
    let mut scene = Scene::new(setting, &dropped);
    let mut seen = Seen::default();
    let mut arrivals: VecDeque<(u64, u64)> = arrivals().into();
    for _ in 0..DISPATCHES {
        scene.make_noise(noise);
        while let Some(&(at, tenant)) = arrivals.front()
            && at <= scene.now
        {
            arrivals.pop_front();
            let task = Task::new(at).with_cost(QUIET_COST);
            let submitted = scene.scheduler.submit(TenantKey::from(tenant), task);
            seen.refused += u64::from(submitted.is_err());
        }
        let begun = scene.now;
        match scene.serve() {
            Some((NOISY, _)) => {}
            Some((_, submitted)) => seen.waits.push(begun - submitted),
            None => scene.now += 1,
        }
    }
    let dropped = dropped.lock().unwrap();
    seen.dropped = (0..QUIET).filter_map(|tenant| dropped.get(&tenant)).sum();
    seen
}

/// The times of the quiet tenants' tasks: half of the service, with pauses of different lengths.
fn arrivals() -> Vec<(u64, u64)> {
    let mut at = 0;
    let arrival = |number: u64| {
        at += 1 + number * 7919 % (4 * QUIET_COST - 1);
        (at, number * 31 % QUIET)
    };
    (0..100_000).map(arrival).collect()
}

fn check(shards: usize, policy: BackpressurePolicy) {
    for cost in [1, 1_000] {
        let setting = Setting {
            shards,
            policy,
            cost,
        };
        let busy = play(setting, Noise::Busy).p99();
        for submitters in [1, 100, 1_000] {
            for noise in [
                Noise::Served { submitters },
                Noise::Cancelled { submitters },
                Noise::Expired { submitters },
            ] {
                let seen = play(setting, noise);
                let at = format!("{setting:?}, {noise:?}");
                assert_eq!((seen.refused, seen.dropped), (0, 0), "{at}");
                let p99 = seen.p99();
                assert!(
                    p99 <= busy * 11 / 10,
                    "{at}: {p99}, beside a neighbour {busy}"
                );
            }
        }
    }
}

#[test]
fn a_noisy_tenant_is_refused_alone_and_delays_no_other_with_one_shard() {
    check(1, BackpressurePolicy::ShedFair);
}

#[test]
fn a_noisy_tenant_is_refused_alone_and_delays_no_other_with_four_shards() {
    check(4, BackpressurePolicy::ShedFair);
}

#[test]
fn a_noisy_tenant_is_refused_alone_and_delays_no_other_with_sixty_four_shards() {
    check(64, BackpressurePolicy::ShedFair);
}

#[test]
fn with_reject_a_limit_per_tenant_keeps_a_noisy_one_from_the_others() {
    check(4, BackpressurePolicy::Reject);
}
