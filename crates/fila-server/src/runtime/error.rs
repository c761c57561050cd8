//! Why a call was refused, and why a server did not start.

use std::io;

use fila_core::{EnqueueError, QueueSettingsError, Refused};
use fila_lua::ScriptError;
use fila_store::{CommitError, ConfigKey, EngineError, OpenError, QueueName, ReadError, Version};

use super::NameError;
use crate::runtime_config::InvalidEntry;

/// Why a call was refused as a whole.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// There is no queue of this name.
    #[error("there is no queue `{0}`; create it first")]
    UnknownQueue(String),
    /// There is one already.
    #[error("queue `{0}` exists; choose another name, or update it")]
    QueueExists(QueueName),
    /// The queue's settings are not those that the caller has seen.
    #[error("queue `{name}` has version {found} by now; read it again and decide anew")]
    QueueChanged {
        /// Which queue.
        name: QueueName,
        /// Its version.
        found: Version,
    },
    /// The name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A setting, or something else in the call, is out of range. Says what is allowed.
    #[error("{0}")]
    Invalid(String),
    /// The queue goes with another one.
    #[error(
        "queue `{name}` holds the dead letters of `{of}` and is deleted with it; to empty it, purge it"
    )]
    DeadLetters {
        /// Which queue.
        name: QueueName,
        /// With which one.
        of: String,
    },
    /// Nobody but its own queue puts anything in.
    #[error("queue `{name}` takes dead letters of `{of}` only; send to that one")]
    TakesDeadLetters {
        /// Which queue.
        name: QueueName,
        /// Whose dead letters.
        of: String,
    },
    /// The queue has no dead letters that could go back.
    #[error("queue `{0}` holds no dead letters of another queue; name one that ends in `.dlq`")]
    NoDeadLetters(QueueName),
    /// The queue that dead letters are to go to does not take them.
    #[error("the queue takes no more dead letters back: {0}")]
    Redrive(EnqueueError),
    /// There are as many queues as there may be.
    #[error("there are {max} queues already; delete some, or raise limits.queues")]
    TooManyQueues {
        /// The limit.
        max: usize,
    },
    /// As many fairness keys of the queue have settings as may.
    #[error(
        "{max} fairness keys of the queue have settings, the limit; take back some, or raise limits.key_settings_per_queue"
    )]
    TooManyKeySettings {
        /// The limit.
        max: usize,
    },
    /// There are as many consumers as there may be.
    #[error("there are {max} consumers already; close some, or raise limits.consumers")]
    TooManyConsumers {
        /// The limit.
        max: usize,
    },
    /// The script of a queue's hooks does not load.
    #[error("script is refused: {0}")]
    Script(#[from] ScriptError),
    /// As many calls wait for the hook of a queue as may.
    #[error(
        "{max} calls wait for the hook of queue `{name}`, the limit; try again in a moment, or let the script do less"
    )]
    HookCrowded {
        /// Which queue.
        name: QueueName,
        /// The limit.
        max: usize,
    },
    /// The runtime configuration does not take this entry.
    #[error(transparent)]
    InvalidConfig(#[from] InvalidEntry),
    /// A key or a value of the runtime configuration is too long.
    #[error("the {what} has {found} bytes, {max} are allowed; shorten it, or raise {limit}")]
    ConfigTooLarge {
        /// Which of the two.
        what: &'static str,
        /// How many bytes it has.
        found: usize,
        /// How many it may have.
        max: usize,
        /// By which limit.
        limit: &'static str,
    },
    /// The runtime configuration has no such entry.
    #[error("`{0}` is not set; set it first")]
    UnknownConfig(String),
    /// The entry is not in the state that the caller has seen.
    #[error("`{key}` {}; read it again and decide anew", now_at(*.found))]
    ConfigChanged {
        /// Which entry.
        key: ConfigKey,
        /// Its version; none if it is not set.
        found: Option<Version>,
    },
    /// The runtime configuration is as large as it may be.
    #[error(
        "the runtime configuration may have {max} {what}; delete what is not used, or raise {limit}"
    )]
    ConfigFull {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: usize,
        /// Which limit.
        limit: &'static str,
    },
    /// The core has refused it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store takes no more writes.
    #[error("the store takes no more writes; look at the server's log and restart it")]
    StoreUnavailable,
    /// The store could not be read.
    #[error("the messages could not be read from the store; look at the server's log")]
    ReadFailed,
    /// A change of the catalogue may or may not have happened.
    #[error("it is unknown whether the change is stored; look again once the server is back")]
    OutcomeUnknown,
    /// The server stops, or has not begun.
    #[error("the server is shutting down; try again in a moment, or at another server")]
    ShuttingDown,
}

impl CallError {
    /// Says what the store's refusal of a change of the catalogue means for the caller.
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

    /// Says that nothing is set under this key, of which no more is shown than a key can have.
    pub(crate) fn unknown_config(key: &str) -> Self {
        Self::UnknownConfig(key.chars().take(ConfigKey::MAX).collect())
    }

    /// Says what the store's refusal of a change of the runtime configuration means for the caller.
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
    /// A queue could not be taken over.
    #[error("queue `{name}` could not be taken over")]
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
    /// A thread could not be started.
    #[error("a thread could not be started; raise the limit on threads")]
    Thread(#[source] io::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}; choose another with server.address")]
    Listen {
        /// Which address.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
}
