//! Starting and stopping: which threads there are, what they share, and in which order they end.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use fila_core::{Broker, Buckets};
use fila_store::{Engine, FjallOptions, MemoryDisk, MemoryEngine};
use tokio::sync::{Semaphore, watch};
use tracing::{error, info};

use super::Clock;
use super::catalogue::Catalogue;
use super::commit::{self, Committer};
use super::config_writer::{self, ConfigWriter};
use super::error::StartError;
use super::estate::Estate;
use super::handle::{Handle, Offices, Shared};
use super::inbox::{Inbox, Outbox, inbox};
use super::judge::Judge;
use super::peek::PEEKS;
use super::reader::{Errand, READERS, Reader};
use super::registrar::Registrar;
use super::scheduler::{Collected, Phase, ROUND_BYTES, Scheduler};
use super::settings::settings;
use super::shards::Shards;
use super::status::{Status, Witness};
use super::sweeper::Sweeper;
use super::throttles::Throttling;
use crate::config::{Config, StorageEngine};
use crate::hooks::{HookSettings, Pool};
use crate::metrics::Metrics;

/// A broker and its threads. Dropping it tells them to stop, and does not wait for them.
#[derive(Debug)]
pub struct Runtime {
    handle: Handle,
    threads: Vec<JoinHandle<()>>,
    /// Every thread holds the other end until it ends.
    ended: Receiver<()>,
    stop_sweeper: Option<Sender<()>>,
}

