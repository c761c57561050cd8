//! What can go wrong, by what the caller can do about it.

use shardqueue::JobError;

/// Why a queue could not be opened, or a job not be submitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DurableError {
    /// The arguments of a job could not be written.
    #[error("the arguments of job `{name}` could not be written: {source}")]
    Encode {
        /// The job's name.
        name: &'static str,
        /// The error of the serialiser.
        source: serde_json::Error,
    },
    /// There is such a queue, and it does not keep the order of its keys.
    #[error(
        "queue `{queue}` does not keep the order of its keys; set its ordering to `key`, or use another queue"
    )]
    NotOrdered {
        /// The queue's name.
        queue: String,
    },
    /// The broker refused, or did not answer.
    #[error(transparent)]
    Broker(#[from] fila_sdk::Error),
}

/// Why an attempt of a job failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobRejection {
    /// The message has no job's name: another program has sent it.
    #[error("the message is no job: it has no header `{header}`")]
    NoName {
        /// The header that is missing.
        header: &'static str,
    },
    /// This worker has no handler of this name.
    #[error("no handler for job `{name}`; register one, or deploy the version that has it")]
    Unknown {
        /// The job's name.
        name: String,
    },
    /// The arguments are not those of the type that the handler takes.
    #[error("the arguments of job `{name}` could not be read: {source}")]
    Decode {
        /// The job's name.
        name: String,
        /// The error of the deserialiser.
        source: serde_json::Error,
    },
    /// The handler returned an error.
    #[error("job `{name}` failed: {error}")]
    Failed {
        /// The job's name.
        name: String,
        /// The handler's error.
        error: JobError,
    },
}
