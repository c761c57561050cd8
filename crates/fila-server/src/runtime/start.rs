//! Starts and stops the threads of a broker.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use fila_core::Broker;
use fila_store::{DiskOptions, Durability, Engine, Health, MemoryDisk, MemoryEngine};
use tokio::sync::{Semaphore, watch};
use tracing::{error, info, warn};

use super::Clock;
use crate::config::{Config, StorageEngine};
use crate::hooks::{HookSettings, Pool};
use crate::metrics::Metrics;
use crate::runtime::calls::handle::{Handle, HandleState, Managers};
use crate::runtime::calls::peek::PEEKS;
use crate::runtime::calls::transit::Notes;
use crate::runtime::calls::whatif::PREDICTIONS;
use crate::runtime::config::shared_buckets::SharedBuckets;
use crate::runtime::config::throttles::Throttling;
use crate::runtime::config::writer::{self, ConfigWriter};
use crate::runtime::error::StartError;
use crate::runtime::queues::manager::QueueManager;
use crate::runtime::queues::opening::QueueOpener;
use crate::runtime::queues::recovery;
use crate::runtime::queues::registry::Registry;
use crate::runtime::settings::{draw_lease_key, settings};
use crate::runtime::status::{PanicGuard, Status};
use crate::runtime::threads::commit::{self, Committer};
use crate::runtime::threads::events::EventSender;
use crate::runtime::threads::failure_hooks::FailureHooks;
use crate::runtime::threads::inbox::{Inbox, InboxReceiver, inbox};
use crate::runtime::threads::reader::{BlockingJob, READERS, Reader};
use crate::runtime::threads::round_queue::RoundQueue;
use crate::runtime::threads::scheduler::{Channels, ROUND_BYTES, Rounds, Scheduler, Storage};
use crate::runtime::threads::seat::Seat;
use crate::runtime::threads::sweeper::Sweeper;

/// A broker and its threads. Dropping it tells the threads to stop, and does not wait for them.
#[derive(Debug)]
pub struct Runtime {
    handle: Handle,
    threads: Vec<JoinHandle<()>>,
    /// Disconnects when the last thread has ended.
    ended: Receiver<()>,
    stop_sweeper: Option<Sender<()>>,
}

