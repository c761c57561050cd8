//! The errors of calls and of the start.

use std::io;

use fila_core::{EnqueueError, QueueSettingsError, Refused};
use fila_lua::ScriptError;
use fila_store::{CommitError, ConfigKey, EngineError, OpenError, QueueName, ReadError, Version};

use super::NameError;
use crate::hooks::HookPartUsed;
use crate::runtime_config::InvalidEntry;

/// Why the server refused a whole call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// There is no queue of this name.
    #[error("there is no queue `{0}`; create it first")]
    UnknownQueue(String),
    /// A queue of this name exists already.
    #[error("queue `{0}` exists; choose another name, or update it")]
    QueueExists(QueueName),
    /// The queue has another version than the caller expects.
    #[error("queue `{name}` has version {found} by now; read it again and decide anew")]
    QueueChanged {
        /// Which queue.
        name: QueueName,
        /// Its version.
        found: Version,
    },
    /// The name of the queue is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A setting or another argument is out of range. The text says which values are allowed.
    #[error("{0}")]
    Invalid(String),
    /// A dead letter queue cannot be deleted on its own.
    #[error(
        "queue `{name}` holds the dead letters of `{of}` and is deleted with it; to empty it, purge it"
    )]
    DeadLetters {
        /// Which queue.
        name: QueueName,
        /// The queue whose dead letters it holds.
        of: String,
    },
    /// Producers cannot send to a dead letter queue.
    #[error("queue `{name}` takes dead letters of `{of}` only; send to that one")]
    TakesDeadLetters {
        /// Which queue.
        name: QueueName,
        /// The queue whose dead letters it takes.
        of: String,
    },
    /// The queue is no dead letter queue.
    #[error("queue `{0}` holds no dead letters of another queue; name one that ends in `.dlq`")]
    NoDeadLetters(QueueName),
    /// The queue refuses its dead letters.
    #[error("the queue takes no more dead letters back: {0}")]
    Redrive(EnqueueError),
    /// The limit on queues is reached.
    #[error("there are {max} queues already; delete some, or raise limits.queues")]
    TooManyQueues {
        /// The limit.
        max: usize,
    },
    /// The limit on fairness keys with settings is reached.
    #[error(
        "{max} fairness keys of the queue have settings, the limit; take back some, or raise limits.key_settings_per_queue"
    )]
    TooManyKeySettings {
        /// The limit.
        max: usize,
    },
    /// The limit on consumers is reached.
    #[error("there are {max} consumers already; close some, or raise limits.consumers")]
    TooManyConsumers {
        /// The limit.
        max: usize,
    },
    /// The script of a queue's hooks does not load.
    #[error("script is refused: {0}")]
    Script(#[from] ScriptError),
    /// The producer's part of the calls that wait for the queue's hook is used up. Others are admitted.
    #[error(
        "{} {} of this producer wait for the hook of queue `{name}`, and its part is {} now; try again in {:?}, or let the script do less",
        used.held, used.pool, used.part, used.retry_after
    )]
    HookCrowded {
        /// Which queue.
        name: QueueName,
        /// What the producer has there.
        used: HookPartUsed,
    },
    /// The entry of the runtime configuration is invalid.
    #[error(transparent)]
    InvalidConfig(#[from] InvalidEntry),
    /// A key or a value of the runtime configuration is too long.
    #[error("the {what} has {found} bytes, {max} are allowed; shorten it, or raise {limit}")]
    ConfigTooLarge {
        /// `key` or `value`.
        what: &'static str,
        /// How many bytes it has.
        found: usize,
        /// How many bytes it may have.
        max: usize,
        /// The setting that limits it.
        limit: &'static str,
    },
    /// The runtime configuration has no such entry.
    #[error("`{0}` is not set; set it first")]
    UnknownConfig(String),
    /// The entry has another version than the caller expects.
    #[error("`{key}` {}; read it again and decide anew", now_at(*.found))]
    ConfigChanged {
        /// Which entry.
        key: ConfigKey,
        /// Its version. `None` if it is not set.
        found: Option<Version>,
    },
    /// A limit on the runtime configuration is reached.
    #[error(
        "the runtime configuration may have {max} {what}; delete what is not used, or raise {limit}"
    )]
    ConfigFull {
        /// `entries` or `bytes`.
        what: &'static str,
        /// The limit.
        max: usize,
        /// The setting of the limit.
        limit: &'static str,
    },
    /// The broker refused the call.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store takes no more writes.
    #[error("the store takes no more writes; look at the server's log and restart it")]
    StoreUnavailable,
    /// The store could not be read.
    #[error("the messages could not be read from the store; look at the server's log")]
    ReadFailed,
    /// A write failed, and the change may or may not be stored.
    #[error("it is unknown whether the change is stored; look again once the server is back")]
    OutcomeUnknown,
    /// The server stops, or is not ready yet.
    #[error("the server is shutting down; try again in a moment, or at another server")]
    ShuttingDown,
}