impl Runtime {
    /// Opens the store that the configuration names, takes over all its queues, and starts. Blocks.
    ///
    /// # Errors
    /// If the store is in use, or cannot be read; if a thread cannot be started.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        match config.storage.engine {
            StorageEngine::Fjall => {
                let options = FjallOptions::new(&config.storage.path)
                    .durability(config.storage.durability)
                    .cache_bytes(config.storage.cache.bytes());
                Self::start_on(options.open()?, config)
            }
            #[cfg(feature = "rocksdb")]
            StorageEngine::Rocksdb => {
                let options = fila_store::RocksOptions::new(&config.storage.path)
                    .durability(config.storage.durability)
                    .cache_bytes(config.storage.cache.bytes());
                Self::start_on(options.open()?, config)
            }
            StorageEngine::Memory => {
                Self::start_on(MemoryEngine::open(&MemoryDisk::default())?, config)
            }
        }
    }

    /// Takes over all queues of this engine, and starts. Blocks.
    ///
    /// # Errors
    /// If the store cannot be read; if a thread cannot be started.
    pub fn start_on<E: Engine>(engine: E, config: &Config) -> Result<Self, StartError> {
        let count = config.scheduler.threads.get();
        let clock = Clock::start();
        let status = Arc::new(Status::new());
        let metrics = Arc::new(Metrics::new());
        metrics.schedulers(count);
        let engine = Arc::new(engine);
        let health = engine.health()?;
        metrics.store_health(&health);
        let room = config.limits.buffered_bytes.as_usize() / count;
        let (inboxes, outboxes): (Vec<Inbox>, Vec<Outbox>) =
            (0..count).map(|_| inbox(room, 2 * ROUND_BYTES)).unzip();
        let recovered = Estate {
            engine: engine.clone(),
            shards: Arc::new(Shards::new()),
            catalogue: Arc::new(Catalogue::default()),
            inboxes: inboxes.into(),
            hook_settings: Arc::new(HookSettings::new(config)),
        };
        let spread = recovered.take_over_all()?;
        let runtime_config = watch::Sender::new(Arc::new(config_writer::load(&*engine)?));
        let timeout = recovered.hook_settings.timeout();
        let pool = Pool::start(timeout, runtime_config.subscribe()).map_err(StartError::Thread)?;
        let judge = Arc::new(Judge::new(pool.clone()));
        for queue in recovered.catalogue.page("", "", usize::MAX) {
            judge.follow(queue.id, queue.hooks.as_ref());
        }
        let registrar = Registrar {
            engine: engine.clone(),
            shards: recovered.shards.clone(),
            catalogue: recovered.catalogue.clone(),
            status: status.clone(),
            inboxes: recovered.inboxes.clone(),
            queues_max: config.limits.queues.get(),
            hook_settings: recovered.hook_settings.clone(),
            pool: pool.clone(),
            judge: judge.clone(),
            spread: Mutex::new(spread),
        };
        let buckets = Buckets::default();
        let throttling = Throttling {
            buckets: buckets.clone(),
            inboxes: recovered.inboxes.clone(),
            clock,
        };
        throttling.resume(runtime_config.borrow().throttles());
        let writer = ConfigWriter {
            throttling,
            engine: engine.clone(),
            state: runtime_config.clone(),
            limits: config.limits.clone(),
            status: status.clone(),
            metrics: metrics.clone(),
            turn: Mutex::new(()),
        };
        let offices = Offices {
            registrar: Arc::new(registrar),
            browser: recovered.shards.clone(),
            config_writer: Arc::new(writer),
        };
        let handle = Handle(Arc::new(Shared {
            catalogue: recovered.catalogue.clone(),
            inboxes: recovered.inboxes.clone(),
            offices: Mutex::new(Some(offices)),
            config: runtime_config,
            config_turn: Arc::new(Semaphore::new(1)),
            peeks: Arc::new(Semaphore::new(PEEKS)),
            pool,
            status: status.clone(),
            clock,
            limits: config.limits.clone(),
            metrics: metrics.clone(),
            durability: health.durability,
            memory_budget: config.storage.memory_budget.bytes(),
            consumers: Arc::new(AtomicUsize::new(0)),
            consumer_ids: AtomicU64::new(1),
        }));
        let (end, ended) = crossbeam_channel::bounded(0);
        let (stop_sweeper, sweeper_stop) = crossbeam_channel::bounded(0);
        let mut runtime = Self {
            handle,
            threads: Vec::new(),
            ended,
            stop_sweeper: Some(stop_sweeper),
        };

        let (errands, errands_of_readers) = crossbeam_channel::unbounded::<Errand>();
        for number in 0..READERS {
            let reader: Reader<E> = Reader {
                shards: recovered.shards.clone(),
                judge: judge.clone(),
            };
            let errands = errands_of_readers.clone();
            let name = format!("fila-reader-{number}");
            runtime.spawn(name, "reader thread", &end, move || reader.run(&errands))?;
        }
        for (number, outbox) in outboxes.into_iter().enumerate() {
            let (rounds, rounds_to_commit) = crossbeam_channel::unbounded();
            let (events, events_to_take) = crossbeam_channel::unbounded();
            let committer = Arc::new(Committer {
                engine: engine.clone(),
                shards: recovered.shards.clone(),
                status: status.clone(),
                metrics: metrics.clone(),
                events: events.clone(),
                rounds: Mutex::new(rounds_to_commit),
                line: Mutex::default(),
            });
            for _ in 0..commit::threads(health.durability) {
                let committer = Arc::clone(&committer);
                let name = format!("fila-commit-{number}");
                runtime.spawn(name, "commit thread", &end, move || committer.run())?;
            }
            let scheduler = Scheduler {
                number,
                broker: Broker::with_buckets(settings(config), buckets.clone()),
                clock,
                inbox: outbox,
                events: events_to_take,
                loaded: events,
                rounds,
                errands: errands.clone(),
                metrics: metrics.clone(),
                outlets: HashMap::default(),
                figures: HashMap::default(),
                touched: Vec::new(),
                phase: Phase::Running,
                collected: Collected::default(),
                under_way: VecDeque::new(),
                buffered_max: room,
            };
            let name = format!("fila-sched-{number}");
            runtime.spawn(name, "scheduler thread", &end, move || scheduler.run())?;
        }
        let sweeper = Sweeper {
            engine,
            clock,
            interval: config.storage.sweep_interval,
            metrics,
        };
        runtime.spawn("fila-sweep".to_owned(), "sweeper thread", &end, move || {
            sweeper.run(&sweeper_stop);
        })?;
        status.ready();
        Ok(runtime)
    }

    /// Returns the way to the broker.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Says that the server stops: it is no longer ready, and new calls are refused.
    pub fn refuse_calls(&self) {
        self.handle.0.status.stop();
    }

    /// Stores and answers all that was accepted, ends all consumers, ends the threads and closes the store. Blocks.
    ///
    /// Returns whether all of that was done in time. If not, the store is closed when the process ends, which is as
    /// safe as a crash: what was confirmed is kept.
    pub fn stop(mut self, timeout: Duration) -> Stopped {
        self.tell_to_stop();
        match self.ended.recv_timeout(timeout) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                for thread in self.threads.drain(..) {
                    // One that panicked has said so.
                    let _ = thread.join();
                }
                info!("all that was accepted is stored; the store is closed");
                Stopped::Complete
            }
            Err(RecvTimeoutError::Timeout) => {
                error!(
                    ?timeout,
                    "the store is still at work; ending without waiting for it"
                );
                Stopped::TimedOut
            }
        }
    }

    fn tell_to_stop(&mut self) {
        let shared = &self.handle.0;
        shared.status.stop();
        let offices = shared.offices.lock();
        drop(offices.unwrap_or_else(PoisonError::into_inner).take());
        shared.pool.stop();
        for inbox in &*shared.inboxes {
            inbox.stop();
        }
        self.stop_sweeper = None;
    }

    fn spawn(
        &mut self,
        name: String,
        thread: &'static str,
        end: &Sender<()>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let end = end.clone();
        let status = self.handle.0.status.clone();
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            let _end = end;
            let _witness = Witness { status, thread };
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

/// Whether a server stopped in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stopped {
    /// All that was accepted is stored and answered, and the store is closed.
    Complete,
    /// The store did not finish.
    TimedOut,
}