impl Runtime {
    /// Opens the store that the configuration names, opens all its queues, and starts. Blocks.
    ///
    /// # Errors
    /// If the store is in use, or cannot be read; if a thread cannot be started.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let options = DiskOptions::new(&config.storage.path)
            .durability(config.storage.durability)
            .cache_bytes(config.storage.cache.bytes());
        match config.storage.engine {
            StorageEngine::Lsm => Self::start_on(options.open()?, config),
            #[cfg(feature = "rocksdb")]
            StorageEngine::Rocksdb => Self::start_on(options.open_rocksdb()?, config),
            StorageEngine::Memory => {
                Self::start_on(MemoryEngine::open(&MemoryDisk::default())?, config)
            }
        }
    }

    /// Opens all queues of this engine, and starts. Blocks.
    ///
    /// # Errors
    /// If the store cannot be read; if a thread cannot be started.
    pub fn start_on<E: Engine>(engine: E, config: &Config) -> Result<Self, StartError> {
        let engine = Arc::new(engine);
        let health = engine.health()?;
        report_torn(&health);
        let buckets = SharedBuckets::default();
        let (handle, receivers) = handle(&engine, config, &health, &buckets)?;
        let state = handle.0.clone();
        let (end, ended) = crossbeam_channel::bounded(0);
        let (stop_sweeper, sweeper_stop) = crossbeam_channel::bounded(0);
        let end = Arc::new(LastThread {
            registry: state.registry.clone(),
            _end: end,
        });
        let mut runtime = Self {
            handle,
            threads: Vec::new(),
            ended,
            stop_sweeper: Some(stop_sweeper),
        };
        let jobs = runtime.spawn_readers(&end)?;
        let lease_key = draw_lease_key()?;
        for (number, (seat, inbox)) in receivers.into_iter().enumerate() {
            let tokens = Box::new(buckets.for_broker(number));
            let broker = Broker::with_tokens(settings(config, lease_key), tokens);
            let (events, events_to_take) = EventSender::new(seat.clone());
            let rounds = runtime.spawn_committers(number, &engine, events.clone(), &end)?;
            let channels = Channels {
                inbox,
                events: events_to_take,
                replies: events,
                rounds,
                notes: Notes::new(seat.clone()),
                jobs: jobs.clone(),
            };
            let (clock, metrics) = (state.clock, state.metrics.clone());
            let buffered_max = buffered_bytes(config);
            let storage = Storage {
                store: engine.clone(),
                status: state.status.clone(),
            };
            let scheduler = Scheduler::new(
                number,
                broker,
                channels,
                clock,
                metrics,
                buffered_max,
                storage,
            );
            let name = format!("fila-sched-{number}");
            let serve = move || seat.serve(scheduler);
            runtime.spawn(name, "scheduler thread", &end, serve)?;
        }
        runtime.spawn_sweeper(engine, config, sweeper_stop, &end)?;
        state.status.ready();
        Ok(runtime)
    }

    /// Returns a handle of the broker.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Marks the server as stopping. It is no longer ready, and refuses new calls.
    pub fn refuse_calls(&self) {
        self.handle.0.status.stop();
    }

    /// Stores and answers all accepted calls, ends all consumers and threads, and closes the store. Blocks.
    ///
    /// Returns whether this was done in time. If not, the end of the process closes the store, which is as safe as a
    /// crash: confirmed messages are kept.
    pub fn stop(mut self, timeout: Duration) -> Stopped {
        self.tell_to_stop();
        match self.ended.recv_timeout(timeout) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                for thread in self.threads.drain(..) {
                    // A thread that panicked has logged it.
                    let _ = thread.join();
                }
                info!("all accepted messages are stored; the store is closed");
                Stopped::Complete
            }
            Err(RecvTimeoutError::Timeout) => {
                error!(
                    ?timeout,
                    "the store did not finish in time; stopping without it"
                );
                Stopped::TimedOut
            }
        }
    }

    fn tell_to_stop(&mut self) {
        let state = &self.handle.0;
        state.status.stop();
        let managers = state.managers.lock();
        drop(managers.unwrap_or_else(PoisonError::into_inner).take());
        state.pool.stop();
        for inbox in &*state.inboxes {
            inbox.stop();
        }
        self.stop_sweeper = None;
    }

    /// Starts the reader threads, and returns the channel to them.
    fn spawn_readers(&mut self, end: &Arc<LastThread>) -> Result<Sender<BlockingJob>, StartError> {
        let (jobs, jobs_to_do) = crossbeam_channel::unbounded();
        for number in 0..READERS {
            let state = &self.handle.0;
            let reader = Reader {
                registry: state.registry.clone(),
                failure_hooks: FailureHooks {
                    registry: state.registry.clone(),
                    pool: state.pool.clone(),
                },
                metrics: state.metrics.clone(),
            };
            let jobs = jobs_to_do.clone();
            let name = format!("fila-reader-{number}");
            self.spawn(name, "reader thread", end, move || reader.run(&jobs))?;
        }
        Ok(jobs)
    }

    /// Starts the sweeper thread, which ends when the other side of `stop` is dropped.
    fn spawn_sweeper<E: Engine>(
        &mut self,
        engine: Arc<E>,
        config: &Config,
        stop: Receiver<()>,
        end: &Arc<LastThread>,
    ) -> Result<(), StartError> {
        let state = &self.handle.0;
        let sweeper = Sweeper {
            engine,
            clock: state.clock,
            interval: config.storage.sweep_interval,
            metrics: state.metrics.clone(),
            status: state.status.clone(),
        };
        self.spawn("fila-sweep".to_owned(), "sweeper thread", end, move || {
            sweeper.run(&stop);
        })
    }

    /// Starts the commit threads of one scheduler thread, and returns the way to them.
    fn spawn_committers<E: Engine>(
        &mut self,
        number: usize,
        engine: &Arc<E>,
        events: EventSender,
        end: &Arc<LastThread>,
    ) -> Result<Rounds, StartError> {
        let state = &self.handle.0;
        let durability = state.durability;
        let threads = commit::threads(durability);
        let (queue, rounds_to_commit) = RoundQueue::new(threads);
        let committer = Arc::new(Committer {
            engine: engine.clone(),
            registry: state.registry.clone(),
            status: state.status.clone(),
            metrics: state.metrics.clone(),
            events,
            rounds: rounds_to_commit,
            staged: Mutex::default(),
        });
        let rounds = Rounds {
            queue,
            // A scheduler must not wait for a sync.
            store: match durability {
                Durability::Fsync => None,
                Durability::Os | Durability::Memory => Some(committer.clone()),
            },
        };
        for _ in 0..threads {
            let committer = Arc::clone(&committer);
            let name = format!("fila-commit-{number}");
            self.spawn(name, "commit thread", end, move || committer.run())?;
        }
        Ok(rounds)
    }

    fn spawn(
        &mut self,
        name: String,
        thread: &'static str,
        end: &Arc<LastThread>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let end = end.clone();
        let status = self.handle.0.status.clone();
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            let _end = end;
            let _guard = PanicGuard { status, thread };
            work();
        });
        self.threads.push(spawned.map_err(StartError::Thread)?);
        Ok(())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.tell_to_stop();
    }
}

