//! The threads that run hooks.
//!
//! Jobs wait in a [`Scheduler`] of `firq-core`, with a tenant for each queue. A worker takes a job and works on it for a
//! turn. The rest of a long job goes back, behind the other jobs of its queue. A queue that has all workers but one is
//! paused, so that a job of another queue soon finds a worker.
//!
//! A worker keeps its job in its slot and works with a copy of the questions. The watchdog takes the job from there if a
//! call does not end: a sandbox ends its calls itself, by CPU time and, a hundred times later, by wall-clock time, but
//! nothing relies on that. The watchdog answers for the call as for one that failed, and starts another worker. A worker
//! that returns after that finds its slot empty, and ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Builder, Thread};
use std::time::{Duration, Instant};

use fila_lua::Watch;
use fila_store::QueueId;
use firq_core::{DequeueResult, Priority, Scheduler, SchedulerConfig, Task, Waiter};
use foldhash::fast::RandomState;
use tokio::sync::watch;
use tracing::error;

use super::job::{Answer, Job};
use super::sandbox_cache::SandboxCache;
use super::thread_priority::HookPriority;
use crate::runtime_config::Entries;

/// How long a worker stays at one job while others wait.
const TURN: Duration = Duration::from_millis(2);

/// Bounds of the number of workers: one for each core within them. One worker alone cannot be fair.
const WORKERS_MIN: usize = 2;
const WORKERS_MAX: usize = 8;

/// Abandoned workers that may still run. The watchdog replaces no more: something is badly wrong then.
const ABANDONED_MAX: usize = 32;

/// Wall-clock time of a call, in times of its limit: twice what a sandbox promises.
const PATIENCE_FACTOR: u32 = 200;

/// The least wall-clock time of a call. A busy machine may need it, however short the limit is.
const PATIENCE_MIN: Duration = Duration::from_secs(5);

/// Queues without jobs that the scheduler remembers.
const IDLE_QUEUES_MAX: usize = 64;

/// Access to the workers. They end when it is told to stop.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<PoolState>);

#[derive(Debug)]
struct PoolState {
    jobs: Scheduler<Job, QueueId>,
    crew: Mutex<Crew>,
    /// How many jobs of one queue may run at the same time: fewer than there are workers.
    running_max: usize,
    /// How often scripts were retired.
    retired: AtomicU64,
    /// Waits until a job runs.
    watchdog: OnceLock<Thread>,
    config: watch::Receiver<Arc<Entries>>,
    /// How long a call may take before the watchdog answers for it.
    patience: Duration,
    sandboxes: AtomicUsize,
    priority: HookPriority,
}

/// The workers and what they run. A thread that holds its lock may call the scheduler.
#[derive(Debug, Default)]
struct Crew {
    slots: Vec<Arc<WorkerSlot>>,
    started: usize,
    abandoned: usize,
    /// The number of running jobs of each queue that has any.
    running: HashMap<QueueId, usize, RandomState>,
}

#[derive(Debug)]
struct WorkerSlot {
    number: usize,
    thread: OnceLock<Thread>,
    work: Mutex<Work>,
}

#[derive(Debug, Default)]
struct Work {
    job: Option<Job>,
    watch: Option<Watch>,
}

/// The watchdog has taken the worker's job, or the server stops: the worker ends.
#[derive(Debug)]
struct Abandoned;

impl WorkerSlot {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, answer: Answer) -> Result<(), Abandoned> {
        let mut work = self.work();
        work.job.as_mut().ok_or(Abandoned)?.answers.push(answer);
        Ok(())
    }

    /// Returns how long the present call has taken, if that is too long.
    fn overrun(&self, now: Instant, patience: Duration) -> Option<Duration> {
        let work = self.work();
        let busy = work.watch.as_ref()?.busy_for(now)?;
        (work.job.is_some() && busy > patience).then_some(busy)
    }
}

