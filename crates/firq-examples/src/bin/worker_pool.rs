//! A pool of threads that shares its processors between tenants.
//!
//! ```sh
//! cargo run -p firq-examples --bin worker_pool
//! ```
//!
//! You will learn how to
//!
//! - put a [`Scheduler`] between the threads that submit work and the threads that do it;
//! - declare the cost of a job, so that tenants share *processor time* and not *numbers of jobs*;
//! - close the scheduler so that the threads finish the queued jobs and end.
//!
//! The scenario: `video` and `thumbs` each submit a backlog at once; the jobs of `video` are eight times as long. Then
//! `web` and `mail` submit a short, urgent job from time to time.
//!
//! The scenario runs twice: first in order of arrival, like a channel, then fairly. Compare how long `web` and `mail`
//! wait, and the share of `thumbs` while `video` has work.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use firq_core::{DequeueResult, Scheduler, SchedulerConfig, Task};
use firq_examples::{BoxError, Latencies, Table, Verdict, millis};

const WORKERS: usize = 2;

/// The key: its values compete for the processors. Any `Hash + Eq + Clone` type will do.
type Tenant = &'static str;

const TENANTS: [Tenant; 4] = ["video", "thumbs", "web", "mail"];

/// A piece of work for a processor, as long as its cost in milliseconds.
struct Job {
    tenant: Tenant,
    cost: u64,
}

/// The record of a finished job.
struct Done {
    tenant: Tenant,
    cost: u64,
    waited: Duration,
    ended: Duration,
}

#[derive(Clone, Copy)]
enum Order {
    Arrival,
    Fair,
}

impl Order {
    /// Returns the key that a tenant's jobs are queued under.
    ///
    /// Within one key, jobs come out in the order in which they went in. So a scheduler whose work all has the
    /// same key *is* a first-in-first-out queue, and the comparison differs in this line only.
    const fn key(self, tenant: Tenant) -> Tenant {
        match self {
            Self::Arrival => "everybody",
            Self::Fair => tenant,
        }
    }
}

fn main() -> Result<(), BoxError> {
    println!("{WORKERS} threads, 4 tenants, the same work in two orders.\n");
    let speed = Speed::measure();
    let arrival = play(Order::Arrival, speed)?;
    let fair = play(Order::Fair, speed)?;

    let mut table = Table::new([
        "tenant",
        "jobs",
        "each",
        "wait p50, FIFO",
        "wait p50, Firq",
        "share, FIFO",
        "share, Firq",
    ]);
    for tenant in TENANTS {
        let mine = || fair.done.iter().filter(|done| done.tenant == tenant);
        table.row([
            tenant.to_owned(),
            mine().count().to_string(),
            format!("{} ms", mine().map(|done| done.cost).max().unwrap_or(0)),
            millis(arrival.waits(tenant).p50()),
            millis(fair.waits(tenant).p50()),
            format!("{:.0} %", arrival.share(tenant) * 100.0),
            format!("{:.0} %", fair.share(tenant) * 100.0),
        ]);
    }
    print!("{table}");
    println!("  (share: of the processor time, while both `video` and `thumbs` had work)");

    let mut verdict = Verdict::new();
    for tenant in ["web", "mail"] {
        let (before, after) = (arrival.waits(tenant).p50(), fair.waits(tenant).p50());
        verdict.lesson(
            after < before / 2,
            format!(
                "`{tenant}` waits {} instead of {} for a thread, without any priority",
                millis(after),
                millis(before)
            ),
        );
    }
    let shares = (fair.share("thumbs"), fair.share("video"));
    verdict.lesson(
        shares.0 > shares.1 / 2.0,
        format!(
            "`thumbs` gets {:.0} % beside `video`'s {:.0} %: a job of cost 8 is charged like 8 jobs of cost 1",
            shares.0 * 100.0,
            shares.1 * 100.0
        ),
    );
    verdict.conclude()
}

