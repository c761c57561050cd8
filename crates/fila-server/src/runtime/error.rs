//! Why a call was refused, and why a server did not start.

use std::io;

use fila_core::{DefinitionError, Refused};
use fila_store::{CommitError, EngineError, OpenError, QueueName, ReadError, Version};

use super::NameError;

/// Why a call was refused as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
            EngineError::Commit(CommitError::Unknown(_)) => Self::OutcomeUnknown,
            // Whatever else it is, nothing was changed, and the log says why.
            _ => Self::StoreUnavailable,
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    Definition {
        /// Which one.
        name: QueueName,
        /// Why.
        source: DefinitionError,
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
