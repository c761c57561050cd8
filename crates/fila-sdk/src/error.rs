//! Errors, grouped by how a caller can react to them.

use std::time::Duration;

use fila_proto::ERROR_DETAILS_METADATA;
use fila_proto::v1;
pub use fila_proto::v1::{ErrorCode, QuotaPool};
use tonic::{Code, Status};

use crate::settings::SettingsError;
use crate::tls_fault::TlsFault;

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
    /// The client and the server cannot agree on a secure connection. The client has sent nothing.
    #[error("no secure connection to {address}: {fault} ({cause}); {}", .fault.remedy())]
    Tls {
        /// The address of the server.
        address: String,
        /// What is probably wrong.
        fault: TlsFault,
        /// The error of the connection.
        cause: String,
    },
    /// A certificate or a key that was given to the client cannot be used.
    #[error("the settings of TLS cannot be used: {cause}")]
    InvalidTls {
        /// The reason.
        cause: String,
    },
    /// The settings of the environment or of a profile cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
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
    /// With [`ErrorCode::QuotaExceeded`]: which pool, how much of it, and when to come back.
    pub quota: Option<Quota>,
}

/// The part of a shared pool that a fairness key or a client may hold, and the amount that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    /// The pool.
    pub pool: QuotaPool,
    /// How much the fairness key holds, or the client if it is the pool of keys.
    pub held: u64,
    /// How much it may hold now.
    pub part: u64,
    /// When it probably holds less than its part.
    pub retry_after: Duration,
}

impl From<v1::Quota> for Quota {
    fn from(wire: v1::Quota) -> Self {
        Self {
            pool: wire.pool(),
            held: wire.held,
            part: wire.part,
            retry_after: Duration::from_millis(wire.retry_after_ms),
        }
    }
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
            | Self::InvalidAddress { .. }
            | Self::Tls { .. }
            | Self::InvalidTls { .. }
            | Self::Settings(_) => None,
        }
    }

    /// Returns what the fairness key or the client holds of a shared pool, if it was refused because that is its part.
    pub fn quota(&self) -> Option<Quota> {
        match self {
            Self::Refused(refusal) => refusal.quota,
            Self::Unreachable { .. }
            | Self::NoAnswer { .. }
            | Self::LeaseLost
            | Self::Closed
            | Self::InvalidAddress { .. }
            | Self::Tls { .. }
            | Self::InvalidTls { .. }
            | Self::Settings(_) => None,
        }
    }

    /// Returns when to try again, if the server has said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.quota().map(|quota| quota.retry_after)
    }

    /// Returns whether the same call may succeed later, once the load or the server's state has changed.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_temporary(),
            Self::Unreachable { .. } | Self::NoAnswer { .. } => true,
            Self::LeaseLost
            | Self::Closed
            | Self::InvalidAddress { .. }
            | Self::Tls { .. }
            | Self::InvalidTls { .. }
            | Self::Settings(_) => false,
        }
    }
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            quota: None,
        }
    }

    /// Reads the refusal of one message or lease.
    pub(crate) fn from_wire(error: v1::Error) -> Self {
        Self {
            code: error.code(),
            quota: error.quota.map(Quota::from),
            message: error.message,
        }
    }

    /// Reads the refusal of a whole call. None if the status does not come from a Fila server.
    pub(crate) fn from_status(status: &Status) -> Option<Self> {
        let name = status.metadata().get(ERROR_METADATA)?.to_str().ok()?;
        let code = ErrorCode::from_name(name).unwrap_or(ErrorCode::Unspecified);
        let details = status.metadata().get_bin(ERROR_DETAILS_METADATA);
        let details = details.and_then(|details| v1::Error::from_bytes(&details.to_bytes().ok()?));
        Some(Self {
            quota: details.and_then(|details| details.quota).map(Quota::from),
            ..Self::new(code, status.message())
        })
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
                | ErrorCode::QuotaExceeded
                | ErrorCode::StorageFull
                | ErrorCode::TooManyConsumers
                | ErrorCode::TooManyConnections
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
                    Self::Away(match TlsFault::find(&status) {
                        Some(fault) => format!("{fault}; {}", fault.remedy()),
                        None => describe(&status),
                    })
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
    fn a_refusal_for_a_quota_says_when_to_come_back() {
        let quota = v1::Quota {
            pool: QuotaPool::Depth.into(),
            held: 75,
            part: 75,
            retry_after_ms: 1_500,
            path: "acme".to_owned(),
        };
        let error = v1::Error {
            code: ErrorCode::QuotaExceeded.into(),
            message: "the fairness key holds its part".to_owned(),
            quota: Some(quota),
        };
        let mut status = Status::resource_exhausted(error.message.clone());
        let name = MetadataValue::from_static("QUOTA_EXCEEDED");
        status.metadata_mut().insert(ERROR_METADATA, name);
        let details = MetadataValue::from_bytes(&error.to_bytes());
        status
            .metadata_mut()
            .insert_bin(ERROR_DETAILS_METADATA, details);
        let of_call = Refusal::from_status(&status).unwrap();
        assert_eq!(of_call, Refusal::from_wire(error));
        let error = Error::from(of_call);
        assert_eq!(error.retry_after(), Some(Duration::from_millis(1_500)));
        let quota = error.quota().unwrap();
        assert_eq!(
            (quota.pool, quota.held, quota.part),
            (QuotaPool::Depth, 75, 75)
        );
        assert!(error.is_temporary());
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
