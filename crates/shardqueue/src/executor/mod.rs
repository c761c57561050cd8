//! The executor: shards, their workers, and the verbs on them.

mod across;
mod barrier;
mod stop;
mod submission;
mod submit;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use drr::Weight;
use foldhash::fast::RandomState;
use prometheus_client::registry::Registry;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

pub use stop::{ReturnedJob, RunningJob, StopReport};

use crate::config::{Config, Settings};
use crate::contain;
use crate::error::{ConfigError, KeyError};
use crate::hash;
use crate::metrics::ShardCollector;
use crate::outcome::{JobId, JobStatus};
use crate::path::Separator;
use crate::shard::Shard;
use crate::stats::Stats;
use crate::worker::Worker;

/// Runs jobs in order per key, and in parallel across keys.
///
/// All methods take `&self`; to submit from several places, share it in an [`Arc`].
///
/// # Dropping it
/// It stops as with [`close`](Self::close): it accepts no more jobs, runs the queued ones in the background, and
/// gives every handle its outcome. To wait for that, call [`stop`](Self::stop) first.
pub struct ShardExecutor {
    shards: Arc<[Arc<Shard>]>,
    workers: TaskTracker,
    runtime: Handle,
    separator: Option<Separator>,
    enqueue_timeout: Duration,
    namespace: String,
    is_closed: AtomicBool,
}

impl ShardExecutor {
    /// Makes an executor and starts its workers on the current Tokio runtime.
    ///
    /// It takes the configuration by value, so nothing can change it afterwards:
    ///
    /// ```compile_fail,E0382
    /// # fn example() -> Result<(), shardqueue::ConfigError> {
    /// let mut config = shardqueue::Config::default();
    /// let executor = shardqueue::ShardExecutor::new(config)?;
    /// config.shards = 9; // error: assign to part of moved value
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a field of the configuration is out of range, or if there is no runtime, or one without timers.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let Settings {
            shards,
            limits,
            separator,
            enqueue_timeout,
            namespace,
            hooks,
        } = config.settle()?;
        let runtime = Handle::try_current().map_err(|_| ConfigError::NoRuntime)?;
        // Tokio has no way to ask, and says no by a panic.
        contain::call(|| drop(tokio::time::sleep(Duration::ZERO)))
            .map_err(|_| ConfigError::NoTimers)?;
        let hooks = Arc::new(hooks);
        let hasher = RandomState::default();
        let workers = TaskTracker::new();
        let start = |number| {
            let rules = (limits, separator);
            let shard = Shard::new(number as u32, rules, hasher.clone(), Arc::clone(&hooks));
            let shard = Arc::new(shard);
            workers.spawn(Worker::new(Arc::clone(&shard)).work());
            shard
        };
        let shards = (0..shards).map(start).collect();
        workers.close();
        Ok(Self {
            shards,
            workers,
            runtime,
            separator,
            enqueue_timeout,
            namespace,
            is_closed: AtomicBool::new(false),
        })
    }

    /// Sets the share of a key, or of a group of keys, among its siblings: 1 by default, at most 65,536; zero counts as 1.
    ///
    /// A key of weight 3 gets three times as many attempts (or three times as much `cost`) as a key of weight 1 while both
    /// have jobs queued. The siblings of `acme/alice` are the other keys and groups in `acme`; those of `acme` are the keys
    /// and groups without a parent. So a name has one weight, whether it is that of a key, of a group, or of both. It acts at
    /// once, in all shards, and stays until it is set to another one.
    ///
    /// ```
    /// use shardqueue::{Config, ShardExecutor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let executor = ShardExecutor::new(Config { key_separator: Some('/'), ..Config::default() })?;
    /// executor.set_weight("acme", 3)?; // all of acme, against other tenants
    /// executor.set_weight("acme/alice", 2)?; // alice, against others within acme
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the executor has a [`key_separator`](Config::key_separator) and this is no path.
    pub fn set_weight(&self, key: impl AsRef<str>, weight: u64) -> Result<(), KeyError> {
        let key = key.as_ref();
        self.check(key)?;
        let name: Arc<str> = Arc::from(key);
        let weight = Weight::new(weight).unwrap_or_default();
        for shard in self.shards.iter() {
            shard.set_weight(&name, weight);
        }
        Ok(())
    }

    /// Returns the shard that a key belongs to.
    ///
    /// It is the key's FNV-1a hash of 32 bits, modulo the number of shards: in this version and all later ones.
    #[must_use]
    pub fn shard_for(&self, key: impl AsRef<str>) -> usize {
        hash::shard_for(key.as_ref(), self.shards.len())
    }

    /// Returns the status of a job, or `None` if it has ended: the executor keeps no memory of ended jobs. A
    /// [handle](crate::JobHandle::status) also knows how its job ended.
    #[must_use]
    pub fn status(&self, id: JobId) -> Option<JobStatus> {
        self.shards.get(id.shard())?.status(id.place)
    }

    /// Returns the executor's counters and its present state.
    ///
    /// Each shard's part is exact at one moment, so the figures add up at all times: see
    /// [`Stats::is_balanced`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shards = self.shards.iter().map(|shard| Stats::of(&shard.snapshot()));
        shards.fold(Stats::default(), Stats::plus)
    }

    /// Returns the counters and the present state of each shard.
    #[must_use]
    pub fn shard_stats(&self) -> Vec<Stats> {
        let shards = self.shards.iter();
        shards.map(|shard| Stats::of(&shard.snapshot())).collect()
    }

    /// Publishes the executor's metrics in a registry.
    ///
    /// The registry reads them from the shards at each scrape. Several executors
    /// can share a registry if they have different namespaces, or each its own
    /// [label](Registry::sub_registry_with_label).
    pub fn register_metrics(&self, registry: &mut Registry) {
        let collector = ShardCollector::new(&self.namespace, Arc::clone(&self.shards));
        registry.register_collector(Box::new(collector));
    }

    /// Checks that a key is a path, if keys are paths.
    #[inline]
    fn check(&self, key: &str) -> Result<(), KeyError> {
        match self.separator {
            None => Ok(()),
            Some(separator) => separator.check(key),
        }
    }

    fn shard_of(&self, key: &str) -> &Arc<Shard> {
        &self.shards[hash::shard_for(key, self.shards.len())]
    }
}

impl fmt::Debug for ShardExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardExecutor")
            .field("shards", &self.shards.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Drop for ShardExecutor {
    fn drop(&mut self) {
        self.close();
    }
}
