//! Calls to other services, a limited number at a time: with the [`Dispatcher`], and by hand.
//!
//! ```sh
//! cargo run -p firq-examples --bin dispatcher
//! ```
//!
//! You will learn how to
//!
//! - run an async handler for every task, a limited number at a time, with a [`Dispatcher`];
//! - charge tenants for the *time* that their handlers take, if the cost is not known in advance;
//! - write that loop yourself with a [`Semaphore`], if you need something the dispatcher does not do, and why its
//!   first two lines must not be swapped;
//! - contain the panic of a handler.
//!
//! The scenario: `bulk` and `sync` each have a backlog. A call of `bulk` takes four times as long, and the scheduler does
//! not know that. `alerts` makes a call from time to time, and its handler panics every fifth time.
//!
//! Look at how long `alerts` waits, and how `bulk` and `sync` share the time. The scenario runs three times, the last time
//! with a common mistake in the loop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use firq_async::{AsyncScheduler, DequeueResult, Dispatcher, SchedulerConfig, Task, cost_of_time};
use firq_examples::{BoxError, Latencies, Table, Verdict, millis};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

/// How many calls may be in flight: the limit of the database, of the other service, or of file descriptors.
const IN_FLIGHT_LIMIT: usize = 8;

/// The duration of one unit of cost.
const UNIT: Duration = Duration::from_millis(1);

type Tenant = &'static str;

/// A call to another service, which answers after a while.
#[derive(Clone, Copy, Debug)]
struct Call {
    takes: Duration,
    has_bug: bool,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Panics are part of this example, and their reports would hide the table. Do not copy this line.
    std::panic::set_hook(Box::new(|_| {}));

    println!("3 tenants, {IN_FLIGHT_LIMIT} calls in flight, the same scene in three loops.\n");
    let dispatcher = play(with_dispatcher).await?;
    let permit_first = play(permit_first).await?;
    let task_first = play(task_first).await?;

    let loops = [
        ("Dispatcher", &dispatcher),
        ("permit, then task", &permit_first),
        ("task, then permit", &task_first),
    ];
    let mut table = Table::new([
        "loop",
        "alerts wait p50",
        "alerts wait p99",
        "time of bulk",
        "time of sync",
        "calls",
        "panics",
    ]);
    for (name, run) in loops {
        let alerts = run.waits("alerts");
        let bulk = run.share("bulk");
        table.row([
            name.to_owned(),
            millis(alerts.p50()),
            millis(alerts.p99()),
            format!("{:.0} %", bulk * 100.0),
            format!("{:.0} %", (1.0 - bulk) * 100.0),
            run.calls.len().to_string(),
            run.panicked.to_string(),
        ]);
    }
    print!("{table}");
    println!("  (time: of handlers, while both `bulk` and `sync` had work)");

    conclude(&loops)
}

/// Checks what the run showed.
fn conclude(loops: &[(&str, &Run); 3]) -> Result<(), BoxError> {
    let mut verdict = Verdict::new();
    for (name, run) in &loops[..2] {
        let (fair, unfair) = (run.waits("alerts").p50(), loops[2].1.waits("alerts").p50());
        verdict.lesson(
            fair < unfair / 2,
            format!(
                "{name}: `alerts` waits {} for its turn, and {} where tasks are taken before there is a permit",
                millis(fair),
                millis(unfair)
            ),
        );
        verdict.lesson(
            (0.3..0.7).contains(&run.share("bulk")),
            format!(
                "{name}: `bulk` has {:.0} % of the time, though its calls take four times as long and say nothing",
                run.share("bulk") * 100.0
            ),
        );
    }
    verdict.lesson(
        loops
            .iter()
            .all(|(_, run)| run.panicked == 5 && run.calls.len() == SCENE_CALLS),
        format!("each loop outlived 5 panics and finished all {SCENE_CALLS} calls"),
    );
    verdict.conclude()
}

/// The loop to start with: it is all in the [`Dispatcher`].
async fn with_dispatcher(scheduler: AsyncScheduler<Call, Tenant>, log: Arc<Log>) {
    let report = Dispatcher::new(scheduler)
        .in_flight_limit(IN_FLIGHT_LIMIT)
        // A millisecond is a unit of cost. A call declares 1, and when it ends the dispatcher charges its duration.
        .settle_by_elapsed(UNIT)
        .run({
            let log = Arc::clone(&log);
            move |tenant, task| handle(Arc::clone(&log), tenant, task)
        })
        .await; // until the scheduler is closed and the last handler has ended
    // Panics are also logged, as errors of the crate `tracing`.
    log.panicked.store(report.panicked, Ordering::Relaxed);
}

/// The same by hand.
async fn permit_first(scheduler: AsyncScheduler<Call, Tenant>, log: Arc<Log>) {
    let permits = Arc::new(Semaphore::new(IN_FLIGHT_LIMIT));
    loop {
        // First the permit, then the task. Without a permit the task stays in the scheduler, where a tenant that has had
        // less can still overtake it, and where it can expire or be cancelled.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            break; // the semaphore is never closed
        };
        let DequeueResult::Task { tenant, task } = scheduler.dequeue_async().await else {
            break; // closed, and the queue is empty
        };
        let bill = Bill::new(&scheduler, tenant, task.cost, &log);
        let log = Arc::clone(&log);
        // A Tokio task contains a panic.
        tokio::spawn(async move {
            let _permit = permit; // held until the handler has ended, however it ends
            let _bill = bill;
            handle(log, tenant, task).await;
        });
    }
    // All permits are back when all handlers have ended.
    let _ = permits.acquire_many(IN_FLIGHT_LIMIT as u32).await;
}

