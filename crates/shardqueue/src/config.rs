//! How an executor is set up, and the checks that make one that exists valid.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::{KeyLimit, Limits};
use crate::error::ConfigError;
use crate::failure::JobFailure;
use crate::hooks::{DeadJob, DeadJobHook, ErrorHandler, Hooks};
use crate::path::Separator;
use crate::retry::{ExponentialBackoff, RetryPolicy};

/// The most shards an executor can have.
const SHARDS_MAX: usize = 1 << 12;

/// The most jobs of a shard that can be under way at once.
const CONCURRENCY_MAX: usize = 1 << 16;

/// The most jobs a shard can hold: they are numbered with 32 bits.
const JOBS_MAX: usize = 1 << 30;

/// By how many percent waits are changed by default.
const JITTER_PERCENT: u8 = 50;

/// How an executor is set up.
///
/// A field that is zero counts as its default, so `Config { shards: 8, ..Config::default() }` and
/// [`Config::from_env`] mean the same by a field that is left out.
///
/// ```
/// use std::time::Duration;
/// use shardqueue::Config;
///
/// let config = Config {
///     shards: 8,
///     base_backoff: Duration::from_millis(50),
///     ..Config::default()
/// }
/// .with_error_handler(|failure| eprintln!("job failed: {failure}"));
/// # drop(config);
/// ```
#[derive(Clone)]
pub struct Config {
    /// How many workers there are. Default 4, at most 4,096.
    ///
    /// A key belongs to one shard, by its hash: with another number of shards it may be another one.
    pub shards: usize,
    /// How many jobs of a shard may be under way at once, each of another key. Default 8, at most 65,536.
    ///
    /// The worker polls one job at a time. While a job waits, for example for a network, the worker goes on with jobs of
    /// other keys; with 1 it waits, too. So at most `shards × concurrency` jobs are under way.
    pub concurrency: usize,
    /// How many jobs a shard holds that have not begun. Default 128.
    pub queue_size: usize,
    /// How many of them may be of one key. Default: three times as many as the shard has room for at that moment.
    ///
    /// So one key gets three quarters of `queue_size`, and the rest is left to other keys. With the value of `queue_size`
    /// there is no limit per key: one key can then fill its shard, and the jobs of all other keys in it are refused.
    ///
    /// With a `key_separator` this is how many jobs a tenant may have: all keys of a group together. One of them may have
    /// three times as many as its group has room for at that moment.
    pub key_queue_size: usize,
    /// The character between the parts of a key that is a path, such as `/`. Default: none, so that a key is one name,
    /// whatever characters it has.
    ///
    /// With `/`, the key `acme/alice` is alice in the group `acme`: all keys that begin with `acme/` share what one key
    /// gets, and share it fairly among themselves. Order is kept per whole key. A key has at most four parts, and none is
    /// empty; others are [refused](crate::KeyError). It must be printable ASCII, and no letter, digit or space.
    ///
    /// It is off by default because keys were free text before there were paths: a URL as a key would be refused or
    /// share with others.
    pub key_separator: Option<char>,
    /// How many jobs of a shard may back off, or be queued behind a job that backs off, without using up the room of
    /// `queue_size`. Default 1,024.
    ///
    /// One key may have three times as many jobs there as there is room for at that moment.
    pub backoff_size: usize,
    /// How many urgent jobs of a shard may begin in a row while other jobs of it wait. Default 4.
    ///
    /// So of five jobs that begin while there are enough of both kinds, at least one is not [urgent](crate::Priority::Urgent).
    pub urgent_in_a_row: usize,
    /// How long a submission waits for room. Default 100 ms.
    pub enqueue_timeout: Duration,
    /// How often a job is attempted before it has failed. Default 8.
    pub max_attempts: u32,
    /// The wait before the second attempt; it doubles with every further one. Default 100 ms.
    pub base_backoff: Duration,
    /// The longest wait between two attempts. Default 20 s.
    pub max_interval: Duration,
    /// The seed of the random changes to waits ("jitter"). The same seed gives the same waits.
    pub jitter_seed: u64,
    /// A retry policy that replaces the one made from the fields above.
    pub retry_policy: Option<Arc<dyn RetryPolicy>>,
    /// Is told once of every job that has failed for good, by its worker, which goes on when it returns; and once of
    /// every job that was cancelled, by the thread that cancelled it. So it is called `failed + cancelled` times, see
    /// [`Stats`](crate::Stats).
    pub error_handler: Option<ErrorHandler>,
    /// Is given every job that has failed for good, after the error handler has been told. Cancelled jobs are dropped.
    pub dead_job_hook: Option<DeadJobHook>,
    /// The prefix of the metrics' names. Default `mycelian`.
    pub metrics_namespace: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shards: 4,
            concurrency: 8,
            queue_size: 128,
            key_queue_size: 0,
            key_separator: None,
            backoff_size: 1024,
            urgent_in_a_row: 4,
            enqueue_timeout: Duration::from_millis(100),
            max_attempts: 8,
            base_backoff: Duration::from_millis(100),
            max_interval: Duration::from_secs(20),
            jitter_seed: 0,
            retry_policy: None,
            error_handler: None,
            dead_job_hook: None,
            metrics_namespace: "mycelian".to_owned(),
        }
    }
}

