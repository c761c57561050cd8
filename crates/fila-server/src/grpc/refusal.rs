//! Refusals for the wire: a code for programs, a text for people, and a gRPC status.

use fila_core::{EnqueueError, Refused, SettleError, SharedPool};
use fila_proto::v1::{Error, ErrorCode, Quota, QuotaPool};
use fila_store::OutOfRange;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::intake::ReceiveError;
use crate::runtime::{CallError, HookPool, NameError};

/// The metadata entry that names the code of a refusal.
pub(crate) const ERROR_METADATA: &str = "fila-error";

/// Why a call, a message or a result was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: ErrorCode,
    text: String,
    /// With [`ErrorCode::QuotaExceeded`].
    quota: Option<Quota>,
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            quota: None,
        }
    }

    pub(super) fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, text)
    }

    /// Says which part of the request is refused.
    pub(super) fn about(mut self, part: &str) -> Self {
        self.text = format!("{part}: {}", self.text);
        self
    }

    pub(super) fn batch_too_large(found: usize, max: usize) -> Self {
        let text = format!("{found} messages or results in one batch, {max} are allowed; split it");
        Self::new(ErrorCode::BatchTooLarge, text)
    }

    pub(super) fn queue_deleted(name: &str) -> Self {
        let text = format!("queue `{name}` was deleted; create it again, or use another");
        Self::new(ErrorCode::QueueDeleted, text)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut status = Self::new(status_code(refusal.code), refusal.text.clone());
        let name = MetadataValue::from_static(refusal.code.name());
        status.metadata_mut().insert(ERROR_METADATA, name);
        if refusal.quota.is_some() {
            let details = MetadataValue::from_bytes(&Error::from(refusal).to_bytes());
            let metadata = status.metadata_mut();
            metadata.insert_bin(fila_proto::ERROR_DETAILS_METADATA, details);
        }
        status
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self {
            code: refusal.code.into(),
            message: refusal.text,
            quota: refusal.quota,
        }
    }
}

/// Returns the status of gRPC with which a call ends that is refused with this code.
pub(crate) fn status_code(code: ErrorCode) -> Code {
    match code {
        ErrorCode::Unspecified => Code::Internal,
        ErrorCode::InvalidArgument
        | ErrorCode::InvalidQueueName
        | ErrorCode::InvalidWeight
        | ErrorCode::FairnessKeyTooLong
        | ErrorCode::InvalidFairnessKey
        | ErrorCode::PayloadTooLarge
        | ErrorCode::HeadersTooLarge
        | ErrorCode::DelayTooLong
        | ErrorCode::BatchTooLarge
        | ErrorCode::DeduplicationIdTooLong
        | ErrorCode::InvalidThrottleKey
        | ErrorCode::InvalidConfig
        | ErrorCode::ConfigTooLarge
        | ErrorCode::InvalidScript => Code::InvalidArgument,
        ErrorCode::QueueNotFound | ErrorCode::QueueDeleted | ErrorCode::ConfigNotFound => {
            Code::NotFound
        }
        ErrorCode::QueueExists => Code::AlreadyExists,
        ErrorCode::QueueChanged | ErrorCode::ConfigChanged => Code::Aborted,
        ErrorCode::TooManyQueues
        | ErrorCode::TooManyKeys
        | ErrorCode::QueueFull
        | ErrorCode::KeyFull
        | ErrorCode::TooManyDelayed
        | ErrorCode::TooManyDeduplicationIds
        | ErrorCode::TooManyConsumers
        | ErrorCode::TooManyConnections
        | ErrorCode::BufferFull
        | ErrorCode::StorageFull
        | ErrorCode::TooManyKeySettings
        | ErrorCode::QuotaExceeded
        | ErrorCode::ConfigFull => Code::ResourceExhausted,
        ErrorCode::LeaseNotFound
        | ErrorCode::PurgesExhausted
        | ErrorCode::TlsRequired
        | ErrorCode::HookFailed => Code::FailedPrecondition,
        ErrorCode::StoreUnavailable | ErrorCode::ShuttingDown => Code::Unavailable,
        ErrorCode::OutcomeUnknown => Code::Unknown,
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        let code = match &error {
            CallError::UnknownQueue(_) => ErrorCode::QueueNotFound,
            CallError::QueueExists(_) => ErrorCode::QueueExists,
            CallError::QueueChanged { .. } => ErrorCode::QueueChanged,
            CallError::Name(_) => ErrorCode::InvalidQueueName,
            CallError::Invalid(_)
            | CallError::DeadLetters { .. }
            | CallError::TakesDeadLetters { .. }
            | CallError::NoDeadLetters(_) => ErrorCode::InvalidArgument,
            CallError::TooManyQueues { .. } => ErrorCode::TooManyQueues,
            CallError::TooManyKeySettings { .. } => ErrorCode::TooManyKeySettings,
            CallError::TooManyConsumers { .. } => ErrorCode::TooManyConsumers,
            CallError::Script(_) => ErrorCode::InvalidScript,
            CallError::HookCrowded { used, .. } => {
                let pool = match used.pool {
                    HookPool::Calls => QuotaPool::HookCalls,
                    HookPool::Kib => QuotaPool::HookKib,
                };
                let quota = Quota {
                    pool: pool.into(),
                    held: used.held,
                    part: used.part,
                    retry_after_ms: super::settings::millis(used.retry_after),
                    path: String::new(),
                };
                return Self {
                    quota: Some(quota),
                    ..Self::new(ErrorCode::QuotaExceeded, error.to_string())
                };
            }
            CallError::InvalidConfig(_) => ErrorCode::InvalidConfig,
            CallError::ConfigTooLarge { .. } => ErrorCode::ConfigTooLarge,
            CallError::UnknownConfig(_) => ErrorCode::ConfigNotFound,
            CallError::ConfigChanged { .. } => ErrorCode::ConfigChanged,
            CallError::ConfigFull { .. } => ErrorCode::ConfigFull,
            CallError::Refused(refused) => return (*refused).into(),
            CallError::Redrive(refused) => {
                let refusal = Self::from(refused.clone());
                return Self {
                    text: error.to_string(),
                    ..refusal
                };
            }
            CallError::StoreUnavailable | CallError::ReadFailed => ErrorCode::StoreUnavailable,
            CallError::OutcomeUnknown => ErrorCode::OutcomeUnknown,
            CallError::ShuttingDown => ErrorCode::ShuttingDown,
        };
        Self::new(code, error.to_string())
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        Refusal::from(error).into()
    }
}

impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        Self::new(ErrorCode::InvalidQueueName, error.to_string())
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let code = match refused {
            Refused::QueueGone => ErrorCode::QueueDeleted,
            Refused::StoreFailed => ErrorCode::StoreUnavailable,
            Refused::OutcomeUnknown => ErrorCode::OutcomeUnknown,
            Refused::PurgesExhausted => ErrorCode::PurgesExhausted,
            Refused::TooManyConsumers { .. } => ErrorCode::TooManyConsumers,
            Refused::TooManyKeysToCopy { .. } => ErrorCode::TooManyKeys,
            Refused::BatchChanged { .. } | Refused::BatchAnswered { .. } => {
                ErrorCode::InvalidArgument
            }
        };
        Self::new(code, refused.to_string())
    }
}

impl From<EnqueueError> for Refusal {
    fn from(error: EnqueueError) -> Self {
        let code = match &error {
            EnqueueError::PayloadTooLarge { .. } => ErrorCode::PayloadTooLarge,
            EnqueueError::TooManyHeaders { .. } | EnqueueError::HeadersTooLarge { .. } => {
                ErrorCode::HeadersTooLarge
            }
            EnqueueError::FairnessKeyTooLong { .. } => ErrorCode::FairnessKeyTooLong,
            EnqueueError::InvalidPath(_) => ErrorCode::InvalidFairnessKey,
            EnqueueError::TooManyThrottleKeys { .. } => ErrorCode::InvalidThrottleKey,
            EnqueueError::DelayTooLong { .. } => ErrorCode::DelayTooLong,
            EnqueueError::ExpiresTooEarly { .. } => ErrorCode::InvalidArgument,
            EnqueueError::InvalidWeight { .. } => ErrorCode::InvalidWeight,
            EnqueueError::QueueFull { .. } => ErrorCode::QueueFull,
            EnqueueError::KeyFull { .. } => ErrorCode::KeyFull,
            EnqueueError::OverPart { .. } => ErrorCode::QuotaExceeded,
            EnqueueError::TooManyKeys { .. } => ErrorCode::TooManyKeys,
            EnqueueError::TooManyDelayed { .. } => ErrorCode::TooManyDelayed,
            EnqueueError::TooManyDeduplicationIds { .. } => ErrorCode::TooManyDeduplicationIds,
            EnqueueError::BufferFull { .. } => ErrorCode::BufferFull,
            EnqueueError::StorageFull => ErrorCode::StorageFull,
            EnqueueError::HookFailed { .. } => ErrorCode::HookFailed,
            EnqueueError::IdsExhausted => ErrorCode::StoreUnavailable,
        };
        Self {
            quota: quota(&error),
            ..Self::new(code, error.to_string())
        }
    }
}

/// Returns what a key, a group or a client holds of a pool, if that is why a message was refused.
fn quota(error: &EnqueueError) -> Option<Quota> {
    let EnqueueError::OverPart {
        pool,
        path,
        held,
        part,
        retry_after,
    } = error
    else {
        return None;
    };
    let pool = match pool {
        SharedPool::Depth => QuotaPool::Depth,
        SharedPool::Delayed => QuotaPool::Delayed,
        SharedPool::DeduplicationIds => QuotaPool::DeduplicationIds,
        SharedPool::Keys => QuotaPool::Keys,
    };
    let path = path.as_ref().map_or(&[][..], |path| path.as_bytes());
    Some(Quota {
        pool: pool.into(),
        held: *held,
        part: *part,
        retry_after_ms: super::settings::millis(*retry_after),
        path: String::from_utf8_lossy(path).into_owned(),
    })
}