/// Runs the scenario in one order or the other.
fn play(order: Order, speed: Speed) -> Result<Run, BoxError> {
    let scheduler = Scheduler::new(SchedulerConfig {
        // Bounds on queued jobs, in all and per tenant. The scheduler refuses a job without room and returns it in the
        // error of `submit`: memory stays bounded, and the producer decides what to do with the job.
        max_global: 2_000,
        max_per_tenant: 1_000,
        ..SchedulerConfig::fair()
    })?;
    let done = Mutex::new(Vec::new());
    let begun = Instant::now();

    thread::scope(|scope| -> Result<(), BoxError> {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&scheduler, &done, begun, speed));
        }
        // Producers may be any threads. Here one is enough. Whatever it returns, the scheduler must be closed afterwards:
        // otherwise the workers would never end, and the scope would wait for them.
        let submitted = submit_scene(&scheduler, order);
        // The scheduler takes no more jobs, hands out the queued ones, and then returns `Closed` to every worker.
        scheduler.close_drain();
        submitted
    })?;
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Run { done })
}

fn submit_scene(scheduler: &Scheduler<Job, Tenant>, order: Order) -> Result<(), BoxError> {
    let submit = |tenant, cost| {
        let task = Task::new(Job { tenant, cost }).with_cost(cost);
        scheduler.submit(order.key(tenant), task)
    };
    // The noisy ones: all at once, `video` first.
    for _ in 0..70 {
        submit("video", 8)?;
    }
    for _ in 0..280 {
        submit("thumbs", 1)?;
    }
    // The quiet ones: a job from time to time, while the backlogs last.
    for _ in 0..15 {
        thread::sleep(Duration::from_millis(15));
        submit("web", 1)?;
        submit("mail", 2)?;
    }
    Ok(())
}

/// The loop of every thread in the pool: take the next job and do it.
fn work(scheduler: &Scheduler<Job, Tenant>, done: &Mutex<Vec<Done>>, begun: Instant, speed: Speed) {
    // Waits without using the processor. `Closed` ends the loop. `dequeue_blocking` never returns `Empty`; it waits
    // instead.
    while let DequeueResult::Task { task, .. } = scheduler.dequeue_blocking() {
        // The scheduler records when it accepted a task, so the job needs no field for its time in the queue.
        let waited = task.enqueue_ts.elapsed();
        let Job { tenant, cost } = task.payload;
        speed.burn(cost);
        let ended = begun.elapsed();
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push(Done {
            tenant,
            cost,
            waited,
            ended,
        });
    }
}

/// The results of a run.
struct Run {
    done: Vec<Done>,
}

impl Run {
    fn waits(&self, tenant: Tenant) -> Latencies {
        let mine = self.done.iter().filter(|done| done.tenant == tenant);
        mine.map(|done| done.waited).collect()
    }

    /// Returns a tenant's share of the work that was done while both backlogs lasted. Shares have a meaning only among
    /// tenants that want more than they get.
    fn share(&self, tenant: Tenant) -> f64 {
        let end = |tenant| {
            let mine = self.done.iter().filter(|done| done.tenant == tenant);
            mine.map(|done| done.ended).max().unwrap_or_default()
        };
        let both_had_work = end("video").min(end("thumbs"));
        let (mut own, mut all) = (0, 0);
        for done in self.done.iter().filter(|done| done.ended <= both_had_work) {
            all += done.cost;
            own += if done.tenant == tenant { done.cost } else { 0 };
        }
        own as f64 / all.max(1) as f64
    }
}

/// How many rounds of arithmetic this machine does in a millisecond, so that costs mean the same everywhere.
#[derive(Clone, Copy)]
struct Speed {
    rounds: u64,
}

impl Speed {
    fn measure() -> Self {
        const ROUNDS: u64 = 1 << 20;
        // The fastest of some tries, because the others were interrupted.
        let tries = (0..5).map(|_| {
            let begun = Instant::now();
            arithmetic(ROUNDS);
            begun.elapsed()
        });
        let fastest = tries.min().unwrap_or_default().as_secs_f64().max(1e-6);
        let rounds = (ROUNDS as f64 / (fastest * 1e3)) as u64;
        Self { rounds }
    }

    /// Keeps a processor busy for the cost in milliseconds, approximately.
    fn burn(self, cost: u64) {
        arithmetic(self.rounds * cost);
    }
}

fn arithmetic(rounds: u64) {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}
