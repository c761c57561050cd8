//! Errors, grouped by how a caller can react to them.

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
    /// The server has refused the request. The request has changed nothing, unless the code is
    /// [`OutcomeUnknown`](ErrorCode::OutcomeUnknown).
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The client cannot reach a server. It has sent nothing.
    #[error(
        "cannot reach a Fila server at {address} ({cause}); start one with `fila server`, or give the address of one that runs"
    )]
    Unreachable {
        /// The address of the server.
        address: String,
        /// The error of the network.
        cause: String,
    },
    /// The server has not answered. The request may or may not have taken effect.
    #[error("no answer within {after:?}{}; the request may or may not have taken effect: check before you try again", because(.cause.as_deref()))]
    NoAnswer {
        /// How long the client waited.
        after: Duration,
        /// The last error of the connection, if there was one.
        cause: Option<String>,
    },
    /// The lease of a message ended before its result was stored: it ran out, the connection broke, or the server
    /// restarted. The broker delivers the message again, to this consumer or to another.
    #[error("the lease has ended before the result was stored; the message is delivered again")]
    LeaseLost,
    /// The client or its runtime is gone.
    #[error("the client is closed; connect again")]
    Closed,
    /// The address is not valid.
    #[error(
        "`{address}` is not the address of a server ({cause}); write it as http://127.0.0.1:5555"
    )]
    InvalidAddress {
        /// The given address.
        address: String,
        /// The reason.
        cause: String,
    },
}

/// The server's answer to a request that it refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct Refusal {
    /// The reason, for programs.
    pub code: ErrorCode,
    /// The reason and a remedy, for people.
    pub message: String,
}

impl Error {
    /// Returns the server's reason, if the server refused the request.
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

    /// Returns whether the same call may succeed later, once the load or the server's state has changed.
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

    /// Reads the refusal of a whole call. None if the status does not come from a Fila server.
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

/// The failure of a call or of a stream.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The server refused it.
    Refused(Refusal),
    /// The client cannot reach the server for now, or the server is shutting down.
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
                // Another kind of server, or a Fila server that is older than this client.
                code => Self::Refused(Refusal::new(
                    ErrorCode::Unspecified,
                    format!("{} ({code:?})", status.message()),
                )),
            },
        }
    }
}

/// Returns the text of the innermost cause of an error, which is the most precise one.
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
