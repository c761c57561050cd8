//! Firq under the law: a thread that serves, one that sends for the quiet tenants, and a thread for each submitter of the
//! noisy one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use firq_core::{BackpressurePolicy, Scheduler, SchedulerConfig, Task, TenantKey};

use super::{Attack, Beside, NOISY, QUIET, QUIET_WORK, QuietView, spin};

/// How many tasks are queued at most.
const ROOM: usize = 1_000;

/// A flooding thread needs no more stack than this.
const STACK: usize = 64 << 10;

/// The scheduler under test, and the one that is flooded in its place.
struct SchedulerSide {
    attack: Attack,
    beside: Beside,
    target: Scheduler<Instant>,
    decoy: Scheduler<Instant>,
    is_over: AtomicBool,
    refused: AtomicU64,
}

pub(super) fn measure(
    policy: BackpressurePolicy,
    attack: Attack,
    beside: Beside,
    time: Duration,
) -> QuietView {
    let side = SchedulerSide {
        attack,
        beside,
        target: scheduler(policy),
        decoy: scheduler(policy),
        is_over: AtomicBool::new(false),
        refused: AtomicU64::new(0),
    };
    let waits = thread::scope(|scope| {
        for _ in 0..attack.submitters {
            let thread = thread::Builder::new().stack_size(STACK);
            let flood = thread.spawn_scoped(scope, || side.flood());
            flood.expect("the machine has room for a thousand threads");
        }
        scope.spawn(|| side.trickle());
        let waits = side.serve(time);
        side.is_over.store(true, Ordering::Relaxed);
        waits
    });
    QuietView {
        waits,
        refused: side.refused.into_inner(),
    }
}

fn scheduler(policy: BackpressurePolicy) -> Scheduler<Instant> {
    let max_per_tenant = match policy {
        BackpressurePolicy::ShedFair => ROOM,
        _ => ROOM / 2, // with `Reject` a tenant's own limit has to leave room to the others
    };
    let config = SchedulerConfig {
        max_global: ROOM,
        max_per_tenant,
        backpressure: policy,
        ..SchedulerConfig::default()
    };
    Scheduler::new(config).expect("a valid configuration")
}

impl SchedulerSide {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns a task of the noisy tenant, or of the neighbour, which costs what it takes.
    fn noise(&self) -> (TenantKey, Task<Instant>) {
        let cost = self.attack.work.as_micros() / QUIET_WORK.as_micros();
        let task = Task::new(Instant::now()).with_cost(cost as u64);
        (TenantKey::from(NOISY), task)
    }

    fn flood(&self) {
        let victim = match self.beside {
            Beside::Flood => &self.target,
            Beside::Neighbour => &self.decoy,
        };
        let (pause, burst) = self.attack.pace();
        while !self.is_over() {
            for _ in 0..burst {
                let (tenant, task) = self.noise();
                let _ = victim.submit(tenant, task); // most are refused
            }
            thread::sleep(pause);
        }
    }

    /// Sends for the quiet tenants.
    fn trickle(&self) {
        for number in 0.. {
            if self.is_over() {
                break;
            }
            let tenant = u64::from(number) % QUIET;
            let task = Task::new(Instant::now());
            let submitted = self.target.submit(TenantKey::from(tenant), task);
            let refused = u64::from(submitted.is_err());
            self.refused.fetch_add(refused, Ordering::Relaxed);
            thread::sleep(self.attack.quiet_pause(number));
        }
    }

    /// Serves for a while, and returns the waits of quiet tasks after the first tenth of it.
    fn serve(&self, time: Duration) -> Vec<Duration> {
        let begin = Instant::now();
        let mut waits = Vec::new();
        while self.beside == Beside::Neighbour && self.target.len() < 2 {
            let (tenant, task) = self.noise();
            let _ = self.target.submit(tenant, task);
        }
        while begin.elapsed() < time {
            let patience = Duration::from_millis(1);
            let Some((tenant, task)) = self.target.dequeue_blocking_timeout(patience).into_task()
            else {
                continue;
            };
            if tenant != TenantKey::from(NOISY) {
                if begin.elapsed() > time / 10 {
                    waits.push(task.payload.elapsed());
                }
                spin(QUIET_WORK);
                continue;
            }
            spin(self.attack.work);
            if self.beside == Beside::Neighbour {
                let (tenant, task) = self.noise();
                let _ = self.target.submit(tenant, task);
                drop(self.decoy.try_dequeue()); // as much room comes free there as under a flood here
            }
        }
        waits
    }
}