impl From<SettleError> for Refusal {
    fn from(error: SettleError) -> Self {
        let code = match error {
            SettleError::LeaseNotFound => ErrorCode::LeaseNotFound,
            SettleError::AnotherMessage => ErrorCode::InvalidArgument,
            SettleError::TooLong { .. } => ErrorCode::DelayTooLong,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ReceiveError> for Status {
    fn from(error: ReceiveError) -> Self {
        let buffer_full = |text: &str| Refusal::new(ErrorCode::BufferFull, text).into();
        match error {
            ReceiveError::Crowded => buffer_full(
                "the server is receiving limits.receiving_bytes of requests; try again in a moment",
            ),
            ReceiveError::Stalled => buffer_full(
                "the request stopped in the middle, and its room is for others; send it again",
            ),
            ReceiveError::TooLarge { found, max } => {
                let text = format!("the request has {found} bytes, {max} are allowed; split it");
                Refusal::new(ErrorCode::PayloadTooLarge, text).into()
            }
            ReceiveError::Cut => Refusal::invalid("the request ends in the middle").into(),
            ReceiveError::Broken(error) => Self::from_error(error),
        }
    }
}

/// Returns a refusal for a request that tonic could not read. Leaves other statuses as they are.
pub(crate) fn unreadable(status: Status) -> Status {
    if status.metadata().contains_key(ERROR_METADATA) {
        return status;
    }
    match status.code() {
        // tonic uses these codes for a request beyond the limit, and for one that is not valid protobuf.
        Code::OutOfRange => {
            let text = format!("the request is too large; split it ({})", status.message());
            Refusal::new(ErrorCode::PayloadTooLarge, text).into()
        }
        Code::Internal => {
            let text = format!("the request cannot be read ({})", status.message());
            Refusal::invalid(text).into()
        }
        _ => status,
    }
}

/// Returns a refusal of a value that does not fit the storage format, whatever the configured limits are.
pub(super) fn out_of_range(code: ErrorCode) -> impl Fn(OutOfRange) -> Refusal {
    move |error| Refusal::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_code_in_the_metadata() {
        let status = Status::from(CallError::UnknownQueue("orders".to_owned()));
        assert_eq!(status.code(), Code::NotFound);
        let code = status.metadata().get(ERROR_METADATA).unwrap();
        assert_eq!(code, "QUEUE_NOT_FOUND");
        assert_eq!(
            status.message(),
            "there is no queue `orders`; create it first"
        );
    }

    #[test]
    fn a_queue_that_cannot_be_purged_again_says_so() {
        let status = Status::from(CallError::Refused(Refused::PurgesExhausted));
        assert_eq!(status.code(), Code::FailedPrecondition);
        let code = status.metadata().get(ERROR_METADATA).unwrap();
        assert_eq!(code, "PURGES_EXHAUSTED");
    }

    fn codes() -> impl Iterator<Item = ErrorCode> {
        (0..100).filter_map(|number| ErrorCode::try_from(number).ok())
    }

    #[test]
    fn every_code_has_a_status_other_than_ok() {
        for code in codes() {
            assert_ne!(status_code(code), Code::Ok);
        }
    }

    #[test]
    fn the_book_has_a_row_for_every_code_with_its_status_in_their_order() {
        let book = include_str!("../../../../docs/grpc.md");
        let (_, chapter) = book.split_once("\n## Refusals\n").unwrap();
        let chapter = chapter.split("\n## ").next().unwrap();
        let rows = chapter.lines().filter(|line| line.starts_with("| `"));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
        let shown: Vec<(&str, &str)> = rows.iter().map(|cells| (cells[0], cells[1])).collect();
        let rows_of_code = codes().map(|code| {
            // `NotFound` is written `NOT_FOUND` in the book, as gRPC's own documentation does.
            let mut status = String::new();
            for c in format!("{:?}", status_code(code)).chars() {
                if c.is_uppercase() && !status.is_empty() {
                    status.push('_');
                }
                status.push(c.to_ascii_uppercase());
            }
            (format!("| `{}`", code.name()), format!("`{status}`"))
        });
        let expected: Vec<(String, String)> = rows_of_code.collect();
        let expected: Vec<(&str, &str)> = expected
            .iter()
            .map(|(code, status)| (code.as_str(), status.as_str()))
            .collect();
        assert_eq!(shown, expected);
        assert!(rows.iter().all(|cells| cells.len() == 4), "{rows:?}");
    }
}