/// All threads share one. When the last thread ends, the registry releases the shards, so that the store closes.
struct LastThread {
    registry: Arc<Registry>,
    /// Dropped after the registry has released the shards.
    _end: Sender<()>,
}

impl Drop for LastThread {
    fn drop(&mut self) {
        self.registry.release_shards();
    }
}

/// Whether a server stopped in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stopped {
    /// All accepted calls are stored and answered, and the store is closed.
    Complete,
    /// The store did not finish in time.
    TimedOut,
}

/// Logs commits that were dropped when the store was opened.
fn report_torn(health: &Health) {
    if let Some(torn) = &health.torn {
        warn!(
            path = %torn.path.display(),
            commits = torn.commits,
            "the log ends with commits that cannot be read, and they are dropped: after a crash they were not confirmed, \
             otherwise check the disk"
        );
    }
}

/// The seat of a scheduler, and the inbox that it takes from.
type SchedulerPlace = (Arc<Seat<Scheduler>>, InboxReceiver);

/// Opens all queues and builds the handle. Also returns the places of the schedulers.
fn handle<E: Engine>(
    engine: &Arc<E>,
    config: &Config,
    health: &Health,
    buckets: &SharedBuckets,
) -> Result<(Handle, Vec<SchedulerPlace>), StartError> {
    let (clock, status) = (Clock::start(), Arc::new(Status::new()));
    let metrics = Arc::new(Metrics::new());
    metrics.schedulers(config.scheduler.threads.get());
    metrics.store_health(health);
    let (inboxes, receivers) = inboxes(config);
    let opener = QueueOpener {
        store: engine.clone(),
        registry: Arc::new(Registry::default()),
        inboxes,
        hook_settings: Arc::new(HookSettings::new(config)),
    };
    let spread = recovery::open_all(&opener)?;
    let entries = watch::Sender::new(Arc::new(writer::load(&**engine)?));
    let timeout = opener.hook_settings.timeout();
    let pool = Pool::start(timeout, entries.subscribe()).map_err(StartError::Thread)?;
    let mut state = HandleState {
        registry: opener.registry.clone(),
        inboxes: opener.inboxes.clone(),
        managers: Mutex::new(None),
        config: entries,
        config_turn: Arc::new(Semaphore::new(1)),
        peeks: Arc::new(Semaphore::new(PEEKS)),
        predictions: Arc::new(Semaphore::new(PREDICTIONS)),
        pool,
        status,
        clock,
        limits: config.limits.clone(),
        metrics,
        durability: health.durability,
        memory_budget: config.storage.memory_budget.bytes(),
        consumers: Arc::new(AtomicUsize::new(0)),
        consumer_ids: AtomicU64::new(1),
    };
    state.managers = Mutex::new(Some(managers(&state, opener, spread, buckets)));
    Ok((Handle(Arc::new(state)), receivers))
}

/// Builds the managers of the queues and of the runtime configuration, and sets up the stored throttles.
fn managers(
    state: &HandleState,
    opener: QueueOpener,
    spread: Vec<usize>,
    buckets: &SharedBuckets,
) -> Managers {
    let throttling = Throttling {
        buckets: buckets.clone(),
        inboxes: state.inboxes.clone(),
        clock: state.clock,
    };
    throttling.resume(state.config.borrow().throttles());
    let config = ConfigWriter {
        throttling,
        store: opener.store.clone(),
        entries: state.config.clone(),
        limits: state.limits.clone(),
        status: state.status.clone(),
        metrics: state.metrics.clone(),
        turn: Mutex::new(()),
    };
    let queues = QueueManager {
        opener,
        status: state.status.clone(),
        queues_max: state.limits.queues.get(),
        pool: state.pool.clone(),
        spread: Mutex::new(spread),
    };
    Managers {
        queues: Arc::new(queues),
        config: Arc::new(config),
    }
}

/// Makes the inboxes and the seats of the schedulers.
fn inboxes(config: &Config) -> (Arc<[Inbox]>, Vec<SchedulerPlace>) {
    let room = buffered_bytes(config).min(2 * ROUND_BYTES);
    let threads = config.scheduler.threads.get();
    let place = |_| {
        let seat = Arc::new(Seat::new());
        let (inbox, receiver) = inbox(room, &seat);
        (inbox, (seat, receiver))
    };
    let (inboxes, receivers): (Vec<Inbox>, Vec<SchedulerPlace>) = (0..threads).map(place).unzip();
    (inboxes.into(), receivers)
}

/// Returns how many bytes may wait to be stored on each scheduler thread.
fn buffered_bytes(config: &Config) -> usize {
    config.limits.buffered_bytes.as_usize() / config.scheduler.threads.get()
}