impl CallError {
    /// Returns the error of a change of queues that the store refused.
    pub(super) fn of_catalogue(name: &QueueName, error: EngineError) -> Self {
        match error {
            EngineError::AlreadyExists(name) => Self::QueueExists(name),
            EngineError::UnknownQueue(_) => Self::UnknownQueue(name.to_string()),
            EngineError::Conflict { found: Some(found) } => Self::QueueChanged {
                name: name.clone(),
                found,
            },
            EngineError::Conflict { found: None } => Self::UnknownQueue(name.to_string()),
            EngineError::OutOfRange(error) => Self::Invalid(format!(
                "the queue's settings are too large: {error}; take back settings of fairness keys"
            )),
            EngineError::Exhausted(_) | EngineError::Read(_) => Self::StoreUnavailable,
            EngineError::Commit(error) => Self::of_commit(&error),
        }
    }

    fn of_commit(error: &CommitError) -> Self {
        match error {
            CommitError::Unknown(_) => Self::OutcomeUnknown,
            // Nothing was changed, and the log says why.
            CommitError::Fenced { .. } | CommitError::Unreadable(_) | CommitError::Rejected(_) => {
                Self::StoreUnavailable
            }
        }
    }

    /// Returns the error of a name that no queue has.
    pub(crate) fn unknown_queue(name: &str) -> Self {
        match name {
            "" => NameError::Empty.into(),
            name => Self::UnknownQueue(name.to_owned()),
        }
    }

    /// Returns the error of a key that is not set. The text shows at most as much of it as a key can have.
    pub(crate) fn unknown_config(key: &str) -> Self {
        Self::UnknownConfig(key.chars().take(ConfigKey::MAX).collect())
    }

    /// Returns the error of a change of the runtime configuration that the store refused.
    pub(super) fn of_config(error: &EngineError) -> Self {
        match error {
            EngineError::OutOfRange(error) => Self::Invalid(error.to_string()),
            EngineError::Commit(error) => Self::of_commit(error),
            EngineError::AlreadyExists(_)
            | EngineError::UnknownQueue(_)
            | EngineError::Conflict { .. }
            | EngineError::Exhausted(_)
            | EngineError::Read(_) => Self::StoreUnavailable,
        }
    }
}

fn now_at(found: Option<Version>) -> String {
    found.map_or_else(
        || "is not set".to_owned(),
        |version| format!("has version {version} by now"),
    )
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store was not opened.
    #[error("the store was not opened")]
    Open(#[from] OpenError),
    /// The store could not be read.
    #[error("the queues could not be read from the store")]
    Read(#[from] ReadError),
    /// A queue could not be claimed.
    #[error("queue `{name}` could not be claimed")]
    Claim {
        /// Which one.
        name: QueueName,
        /// Why.
        source: EngineError,
    },
    /// A queue's definition cannot be used.
    #[error("queue `{name}` cannot be served")]
    QueueSettings {
        /// Which one.
        name: QueueName,
        /// Why.
        source: QueueSettingsError,
    },
    /// An entry of the runtime configuration cannot be used.
    #[error("`{key}` of the runtime configuration is no text; restore a copy")]
    RuntimeConfig {
        /// Which one.
        key: ConfigKey,
        /// Why.
        source: std::str::Utf8Error,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers, which lease ids need")]
    Randomness(#[source] getrandom::Error),
    /// A thread could not be started.
    #[error("a thread could not be started; raise the limit on threads")]
    Thread(#[source] io::Error),
    /// The server cannot listen on the address.
    #[error(
        "cannot listen on {address}; choose another with server.address or server.probe_address"
    )]
    Listen {
        /// Which address.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The certificates cannot be used.
    #[error("there can be no TLS")]
    Tls(#[from] crate::tls::TlsError),
}