impl Pool {
    /// Starts the workers and the watchdog. `timeout` is how long a call may run.
    pub(crate) fn start(
        timeout: Duration,
        config: watch::Receiver<Arc<Entries>>,
    ) -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let patience = timeout.saturating_mul(PATIENCE_FACTOR).max(PATIENCE_MIN);
        Self::start_with(cores.min(WORKERS_MAX), patience, config)
    }

    /// Starts this number of workers, two at least.
    fn start_with(
        workers: usize,
        patience: Duration,
        config: watch::Receiver<Arc<Entries>>,
    ) -> io::Result<Self> {
        let workers = workers.max(WORKERS_MIN);
        let pool = Arc::new(PoolState::new(workers, patience, config)?);
        let watched = pool.clone();
        let watchdog = Builder::new()
            .name("fila-hook-watch".to_owned())
            .spawn(move || watched.watch())?;
        let _ = pool.watchdog.set(watchdog.thread().clone());
        for _ in 0..workers {
            pool.start_worker()?;
        }
        Ok(Self(pool))
    }

    /// Lets a job wait for its queue's turn. The job is dropped if the server stops.
    pub(crate) fn submit(&self, job: Job) {
        self.0.submit(job, Priority::Normal);
    }

    /// Lets workers drop the sandboxes of retired scripts.
    pub(crate) fn sweep(&self) {
        self.0.retired.fetch_add(1, Ordering::AcqRel);
        for slot in &self.0.crew().slots {
            // A worker that has not begun has no sandboxes yet.
            if let Some(worker) = slot.thread.get() {
                worker.unpark();
            }
        }
    }

    /// Drops all jobs, and lets the workers end. Callers learn of the end at once, however long a call still runs.
    pub(crate) fn stop(&self) {
        self.0.jobs.close_immediate();
        // A worker that takes up a job after this finds that no more calls are made.
        let slots = self.0.crew().slots.clone();
        for slot in slots {
            let job = slot.work().job.take();
            drop(job);
        }
        self.0.wake_watchdog();
    }

    /// Returns the number of sandboxes.
    pub(crate) fn sandboxes(&self) -> usize {
        self.0.sandboxes.load(Ordering::Relaxed)
    }
}

impl PoolState {
    fn new(
        workers: usize,
        patience: Duration,
        config: watch::Receiver<Arc<Entries>>,
    ) -> io::Result<Self> {
        let jobs = Scheduler::new(SchedulerConfig {
            shards: 1,
            // Every queue bounds its own jobs, by its permits.
            max_global: u32::MAX as usize - 1,
            max_per_tenant: usize::MAX,
            top_tenants_capacity: 0,
            idle_tenants_max: IDLE_QUEUES_MAX,
            ..SchedulerConfig::default()
        });
        Ok(Self {
            jobs: jobs.map_err(io::Error::other)?,
            crew: Mutex::default(),
            running_max: workers - 1,
            retired: AtomicU64::new(0),
            watchdog: OnceLock::new(),
            config,
            patience,
            sandboxes: AtomicUsize::new(0),
            priority: HookPriority::below_this_thread(),
        })
    }

    fn crew(&self) -> MutexGuard<'_, Crew> {
        self.crew.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_watchdog(&self) {
        if let Some(watchdog) = self.watchdog.get() {
            watchdog.unpark();
        }
    }

    fn submit(&self, job: Job, priority: Priority) {
        let queue = job.hooks.queue;
        let task = Task::new(job).with_priority(priority);
        // Only a closed scheduler rejects it.
        drop(self.jobs.submit(queue, task));
    }

    fn start_worker(self: &Arc<Self>) -> io::Result<()> {
        let mut crew = self.crew();
        let slot = Arc::new(WorkerSlot {
            number: crew.started,
            thread: OnceLock::new(),
            work: Mutex::default(),
        });
        crew.started += 1;
        crew.slots.push(slot.clone());
        drop(crew);
        let name = format!("fila-hook-{}", slot.number);
        let worker = Worker {
            pool: self.clone(),
            slot,
        };
        // A worker that does not start is dropped, which takes it off the crew.
        Builder::new().name(name).spawn(move || worker.work())?;
        Ok(())
    }

    /// Counts a job as running and returns it, or puts it back if its queue has as many workers as it may have.
    fn begin(&self, job: Job) -> Option<Job> {
        let queue = job.hooks.queue;
        let mut crew = self.crew();
        let is_idle = crew.running.is_empty();
        let running = crew.running.entry(queue).or_default();
        let may_run = *running < self.running_max;
        *running += usize::from(may_run);
        // Under the lock, so that no worker can resume the queue before.
        if *running == self.running_max {
            self.jobs.pause_tenant(&queue);
        }
        drop(crew);
        if !may_run {
            // The scheduler handed the job out before another worker paused the queue.
            self.submit(job, Priority::High);
            return None;
        }
        if is_idle {
            self.wake_watchdog();
        }
        Some(job)
    }

    /// Answers a job that is done, or lets the rest of it wait for another turn.
    fn put_down(&self, job: Job) {
        let queue = job.hooks.queue;
        let done = if job.is_done() {
            Some(job)
        } else {
            // Behind the other jobs of its queue, which may be of other producers.
            self.submit(job, Priority::Normal);
            None
        };
        let mut crew = self.crew();
        if let Entry::Occupied(mut running) = crew.running.entry(queue) {
            if *running.get() == self.running_max {
                self.jobs.resume_tenant(&queue);
            }
            *running.get_mut() -= 1;
            if *running.get() == 0 {
                running.remove();
            }
        }
        drop(crew);
        if let Some(job) = done {
            job.finish();
        }
    }