impl Config {
    /// Sets the handler that is called when a job has failed for good or was cancelled.
    #[must_use]
    pub fn with_error_handler(
        mut self,
        handler: impl Fn(&JobFailure) + Send + Sync + 'static,
    ) -> Self {
        self.error_handler = Some(Arc::new(handler));
        self
    }

    /// Sets the hook that receives jobs that have failed for good.
    #[must_use]
    pub fn with_dead_job_hook(mut self, hook: impl Fn(DeadJob) + Send + Sync + 'static) -> Self {
        self.dead_job_hook = Some(Arc::new(hook));
        self
    }

    /// Sets when jobs are attempted again.
    #[must_use]
    pub fn with_retry_policy(mut self, policy: impl RetryPolicy) -> Self {
        self.retry_policy = Some(Arc::new(policy));
        self
    }

    /// Checks every field, and puts defaults in for zeros.
    pub(crate) fn settle(self) -> Result<Settings, ConfigError> {
        let default = Self::default();
        let shards = at_most("shards", or(self.shards, default.shards), SHARDS_MAX)?;
        let concurrency = or(self.concurrency, default.concurrency);
        let concurrency = at_most("concurrency", concurrency, CONCURRENCY_MAX)?;
        let queue_max = or(self.queue_size, default.queue_size);
        let queue_max = at_most("queue_size", queue_max, JOBS_MAX)?;
        let backoff_max = or(self.backoff_size, default.backoff_size);
        let backoff_max = at_most("backoff_size", backoff_max, JOBS_MAX)?;
        let namespace = match self.metrics_namespace {
            name if name.is_empty() => default.metrics_namespace,
            name if is_metric_name(&name) => name,
            name => return Err(ConfigError::Namespace(name)),
        };
        let separator = self
            .key_separator
            .map(|character| Separator::new(character).ok_or(ConfigError::Separator(character)));
        let retry = self.retry_policy.unwrap_or_else(|| {
            let exponential = ExponentialBackoff::new(
                or(self.base_backoff, default.base_backoff),
                or(self.max_interval, default.max_interval),
                or(self.max_attempts, default.max_attempts),
            );
            Arc::new(exponential.with_jitter(JITTER_PERCENT, self.jitter_seed))
        });
        Ok(Settings {
            shards,
            limits: Limits {
                queue_max,
                key_max: match self.key_queue_size {
                    0 => KeyLimit::Part,
                    size => KeyLimit::Fixed(size),
                },
                backoff_max,
                concurrency,
                urgent_max: or(self.urgent_in_a_row, default.urgent_in_a_row),
            },
            separator: separator.transpose()?,
            enqueue_timeout: or(self.enqueue_timeout, default.enqueue_timeout),
            namespace,
            hooks: Hooks {
                retry,
                on_error: self.error_handler,
                on_dead: self.dead_job_hook,
            },
        })
    }
}

/// A configuration that has been checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) shards: usize,
    pub(crate) limits: Limits,
    pub(crate) separator: Option<Separator>,
    pub(crate) enqueue_timeout: Duration,
    pub(crate) namespace: String,
    pub(crate) hooks: Hooks,
}

/// Returns the value, or the default if it is zero.
fn or<T: Default + PartialEq>(value: T, default: T) -> T {
    if value == T::default() {
        default
    } else {
        value
    }
}

const fn at_most(field: &'static str, value: usize, max: usize) -> Result<usize, ConfigError> {
    if value > max {
        return Err(ConfigError::TooLarge { field, value, max });
    }
    Ok(value)
}

fn is_metric_name(name: &str) -> bool {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(is_fit) && !name.starts_with(|c: char| c.is_ascii_digit())
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("shards", &self.shards)
            .field("concurrency", &self.concurrency)
            .field("queue_size", &self.queue_size)
            .field("key_queue_size", &self.key_queue_size)
            .field("key_separator", &self.key_separator)
            .field("backoff_size", &self.backoff_size)
            .field("urgent_in_a_row", &self.urgent_in_a_row)
            .field("enqueue_timeout", &self.enqueue_timeout)
            .field("max_attempts", &self.max_attempts)
            .field("base_backoff", &self.base_backoff)
            .field("max_interval", &self.max_interval)
            .field("jitter_seed", &self.jitter_seed)
            .field("metrics_namespace", &self.metrics_namespace)
            .finish_non_exhaustive()
    }
}
