//! The status of one message.

use fila_store::Timestamp;

/// The status of a message that the driver has found in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageStatus {
    /// Its state.
    pub state: MessageState,
    /// Deliveries that have ended without an acknowledgement, and the one under way.
    pub attempts: u32,
    /// The weight in force of its fairness key.
    pub weight: u32,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// May be delivered now, or when its key may run.
    Ready,
    /// Waits for its time.
    Delayed {
        /// The end of its delay.
        until: Timestamp,
    },
    /// A consumer holds it.
    Leased {
        /// When the lease ends, unless the consumer extends it.
        until: Timestamp,
    },
}