    /// Looks after workers whose calls do not end, until the server stops.
    fn watch(self: &Arc<Self>) {
        let tick = (self.patience / 4).max(Duration::from_millis(1));
        while !self.jobs.is_closed() {
            let is_idle = self.crew().running.is_empty();
            if is_idle {
                thread::park();
                continue;
            }
            thread::park_timeout(tick);
            let now = Instant::now();
            let slots = self.crew().slots.clone();
            for slot in slots {
                if let Some(waited) = slot.overrun(now, self.patience) {
                    self.abandon(&slot, now, waited);
                }
            }
        }
    }

    /// Takes the job from a worker that does not return, and starts another in its place.
    fn abandon(self: &Arc<Self>, slot: &Arc<WorkerSlot>, now: Instant, waited: Duration) {
        let Some(mut job) = slot.work().job.take() else {
            return;
        };
        job.answer_for_call(now, waited);
        let mut crew = self.crew();
        crew.slots.retain(|it| !Arc::ptr_eq(it, slot));
        crew.abandoned += 1;
        let abandoned = crew.abandoned;
        drop(crew);
        self.put_down(job);
        error!(
            worker = slot.number,
            ?waited,
            abandoned,
            "a hook did not end; its thread is abandoned and replaced"
        );
        if abandoned > ABANDONED_MAX {
            error!("too many threads of hooks are abandoned; this one is not replaced");
        } else if let Err(error) = self.start_worker() {
            error!(%error, "the thread was not replaced");
        }
    }
}

/// A thread that runs hooks.
struct Worker {
    pool: Arc<PoolState>,
    slot: Arc<WorkerSlot>,
}

/// Wakes a worker.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Worker {
    fn work(self) {
        self.pool.priority.apply();
        let thread = self.slot.thread.get_or_init(thread::current);
        let waker = Waker::from(Arc::new(Unpark(thread.clone())));
        let mut context = Context::from_waker(&waker);
        let mut waiter = Waiter::new();
        let mut sandboxes = SandboxCache::new(&self.pool.config, &self.pool.sandboxes);
        loop {
            sandboxes.sweep_up_to(self.pool.retired.load(Ordering::Acquire));
            let next = self.pool.jobs.poll_dequeue(&mut context, &mut waiter);
            let job = match next {
                Poll::Ready(DequeueResult::Task { task, .. }) => self.pool.begin(task.payload),
                Poll::Ready(DequeueResult::Closed | DequeueResult::Empty) => return,
                Poll::Pending => {
                    thread::park();
                    continue;
                }
            };
            if let Some(job) = job
                && self.run(job, &mut sandboxes).is_err()
            {
                return;
            }
        }
    }

    /// Works on a job until it is done, or until its turn is over and other jobs wait.
    fn run(&self, job: Job, sandboxes: &mut SandboxCache<'_>) -> Result<(), Abandoned> {
        let hooks = job.hooks.clone();
        // A queue whose script cannot run has no jobs.
        let Some(script) = hooks.loaded().filter(|_| !job.is_done()) else {
            self.pool.put_down(job);
            return Ok(());
        };
        let questions = job.questions.clone();
        let first = job.answers.len();
        // The job is in the slot before anything that might panic.
        *self.slot.work() = Work {
            job: Some(job),
            watch: None,
        };
        let watch = sandboxes.sandbox(script).watch();
        self.slot.work().watch = Some(watch);
        let began = Instant::now();
        for index in first..questions.len() {
            let now = Instant::now();
            if now.duration_since(began) >= TURN && !self.pool.jobs.is_empty() {
                break;
            }
            if self.pool.jobs.is_closed() {
                // The caller learns of the end when its job is dropped.
                drop(self.slot.work().job.take());
                return Err(Abandoned);
            }
            let answer = questions.ask(index, &hooks, sandboxes.current(), now);
            self.slot.answer(answer)?;
        }
        drop(questions);
        if script.is_retired() {
            // The job waited while the queue got another script, so no later sweep is due.
            sandboxes.sweep();
        }
        let job = self.slot.work().job.take().ok_or(Abandoned)?;
        self.pool.put_down(job);
        Ok(())
    }
}

/// Answers the worker's job even if the worker panics, and takes it off the crew.
impl Drop for Worker {
    fn drop(&mut self) {
        if thread::panicking() {
            self.pool
                .abandon(&self.slot, Instant::now(), Duration::ZERO);
        }
        let mut crew = self.pool.crew();
        let before = crew.slots.len();
        crew.slots.retain(|it| !Arc::ptr_eq(it, &self.slot));
        // A worker without a slot was abandoned, and has returned.
        if crew.slots.len() == before {
            crew.abandoned = crew.abandoned.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
