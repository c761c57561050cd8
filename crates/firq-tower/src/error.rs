//! Why a request did not reach the service behind the layer.

use std::time::Duration;

use firq_async::EnqueueRejectReason;

/// A request that did not reach the service behind the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
#[non_exhaustive]
pub struct Refusal {
    /// Why it did not.
    pub cause: Cause,
    /// How long the client had best wait before it tries again, if that may help.
    ///
    /// Computed from the pace at which the tenant is served, and from the moments that other clients were told.
    /// A client that comes back at its moment finds room most of the time.
    pub retry_after: Option<Duration>,
}

/// Why a request did not reach the service behind the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// There was no room for it in the queue.
    #[error("{0}")]
    Rejected(#[source] EnqueueRejectReason),
    /// It was queued, and gave way to a request of a tenant that had less.
    #[error(
        "the request gave way to another tenant's; retry when the tenant's requests have been served"
    )]
    Evicted,
    /// Its deadline passed before its turn came.
    #[error("the deadline passed before the request's turn came; allow more time")]
    Expired,
    /// The layer is closed.
    #[error("the service is shutting down; send the request to another instance")]
    Closed,
}

impl From<EnqueueRejectReason> for Cause {
    fn from(reason: EnqueueRejectReason) -> Self {
        Self::Rejected(reason)
    }
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 6] = [
        Self::Rejected(EnqueueRejectReason::TenantFull),
        Self::Rejected(EnqueueRejectReason::GlobalFull),
        Self::Rejected(EnqueueRejectReason::Timeout),
        Self::Evicted,
        Self::Expired,
        Self::Closed,
    ];

    /// Returns the cause as a stable identifier, for logs, metrics and clients.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected(reason) => reason.as_str(),
            Self::Evicted => "evicted",
            Self::Expired => "expired",
            Self::Closed => "closed",
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Rejected(reason) => reason as usize,
            Self::Evicted => 3,
            Self::Expired => 4,
            Self::Closed => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_numbered_in_their_order() {
        for (number, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), number);
        }
    }
}
