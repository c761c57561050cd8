//! Why a job was not accepted, and why an executor could not be made.

use std::error::Error;
use std::fmt;

use crate::job::BoxJob;
use crate::sync::{Mutex, lock};

/// A shard's queue is full, or holds as many jobs of the key as it may: transient back-pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueFullError {
    /// The shard that the key belongs to.
    pub shard: usize,
    /// How much of its room was in use. Below the capacity if it was the key, or a group that it is in, that had no room
    /// of its own left.
    pub length: usize,
    /// The room that it has in all.
    pub capacity: usize,
    /// How many jobs of the key were queued; of the group, if `level` names one.
    pub key_length: usize,
    /// How many of them might be queued at that moment: `key_queue_size`, or by default three times the free room of the
    /// shard; for a key in a group, three times the free room of the group.
    pub key_capacity: usize,
    /// What had no room.
    pub level: FullLevel,
}

/// What had no room for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FullLevel {
    /// The shard.
    Shard,
    /// A group that the key is in: the shard had room for others.
    Group {
        /// How many parts of the key name the group: 1 for the group `acme` of `acme/alice`.
        parts: usize,
    },
    /// The key: its shard and its groups had room for others.
    Key,
}

impl QueueFullError {
    /// Returns whether the shard had room for other keys: only this key, or a group that it is in, held as many jobs as it
    /// may.
    #[must_use]
    pub const fn is_of_key(&self) -> bool {
        self.length < self.capacity
    }
}

impl fmt::Display for QueueFullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shard,
            length,
            capacity,
            key_length,
            key_capacity,
            level,
        } = self;
        f.write_str("shard queue full: ")?;
        match level {
            FullLevel::Key => write!(
                f,
                "{key_length} jobs of this key wait and a key may have {key_capacity} now, shard {shard} holds \
                 {length} of {capacity} jobs; retry later, submit less, or set SQ_KEY_QUEUE_SIZE"
            ),
            FullLevel::Group { parts } => write!(
                f,
                "the group of this key's first {parts} of its parts holds {key_length} jobs and may hold \
                 {key_capacity} now, shard {shard} holds {length} of {capacity} jobs; retry later, submit less, or set \
                 SQ_KEY_QUEUE_SIZE"
            ),
            FullLevel::Shard => write!(
                f,
                "shard {shard} holds {length} of {capacity} jobs; \
                 retry later, submit less, or raise SQ_QUEUE_SIZE"
            ),
        }
    }
}

impl Error for QueueFullError {}

/// Why a job was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The executor has been stopped, for good.
    #[error("shard executor closed")]
    Closed,
    /// There was no room: at once for `try_submit`, else within `enqueue_timeout`.
    #[error(transparent)]
    QueueFull(#[from] QueueFullError),
    /// The submitter's token was cancelled before there was room.
    #[error("submission cancelled before there was room for the job")]
    Cancelled,
    /// The key, or one of them, is no path although the executor has a `key_separator`.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A job across keys has no keys, or too many.
    #[error(
        "a job across keys needs at least one key and at most {max}; submit several jobs instead"
    )]
    KeyCount {
        /// The most keys that it may have.
        max: usize,
    },
    /// A job across keys has a priority, with which it could overtake another one and wait for it as well.
    #[error("a job across keys must have the priority Normal")]
    Prioritised,
}

/// Why a key is no path under the executor's [`key_separator`](crate::Config::key_separator).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A part is empty.
    #[error(
        "part {part} of the key is empty: `{separator}` separates parts, and each has a name; name it, or set another \
         key_separator or none"
    )]
    EmptyPart {
        /// The number of the part, from 1 on.
        part: usize,
        /// The executor's separator.
        separator: char,
    },
    /// There are too many parts.
    #[error(
        "the key has {parts} parts between `{separator}`, at most {max} are allowed; join some of them, or set another \
         key_separator or none"
    )]
    TooDeep {
        /// How many parts there are.
        parts: usize,
        /// How many there may be.
        max: usize,
        /// The executor's separator.
        separator: char,
    },
}

/// A job that was not accepted, and why.
///
/// It is a pointer: every submission returns room for it, and hardly any fails.
pub struct SubmitError(Box<RefusedJob>);

struct RefusedJob {
    refusal: Refusal,
    /// In a lock only so that the error can be shared between threads, as errors are.
    job: Mutex<BoxJob>,
}

impl SubmitError {
    pub(crate) fn new(refusal: impl Into<Refusal>, job: BoxJob) -> Self {
        Self(Box::new(RefusedJob {
            refusal: refusal.into(),
            job: Mutex::new(job),
        }))
    }

    /// Returns why the job was not accepted.
    #[must_use]
    pub const fn refusal(&self) -> Refusal {
        self.0.refusal
    }

    /// Returns the job, which can be submitted again.
    pub fn into_job(self) -> BoxJob {
        let RefusedJob { job, .. } = *self.0;
        job.into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Debug for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitError")
            .field("refusal", &self.0.refusal)
            .field("job", &*lock(&self.0.job))
            .finish()
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.refusal.fmt(f)
    }
}

impl Error for SubmitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        None // the refusal prints itself
    }
}

/// Why an executor could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An environment variable has an invalid value.
    #[error("{variable}: expected {expected}, got `{text}`")]
    Variable {
        /// The variable's name.
        variable: &'static str,
        /// The valid values.
        expected: &'static str,
        /// Its value.
        text: String,
    },
    /// A field has a value that it must not have.
    #[error("{field} is {value}, must be at most {max}")]
    TooLarge {
        /// The field's name.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The largest value that it may have.
        max: usize,
    },
    /// A character cannot separate the parts of a key.
    #[error(
        "key_separator is {0:?}, must be printable ASCII and no letter, digit or space, such as '/'"
    )]
    Separator(char),
    /// A metric cannot have such a name.
    #[error(
        "metrics_namespace is `{0}`, must be letters, digits and underscores, and not begin with a digit"
    )]
    Namespace(String),
    /// There is no Tokio runtime to run jobs on.
    #[error("no Tokio runtime; make the executor inside one, for example in `#[tokio::main]`")]
    NoRuntime,
    /// The runtime has no timers.
    #[error("the Tokio runtime has no timers; build it with `enable_time` or `enable_all`")]
    NoTimers,
}