/// The mistake: the loop takes tasks out of the scheduler as fast as it can, and they wait for a permit instead.
///
/// A semaphore hands permits out in order of arrival. So the fair queue is always empty, and behind it is a second queue,
/// which is neither fair nor bounded.
async fn task_first(scheduler: AsyncScheduler<Call, Tenant>, log: Arc<Log>) {
    let permits = Arc::new(Semaphore::new(IN_FLIGHT_LIMIT));
    let mut handlers = tokio::task::JoinSet::new();
    while let DequeueResult::Task { tenant, task } = scheduler.dequeue_async().await {
        let (permits, log, scheduler) = (permits.clone(), log.clone(), scheduler.clone());
        handlers.spawn(async move {
            let _permit = permits.acquire_owned().await;
            let _bill = Bill::new(&scheduler, tenant, task.cost, &log);
            handle(log, tenant, task).await;
        });
    }
    while handlers.join_next().await.is_some() {}
}

/// Charges a tenant for the time between its creation and its drop.
///
/// It charges on drop and not in a line after the handler: a handler that panics never reaches that line, and would run
/// for free.
struct Bill {
    scheduler: AsyncScheduler<Call, Tenant>,
    tenant: Tenant,
    charged: u64,
    begun: Instant,
    log: Arc<Log>,
}

impl Bill {
    fn new(
        scheduler: &AsyncScheduler<Call, Tenant>,
        tenant: Tenant,
        charged: u64,
        log: &Arc<Log>,
    ) -> Self {
        Self {
            scheduler: scheduler.clone(),
            tenant,
            charged,
            begun: Instant::now(),
            log: Arc::clone(log),
        }
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        let actual = cost_of_time(self.begun.elapsed(), UNIT);
        self.scheduler.settle(&self.tenant, self.charged, actual);
        if std::thread::panicking() {
            self.log.panicked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The handler of each task, the same for all loops.
async fn handle(log: Arc<Log>, tenant: Tenant, task: Task<Call>) {
    let waited = task.enqueue_ts.elapsed();
    let begun = Instant::now();
    sleep(task.payload.takes).await; // the other service is working
    log.calls().push(Finished {
        tenant,
        waited,
        took: begun.elapsed(),
        ended: Instant::now(),
    });
    assert!(!task.payload.has_bug, "the handler of `{tenant}` has a bug");
}

const BULK_CALLS: usize = 90;
const SYNC_CALLS: usize = 300;
const ALERTS_CALLS: usize = 25;
const SCENE_CALLS: usize = BULK_CALLS + SYNC_CALLS + ALERTS_CALLS;

/// Runs the scenario with one of the loops.
async fn play<L, F>(serve: L) -> Result<Run, BoxError>
where
    L: FnOnce(AsyncScheduler<Call, Tenant>, Arc<Log>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let scheduler = AsyncScheduler::new(SchedulerConfig::fair())?;
    let log = Arc::new(Log::default());
    let serving = tokio::spawn(serve(scheduler.clone(), Arc::clone(&log)));

    let call = |millis, has_bug| {
        Task::new(Call {
            takes: Duration::from_millis(millis),
            has_bug,
        })
    };
    for _ in 0..BULK_CALLS {
        scheduler.enqueue_async("bulk", call(20, false)).await?;
    }
    for _ in 0..SYNC_CALLS {
        scheduler.enqueue_async("sync", call(5, false)).await?;
    }
    for number in 0..ALERTS_CALLS {
        sleep(Duration::from_millis(10)).await;
        // Waits for room if the queue is full, without blocking a thread. `try_enqueue` would return an error instead.
        scheduler
            .enqueue_async("alerts", call(5, number % 5 == 4))
            .await?;
    }
    scheduler.close_drain();
    serving.await?;
    let calls = std::mem::take(&mut *log.calls());
    Ok(Run {
        calls,
        panicked: log.panicked.load(Ordering::Relaxed),
    })
}

/// The records of a run's handlers.
#[derive(Debug, Default)]
struct Log {
    calls: Mutex<Vec<Finished>>,
    panicked: AtomicU64,
}

impl Log {
    fn calls(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Finished {
    tenant: Tenant,
    waited: Duration,
    took: Duration,
    ended: Instant,
}

/// The results of a run.
struct Run {
    calls: Vec<Finished>,
    panicked: u64,
}

impl Run {
    fn of(&self, tenant: Tenant) -> impl Iterator<Item = &Finished> {
        self.calls.iter().filter(move |call| call.tenant == tenant)
    }

    fn waits(&self, tenant: Tenant) -> Latencies {
        self.of(tenant).map(|call| call.waited).collect()
    }

    /// Returns a tenant's share of the time that `bulk` and `sync` had together, while both had work.
    fn share(&self, tenant: Tenant) -> f64 {
        let end = |tenant| self.of(tenant).map(|call| call.ended).max();
        let both_had_work = end("bulk").min(end("sync"));
        let time = |tenant| {
            let early = self
                .of(tenant)
                .filter(|call| Some(call.ended) <= both_had_work);
            early.map(|call| call.took).sum::<Duration>().as_secs_f64()
        };
        time(tenant) / (time("bulk") + time("sync")).max(f64::MIN_POSITIVE)
    }
}
