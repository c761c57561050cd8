//! What can go wrong, shaped by what a caller can do about it.

use std::time::Duration;

use fila_proto::v1;
pub use fila_proto::v1::ErrorCode;
use tonic::{Code, Status};

/// The metadata entry that names the code of a refusal.
const ERROR_METADATA: &str = "fila-error";

/// Why a call of this crate failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server has looked at it and said no. Nothing has changed, unless it says that it
    /// [does not know](ErrorCode::OutcomeUnknown).
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no server, or the way to it is broken. Nothing was sent.
    #[error(
        "cannot reach a Fila server at {address} ({cause}); start one with `fila server`, or give the address of one that runs"
    )]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What the network said.
        cause: String,
    },
    /// No answer came. What was asked for may or may not have happened.
    #[error("no answer within {after:?}{}; it may or may not have happened: look before trying again", because(.cause.as_deref()))]
    NoAnswer {
        /// How long was waited.
        after: Duration,
        /// What was last heard, if anything.
        cause: Option<String>,
    },
    /// The lease of a message has ended before its result was stored: it ran out, or the connection broke, or the
    /// server was restarted. The message is delivered again, to this consumer or to another.
    #[error("the lease has ended before the result was stored; the message is delivered again")]
    LeaseLost,
    /// The client that this belongs to is gone, or its runtime is.
    #[error("the client is closed; connect again")]
    Closed,
    /// The address is none.
    #[error(
        "`{address}` is not the address of a server ({cause}); write it as http://127.0.0.1:5555"
    )]
    InvalidAddress {
        /// What was given.
        address: String,
        /// What is wrong with it.
        cause: String,
    },
}

/// What the server said when it refused something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct Refusal {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what was wrong, and what to do about it.
    pub message: String,
}

impl Error {
    /// Returns the server's reason, if it was the server that refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            Self::Unreachable { .. }
            | Self::NoAnswer { .. }
            | Self::LeaseLost
            | Self::Closed
            | Self::InvalidAddress { .. } => None,
        }
    }

    /// Whether the same call may succeed later without anybody changing anything but the load or the server's state.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_temporary(),
            Self::Unreachable { .. } | Self::NoAnswer { .. } => true,
            Self::LeaseLost | Self::Closed | Self::InvalidAddress { .. } => false,
        }
    }
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Reads the refusal of one message or lease.
    pub(crate) fn from_wire(error: v1::Error) -> Self {
        Self::new(error.code(), error.message)
    }

    /// Reads the refusal of a whole call. None if it was not the server that has spoken.
    pub(crate) fn from_status(status: &Status) -> Option<Self> {
        let name = status.metadata().get(ERROR_METADATA)?.to_str().ok()?;
        let code = ErrorCode::from_str_name(name).unwrap_or(ErrorCode::Unspecified);
        Some(Self::new(code, status.message()))
    }

    pub(crate) fn is_temporary(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::BufferFull
                | ErrorCode::OutcomeUnknown
                | ErrorCode::ShuttingDown
                | ErrorCode::StoreUnavailable
                | ErrorCode::QueueFull
                | ErrorCode::KeyFull
                | ErrorCode::TooManyConsumers
                | ErrorCode::TooManyDeduplicationIds
                | ErrorCode::TooManyDelayed
                | ErrorCode::TooManyKeys
        )
    }
}

/// How a call or a stream ended that did not end well.
#[derive(Debug)]
pub(crate) enum Broken {
    /// By the server's will, for good.
    Refused(Refusal),
    /// Because there is no way to the server for now, or it is going away.
    Away(String),
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        match Refusal::from_status(&status) {
            Some(refusal) => match refusal.code {
                ErrorCode::ShuttingDown
                | ErrorCode::StoreUnavailable
                | ErrorCode::OutcomeUnknown => Self::Away(refusal.message),
                _ => Self::Refused(refusal),
            },
            None => match status.code() {
                Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal => {
                    Self::Away(describe(&status))
                }
                // No server of ours, or one that is older than this client.
                code => Self::Refused(Refusal::new(
                    ErrorCode::Unspecified,
                    format!("{} ({code:?})", status.message()),
                )),
            },
        }
    }
}

/// Says what went wrong on the way, in the words of whoever knows best: the innermost cause.
pub(crate) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if std::ptr::eq(innermost, error)
        && let Some(status) = error.downcast_ref::<Status>()
    {
        return status.message().to_owned();
    }
    innermost.to_string()
}

fn because(cause: Option<&str>) -> String {
    cause.map_or_else(String::new, |cause| format!(" ({cause})"))
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataValue;

    use super::*;

    #[test]
    fn a_refusal_is_known_by_the_name_in_its_metadata() {
        let mut status = Status::not_found("queue `a` does not exist");
        let name = MetadataValue::from_static("QUEUE_NOT_FOUND");
        status.metadata_mut().insert(ERROR_METADATA, name);
        let Broken::Refused(refusal) = Broken::from(status) else {
            panic!("it was refused");
        };
        assert_eq!(refusal.code, ErrorCode::QueueNotFound);
        assert_eq!(refusal.to_string(), "queue `a` does not exist");
    }

    #[test]
    fn a_server_that_goes_away_has_not_refused() {
        let mut status = Status::unavailable("the server is shutting down");
        let name = MetadataValue::from_static("SHUTTING_DOWN");
        status.metadata_mut().insert(ERROR_METADATA, name);
        assert!(matches!(Broken::from(status), Broken::Away(_)));
        assert!(matches!(
            Broken::from(Status::unavailable("connection refused")),
            Broken::Away(_)
        ));
    }

    #[test]
    fn what_is_not_served_there_is_no_reason_to_try_again() {
        let broken = Broken::from(Status::unimplemented("no such method"));
        assert!(matches!(broken, Broken::Refused(_)));
    }
}
