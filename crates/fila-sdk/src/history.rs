//! The failures of a message, and its origin if it is a dead letter.

use std::fmt;
use std::time::SystemTime;

use fila_proto::v1;

use crate::message::MessageId;
use crate::moment::at;

/// The failures of a message so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// The last error: the text of the consumer, up to 1,024 bytes of it, or a note that the lease ran out or the
    /// consumer disconnected.
    pub last_error: String,
    /// When its first attempt failed.
    pub first_failed_at: SystemTime,
    /// When its last attempt failed.
    pub last_failed_at: SystemTime,
    /// How it became a dead letter, if it is one, or was one and has gone back to its queue.
    pub death: Option<Death>,
}

/// How a message became a dead letter. If it did so several times, the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Death {
    /// The reason.
    pub reason: DeathReason,
    /// The queue that it was in.
    pub queue: String,
    /// Its id, which it keeps.
    pub id: MessageId,
    /// How many deliveries failed there, of all times together.
    pub attempts: u32,
    /// When it became a dead letter.
    pub died_at: SystemTime,
    /// When that queue first accepted it.
    pub enqueued_at: SystemTime,
}

/// The reason why a message became a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeathReason {
    /// All attempts that its queue allows have failed.
    AttemptsExhausted,
    /// The queue's hook has decided so.
    Hook,
    /// A reason that this version of the client does not know.
    Unknown,
}

impl DeathReason {
    /// Returns the word for it in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::Hook => "hook",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for DeathReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<v1::History> for History {
    fn from(wire: v1::History) -> Self {
        Self {
            last_error: wire.last_error,
            first_failed_at: at(wire.first_failed_at_ms),
            last_failed_at: at(wire.last_failed_at_ms),
            death: wire.death.map(Death::from),
        }
    }
}

impl From<v1::Death> for Death {
    fn from(wire: v1::Death) -> Self {
        Self {
            reason: match wire.reason() {
                v1::DeathReason::AttemptsExhausted => DeathReason::AttemptsExhausted,
                v1::DeathReason::Hook => DeathReason::Hook,
                v1::DeathReason::Unspecified => DeathReason::Unknown,
            },
            queue: wire.queue,
            id: MessageId::new(wire.message_id),
            attempts: wire.attempts,
            died_at: at(wire.died_at_ms),
            enqueued_at: at(wire.enqueued_at_ms),
        }
    }
}
