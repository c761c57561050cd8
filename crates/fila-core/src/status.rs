//! How one message is.

use fila_store::Timestamp;

/// How a message is that was found in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageStatus {
    /// Where it is in its life.
    pub state: MessageState,
    /// Deliveries that have ended without an acknowledgement, and the one under way.
    pub attempts: u32,
    /// The weight of its fairness key that is in force.
    pub weight: u32,
}

/// Where a message is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// May be delivered now, or when its key may run.
    Ready,
    /// Waits for its time.
    Delayed {
        /// When that is.
        until: Timestamp,
    },
    /// Is with a consumer.
    Leased {
        /// When the lease runs out, unless it is extended.
        until: Timestamp,
    },
}
